"""Stored batches for the access log: one line per run of batches.

Owns the open runs. Must not know how a line is written. A run holds the batches of one partition
from one source without a gap, within two minutes. Invariants:
* every admitted byte is in one run, and every run becomes a line.
* there is at most one run per partition, and a bounded number of runs: a share of the log's queue.
  If many end, they end one after the other.
"""

from __future__ import annotations

from collections import deque
from time import time_ns
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from blockcache.cache import BlockCache
    from metrics.access_log import AccessLog


TICKS: Final = 600
"""Number of janitor ticks within which all runs open before them end, a minute; fewer if there are
fewer runs. A shorter round writes a line for each batch where thousands of partitions are slow.
"""
QUEUE_SHARE: Final = 4
"""Divisor of the log's queue: the lines of all runs may take a quarter of it when the log is
closed.
"""


class StoredTopic(Protocol):
    """The name ("" while unknown) and the id of a topic."""

    @property
    def name(self) -> str: ...
    @property
    def id(self) -> bytes: ...


class StoredPartition(Protocol):
    """A partition whose batches are stored. Compared by identity. `row`: the fields `run_source`,
    `run_first`, `run_following` (exclusive) and `run_bytes` of its open run, which storing extends, too
    (partitions/native/rows.c).
    """

    @property
    def topic(self) -> StoredTopic: ...
    @property
    def index(self) -> int: ...
    @property
    def row(self) -> Any: ...


SOURCES: Final = ("", "produce", "watch")
"""Sources of a run by their numbers in `run_source`; "": there is no run."""


class StoredRuns:
    """The open runs of one process. `len`: number of open runs, at most `limit`; at the limit the
    oldest run ends for a new one.
    """

    __slots__ = ("_access_log", "_cache", "_due", "_runs", "_share", "limit")

    def __init__(self, access_log: AccessLog, cache: BlockCache, queue_lines: int) -> None:
        """`queue_lines`: capacity of the log's queue, in lines."""
        self._access_log, self._cache = access_log, cache
        self.limit = queue_lines // QUEUE_SHARE
        self._runs: dict[StoredPartition, None] = {}
        self._due: deque[StoredPartition] = deque()  # their runs end in this round of ticks
        self._share = 0

    def __len__(self) -> int:
        return len(self._runs)

    def add(
        self, partition: StoredPartition, first: int, following: int, size_bytes: int, source: str
    ) -> None:
        """Note that batches of offsets [first, following) were admitted. They extend the
        partition's run if they continue it from the same source, else they begin a new one.
        """
        row = partition.row
        if partition in self._runs:
            if row.run_following == first and SOURCES[row.run_source] == source:
                row.run_following = following
                row.run_bytes += size_bytes
                return
            self._end(partition)
        elif len(self._runs) >= self.limit:
            self._end(next(iter(self._runs)))
        self._runs[partition] = None
        row.run_source, row.run_first = SOURCES.index(source), first
        row.run_following, row.run_bytes = following, size_bytes

    def tick(self, _now: float) -> None:
        """End a share of the runs. Called periodically."""
        if not self._due:
            self._due.extend(self._runs)
            self._share = -(-len(self._due) // TICKS)
        for _ in range(min(self._share, len(self._due))):
            self._end(self._due.popleft())

    def close(self) -> None:
        """End all runs. Call before the log is closed."""
        for partition in list(self._runs):
            self._end(partition)

    def _end(self, partition: StoredPartition) -> None:
        if partition not in self._runs:
            return
        del self._runs[partition]
        topic, row = partition.topic, partition.row
        source, row.run_source = SOURCES[row.run_source], 0
        self._access_log.put(
            (
                time_ns() // 1_000_000,
                "",
                topic.name or None,
                topic.id,
                partition.index,
                row.run_first,
                row.run_following,
                row.run_bytes,
                source,
                self._cache.peek_admitted_bytes(),
            )
        )
