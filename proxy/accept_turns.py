"""Accept turns: of several workers the one with the fewest connections takes the next client.

Owns when a worker lets others be first, and the number that it shows them. Must not know sockets. A connection stays
with its worker for as long as it lasts, which is days, and the kernel gives a burst of them to whoever wakes first.
Invariants: a client waits for others at most once, and GIVE_WAY_S at most, whatever has become of them; a worker that
accepts nobody is ahead of none.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from proxy.supervisor.figures import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.supervisor.figures import Figures

GIVE_WAY_S: Final = 0.02
"""How long clients are left to a worker with fewer connections. One that is idle needs a millisecond."""
IN_VAIN_S: Final = 1.0
"""For how long no client is left to others once they have not kept up: they hang, or have much to do."""


class AcceptTurns:
    """The turns of one worker, from `enter` until `leave`. `most_s`: see GIVE_WAY_S."""

    most_s = GIVE_WAY_S

    def __init__(
        self,
        figures: Figures,
        number: int,
        count: Callable[[], int],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`number`: of the worker; 0: it shows nothing. `count`: its connections now. `now`: a clock in seconds."""
        names = figures.list_connections()
        self._figures = figures
        self._own = names[number - 1] if 0 < number <= len(names) else None
        self._others = [name for name in names if name != self._own]
        self._count, self._now = count, now
        self._accepts = False
        self._first_until = float("-inf")

    def enter(self) -> None:
        """Accept clients from now on."""
        self._accepts = True
        self.show()

    def show(self, _now: float = 0.0) -> int:
        """Timed: show the others how many connections there are, while this worker accepts. Returns it."""
        own = self._count()
        if self._accepts and self._own is not None:
            self._figures[self._own] = own
        return own

    def gives_way(self) -> bool:
        """Whether a client that waits is another worker's: one that accepts has fewer connections."""
        own = self.show()
        if self._now() < self._first_until:
            return False
        return any(0 <= self._figures[name] < own for name in self._others)

    def note_in_vain(self) -> None:
        """Clients have waited for others for `most_s`: they wait for nobody for a while."""
        self._first_until = self._now() + IN_VAIN_S

    def leave(self) -> None:
        """Accept nobody from now on."""
        if self._accepts and self._own is not None:
            self._figures[self._own] = ABSENT
        self._accepts = False
