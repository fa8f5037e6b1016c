"""The page: every verdict is shown, every reason stands below, nobody is left out silently."""

from __future__ import annotations

from tests.matrix.compare import BROKEN, DIFFERS, EQUAL, NO, Cell
from tests.matrix.hits import Share
from tests.matrix.programme import EXACTLY_ONCE
from tests.matrix.run import Outcome
from tests.matrix.table import build_page

EQUALS = {"seeks": Cell(EQUAL), "times": Cell(EQUAL)}
GOOD = Outcome("Java", "4.3.1", "4.3.1", "", EQUALS, Share(90, 100), Share(1, 2), 3)


def rows(page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith("| ") and "---" not in line]


def test_a_row_for_each_client_and_broker() -> None:
    page = build_page([GOOD._replace(broker="3.9.2"), GOOD])
    head, row, *more = rows(page)
    assert head == "| client | seeks | times | hits | hits, committed | sessions |"
    assert row == "| Java (4.3.1) | = | = | 90% | 50% | 3 |"
    assert more == [head, row]
    assert page.index("## Broker 3.9.2") < page.index("## Broker 4.3.1")


def test_verdicts_carry_their_reason_once() -> None:
    cells = {
        "seeks": Cell(NO, "has none"),
        "times": Cell(DIFFERS, "/seen: 1 directly, 2 through"),
        "admin": Cell(BROKEN, "has none"),
        "transactions": Cell(EQUAL, "one part not"),
    }
    page = build_page([GOOD._replace(cells=cells)])
    assert "| no [1] | **differs** [2] | = [3] | **broken** [1] |" in page
    assert page.count("has none") == 1
    assert page.count("/seen: 1 directly, 2 through") == 1


def test_a_client_that_was_left_out_is_named() -> None:
    page = build_page([GOOD, Outcome("KafkaJS", "2.2.4", "4.3.1", "no `node` command here")])
    assert "| KafkaJS (2.2.4) | left out [1] |" in page
    assert "1. no `node` command here" in page


def test_streams_has_a_column_of_its_own() -> None:
    streams = Outcome(
        "Kafka Streams", "4.3.1", "4.3.1", "", {EXACTLY_ONCE: Cell(EQUAL)}, committed=Share(1, 1)
    )
    head, java, row = rows(build_page([GOOD, streams]))
    assert head == "| client | seeks | times | exactly once | hits | hits, committed | sessions |"
    assert java == "| Java (4.3.1) | = | = |  | 90% | 50% | 3 |"
    assert row == "| Kafka Streams (4.3.1) |  |  | = | – | 100% | 0 |"


def test_failures_are_differences_and_missing_hits() -> None:
    cells = {
        "tail": Cell(EQUAL),
        "tail-committed": Cell(EQUAL),
        "seeks": Cell(DIFFERS, "x"),
        "times": Cell(NO, "y"),
    }
    assert GOOD.failures() == []
    assert GOOD._replace(cells=cells).failures() == ["Java on 4.3.1: seeks: differs: x"]
    few = GOOD._replace(cells=cells, tail=Share(49, 100), committed=Share(0, 0)).failures()
    assert few == [
        "Java on 4.3.1: seeks: differs: x",
        "Java on 4.3.1: tail: 49 of 100 bytes from memory",
        "Java on 4.3.1: tail-committed: 0 of 0 bytes from memory",
    ]
    streams = Outcome(
        "Streams", "4.3.1", "4.3.1", "", {EXACTLY_ONCE: Cell(EQUAL)}, committed=Share(1, 4)
    )
    assert streams.failures() == ["Streams on 4.3.1: exactly-once: 1 of 4 bytes from memory"]
