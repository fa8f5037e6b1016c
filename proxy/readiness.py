"""Whether clients should connect to this process.

Owns the reasons against it. Must not know HTTP. Invariant: a change is logged once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proxy.config.units import Address
    from proxy.identity.sign_in_check import SignInCheck
    from proxy.net.listener import AnyListener
    from proxy.net.own_connections import OwnConnections
    from proxy.net.pass_through import PassThroughListener

log = logging.getLogger("forebay")


class Readiness:
    """Whether clients should connect: all listeners are bound, other processes that are needed are there, the broker
    is reachable, Forebay can sign in where it does so for clients, and the process is not stopping.
    """

    __slots__ = (
        "_boot",
        "_find_gaps",
        "_listeners",
        "_own_connections",
        "_sign_in_check",
        "_upstream",
        "_was_ready",
        "is_draining",
    )

    def __init__(
        self,
        listeners: Sequence[AnyListener | PassThroughListener],
        own_connections: OwnConnections,
        sign_in_check: SignInCheck,
        upstream: Address,
        boot: str,
        find_gaps: Callable[[], list[str]] = list,
    ) -> None:
        """`upstream`: the broker's address. `boot` names the process in log lines. `find_gaps`: why no other process
        serves clients, where this one does not.
        """
        self._upstream = upstream
        self._sign_in_check = sign_in_check
        self._listeners = listeners
        self._own_connections = own_connections
        self._boot = boot
        self._find_gaps = find_gaps
        self.is_draining = False
        """Whether the process is stopping."""
        self._was_ready: bool | None = None

    def check(self) -> tuple[bool, list[str]]:
        """Return whether clients should connect, and the reasons if not."""
        reasons = [
            f"listener {one.name} is not bound" for one in self._listeners if not one.is_bound
        ]
        if self.is_draining:
            reasons.append("stopping")
        reasons += self._find_gaps()
        if not self._own_connections.reachable:
            reasons.append(
                f"the broker at {self._upstream} is not reachable: {self._own_connections.refusal}"
            )
        elif self._sign_in_check.problem:
            reasons.append(f"Forebay cannot sign in for clients: {self._sign_in_check.problem}")
        return not reasons, reasons

    def tell(self, _now: float) -> None:
        """Timed: log a line if readiness has changed."""
        is_ready, reasons = self.check()
        was_ready, self._was_ready = self._was_ready, is_ready
        if is_ready and not was_ready:
            log.info("ready", extra={"boot": self._boot})
        elif was_ready and not is_ready:
            log.warning("not ready: %s", "; ".join(reasons))

    def drain(self) -> None:
        """Note that the process is stopping."""
        self.is_draining = True
