"""What was admitted, for the access log: one line for each run of batches.

Owns the runs that may go on. Must not know how a line is written. A run is what came of one partition from one source
without a gap, within two seconds. Invariants: every admitted byte is in one run, and every run becomes a line; there is
at most one run of each partition, and no more than a part of what the log's queue holds; many end one after the other.
"""

from __future__ import annotations

from collections import deque
from time import time_ns
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from blockcache.cache import BlockCache
    from metrics.access_log import AccessLog
    from proxy.partitions.table import Partition


TICKS: Final = 10
"""Ticks of the janitor within which all runs end that went on before them; fewer where there are fewer runs."""
QUEUE_SHARE: Final = 4
"""Part of the log's queue that the lines of all runs may take at once, when the log is closed."""


class Run:
    """Of one partition, up to `following`, without it."""

    __slots__ = ("first", "following", "size_bytes", "source")

    def __init__(self, first: int, following: int, size_bytes: int, source: str) -> None:
        self.first, self.following, self.size_bytes, self.source = first, following, size_bytes, source


class StoredRuns:
    """Those of one process. `len`: runs that may go on, at most `limit`: then the oldest ends for a new one."""

    __slots__ = ("_access_log", "_cache", "_due", "_runs", "_share", "limit")

    def __init__(self, access_log: AccessLog, cache: BlockCache, queue_lines: int) -> None:
        """`queue_lines`: what the log's queue holds."""
        self._access_log, self._cache = access_log, cache
        self.limit = queue_lines // QUEUE_SHARE
        self._runs: dict[Partition, Run] = {}
        self._due: deque[Partition] = deque()  # whose runs end in this round of ticks
        self._share = 0

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
            self._end(partition)
        elif len(self._runs) >= self.limit:
            self._end(next(iter(self._runs)))
        self._runs[partition] = Run(first, following, size_bytes, source)

    def tick(self, _now: float) -> None:
        """Timed: some runs end."""
        if not self._due:
            self._due.extend(self._runs)
            self._share = -(-len(self._due) // TICKS)
        for _ in range(min(self._share, len(self._due))):
            self._end(self._due.popleft())

    def close(self) -> None:
        """The log is about to be closed: no run goes on."""
        for partition in list(self._runs):
            self._end(partition)

    def _end(self, partition: Partition) -> None:
        run, topic = self._runs.pop(partition, None), partition.topic
        if run is None:
            return
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
