"""A process that is stopped within a call keeps the lock: others wait for a bounded time, then find nothing."""

import ctypes
import mmap
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from blockcache._pyfastcache import ffi

from blockcache.arena_file import ArenaError
from blockcache.cache import BlockCache
from tests.blockcache.test_cache_attach import (
    Group,
    check_nothing_is_found,
    count_pins,
    look_up,
    read,
)
from tests.kit.cache_batches import build_batch, build_run, insert

LOCK_AT = ffi.offsetof("fc_arena", "lock")
libc = ctypes.CDLL(None)


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group()
    made.keeper._a.keeper_pid = os.getppid()  # this process is a reader's
    insert(made.keeper, made.slot, build_run(0, 20))
    yield made
    made.keeper.close()
    made.memory.close()


@contextmanager
def stopped_within(group: Group) -> Iterator[int]:
    """A process that has the lock, stopped by SIGSTOP; its id. It lets go once it goes on."""
    pid = os.fork()
    if pid == 0:
        try:
            mapping = mmap.mmap(group.memory.fd, 4096)
            mutex = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(mapping)) + LOCK_AT)
            assert libc.pthread_mutex_lock(mutex) == 0
            os.kill(os.getpid(), signal.SIGSTOP)
            assert libc.pthread_mutex_unlock(mutex) == 0
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def go_on(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)
    os.waitpid(pid, 0)


def check_served(group: Group, reader: BlockCache) -> None:
    assert read(reader, group.slot, 3) == build_run(3, 17)
    assert not reader.is_withheld
    reader.check()


def test_a_reader_finds_nothing_while_another_process_has_the_lock(group: Group) -> None:
    reader = group.attach(1)
    with stopped_within(group) as stopped:
        begun = time.monotonic()
        check_nothing_is_found(reader, group.slot)
        assert time.monotonic() - begun >= 0.1, "it waits first"
        assert reader.is_withheld
        assert reader.statistics().lock_refusals > 5
        go_on(stopped)
        check_served(group, reader)
    group.keeper.check()


def test_only_the_first_of_many_questions_waits(group: Group) -> None:
    """Clients of one event loop must not wait one after another."""
    reader, other = group.attach(1), group.attach(2)
    with stopped_within(group):
        assert read(reader, group.slot, 0) is None
        begun = time.monotonic()
        for _ in range(500):
            assert read(reader, group.slot, 0) is None
            assert read(other, group.slot, 0) is None
        assert time.monotonic() - begun < 1000 * 0.1 / 5, "a wait of each would take longer"
        assert reader.statistics().lock_refusals > 1000


def test_a_killed_process_lets_others_go_on(group: Group) -> None:
    reader = group.attach(1)
    with stopped_within(group) as stopped:
        assert read(reader, group.slot, 0) is None
        os.kill(stopped, signal.SIGKILL)
        os.waitpid(stopped, 0)
        check_served(group, reader)
    insert(group.keeper, group.slot, build_batch(20))
    group.keeper.check()


def test_pins_are_given_back_once_the_lock_is_free(group: Group) -> None:
    reader = group.attach(1)
    held = [look_up(reader, group.slot, at) for at in range(5)]
    words = [word for at in range(20) for word in (group.slot, at, 1 << 40, 1)]
    with stopped_within(group) as stopped:
        for hit in held:
            hit.release()
        go_on(stopped)
    assert count_pins(group.keeper)[0] == len(held)
    assert len(reader.sender.find_all(words, 1 << 20, False).sizes) == 20
    reader.sender.drop()
    assert count_pins(group.keeper) == [0]

    reader.sender.find_all(words, 1 << 20, False)
    assert count_pins(group.keeper)[0] > 0
    with stopped_within(group) as stopped:
        reader.sender.drop()
        assert reader.sender.hold() == []
        go_on(stopped)
    reader.statistics()
    assert count_pins(group.keeper) == [0]
    group.keeper.check()


def test_nobody_attaches_while_the_lock_is_kept_and_pins_are_left(group: Group) -> None:
    former = group.attach(1)
    look_up(former, group.slot, 0)
    former._arena.memory.close()
    with stopped_within(group) as stopped:
        with pytest.raises(ArenaError):
            group.attach(1)
        go_on(stopped)
    assert count_pins(group.attach(1)) == [0]
