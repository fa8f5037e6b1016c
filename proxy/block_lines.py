"""What was admitted, for the access log: one line for each run of batches.

Owns the runs that may go on. Must not know how a line is written. A run is what came of one partition from one source
without a gap in about a second. Invariants: every admitted byte is in one run, and every run becomes a line; there is
at most one run of each followed partition; many end one after the other, not all at once.
"""

from __future__ import annotations

from itertools import islice
from time import time_ns
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from blockcache.cache import BlockCache
    from metrics.access_log import AccessLog
    from proxy.partitions import Partition


TICKS: Final = 10
"""A run goes on for so many ticks of the janitor where many do, for one where it is alone."""


class Run:
    """Of one partition, up to `following`, without it."""

    __slots__ = ("first", "following", "size_bytes", "source")

    def __init__(self, first: int, following: int, size_bytes: int, source: str) -> None:
        self.first, self.following, self.size_bytes, self.source = first, following, size_bytes, source


class BlockLines:
    """Those of one process. `len`: runs that may go on."""

    __slots__ = ("_access_log", "_cache", "_runs")

    def __init__(self, access_log: AccessLog, cache: BlockCache) -> None:
        self._access_log, self._cache = access_log, cache
        self._runs: dict[Partition, Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, partition: Partition, first: int, following: int, size_bytes: int, source: str) -> None:
        """Batches from `first` to before `following` were admitted."""
        run = self._runs.get(partition)
        if run is not None:
            if run.following == first and run.source == source:
                run.following = following
                run.size_bytes += size_bytes
                return
            self._end(partition, run)
        self._runs[partition] = Run(first, following, size_bytes, source)

    def tick(self, _now: float) -> None:
        """Timed: the oldest runs end."""
        self._end_oldest(-(-len(self._runs) // TICKS))

    def close(self) -> None:
        """The log is about to be closed: no run goes on."""
        self._end_oldest(len(self._runs))

    def _end_oldest(self, count: int) -> None:
        for partition in list(islice(self._runs, count)):
            self._end(partition, self._runs[partition])

    def _end(self, partition: Partition, run: Run) -> None:
        topic = partition.topic
        del self._runs[partition]
        self._access_log.put(
            (
                time_ns() // 1_000_000,
                "",
                topic.name or None,
                topic.id,
                partition.index,
                run.first,
                run.following,
                run.size_bytes,
                run.source,
                self._cache.peek_admitted_bytes(),
            )
        )
