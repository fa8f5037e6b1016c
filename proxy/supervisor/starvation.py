"""Starvation: how much of a silence a worker could have used to answer.

Owns the kernel's figures that tell, and the rule. Must not know heartbeats, nor what follows. A worker that waits for a
processor (a throttled container, a busy machine) is not hung: only the processor time that it got counts. One that is
stopped, or waits for anything else, wants no processor, and all of the time counts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STATE, _UTIME, _STIME = 0, 11, 12
"""Places behind the name in /proc/PID/stat (proc_pid_stat(5))."""


class Usage(NamedTuple):
    """`processor_s`: seconds of processors that all threads of a process got so far. `is_runnable`: one of them runs,
    or waits for a processor.
    """

    processor_s: float
    is_runnable: bool


def read_usage(pid: int) -> Usage | None:
    """The present usage of a process; None if it is gone, or the kernel does not tell."""
    process = Path("/proc") / str(pid)
    try:
        fields = _split(process / "stat")
        ticks = int(fields[_UTIME]) + int(fields[_STIME])
        states = [_split(thread / "stat")[_STATE] for thread in (process / "task").iterdir()]
    except (OSError, IndexError, ValueError):
        return None
    return Usage(ticks / TICKS_PER_S, "R" in states)


def _split(stat: Path) -> list[str]:
    return stat.read_text().rpartition(")")[2].split()


def count_own_s(before: Usage | None, after: Usage | None, elapsed_s: float) -> float:
    """Seconds of `elapsed_s` that the process could use: all, or what it got if it waits for a processor."""
    if before is None or after is None or not after.is_runnable:
        return elapsed_s
    return min(elapsed_s, max(0.0, after.processor_s - before.processor_s))
