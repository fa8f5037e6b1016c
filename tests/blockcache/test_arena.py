"""The arena's memory and file, and the life of a hit."""

import errno
import os
from pathlib import Path

import pytest

from blockcache.arena import ArenaError, ArenaInUse, open_file
from blockcache.cache import BlockCache, StaleSlot
from blockcache.layout import MAGIC
from tests.kit.cache_batches import TOPIC, build_run, insert, read

SIZE = 64 * 1024


def test_a_file_is_used_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    cache = BlockCache(SIZE, path)
    slot = cache.open(TOPIC, 0)
    run = build_run(0, 4)
    insert(cache, slot, run)
    assert read(cache, slot, 0) == run
    assert path.stat().st_size == SIZE
    assert path.stat().st_blocks * 512 >= SIZE
    assert path.stat().st_mode & 0o777 == 0o600
    assert run in path.read_bytes()
    cache.close()
    assert not path.exists()


def test_two_caches_never_share_a_file(tmp_path: Path) -> None:
    first = BlockCache(SIZE, tmp_path / "arena")
    with pytest.raises(ArenaInUse, match="in use by another process; give each its own path"):
        BlockCache(SIZE, tmp_path / "arena")
    slot = first.open(TOPIC, 0)
    insert(first, slot, build_run(0, 2))
    first.check()
    first.close()
    BlockCache(SIZE, tmp_path / "arena").close()


def test_a_dead_process_s_file_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    path.write_bytes(MAGIC + bytes(100))
    path.chmod(0o600)
    cache = BlockCache(SIZE, path)
    cache.check()
    assert cache.statistics().entries == 0
    cache.close()


@pytest.mark.parametrize("content", [b"", MAGIC + bytes(100)], ids=["empty", "an arena"])
def test_another_user_s_file_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    """Who owns it could read what is cached, and change what is served."""
    path = tmp_path / "arena"
    path.write_bytes(content)
    path.chmod(0o666)
    owner = path.stat().st_uid
    monkeypatch.setattr("blockcache.arena.os.geteuid", lambda: owner + 1)
    with pytest.raises(
        ArenaError, match=rf"belongs to another user \(uid {owner}\).* cache\.directory"
    ):
        BlockCache(SIZE, path)
    assert path.read_bytes() == content


def test_another_user_s_file_that_may_not_be_opened_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a directory as /dev/shm the kernel lets not even root open it to be created (fs.protected_regular)."""
    path = tmp_path / "arena"
    path.touch(0o600)
    owner = path.stat().st_uid

    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("blockcache.arena.os.open", refuse)
    monkeypatch.setattr("blockcache.arena.os.geteuid", lambda: owner + 1)
    with pytest.raises(
        ArenaError, match=r"Permission denied.*belongs to another user .* cache\.directory"
    ):
        BlockCache(SIZE, path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602])
def test_a_file_that_others_may_read_or_write_is_refused_with_the_remedy(
    tmp_path: Path, mode: int
) -> None:
    path = tmp_path / "arena"
    path.write_bytes(MAGIC + bytes(100))
    path.chmod(mode)
    with pytest.raises(ArenaError, match=rf"mode {mode:o}.* remove it"):
        BlockCache(SIZE, path)
    assert path.read_bytes() == MAGIC + bytes(100)


@pytest.mark.parametrize("content", [b"precious", bytes(8), MAGIC[:7]])
def test_a_file_that_is_no_arena_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ArenaError, match="something else than an arena"):
        BlockCache(SIZE, path)
    assert path.read_bytes() == content


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(ArenaError, match="link"):
        BlockCache(SIZE, tmp_path / "link")
    assert not (tmp_path / "target").exists()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ArenaError, match="No such file"):
        BlockCache(SIZE, tmp_path / "none" / "arena")


def test_too_little_room_says_what_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ArenaError, match=r"no room for an arena of 65536 bytes .* sizeLimit"):
        open_file(tmp_path / "arena", SIZE, keeps_file=False)
    assert not (tmp_path / "arena").exists()
    monkeypatch.undo()
    BlockCache(SIZE, tmp_path / "arena").close()


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
    cache = BlockCache(SIZE, path)
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
    BlockCache(SIZE, path).close()


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
