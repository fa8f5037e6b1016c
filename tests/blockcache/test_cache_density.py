"""Size classes: slow partitions share a block, fast ones have their own, and the arena is full of live bytes."""

import pytest

from blockcache.cache import BlockCache
from tests.kit.cache_batches import TOPIC, build_batch, build_run, insert, read

KIB, MIB = 1024, 1024 * 1024


def blocks(cache: BlockCache) -> int:
    return cache.statistics().blocks


def test_slow_partitions_share_one_block() -> None:
    cache = BlockCache(4 * MIB)
    slots = [cache.open(TOPIC, i) for i in range(40)]
    for offset in range(3):
        for i, slot in enumerate(slots):
            insert(cache, slot, build_batch(offset, size=300 + i, seed=i))
    assert blocks(cache) == 1
    for i, slot in enumerate(slots):
        assert read(cache, slot, 0) == b"".join(
            build_batch(o, size=300 + i, seed=i) for o in range(3)
        )
    cache.check()


def test_a_fast_partition_gets_blocks_of_its_own_and_larger_ones() -> None:
    cache = BlockCache(4 * MIB)
    slot = cache.open(TOPIC, 0)
    for offset in range(4000):
        insert(cache, slot, build_batch(offset, size=500))
    statistics = cache.statistics()
    assert statistics.blocks < 4000 * 500 // cache.block_max_bytes + 12
    assert statistics.live_record_bytes > 0.93 * statistics.block_bytes_used
    cache.check()


def test_a_partition_that_slows_down_goes_back_to_the_shared_block() -> None:
    cache = BlockCache(MIB)
    slow, fast = cache.open(TOPIC, 0), cache.open(TOPIC, 1)
    end, other = 0, 0
    for _ in range(300):
        insert(cache, slow, build_batch(end, size=500))
        end += 1
    for _ in range(200):
        for _ in range(300):
            insert(cache, fast, build_batch(other, size=500))
            other += 1
        insert(cache, slow, build_batch(end, size=500))
        end += 1
    before = cache.used_bytes
    for _ in range(3):
        insert(cache, slow, build_batch(end, size=500))
        end += 1
    assert cache.used_bytes - before <= 16 * KIB
    assert cache.statistics().live_record_bytes > 0.85 * cache.statistics().block_bytes_used
    cache.check()


@pytest.mark.parametrize(("size", "shared"), [(8192, True), (8193, False)])
def test_a_large_batch_of_a_slow_partition_gets_a_block_that_fits(size: int, shared: bool) -> None:
    cache = BlockCache(16 * MIB)
    slot, other = cache.open(TOPIC, 0), cache.open(TOPIC, 1)
    insert(cache, other, build_batch(0, size=100))
    insert(cache, slot, build_batch(0, size=size))
    assert blocks(cache) == (1 if shared else 2)
    assert cache.used_bytes == 64 * KIB + (0 if shared else 9 * KIB)
    cache.check()


def test_eviction_of_a_shared_block_forgets_the_batches_of_all_in_it() -> None:
    cache = BlockCache(MIB)
    slots = [cache.open(TOPIC, i) for i in range(10)]
    for offset in range(2):
        for slot in slots:
            insert(cache, slot, build_batch(offset, size=200))
    assert cache.evict_to(0) == 1
    for i, slot in enumerate(slots):
        assert (cache.tail(slot), cache.edges(slot, 0).evicted_end) == ((2, 2), 2)
        assert cache.age_bytes(slot, 0) == 20 * 200 - 200 * i
        assert cache.age_bytes(slot, 1) == 10 * 200 - 200 * i
    assert cache.statistics().ghosts == 10
    cache.check()


def test_a_slot_used_again_does_not_lose_batches_to_its_predecessor_s() -> None:
    cache = BlockCache(MIB)
    keep, gone = cache.open(TOPIC, 0), cache.open(TOPIC, 1)
    for slot in (keep, gone):
        insert(cache, slot, build_run(0, 2))
    cache.drop(gone)
    again = cache.open(TOPIC, 2)
    for offset in range(400):
        insert(cache, keep, build_batch(2 + offset, size=400))
    insert(cache, again, build_run(0, 2))
    cache.check()
    cache.evict_to(cache.used_bytes - 1)
    assert read(cache, again, 0) == build_run(0, 2) and read(cache, keep, 0) is None
    cache.check()


def test_ten_thousand_slow_partitions_keep_the_arena_full_of_live_bytes() -> None:
    """In small: a 16 MiB arena, 625 partitions, 1 KiB each in turn; bench/micro has the whole."""
    cache = BlockCache(16 * MIB)
    slots = [cache.open(TOPIC, i) for i in range(625)]
    batches = [build_batch(offset, size=KIB) for offset in range(60)]
    for batch in batches:
        for slot in slots:
            cache.eliminate()
            insert(cache, slot, batch)
    statistics = cache.statistics()
    assert statistics.live_record_bytes >= 0.8 * statistics.arena_bytes
    cache.check()
