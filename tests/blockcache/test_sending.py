"""What was found and given to a socket: every byte once, and the pins held for as long as the kernel lacks some."""

import fcntl
import os
import socket

import pytest

from blockcache import sending
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
    assert cache.sender.send(pair[0].fileno(), HEAD + end, [len(HEAD)]) == len(
        HEAD
    ) + size_bytes + len(end)
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
        sent = cache.sender.send(writing, head + END, [len(head)])
        assert len(whole) - sent == left
        assert cache.statistics().pins == segments
        (hit,) = cache.sender.hold()
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
    assert cache.sender.send(ours.fileno(), HEAD + END, [len(HEAD)]) == 0
    assert cache.statistics().pins == segments
    (hit,) = cache.sender.hold()
    assert b"".join(hit.views) == RUN[:size_bytes]
    hit.release()


def test_a_full_socket_takes_nothing(cache, pair):
    ours, _ = pair
    with pytest.raises(BlockingIOError):
        while True:
            ours.send(bytes(4096))
    find(cache)
    assert cache.sender.send(ours.fileno(), HEAD + END, [len(HEAD)]) == 0
    cache.sender.drop()
    assert cache.statistics().pins == 0


@pytest.mark.parametrize(("offset", "max_bytes"), [(40, FOREVER), (99, FOREVER)])
def test_where_there_is_nothing_nothing_is_held(cache, offset, max_bytes):
    found = find(cache, offset, max_bytes)
    assert found is None if offset > 40 else found[:3] == [40, 0, 0]
    assert cache.sender.hold() == []
    assert cache.statistics().pins == 0


def test_of_a_partition_that_was_dropped_there_is_nothing(cache):
    slot = cache.open(TOPIC, 0)
    cache.drop(slot)
    assert cache.sender.find(slot, 0, FOREVER, FOREVER) is None


def test_what_may_not_be_pinned_is_held_as_a_copy(cache):
    cache._a.pin_limit_bytes = 0
    _, size_bytes, _, pinned, _ = find(cache)
    assert not pinned
    (hit,) = cache.sender.hold()
    assert b"".join(hit.views) == RUN[:size_bytes] and hit.pins == 0
    find(cache)
    cache.sender.drop()
    cache.check()


@pytest.fixture
def large():
    return BlockCache(64 << 20, shared_block_bytes=0)


def store_many(cache, partitions):
    slots = [cache.open(TOPIC, index) for index in range(partitions)]
    for slot in slots:
        insert(cache, slot, RUN)
    return slots


def cut_into(heads):
    """Heads one behind another, and where each but the last ends."""
    ends = [sum(map(len, heads[: number + 1])) for number in range(len(heads))]
    return b"".join(heads), ends[:-1]


@pytest.mark.parametrize("partitions", [2, 3, 100])
def test_records_of_many_partitions_leave_each_behind_its_head(large, pair, partitions):
    cache = large
    found = [
        cache.sender.find(slot, number % 3, FOREVER, 1 + number * 100)
        for number, slot in enumerate(store_many(cache, partitions))
    ]
    assert cache.sender.size_bytes == sum(one[1] for one in found)
    pins = sum(one[2] for one in found if one[3])
    assert 0 < cache.statistics().pins == pins, "some may be over the pin limit"
    heads = [b"%d:" % number for number in range(partitions)] + [END]
    whole = b""
    for number, head in enumerate(heads[:-1]):
        start = number % 3 * 5_000
        whole += head + RUN[start : start + found[number][1]]
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    assert cache.sender.send(pair[0].fileno(), *cut_into(heads)) == len(whole + END)
    assert receive(pair[1]) == whole + END
    assert (cache.statistics().pins, cache.sender.size_bytes) == (0, 0)
    cache.check()


@pytest.mark.parametrize("room_bytes", [0, 70_000, 150_000])
def test_of_many_partitions_the_rest_is_held(large, pair, room_bytes):
    cache = large
    slots = store_many(cache, 4)
    for slot in slots:
        cache.sender.find(slot, 0, FOREVER, 100_000)
    pins = cache.statistics().pins
    heads, cuts = cut_into([b"%d:" % slot for slot in range(4)] + [END])
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, max(room_bytes // 2, 1))
    sent = cache.sender.send(pair[0].fileno(), heads, cuts)
    assert 0 < sent < 400_000 and cache.statistics().pins == pins
    hits = cache.sender.hold()
    assert cache.sender.size_bytes == 0
    whole, at = b"", 0
    for cut, hit in zip(cuts, hits, strict=True):
        whole += heads[at:cut] + b"".join(hit.views)
        at = cut
    assert receive(pair[1]) + (whole + heads[at:])[sent:] == whole + heads[at:]
    for hit in hits:
        hit.release()
    assert cache.statistics().pins == 0


def test_the_first_batch_is_given_whatever_its_size_only_if_it_may_be(large):
    cache, slots = large, store_many(large, 2)
    assert cache.sender.find(slots[0], 0, FOREVER, 10)[1] == 5_000
    assert cache.sender.find(slots[1], 0, FOREVER, 10, False)[:3] == [0, 0, 0]
    assert cache.sender.find(slots[1], 0, FOREVER, 10_000, False)[1] == 10_000
    assert len(cache.sender.hold()) == 2


def test_where_there_is_no_memory_for_another_lookup_nothing_is_found(cache, monkeypatch):
    slot = cache.open(TOPIC, 0)
    monkeypatch.setattr(sending, "ROOM_BYTES", sending.LARGEST_BYTES)
    assert cache.sender.find(slot, 0, FOREVER, 5_000)[1] == 5_000
    assert cache.sender.find(slot, 0, FOREVER, 5_000) is None
    cache.sender.drop()
    assert cache.sender.find(slot, 0, FOREVER, 5_000)[1] == 5_000
    cache.sender.drop()
    assert cache.statistics().pins == 0
