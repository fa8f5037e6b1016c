"""An arena that an earlier process left: taken over, or refused and begun anew."""

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from blockcache._pyfastcache import ffi, lib

from blockcache.arena_file import ArenaMemory, open_file, remove_left
from blockcache.cache import IDENTITY_BYTES, BlockCache
from blockcache.errors import CacheError
from tests.kit.cache_batches import TOPIC, build_run, insert, read

SIZE = 256 * 1024
OTHER = bytes(range(1, 17))


def open_kept(path: Path, **sections: Any) -> BlockCache:
    return BlockCache(SIZE, open_file(path), **sections)


def leave(path: Path, records: int = 4) -> bytes:
    """Leaves an arena with a run of two partitions, as a process that is killed does; returns the run."""
    cache = open_kept(path)
    decide(cache)
    run = build_run(0, records)
    for index in (0, 3):
        insert(cache, cache.open(TOPIC, index), run)
    cache.note_identity(b"broker 1")
    cache.note_alive(42)
    cache.close()
    return run


def decide(cache: BlockCache) -> None:
    if cache.is_pending:
        cache.clear_left()
        cache.begin_anew()


def test_a_left_arena_is_taken_over(tmp_path: Path) -> None:
    run = leave(tmp_path / "arena")
    cache = open_kept(tmp_path / "arena")
    assert cache.is_pending and cache.statistics().entries == 0
    assert cache.peek_admitted_bytes() == 2 * len(run)  # the clock goes on
    left = cache.inspect_left()
    assert left.refusal == ""
    assert (left.identity.rstrip(b"\0"), left.alive_at) == (b"broker 1", 42)
    assert set(left.slots) == {(TOPIC, 0), (TOPIC, 3)}
    cache.take_over(left)
    assert not cache.is_pending
    assert read(cache, cache.open(TOPIC, 3), 0) == run
    assert cache.open(TOPIC, 3) == left.slots[TOPIC, 3]
    statistics = cache.statistics()
    assert (statistics.admitted_batches, statistics.entries) == (0, 8)
    assert statistics.admitted_before_bytes == statistics.admitted_bytes == 2 * len(run)
    insert(cache, cache.open(TOPIC, 0), build_run(4, 4))
    insert(cache, cache.open(OTHER, 0), run)
    cache.drop(cache.open(TOPIC, 3))
    cache.check()
    cache.close()


def test_a_pending_cache_stores_nothing_and_changes_nothing(tmp_path: Path) -> None:
    run = leave(tmp_path / "arena")
    before = (tmp_path / "arena").read_bytes()
    cache = open_kept(tmp_path / "arena")
    cache.prefault(0, SIZE)
    cache.note_identity(b"another")
    cache.note_alive(43)
    assert (cache.eliminate(), cache.oldest_admitted) == (0, 2 * len(run))
    cache.close()
    assert (tmp_path / "arena").read_bytes() == before


def test_what_the_dead_process_held_is_let_go(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    cache = open_kept(path)
    slot = cache.open(TOPIC, 0)
    run = build_run(0, 8, size=1000)
    insert(cache, slot, run)
    hit = cache.lookup(slot, 0, 8, 1 << 20)
    lent = cache.reserve(5000)
    assert hit is not None and lent is not None
    held = cache.statistics()
    assert held.pins > 0 and held.reserved_blocks == 1
    cache.note_identity(b"broker 1")
    shutil.copy(path, tmp_path / "of the dead")
    again = open_kept(tmp_path / "of the dead")
    again.take_over(again.inspect_left())
    statistics = again.statistics()
    assert (statistics.pins, statistics.pinned_bytes, statistics.lent_bytes) == (0, 0, 0)
    assert (statistics.reserved_blocks, statistics.limbo_blocks) == (0, 0)
    assert read(again, again.open(TOPIC, 0), 0) == run
    again.check()
    again.close()
    cache.close()


@pytest.mark.parametrize(
    ("field", "value", "refusal"),
    [
        ("layout", 4, "layout"),
        ("layout", 0, "unfinished"),
        ("nodes_max", 17, "layout"),
        ("pin_limit_bytes", 1, "layout"),
        ("changes", 7, "unfinished"),
        ("entries", 1, "damaged"),
        ("fifo_oldest", (1 << 64) - 8, "damaged"),
    ],
)
def test_what_cannot_be_used_is_refused_and_begun_anew(
    tmp_path: Path, field: str, value: int, refusal: str
) -> None:
    path = tmp_path / "arena"
    leave(path)
    cache = open_kept(path)
    setattr(cache._arena.mapped, field, value)
    left = cache.inspect_left()
    assert left.refusal == refusal and left.detail and not left.slots
    clock = cache.peek_admitted_bytes()
    cache.clear_left()
    cache.begin_anew()
    assert cache.statistics().entries == 0
    assert cache.peek_admitted_bytes() == clock
    assert not any(bytes(ffi.buffer(cache._a.identity)))
    slot = cache.open(TOPIC, 3)
    assert read(cache, slot, 0) is None
    insert(cache, slot, build_run(0, 9))
    cache.check()
    cache.close()


def test_another_configuration_is_refused(tmp_path: Path) -> None:
    leave(tmp_path / "arena")
    cache = open_kept(tmp_path / "arena", max_partitions=5)
    assert cache.inspect_left().refusal == "layout"
    cache.close()


def test_another_size_is_emptied(tmp_path: Path) -> None:
    leave(tmp_path / "arena")
    cache = BlockCache(2 * SIZE, open_file(tmp_path / "arena"))
    assert not cache.is_pending and cache.other_bytes == SIZE
    cache.close()


def test_memory_says_whether_its_process_knew_whose_bytes_it_holds(tmp_path: Path) -> None:
    memory = open_file(tmp_path / "arena")
    cache = BlockCache(SIZE, ArenaMemory(os.dup(memory.fd), memory.path))
    assert not memory.is_identified
    cache.note_identity(b"x" * IDENTITY_BYTES)
    assert memory.is_identified
    cache.close()
    assert memory.size_bytes == SIZE
    memory.close()


def test_the_clock_follows_the_process_that_still_writes(tmp_path: Path) -> None:
    run = leave(tmp_path / "arena")
    cache = open_kept(tmp_path / "arena")
    cache._arena.mapped.admitted_bytes += 100
    assert cache.try_lock()
    assert cache.peek_admitted_bytes() == 2 * len(run) + 100
    cache._arena.mapped.admitted_bytes = 1 << 63
    assert cache.try_lock()
    assert cache.peek_admitted_bytes() == 2 * len(run) + 100
    cache.close()


def test_an_arena_is_decided_about_once(tmp_path: Path) -> None:
    leave(tmp_path / "arena")
    cache = open_kept(tmp_path / "arena")
    left = cache.inspect_left()
    cache.take_over(left)
    with pytest.raises(CacheError, match="decided"):
        cache.take_over(left)
    cache.close()


def test_random_damage_is_found_or_harmless(tmp_path: Path) -> None:
    """Whatever the bytes are, walking them ends."""
    path = tmp_path / "arena"
    leave(path, 40)
    whole = path.read_bytes()
    source, refused = random.Random(5), 0
    with_data = lib.FC_UNIT * 80
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(source.randrange(1, 5)):
            damaged[source.randrange(16, with_data)] = source.randrange(256)
        path.write_bytes(damaged)
        cache = open_kept(path)
        left = cache.inspect_left()
        if left.refusal:
            refused += 1
        else:
            cache.take_over(left)
            cache.check()
        cache.close()
        path.write_bytes(whole)
        path.chmod(0o600)
    assert refused > 10


def test_a_left_file_is_removed_where_nobody_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    assert not remove_left(path)
    leave(path)
    cache = open_kept(path)
    assert not remove_left(path)
    cache.close()
    leave(path)
    assert remove_left(path) and not path.exists()
    path.write_bytes(b"something else")
    path.chmod(0o600)
    assert not remove_left(path) and path.exists()
