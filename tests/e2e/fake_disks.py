"""A /proc/diskstats whose disks are busy when the test says so.

Owns the file, its lines, the thread that moves them as idle or saturated disks' lines move, and the settings of a
throttle that looks at them. It must not know what is asked of that. Invariant: a reader sees whole files only.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TICK_S = 0.05
FLOOR_BYTES = 1 << 19
LINE = "8 {minor} {name} {reads} 0 {sectors} {ms} 0 0 0 0 {flying} {ticks} {ms}\n"


class FakeDisk:
    """One line. `busy` may be set at any time."""

    def __init__(self, name: str, minor: int) -> None:
        self.name = name
        self.busy = False
        self._minor = minor
        self._reads = self._ticks = self._ms = 0

    def move(self, passed_ms: int) -> None:
        """Let time pass: a busy disk works all of it, with 32 requests in flight."""
        if self.busy:
            self._ticks += passed_ms
            self._reads += 10
            self._ms += 32 * passed_ms

    def line(self) -> str:
        """As /proc/diskstats has it."""
        return LINE.format(
            minor=self._minor,
            name=self.name,
            reads=self._reads,
            sectors=self._reads * 8,
            ms=self._ms,
            flying=32 * self.busy,
            ticks=self._ticks,
        )


class FakeDisks:
    """The file with a line for each of `names`."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self.path = path
        self.disks = {name: FakeDisk(name, minor) for minor, name in enumerate(names)}
        self._stopping = threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _write(self) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text("".join(disk.line() for disk in self.disks.values()))
        fresh.replace(self.path)

    def _run(self) -> None:
        before = time.monotonic()
        while not self._stopping.wait(TICK_S):
            now = time.monotonic()
            for disk in self.disks.values():
                disk.move(int((now - before) * 1000))
            before = now
            self._write()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()


def build_throttle(
    disks: FakeDisks, places: list[dict[str, str]] | None = None, **more: str
) -> dict[str, Any]:
    """The settings of a throttle that looks often and has FLOOR_BYTES a second for a busy disk. `places`: its disks,
    else all of `disks` by name; `more`: what is set besides, or otherwise.
    """
    return {
        "disks": places or [{"device": name} for name in disks.disks],
        "diskstatsFile": str(disks.path),
        "sampleEvery": "100ms",
        "floor": str(FLOOR_BYTES),
        "maxDelay": "20s",
        "startGrace": 0,
        **more,
    }
