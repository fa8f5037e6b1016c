"""Other holders of one arena: what they may do, whose pins are whose, and bounds that hold whoever pins.

In one process, which may have several holders: locks between processes are shown in test_cache_shared.py.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from blockcache._pyfastcache import ffi, lib

from blockcache.arena import Hit
from blockcache.arena_file import HOLDERS, ArenaError, ArenaMemory, open_memory
from blockcache.cache import BlockCache
from blockcache.errors import ArenaTorn, CacheError
from tests.kit.cache_batches import FOREVER, TOPIC, append, build_batch, build_run, insert, read

KIB = 1024
SIZE = 256 * KIB
BATCH_BYTES = 800
"""With a block's head, a unit."""


class Group:
    """A keeper and readers of the same memory."""

    def __init__(self, **sections: Any) -> None:
        self.memory = open_memory()
        self.keeper = BlockCache(SIZE, self.open(), **sections)
        self.keeper.share()
        self.slot = self.keeper.open(TOPIC, 0)

    def open(self) -> ArenaMemory:
        return ArenaMemory(os.dup(self.memory.fd))

    def attach(self, holder: int) -> BlockCache:
        return BlockCache.attach(self.open(), holder)


@pytest.fixture
def group() -> Iterator[Group]:
    """Blocks of one batch each."""
    made = Group(block_min_bytes=KIB, block_max_bytes=KIB, shared_block_bytes=0)
    yield made
    made.keeper.close()
    made.memory.close()


def look_up(cache: BlockCache, slot: int, offset: int, size: int = 1) -> Hit:
    hit = cache.lookup(slot, offset, FOREVER, size)
    assert hit is not None and hit.size_bytes
    return hit


def count_pins(cache: BlockCache) -> list[int]:
    """All pins, then those of each holder above 0 that has any."""
    return [cache.statistics().pins, *(pins for pins in cache._a.pins_of if pins)]


def check_nothing_is_found(reader: BlockCache, slot: int) -> None:
    """A reader goes on, as if nothing was stored."""
    places, ends = ffi.new("int64_t[]", [slot, 0]), ffi.new("int64_t[]", 1)
    reader.contiguous_ends(places, 1, ends)
    assert ends[0] < 0
    assert read(reader, slot, 0) is None
    assert reader.span(slot, 0, FOREVER, 1) is None
    assert reader.peek_head(slot, 0) is None
    assert set(reader.edges(slot, 0)) == {-1}
    assert reader.contiguous_end(slot, 0) == 0
    assert reader.first_after_epoch(slot, 0) == -1
    assert reader.age_bytes(slot, 0) is None
    assert reader.oldest_admitted == reader.peek_admitted_bytes()
    assert reader.statistics().entries


def test_a_reader_reads_what_the_keeper_stores(group: Group) -> None:
    reader, slot = group.attach(1), group.slot
    assert reader.reads_only and read(reader, slot, 0) is None
    insert(group.keeper, slot, build_run(0, 5, size=BATCH_BYTES))
    assert read(reader, slot, 1) == build_run(1, 4, size=BATCH_BYTES)
    assert reader.peek_head(slot, 2) == build_batch(2, size=BATCH_BYTES)[:61]
    assert reader.tail(slot) == (0, 5) and reader.contiguous_end(slot, 1) == 5
    places, ends = ffi.new("int64_t[]", [slot, 1]), ffi.new("int64_t[]", 1)
    reader.contiguous_ends(places, 1, ends)
    assert ends[0] == 5
    span = reader.span(slot, 0, FOREVER, 2 * BATCH_BYTES)
    assert span is not None and span.next_offset == 2
    assert reader.age_bytes(slot, 4) == BATCH_BYTES
    assert reader.oldest_admitted == BATCH_BYTES and reader.last_epoch(slot) == 0
    assert reader.first_after_epoch(slot, 0) == -1
    assert reader.statistics().entries == 5 == group.keeper.statistics().entries
    assert reader.peek_admitted_bytes() == 5 * BATCH_BYTES
    assert reader.high_water_bytes == group.keeper.high_water_bytes
    reader.check()


def test_a_reader_changes_nothing(group: Group) -> None:
    reader, slot = group.attach(1), group.slot
    run = build_batch(0)
    changes: list[Callable[[], object]] = [
        lambda: insert(reader, slot, run),
        lambda: append(reader, slot, run, 0, len(run), 0, 0),
        lambda: reader.reserve(1000),
        lambda: reader.evict_to(0),
        lambda: reader.open(TOPIC, 1),
        lambda: reader.drop(slot),
        lambda: reader.expect(slot, 3),
        lambda: reader.truncate(slot, 0),
        lambda: reader.advance_start(slot, 1),
        lambda: reader.note_identity(b"x"),
        lambda: reader.note_alive(1),
        lambda: reader.release_holder(2),
        reader.make_room,
        reader.share,
    ]
    for change in changes:
        with pytest.raises(CacheError, match="only reads"):
            change()
    assert group.keeper.statistics().entries == 0 and reader.eliminate() == 0


def test_who_may_attach(group: Group) -> None:
    for holder in (0, HOLDERS, -1):
        with pytest.raises(CacheError, match="holders"):
            BlockCache.attach(open_memory(), holder)
    with pytest.raises(ArenaError, match="nobody"):
        BlockCache.attach(open_memory(), 1)
    memory = open_memory()
    alone = BlockCache(SIZE, ArenaMemory(os.dup(memory.fd)))
    with pytest.raises(ArenaError, match="share"):
        BlockCache.attach(ArenaMemory(os.dup(memory.fd)), 1)
    alone.share()
    lib.fc_close(alone._a)  # as a keeper does that is about to take the arena over
    with pytest.raises(ArenaError, match="share"):
        BlockCache.attach(ArenaMemory(os.dup(memory.fd)), 1)
    alone.share()
    assert BlockCache.attach(ArenaMemory(os.dup(memory.fd)), 1).is_same(memory.fd)
    assert not group.keeper.is_same(memory.fd)
    alone._a.layout -= 1
    with pytest.raises(ArenaError, match="layout"):
        BlockCache.attach(memory, 2)


def test_pins_are_booked_by_holder(group: Group) -> None:
    insert(group.keeper, group.slot, build_run(0, 3, size=BATCH_BYTES))
    readers = [group.attach(holder) for holder in (1, 31)]
    hits = [look_up(reader, group.slot, 0) for reader in readers]
    hits.append(look_up(group.keeper, group.slot, 0))
    hits.append(look_up(readers[0], group.slot, 0))
    assert count_pins(group.keeper) == [4, 2, 1]
    group.keeper.check()
    assert lib.fc_release(group.keeper._a, 2, ffi.from_buffer("fc_segment[]", hits[0]._packed), 1)
    assert group.keeper.release_holder(1)
    assert count_pins(group.keeper) == [2, 1]
    assert group.keeper.release_holder(1) and count_pins(group.keeper) == [2, 1]
    hits[2].release()
    assert count_pins(group.keeper) == [1, 1]
    hits[1].release()
    assert count_pins(group.keeper) == [0]
    group.keeper.check()


def test_the_next_reader_of_a_number_lets_go_of_what_the_former_one_held(group: Group) -> None:
    insert(group.keeper, group.slot, build_batch(0, size=BATCH_BYTES))
    look_up(group.attach(4), group.slot, 0)
    group.keeper.evict_to(0)
    assert group.keeper.statistics().limbo_blocks == 1
    group.attach(4)
    assert count_pins(group.keeper) == [0]
    assert group.keeper.statistics().limbo_blocks == 1  # a reader frees nothing
    group.keeper.check()
    insert(group.keeper, group.slot, build_batch(9, size=BATCH_BYTES))
    assert group.keeper.statistics().limbo_blocks == 0
    group.keeper.check()


def test_a_readers_block_is_evicted_without_asking(group: Group) -> None:
    for offset in range(2):
        insert(group.keeper, group.slot, build_batch(offset, size=BATCH_BYTES))
    hit, asked = look_up(group.attach(1), group.slot, 0), list[Hit]()
    hit.on_reclaim = asked.append
    assert group.keeper.evict_to(0) == 2
    statistics = group.keeper.statistics()
    assert not asked and (statistics.limbo_blocks, statistics.blocks) == (1, 0)
    for offset in range(400):
        insert(group.keeper, group.slot, build_batch(offset, size=BATCH_BYTES))
    assert bytes(hit.views[0]) == build_batch(0, size=BATCH_BYTES)
    group.keeper.check()
    hit.release()
    assert group.keeper.statistics().limbo_blocks == 1
    group.keeper.evict_to(group.keeper.used_bytes - 2 * KIB)
    assert group.keeper.statistics().limbo_blocks == 0


def test_the_keepers_own_pin_on_a_readers_block_is_offered(group: Group) -> None:
    insert(group.keeper, group.slot, build_batch(0, size=BATCH_BYTES))
    theirs, mine = look_up(group.attach(1), group.slot, 0), look_up(group.keeper, group.slot, 0)
    mine.on_reclaim = Hit.release
    group.keeper.evict_to(0)
    assert (mine.pins, theirs.pins) == (0, 1)
    assert group.keeper.statistics().limbo_blocks == 1
    group.keeper.check()


def test_eviction_goes_on_and_the_limbo_is_bounded_while_readers_hold_all_that_they_may() -> None:
    """Each round pins as much as is allowed; the pins of the round before go afterwards: idle blocks pile up."""
    limit = 32 * KIB
    group = Group(
        block_min_bytes=KIB, block_max_bytes=KIB, shared_block_bytes=0, pin_limit_bytes=limit
    )
    keeper, slot, held = group.keeper, group.slot, list[Hit]()
    reader, end, most = group.attach(1), 0, 0
    for _ in range(40):
        for _ in range(60):
            insert(keeper, slot, build_batch(end, size=BATCH_BYTES))
            end += 1
        former, held = held, []
        for offset in range(end - 40, end):
            hit = look_up(reader, slot, offset)
            held += [hit] if hit.pins else []
        for hit in former:
            assert bytes(hit.views[0])[16:17] == b"\2"
            hit.release()
        keeper.evict_to(keeper.used_bytes // 2)
        keeper.check()
        statistics = keeper.statistics()
        most = max(most, statistics.limbo_bytes)
        assert statistics.limbo_bytes <= limit and statistics.pinned_bytes <= limit
    statistics = keeper.statistics()
    assert most > limit // 2 and statistics.copied_lookups > 40
    assert statistics.evicted_blocks_room + statistics.evicted_blocks_water > 1500
    for hit in held:
        hit.release()
    keeper.evict_to(0)
    assert keeper.used_bytes == 0


def test_a_reader_pins_what_it_copies_up_to_as_much_again() -> None:
    group = Group(
        block_min_bytes=KIB, block_max_bytes=KIB, shared_block_bytes=0, pin_limit_bytes=8 * KIB
    )
    insert(group.keeper, group.slot, build_run(0, 40, size=BATCH_BYTES))
    reader = group.attach(1)
    copied = look_up(reader, group.slot, 0, 16 * BATCH_BYTES)
    assert copied.pins == 0 and b"".join(copied.views) == build_run(0, 16, size=BATCH_BYTES)
    assert count_pins(group.keeper) == [0]
    sizes = [
        reader.sender.find_all((group.slot, offset, FOREVER, 8 * BATCH_BYTES), FOREVER, False).sizes
        for offset in (0, 8, 16)
    ]
    assert sizes == [[8 * BATCH_BYTES], [8 * BATCH_BYTES], [lib.FC_NOT_STORED]]
    assert group.keeper.statistics().pinned_bytes == 16 * KIB
    assert group.keeper._a.refused_lookups == 1
    assert read(reader, group.slot, 30) is None
    assert read(group.keeper, group.slot, 30) == build_run(30, 10, size=BATCH_BYTES)
    reader.sender.drop()
    assert count_pins(group.keeper) == [0]
    group.keeper.check()


def test_what_is_found_is_sent_from_where_it_lies_whatever_the_keeper_does(group: Group) -> None:
    """Many small pieces, which a keeper would copy before it stores more."""
    run = build_run(0, 20, size=BATCH_BYTES)
    insert(group.keeper, group.slot, run)
    reader = group.attach(1)
    assert reader.sender.find_all((group.slot, 0, FOREVER, len(run)), len(run), False).sizes == [
        len(run)
    ]
    group.keeper.evict_to(0)
    for offset in range(600):
        insert(group.keeper, group.slot, build_batch(offset, size=BATCH_BYTES, seed=9))
    ends = os.pipe()
    os.set_blocking(ends[1], False)
    assert reader.sender.send(ends[1], b"<>", [1]) == len(run) + 2
    assert os.read(ends[0], 1 << 20) == b"<" + run + b">"
    assert count_pins(group.keeper) == [0]
    group.keeper.check()
    for end in ends:
        os.close(end)


def test_a_reader_leaves_eviction_ahead_of_need_to_the_keeper(group: Group) -> None:
    """Each process calls it at times, also while the arena is above its high water."""
    reader, offset = group.attach(1), 0
    while group.keeper.used_bytes <= group.keeper.high_water_bytes:
        insert(group.keeper, group.slot, build_batch(offset, size=BATCH_BYTES))
        offset += 1
    assert reader.eliminate() == 0
    assert group.keeper.eliminate() > 0


def test_a_torn_arena_is_said_by_each_call_of_the_keeper(group: Group) -> None:
    slot, keeper, reader = group.slot, group.keeper, group.attach(1)
    insert(keeper, slot, build_batch(0))
    hit = look_up(reader, slot, 0)
    keeper._a.torn = 1
    places, ends = ffi.new("int64_t[]", [slot, 0]), ffi.new("int64_t[]", 1)
    calls: list[Callable[[], object]] = [
        lambda: read(keeper, slot, 0),
        lambda: keeper.span(slot, 0, FOREVER, 1),
        lambda: keeper.peek_head(slot, 0),
        lambda: keeper.edges(slot, 0),
        lambda: keeper.contiguous_end(slot, 0),
        lambda: keeper.contiguous_ends(places, 1, ends),
        lambda: keeper.first_after_epoch(slot, 0),
        lambda: keeper.unaborted_from(slot, 1, 1),
        lambda: keeper.age_bytes(slot, 0),
        lambda: keeper.oldest_admitted,
        lambda: keeper.statistics(),
        reader.check,
        lambda: insert(keeper, slot, build_batch(1)),
        lambda: keeper.reserve(100),
        lambda: keeper.evict_to(0),
        lambda: keeper.open(TOPIC, 1),
        lambda: keeper.drop(slot),
        lambda: keeper.expect(slot, 1),
        lambda: keeper.truncate(slot, 0),
        lambda: keeper.advance_start(slot, 1),
        lambda: keeper.release_holder(1),
        keeper.share,
        lambda: group.attach(2),
    ]
    for call in calls:
        with pytest.raises(ArenaTorn):
            call()
    assert append(keeper, slot, build_batch(1), 0, 200, 1, 0) is None
    assert bytes(hit.views[0]) == build_batch(0)
    assert reader.is_withheld
    check_nothing_is_found(reader, slot)
    hit.release()


def test_renewed_memory_is_another_and_the_former_stays_readable(group: Group) -> None:
    insert(group.keeper, group.slot, build_batch(0))
    reader = group.attach(1)
    hit, fd = look_up(reader, group.slot, 0), group.memory.fd
    os.set_inheritable(fd, True)
    group.memory.renew()
    assert (group.memory.fd, group.memory.size_bytes) == (fd, 0) and os.get_inheritable(fd)
    assert not reader.is_same(fd)
    again = BlockCache(SIZE, group.open())
    assert not again.is_pending
    again.share()
    insert(again, again.open(TOPIC, 0), build_batch(7))
    assert read(group.attach(1), again.open(TOPIC, 0), 7) == build_batch(7)
    assert bytes(hit.views[0]) == build_batch(0)
    hit.release()
    assert group.keeper.statistics().pins == 0


def test_long_changes_of_a_shared_arena_let_go_of_the_lock_in_between() -> None:
    group = Group(block_min_bytes=16 * KIB, block_max_bytes=16 * KIB, shared_block_bytes=0)
    keeper, slot = group.keeper, group.slot

    def count_holds(call: Callable[[], object]) -> int:
        before = int(keeper._a.lock_calls)
        call()
        keeper.check()
        return int(keeper._a.lock_calls) - before - 2  # the check's

    assert count_holds(lambda: insert(keeper, slot, build_run(0, 200, size=800))) == 3
    assert count_holds(lambda: keeper.truncate(slot, 150)) == 1
    assert count_holds(lambda: keeper.truncate(slot, 0)) == 3
    keeper.expect(slot, 0)
    insert(keeper, slot, build_run(0, 200, size=70))
    assert keeper.statistics().blocks == 1
    assert count_holds(lambda: keeper.evict_to(0)) == 5  # 64 batches each, and the end
    statistics = keeper.statistics()
    assert (statistics.blocks, statistics.entries, statistics.evicted_blocks_water) == (0, 0, 1)
    assert statistics.evicted_bytes == 200 * 70
    assert keeper.edges(slot, 0).evicted_end == 200
    insert(keeper, slot, build_run(200, 200, size=70))
    assert count_holds(lambda: keeper.advance_start(slot, 380)) == 3
    assert count_holds(lambda: keeper.drop(slot)) == 1
    slot = keeper.open(TOPIC, 0)
    insert(keeper, slot, build_run(0, 100, size=70))
    wanted = (slot, 5, FOREVER, 70) * 40
    assert count_holds(lambda: keeper.sender.find_all(wanted, FOREVER, False)) == 3
    assert count_holds(keeper.sender.drop) == 3
    assert keeper.statistics().pins == 0
