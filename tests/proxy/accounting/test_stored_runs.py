"""Runs of admitted batches, and when they become lines."""

from __future__ import annotations

from bisect import bisect_right
from random import Random
from types import SimpleNamespace

import pytest
from proxy.partitions._rows import lib

from metrics.access_log import BlockLine
from proxy.accounting.stored_runs import QUEUE_SHARE, TICKS, StoredRuns
from proxy.partitions.partition_row import RUN_ROWS, open_row
from tests.proxy.followed_partition import stand_in

LIMIT = 30


class Admitted:
    """A log and a cache; `lines` are without their times."""

    def __init__(self, limit=LIMIT):
        self.lines = []
        self.admitted_bytes = 0
        self.held_bytes = None
        self.runs = StoredRuns(stand_in(self), stand_in(self), limit * QUEUE_SHARE, RUN_ROWS)

    def put(self, line):
        self.lines.append(BlockLine(*line)._replace(ts=0))

    def peek_admitted_bytes(self):
        return self.admitted_bytes

    def add(self, partition, first, following, size_bytes=100, source="produce", batches=1):
        clock = self.admitted_bytes
        self.admitted_bytes += size_bytes
        self.runs.add(partition, first, following, size_bytes, batches, source, clock)


class Partition:
    def __init__(self, index, name):
        self.topic, self.index = SimpleNamespace(name=name, id=bytes(16)), index
        self.row = open_row()


def partition_of(index, name="orders"):
    return Partition(index, name)


def line_of(  # a line's place, and the clock
    partition, first, following, size_bytes, admitted_bytes, source="produce", *, batches=1, began=0
):
    topic = partition.topic
    last = following - (following - first) // batches
    points = ((last, began + size_bytes * (batches - 1) // batches),) if batches > 1 else ()
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
        batches,
        began,
        began + size_bytes,
        points,
        None,
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
    assert admitted.lines == [line_of(orders, 5, 25, 400, 400, batches=4)]
    assert len(admitted.runs) == 0


def test_source_ends_its_own_partitions_run(admitted):
    orders, names = partition_of(0), partition_of(1, name="")
    admitted.add(orders, 0, 10)
    admitted.add(names, 0, 10, 1)
    admitted.add(orders, 10, 20, source="watch")
    assert admitted.lines == [line_of(orders, 0, 10, 100, 201)]
    admitted.runs.close()
    assert admitted.lines[1:] == [
        line_of(names, 0, 10, 1, 201, began=100),
        line_of(orders, 10, 20, 100, 201, source="watch", began=101),
    ]


def test_batches_that_crossed_are_one_line(admitted):
    """The line ends where the last offset came, and what came late is not far from it."""
    orders = partition_of(0)
    for offset in (0, 2, 4, 3, 1, 6, 7, 5):
        admitted.add(orders, offset, offset + 1)
    admitted.runs.close()
    (line,) = admitted.lines
    assert (line.base_offset, line.next_offset, line.bytes, line.batches) == (0, 8, 800, 8)
    assert (line.began_bytes, line.points) == (0, ((6, 500),))


def test_what_is_ahead_of_a_run_is_a_line_if_the_run_ends_before(admitted):
    orders = partition_of(0)
    for offset in (0, 4, 2, 5):
        admitted.add(orders, offset, offset + 1)
    admitted.add(partition_of(1), 0, 1, 10)
    admitted.runs.tick(0.0)
    assert admitted.lines == [
        line_of(orders, 0, 1, 100, 410),
        line_of(orders, 2, 3, 100, 410, began=200),
        line_of(orders, 4, 6, 200, 410, began=100, batches=2)._replace(points=()),
    ]
    admitted.add(orders, 1, 2)
    admitted.runs.close()
    assert [(one.base_offset, one.next_offset) for one in admitted.lines[3:]] == [(0, 1), (1, 2)]


def test_what_comes_from_before_a_run_is_a_line_and_the_run_goes_on(admitted):
    orders = partition_of(0)
    for offset in (2, 1, 3, 0):
        admitted.add(orders, offset, offset + 1)
    admitted.runs.close()
    assert admitted.lines == [
        line_of(orders, 1, 2, 100, 200, began=100),
        line_of(orders, 0, 1, 100, 400, began=300),
        line_of(orders, 2, 4, 200, 400, batches=2)._replace(ended_bytes=300, points=((3, 200),)),
    ]


@pytest.mark.parametrize("excess", [0, 1])
def test_parts_ahead_of_a_run_are_bounded(admitted, excess):
    orders, count = partition_of(0), lib.PT_AHEAD + excess
    admitted.add(orders, 0, 1)
    for number in range(1, 1 + count):
        admitted.add(orders, 2 * number, 2 * number + 1)
    assert len(admitted.lines) == (count if excess else 0)
    admitted.runs.close()
    assert len(admitted.lines) == 1 + count
    assert sum(one.bytes for one in admitted.lines) == admitted.admitted_bytes


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


def clock_of(line: BlockLine, offset: int) -> float:
    """The clock before the batch at an offset, by the line alone."""
    points = [
        (line.base_offset, line.began_bytes),
        *line.points,
        (line.next_offset, line.ended_bytes),
    ]
    at = bisect_right(points, offset, key=lambda point: point[0]) - 1
    (before, clock), (behind, ended) = points[at : at + 2]
    return clock + (ended - clock) * (offset - before) / (behind - before)


@pytest.mark.parametrize("seed", range(16))
def test_lines_say_when_each_batch_was_admitted(seed):
    """Partitions of unequal rates in bursts, in pieces of several batches, and pauses in which others write; in half of
    the lives acknowledgements cross.
    """
    random, admitted = Random(seed), Admitted(1000)
    many = [partition_of(index) for index in range(6)]
    offsets, truth, late = [0] * 6, [], []
    crossing = 0.3 * (seed % 2)
    for _ in range(4000):
        index = min(random.randrange(6), random.randrange(6)) if random.random() < 0.9 else 0
        batches = random.choice((1, 1, 1, 3))
        size_bytes = random.choice((500, 5_000, 50_000, 400_000)) if index else 700
        source = "watch" if batches > 1 else "produce"
        following = offsets[index] + 7 * batches
        late.append((index, offsets[index], following, size_bytes * batches, source, batches))
        offsets[index] = following
        while late and random.random() >= crossing:
            index, offset, *rest = late.pop(random.randrange(len(late)))
            truth.append((index, offset, admitted.admitted_bytes))
            admitted.add(many[index], offset, *rest)
        if random.random() < 0.002:
            admitted.runs.tick(0.0)
    admitted.runs.close()
    lines = {(one.partition, offset): one for one in admitted.lines for offset in one[5:6]}
    assert len(lines) < len(truth) * (0.6 if crossing else 0.5)
    starts = {index: sorted(base for who, base in lines if who == index) for index in range(6)}
    for index, offset, clock in truth:
        base = starts[index][bisect_right(starts[index], offset) - 1]
        line = lines[index, base]
        assert offset < line.next_offset
        assert abs(clock_of(line, offset) - clock) <= 2 * lib.PT_RUN_TOLERANCE
    assert sum(one.batches for one in admitted.lines) >= len(truth)


def test_run_that_needs_more_points_than_it_has_ends(admitted):
    orders, others = partition_of(0), partition_of(1)
    for number in range(3 * lib.PT_RUN_POINTS):
        admitted.add(orders, number, number + 1)
        admitted.add(others, number, number + 1, 1_000_000 * (number % 2))
    admitted.runs.close()
    lines = [one for one in admitted.lines if one.partition == 0]
    assert [one.batches for one in lines[:-1]] and len(lines) > 1
    assert all(len(one.points) <= lib.PT_RUN_POINTS + 1 for one in lines)
    assert sum(one.bytes for one in lines) == 2400
