"""A poll of the replica fetcher over idle partitions: up to IDLE_MAX of them in one fetch session.

Owns its members, and which of them the poll in flight names. Must not know the small poll.
Invariants: a member with news, an error or no lease leaves; an unwanted member leaves, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxy.replica_fetcher.poll import Poll

if TYPE_CHECKING:
    from proxy.net.own_connections import OwnConnections
    from proxy.partitions.table import Partition
    from proxy.replica_fetcher.services import FetcherServices

WANTED_S = 10.0
"""How long a partition is watched after it was last tailed or served, in seconds."""
NEWS_S = 1.0
"""How long a partition stays in the small poll after its last news, in seconds."""
IDLE_MAX = 500


class IdlePoll:
    """Poll over up to IDLE_MAX idle partitions, in one fetch session on its own connection."""

    __slots__ = ("_broker", "_long_s", "_named", "_poll", "_rest_until", "members", "name")

    def __init__(self, broker: FetcherServices, name: str, long_s: float) -> None:
        self._broker = broker
        self.name = name
        self.members: dict[Partition, None] = {}
        self._long_s = long_s
        self._poll = Poll(broker, "watch", long_s, in_session=True)
        self._named: set[Partition] = set()
        self._rest_until = 0.0

    def covers(self, partition: Partition) -> bool:
        """True if the poll in flight names `partition`."""
        return self._poll.in_flight and partition in self._named

    def pump(self, own: OwnConnections) -> None:
        """Ask again if no poll is in flight. Without a session the rate is halved, since each poll
        then names every partition.
        """
        now = self._broker.now()
        if self._poll.in_flight or not self.members or now < self._rest_until:
            return
        link = own.link(self.name)
        if link is None:
            return
        self._rest_until = now + 2 * self._long_s if self._poll.session_refused else 0.0
        members = [p for p in self.members if p.retry_at <= now]
        if self._poll.send(link, members):
            self._named = set(members)

    def take_lively(self, now: float) -> list[Partition]:
        """Remove and return the members with news, an error or no lease: they go back to the small
        poll.
        """
        lively = [
            p
            for p in self.members
            if now - p.news_at <= NEWS_S or not p.leader_state.has_lease(now)
        ]
        for partition in lively:
            del self.members[partition]
        return lively

    def drop_unwanted(self, now: float) -> None:
        """Remove the members that no request has wanted for WANTED_S seconds."""
        for partition in [p for p in self.members if now - p.wanted_at > WANTED_S and not p.parked]:
            del self.members[partition]
