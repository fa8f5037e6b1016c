"""Runs of admitted batches, and when they become lines."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from metrics.access_log import BlockLine
from proxy.accounting.stored_runs import QUEUE_SHARE, TICKS, StoredRuns
from proxy.partitions.partition_row import open_row
from tests.proxy.followed_partition import stand_in

LIMIT = 30


class Admitted:
    """A log and a cache; `lines` are without their times."""

    def __init__(self, limit=LIMIT):
        self.lines = []
        self.admitted_bytes = 0
        self.runs = StoredRuns(stand_in(self), stand_in(self), limit * QUEUE_SHARE)

    def put(self, line):
        self.lines.append(BlockLine(*line)._replace(ts=0))

    def peek_admitted_bytes(self):
        return self.admitted_bytes

    def add(self, partition, first, following, size_bytes=100, source="produce"):
        self.admitted_bytes += size_bytes
        self.runs.add(partition, first, following, size_bytes, source)


class Partition:
    def __init__(self, index, name):
        self.topic, self.index = SimpleNamespace(name=name, id=bytes(16)), index
        self.row = open_row()


def partition_of(index, name="orders"):
    return Partition(index, name)


def line_of(partition, first, following, size_bytes, admitted_bytes, source="produce"):
    topic = partition.topic
    return BlockLine(
        0,
        "",
        topic.name or None,
        topic.id,
        partition.index,
        first,
        following,
        size_bytes,
        source,
        admitted_bytes,
    )


@pytest.fixture
def admitted():
    return Admitted()


def test_contiguous_batches_are_one_line(admitted):
    orders = partition_of(3)
    for offset in range(5, 25, 5):
        admitted.add(orders, offset, offset + 5)
    assert admitted.lines == []
    admitted.runs.tick(0.0)
    assert admitted.lines == [line_of(orders, 5, 25, 400, 400)]
    assert len(admitted.runs) == 0


def test_gap_source_or_partition_ends_its_own_run(admitted):
    orders, names = partition_of(0), partition_of(1, name="")
    admitted.add(orders, 0, 10)
    admitted.add(names, 0, 10, 1)
    admitted.add(orders, 11, 20)
    admitted.add(orders, 20, 30, source="watch")
    assert admitted.lines == [line_of(orders, 0, 10, 100, 201), line_of(orders, 11, 20, 100, 301)]
    admitted.runs.close()
    assert admitted.lines[2:] == [
        line_of(names, 0, 10, 1, 301),
        line_of(orders, 20, 30, 100, 301, source="watch"),
    ]


def test_batch_admitted_again_starts_a_run(admitted):
    """An invalidation: the same offsets come once more."""
    orders = partition_of(0)
    admitted.add(orders, 0, 10)
    admitted.add(orders, 0, 10)
    admitted.runs.close()
    assert [(one.base_offset, one.next_offset, one.bytes) for one in admitted.lines] == 2 * [
        (0, 10, 100)
    ]


def test_each_tick_ends_a_share_of_many_runs():
    count = 2 * TICKS + 1
    admitted = Admitted(count)
    many = [partition_of(index) for index in range(count)]
    for partition in many:
        admitted.add(partition, 0, 1)
    admitted.runs.tick(0.0)
    assert [one.partition for one in admitted.lines] == [0, 1, 2]
    for partition in many:
        admitted.add(partition, 1, 2)
    for _ in range(TICKS):
        admitted.runs.tick(0.0)
    assert [(one.partition, one.base_offset, one.next_offset) for one in admitted.lines] == [
        *((index, 0, 1) for index in range(3)),
        *((index, 0, 2) for index in range(3, count)),
        *((index, 1, 2) for index in range(3)),
    ]
    assert len(admitted.runs) == 0


def test_few_runs_end_one_a_tick(admitted):
    many = [partition_of(index) for index in range(3)]
    for partition in many:
        admitted.add(partition, 0, 1)
    for ended in range(1, 4):
        admitted.runs.tick(0.0)
        assert [one.partition for one in admitted.lines] == list(range(ended))


def test_batches_of_a_slow_partition_share_a_line():
    """Thousands of partitions, each with a batch in eight seconds: at most a fifth as many lines as batches."""
    count, per_tick = 4000, 50
    admitted = Admitted(count)
    many, offsets = [partition_of(index) for index in range(count)], [0] * count
    for number in range(4 * TICKS * per_tick):
        index = number % count
        admitted.add(many[index], offsets[index], offsets[index] + 1)
        offsets[index] += 1
        if number % per_tick == 0:
            admitted.runs.tick(0.0)
    assert len(admitted.lines) < 4 * TICKS * per_tick / 5


def test_oldest_run_ends_at_the_limit(admitted):
    many = [partition_of(index) for index in range(LIMIT + 2)]
    for partition in many:
        admitted.add(partition, 0, 1)
    assert len(admitted.runs) == admitted.runs.limit == LIMIT
    assert [one.partition for one in admitted.lines] == [0, 1]
    admitted.add(many[2], 1, 2)
    assert len(admitted.lines) == 2


def test_every_admitted_byte_is_in_one_line(admitted):
    many = [partition_of(index) for index in range(7)]
    for number in range(500):
        admitted.add(many[number * number % 7], number // 7, number // 7 + 1, number)
        if number % 50 == 0:
            admitted.runs.tick(0.0)
    admitted.runs.close()
    assert sum(one.bytes for one in admitted.lines) == admitted.admitted_bytes == sum(range(500))
    assert [one.admitted_bytes for one in admitted.lines] == sorted(
        one.admitted_bytes for one in admitted.lines
    )
