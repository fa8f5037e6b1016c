"""What was found and given to a socket: every byte once, and the pins held for as long as the kernel lacks some."""

import fcntl
import os
import socket

import pytest

from blockcache.cache import BlockCache
from tests.kit.cache_batches import FOREVER, TOPIC, build_run, insert

HEAD, END = b"head" * 20, b"end"
PAGE_BYTES = 4096
RUN = build_run(0, 40, size=5_000)


@pytest.fixture
def cache():
    cache = BlockCache(1 << 20, shared_block_bytes=0)
    insert(cache, cache.open(TOPIC, 0), RUN)
    return cache


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    for one in (ours, theirs):
        one.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


def receive(theirs):
    got = bytearray()
    while True:
        try:
            chunk = theirs.recv(1 << 20)
        except BlockingIOError:
            return bytes(got)
        if not chunk:
            return bytes(got)
        got += chunk


def find(cache, offset=0, max_bytes=100_000):
    return cache.sender.find(cache.open(TOPIC, 0), offset, FOREVER, max_bytes)


@pytest.mark.parametrize("end", [END, b""])
def test_what_the_kernel_takes_whole_is_let_go(cache, pair, end):
    next_offset, size_bytes, segments, pinned, admitted_at = find(cache, 2)
    assert (next_offset, size_bytes, pinned) == (22, 100_000, 1) and segments >= 1
    assert admitted_at == 3 * 5_000
    assert cache.statistics().pins == segments
    assert cache.sender.send(pair[0].fileno(), HEAD, end) == len(HEAD) + size_bytes + len(end)
    assert receive(pair[1]) == HEAD + RUN[10_000:110_000] + end
    assert cache.statistics().pins == 0
    cache.check()


@pytest.mark.parametrize(
    "left", [1, len(END), len(END) + 1, 50_000, 100_000, 100_000 + len(END) + 7]
)
def test_what_the_kernel_leaves_stays_pinned_and_is_the_rest(cache, left):
    """A pipe takes as many pages as it has room for: the head is as long as makes the cut fall there."""
    _, size_bytes, segments, _, _ = find(cache)
    head = bytes(range(256)) * 32
    head = head[: PAGE_BYTES + (left - size_bytes - len(END)) % PAGE_BYTES]
    whole = head + RUN[:size_bytes] + END
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        capacity, room = 1 << 17, len(whole) - left
        assert (
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, capacity) == capacity
            and room % PAGE_BYTES == 0
        )
        os.write(writing, bytes(capacity - room))
        sent = cache.sender.send(writing, head, END)
        assert len(whole) - sent == left
        assert cache.statistics().pins == segments
        hit = cache.sender.hold()
        rest = (head + b"".join(hit.views) + END)[sent:]
        got = os.read(reading, 1 << 20)[capacity - room :]
        assert got + rest == whole
        hit.release()
        assert cache.statistics().pins == 0
    finally:
        os.close(reading)
        os.close(writing)


def test_what_the_kernel_refuses_is_for_who_sends_the_rest(cache, pair):
    ours, theirs = pair
    theirs.close()
    _, size_bytes, segments, _, _ = find(cache)
    assert cache.sender.send(ours.fileno(), HEAD, END) == 0
    assert cache.statistics().pins == segments
    hit = cache.sender.hold()
    assert b"".join(hit.views) == RUN[:size_bytes]
    hit.release()


def test_a_full_socket_takes_nothing(cache, pair):
    ours, _ = pair
    with pytest.raises(BlockingIOError):
        while True:
            ours.send(bytes(4096))
    find(cache)
    assert cache.sender.send(ours.fileno(), HEAD, END) == 0
    cache.sender.drop()
    assert cache.statistics().pins == 0


@pytest.mark.parametrize(("offset", "max_bytes"), [(40, FOREVER), (99, FOREVER)])
def test_where_there_is_nothing_nothing_is_held(cache, offset, max_bytes):
    assert find(cache, offset, max_bytes) is None
    assert cache.statistics().pins == 0


def test_of_a_partition_that_was_dropped_there_is_nothing(cache):
    slot = cache.open(TOPIC, 0)
    cache.drop(slot)
    assert cache.sender.find(slot, 0, FOREVER, FOREVER) is None


def test_what_may_not_be_pinned_is_held_as_a_copy(cache):
    cache._a.pin_limit_bytes = 0
    _, size_bytes, _, pinned, _ = find(cache)
    assert not pinned
    hit = cache.sender.hold()
    assert b"".join(hit.views) == RUN[:size_bytes] and hit.pins == 0
    find(cache)
    cache.sender.drop()
    cache.check()
