"""CPU time of other processes, in nanoseconds, and their resident memory.

Owns /proc/PID. Must not know what the processes are. Invariants: all threads count, those that ended between
two readings do not; where the kernel keeps no run times (schedstat), the clock ticks of `stat` are taken.
"""

from __future__ import annotations

import os
from pathlib import Path

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
STAT_UTIME = 11
"""Index of utime in /proc/PID/stat behind the command's closing bracket (proc(5))."""


def list_tree(pid: int) -> list[int]:
    """A process and its descendants: a Forebay is a supervisor and its worker."""
    children = Path("/proc", str(pid), "task", str(pid), "children").read_text().split()
    return [pid, *(one for child in children for one in list_tree(int(child)))]


def read_cpu_ns(pid: int) -> dict[int, int]:
    """User and system time of each thread of a process tree since its start. Empty for pid 0: nobody."""
    if not pid:
        return {}
    threads: dict[int, int] = {}
    for one in list_tree(pid):
        threads |= _read_threads(one)
    return threads


def _read_threads(pid: int) -> dict[int, int]:
    root = Path("/proc", str(pid))
    threads = {}
    for thread in (root / "task").iterdir():
        try:
            threads[int(thread.name)] = int((thread / "schedstat").read_text().split()[0])
        except ProcessLookupError:
            continue
        except FileNotFoundError:
            if thread.exists():
                return {pid: _read_ticks(root)}
    return threads


def spent_ns(before: dict[int, int], after: dict[int, int]) -> int:
    """What the threads of `after` have used since."""
    return sum(ns - before.get(thread, 0) for thread, ns in after.items())


def _read_ticks(root: Path) -> int:
    fields = (root / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[STAT_UTIME]) + int(fields[STAT_UTIME + 1])) * TICK_NS


def read_rss_bytes(pid: int) -> int:
    """Resident memory of a process tree without pages of shared files: what a connection costs is not the arena."""
    return sum(map(_read_rss_bytes, list_tree(pid)))


def _read_rss_bytes(pid: int) -> int:
    for line in Path("/proc", str(pid), "status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} shows no RssAnon")
