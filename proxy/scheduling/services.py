"""The objects of other rooms that scheduling uses, and the requests that it schedules.

Owns their types alone. It must not know who has them. Invariant: nothing here is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from isolation.tickets import Admitted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from blockcache.cache import BlockCache
    from isolation.health import Sent
    from proxy.config.model import Config
    from proxy.net.client_connection import AnyLink
    from proxy.net.own_connections import OwnConnections


class SchedulingServices(Protocol):
    """Handed to the request scheduler, the disk throttle and the log directories."""

    @property
    def config(self) -> Config:
        """What was configured."""

    @property
    def cache(self) -> BlockCache:
        """Memory: its size and traffic say what it would have held."""

    @property
    def own_connections(self) -> OwnConnections:
        """Forebay's own connections to the broker."""

    @property
    def now(self) -> Callable[[], float]:
        """The clock, in seconds."""

    def attempt(self, action: Callable[[], object], doing: str) -> None:
        """Run `action`; log and count its error."""

    def fall_back(
        self, link: AnyLink, sent_count: int, doing: str, whole: Callable[[], object] | None
    ) -> None:
        """Send a request on as it came, after `doing` has raised for it."""


class OwnTicket(Admitted, Protocol):
    """A request that is its own ticket in its queue, so that nothing is made to schedule it.

    `ticket`: itself while the scheduler has it, else None. `topic`: the only topic; None if there are
    several. `watched`: the topics whose health depends on it. `sent`: set once the health check
    knows it. `started_at`: when the broker began to work on it (seconds), -1 before.
    """

    @property
    def link(self) -> AnyLink: ...
    @property
    def topic(self) -> str | bytes | None: ...
    @property
    def watched(self) -> Sequence[str | bytes]: ...

    @property
    def sent(self) -> Sent | None: ...

    ticket: Self | None
    started_at: float

    def start(self, now: float) -> None:
        """Note that the broker works on it from `now` on (seconds)."""

    def report(self, sent: Sent) -> None:
        """Note that the health check knows the request, as `sent`."""
