"""Accept turns: of several workers the one with the fewest connections takes the next client.

Owns when a worker lets others be first, and the number that it shows them. Must not know sockets. A connection stays
with its worker for as long as it lasts, which is days, and the kernel gives a burst of them to whoever wakes first.
Invariants: a client waits for at most GIVE_WAY_S, whatever has become of the others; a worker that accepts nobody is
ahead of none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from proxy.supervisor.figures import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.supervisor.figures import Figures

GIVE_WAY_S: Final = 0.02
"""How long a worker with more connections lets a client wait for others. One that is idle needs a millisecond."""


class AcceptTurns:
    """The turns of one worker, from the first client on until `leave`."""

    def __init__(self, figures: Figures, number: int, count: Callable[[], int]) -> None:
        """`number`: of the worker; 0: it shows nothing. `count`: its connections now."""
        names = figures.list_connections()
        self._figures = figures
        self._own = names[number - 1] if 0 < number <= len(names) else None
        self._others = [name for name in names if name != self._own]
        self._count = count

    def show(self, _now: float = 0.0) -> int:
        """Timed: show the others how many connections there are. Returns it."""
        own = self._count()
        if self._own is not None:
            self._figures[self._own] = own
        return own

    def find_wait_s(self) -> float:
        """For how many seconds a client is left to others: 0 if none that accepts has fewer connections."""
        own = self.show()
        has_fewer = any(0 <= self._figures[name] < own for name in self._others)
        return GIVE_WAY_S if has_fewer else 0.0

    def leave(self) -> None:
        """Accept nobody from now on."""
        if self._own is not None:
            self._figures[self._own] = ABSENT
            self._own = None
