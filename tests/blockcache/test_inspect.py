"""An arena seen from beside: what is stored, torn reads, a process that keeps writing, one that died."""

import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from blockcache._pyfastcache import ffi, lib

from blockcache.arena_file import ArenaInUse, map_read_only, open_file
from blockcache.cache import BlockCache
from blockcache.inspect import ATTEMPTS, NoArena, PartitionPicture, StoredSpan, inspect
from tests.kit.cache_batches import TOPIC, build_batch, build_run, insert

KIB, MIB = 1024, 1024 * 1024

BUSY = """
import sys
from pathlib import Path
from blockcache.arena_file import open_file
from blockcache.cache import BlockCache
from tests.kit.cache_batches import TOPIC, build_run, insert
cache = BlockCache(1 << 20, open_file(Path(sys.argv[1])))
slots = [cache.open(TOPIC, i) for i in range(8)]
print("ready", flush=True)
ends = [0] * 8
for round in range(10**9):
    for i, slot in enumerate(slots[: 1 + round % 8]):
        insert(cache, slot, build_run(ends[i], 3, size=200))
        ends[i] += 3
    if round % 50 == 0:
        cache.drop(slots[7])
        slots[7], ends[7] = cache.open(TOPIC, 7), 0
"""


def only(cache: BlockCache) -> PartitionPicture:
    (one,) = inspect(cache._arena.view).partitions
    return one


def test_runs_and_holes_are_those_of_the_cache() -> None:
    cache = BlockCache(MIB)
    slot = cache.open(TOPIC, 3)
    source = random.Random(2)
    for base in source.sample(range(0, 3000, 2), 900):
        insert(cache, slot, build_batch(base, 2, size=61))
    cache.advance_start(slot, 100)
    one = only(cache)
    assert (one.topic_id, one.partition, one.torn, one.log_start) == (TOPIC, 3, False, 100)
    assert one.batches == cache.statistics().entries and one.live_bytes == one.batches * 61
    assert len(one.runs) > 100
    for run in one.runs:
        assert cache.contiguous_end(slot, run.start) == run.end
    for hole in one.holes:
        edges = cache.edges(slot, hole.start - 1)
        assert (edges.hole_start, edges.hole_end) == hole
    assert (one.runs[-1].start, one.runs[-1].end) == cache.tail(slot)


def test_sums_of_blocks_and_free_extents() -> None:
    cache = BlockCache(4 * MIB)
    for i in range(10):
        insert(cache, cache.open(TOPIC, i), build_run(0, 4, size=500))
    insert(cache, cache.open(TOPIC, 10), build_run(0, 300, size=1000))
    hit = cache.lookup(cache.open(TOPIC, 10), 0, 1 << 60, 2000)
    assert hit is not None
    cache.truncate(cache.open(TOPIC, 10), 0)
    insert(cache, cache.open(TOPIC, 11), build_run(0, 100, size=1000))
    picture = inspect(cache._arena.view)
    assert picture.statistics == cache.statistics() and not picture.torn and not picture.observe
    kinds = {total.kind: total for total in picture.blocks}
    assert [kinds[kind].blocks > 0 for kind in ("own", "shared", "limbo")] == [True] * 3
    assert sum(total.blocks for total in picture.blocks[:2]) == cache.statistics().blocks
    assert sum(total.size_bytes for total in picture.blocks) == cache.used_bytes
    assert (
        kinds["limbo"].size_bytes == cache.statistics().limbo_bytes
        and kinds["limbo"].live_bytes == 0
    )
    assert (
        kinds["own"].live_bytes + kinds["shared"].live_bytes == cache.statistics().live_record_bytes
    )
    assert 0 < picture.free_largest_bytes <= cache.statistics().block_bytes_free
    assert picture.free_extents >= 1
    hit.release()


def test_an_empty_and_an_observing_arena() -> None:
    assert inspect(BlockCache(MIB)._arena.view).partitions == ()
    cache = BlockCache(MIB, observe=True)
    insert(cache, cache.open(TOPIC, 0), build_run(5, 5))
    picture = inspect(cache._arena.view)
    assert picture.observe and picture.partitions[0].runs == (StoredSpan(5, 10),)
    cache.drop(cache.open(TOPIC, 0))
    assert inspect(cache._arena.view).partitions == ()


def test_what_changes_at_every_look_is_reported_as_torn() -> None:
    cache = BlockCache(MIB)
    slots = [cache.open(TOPIC, i) for i in range(2)]
    for slot in slots:
        insert(cache, slot, build_run(0, 50))
    table = ffi.cast("fc_partition *", ffi.cast("char *", cache._a) + cache._a.partitions_at)
    table[0].changes += 1
    cache._a.changes += 1
    picture = inspect(cache._arena.view)
    assert [one.torn for one in picture.partitions] == [True, False] and picture.torn
    assert picture.partitions[0].runs == () and picture.partitions[0].batches == 50


@pytest.mark.parametrize("seed", range(30))
def test_garbled_memory_is_torn_or_refused_and_never_an_error(seed: int) -> None:
    cache = BlockCache(256 * KIB)
    for i in range(15):
        insert(cache, cache.open(TOPIC, i), build_run(0, 30, size=100))
    copy, source = bytearray(cache._arena.view), random.Random(seed)
    for _ in range(200):
        copy[source.randrange(512, cache._a.data_at + 64 * KIB)] = source.randrange(256)
    for _ in range(seed % 3):
        copy[source.randrange(16, 480)] = source.randrange(256)
    try:
        picture = inspect(memoryview(copy).toreadonly())
    except NoArena:
        return
    assert all(run.start < run.end for one in picture.partitions for run in one.runs)


def test_another_layout_is_refused() -> None:
    cache = BlockCache(MIB)
    cache._a.layout += 1
    with pytest.raises(
        NoArena, match=f"layout {lib.FC_LAYOUT + 1}; this Forebay reads {lib.FC_LAYOUT}"
    ):
        inspect(cache._arena.view)
    with pytest.raises(NoArena, match="not an arena"):
        inspect(memoryview(b"x" * 4096))


def test_looking_takes_no_lock_and_says_who_holds_the_file(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    cache = BlockCache(MIB, open_file(path))
    mapping, held = map_read_only(path)
    assert held
    with pytest.raises(ArenaInUse):
        open_file(path)
    shutil.copy(path, tmp_path / "left")
    cache.close()
    mapping.close()
    mapping, held = map_read_only(tmp_path / "left")
    assert not held
    open_file(tmp_path / "left").close()
    mapping.close()


def test_a_busy_process_is_not_disturbed_and_reads_hang_together(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    busy = subprocess.Popen(
        [sys.executable, "-c", BUSY, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert busy.stdout is not None and busy.stdout.readline() == "ready\n"
    try:
        mapping, held = map_read_only(path)
        assert held
        looks = whole = 0
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            for one in inspect(memoryview(mapping)).partitions:
                looks += 1
                whole += not one.torn
                stored = sum(run.end - run.start for run in one.runs)
                assert len(one.runs) <= 1 and (one.torn or abs(stored - one.batches) <= 1)
        assert busy.poll() is None
        assert looks > 50 and whole > looks / 2, (looks, whole, ATTEMPTS)
    finally:
        busy.kill()
        busy.wait()
    inspect(memoryview(mapping))
