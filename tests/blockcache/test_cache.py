"""The cache's rules one by one: what insert takes, keeps and refuses, what lookup answers, what invalidates."""

import struct

import pytest
from blockcache._pyfastcache import ffi

from blockcache.appending import PLACED_WORDS, RUN_END
from blockcache.cache import BlockCache
from blockcache.errors import BadBatch, CacheError, PartitionsFull
from blockcache.results import Inserted
from tests.kit.cache_batches import (
    FOREVER,
    TOPIC,
    append,
    append_placed,
    build_batch,
    build_run,
    find_batch,
    insert,
    place,
    read,
)

MIB = 1024 * 1024


@pytest.fixture
def cache() -> BlockCache:
    return BlockCache(MIB)


@pytest.fixture
def slot(cache: BlockCache) -> int:
    return cache.open(TOPIC, 0)


def test_open_is_idempotent_and_bounded() -> None:
    cache = BlockCache(MIB, max_partitions=3)
    slots = [cache.open(TOPIC, i) for i in range(3)]
    assert [cache.open(TOPIC, i) for i in range(3)] == slots
    with pytest.raises(PartitionsFull, match="all 3 partition slots are open"):
        cache.open(TOPIC, 3)
    cache.drop(slots[1])
    assert cache.open(TOPIC, 3) not in slots
    with pytest.raises(CacheError, match="16 bytes"):
        cache.open(b"short", 0)
    cache.check()


def test_a_hundred_thousand_partitions() -> None:
    cache = BlockCache(64 * MIB, max_partitions=100_000)
    slots = [cache.open(TOPIC, i) for i in range(100_000)]
    assert len(set(slots)) == cache.statistics().partitions == 100_000
    insert(cache, slots[-1], build_run(0, 3))
    cache.check()


def test_a_run_comes_back_byte_for_byte(cache: BlockCache, slot: int) -> None:
    run = build_run(10, 20, count=5)
    assert insert(cache, slot, run) == Inserted(len(run), 10, 110, -1, 0, 20)
    assert read(cache, slot, 10) == run
    assert read(cache, slot, 14) == run
    assert read(cache, slot, 15) == run[200:]
    assert cache.tail(slot) == (10, 110)
    assert cache.peek_admitted_bytes() == len(run)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer(cache: BlockCache, slot: int, kind: type) -> None:
    run = build_run(0, 3)
    assert cache.insert(slot, kind(b"abc" + run + b"xyz"), 3, 3 + len(run), 0).stored_bytes == len(
        run
    )
    assert read(cache, slot, 0) == run


def patch(run: bytes, at: int, value: bytes) -> bytes:
    return run[:at] + value + run[at + len(value) :]


TWO = build_run(100, 2)
GARBLED = {
    "nothing": b"",
    "cut short": TWO[:-1],
    "one byte too many": TWO + b"x",
    "less than a header": TWO[:60],
    "magic 1": patch(TWO, 16, b"\x01"),
    "length of a header less one": patch(TWO, 8, (48).to_bytes(4, "big")),
    "negative length": patch(TWO, 8, b"\xff\xff\xff\xff"),
    "negative offset": patch(TWO, 0, b"\xff"),
    "negative last offset delta": patch(TWO, 23, b"\xff"),
    "the highest offset": patch(TWO, 0, b"\x7f" + b"\xff" * 7),
    "descending": TWO[200:] + TWO[:200],
    "overlapping": build_batch(100, 3) + build_batch(102),
}


@pytest.mark.parametrize("what", GARBLED)
def test_garbled_runs_store_nothing(cache: BlockCache, slot: int, what: str) -> None:
    run = GARBLED[what]
    with pytest.raises(BadBatch):
        cache.insert(slot, run, 0, len(run), 0)
    assert cache.statistics().entries == 0


@pytest.mark.parametrize(
    ("start", "end", "covers_from"),
    [(-1, 400, 100), (0, 401, 100), (9, 8, 100), (0, 400, 101), (0, 400, -1)],
)
def test_bounds_of_the_arguments(
    cache: BlockCache, slot: int, start: int, end: int, covers_from: int
) -> None:
    with pytest.raises(BadBatch):
        cache.insert(slot, TWO, start, end, covers_from)
    assert cache.insert(slot, TWO, 0, 400, 100).stored_bytes == 400


def test_a_known_empty_range_is_no_hole(cache: BlockCache, slot: int) -> None:
    run = build_batch(10) + build_batch(20)
    insert(cache, slot, run, covers_from=5)
    assert cache.tail(slot) == (5, 21)
    assert read(cache, slot, 5) == run
    assert read(cache, slot, 15) == build_batch(20)
    assert read(cache, slot, 4) is None


def test_a_gap_between_calls_is_a_hole(cache: BlockCache, slot: int) -> None:
    insert(cache, slot, build_run(0, 10))
    insert(cache, slot, build_run(15, 10))
    assert read(cache, slot, 8) == build_run(8, 2)
    assert read(cache, slot, 12) is None
    assert cache.contiguous_end(slot, 3) == 10
    assert cache.contiguous_end(slot, 12) == 12
    assert cache.tail(slot) == (15, 25)
    assert cache.edges(slot, 3)[2:4] == cache.edges(slot, 12)[2:4] == (10, 15)
    insert(cache, slot, build_run(10, 5))
    assert cache.tail(slot) == (0, 25)
    assert cache.edges(slot, 3)[2:4] == (-1, -1)
    assert read(cache, slot, 0) == build_run(0, 25)


def test_coverage_is_cut_at_what_is_stored(cache: BlockCache, slot: int) -> None:
    insert(cache, slot, build_run(0, 10))
    insert(cache, slot, build_batch(20), covers_from=5)
    assert find_batch(cache, slot, 15) == (10, 20, 20)
    cache.check()


def test_the_same_batch_again_is_kept_and_may_cover_more(cache: BlockCache, slot: int) -> None:
    insert(cache, slot, build_run(0, 10))
    insert(cache, slot, build_batch(20))
    again = insert(cache, slot, build_batch(20), covers_from=5)
    assert again == Inserted(0, 20, 21, -1, 0, 0)
    assert cache.tail(slot) == (0, 21)
    assert cache.statistics().kept_batches == 1


def test_new_batches_after_known_ones_are_stored(cache: BlockCache, slot: int) -> None:
    insert(cache, slot, build_run(0, 5))
    assert insert(cache, slot, build_run(3, 5)) == Inserted(600, 3, 8, -1, 0, 3)


def test_a_cleaned_batch_does_not_replace_the_stored_one(cache: BlockCache, slot: int) -> None:
    insert(cache, slot, build_batch(5, 10, size=900, producer_id=7))
    assert insert(cache, slot, build_batch(5, 10, size=300, producer_id=7)) == Inserted(
        0, 5, 15, -1, 0, 0
    )
    assert read(cache, slot, 5) == build_batch(5, 10, size=900, producer_id=7)


CONFLICTS = {
    "another epoch": build_batch(10, 5, epoch=1),
    "an older epoch": build_batch(10, 5, epoch=-1),
    "another last offset": build_batch(10, 4),
    "starts inside": build_batch(12, 3),
    "starts before": build_batch(9, 2),
    "swallows it": build_batch(8, 10),
    "another producer": build_batch(10, 5, producer_id=9),
    "another sequence": build_batch(10, 5, sequence=9),
}


@pytest.mark.parametrize("what", CONFLICTS)
def test_a_conflict_stores_nothing_from_there_on(cache: BlockCache, slot: int, what: str) -> None:
    insert(cache, slot, build_batch(10, 5))
    bad, base = CONFLICTS[what], int.from_bytes(CONFLICTS[what][:8], "big")
    run = build_batch(3) + bad + build_batch(50)
    assert insert(cache, slot, run) == Inserted(200, 3, 4, base, 0, 1)
    assert read(cache, slot, 50) is None and read(cache, slot, 10) == build_batch(10, 5)
    cache.truncate(slot, base)
    assert insert(cache, slot, run).conflict_offset == -1
    assert read(cache, slot, 3) == run


def test_a_batch_within_known_empty_offsets_was_cleaned_away(cache: BlockCache, slot: int) -> None:
    insert(cache, slot, build_batch(20, epoch=3), covers_from=5)
    assert insert(cache, slot, build_batch(10, epoch=3)) == Inserted(0, 10, 11, -1, 0, 0)
    assert insert(cache, slot, build_batch(10, epoch=4)).conflict_offset == 10
    assert insert(cache, slot, build_batch(4, epoch=3)).stored_bytes == 200
    assert cache.tail(slot) == (4, 21)


def test_limits_of_a_lookup(cache: BlockCache, slot: int) -> None:
    insert(cache, slot, build_run(0, 10, count=10))
    assert read(cache, slot, 0, limit_offset=30) == build_run(0, 3, count=10)
    assert read(cache, slot, 0, limit_offset=29) == build_run(0, 2, count=10)
    assert read(cache, slot, 0, limit_offset=9) == b""
    assert read(cache, slot, 0, max_bytes=400) == build_run(0, 2, count=10)
    assert read(cache, slot, 0, max_bytes=399) == build_run(0, 1, count=10)
    assert read(cache, slot, 0, max_bytes=199) == build_run(0, 1, count=10)
    strict = cache.lookup(slot, 0, FOREVER, 199, at_least_one=False)
    assert strict is not None and (strict.size_bytes, strict.next_offset, strict.pins) == (0, 0, 0)
    assert read(cache, slot, 0, max_bytes=-5) == build_run(0, 1, count=10)


def test_the_tail_s_end_is_an_empty_hit_beyond_it_none(cache: BlockCache, slot: int) -> None:
    assert (cache.tail(slot), read(cache, slot, 7)) == ((-1, -1), None)
    cache.expect(slot, 7)
    assert (cache.tail(slot), read(cache, slot, 7), read(cache, slot, 8)) == ((7, 7), b"", None)
    insert(cache, slot, build_run(7, 3))
    assert (read(cache, slot, 10), read(cache, slot, 11), read(cache, slot, 6)) == (b"", None, None)


def test_truncate_drops_whole_batches(cache: BlockCache, slot: int) -> None:
    insert(cache, slot, build_run(0, 10, count=10, epoch=4))
    cache.truncate(slot, 55)
    assert cache.tail(slot) == (0, 50) and cache.last_epoch(slot) == 4
    cache.truncate(slot, 50)
    assert cache.tail(slot) == (0, 50)
    assert cache.statistics().truncated_bytes == 1000
    cache.truncate(slot, 0)
    assert cache.tail(slot) == (0, 0) and cache.last_epoch(slot) == -1
    assert cache.statistics().block_bytes_used == 0
    cache.check()


def test_advance_start_keeps_the_batch_it_stands_in(cache: BlockCache, slot: int) -> None:
    insert(cache, slot, build_run(0, 10, count=10))
    cache.advance_start(slot, 25)
    assert read(cache, slot, 19) is None and read(cache, slot, 25) == build_run(20, 8, count=10)
    cache.advance_start(slot, 10)
    assert insert(cache, slot, build_run(10, 1, count=10)) == Inserted(0, 10, 20, -1, 200, 0)
    cache.advance_start(slot, 500)
    assert cache.tail(slot) == (500, 500)
    assert cache.statistics().start_moved_bytes == 2000
    cache.check()


def test_a_batch_is_appended_as_its_broker_places_it(cache: BlockCache) -> None:
    slot = cache.open(TOPIC, 0)
    sent = build_batch(0, 3, epoch=-1)
    frame = b"head" + sent + b"after"
    assert append(cache, slot, frame, 4, 4 + len(sent), 10, 5) == 13
    assert append(cache, slot, bytearray(frame), 4, 4 + len(sent), 13, 5) == 16
    placed = [
        struct.pack(">q", base) + sent[8:12] + struct.pack(">i", 5) + sent[16:] for base in (10, 13)
    ]
    assert read(cache, slot, 10) == b"".join(placed)
    assert frame == b"head" + sent + b"after"
    cache.check()


def test_what_is_there_already_or_leaves_no_room_is_not_appended(cache: BlockCache) -> None:
    slot = cache.open(TOPIC, 0)
    sent = build_batch(0, 3)
    assert append(cache, slot, sent, 0, len(sent), 10, 0) == 13
    for base, epoch in ((10, 0), (10, 1), (12, 0), (8, 0)):
        assert append(cache, slot, sent, 0, len(sent), base, epoch) is None
    assert append(cache, slot, sent, 0, len(sent), 20, 0) == 23
    assert append(cache, slot, sent, 0, len(sent), 13, 0) == 16
    cache.appender.used_max = cache.used_bytes
    assert append(cache, slot, sent, 0, len(sent), 23, 0) == 26
    cache.appender.used_max -= 1
    assert append(cache, slot, sent, 0, len(sent), 26, 0) is None
    cache.check()


@pytest.mark.parametrize("base", [-1, (1 << 63) - 2])
def test_an_append_of_what_is_no_whole_batch_or_has_no_place_is_refused(
    cache: BlockCache, base: int
) -> None:
    slot = cache.open(TOPIC, 0)
    sent = build_batch(0, 3)
    for start, end in ((0, len(sent) - 1), (1, len(sent)), (0, len(sent) + 1), (2, 1), (-1, 5)):
        assert append(cache, slot, sent, start, end, 10, 0) is None
    assert append(cache, slot, sent, 0, len(sent), base, 0) is None
    assert cache.tail(slot) == (-1, -1)


@pytest.mark.parametrize("count", [2, 64, 65, 200])
def test_batches_of_several_partitions_are_appended_by_one_call(
    cache: BlockCache, count: int
) -> None:
    slots = [cache.open(TOPIC, index) for index in range(4)]
    frame = b"head"
    words: list[int] = []
    for number in range(count):
        sent = build_batch(0, 3, epoch=-1, seed=number)
        words += slots[number % 4], len(frame), len(frame) + len(sent), 3 * number, 5, 0, 0
        frame += sent + b"tags"
    words[PLACED_WORDS + 1] = 0
    placed = place(*words)
    append_placed(cache, frame, placed, count)
    ends = placed[RUN_END::PLACED_WORDS].tolist()
    assert ends[1] < 0, "it is no batch, and the others do not suffer"
    assert [end for end in ends if end >= 0] == [
        3 * number + 3 for number in range(count) if number != 1
    ]
    assert cache.statistics().entries == count - 1
    cache.drop(slots[0])
    append_placed(cache, frame, placed, 1)
    assert placed[RUN_END] < 0, "the slot is stale"
    cache.check()


def test_advance_start_cuts_known_empty_offsets(cache: BlockCache, slot: int) -> None:
    insert(cache, slot, build_batch(50), covers_from=10)
    cache.advance_start(slot, 30)
    assert cache.tail(slot) == (30, 51)


def test_drop_forgets_all(cache: BlockCache, slot: int) -> None:
    insert(cache, slot, build_run(0, 100))
    cache.drop(slot)
    again = cache.open(TOPIC, 0)
    assert cache.tail(again) == (-1, -1) and cache.age_bytes(again, 5) is None
    statistics = cache.statistics()
    assert (statistics.entries, statistics.block_bytes_used, statistics.dropped_bytes) == (
        0,
        0,
        20000,
    )


def scattered(size: int) -> BlockCache:
    """600 batches of `size` bytes in blocks of one batch each."""
    block_bytes = (size + ffi.sizeof("fc_block") + 1023) // 1024 * 1024
    cache = BlockCache(
        12 * MIB,
        block_min_bytes=block_bytes,
        block_max_bytes=block_bytes,
        shared_block_bytes=0,
        pin_limit_bytes=12 * MIB,
    )
    insert(cache, cache.open(TOPIC, 0), build_run(0, 600, size=size))
    return cache


def test_segments_are_bounded() -> None:
    cache = scattered(8193)
    hit = cache.lookup(cache.open(TOPIC, 0), 0, FOREVER, FOREVER)
    assert hit is not None
    assert (len(hit.views), hit.pins, hit.next_offset) == (512, 512, 512)
    hit.release()


def test_small_scattered_pieces_are_gathered_into_a_copy() -> None:
    cache = scattered(8000)
    hit = cache.lookup(cache.open(TOPIC, 0), 0, FOREVER, FOREVER)
    assert hit is not None
    assert (len(hit.views), hit.pins, hit.next_offset) == (1, 0, 512)
    assert bytes(hit.views[0]) == build_run(0, 512, size=8000) and hit.views[0].readonly
    one = cache.lookup(cache.open(TOPIC, 0), 7, 8, FOREVER)
    assert one is not None and one.pins == 1
    one.release()
    statistics = cache.statistics()
    assert (statistics.gathered_lookups, statistics.copied_lookups, statistics.pins) == (1, 0, 0)


def test_a_deep_index_in_any_order() -> None:
    cache = BlockCache(8 * MIB)
    slot = cache.open(TOPIC, 0)
    order = [i * 7919 % 8000 for i in range(8000)]
    for base in order:
        insert(cache, slot, build_batch(base, size=61))
    cache.check()
    assert cache.tail(slot) == (0, 8000) and cache.contiguous_end(slot, 4000) == 8000
    assert read(cache, slot, 3999, limit_offset=4002) == b"".join(
        build_batch(i, size=61) for i in (3999, 4000, 4001)
    )
    cache.advance_start(slot, 7990)
    cache.check()
    assert cache.statistics().entries == 10
