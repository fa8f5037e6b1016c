"""Unread answers: connections to the broker that Forebay does not read, since clients do not take theirs.

Owns since when each connection was found so. Must not know queues, slots or why a connection is not
read. Invariants:
* a connection counts once two looks, at least UNREAD_S apart, have found it: between a fast broker
  and its client, reading stops and goes on within milliseconds.
* a broker works on one request of a connection, and reads the next one when the answer has left
  (Kafka: SocketServer, `processCompletedReceives` mutes and `processCompletedSends` unmutes). So it
  serves no request of a connection that is not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from isolation.tickets import ADMITTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from proxy.net.client_connection import AnyLink
    from proxy.scheduling.queued_request import QueuedRequest

UNREAD_S = 0.05
"""Seconds between the first look that finds a connection unread and the one from which it counts."""


class BrokerSide(Protocol):
    """A connection to the broker."""

    @property
    def reading_held(self) -> bool:
        """Whether its responses are not read now."""


class UnreadAnswers:
    """The connections that the last look has found unread, with the time of the first of such looks in a row."""

    __slots__ = ("_counting", "_since")

    def __init__(self) -> None:
        self._since: dict[BrokerSide, float] = {}
        self._counting: frozenset[BrokerSide] = frozenset()

    def look(
        self,
        lines: Mapping[AnyLink, Iterable[QueuedRequest]],
        others: Mapping[AnyLink, Iterable[QueuedRequest]],
        now: float,
    ) -> list[QueuedRequest]:
        """Return the requests at the broker whose connection is not read. `lines`: unanswered
        requests on the first connection of each client. `others`: those that wait, or were sent on
        its catch-up connection. `now` is in seconds.
        """
        found: list[BrokerSide] = [link.upstream for link in lines if link.upstream.reading_held]
        found += [link.catch_up for link in others if link.catch_up.reading_held]
        self._since = {side: self._since.get(side, now) for side in found}
        self._counting = frozenset(s for s, at in self._since.items() if now - at >= UNREAD_S)
        if not self._counting:
            return []
        unread = [one for link in lines if self.holds(link.upstream) for one in lines[link]]
        unread += [one for link in others if self.holds(link.catch_up) for one in others[link]]
        return [one for one in unread if one.state is ADMITTED]

    def holds(self, side: BrokerSide) -> bool:
        """Return True if the connection counted at the last look, and is still not read."""
        return side in self._counting and side.reading_held
