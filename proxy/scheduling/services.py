"""The objects of other rooms that scheduling uses.

Owns their types alone. It must not know who has them. Invariant: nothing here is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from blockcache.cache import BlockCache
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
