"""Rows that one process shows and others copy: what a reader sees, and when it may serve what it found."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import pytest
from proxy.partitions._rows import ffi, lib

from blockcache.cache import BlockCache
from proxy.keeper.seen import SeenPartition
from proxy.keeper.segment import OtherLayout, RowMemory, attach_segment, open_segment
from proxy.keeper.shown import ShownPartitions, find_place
from proxy.partitions.leader_state import Lease
from proxy.partitions.table import Partition
from proxy.partitions.topics import Topic
from proxy.partitions.transactions import Aborted

ROWS = 64
EVER = 1e9


def open_pair(slot: int = 3) -> tuple[ShownPartitions, Partition, SeenPartition]:
    """A partition that is shown, and a reader of it."""
    shown = ShownPartitions(open_segment(ROWS), lambda: None)
    topic = Topic(b"t" * 16, "t")
    partition = Partition(topic, 0, slot, 100)
    shown.show(partition)
    segment = attach_segment(os.dup(shown.segment.fd))
    return shown, partition, SeenPartition(segment, topic, 0, slot, find_place(slot))


def learn(partition: Partition, epoch: int, high_watermark: int, until: float = EVER) -> None:
    partition.leader_state.learn(epoch, high_watermark, high_watermark, 0, until)
    partition.leader_state.await_check(False)


def is_current(seen: SeenPartition) -> bool:
    return bool(lib.pt_is_current([seen.row], 1))


def test_a_reader_sees_what_is_shown_and_nothing_before() -> None:
    shown, partition, seen = open_pair()
    learn(partition, 4, 100)
    seen.look(0)
    assert seen.leader_state.epoch == -1
    shown.show(partition)
    seen.look(0)
    state = seen.leader_state
    assert (state.epoch, state.high_watermark, state.log_start_offset) == (4, 100, 0)
    assert state.has_lease(0)
    assert not state.frozen


def test_showing_the_same_again_writes_nothing() -> None:
    shown, partition, _ = open_pair()
    learn(partition, 4, 100)
    shown.show(partition)
    before = shown.shown
    shown.show(partition)
    assert shown.shown == before


def test_growth_leaves_what_was_found_valid_and_an_epoch_does_not() -> None:
    shown, partition, seen = open_pair()
    learn(partition, 4, 100)
    shown.show(partition)
    seen.look(0)
    learn(partition, 4, 200)
    shown.show(partition)
    assert is_current(seen)
    learn(partition, 5, 200)
    shown.show(partition)
    assert not is_current(seen)
    seen.look(0)
    assert is_current(seen)


def test_withdrawn_before_bytes_go_and_seen_anew_though_no_word_has_changed() -> None:
    shown, partition, seen = open_pair()
    learn(partition, 4, 100)
    shown.show(partition)
    seen.look(0)
    shown.withdraw(partition)
    assert not is_current(seen)
    seen.look(0)
    assert is_current(seen)


def test_a_forgotten_partition_and_the_next_of_its_place_are_not_the_reader_s() -> None:
    shown, partition, seen = open_pair()
    learn(partition, 4, 100)
    shown.show(partition)
    seen.look(0)
    partition.unfollow()
    shown.forget(partition)
    assert not is_current(seen)
    seen.look(0)
    assert not seen.is_followed
    assert not seen.leader_state.has_lease(0)
    other = Partition(partition.topic, 1, partition.slot + (1 << 24), 100)
    learn(other, 4, 100)
    shown.show(other)
    seen.look(0)
    assert not seen.is_followed
    assert not seen.leader_state.has_lease(0)


def test_a_shared_lease_is_renewed_without_showing_its_partitions() -> None:
    shown, partition, seen = open_pair()
    learn(partition, 4, 100, until=1)
    lease = shown.open_lease()
    partition.leader_state.hold(lease)
    shown.show(partition)
    seen.look(0)
    assert not seen.leader_state.has_lease(5)
    lease.row.until = 10.0
    assert seen.leader_state.has_lease(5)
    partition.leader_state.revoke()
    shown.show(partition)
    seen.look(0)
    assert not seen.leader_state.has_lease(5)


def test_a_lease_s_number_is_given_again_only_when_nobody_holds_it() -> None:
    shown, partition, _ = open_pair()
    held = shown.open_lease()
    partition.leader_state.hold(held)
    numbers = {shown.open_lease().number for _ in range(5000)}
    assert held.number not in numbers
    kept = [shown.open_lease() for _ in range(4095)]
    assert shown.open_lease().number == -1
    del kept
    assert shown.open_lease().number >= 0


def test_a_lease_without_a_number_is_shown_with_its_partition() -> None:
    shown, partition, seen = open_pair()
    learn(partition, 4, 100)
    partition.leader_state.hold(Lease(7.0, is_shared=True))
    shown.show(partition)
    seen.look(0)
    assert seen.leader_state.lease.until == 7.0


def forward_one(seen: SeenPartition, end: int) -> object:
    """A batch forwarded in the seen epoch and acknowledged up to `end`, as `WorkerBroker.admit` tells it."""
    forwarded = ffi.new("pt_forwarded[]", 1)
    forwarded[0].row = seen.row
    forwarded[0].epoch = seen.leader_state.epoch
    forwarded[0].verdict = lib.PT_UNJUDGED
    seen.row.acknowledged_end = end
    return forwarded


def test_acknowledged_records_are_seen_by_all_until_the_next_epoch() -> None:
    shown, partition, seen = open_pair()
    learn(partition, 4, 100)
    shown.show(partition)
    other = SeenPartition(
        attach_segment(os.dup(shown.segment.fd)), partition.topic, 0, partition.slot, 3
    )
    seen.look(0)
    late, heard = forward_one(seen, 130), attach_segment(os.dup(shown.segment.fd)).open_heard(1)
    lib.pt_show_acknowledged(late, 1, heard)
    other.look(0)
    assert other.has_unseen(100)
    assert not other.has_unseen(130)
    learn(partition, 5, 100)
    partition.row.acknowledged_end = -1
    shown.show(partition)
    other.look(0)
    assert not other.has_unseen(100)
    seen.row.acknowledged_end = 130
    lib.pt_show_acknowledged(late, 1, heard)  # of an epoch that is over
    other.look(0)
    assert not other.has_unseen(100)


def test_of_many_aborted_transactions_the_newest_are_shown() -> None:
    shown, partition, seen = open_pair()
    learn(partition, 4, 1000)
    transactions = partition.transactions
    transactions.row.known_from, transactions.row.observed_end = 0, 1000
    transactions._aborted = [Aborted(10 * n + 9, 10 * n, n, 10 * n + 10) for n in range(68)]
    shown.show(partition)
    seen.look(0)
    assert seen.transactions.known_from == 40
    assert seen.transactions.aborted(30, 60) is None
    for first, end in ((40, 1000), (45, 60), (100, 101), (195, 300), (675, 1000)):
        assert seen.transactions.aborted(first, end) == transactions.aborted(first, end)


def test_memory_of_another_build_is_refused() -> None:
    segment = open_segment(ROWS)
    os.pwrite(segment.fd, b"other", 0)
    with pytest.raises(OtherLayout):
        attach_segment(os.dup(segment.fd))


def write_for_ever(segment: RowMemory) -> None:
    """Show rows in which each word is a function of the epoch."""
    shown = ShownPartitions(segment, lambda: None)
    partition = Partition(Topic(b"t" * 16, "t"), 0, 3, 100)
    epoch = 0
    while True:
        epoch += 1
        learn(partition, epoch, 7 * epoch)
        partition.row.tail = 3 * epoch
        shown.show(partition)


def test_a_reader_never_sees_half_of_a_row_and_a_writer_killed_within_shows_nothing() -> None:
    segment = open_segment(ROWS)
    topic = Topic(b"t" * 16, "t")
    seen = SeenPartition(segment, topic, 0, 3, 3)
    epochs: set[int] = set()
    for _ in range(5):
        writer = multiprocessing.get_context("fork").Process(target=write_for_ever, args=(segment,))
        writer.start()
        looks = 0
        deadline = time.monotonic() + 60
        while looks < 20_000 or len(epochs) < 100:
            seen.look(0)
            looks += 1
            row = seen.row
            if row.is_followed and row.epoch >= 0:
                assert (row.high_watermark, row.tail) == (7 * row.epoch, 3 * row.epoch)
                epochs.add(row.epoch)
            assert time.monotonic() < deadline
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        seen.look(0)
        row = seen.row
        assert not row.is_followed or (row.high_watermark, row.tail) == (
            7 * row.epoch,
            3 * row.epoch,
        )
        # the next writer begins with other memory, as the next keeper does
        segment = open_segment(ROWS)
        seen = SeenPartition(segment, topic, 0, 3, 3)


def test_places_of_a_cache_are_those_of_the_rows() -> None:
    cache = BlockCache(1 << 20)
    slots = [cache.open(b"t" * 16, index) for index in range(5)]
    assert len({find_place(slot) for slot in slots}) == 5
    assert max(map(find_place, slots)) < cache.statistics().partitions_max
    cache.drop(slots[2])
    again = cache.open(b"u" * 16, 0)
    assert find_place(again) == find_place(slots[2])
    assert again != slots[2]
    cache.close()
