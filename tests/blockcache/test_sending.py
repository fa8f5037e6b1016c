"""What was found and given to a socket: every byte once, and the pins held for as long as the kernel lacks some."""

import fcntl
import os
import socket
from itertools import chain

import pytest
from blockcache._pyfastcache import ffi
from hypothesis import given, settings
from hypothesis import strategies as st

from blockcache import sending
from blockcache.cache import NOT_STORED, BlockCache
from tests.kit.cache_batches import FOREVER, STAMP_MS, TOPIC, build_batch, build_run, insert
from tests.kit.examples import examples

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


def find(cache, offset=0, max_bytes=100_000, index=0, has_records=False):
    """Next offset, size in bytes, and age, of a lookup in one partition."""
    wanted = cache.open(TOPIC, index), offset, FOREVER, max_bytes
    _, *found = cache.sender.find_all(wanted, FOREVER, has_records)
    (size_bytes,), (next_offset,), (admitted_at,), (timestamp_ms,) = found
    assert timestamp_ms == (STAMP_MS + offset if size_bytes > 0 else -1)
    return next_offset, size_bytes, admitted_at


@pytest.mark.parametrize("end", [END, b""])
def test_what_the_kernel_takes_whole_is_let_go(cache, pair, end):
    next_offset, size_bytes, admitted_at = find(cache, 2)
    assert (next_offset, size_bytes, admitted_at) == (22, 100_000, 2 * 5_000)
    assert cache.statistics().pins >= 1
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
    _, size_bytes, _ = find(cache)
    segments = cache.statistics().pins
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
    _, size_bytes, _ = find(cache)
    segments = cache.statistics().pins
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
    next_offset, size_bytes, _ = find(cache, offset, max_bytes)
    assert (next_offset, size_bytes) == (offset, 0 if offset == 40 else NOT_STORED)
    assert cache.sender.hold() == []
    assert cache.statistics().pins == 0


def test_of_a_partition_that_was_dropped_there_is_nothing(cache):
    slot = cache.open(TOPIC, 0)
    cache.drop(slot)
    found = cache.sender.find_all((slot, 0, FOREVER, FOREVER), FOREVER, False)
    assert found.sizes[0] < 0 == cache.sender.hits


def test_what_may_not_be_pinned_is_held_as_a_copy(cache):
    cache._a.pin_limit_bytes = 0
    _, size_bytes, _ = find(cache)
    assert cache.statistics().pins == 0
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
    wanted: list[int] = []
    for number, slot in enumerate(store_many(cache, partitions)):
        wanted += slot, number % 3, FOREVER, 5_000 + number * 100
    found = cache.sender.find_all(wanted, FOREVER, False)
    assert (cache.sender.size_bytes, cache.sender.hits) == (sum(found.sizes), partitions)
    assert cache.statistics().pins > 0, "some may be over the pin limit"
    heads = [b"%d:" % number for number in range(partitions)] + [END]
    whole = b""
    for number, head in enumerate(heads[:-1]):
        start = number % 3 * 5_000
        whole += head + RUN[start : start + found.sizes[number]]
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    assert cache.sender.send(pair[0].fileno(), *cut_into(heads)) == len(whole + END)
    assert receive(pair[1]) == whole + END
    assert (cache.statistics().pins, cache.sender.size_bytes) == (0, 0)
    cache.check()


@pytest.mark.parametrize("room_bytes", [0, 70_000, 150_000])
def test_of_many_partitions_the_rest_is_held(large, pair, room_bytes):
    cache = large
    slots = store_many(cache, 4)
    wanted = [word for slot in slots for word in (slot, 0, FOREVER, 100_000)]
    cache.sender.find_all(wanted, FOREVER, False)
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
    cache = large
    store_many(cache, 2)
    assert find(cache, max_bytes=10)[1] == 5_000
    assert find(cache, max_bytes=10, index=1, has_records=True)[:2] == (0, 0)
    assert find(cache, max_bytes=10_000, index=1)[1] == 10_000
    assert len(cache.sender.hold()) == 2


def test_where_there_is_no_memory_for_another_lookup_nothing_is_found(cache, monkeypatch):
    monkeypatch.setattr(sending, "ROOM_BYTES", ffi.sizeof("fc_hit"))
    assert find(cache, max_bytes=5_000)[1] == 5_000
    assert find(cache, max_bytes=5_000)[1] < 0
    cache.sender.drop()
    assert find(cache, max_bytes=5_000)[1] == 5_000
    cache.sender.drop()
    assert cache.statistics().pins == 0


def read_as_a_broker(runs, wanted, room_bytes, has_records):
    """What ReplicaManager.readFromLog gives of each partition: it takes `most` bytes of the log below the limit, the
    last batch in part, and counts all of them; whole batches are kept (KIP-74, firstEntryIncomplete).
    """
    sizes = []
    for run, (_, offset, limit, max_bytes) in zip(runs, wanted, strict=True):
        most = min(max(max_bytes, 0), room_bytes)
        if has_records and not most:
            sizes.append(sending.NO_ROOM)
            continue
        size_bytes, readable = 0, run[offset : max(limit, 0)]
        for one in readable:
            if size_bytes + one > most and (size_bytes or has_records):
                break
            size_bytes += one
        is_cut = size_bytes < sum(run[offset:]) and offset + count(readable, size_bytes) < limit
        has_records = has_records or size_bytes > 0
        used = max(size_bytes, most) if is_cut and size_bytes else size_bytes
        room_bytes = max(room_bytes - used, 0)
        sizes.append(size_bytes)
    return sizes, room_bytes


def count(batches, size_bytes):
    """How many of them have that size."""
    number = 0
    while size_bytes > 0:
        size_bytes -= batches[number]
        number += 1
    return number


NUMBERS = st.sampled_from((0, 1, 199, 200, 201, 400, 650, 1 << 31, FOREVER))


@given(st.data())
@settings(max_examples=examples(100), deadline=None)
def test_a_response_has_what_a_broker_gives(data):
    cache = BlockCache(1 << 20)
    runs, wanted = [], []
    for index in range(data.draw(st.integers(0, 5))):
        sizes = data.draw(st.lists(st.sampled_from((100, 200, 450)), min_size=1, max_size=4))
        slot = cache.open(TOPIC, index)
        insert(cache, slot, b"".join(build_batch(at, size=size) for at, size in enumerate(sizes)))
        runs.append(sizes)
        offset, limit = data.draw(st.integers(0, len(sizes) - 1)), data.draw(st.integers(0, 5))
        most = data.draw(st.one_of(NUMBERS, st.integers(-(1 << 63), 1000)))
        wanted.append((slot, offset, limit, most))
    room_bytes, has_records = data.draw(NUMBERS), data.draw(st.booleans())
    expected = read_as_a_broker(runs, wanted, room_bytes, has_records)
    found = cache.sender.find_all([*chain(*wanted)], room_bytes, has_records)
    assert (found.sizes, found.room_bytes) == expected
    given_bytes = [size for size in found.sizes if size > 0]
    hits = cache.sender.hold()
    assert [hit.size_bytes for hit in hits] == given_bytes
    for hit in hits:
        hit.release()
    assert cache.statistics().pins == 0


def test_a_response_of_ten_thousand_partitions(large):
    slots = store_many(large, 4)
    wanted: list[int] = []
    for number in range(10_000):
        wanted += slots[number % 4], number % 3, FOREVER, 5_000
    found = large.sender.find_all(wanted, FOREVER, False)
    assert found.sizes == [5_000] * 10_000 and large.sender.hits == 10_000
    assert found.next_offsets == [number % 3 + 1 for number in range(10_000)]
    large.sender.drop()
    assert large.statistics().pins == 0
