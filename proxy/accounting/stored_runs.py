"""Stored batches for the access log: one line per run of batches.

Owns the open runs. Must not know how a line is written. A run holds the batches of one partition
from one source without a gap, within two minutes. It says when each of them was admitted, on the clock of
admitted bytes, by a line through few points (partitions/native/rows.c). Acknowledgements cross: a few parts ahead of a
run wait for the batches between, and are lines of their own if it ends before; so is what comes late, from before the
run. Invariants:
* every admitted byte is in one line.
* a batch that its run's points do not come near begins another run.
* there is at most one run per partition, and a bounded number of runs: a share of the log's queue.
  If many end, they end one after the other. Each has at most PT_AHEAD parts ahead, mostly for milliseconds; lines
  beyond the queue's room are counted, as any others.
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
    """A partition whose batches are stored. Compared by identity. `row`: the fields `run_*` of its open
    run, which storing extends, too (partitions/native/rows.c).
    """

    @property
    def topic(self) -> StoredTopic: ...
    @property
    def index(self) -> int: ...
    @property
    def row(self) -> Any: ...


SOURCES: Final = ("", "produce", "watch")
"""Sources of a run by their numbers in `run_source`; "": there is no run."""


class RunRows(Protocol):
    """The functions of C that change a run in a row. Both take the row, the number of the source, the first
    offset and the one behind the last, bytes, batches, and the clock before them.
    """

    def pt_begin_run(self, row: Any, *words: int) -> None: ...
    def pt_extend_run(self, row: Any, *words: int) -> int:
        """0: they begin another run."""
        ...


class StoredRuns:
    """The open runs of one process. `len`: number of open runs, at most `limit`; at the limit the
    oldest run ends for a new one.
    """

    __slots__ = ("_access_log", "_cache", "_due", "_rows", "_runs", "_share", "limit")

    def __init__(
        self, access_log: AccessLog, cache: BlockCache, queue_lines: int, rows: RunRows
    ) -> None:
        """`queue_lines`: capacity of the log's queue, in lines."""
        self._access_log, self._cache, self._rows = access_log, cache, rows
        self.limit = queue_lines // QUEUE_SHARE
        self._runs: dict[StoredPartition, None] = {}
        self._due: deque[StoredPartition] = deque()  # their runs end in this round of ticks
        self._share = 0

    def __len__(self) -> int:
        return len(self._runs)

    def add(
        self,
        partition: StoredPartition,
        first: int,
        following: int,
        size_bytes: int,
        batches: int,
        source: str,
        clock: int,
    ) -> None:
        """Note that batches of offsets [first, following) were admitted, one behind another; `clock`: bytes
        admitted before them. They extend the partition's run if they continue it from the same source and lie
        near a line through its points, or wait ahead of it. From before it they are a line; else they begin a new one.
        """
        words = SOURCES.index(source), first, following, size_bytes, batches, clock
        if partition in self._runs:
            if self._rows.pt_extend_run(partition.row, *words):
                return
            if following <= partition.row.run_first and words[0] == partition.row.run_source:
                run = first, following, size_bytes, batches, clock, clock + size_bytes
                self._put(partition, source, *run, ())
                return
            self._end(partition)
        elif len(self._runs) >= self.limit:
            self._end(next(iter(self._runs)))
        self._runs[partition] = None
        self._rows.pt_begin_run(partition.row, *words)

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
        row = partition.row
        source, row.run_source = SOURCES[row.run_source], 0
        run = row.run_first, row.run_following, row.run_bytes, row.run_batches
        self._put(partition, source, *run, row.run_began, row.run_ended, list_points(row))
        for part in row.run_parts[0 : row.run_part_count]:
            run = part.first, part.following, part.bytes, part.batches
            self._put(partition, source, *run, part.clock, part.clock + part.bytes, ())

    def _put(
        self,
        partition: StoredPartition,
        source: str,
        first: int,
        following: int,
        size_bytes: int,
        batches: int,
        began: int,
        ended: int,
        points: tuple[tuple[int, int], ...],
    ) -> None:
        topic = partition.topic
        self._access_log.put(
            (
                time_ns() // 1_000_000,
                "",
                topic.name or None,
                topic.id,
                partition.index,
                first,
                following,
                size_bytes,
                source,
                self._cache.peek_admitted_bytes(),
                batches,
                began,
                ended,
                points,
                self._cache.held_bytes,
            )
        )


def list_points(row: Any) -> tuple[tuple[int, int], ...]:
    """Points between the first and the end of an open run, ascending: an offset, and the clock of admitted
    bytes before the batch there.
    """
    count = row.run_points
    points = list(zip(row.run_offsets[0:count], row.run_clocks[0:count], strict=True))
    if row.run_last != row.run_first:
        points.append((row.run_last, row.run_before))
    return tuple(points)
