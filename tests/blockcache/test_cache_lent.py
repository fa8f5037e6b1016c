"""Memory that the arena lends to a request under way: whose it is, its bounds, and what of it is stored."""

import gc
import threading

import pytest
from blockcache._pyfastcache import ffi, lib

from blockcache.arena import Hit
from blockcache.cache import BlockCache
from blockcache.inspect import inspect
from tests.kit.cache_batches import FOREVER, TOPIC, append, build_batch, build_run, insert, read

KIB = 1024
HEAD_BYTES = ffi.sizeof("fc_block")
HEAD, REST = b"head of a request", b"end"


@pytest.fixture
def cache() -> BlockCache:
    return BlockCache(255 * KIB, lent_limit_bytes=24 * KIB)


@pytest.fixture
def slot(cache: BlockCache) -> int:
    return cache.open(TOPIC, 0)


def receive(cache: BlockCache, batch: bytes) -> memoryview:
    """A request that has been received into lent memory."""
    memory = cache.reserve(len(HEAD) + len(batch) + len(REST))
    assert memory is not None
    memory[:] = HEAD + batch + REST
    return memory


def acknowledge(
    cache: BlockCache, slot: int, memory: memoryview, offset: int, epoch: int = 0
) -> int | None:
    """The broker has it."""
    return append(cache, slot, memory, len(HEAD), len(memory) - len(REST), offset, epoch)


def position_of(cache: BlockCache, slot: int, offset: int) -> int:
    """Where in the arena a batch lies."""
    entry = ffi.new("fc_entry *")
    assert lib.fc_find_batch(cache._a, slot, offset, entry) == 0
    return int(entry.position)


def address_of(cache: BlockCache, memory: memoryview) -> int:
    """Where in the arena lent memory begins."""
    begin = int(ffi.cast("uintptr_t", ffi.from_buffer(memory)))
    return begin - int(ffi.cast("uintptr_t", cache._a))


def counts(cache: BlockCache) -> tuple[int, int, int, int]:
    statistics = cache.statistics()
    return (
        statistics.reserved_blocks,
        statistics.lent_bytes,
        statistics.adopted_batches,
        statistics.pins,
    )


def test_a_batch_is_stored_where_it_was_received(cache: BlockCache, slot: int) -> None:
    memory = receive(cache, build_batch(0, 3, epoch=-1, size=4900))
    assert counts(cache) == (1, 5 * KIB, 0, 1)
    cache.check()
    assert acknowledge(cache, slot, memory, 70, epoch=4) == 73
    assert position_of(cache, slot, 70) == address_of(cache, memory) + len(HEAD)
    assert counts(cache) == (0, 5 * KIB, 1, 1)
    stored = read(cache, slot, 70)
    assert stored is not None and stored[20:] == build_batch(0, 3, epoch=-1, size=4900)[20:]
    assert (stored[:8], stored[12:16]) == ((70).to_bytes(8, "big"), (4).to_bytes(4, "big"))
    assert memory == HEAD + stored + REST
    cache.check()
    del memory
    assert counts(cache) == (0, 0, 1, 0)
    assert read(cache, slot, 70) == stored
    cache.check()


def test_what_is_not_stored_is_given_back(cache: BlockCache, slot: int) -> None:
    insert(cache, slot, build_batch(5, 10))
    used = cache.used_bytes
    memory = receive(cache, build_batch(0, 3, size=3000))
    assert acknowledge(cache, slot, memory, 7) is None, "it overlaps"
    assert append(cache, slot, memory, len(HEAD), len(memory) - len(REST), 7, 0) is None
    cache.check()
    del memory
    assert counts(cache) == (0, 0, 0, 0)
    assert cache.used_bytes == used
    cache.check()


def test_the_last_view_keeps_it(cache: BlockCache) -> None:
    memory = receive(cache, build_batch(0, size=3000))
    part = memory[100:200][20:]
    del memory
    assert counts(cache)[1] == 4 * KIB
    del part
    assert counts(cache)[1] == 0


def test_eviction_leaves_memory_that_is_still_in_use(cache: BlockCache, slot: int) -> None:
    memory = receive(cache, build_batch(0, size=3000))
    acknowledge(cache, slot, memory, 0)
    before = bytes(memory)
    cache.evict_to(0)
    assert read(cache, slot, 0) is None
    assert (cache.statistics().limbo_blocks, cache.used_bytes) == (1, 4 * KIB)
    insert(cache, slot, build_run(1, 200, size=900))
    assert memory == before
    cache.check()
    del memory
    assert cache.statistics().limbo_blocks == 0
    cache.check()


@pytest.mark.parametrize("how", ["truncate", "drop", "advance_start"])
def test_so_does_what_becomes_of_its_batch(cache: BlockCache, slot: int, how: str) -> None:
    memory = receive(cache, build_batch(0, size=3000))
    acknowledge(cache, slot, memory, 0)
    before = bytes(memory)
    if how == "drop":
        cache.drop(slot)
    elif how == "truncate":
        cache.truncate(slot, 0)
    else:
        cache.advance_start(slot, 50)
    insert(cache, cache.open(TOPIC, 1), build_run(0, 200, size=900))
    assert memory == before and cache.statistics().limbo_blocks == 1
    del memory
    assert cache.statistics().limbo_blocks == 0
    cache.check()


def test_a_reserved_block_is_not_evicted(cache: BlockCache, slot: int) -> None:
    memory = receive(cache, build_batch(0, size=3000))
    before = bytes(memory)
    insert(cache, slot, build_run(0, 600, size=900))
    cache.evict_to(0)
    assert (memory, counts(cache)[0]) == (before, 1)
    assert acknowledge(cache, slot, memory, 600) == 601
    cache.check()


def test_its_batch_is_the_newest_of_the_queue(cache: BlockCache, slot: int) -> None:
    memory = receive(cache, build_batch(0, size=3000))
    other = cache.open(TOPIC, 1)
    insert(cache, other, build_run(0, 10, size=3000))
    acknowledge(cache, slot, memory, 0)
    del memory
    while read(cache, other, 9) is not None:
        cache.evict_to(cache.used_bytes - KIB)
    assert read(cache, slot, 0) is not None
    cache.check()


def test_a_reader_and_its_holder_each_have_a_pin(cache: BlockCache, slot: int) -> None:
    memory = receive(cache, build_batch(0, size=3000))
    acknowledge(cache, slot, memory, 0)
    hit = cache.lookup(slot, 0, FOREVER, FOREVER)
    assert isinstance(hit, Hit) and cache.statistics().pins == 2
    assert b"".join(hit.views) == memory[len(HEAD) : -len(REST)]
    del memory
    cache.evict_to(0)
    assert (cache.statistics().pins, cache.statistics().limbo_blocks) == (1, 1)
    hit.release()
    assert cache.statistics().limbo_blocks == 0
    cache.check()


def test_the_bound_of_what_is_lent(cache: BlockCache) -> None:
    held = [cache.reserve(8 * KIB - HEAD_BYTES) for _ in range(3)]
    assert None not in held
    assert cache.statistics().lent_bytes == cache.statistics().lent_limit_bytes == 24 * KIB
    assert cache.reserve(1) is None
    held.pop()
    assert cache.reserve(8 * KIB - HEAD_BYTES + 1) is None
    assert cache.reserve(8 * KIB - HEAD_BYTES) is not None


def test_the_bound_of_what_is_pinned() -> None:
    cache = BlockCache(255 * KIB, lent_limit_bytes=255 * KIB, pin_limit_bytes=12 * KIB)
    slot = cache.open(TOPIC, 0)
    memory = receive(cache, build_batch(0, size=8 * KIB - HEAD_BYTES - len(HEAD + REST)))
    acknowledge(cache, slot, memory, 0)
    assert cache.reserve(4 * KIB - HEAD_BYTES + 1) is None
    assert cache.reserve(4 * KIB - HEAD_BYTES) is not None
    cache.check()


def test_no_batch_is_as_large(cache: BlockCache) -> None:
    large = BlockCache(255 * KIB, lent_limit_bytes=255 * KIB, pin_limit_bytes=255 * KIB)
    assert large.reserve(large.batch_max_bytes + 1) is None
    assert large.reserve(large.batch_max_bytes) is not None
    assert BlockCache(255 * KIB, observe=True).reserve(100) is None


def test_a_full_cache_makes_room_for_it(cache: BlockCache, slot: int) -> None:
    insert(cache, slot, build_run(0, 600, size=900))
    memory = receive(cache, build_batch(0, size=9000))
    assert cache.used_bytes <= cache.high_water_bytes + 10 * KIB
    cache.evict_to(0)
    assert acknowledge(cache, slot, memory, 600) == 601
    cache.check()


def test_memory_on_loan_outlives_the_cache(cache: BlockCache) -> None:
    memory = receive(cache, build_batch(0, size=9000))
    cache.close()
    memory[:4] = b"late"
    assert memory[:6] == b"late" + HEAD[4:6]
    del memory
    gc.collect()


def test_it_may_be_dropped_by_any_thread(cache: BlockCache) -> None:
    held = [receive(cache, build_batch(0, size=2000)) for _ in range(8)]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert counts(cache) == (0, 0, 0, 0)
    cache.check()


def test_from_beside_it_is_of_its_own_kind(cache: BlockCache, slot: int) -> None:
    memory = receive(cache, build_batch(0, size=2000))
    kinds = {total.kind: total for total in inspect(cache._arena.view).blocks}
    assert (kinds["lent"].blocks, kinds["lent"].size_bytes) == (1, 3 * KIB)
    acknowledge(cache, slot, memory, 0)
    kinds = {total.kind: total for total in inspect(cache._arena.view).blocks}
    assert (kinds["lent"].blocks, kinds["own"].blocks, kinds["own"].live_bytes) == (0, 1, 2000)
    assert not inspect(cache._arena.view).torn


def test_what_is_not_lent_is_not_taken_back(cache: BlockCache, slot: int) -> None:
    insert(cache, slot, build_batch(0, size=3000))
    base = ffi.cast("char *", cache._a)
    for at in (
        0,
        HEAD_BYTES,
        cache._a.data_at + HEAD_BYTES,
        cache._a.data_at + HEAD_BYTES + 1,
        cache._a.size_bytes + HEAD_BYTES,
        1 << 40,
    ):
        assert lib.fc_give_back(cache._a, base + at) == lib.FC_STALE
    assert lib.fc_give_back(cache._a, ffi.from_buffer(b"elsewhere")) == lib.FC_STALE
    cache.check()
