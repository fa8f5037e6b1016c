"""How much slower than usual most queues are at the moment: latency that they share says nothing of one of them.

Owns the latest slowdown of each limit: its window's mean latency in multiples of its quiet latency. Owns the machine's,
too: how much the processors slow this process down, which holds where there are no other limits to compare with. Must
not know queues, nor what a slowdown leads to. Invariants: a limit is judged by the others alone; three quarters of them
must be as slow as it is told, so that one sick topic, or several, cannot excuse each other; no log and no disk makes a
process wait for a processor, so the machine's slowdown excuses none; what is older than RECENT_S says nothing.
"""

from collections.abc import Hashable

RECENT_S = 5.0
LEAST_PEERS = 3
"""Fewer others are no measure: a limit is then judged by its own past."""
QUARTILE = 4


class Peers:
    """The slowdowns of all limits toward one broker."""

    __slots__ = ("_machine", "_slowdowns")

    def __init__(self) -> None:
        self._slowdowns: dict[Hashable, tuple[float, float]] = {}
        self._machine = 1.0, 0.0

    def note(self, limit: Hashable, slowdown: float, now_s: float) -> None:
        """The window of `limit` that ended now took `slowdown` times its quiet latency."""
        self._slowdowns[limit] = slowdown, now_s

    def forget(self, limit: Hashable) -> None:
        """There is no such limit any more."""
        self._slowdowns.pop(limit, None)

    def note_machine(self, slowdown: float, now_s: float) -> None:
        """Work on this machine takes `slowdown` times as long as its processors need for it (at least 1)."""
        self._machine = slowdown, now_s

    def slowdown_beside(self, limit: Hashable, now_s: float) -> float:
        """The slowdown that three quarters of the other limits have at least, of those that said one within RECENT_S;
        the machine's, if fewer than LEAST_PEERS did or if that is greater. At least 1.0.
        """
        machine, at_s = self._machine
        least = machine if now_s - at_s <= RECENT_S else 1.0
        others = sorted(
            slowdown
            for one, (slowdown, at_s) in self._slowdowns.items()
            if one is not limit and now_s - at_s <= RECENT_S
        )
        if len(others) < LEAST_PEERS:
            return least
        return max(least, others[len(others) // QUARTILE])
