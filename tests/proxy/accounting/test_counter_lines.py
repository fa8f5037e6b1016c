"""Lines of counters: exactly what the lines before them and the open sums have, when they are due."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from protocol.api import PRODUCE
from proxy.accounting.counter_lines import MINUTE_S, SCRAPE_S, CounterLines
from proxy.accounting.counters import Counters
from proxy.accounting.empty_answers import QUEUE_SHARE, EmptyAnswers
from tests.proxy.followed_partition import stand_in

if TYPE_CHECKING:
    from metrics.access_log import CountersLine, EmptyValues

KEY = ("main", 1, "billing", None, "orders", bytes(16))
VERDICTS = (("hit", ""), ("miss", "cold"))


class Logged:
    """A log, the counters and sums before it, and a clock."""

    dropped_lines = 3

    def __init__(self) -> None:
        self.lines: list[CountersLine] = []
        self.written: Counter[tuple[str, str]] = Counter()
        self.now_s = 100.0
        self.counters = Counters()
        empty = EmptyAnswers(stand_in(self), 100 * QUEUE_SHARE, lambda: int(1000 * self.now_s))
        self.empty = empty
        self.numbers = CounterLines(
            stand_in(self), self.counters, stand_in(self), empty, lambda: self.now_s, self.settle
        )

    def settle(self) -> None:
        self.counters.traffic.requests_in[PRODUCE].size_bytes = 55

    def peek_admitted_bytes(self) -> int:
        return 77

    def put_counters(self, line: CountersLine) -> None:
        self.lines.append(line)

    def put_empty(self, line: EmptyValues) -> None:
        counts = line[-1]
        self.written[line[8], line[9]] += sum(sum(by.values()) for by in counts.values())

    def answer(self, verdict: tuple[str, str], partitions: list[int]) -> None:
        """A response names these without records."""
        self.counters.fetch.partitions[verdict] += len(partitions)
        self.empty.add((*KEY, *verdict), {0: partitions}, 0)


@pytest.fixture
def logged() -> Logged:
    return Logged()


def test_partitions_less_unwritten_ones_are_those_of_the_lines_before(logged: Logged) -> None:
    draw = random.Random(5)
    for _ in range(300):
        logged.answer(draw.choice(VERDICTS), draw.sample(range(9), draw.randrange(1, 4)))
        logged.now_s += draw.random()
        if draw.random() < 0.3:
            logged.empty.tick(0.0)
        logged.numbers.put("minute")
        found = {one[:2]: one[2] - one[4] for one in logged.lines[-1].results}
        assert found == {verdict: logged.written[verdict] for verdict in found}
    assert set(found) == set(VERDICTS) and all(found.values())
    assert any(unwritten for *_, unwritten in logged.lines[-1].results)


def test_a_line_is_due_each_minute_since_the_last_one(logged: Logged) -> None:
    logged.numbers.put("open")
    for after_s, events in ((MINUTE_S - 0.1, 1), (MINUTE_S, 2), (2 * MINUTE_S - 0.1, 2)):
        logged.now_s = 100.0 + after_s
        logged.numbers.tick(logged.now_s)
        assert len(logged.lines) == events
    assert [(line.event, line.number) for line in logged.lines] == [("open", 1), ("minute", 2)]
    assert (logged.lines[0].results, logged.lines[0].upstream) == ([], [])
    assert (logged.lines[0].dropped_lines, logged.lines[0].admitted_bytes) == (3, 77)
    assert logged.lines[0].produced_bytes == 55, "the pipeline's counts are in it"


def test_a_scrape_that_finds_nothing_new_is_that_of_the_last_line(logged: Logged) -> None:
    assert logged.numbers.put("open") == 1
    assert [logged.numbers.note_scrape() for _ in range(3)] == [1, 1, 1]
    assert len(logged.lines) == 1


def test_scrapes_put_at_most_one_line_a_second(logged: Logged) -> None:
    logged.numbers.put("open")
    logged.answer(("hit", ""), [1])
    assert logged.numbers.note_scrape() == 2
    logged.answer(("hit", ""), [1])
    logged.now_s += SCRAPE_S / 2
    assert logged.numbers.note_scrape() == 0, "no line has these counters"
    logged.now_s += SCRAPE_S / 2
    assert logged.numbers.note_scrape() == 3
    assert [line.event for line in logged.lines] == ["open", "scrape", "scrape"]
    logged.counters.upstream.fetch_bytes["watch"] += 5
    logged.now_s += SCRAPE_S
    assert logged.numbers.note_scrape() == 4
    assert logged.lines[-1].upstream == [("watch", 5)]
