"""Who reads what, and who is behind: sums, windows, bounds, and what is forgotten."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.fetch.readers import (
    FORGET_S,
    LONGEST_TEXT,
    MARK_EVERY_S,
    RECENT_S,
    WINDOW_S,
    ProcessTotals,
    Readers,
    ReadSums,
)
from proxy.fetch.response import PENDING
from proxy.partitions.readable import PartitionOutcome, PartitionStatus, ReadState
from tests.proxy.followed_partition import stand_in
from tests.proxy.session_messages import asked

TOPIC = "orders"
NOW_MS = 1_763_683_200_000
OLD_MS = NOW_MS - 1000 * RECENT_S


class Process:
    """The counts of a process, and its readers."""

    def __init__(self, limit: int = 100) -> None:
        self.admitted_bytes = 0
        self.record_bytes: dict[tuple[str, str], int] = {}
        self.now = 0.0
        self.readers = Readers(limit, self.now, self.count, lambda: int(NOW_MS + 1000 * self.now))

    def count(self) -> ProcessTotals:
        return ProcessTotals(dict(self.record_bytes), self.admitted_bytes, 0)

    def wait(self, seconds: int, bytes_s: int = 0) -> None:
        for _ in range(seconds):
            self.now += 1
            self.admitted_bytes += bytes_s
            self.readers.tick(self.now)

    def answer(
        self, *outcomes: PartitionOutcome, client: str | None = "c", group: str | None = "g"
    ) -> None:
        self.readers.note(client, group, outcomes, self.now)

    @property
    def rows(self) -> dict[Any, ReadSums]:
        return self.readers.sum_rows()[0]

    @property
    def offsets(self) -> list[int]:
        return [one.now.offset for _, _, one in self.readers.list_standings()]


def outcome(
    result: str = "hit",
    size_bytes: int = 10,
    why: str = "",
    *,
    index: int = 0,
    offset: int = 0,
    topic: str = TOPIC,
    delay_s: float = 0.0,
    admitted_at: int | None = None,
    timestamp_ms: int | None = None,
    reason: str | None = None,
) -> PartitionOutcome:
    wanted = asked(topic, index)._replace(fetch_offset=offset)
    state = ReadState.READABLE if result == "hit" else ReadState.MISS
    status = PartitionStatus(wanted, stand_in(SimpleNamespace()), state, why, 100)
    said = why if reason is None else reason
    return PartitionOutcome(
        status, size_bytes, result, said, delay_s, None, admitted_at, timestamp_ms
    )


def test_sums_by_client_group_and_topic() -> None:
    process = Process()
    process.answer(outcome(), outcome("miss", 20, "cold", index=1, delay_s=0.5))
    process.answer(outcome("pass", 40, "mixed"), outcome(size_bytes=0))
    process.answer(outcome(topic="other"), client=None, group=None)
    assert process.rows == {
        ("c", "g", TOPIC): ReadSums(3, 1, 10, 20, 40, 0.5),
        (None, None, "other"): ReadSums(1, 0, 10, 0, 0, 0.0),
    }


def test_two_windows_are_shown_and_older_ones_forgotten() -> None:
    process = Process()
    process.answer(outcome())
    process.wait(int(WINDOW_S))
    process.answer(outcome())
    assert process.rows["c", "g", TOPIC].hit_bytes == 20
    assert process.readers.windows[0].begun_at == 0.0
    process.wait(int(WINDOW_S))
    assert process.rows["c", "g", TOPIC].hit_bytes == 10
    process.wait(int(WINDOW_S))
    assert process.rows == {}


def test_further_readers_share_a_row_and_no_byte_is_lost() -> None:
    process = Process(limit=3)
    for number in range(5):
        process.answer(outcome(), client=f"c{number}")
    rows, others = process.readers.sum_rows()
    assert len(rows) == process.readers.rows == 3
    assert others == ReadSums(answers=2, hit_bytes=20)
    process.answer(outcome(), client="c0")
    assert process.rows["c0", "g", TOPIC].hit_bytes == 20, "one that has a row keeps it"


def test_partitions_with_readers_behind_are_bounded() -> None:
    process = Process(limit=3)
    for index in range(5):
        process.answer(outcome("miss", why="cold", index=index))
    assert process.readers.standings == len(process.offsets) == 3
    process.answer(outcome("hit", index=0))
    process.answer(outcome("miss", why="cold", index=4))
    assert process.readers.standings == len(process.offsets) == 3, "room was made"


def test_a_clients_long_text_is_cut() -> None:
    process = Process()
    process.answer(outcome(), client="x" * 32_000)
    process.answer(outcome(), client="x" * 32_001)
    assert list(process.rows) == [("x" * LONGEST_TEXT, "g", TOPIC)]


def test_a_limit_of_nothing_and_a_new_one() -> None:
    process = Process()
    process.answer(outcome("miss", why="cold"))
    process.readers.set_limit(0)
    assert process.rows == {} and process.offsets == [] and process.readers.standings == 0
    process.readers.set_limit(5)
    process.answer(outcome())
    assert process.rows["c", "g", TOPIC].hit_bytes == 10


@pytest.mark.parametrize(
    ("one", "is_behind"),
    [
        (outcome("miss", why="cold"), True),
        (outcome("miss", why="evicted"), True),
        (outcome("miss", why="hole"), False),
        (outcome("miss", why="unauthorized-yet", timestamp_ms=OLD_MS), True),
        (outcome("miss", why="unproven", timestamp_ms=OLD_MS + 60_000), False),
        (outcome("pass", why="mixed", timestamp_ms=-1), False),
        (outcome("hit", admitted_at=7, timestamp_ms=OLD_MS), False),
        (outcome("pass", why="cold", reason="disabled"), True),
        (outcome("miss", 0, "evicted", reason=PENDING[1]), True),
        (outcome("miss", 0, "evicted"), False),
        (outcome("hit", admitted_at=0), True),
        (outcome("hit", admitted_at=7), False),
        (outcome("hit"), False),
    ],
)
def test_who_is_behind(one: PartitionOutcome, is_behind: bool) -> None:
    """After ten seconds with a byte each: what was admitted in the last RECENT_S is none."""
    process = Process()
    process.wait(10, bytes_s=1)
    assert process.admitted_bytes - RECENT_S < 7
    process.answer(one)
    assert bool(process.offsets) is is_behind


def test_who_comes_back_to_the_end_is_not_behind() -> None:
    process = Process()
    process.answer(outcome("miss", why="cold"), outcome("miss", why="cold", index=1))
    process.answer(outcome("hit"), client="other")
    assert process.readers.standings == 2
    process.answer(outcome("hit"))
    assert [index for _, index, _ in process.readers.list_standings()] == [1]
    assert process.readers.standings == 1


def test_who_asks_no_more_is_forgotten() -> None:
    process = Process()
    process.answer(outcome("miss", why="cold"))
    process.wait(int(FORGET_S - WINDOW_S))
    assert process.offsets == [0]
    process.wait(int(2 * WINDOW_S))
    assert process.offsets == [] and process.readers.standings == 0


def test_the_way_of_a_reader_has_marks() -> None:
    process = Process()
    for second in range(60):
        process.now = float(second)
        process.answer(outcome("miss", why="cold", offset=10 * second, timestamp_ms=1000 * second))
    ((_, _, standing),) = process.readers.list_standings()
    assert (standing.now.offset, standing.now.seen_at) == (590, 59.0)
    ages = (
        standing.now.seen_at - standing.mark.seen_at,
        standing.now.seen_at - standing.before.seen_at,
    )
    assert 0 <= ages[0] < MARK_EVERY_S <= ages[1] < 2 * MARK_EVERY_S


def test_a_read_that_waits_for_its_disk_keeps_its_time() -> None:
    process = Process()
    process.answer(outcome("miss", why="cold", offset=5, timestamp_ms=77))
    process.answer(outcome("miss", 0, "cold", offset=5, reason=PENDING[1]))
    ((_, _, standing),) = process.readers.list_standings()
    assert standing.now.timestamp_ms == 77
    process.answer(outcome("miss", 0, "cold", offset=6, reason=PENDING[1]))
    assert standing.now.timestamp_ms is None, "of another place nothing is known"


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.sampled_from(["hit", "miss", "pass"]),
            st.sampled_from(["", "cold", "evicted", "hole"]),
            st.integers(0, 3),
            st.integers(0, 9),
            st.integers(0, 12),
        )
    )
)
def test_sums_are_those_of_all_answers(life: list[tuple[str, str, str, int, int, int]]) -> None:
    """As long as no window ends; the number of standings is always that of those listed."""
    process = Process(limit=2)
    given_bytes = {"hit": 0, "miss": 0, "pass": 0}
    for client, result, why, index, size_bytes, pause_s in life:
        process.answer(outcome(result, size_bytes, why, index=index), client=client)
        given_bytes[result] += size_bytes
        if process.now + pause_s < WINDOW_S:
            process.wait(pause_s, bytes_s=1)
        assert process.readers.standings == len(process.offsets) <= 2
    rows, others = process.readers.sum_rows()
    for sums in rows.values():
        others.add(sums)
    assert (others.hit_bytes, others.miss_bytes, others.pass_bytes) == tuple(given_bytes.values())
