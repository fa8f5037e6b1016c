"""Partitions as a worker sees them: copies of what the keeper shows.

Owns the worker's objects for them. Must not know how they are asked for (keeper_link.py). Invariants:
* a row is a copy of one moment, renewed by each evaluation and each forwarding (native/shown.c).
* nothing here changes what is known of a partition, but for what waits on it in this process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from proxy.keeper.shown import find_place
from proxy.partitions._rows import ffi, lib
from proxy.partitions.back_off import BackOff
from proxy.partitions.leader_state import LeaderState
from proxy.partitions.table import Partition, Partitions
from proxy.partitions.transactions import TransactionStatistics

if TYPE_CHECKING:
    from collections.abc import Callable

    from blockcache.cache import BlockCache
    from proxy.keeper.segment import RowMemory
    from proxy.partitions.table import Waiter
    from proxy.partitions.topics import Topic

NEVER = float("-inf")
NOTHING_OPEN = TransactionStatistics(0, 0, 0, 0, 0)
RECALLING = (-1, 0.0)


class SeenLease:
    """The lease of a copied row."""

    __slots__ = ("_row",)
    is_shared = True

    def __init__(self, row: Any) -> None:
        self._row = row

    @property
    def until(self) -> float:
        """Its end, in seconds."""
        until: float = self._row.lease.until
        return until


class SeenLeaderState(LeaderState):
    """Leader state of a copied row."""

    __slots__ = ()

    def __init__(self, row: Any) -> None:
        self.row = row
        self.lease = SeenLease(row)  # type: ignore[assignment]

    def revoke(self) -> None:
        """The keeper's affair."""


class SeenTransactions:
    """Transactions of a copied row: the newest aborted ones."""

    __slots__ = ("_row",)
    holds_any = False
    has_hole = False

    def __init__(self, row: Any) -> None:
        self._row = row

    @property
    def known_from(self) -> int:
        """As `Transactions.known_from`."""
        known: int = self._row.known_from
        return known

    @property
    def end(self) -> int:
        """As `Transactions.end`."""
        end: int = self._row.observed_end
        return end

    def statistics(self) -> TransactionStatistics:
        """The keeper counts them."""
        return NOTHING_OPEN

    def last_stable_offset(self, _high_watermark: int) -> int | None:
        """None: the row has the keeper's."""
        return None

    def aborted(self, fetch_offset: int, end_offset: int) -> list[tuple[int, int]] | None:
        """As `Transactions.aborted`."""
        row = self._row
        if end_offset <= fetch_offset:
            return []
        end = row.observed_end if row.first_open < 0 else min(row.observed_end, row.first_open)
        if row.known_from < 0 or fetch_offset < row.known_from or end_offset > end:
            return None
        found, seen = [], row.view.seen
        for number in range(seen.aborted):
            one = seen.list[number]
            if one.marker < fetch_offset:
                continue
            if one.first < end_offset:
                found.append((one.producer_id, one.first))
            if one.stable >= end_offset:
                break
        return found


class SeenPartition(Partition):
    """A partition that the keeper follows. `is_held`: the keeper counts this worker among its waiters.
    `uncovered_until`: when it may be asked again after it could not ask the broker, in seconds.
    """

    __slots__ = ("is_held", "uncovered_until")

    def __init__(self, segment: RowMemory, topic: Topic, index: int, slot: int, place: int) -> None:
        row = lib.pt_new_view(segment.find(place), segment.leases, slot)
        if row == ffi.NULL:
            raise MemoryError("no memory for a partition's row")
        self._keep(segment, row)
        self.topic = topic
        self.index = index
        self.slot = slot
        self.leader_state = SeenLeaderState(self.row)
        self.transactions = SeenTransactions(self.row)  # type: ignore[assignment]
        self.parked: dict[Waiter, None] = {}
        self.open_polls = 0
        self.taken_over = None
        self.log_start_offset = -1
        self.divergences = 0
        self.wanted_at = self.news_at = self.looked_at = NEVER
        self.back_off = BackOff()
        self.missed_from = None
        self.is_held = False
        self.uncovered_until = NEVER

    def _keep(self, segment: RowMemory, row: Any) -> None:
        """Own `row`, which reads the mapping of `segment`."""

        def free(owned: Any, _segment: RowMemory = segment) -> None:
            lib.pt_free_row(owned)

        self.row = ffi.gc(row, free)

    @property
    def recalling(self) -> tuple[int, float] | None:  # type: ignore[override]
        """Not None while the keeper looks for transactions in stored batches."""
        return RECALLING if self.row.view.seen.flags & lib.PT_SHOWN_RECALLING else None

    def seen_end(self, stored_end: int) -> int:
        """As its base: what is stored beyond the tail that was shown is not judged yet."""
        return min(stored_end, self.tail)

    def look(self, now: float) -> None:
        """Copy the row anew."""
        lib.pt_look(self.row)
        super().look(now)


class SeenPartitions(Partitions):
    """The table of a worker. `ask` is called for a partition that is not known, at most once until it is answered."""

    __slots__ = ("_ask", "_asked", "by_place")

    def __init__(self, cache: BlockCache, limit: int, ask: Callable[[bytes, int], bool]) -> None:
        super().__init__(cache, limit, 0)
        self._ask = ask
        self._asked: dict[tuple[bytes, int], None] = {}
        self.by_place: dict[int, SeenPartition] = {}

    def set_limit(self, limit: int) -> None:
        """Take another limit; the arena's is the keeper's affair."""
        self.limit = limit

    def follow(self, topic: Topic, index: int) -> Partition | None:
        """Return the partition if the keeper has shown it; otherwise have the keeper follow it."""
        partition = self.find(topic, index)
        if partition is not None and not partition.is_followed:
            lib.pt_look(partition.row)
            if not partition.is_followed:
                return None  # it is about to be forgotten
        key = (topic.id, index)
        may_ask = partition is None and key not in self._asked and len(self._asked) < self.limit
        if may_ask and self._ask(topic.id, index):
            self._asked[key] = None
        return partition

    def answered(self, key: tuple[bytes, int]) -> None:
        """Note that the keeper has answered."""
        self._asked.pop(key, None)

    def put(self, partition: SeenPartition) -> None:
        """Note a partition that the keeper follows."""
        self.drop(partition.topic, partition.index)
        self._by_key[partition.topic.id, partition.index] = partition
        self._count(partition.topic, 1)
        self.by_place[find_place(partition.slot)] = partition

    def find_slot(self, slot: int) -> SeenPartition | None:
        """The partition with this slot, not another one of its place."""
        partition = self.by_place.get(find_place(slot))
        return partition if partition is not None and partition.slot == slot else None

    def drop(self, topic: Topic, index: int) -> None:
        """Forget a partition, and wake what waits on it."""
        partition = self._by_key.pop((topic.id, index), None)
        if isinstance(partition, SeenPartition):
            if self.by_place.get(place := find_place(partition.slot)) is partition:
                del self.by_place[place]
            self._count(topic, -1)
            partition.open_polls = 0
            partition.wake_parked()

    def drop_all(self) -> None:
        """Forget all: the keeper is lost."""
        self._asked.clear()
        for partition in list(self._by_key.values()):
            self.drop(partition.topic, partition.index)
