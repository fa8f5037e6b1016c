"""The arena's file: whose it is, who may write to it, and when it goes."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from blockcache.arena_file import (
    MAGIC,
    ArenaError,
    ArenaInUse,
    ArenaMemory,
    open_file,
    open_memory,
)
from blockcache.cache import BlockCache
from blockcache.errors import ArenaTorn
from tests.kit.cache_batches import TOPIC, build_run, insert, read

SIZE = 64 * 1024


def test_a_file_is_used_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    memory = open_file(path)
    cache = BlockCache(SIZE, ArenaMemory(os.dup(memory.fd), path))
    slot = cache.open(TOPIC, 0)
    run = build_run(0, 4)
    insert(cache, slot, run)
    assert read(cache, slot, 0) == run
    assert memory.size_bytes == path.stat().st_size == SIZE
    assert memory.resident_bytes == cache.resident_bytes >= SIZE
    assert path.stat().st_mode & 0o777 == 0o600
    assert run in path.read_bytes()
    cache.close()
    assert path.exists() and not memory.is_identified
    memory.remove()
    assert not path.exists()
    memory.remove()
    path.write_bytes(b"another's")
    memory.remove()
    assert path.read_bytes() == b"another's"
    memory.close()


def test_two_forebays_never_share_a_file(tmp_path: Path) -> None:
    first = BlockCache(SIZE, open_file(tmp_path / "arena"))
    with pytest.raises(
        ArenaInUse, match=r"whose first listener has the same port .* cache.directory"
    ):
        open_file(tmp_path / "arena")
    insert(first, first.open(TOPIC, 0), build_run(0, 2))
    first.check()
    first.close()
    open_file(tmp_path / "arena").close()


def test_a_dead_process_s_file_of_another_size_is_emptied(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    path.write_bytes(MAGIC + bytes(100))
    path.chmod(0o600)
    cache = BlockCache(SIZE, open_file(path))
    cache.check()
    assert cache.statistics().entries == 0 and cache.other_bytes == 108
    cache.close()


WRITER = """
import sys
from blockcache.arena_file import ArenaMemory
memory = ArenaMemory(int(sys.argv[1]))
print(memory.try_lock(), memory.try_lock(), flush=True)
sys.stdin.read()
"""
"""A process that writes to inherited memory until its input ends."""


@pytest.mark.parametrize("ends", ["kill", "close"])
def test_one_process_at_a_time_writes(tmp_path: Path, ends: str) -> None:
    memory = open_file(tmp_path / "arena") if ends == "kill" else open_memory()
    command = [sys.executable, "-c", WRITER, str(memory.fd)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(memory.fd,)
    ) as writer:
        assert writer.stdout is not None and writer.stdin is not None
        assert writer.stdout.readline() == b"True True\n"
        assert not memory.try_lock()
        memory.allocate(SIZE)
        cache = BlockCache(SIZE, ArenaMemory(os.dup(memory.fd)))
        assert cache.is_pending and not cache.try_lock()
        with pytest.raises(ArenaInUse, match="another size"):
            BlockCache(2 * SIZE, ArenaMemory(os.dup(memory.fd)))
        if ends == "kill":
            writer.kill()
        else:
            writer.stdin.close()
        writer.wait()
    assert cache.try_lock()
    assert cache.inspect_left().refusal == "unfinished"
    cache.close()
    memory.close()


READER = """
import sys
from blockcache.arena_file import ArenaMemory
from blockcache.cache import BlockCache
cache = BlockCache.attach(ArenaMemory(int(sys.argv[1])), int(sys.argv[2]))
print(cache.tail(int(sys.argv[3]))[1], flush=True)
sys.stdin.read()
"""
"""A process that reads from inherited memory under a number, until its input ends."""


def start_reader(fd: int, holder: int, slot: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", READER, *map(str, (fd, holder, slot))]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, pass_fds=(fd,))


def test_numbers_of_living_readers_are_known_and_taken_once(tmp_path: Path) -> None:
    memory = open_file(tmp_path / "arena")
    keeper = BlockCache(SIZE, ArenaMemory(os.dup(memory.fd)))
    keeper.share()
    slot = keeper.open(TOPIC, 0)
    insert(keeper, slot, build_run(0, 3))
    with start_reader(memory.fd, 3, slot) as first, start_reader(memory.fd, 31, slot) as last:
        for reader in (first, last):
            assert reader.stdout is not None and reader.stdout.readline() == b"3\n"
        assert memory.find_living() == 1 << 3 | 1 << 31
        assert not keeper.release_holder(3)
        with start_reader(memory.fd, 3, slot) as second:
            assert b"another process is the arena's holder 3" in second.communicate()[1]
        with pytest.raises(ArenaInUse, match="another size"):
            BlockCache(2 * SIZE, ArenaMemory(os.dup(memory.fd)))
        for reader in (first, last):
            reader.kill()
            reader.wait()
    assert memory.find_living() == 0 and keeper.release_holder(3)
    keeper.close()
    memory.close()


def test_an_arena_is_not_cleared_below_its_readers(tmp_path: Path) -> None:
    memory = open_file(tmp_path / "arena")
    keeper = BlockCache(SIZE, ArenaMemory(os.dup(memory.fd)))
    keeper.share()
    slot = keeper.open(TOPIC, 0)
    with start_reader(memory.fd, 1, slot) as reader:
        assert reader.stdout is not None and reader.stdout.readline()
        keeper.close()
        other = BlockCache(SIZE, ArenaMemory(os.dup(memory.fd)), max_partitions=7)
        assert other.try_lock() and other.inspect_left().refusal == "layout"
        with pytest.raises(ArenaTorn):
            other.clear_left()
        reader.kill()
    other.clear_left()
    other.begin_anew()
    other.check()
    other.close()
    memory.close()


def test_a_file_is_renewed_under_its_name(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    memory = open_file(path)
    cache = BlockCache(SIZE, ArenaMemory(os.dup(memory.fd), path))
    run = build_run(0, 2)
    slot = cache.open(TOPIC, 0)
    insert(cache, slot, run)
    (tmp_path / "arena.new").write_bytes(b"left by a process that died")
    memory.renew()
    assert (memory.size_bytes, path.stat().st_size, len(list(tmp_path.iterdir()))) == (0, 0, 1)
    assert os.path.samestat(os.fstat(memory.fd), path.stat())
    with pytest.raises(ArenaInUse):
        open_file(path)
    assert read(cache, slot, 0) == run
    again = BlockCache(SIZE, ArenaMemory(os.dup(memory.fd), path))
    assert not again.is_pending
    for one in (cache, again):
        one.close()
    path.unlink()
    memory.renew()
    assert path.exists()
    path.unlink()
    path.write_bytes(b"another's")
    with pytest.raises(ArenaInUse, match="replaced"):
        memory.renew()
    memory.close()


def test_a_descriptor_that_cannot_be_locked_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "arena").touch()
    fd = os.open(tmp_path / "arena", os.O_RDONLY)
    with pytest.raises(OSError, match="Bad file descriptor"):
        ArenaMemory(fd).try_lock()
    os.close(fd)


@pytest.mark.parametrize("content", [b"", MAGIC + bytes(100)], ids=["empty", "an arena"])
def test_another_user_s_file_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    """Who owns it could read what is cached, and change what is served."""
    path = tmp_path / "arena"
    path.write_bytes(content)
    path.chmod(0o666)
    owner = path.stat().st_uid
    monkeypatch.setattr("blockcache.arena_file.os.geteuid", lambda: owner + 1)
    with pytest.raises(
        ArenaError, match=rf"belongs to another user \(uid {owner}\).* cache\.directory"
    ):
        open_file(path)
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

    monkeypatch.setattr("blockcache.arena_file.os.open", refuse)
    monkeypatch.setattr("blockcache.arena_file.os.geteuid", lambda: owner + 1)
    with pytest.raises(
        ArenaError, match=r"Permission denied.*belongs to another user .* cache\.directory"
    ):
        open_file(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602])
def test_a_file_that_others_may_read_or_write_is_refused_with_the_remedy(
    tmp_path: Path, mode: int
) -> None:
    path = tmp_path / "arena"
    path.write_bytes(MAGIC + bytes(100))
    path.chmod(mode)
    with pytest.raises(ArenaError, match=rf"mode {mode:o}.* remove it"):
        open_file(path)
    assert path.read_bytes() == MAGIC + bytes(100)


@pytest.mark.parametrize("content", [b"precious", bytes(8), MAGIC[:7]])
def test_a_file_that_is_no_arena_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ArenaError, match="something else than an arena"):
        open_file(path)
    assert path.read_bytes() == content


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(ArenaError, match="link"):
        open_file(tmp_path / "link")
    assert not (tmp_path / "target").exists()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ArenaError, match="No such file"):
        open_file(tmp_path / "none" / "arena")
