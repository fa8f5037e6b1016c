"""What one of several processes uses: processor time, memory, open files.

Owns the reading of /proc for the calling process. Must not know who asks.
"""

import os
from pathlib import Path
from typing import Final

from metrics.collector import Sample

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_UTIME, _STIME, _STARTED = 11, 12, 19
"""Places behind the name in /proc/PID/stat (proc_pid_stat(5))."""
_RESIDENT = 1
"""Place in /proc/PID/statm, in pages."""


def read_usage(process: str, root: Path = Path("/proc/self")) -> list[Sample]:
    """Samples of this process, labelled `process`; none where /proc does not tell. `root` is for tests."""
    try:
        stat = _split_stat(root)
        pages = int((root / "statm").read_text().split()[_RESIDENT])
        files = sum(1 for _ in (root / "fd").iterdir())
        processor_s = (int(stat[_UTIME]) + int(stat[_STIME])) / TICKS_PER_S
    except (OSError, IndexError, ValueError):
        return []
    values: tuple[tuple[str, float], ...] = (
        ("cpu_seconds_total", processor_s),
        ("resident_memory_bytes", pages * os.sysconf("SC_PAGE_SIZE")),
        ("open_fds", files),
    )
    return [Sample(f"forebay_process_{name}", (process,), value) for name, value in values]


def read_age_s(now_s: float, root: Path = Path("/proc/self")) -> float:
    """Seconds since the start of this process. `now_s`: CLOCK_BOOTTIME. Raises OSError."""
    return now_s - int(_split_stat(root)[_STARTED]) / TICKS_PER_S


def _split_stat(root: Path) -> list[str]:
    return (root / "stat").read_text().rpartition(")")[2].split()
