"""Room: the FIFO's order, the bounds of batch, index, ghost and pins, what becomes of pinned blocks."""

from itertools import count

import pytest

from blockcache.arena import Hit
from blockcache.cache import BlockCache
from blockcache.errors import CacheError
from tests.kit.cache_batches import FOREVER, TOPIC, build_batch, build_run, insert, read

KIB = 1024


def fill(cache: BlockCache, slot: int, first_offset: int, until_blocks_evicted: int) -> int:
    """Appends 1 KiB batches till so many blocks went for room; the next offset."""
    for offset in count(first_offset):
        if cache.statistics().evicted_blocks_room >= until_blocks_evicted:
            return offset
        insert(cache, slot, build_batch(offset, size=850))
    raise AssertionError


@pytest.fixture
def cache() -> BlockCache:
    """Blocks of one 850 byte batch each, so that a block is a batch."""
    return BlockCache(
        64 * KIB,
        block_min_bytes=KIB,
        block_max_bytes=KIB,
        shared_block_bytes=0,
        max_ghosts=8,
        max_partitions=4,
    )


@pytest.fixture
def slot(cache: BlockCache) -> int:
    return cache.open(TOPIC, 0)


def test_the_oldest_goes_first_whatever_its_partition(cache: BlockCache, slot: int) -> None:
    other = cache.open(TOPIC, 1)
    insert(cache, slot, build_batch(0, size=850))
    insert(cache, other, build_batch(0, size=850))
    end = fill(cache, slot, 1, 1)
    assert read(cache, slot, 0) is None and read(cache, other, 0) is not None
    fill(cache, slot, end, 2)
    assert read(cache, other, 0) is None
    assert cache.tail(other) == (1, 1)
    assert cache.edges(other, 0).evicted_end == 1
    cache.check()


def test_a_batch_of_the_greatest_size_is_stored_a_larger_one_skipped(
    cache: BlockCache, slot: int
) -> None:
    most = cache.batch_max_bytes
    assert insert(cache, slot, build_batch(0, size=most)).stored_bytes == most
    outcome = insert(cache, slot, build_batch(1, size=most + 1) + build_batch(2))
    assert (
        outcome.skipped_bytes == most + 1
        and outcome.stored_bytes == 200
        and outcome.next_offset == 3
    )
    assert read(cache, slot, 0) == build_batch(0, size=most)
    assert cache.tail(slot) == (2, 3) and cache.statistics().skipped_batches == 1


def test_a_batch_of_over_a_mebibyte() -> None:
    cache = BlockCache(8 * KIB * KIB)
    slot = cache.open(TOPIC, 0)
    for offset in range(12):
        batch = build_batch(offset, size=KIB * KIB + 12345)
        assert insert(cache, slot, batch).stored_bytes == len(batch)
        assert read(cache, slot, offset) == batch
        cache.check()


def test_a_full_index_evicts() -> None:
    cache = BlockCache(1024 * KIB, index_nodes=64)
    slot = cache.open(TOPIC, 0)
    for offset in range(2000):
        assert insert(cache, slot, build_batch(offset, size=61)).stored_bytes == 61
    cache.check()
    statistics = cache.statistics()
    assert statistics.evicted_blocks_index > 0 and statistics.evicted_blocks_room == 0
    assert statistics.index_bytes_used <= statistics.index_bytes == 16 * KIB


def test_evict_to_and_eliminate(cache: BlockCache, slot: int) -> None:
    fill(cache, slot, 0, 1)
    assert cache.used_bytes > cache.high_water_bytes > cache.low_water_bytes > 0
    assert cache.eliminate() > 0
    assert cache.used_bytes <= cache.low_water_bytes
    assert cache.eliminate() == 0
    cache.evict_to(3 * KIB)
    assert (cache.used_bytes, cache.statistics().entries) == (3 * KIB, 3)
    cache.evict_to(0)
    assert (cache.used_bytes, cache.statistics().blocks, cache.evict_to(0)) == (0, 0, 0)
    assert cache.oldest_admitted == cache.peek_admitted_bytes()


def test_ages_of_the_stored_and_of_the_evicted(cache: BlockCache, slot: int) -> None:
    end = fill(cache, slot, 0, 3)
    assert cache.age_bytes(slot, end - 1) == 850
    assert cache.age_bytes(slot, end - 2) == 1700
    assert [cache.age_bytes(slot, offset) for offset in range(3)] == [
        (end - i) * 850 for i in range(3)
    ]
    assert cache.age_bytes(slot, end) is None
    assert cache.oldest_admitted == 4 * 850
    for offset in range(3, end):
        hit = cache.lookup(slot, offset, FOREVER, 1)
        assert hit is not None
        assert cache.peek_admitted_bytes() - hit.admitted_at == cache.age_bytes(slot, offset)
        hit.release()


def test_the_ghost_is_bounded(cache: BlockCache, slot: int) -> None:
    for base in range(0, 24, 2):  # with holes between them, so that no ghost becomes longer
        insert(cache, slot, build_batch(base, size=850))
    cache.evict_to(0)
    assert cache.statistics().ghosts == 8
    assert [cache.age_bytes(slot, base) is None for base in range(0, 24, 2)] == [True] * 4 + [
        False
    ] * 8
    cache.check()


def test_what_follows_on_a_ghost_makes_it_longer_up_to_a_16th_of_the_arena(
    cache: BlockCache,
) -> None:
    slots = [cache.open(TOPIC, i) for i in range(4)]
    for slot in slots:
        insert(cache, slot, build_run(0, 11, size=400, count=3))
    cache.evict_to(0)
    assert cache.statistics().ghosts == 8
    for i, slot in enumerate(slots):
        ages = [cache.age_bytes(slot, offset) for offset in range(33)]
        exact = [17600 - (i * 4400 + 400 * (offset // 3)) for offset in range(33)]
        assert all(abs((age or 0) - true) <= 400 for age, true in zip(ages, exact, strict=True))
        assert (ages[0], ages[32]) == (exact[0], exact[32])
    cache.check()


def test_ages_within_an_evicted_block() -> None:
    cache = BlockCache(1024 * KIB)
    slot = cache.open(TOPIC, 0)
    insert(cache, slot, build_run(0, 10, size=100))
    cache.evict_to(0)
    ages = [cache.age_bytes(slot, offset) for offset in range(10)]
    assert (
        ages[0] == 1000
        and ages == sorted(ages, key=lambda age: -(age or 0))
        and 100 <= (ages[9] or 0) < 300
    )


def hold(cache: BlockCache, slot: int, offset: int) -> Hit:
    hit = cache.lookup(slot, offset, FOREVER, 1)
    assert hit is not None and hit.pins == 1
    return hit


def test_a_pinned_block_is_offered_and_freed_if_let_go(cache: BlockCache, slot: int) -> None:
    insert(cache, slot, build_batch(0, size=850))
    copies: list[bytes] = []

    def copy_out(hit: Hit) -> None:
        copies.append(bytes(hit.views[0]))
        hit.release()

    for _ in range(2):
        hold(cache, slot, 0).on_reclaim = copy_out
    fill(cache, slot, 1, 1)
    assert copies == [build_batch(0, size=850)] * 2
    assert (cache.statistics().limbo_entered, cache.statistics().pins) == (0, 0)
    cache.check()


def test_a_pinned_block_goes_to_limbo_else(cache: BlockCache, slot: int) -> None:
    insert(cache, slot, build_batch(0, size=850))
    hit, asked = hold(cache, slot, 0), list[Hit]()
    hit.on_reclaim = asked.append
    end = fill(cache, slot, 1, 1)
    fill(cache, slot, end, 60)
    statistics = cache.statistics()
    assert asked == [hit] and (statistics.limbo_blocks, statistics.limbo_bytes) == (1, KIB)
    assert read(cache, slot, 0) is None
    assert bytes(hit.views[0]) == build_batch(0, size=850)
    hit.release()
    assert (cache.statistics().limbo_blocks, cache.statistics().limbo_bytes) == (0, 0)
    cache.check()


def test_without_a_callback_it_goes_to_limbo(cache: BlockCache, slot: int) -> None:
    insert(cache, slot, build_batch(0, size=850))
    hit = hold(cache, slot, 0)
    cache.evict_to(0)
    assert cache.statistics().limbo_blocks == 1 and cache.used_bytes == KIB
    hit.release()
    assert cache.used_bytes == 0


def test_invalidated_blocks_wait_for_their_pins(cache: BlockCache, slot: int) -> None:
    insert(cache, slot, build_batch(0, size=850))
    hit = hold(cache, slot, 0)
    cache.drop(slot)
    assert cache.statistics().limbo_blocks == 1
    insert(cache, cache.open(TOPIC, 1), build_run(0, 30, size=850))
    assert bytes(hit.views[0]) == build_batch(0, size=850)
    hit.release()
    cache.check()


def test_at_the_pin_limit_a_hit_is_a_copy() -> None:
    cache = BlockCache(
        512 * KIB,
        block_min_bytes=10 * KIB,
        block_max_bytes=10 * KIB,
        pin_limit_bytes=18 * KIB,
        shared_block_bytes=0,
    )
    slot = cache.open(TOPIC, 0)
    insert(cache, slot, build_run(0, 4, size=9000))
    held = [hold(cache, slot, 0), hold(cache, slot, 1), hold(cache, slot, 1)]
    assert cache.statistics().pinned_bytes == cache.statistics().pin_limit_bytes == 18 * KIB
    copied = cache.lookup(slot, 2, FOREVER, FOREVER)
    assert copied is not None and copied.pins == 0 and cache.statistics().copied_lookups == 1
    assert b"".join(copied.views) == build_run(2, 2, size=9000)
    cache.evict_to(0)
    assert b"".join(copied.views) == build_run(2, 2, size=9000)
    for hit in held:
        hit.release()
    cache.check()


def test_all_pinned_an_insert_skips() -> None:
    cache = BlockCache(
        64 * KIB,
        block_min_bytes=KIB,
        block_max_bytes=KIB,
        pin_limit_bytes=64 * KIB,
        shared_block_bytes=0,
    )
    slot = cache.open(TOPIC, 0)
    end = fill(cache, slot, 0, 1)
    held = [hold(cache, slot, offset) for offset in range(1, end)]
    outcome = insert(cache, slot, build_batch(end, size=850))
    assert (outcome.stored_bytes, outcome.skipped_bytes) == (0, 850)
    cache.check()
    for hit in held:
        hit.release()
    assert insert(cache, slot, build_batch(end, size=850)).stored_bytes == 850


def test_a_block_that_was_spared_is_offered_again(cache: BlockCache, slot: int) -> None:
    end = fill(cache, slot, 0, 1)
    aside = hold(cache, slot, 1)
    end = fill(
        cache, slot, end, 3
    )  # it is in limbo now, the next was evicted in its place, the arena is full
    oldest = hold(cache, slot, 3)

    def make_room_otherwise(hit: Hit) -> None:
        aside.release()
        hit.release()

    oldest.on_reclaim = make_room_otherwise
    insert(cache, slot, build_batch(end, size=850))
    assert read(cache, slot, 3) is not None and cache.statistics().pins == 0
    again, asked = hold(cache, slot, 3), list[Hit]()
    again.on_reclaim = asked.append
    cache.evict_to(0)
    assert asked == [again]
    again.release()


def test_callbacks_may_look_but_not_insert(cache: BlockCache, slot: int) -> None:
    insert(cache, slot, build_run(0, 2, size=850))
    refused: list[str] = []

    def meddle(hit: Hit) -> None:
        assert read(cache, slot, 1) == build_batch(1, size=850)
        for use in (lambda: insert(cache, slot, build_batch(9)), lambda: cache.evict_to(0)):
            with pytest.raises(CacheError, match="not insert or evict"):
                use()
            refused.append("")

    hit = hold(cache, slot, 0)
    hit.on_reclaim = meddle
    cache.evict_to(0)
    assert len(refused) == 2
    hit.release()
    cache.check()
