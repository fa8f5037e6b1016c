"""How much the processors slow this process down: the time its thread waited for one, beside the time it ran.

Owns the reading of Linux's scheduler statistics (`/proc/thread-self/schedstat`, the kernel's
Documentation/scheduler/sched-stats.rst). Must not know what follows from it. Invariant: where the
kernel keeps no such statistics, nothing is slowed down.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

SCHEDSTAT: Final = Path("/proc/thread-self/schedstat")
LEAST_RUN_NS: Final = 500_000
"""Running time in nanoseconds below which an interval says nothing."""


class ProcessorWait:
    """The slowdown of the thread that calls `measure`, which is always the same one."""

    def __init__(self, path: Path = SCHEDSTAT) -> None:
        self._path = path
        self._run_ns, self._wait_ns = self._read()
        self.slowdown = 1.0
        """Result of the last `measure`."""

    def measure(self) -> float:
        """Return (running + waiting) / running since the last result, at least 1. A thread that
        hardly ran keeps its last result.
        """
        run_ns, wait_ns = self._read()
        ran_ns, waited_ns = run_ns - self._run_ns, wait_ns - self._wait_ns
        if ran_ns >= LEAST_RUN_NS:
            self._run_ns, self._wait_ns = run_ns, wait_ns
            self.slowdown = 1.0 + max(waited_ns, 0) / ran_ns
        return self.slowdown

    def _read(self) -> tuple[int, int]:
        """Return the thread's running and waiting time in nanoseconds; zeros where there are none."""
        try:
            run, wait, _slices = map(int, self._path.read_text().split())
        except (OSError, ValueError):
            return 0, 0
        return run, wait
