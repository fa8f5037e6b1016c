"""The judge notices what a wrong answer of Forebay's could look like, and lets pass what an answer is free in."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.batch import scan_batches, stamp_base_offset
from tests.e2e.differential.answers import Answer, Key, Part
from tests.e2e.differential.cases import Case, Place, Wanted
from tests.e2e.differential.judge import View, judge
from tests.e2e.differential.logs import Aborted, Log
from tests.protocol.batches import batch_v2

PLACE = Place("topic", bytes(range(16)), 0)
KEY: Key = (PLACE.topic, 0)
COUNT = 4


def build_batch(offset: int) -> bytes:
    """A batch of one record, as the log has it there."""
    batch = bytearray(batch_v2(1, value=b"value %d" % offset * 5))
    stamp_base_offset(batch, 0, offset)
    return bytes(batch)


RAW = b"".join(map(build_batch, range(COUNT)))
BATCHES = scan_batches(RAW, 0, len(RAW))
LOG = Log(PLACE, 1, 0, COUNT, COUNT, RAW, BATCHES, [Aborted(7, 0, 2), Aborted(8, 3, 3)])
CASE = Case(11, (Wanted(PLACE, 1),), isolation_level=1)
OFFSETS = {
    "error_code": 0,
    "high_watermark": COUNT,
    "last_stable_offset": COUNT,
    "log_start_offset": 0,
}
OTHERS = {"preferred_read_replica": -1, "diverging_epoch": (-1, -1), "current_leader": (-1, -1)}


def part(first: int, count: int, aborted: list[tuple[int, int]] | None = None, **said: Any) -> Part:
    """An answer's partition with so many of the log's batches."""
    records = LOG.records(first, count)
    return Part(OFFSETS | OTHERS | said, aborted, records, scan_batches(records, 0, len(records)))


def answer(*parts: Part, **fields: Any) -> Answer:
    """An answer of these partitions, the first of which is KEY."""
    named: dict[Key, Part] = {(PLACE.topic, index): one for index, one in enumerate(parts)}
    return Answer(0, 0, 0, named, [], is_repeating=False)._replace(**fields)


ALL = [(7, 0), (8, 3)]
WHOLE = part(1, 3, ALL)
USUAL = answer(WHOLE)


def kinds(through: Answer, direct: Answer = USUAL, case: Case = CASE) -> list[str]:
    """What the judge finds."""
    asked = {KEY: case.partitions[0]}
    verdict = judge(case, asked, direct, through, {KEY: LOG}, None, 1 << 20)
    return [kind for kind, _ in verdict.differences]


@pytest.mark.parametrize(
    ("through", "expected"),
    [
        (answer(WHOLE), []),
        (answer(part(1, 1, [(7, 0)])), []),
        (
            answer(part(1, 1, ALL)),
            [],
        ),  # the broker's list may reach further, and so may a forwarded one
        (answer(part(0, 3, ALL)), ["records"]),
        (answer(part(2, 2, ALL)), ["records"]),
        (answer(part(1, 3, [(7, 0)])), ["aborted"]),
        (answer(part(1, 3, [*ALL, (9, 1)])), ["aborted"]),
        (answer(part(1, 3, None)), ["null list"]),
        (answer(part(1, 3, ALL, high_watermark=5)), ["high_watermark"]),
        (answer(part(1, 3, ALL, last_stable_offset=3)), ["last_stable_offset"]),
        (answer(part(1, 3, ALL, log_start_offset=1)), ["log_start_offset"]),
        (answer(part(1, 3, ALL, diverging_epoch=(0, 2))), ["diverging_epoch"]),
        (answer(part(1, 0, None, error_code=1)), ["error"]),
        (answer(WHOLE, error=70), ["top error"]),
        (answer(WHOLE, session_id=5), ["session granted"]),
        (answer(WHOLE, throttle_ms=5), ["throttled"]),
        (answer(WHOLE, parts={}), ["names"]),
        (answer(WHOLE, endpoints=[(1, "h", 1, None)]), ["endpoints"]),
        (answer(WHOLE, is_repeating=True), ["a partition twice"]),
    ],
)
def test_what_is_noticed(through: Answer, expected: list[str]) -> None:
    assert kinds(through) == expected


def test_records_beyond_the_last_stable_offset() -> None:
    held = LOG._replace(stable=2)
    verdict = judge(
        CASE, {KEY: CASE.partitions[0]}, answer(WHOLE), answer(WHOLE), {KEY: held}, None, 1 << 20
    )
    assert [kind for kind, _ in verdict.differences] == ["limit"]


@pytest.mark.parametrize("most", [0, 1, BATCHES[0].end, len(RAW) - 1])
def test_budgets(most: int) -> None:
    """The first batch comes regardless, no other."""
    fits = max(1, most // BATCHES[0].end)
    case = CASE._replace(max_bytes=most)
    direct = answer(part(1, 3, ALL))
    fitting, over = (
        answer(part(1, count, [p for p in ALL if p[1] < 1 + count])) for count in (min(fits, 3), 3)
    )
    assert kinds(fitting, direct, case) == []
    assert kinds(over, direct, case) == ([] if fits >= 3 else ["budget"])


def test_what_lists_null_depends_on_the_room_that_others_left() -> None:
    """Of the second partition nothing fits: its list is null where some room was left for it, else it is empty."""
    null, empty = part(1, 0, None), part(1, 0, [])
    shorter = part(1, 2, [(7, 0)])
    assert kinds(answer(WHOLE, empty), answer(WHOLE, null)) == ["null list"]
    assert kinds(answer(WHOLE, empty), answer(shorter, null)) == []
    assert kinds(answer(WHOLE, WHOLE), answer(shorter, part(1, 3, None))) == ["null list"]


def test_records_under_way_are_pending() -> None:
    verdict = judge(
        CASE,
        {KEY: CASE.partitions[0]},
        answer(WHOLE),
        answer(part(1, 0, [])),
        {KEY: LOG},
        None,
        1 << 20,
    )
    assert verdict == ([], [KEY])


def test_what_an_incremental_answer_leaves_out_was_shown() -> None:
    asked = {KEY: CASE.partitions[0]}
    idle = answer(part(4, 0, []))
    for shown, expected in ((COUNT, []), (COUNT - 1, ["omission"])):
        views = View(), View()
        views[0].update(idle)
        views[1].update(answer(part(4, 0, [], high_watermark=shown)))
        verdict = judge(CASE, asked, answer(part(4, 0, [])), answer(), {KEY: LOG}, views, 1 << 20)
        assert [kind for kind, _ in verdict.differences] == expected
