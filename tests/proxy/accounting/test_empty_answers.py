"""Sums of partitions without records, and when they become lines."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest

from metrics.access_log import EmptyLine
from metrics.access_log_schema import EMPTY_INTERVAL_MS
from proxy.accounting.empty_answers import QUEUE_SHARE, TICKS, EmptyAnswers
from tests.proxy.followed_partition import stand_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from metrics.access_log import EmptyValues
    from proxy.accounting.empty_answers import AskerKey, SumKey

LIMIT = 30
START_MS = 1_763_700_000_000
assert START_MS % EMPTY_INTERVAL_MS == 0


class Logged:
    """A log, the sums before it, and a wall clock."""

    def __init__(self) -> None:
        self.lines: list[EmptyLine] = []
        self.now_ms = START_MS
        self.sums = EmptyAnswers(stand_in(self), LIMIT * QUEUE_SHARE, lambda: self.now_ms)

    def put_empty(self, line: EmptyValues) -> None:
        self.lines.append(EmptyLine(*line))

    def add(self, key: SumKey, *partitions: int, lag: int | None = 0, admitted: int = 0) -> None:
        self.sums.add(key, {lag: partitions}, admitted)

    def pass_interval(self) -> None:
        self.now_ms += EMPTY_INTERVAL_MS


def key_of(connection: int = 1, topic: str = "orders", result: str = "hit") -> SumKey:
    return (
        "main",
        connection,
        "billing",
        None,
        topic,
        bytes(16),
        result,
        "" if result == "hit" else "cold",
    )


@pytest.fixture
def logged() -> Logged:
    return Logged()


def test_responses_of_an_interval_are_one_line(logged: Logged) -> None:
    logged.add(key_of(), 0, 1, 2, admitted=70)
    logged.now_ms += 1200
    logged.sums.add(key_of(), {0: [0, 1], 100: [2], None: [9]}, 90)
    logged.sums.tick(0.0)
    assert logged.lines == [], "the interval is not over"
    logged.pass_interval()
    logged.sums.tick(0.0)
    counts = {0: {0: 2, 1: 2, 2: 1}, 100: {2: 1}, None: {9: 1}}
    times = START_MS + 1200, START_MS
    assert logged.lines == [EmptyLine(*(*times, *key_of(), 2, 70, counts))]
    assert len(logged.sums) == 0


@pytest.mark.parametrize(
    "other", [key_of(connection=2), key_of(topic="clicks"), key_of(result="miss")]
)
def test_each_connection_topic_and_result_has_a_sum(logged: Logged, other: SumKey) -> None:
    for key in (key_of(), other, key_of()):
        logged.add(key, 0)
    logged.sums.close()
    assert [(line[2:10], line.responses) for line in logged.lines] == [(key_of(), 2), (other, 1)]


@pytest.mark.parametrize("step_ms", [1, -1])
def test_no_sum_covers_two_intervals(logged: Logged, step_ms: int) -> None:
    """An interval ends at the same multiple in every process, so that the audit's windows are exact."""
    logged.now_ms = START_MS - (step_ms > 0)
    logged.add(key_of(), 0)
    logged.now_ms += step_ms
    logged.add(key_of(), 0)
    logged.sums.close()
    intervals = [
        (line.first_ms // EMPTY_INTERVAL_MS, line.ts // EMPTY_INTERVAL_MS) for line in logged.lines
    ]
    assert len(intervals) == 2 == len(set(intervals))
    assert all(first == last for first, last in intervals)


def test_each_tick_ends_a_tenth_of_the_sums(logged: Logged) -> None:
    for connection in range(25):
        logged.add(key_of(connection), 0)
    logged.pass_interval()
    ended = []
    for _ in range(TICKS):
        logged.sums.tick(0.0)
        ended.append(len(logged.lines))
    assert ended == [3, 6, 9, 12, 15, 18, 21, 24, 25, 25]
    assert [line.connection for line in logged.lines] == list(range(25))


def test_overdue_sums_end_first(logged: Logged) -> None:
    """The loop was held: no tick for two intervals."""
    for number in range(3):
        logged.add(key_of(number), 0)
        logged.pass_interval()
    for _ in range(TICKS):
        logged.sums.tick(0.0)
    assert [line.connection for line in logged.lines] == [0, 1, 2]


def test_oldest_sums_end_at_the_limit(logged: Logged) -> None:
    assert logged.sums.limit == LIMIT
    logged.add(key_of(1), 0)
    logged.pass_interval()
    logged.add(key_of(2), *range(LIMIT - 1))
    assert (len(logged.sums), logged.lines) == (LIMIT, [])
    logged.add(key_of(2), *range(LIMIT - 1))
    assert (len(logged.sums), logged.lines) == (LIMIT, []), "the same partitions need no more room"
    logged.add(key_of(3), 0)
    assert (len(logged.sums), [line.connection for line in logged.lines]) == (LIMIT, [1])
    logged.add(key_of(3), 1)
    assert (len(logged.sums), [line.connection for line in logged.lines]) == (2, [1, 2])


def test_response_beyond_the_limit_is_a_line(logged: Logged) -> None:
    logged.add(key_of(), *range(LIMIT + 1))
    assert len(logged.sums) == 0
    (line,) = logged.lines
    assert line.counts == {0: dict.fromkeys(range(LIMIT + 1), 1)}


def test_each_partition_is_in_exactly_one_line(logged: Logged) -> None:
    random = Random(1)
    added: Counter[tuple[SumKey, int | None, int]] = Counter()
    for number in range(500):
        key = key_of(random.randrange(4), random.choice(("orders", "clicks")))
        by_lag: Mapping[int | None, Sequence[int]] = {
            lag: random.sample(range(12), random.randrange(1, 5)) for lag in (0, 10, None)
        }
        logged.sums.add(key, by_lag, number)
        added.update((key, lag, one) for lag, found in by_lag.items() for one in found)
        logged.now_ms += random.randrange(600)
        if number % 3 == 0:
            logged.sums.tick(0.0)
        assert len(logged.sums) <= LIMIT
    logged.sums.close()
    found: Counter[tuple[SumKey, int | None, int]] = Counter()
    for line in logged.lines:
        for lag, by_partition in line.counts.items():
            for partition, times in by_partition.items():
                found[line[2:10], lag, partition] += times
    assert found == added
    assert sum(line.responses for line in logged.lines) == 500


ASKER = key_of()[:4]


def describe(topic: str | bytes) -> tuple[str | None, bytes | None]:
    return str(topic), bytes(16)


def count_partitions(lines: Sequence[EmptyLine]) -> Counter[tuple[str | None, int, int | None]]:
    """How often each partition was named, by topic, index and lag."""
    counted: Counter[tuple[str | None, int, int | None]] = Counter()
    for line in lines:
        for lag, by_partition in line.counts.items():
            for partition, times in by_partition.items():
                counted[line.topic, partition, lag] += times
    return counted


def test_a_run_says_what_its_responses_would_have_said(logged: Logged) -> None:
    random = Random(7)
    named: dict[str | bytes, list[int]] = {"orders": [0, 1, 2], "clicks": [5]}
    expected: Counter[tuple[str | None, int, int | None]] = Counter()
    times, responses = 40, Counter[str]()
    for _ in range(times):
        others = [(t, p) for t, each in named.items() for p in each if random.random() < 0.4]
        logged.sums.add_run(ASKER, named, others, describe, 70)
        clean = [(str(t), p) for t, each in named.items() for p in each if (t, p) not in others]
        expected.update((topic, partition, 0) for topic, partition in clean)
        responses.update({topic for topic, _ in clean})
        logged.now_ms += 10
    assert logged.sums.count_open() == {("hit", ""): expected.total()}
    logged.add(key_of(), 1)
    expected["orders", 1, 0] += 1
    assert logged.lines == []
    logged.pass_interval()
    logged.sums.tick(0.0)
    logged.sums.close()
    assert count_partitions(logged.lines) == expected
    assert {line.topic: line.responses for line in logged.lines} == {
        "orders": responses["orders"] + 1,
        "clicks": responses["clicks"],
    }
    assert {line.topic: line.first_ms for line in logged.lines} == dict.fromkeys(
        ("orders", "clicks"), START_MS
    )
    assert len(logged.sums) == 0


def test_runs_of_other_askers_and_partitions_are_apart(logged: Logged) -> None:
    runs: list[tuple[AskerKey, dict[str | bytes, list[int]]]] = [
        (ASKER, {"orders": [0]}),
        (key_of(connection=2)[:4], {"orders": [0]}),
        (ASKER, {"orders": [0, 1]}),
    ]
    for asker, named in runs:
        logged.sums.add_run(asker, named, [], describe, 0)
    logged.sums.close()
    assert [line.connection for line in logged.lines] == [1, 2]
    assert count_partitions(logged.lines) == {("orders", 0, 0): 3, ("orders", 1, 0): 1}


def test_runs_end_at_the_limit(logged: Logged) -> None:
    named: dict[str | bytes, list[int]] = {"orders": list(range(LIMIT))}
    logged.sums.add_run(ASKER, named, [], describe, 0)
    assert (len(logged.sums), logged.lines) == (LIMIT, [])
    logged.sums.add_run(ASKER, named, [], describe, 0)
    assert len(logged.sums) == LIMIT, "the same partitions need no more room"
    more: dict[str | bytes, list[int]] = {"clicks": [0]}
    logged.sums.add_run(ASKER, more, [("clicks", 0)], describe, 0)
    assert len(logged.sums) <= LIMIT
    logged.sums.close()
    assert count_partitions(logged.lines).total() == 2 * LIMIT, "clicks had records each time"


def test_a_run_without_partitions_left_is_no_line(logged: Logged) -> None:
    beyond: dict[str | bytes, list[int]] = {"orders": list(range(LIMIT + 1))}
    logged.sums.add_run(ASKER, beyond, [("orders", p) for p in beyond["orders"]], describe, 0)
    assert (len(logged.sums), logged.lines) == (0, [])
