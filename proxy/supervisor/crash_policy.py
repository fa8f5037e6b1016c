"""Crash policy: when a worker that ended is replaced, and when clients are piped meanwhile.

Owns the count of short lives. Must not know processes or clocks: lives are arguments.
"""

from __future__ import annotations

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0


class CrashPolicy:
    """The lives of one worker after another."""

    def __init__(self, limit: int, window_s: float) -> None:
        """`limit` lives in a row below `window_s` seconds make a crash loop."""
        self._limit = limit
        self._window_s = window_s
        self._short_lives = 0

    @property
    def is_looping(self) -> bool:
        """Whether the last workers ended one soon after another."""
        return self._short_lives >= self._limit

    def note_end(self, lived_s: float, is_own: bool = True) -> float:
        """Count a worker's end. Returns the seconds until the next one starts: 0 after a long life
        and after the first short one, then 0.5, doubling up to 30. `is_own` False: others ended it, so
        that a short life says nothing, and 0 is returned.
        """
        if lived_s >= self._window_s:
            self._short_lives = 0
        elif is_own:
            self._short_lives += 1
        if not is_own or self._short_lives < 2:
            return 0.0
        doublings = min(self._short_lives - 2, 10)
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**doublings)
