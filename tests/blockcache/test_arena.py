"""The mapping of an arena, and the life of a hit."""

import errno
import os
from pathlib import Path

import pytest

from blockcache.arena_file import ArenaError, open_file
from blockcache.cache import BlockCache
from blockcache.errors import StaleSlot
from tests.kit.cache_batches import TOPIC, build_run, insert

SIZE = 64 * 1024


def test_an_arena_that_does_not_fit_leaves_its_memory_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ArenaError, match=r"no room for an arena of 65536 bytes .* sizeLimit"):
        BlockCache(SIZE, open_file(tmp_path / "arena"))
    assert (tmp_path / "arena").stat().st_size == 0
    monkeypatch.undo()
    BlockCache(SIZE, open_file(tmp_path / "arena")).close()


def test_the_smallest_arena() -> None:
    with pytest.raises(ArenaError, match="at least 65536"):
        BlockCache(SIZE - 1)
    cache = BlockCache(SIZE)
    cache.check()
    cache.close()


def test_sections_that_do_not_fit() -> None:
    with pytest.raises(ArenaError, match="cannot hold these sections"):
        BlockCache(SIZE, index_nodes=240)


def test_release_is_idempotent_and_empties_the_views() -> None:
    cache = BlockCache(SIZE)
    slot = cache.open(TOPIC, 0)
    insert(cache, slot, build_run(0, 4))
    first, second = cache.lookup(slot, 0, 99, 9999), cache.lookup(slot, 0, 99, 9999)
    assert first is not None and second is not None
    assert (first.pins, cache.statistics().pins) == (1, 2)
    for _ in range(3):
        first.release()
        assert (first.views, first.pins, cache.statistics().pins) == ((), 0, 1)
    second.release()
    assert cache.statistics().pins == cache.statistics().pinned_bytes == 0


def test_views_are_read_only() -> None:
    cache = BlockCache(SIZE)
    slot = cache.open(TOPIC, 0)
    insert(cache, slot, build_run(0, 4))
    hit = cache.lookup(slot, 0, 99, 9999)
    assert hit is not None
    with pytest.raises(TypeError):
        hit.views[0][0] = 1
    hit.release()


def test_views_outlive_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    cache = BlockCache(SIZE, open_file(path))
    slot = cache.open(TOPIC, 0)
    run = build_run(0, 4)
    insert(cache, slot, run)
    hit = cache.lookup(slot, 0, 99, 9999)
    assert hit is not None
    cache.close()
    cache.close()
    assert bytes(hit.views[0]) == run
    hit.release()
    with pytest.raises(TypeError):
        cache.lookup(slot, 0, 99, 9999)
    BlockCache(SIZE, open_file(path)).close()


def test_stale_slots_are_recognised() -> None:
    cache = BlockCache(SIZE)
    slot = cache.open(TOPIC, 0)
    cache.drop(slot)
    again = cache.open(TOPIC, 0)
    assert again != slot
    with pytest.raises(StaleSlot):
        insert(cache, slot, build_run(0, 1))
    for use in (cache.drop, cache.tail, cache.last_epoch):
        with pytest.raises(StaleSlot):
            use(slot)
    for more in (
        cache.truncate,
        cache.advance_start,
        cache.expect,
        cache.contiguous_end,
        cache.age_bytes,
    ):
        with pytest.raises(StaleSlot):
            more(slot, 0)
    with pytest.raises(StaleSlot):
        cache.lookup(slot, 0, 99, 9999)
    with pytest.raises(StaleSlot):
        cache.tail(-5)
    insert(cache, again, build_run(0, 1))
    cache.check()
