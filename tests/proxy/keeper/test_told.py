"""Acknowledged Produces from a worker to the keeper: all of them, in order, bounded, whatever dies."""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING

import pytest
from proxy.partitions._rows import ffi, lib

from protocol.batch import TRANSACTIONAL
from proxy.keeper.shown import find_place
from proxy.keeper.told import Ring, RingReader, RingReaders
from tests.protocol.batches import batch_v2
from tests.proxy.event_loop import until
from tests.proxy.partitions.test_store_bytes import as_stored, said_to_be
from tests.proxy.produce_link import build_many, build_many_answer
from tests.proxy.told_pair import Pair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SMALL_RING = 1 << 16


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    made = Pair()
    yield made
    made.close()


async def test_an_acknowledged_batch_is_stored_by_the_keeper_as_the_broker_has_it(
    pair: Pair,
) -> None:
    sent = batch_v2(3)
    pair.produce(sent, 100)
    await until(lambda: pair.kept().tail == 103)
    assert pair.read(100) == as_stored(sent, 100)
    assert dict(pair.keeper.counters.produce.batches) == {"store": 1}
    assert pair.ring.untaken_bytes == 0


async def test_a_batch_of_a_large_frame_is_stored_as_well(pair: Pair) -> None:
    sent = batch_v2(3, value=bytes(100_000))
    pair.produce(sent, 100, frame_type=bytearray)
    await until(lambda: pair.kept().tail == 103)
    assert pair.read(100) == as_stored(sent, 100)


async def test_what_c_leaves_is_finished_by_the_keeper(pair: Pair) -> None:
    """A batch of a transaction is told to `Transactions`; one of a codec that is not proven is kept as a sample."""
    plain, sample = batch_v2(3), said_to_be(4, batch_v2(3))
    pair.produce(said_to_be(TRANSACTIONAL, plain), 100)
    pair.produce(sample, 103)
    await until(lambda: sum(pair.keeper.counters.produce.batches.values()) == 2)
    assert dict(pair.keeper.counters.produce.batches) == {"store": 1, "sample": 1}
    assert pair.read(100) == as_stored(said_to_be(TRANSACTIONAL, plain), 100)


async def test_more_than_a_call_takes_comes_in_order(pair: Pair) -> None:
    sent = batch_v2(1)
    for number in range(5 * lib.PT_TAKE_ENTRIES):
        pair.produce(sent, 100 + number)
    last = 100 + 5 * lib.PT_TAKE_ENTRIES
    await until(lambda: pair.kept().tail == last)
    assert pair.read(last - 1) == as_stored(sent, last - 1)


async def test_a_request_of_more_partitions_than_an_entry_has_room_for() -> None:
    indexes = list(range(32))
    pair = Pair(indexes=len(indexes))
    offsets = [100 + index for index in indexes]
    for step in range(3):
        pair.link.receive(build_many(indexes))
        _, on_answer = pair.link.sent.pop(0)
        on_answer(build_many_answer(indexes, [100 + 3 * step for _ in offsets]))
    await until(lambda: all(pair.kept(index).tail == 109 for index in indexes))
    assert pair.keeper.counters.stored.batches["produce"] == 96
    pair.close()


async def test_errors_are_counted_where_the_client_is(pair: Pair) -> None:
    assert pair.link.produce(batch_v2(1))
    pair.link.reply(-1, error_code=19)
    assert pair.worker.counters.apis.errors[0, 19] == 1
    assert pair.ring.untaken_bytes == 0


async def test_what_waits_at_the_keeper_is_told_of_the_first_and_the_last(pair: Pair) -> None:
    noted: list[str] = []

    class Waiter:
        def wake(self, _partition: object) -> None:
            noted.append("woken")

        def note_acknowledged(self, _partition: object) -> None:
            noted.append("acknowledged")

    pair.kept().parked[Waiter()] = None
    pair.kept().leader_state.learn(5, 101, 101, 0, 1.0)  # the replica fetcher was faster
    for offset in (100, 101, 102):
        pair.produce(batch_v2(1), offset)
    await until(lambda: pair.kept().tail == 103)
    assert set(noted) == {"woken", "acknowledged"}


async def test_other_workers_hear_of_acknowledged_records_before_the_keeper_has_them(
    pair: Pair,
) -> None:
    assert pair.hear() == []
    pair.produce(batch_v2(1), 100)
    assert pair.kept().tail == 100
    assert pair.hear() == [find_place(pair.kept().slot)]
    assert pair.hear() == []
    pair.produce(batch_v2(1), 101)
    pair.produce(batch_v2(1), 102)
    assert len(pair.hear()) == 1


async def test_who_does_not_listen_hears_nothing_and_who_acknowledges_neither(pair: Pair) -> None:
    pair.keeper.shown.segment.listen(2, False)
    pair.heard.number = 1
    pair.produce(batch_v2(1), 100)
    assert pair.hear() == []
    pair.heard.number = 2
    assert pair.hear() == []


async def test_more_places_than_there_is_room_for_are_heard_in_turns() -> None:
    indexes, pair = list(range(32)), Pair()
    for number in range(45):  # so that places are of two words
        pair.keeper.cache.open(bytes([number]) * 16, 0)
    for index in indexes[1:]:
        pair.follow(index)
    for index in indexes:
        pair.produce(batch_v2(1), 100, index)
    first = pair.hear(64)
    second = pair.hear(64)
    assert sorted(first + second) == sorted(find_place(pair.kept(index).slot) for index in indexes)
    assert first and second
    assert pair.hear(64) == []
    pair.close()


# -- bounds ------------------------------------------------------------------------------------------


async def test_beyond_its_bound_the_ring_takes_nothing_and_goes_on_once_there_is_room() -> None:
    pair = Pair(SMALL_RING)
    sent, offset = batch_v2(1, value=bytes(900)), 100
    while not pair.ring.missed:  # the keeper has no turn in between
        pair.produce(sent, offset)
        offset += 1
        assert pair.ring.untaken_bytes <= SMALL_RING
    assert pair.ring.untaken_bytes > SMALL_RING - 2 * 1300
    await until(lambda: pair.ring.untaken_bytes == 0)
    assert pair.kept().tail == offset - 1
    pair.kept().tail = offset  # the broker has brought it
    for step in range(300):
        pair.produce(sent, offset + step)
        if step % 20 == 0:
            await until(lambda: pair.ring.untaken_bytes == 0)
    await until(lambda: pair.kept().tail == offset + 300)
    assert pair.ring.missed == 1
    pair.close()


async def test_a_batch_that_would_take_more_than_half_of_the_ring_is_missed() -> None:
    pair = Pair(SMALL_RING)
    pair.produce(batch_v2(1, value=bytes(SMALL_RING // 2)), 100)
    assert (pair.ring.missed, pair.ring.untaken_bytes) == (1, 0)
    pair.close()


async def test_sizes_of_any_kind_go_around_the_ring() -> None:
    pair, rng = Pair(SMALL_RING), Random(7)
    for offset in range(100, 1100):
        sent = batch_v2(1, value=rng.randbytes(rng.choice((0, 10, 1000, 9000, 24000))))
        pair.produce(sent, offset)
        if rng.random() < 0.5 or pair.ring.untaken_bytes > SMALL_RING // 4:
            await until(lambda: pair.ring.untaken_bytes == 0)
            assert pair.read(offset) == as_stored(sent, offset)
    assert pair.ring.missed == 0
    assert pair.kept().tail == 1100
    pair.close()


async def test_a_ring_that_is_emptied_each_time_uses_its_beginning_alone() -> None:
    pair = Pair()
    for offset in range(100, 600):
        pair.produce(batch_v2(1, value=bytes(9000)), offset)
        await until(lambda: pair.ring.untaken_bytes == 0)
    whole = ffi.buffer(pair.ring._native.shared, lib.PT_RING_HEAD + pair.ring._native.size)
    assert not any(whole[lib.PT_RING_HEAD + 8 * 9000 : lib.PT_RING_HEAD + (1 << 20)])
    pair.close()


# -- deaths ------------------------------------------------------------------------------------------


async def test_what_a_worker_has_told_is_stored_though_it_has_ended(pair: Pair) -> None:
    for offset in range(100, 100 + 3 * lib.PT_TAKE_ENTRIES):
        pair.produce(batch_v2(1), offset)
    pair.reader.close()  # in the same turn of the event loop: nothing was taken before
    assert pair.kept().tail == 100 + 3 * lib.PT_TAKE_ENTRIES


async def test_half_an_entry_of_a_killed_worker_is_never_seen(pair: Pair) -> None:
    pair.produce(batch_v2(1), 100)
    await until(lambda: pair.kept().tail == 101)
    native = pair.ring._native
    at = lib.PT_RING_HEAD + native.at % native.size
    ffi.buffer(native.shared, at + 1000)[at : at + 1000] = bytes(range(250)) * 4
    pair.reader.close()
    assert (pair.broken, pair.kept().tail) == (0, 101)


async def test_batches_forwarded_under_a_former_keeper_are_not_told(pair: Pair) -> None:
    assert pair.link.produce(batch_v2(1))
    pair.ring._native.leases = pair.ring._native.leases + 1
    pair.link.reply(100)
    assert pair.ring.untaken_bytes == 0
    assert not pair.link.failures


async def test_a_partition_that_was_forgotten_and_followed_anew_gets_nothing_of_before(
    pair: Pair,
) -> None:
    pair.produce(batch_v2(1), 100)
    former = pair.kept()
    pair.keeper.partitions.forget(former)
    pair.follow(0)
    assert pair.kept() is not former
    await until(lambda: pair.ring.untaken_bytes == 0)
    assert (pair.kept().tail, pair.read(100), pair.broken) == (100, None, 0)


@pytest.mark.parametrize(
    "words",
    [
        (0, 0, 1),
        (64, 1 << 40, 1),
        (64, 0, 65),
        (63, 0, 0),
        (1 << 40, 0, 0),
        (64, 0, -1),
        (640, 0, -2),
    ],
)
async def test_what_is_no_entry_ends_the_worker_and_nothing_else(
    pair: Pair, words: tuple[int, int, int]
) -> None:
    native = pair.ring._native
    whole = ffi.buffer(native.shared, lib.PT_RING_HEAD + native.size)
    memoryview(whole).cast("Q")[lib.PT_RING_HEAD // 8 : lib.PT_RING_HEAD // 8 + 2] = memoryview(
        ffi.buffer(ffi.new("uint64_t[]", list(words[:2])))
    ).cast("Q")
    memoryview(whole).cast("q")[lib.PT_RING_HEAD // 8 + 2] = words[2]
    memoryview(whole).cast("Q")[0] = 640  # written
    native.at = 640
    pair.rings.catch_up()
    assert (pair.broken, pair.kept().tail) == (1, 100)


@pytest.mark.parametrize("crossing", [1, 5])
async def test_python_finishes_nothing_that_several_workers_tell(crossing: int) -> None:
    """Each has a part of a partition's offsets, told in the order of acknowledgements, of which `crossing` in a row may
    come the other way round: ring by ring there would be as many gaps as offsets.
    """
    pair, left = Pair(), 0
    other = RingReader(pair.rings, pair._note_broken)
    ring_fd, wake_fd = map(os.dup, other.fds)
    second = Ring(ring_fd, wake_fd, pair.segment.leases)
    other.start()
    known = pair.kept().row
    known.observed_end = 100
    finish = RingReaders._finish

    def finish_counted(rings: RingReaders, now: float) -> None:
        nonlocal left
        left += 1
        finish(rings, now)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RingReaders, "_finish", finish_counted)
        for start in range(100, 200, crossing):
            for offset in reversed(range(start, start + crossing)):
                pair.worker.link.tell_produced = (pair.ring, second)[offset // 3 % 2].tell
                pair.produce(batch_v2(1), offset)
        pair.rings.catch_up()
    assert (pair.kept().tail, known.observed_end, bool(known.has_gap), left) == (200, 200, False, 0)
    second.close()
    other.close()
    pair.close()
