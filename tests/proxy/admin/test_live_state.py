"""When records leave memory: what is told, and what then happens in a real arena, by a clock that the test moves."""

import pytest

from proxy.admin.live_state import MemoryState, Reader, find_paces
from proxy.admin.live_view import find_memory_end
from proxy.fetch.readers import ProcessTotals, Readers
from proxy.partitions.readable import PartitionOutcome, PartitionStatus, ReadState
from tests.proxy.admin.live_states import build_behind, build_state
from tests.proxy.cached_partition import World
from tests.proxy.session_messages import asked

BATCH_BYTES, WRITES, KEY = 20_000, 10, ("c", "g", "orders")
"""Batches of this size, so many a second."""


class Run:
    """Writers fill a memory of 4 MiB; a reader follows with so many batches a second, from where it is told."""

    def __init__(self, reads: int) -> None:
        self.world, self.reads, self.now, self.at = World(), reads, 0.0, -1
        self.readers = Readers(10, 0.0, self.count)

    def count(self) -> ProcessTotals:
        return ProcessTotals({}, self.world.cache.peek_admitted_bytes(), 0)

    def find_clock(self, offset: int) -> int | None:
        """The clock at an offset's admission; None: memory does not hold it."""
        cache, slot = self.world.cache, self.world.partition.slot
        if cache.edges(slot, offset).evicted_end > offset:
            return None
        age_bytes = cache.age_bytes(slot, offset)
        return None if age_bytes is None else cache.peek_admitted_bytes() - age_bytes

    def pass_second(self) -> None:
        self.now += 1
        for _ in range(WRITES):
            self.world.arrive(BATCH_BYTES)
        self.readers.tick(self.now)
        if self.at >= 0:
            self.at += self.reads
            wanted = asked("orders", 0)._replace(fetch_offset=self.at)
            status = PartitionStatus(wanted, self.world.partition, ReadState.READABLE, "", 0)
            clock = self.find_clock(self.at)
            one = PartitionOutcome(status, BATCH_BYTES, "hit", "", admitted_at=clock)
            self.readers.note("c", "g", [one], self.now)

    def tell(self) -> dict[str, object]:
        statistics = self.world.cache.statistics()
        begun = self.readers.windows[0]
        memory = MemoryState(
            statistics.arena_bytes,
            statistics.block_bytes,
            0,
            statistics.admitted_bytes,
            statistics.oldest_admitted_bytes,
            0.0,
            self.world.cache.held_bytes is not None,
        )
        ((_, _, standing),) = self.readers.list_standings()
        pace, _ = find_paces(standing.before, standing.now)
        state = build_state(
            memory=memory,
            window_s=self.now - begun.begun_at,
            admitted_bytes=statistics.admitted_bytes - begun.totals.admitted_bytes,
        )
        place = standing.now.admitted_at
        return find_memory_end(
            state, build_behind(reader=Reader(*KEY), admitted_at=place, bytes_pace=pace)
        )


@pytest.mark.parametrize(("reads", "behind"), [(1, 100), (4, 100), (7, 100)])
def test_a_reader_that_is_too_slow_leaves_memory_when_it_was_told(reads: int, behind: int) -> None:
    run = Run(reads)
    while not run.world.cache.statistics().evicted_blocks_room:
        run.pass_second()
    run.at = run.world.partition.tail - behind
    for _ in range(4):
        run.pass_second()
    told = run.tell()
    assert told["state"] == "leaves" and isinstance(told["inS"], float)
    begun = run.now
    while run.find_clock(run.at) is not None:
        run.pass_second()
        assert run.now - begun < 600
    assert run.now - begun == pytest.approx(told["inS"], rel=0.25, abs=2.0)
    run.world.end()


def test_a_reader_that_is_as_fast_as_writers_is_told_that_it_stays() -> None:
    run = Run(WRITES)
    while not run.world.cache.statistics().evicted_blocks_room:
        run.pass_second()
    run.at = run.world.partition.tail - 120
    for _ in range(4):
        run.pass_second()
    assert run.tell()["state"] == "never"
    run.world.end()
