"""A request in the request scheduler.

Owns the scheduler's knowledge of a request that may have to wait, or may be refused. Must not know
the contents of the request. Invariant: bytes reserved under quotas are released once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from isolation.health import Sent
    from isolation.quotas import Reservation
    from isolation.tickets import Ticket
    from proxy.net.client_connection import AnyLink


class Entry:
    """A request in the request scheduler.

    `dispatch`: called when its turn has come. `refuse`: called if it is refused; None: it must not
    be refused. `watched`: topics whose health depends on it; `topic`: that topic if there is one.
    `is_measured`: its latency counts for the concurrency limit. Only Produces are measured, since
    reads and appends have no common measure. `sent`: set once the health check knows the request.
    `started_at`: when the broker began to work on it (seconds), -1 before. `whole`: lets the broker
    answer it after `dispatch` or `refuse` has failed.
    """

    __slots__ = (
        "dispatch",
        "is_measured",
        "link",
        "refuse",
        "reserved",
        "sent",
        "started_at",
        "ticket",
        "topic",
        "watched",
        "whole",
    )

    def __init__(
        self,
        link: AnyLink,
        dispatch: Callable[[Entry], None] | None,
        refuse: Callable[[], None] | None,
        watched: Sequence[str | bytes],
        reserved: Sequence[Reservation],
        is_measured: bool,
        whole: Callable[[], object] | None = None,
    ) -> None:
        self.link = link
        self.dispatch = dispatch
        self.refuse = refuse
        self.whole = whole
        self.watched = watched
        self.topic = watched[0] if len(watched) == 1 else None
        self.ticket: Ticket | None = None
        self.sent: Sent | None = None
        self.reserved = reserved
        self.is_measured = is_measured
        self.started_at = -1.0

    def watch(self, topics: Sequence[str | bytes]) -> None:
        """Let the health of these topics alone depend on the request: the others were cut out."""
        self.watched = topics
        self.topic = topics[0] if len(topics) == 1 else None

    def start(self, now: float) -> None:
        """Note that the broker works on it from `now` on (seconds)."""
        self.started_at = now

    def report(self, sent: Sent) -> None:
        """Note that the health check knows the request, as `sent`."""
        self.sent = sent

    def refused(self) -> None:
        """Note that it is refused: it has no ticket any more, and reserves nothing."""
        self.ticket = None
        self.release()

    def release(self) -> None:
        """Release the bytes reserved under quotas."""
        reserved, self.reserved = self.reserved, ()
        for one in reserved:
            one.release()
