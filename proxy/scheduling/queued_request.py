"""One request at the gate.

Owns what the gate knows of a request that may have to wait, or be refused. Must not know what the request says.
Invariants: bytes reserved under quotas are given back once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from isolation.health import Sent
    from isolation.quotas import Reservation
    from isolation.tickets import Ticket
    from proxy.net.client_connection import ClientConnection


class Entry:
    """One request at the gate. `watched`: topics that can hang by it; `topic`: where it is one. `is_measured`: how
    long it takes says how many of its kind the broker can bear: Produces alone, since reads and appends have not one
    measure. `sent`: health knows of it. `whole`: has the broker answer it, where going or refusing it has failed.
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
        link: ClientConnection,
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
        self.topic: str | bytes | None = None
        self.ticket: Ticket | None = None
        self.sent: Sent | None = None
        self.reserved = reserved
        self.is_measured = is_measured
        self.started_at = -1.0

    def release(self) -> None:
        """Its bytes no longer count toward quotas."""
        reserved, self.reserved = self.reserved, ()
        for one in reserved:
            one.release()
