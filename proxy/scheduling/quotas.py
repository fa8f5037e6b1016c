"""The quotas of topics and clients, from the configuration.

Owns the join of name patterns and accounts: bytes of Produces in flight, and record bytes fetched
per second. Must not know the consequence of an exhausted quota.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from isolation.quotas import UNLIMITED, Quota, Quotas, QuotaUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from isolation.quotas import Reservation
    from proxy.config.isolation import Isolation
    from proxy.config.isolation import QuotaConfig as Entry


class QuotaTable:
    """All quota accounts. If no quota is configured, every method returns at once."""

    def __init__(self, config: Isolation) -> None:
        self.active = _is_active(config)
        self.topics = Quotas(_finder(config.topic_quotas))
        self.clients = Quotas(_finder(config.client_quotas))

    def set_quotas(self, config: Isolation, now: float) -> None:
        """Take the quotas of another configuration. Reserved bytes stay reserved, and debts stay owed."""
        self.active = _is_active(config)
        self.topics.set_quotas(_finder(config.topic_quotas), now)
        self.clients.set_quotas(_finder(config.client_quotas), now)

    def reserve(
        self, client_id: str, topics: Sequence[str], size_bytes: int, now: float
    ) -> list[Reservation] | None:
        """Reserve `size_bytes` for a Produce under the quotas of the client and of all its topics.

        Return the reservations, which the caller must release. Return [] if no quota is configured,
        and None if a quota is exhausted; then nothing is reserved.
        """
        if not self.active:
            return []
        held: list[Reservation] = []
        for quotas, keys in (
            (self.clients, (client_id,)),
            (self.topics, tuple(dict.fromkeys(topics))),
        ):
            reservation = quotas.reserve(keys, size_bytes, now)
            if reservation is None:
                for one in held:
                    one.release()
                return None
            held.append(reservation)
        return held

    def peek_delay_s(self, client_id: str, topics: Sequence[str], now: float) -> float:
        """Return the seconds that a Fetch has to wait until earlier fetched bytes are paid for; 0.0
        without a quota. The caller may leave `topics` empty if no topic is in debt
        (`topics.owes`).
        """
        if not self.active:
            return 0.0
        of_client = self.clients.peek_delay_s((client_id,), now)
        return max(of_client, self.topics.peek_delay_s(tuple(dict.fromkeys(topics)), now))

    def take_usage(self) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]]]:
        """Return what was used of the quotas of topics and clients since the last call (`QuotaUsage`), for other
        processes that share them.
        """
        topics, clients = self.topics.take_usage(), self.clients.take_usage()
        return (
            {key: (one.spent_bytes, one.in_flight_bytes) for key, one in topics.items()},
            {key: (one.spent_bytes, one.in_flight_bytes) for key, one in clients.items()},
        )

    def learn_usage(
        self,
        process: int,
        topics: Mapping[str, tuple[int, int]],
        clients: Mapping[str, tuple[int, int]],
        now: float,
    ) -> None:
        """Charge what another process has used, which `take_usage` returned there."""
        for quotas, used in ((self.topics, topics), (self.clients, clients)):
            found = {key: QuotaUsage(*usage) for key, usage in used.items()}
            quotas.learn_usage(process, found, now)

    def forget_process(self, process: int) -> None:
        """Another process has ended."""
        self.topics.forget_process(process)
        self.clients.forget_process(process)

    def charge(self, client_id: str, topic: str, size_bytes: int, now: float) -> None:
        """Charge delivered record bytes to the client and to the topic."""
        if self.active and size_bytes:
            self.clients.charge(client_id, size_bytes, now)
            self.topics.charge(topic, size_bytes, now)


def _is_active(config: Isolation) -> bool:
    return config.enabled and bool(config.topic_quotas or config.client_quotas)


def _finder(entries: Sequence[Entry]) -> Callable[[str], Quota]:
    quotas = [
        (entry.pattern, Quota(entry.in_flight_bytes or None, float(entry.fetch_rate_bytes) or None))
        for entry in entries
    ]

    def find(key: str) -> Quota:
        return next((quota for pattern, quota in quotas if fnmatchcase(key, pattern)), UNLIMITED)

    return find
