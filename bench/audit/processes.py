"""What a command and all that it starts cost: processor time, time and memory.

Owns the running of one command at a time and its measuring. Must not know what is run. Invariants: every descendant
counts, also one whose parent has ended before it (a JVM outlives the Python that started it): this process adopts them
and waits for all; one whose parent ignores its end is looked at while it runs; memory is proportional set size, so that
pages that processes share count once.
"""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench import stolen

if TYPE_CHECKING:
    from collections.abc import Sequence

PR_SET_CHILD_SUBREAPER = 36
LOOK_EVERY_S = 0.25
_SESSION, _USER = 3, 11
"""Indices of the session and of the user time, the system time next to it, behind the command in /proc/PID/stat
(proc(5)).
"""


class CommandFailed(RuntimeError):
    """The command ended with another exit code than 0; the message holds the end of what it said."""


class Cost(NamedTuple):
    """Of one run. `cpu_s`: user and system time of all its processes; `peak_bytes`: the most memory that these had at
    one look; `stolen_share`: of the machine's time while it ran, what a hypervisor took away.
    """

    cpu_s: float
    wall_s: float
    peak_bytes: int
    stolen_share: float
    said: str


def measure(command: Sequence[str], log: Path) -> Cost:
    """Run a command to its end, with what it says in `log`. CommandFailed."""
    _adopt(True)
    ticks, before_s, began = stolen.read_cpu(), _children_cpu_s(), time.monotonic()
    with log.open("w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
    watch = _Watch(process.pid)
    code = process.wait()
    wall_s = time.monotonic() - began
    _wait_for_session(process.pid)
    _adopt(False)
    watch.stop()
    cost = Cost(
        max(_children_cpu_s() - before_s, watch.cpu_s),
        wall_s,
        watch.peak_bytes,
        stolen.share(ticks, stolen.read_cpu()),
        log.read_text(),
    )
    if code:
        raise CommandFailed(f"{' '.join(command)} ended with {code}: {cost.said[-2000:]}")
    return cost


def _adopt(is_wanted: bool) -> None:
    """Whether descendants whose parent has ended become children of this process."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(is_wanted), 0, 0, 0)


def _wait_for_session(session: int) -> None:
    """Until no process of it is left; those that were adopted are waited for, so that their time counts."""
    while left := _list_session(session):
        for path in left:
            with suppress(ChildProcessError):
                os.waitpid(int(path.name), os.WNOHANG)
        time.sleep(0.02)


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _Watch:
    """Looks at all processes of a session until it is stopped. Spark's Python workers are children of a process that
    ignores their end (pyspark/daemon.py), so that the kernel adds their time to nobody's.
    """

    def __init__(self, session: int) -> None:
        self._session = session
        self.peak_bytes = 0
        self._cpu_s: dict[str, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    @property
    def cpu_s(self) -> float:
        """User and system time of each process when it was last seen, all added up."""
        return sum(self._cpu_s.values())

    def _look(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            seen = _list_session(self._session)
            self.peak_bytes = max(self.peak_bytes, sum(map(_resident_bytes, seen)))
            for process in seen:
                with suppress(OSError):
                    self._cpu_s[process.name] = _own_cpu_s(process)

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()


def _own_cpu_s(process: Path) -> float:
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[_USER]) + int(fields[_USER + 1])) / os.sysconf("SC_CLK_TCK")


def _list_session(session: int) -> list[Path]:
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                if int(fields[_SESSION]) == session:
                    found.append(path)
    return found


def _resident_bytes(process: Path) -> int:
    with suppress(OSError):
        for line in (process / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0
