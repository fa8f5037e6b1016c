"""The comparison can fail: outputs that differ, miss a step, saw nothing, or are equally wrong."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from tests.matrix.compare import (
    BROKEN,
    DIFFERS,
    EQUAL,
    NO,
    Limit,
    compare,
    find_difference,
    judge_step,
    scan_lines,
)
from tests.matrix.programme import NAMES, build_value, digest_of, wrong_record

LIMIT = Limit("not of the .* protocol", "too old")


def codec_line(step: str = "codec-none") -> dict[str, Any]:
    """What a client prints that has seen all records as they were sent."""
    records: list[list[Any]] = [
        [
            0,
            number,
            None if number % 5 == 4 else f"k{number % 3}".encode().hex(),
            digest_of(build_value(number)),
            [],
            1,
            "CreateTime",
        ]
        for number in range(30)
    ]
    return {"step": step, "seen": {"offsets": list(range(30)), "records": records}}


def seen(value: object) -> dict[str, Any]:
    return {"step": "seeks", "seen": value}


def test_equal_results_are_equal() -> None:
    assert judge_step("codec-none", codec_line(), codec_line()) == (EQUAL, "")
    assert judge_step("seeks", seen({"a": 1}), seen({"a": 1})) == (EQUAL, "")


@pytest.mark.parametrize(
    ("place", "value"),
    [(1, 8), (2, "00"), (3, "1:ab"), (4, [["number", "31"]]), (5, 2), (6, "LogAppendTime")],
    ids=["offset", "key", "value", "headers", "timestamp", "timestamp type"],
)
def test_every_part_of_a_record_is_compared(place: int, value: object) -> None:
    through = codec_line()
    through["seen"]["records"][7][place] = value
    verdict, note = judge_step("codec-none", codec_line(), through)
    assert verdict == DIFFERS
    assert note.startswith(f"/seen/records/7/{place}: ")


@pytest.mark.parametrize("change", ["lost", "twice", "order", "told"])
def test_lost_doubled_and_reordered_records_differ(change: str) -> None:
    through = codec_line()
    records = through["seen"]["records"]
    if change == "lost":
        del records[29]
    elif change == "twice":
        records.append(records[29])
    elif change == "order":
        records[3], records[4] = records[4], records[3]
    else:
        through["seen"]["offsets"][2] = 7
    assert judge_step("codec-none", codec_line(), through).verdict == DIFFERS


@pytest.mark.parametrize("change", ["value", "key", "lost"])
def test_what_is_wrong_on_both_ways_is_not_equal(change: str) -> None:
    both = codec_line()
    if change == "value":
        both["seen"]["records"][5][3] = "3:aaaaaaaaaaaa"
    elif change == "key":
        both["seen"]["records"][4][2] = "00"
    else:
        del both["seen"]["records"][29]
    assert wrong_record("codec-none", both["seen"])
    assert judge_step("codec-none", both, deepcopy(both)).verdict == BROKEN


@pytest.mark.parametrize("nothing", [None, {}, [], ""])
def test_nothing_seen_is_broken(nothing: object) -> None:
    assert judge_step("seeks", seen(nothing), seen(nothing)).verdict == BROKEN


def test_a_step_that_says_nothing_is_broken() -> None:
    line = seen({"a": 1})
    assert judge_step("seeks", line, None) == (BROKEN, "said nothing through")
    assert judge_step("seeks", None, line) == (BROKEN, "said nothing directly")
    assert judge_step("seeks", None, None) == (BROKEN, "said nothing directly and through")
    assert {cell.verdict for cell in compare(NAMES, {}, {}, {}).values()} == {BROKEN}


def test_an_error_is_never_equal() -> None:
    failed = {"step": "seeks", "error": "the group is not of the consumer protocol"}
    assert judge_step("seeks", failed, seen({"a": 1})).verdict == DIFFERS
    assert judge_step("seeks", seen({"a": 1}), failed).verdict == DIFFERS
    assert judge_step("seeks", failed, failed).verdict == BROKEN


def test_a_known_limit_is_a_no_only_for_its_own_error_on_both_ways() -> None:
    failed = {"step": "seeks", "error": "the group is not of the consumer protocol"}
    other = {"step": "seeks", "error": "timed out"}
    assert judge_step("seeks", failed, failed, LIMIT) == (NO, "too old")
    assert judge_step("seeks", failed, other, LIMIT).verdict == BROKEN
    assert judge_step("seeks", failed, seen({"a": 1}), LIMIT).verdict == DIFFERS
    assert judge_step("seeks", seen({"a": 1}), seen({"a": 1}), LIMIT).verdict == BROKEN


def test_what_a_client_says_it_cannot_is_a_no_with_its_reason() -> None:
    lacking = {"step": "seeks", "no": "has no seek"}
    assert judge_step("seeks", lacking, lacking) == (NO, "has no seek")
    assert judge_step("seeks", lacking, seen({"a": 1})).verdict == DIFFERS
    assert (
        judge_step("seeks", lacking, {"step": "seeks", "no": "another reason"}).verdict == DIFFERS
    )
    assert (
        judge_step("seeks", {"step": "seeks", "no": ""}, {"step": "seeks", "no": ""}).verdict
        == BROKEN
    )


def test_parts_that_a_client_has_not_are_noted() -> None:
    line = seen({"low watermark": "no: has no DeleteRecords", "left": [1, ["no: x"]]})
    assert judge_step("seeks", line, line) == (EQUAL, "has no DeleteRecords; x")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"b": 1}),
        ([1], [1, 2]),
        ([1], {"0": 1}),
        (1, True),
        (1, "1"),
        (None, 0),
    ],
)
def test_unequal_values_have_a_difference(one: object, other: object) -> None:
    assert find_difference(one, other)
    assert find_difference(other, one)
    assert not find_difference(one, deepcopy(one))


def test_lines_are_read_without_times_and_names_of_runs() -> None:
    line = {"step": "seeks", "seen": {"d123-group": ["d123-group-0"]}, "ms": 7}
    printed = f"a log line\n{json.dumps(line)}\n"
    wanted = {"seeks": {"step": "seeks", "seen": {"RUN-group": ["RUN-group-0"]}}}
    assert scan_lines(printed, "d123") == wanted
    other = printed.replace("d123", "t456").replace('"ms": 7', '"ms": 8')
    assert scan_lines(other, "t456") == wanted
