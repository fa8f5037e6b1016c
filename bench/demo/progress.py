"""The demo's progress: one line that changes on a terminal, a line every few seconds elsewhere.

Owns stderr. Must not know what is going on. Invariants: `step` is always a line of its own; what `show` wrote
on a terminal is wiped before anything else is written.
"""

import shutil
import sys
import time

EVERY_S = 5.0
WIPE = "\r\x1b[K"


class Progress:
    """Times are counted from its making."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self._shown_at = float("-inf")
        self._is_tty = sys.stderr.isatty()
        self._dirty = False

    def step(self, text: str) -> None:
        """Something begins: a line that stays."""
        self.clear()
        sys.stderr.write(f"{self._clock()} {text}\n")
        sys.stderr.flush()

    def show(self, text: str) -> None:
        """How it stands: replaces what was shown before on a terminal, now and then a line elsewhere."""
        now = time.monotonic()
        if self._is_tty:
            line = f"{self._clock()} {text}"[: shutil.get_terminal_size().columns - 1]
            sys.stderr.write(WIPE + line)
            self._dirty = True
        elif now - self._shown_at >= EVERY_S:
            self._shown_at = now
            sys.stderr.write(f"{self._clock()} {text}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        """Wipe what `show` left on a terminal."""
        if self._dirty:
            sys.stderr.write(WIPE)
            sys.stderr.flush()
        self._dirty = False

    def _clock(self) -> str:
        return f"[{time.monotonic() - self._started_at:3.0f} s]"
