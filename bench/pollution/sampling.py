"""The kernel's and Forebay's counters, read several times a second while an arm runs.

Owns one thread and its rows: the disk's counters, the processors' time, the broker's page cache, and the samples of
Forebay's scrape. Must not know what they are held against. Invariant: a scrape that fails leaves a gap, it does not end
the run; times are of the monotonic clock, in ns, when the reading began.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from bench.stolen import Ticks, read_cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EVERY_S = 0.2
SCRAPE_EVERY = 5  # samples
SECTOR_BYTES = 512


class DiskSample(NamedTuple):
    """Counters since boot of one device (Documentation/admin-guide/iostats.rst)."""

    at_ns: int
    reads: int
    read_bytes: int
    read_ms: int
    writes: int
    write_bytes: int
    in_flight: int
    busy_ms: int


class Scrape(NamedTuple):
    """What Forebay's /metrics said: (name, label values...) -> value."""

    at_ns: int
    samples: Mapping[tuple[str, ...], float]


def scan_diskstats(text: str, device: str, at_ns: int) -> DiskSample | None:
    """One device's line; None where it is absent."""
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 14 and fields[2] == device:
            numbers = [int(field) for field in fields[3:]]
            return DiskSample(
                at_ns,
                numbers[0],
                numbers[2] * SECTOR_BYTES,
                numbers[3],
                numbers[4],
                numbers[6] * SECTOR_BYTES,
                numbers[8],
                numbers[9],
            )
    return None


class Sampler:
    """Samples while it is entered."""

    def __init__(
        self,
        device: str,
        page_cache: Callable[[], int],
        scrape: Callable[[], Mapping[tuple[str, ...], float]] | None,
    ) -> None:
        self.disk: list[DiskSample] = []
        self.ticks: list[tuple[int, Ticks]] = []
        self.page_cache: list[tuple[int, int]] = []
        self.scrapes: list[Scrape] = []
        self._device = device
        self._page_cache = page_cache
        self._scrape = scrape
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """With a last scrape; nothing is appended any more."""
        self._ended.set()
        self._thread.join()
        self._take_scrape(time.monotonic_ns())

    def _run(self) -> None:
        count = 0
        while not self._ended.wait(EVERY_S):
            now_ns = time.monotonic_ns()
            sample = scan_diskstats(Path("/proc/diskstats").read_text(), self._device, now_ns)
            if sample is not None:
                self.disk.append(sample)
            self.ticks.append((now_ns, read_cpu()))
            if count % SCRAPE_EVERY == 0:
                self.page_cache.append((now_ns, self._page_cache()))
                self._take_scrape(now_ns)
            count += 1

    def _take_scrape(self, now_ns: int) -> None:
        if self._scrape is None:
            return
        try:
            self.scrapes.append(Scrape(now_ns, self._scrape()))
        except OSError:
            return
