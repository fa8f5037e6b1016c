"""The objects of other rooms that Forebay's own connections, and clients' second ones, use.

Owns their types alone. It must not know who has them. Invariant: nothing here is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.accounting.counters import Counters
    from proxy.config.model import Config
    from proxy.net.byte_budget import ByteBudget


class Sending(Protocol):
    """Sends what waits for one of Forebay's own connections: the replica fetcher."""

    def pump(self) -> None:
        """Send whatever is due."""


class NetServices(Protocol):
    """Handed to connections that no client owns."""

    @property
    def config(self) -> Config:
        """What was configured."""

    @property
    def counters(self) -> Counters:
        """What is counted."""

    @property
    def responses(self) -> ByteBudget:
        """The budget of answers."""

    @property
    def version(self) -> str:
        """Forebay's own."""

    @property
    def watch(self) -> Sending:
        """Who waits for connections."""

    @property
    def now(self) -> Callable[[], float]:
        """The clock, in seconds."""
