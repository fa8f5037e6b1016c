"""Time at which the oldest bytes of the arena were admitted. Pure.

Owns a bounded list of marks (bytes admitted so far, time), since the arena itself knows no clock.
Must not know the arena. Invariants: at most `limit` marks; when the list is full, every second mark
is dropped. Old times get coarser, and are never wrong by more than the distance of two marks.
"""

from __future__ import annotations

from bisect import bisect_right


class AgeClock:
    """Converts the clock of admitted bytes into seconds. `limit` bounds the number of marks."""

    __slots__ = ("_admitted", "_limit", "_times")

    def __init__(self, limit: int = 4096) -> None:
        self._limit = limit
        self._admitted: list[int] = []
        self._times: list[float] = []

    def mark(self, admitted_bytes: int, now: float) -> None:
        """Note that `admitted_bytes` in total have been admitted at `now` (seconds, monotonic). No
        new bytes, no new mark.
        """
        if self._admitted and admitted_bytes == self._admitted[-1]:
            return
        self._admitted.append(admitted_bytes)
        self._times.append(now)
        if len(self._admitted) > self._limit:
            # every second mark, but not the first: the oldest age stays known
            del self._admitted[1::2]
            del self._times[1::2]

    def age_s(self, admitted_bytes: int, now: float) -> float:
        """Return the seconds since the clock of admitted bytes stood at `admitted_bytes`. Return 0
        if there is no mark; for bytes before the first mark, the age of that mark.
        """
        at = bisect_right(self._admitted, admitted_bytes) - 1
        if not self._times:
            return 0.0
        return now - self._times[max(at, 0)]
