"""How much slower than usual most queues are at the moment: latency that they share says nothing of one of them.

Owns the latest slowdown of each limit: its window's mean latency in multiples of its quiet latency. Must not know
queues, nor what a slowdown leads to. Invariants: a limit is judged by the others alone; three quarters of them must be
as slow as it is told, so that one sick topic, or several, cannot excuse each other; what is older than RECENT_S says
nothing.
"""

from collections.abc import Hashable

RECENT_S = 5.0
LEAST_PEERS = 3
"""Fewer others are no measure: a limit is then judged by its own past."""
QUARTILE = 4


class Peers:
    """The slowdowns of all limits toward one broker."""

    __slots__ = ("_slowdowns",)

    def __init__(self) -> None:
        self._slowdowns: dict[Hashable, tuple[float, float]] = {}

    def note(self, limit: Hashable, slowdown: float, now_s: float) -> None:
        """The window of `limit` that ended now took `slowdown` times its quiet latency."""
        self._slowdowns[limit] = slowdown, now_s

    def slowdown_beside(self, limit: Hashable, now_s: float) -> float:
        """The slowdown that three quarters of the other limits have at least, of those that said one within RECENT_S;
        1.0 if fewer than LEAST_PEERS did, or if they are not slower than usual.
        """
        others = sorted(
            slowdown
            for one, (slowdown, at_s) in self._slowdowns.items()
            if one is not limit and now_s - at_s <= RECENT_S
        )
        if len(others) < LEAST_PEERS:
            return 1.0
        return max(1.0, others[len(others) // QUARTILE])
