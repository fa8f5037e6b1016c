"""The quotas of topics and clients, from the configuration: bytes of Produces in flight, record bytes fetched
a second.

Owns the join of patterns and accounts. It must not know what is done about a quota that is used up.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from isolation.quotas import UNLIMITED, Quota, Quotas

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from isolation.quotas import Reservation
    from proxy.config.isolation import Isolation
    from proxy.config.isolation import Quota as Entry


class QuotaTable:
    """All accounts. Nothing configured costs nothing."""

    def __init__(self, config: Isolation) -> None:
        self.active = config.enabled and bool(config.topic_quotas or config.client_quotas)
        self.topics = Quotas(_finder(config.topic_quotas))
        self.clients = Quotas(_finder(config.client_quotas))

    def reserve(
        self, client_id: str, topics: Sequence[str], size_bytes: int, now: float
    ) -> list[Reservation] | None:
        """Room for a Produce under the client's and all its topics' quotas; None where one is used up."""
        if not self.active:
            return []
        held: list[Reservation] = []
        for quotas, keys in ((self.clients, (client_id,)), (self.topics, tuple(dict.fromkeys(topics)))):
            reservation = quotas.reserve(keys, size_bytes, now)
            if reservation is None:
                for one in held:
                    one.release()
                return None
            held.append(reservation)
        return held

    def peek_delay_s(self, client_id: str, topics: Sequence[str], now: float) -> float:
        """How long a Fetch has to wait until what was fetched before is paid for. Where no topic owes
        (`topics.owes`), none needs to be named.
        """
        if not self.active:
            return 0.0
        of_client = self.clients.peek_delay_s((client_id,), now)
        return max(of_client, self.topics.peek_delay_s(tuple(dict.fromkeys(topics)), now))

    def charge(self, client_id: str, topic: str, size_bytes: int, now: float) -> None:
        """Record bytes have been delivered."""
        if self.active and size_bytes:
            self.clients.charge(client_id, size_bytes, now)
            self.topics.charge(topic, size_bytes, now)


def _finder(entries: Sequence[Entry]) -> Callable[[str], Quota]:
    quotas = [
        (entry.pattern, Quota(entry.in_flight_bytes or None, float(entry.fetch_rate_bytes) or None))
        for entry in entries
    ]

    def find(key: str) -> Quota:
        return next((quota for pattern, quota in quotas if fnmatchcase(key, pattern)), UNLIMITED)

    return find
