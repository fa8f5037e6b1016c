"""When what is now the oldest in the arena was admitted. Pure.

Owns a bounded list of (bytes admitted so far, time): the arena itself knows no clock. Must not know the
arena. Invariants: at most `limit` marks; when full, every second one goes, so that old times get coarser,
never wrong by more than the distance of two marks.
"""

from __future__ import annotations

from bisect import bisect_right


class AgeClock:
    """Translates the clock of admitted bytes into seconds."""

    __slots__ = ("_admitted", "_limit", "_times")

    def __init__(self, limit: int = 4096) -> None:
        self._limit = limit
        self._admitted: list[int] = []
        self._times: list[float] = []

    def mark(self, admitted_bytes: int, now: float) -> None:
        """So many bytes have been admitted at `now`."""
        if self._admitted and admitted_bytes == self._admitted[-1]:
            return
        self._admitted.append(admitted_bytes)
        self._times.append(now)
        if len(self._admitted) > self._limit:
            del self._admitted[1::2]
            del self._times[1::2]

    def age_s(self, admitted_bytes: int, now: float) -> float:
        """Seconds since the clock of admitted bytes stood at `admitted_bytes`; 0 before the first mark."""
        at = bisect_right(self._admitted, admitted_bytes) - 1
        if not self._times:
            return 0.0
        return now - self._times[max(at, 0)]
