"""A request in the request scheduler: what the scheduler asks of it, and the one that calls back.

Owns the scheduler's knowledge of a request that may have to wait, or may be refused. Must not know
the contents of the request. Invariant: a request is its own ticket in its queue, so that nothing is
made for one that waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from isolation.tickets import DONE, Ticket

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from isolation.health import Sent
    from isolation.quotas import Reservation
    from isolation.tickets import State, Waits
    from proxy.net.client_connection import AnyLink


class QueuedRequest(Ticket, Protocol):
    """A request that is its own ticket in its queue.

    `topic`: the only topic; None if there are several. `watched`: the topics whose health depends on
    it. `reserved`: bytes under quotas. `sent`: set once the health check knows it. `started_at`: when
    the broker began to work on it (seconds), -1 before. `is_measured`: its latency counts for the
    concurrency limit. Only Produces are measured, since reads and appends have no common measure.
    """

    @property
    def link(self) -> AnyLink: ...
    @property
    def topic(self) -> str | bytes | None: ...
    @property
    def watched(self) -> Sequence[str | bytes]: ...
    @property
    def reserved(self) -> Sequence[Reservation]: ...
    @property
    def sent(self) -> Sent | None: ...

    started_at: float

    def start(self, now: float) -> None:
        """Note that the broker works on it from `now` on (seconds)."""

    def report(self, sent: Sent) -> None:
        """Note that the health check knows the request, as `sent`."""

    def dispatch(self) -> None:
        """Send the request, or withdraw it: its turn has come."""

    @property
    def refuse(self) -> Callable[[], None] | None:
        """Refuses the request; None: it must not be refused."""

    @property
    def whole(self) -> Callable[[], object] | None:
        """Lets the broker answer the request after `dispatch` or `refuse` has failed; None: the
        client is closed then.
        """


class Entry:
    """A request that calls `begin` when its turn has come. It is not measured."""

    __slots__ = (
        "begin",
        "holds_slot",
        "link",
        "queue",
        "refuse",
        "sent",
        "since_s",
        "size_bytes",
        "started_at",
        "state",
        "waits",
        "watched",
        "whole",
    )

    is_measured = False
    topic = None  # asked of measured requests alone
    reserved: Sequence[Reservation] = ()

    since_s: float

    def __init__(
        self,
        link: AnyLink,
        begin: Callable[[Entry], None],
        refuse: Callable[[], None] | None,
        whole: Callable[[], object] | None,
        queue: int,
        size_bytes: int,
        waits: Waits,
        watched: Sequence[str | bytes],
    ) -> None:
        self.link = link
        self.begin = begin
        self.refuse = refuse
        self.whole = whole
        self.queue = queue
        self.size_bytes = size_bytes
        self.waits = waits
        self.watched = watched
        self.sent: Sent | None = None
        self.started_at = -1.0
        self.state: State = DONE
        self.holds_slot = False

    @property
    def never_refused(self) -> bool:
        """Whether it waits however full its queue is."""
        return self.refuse is None

    def start(self, now: float) -> None:
        """Note that the broker works on it from `now` on (seconds)."""
        self.started_at = now

    def report(self, sent: Sent) -> None:
        """Note that the health check knows the request, as `sent`."""
        self.sent = sent

    def dispatch(self) -> None:
        """Send the request, or withdraw it: its turn has come."""
        self.begin(self)
