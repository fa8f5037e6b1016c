"""The list as text and JSON, and its worst line."""

import json

import pytest

from proxy.doctor.checklist import (
    EXIT_CODES,
    CheckLine,
    failed,
    find_worst,
    format_json,
    format_text,
    passed,
    skipped,
    warned,
)

OK, SKIP = passed("memory", "enough"), skipped("clock", "not told")
WARN, FAIL = warned("disks", "none", "name them"), failed("broker", "silent", "start it")


@pytest.mark.parametrize(
    ("lines", "worst", "code"),
    [
        ([], "ok", 0),
        ([OK, SKIP], "skip", 0),
        ([OK, WARN, SKIP], "warn", 3),
        ([FAIL, WARN, OK], "fail", 1),
    ],
)
def test_the_worst_line_counts(lines: list[CheckLine], worst: str, code: int) -> None:
    assert find_worst(lines) == worst
    assert EXIT_CODES[find_worst(lines)] == code


def test_text_has_a_remedy_below_each_line_that_wants_one() -> None:
    assert format_text([OK, WARN, FAIL]) == (
        "ok    memory  enough\n"
        "warn  disks   none\n"
        "              -> name them\n"
        "fail  broker  silent\n"
        "              -> start it\n"
        "\n"
        "1 fail, 1 warn, 0 skip, 1 ok\n"
    )


def test_json_has_all_of_it() -> None:
    document = json.loads(format_json([OK, FAIL], "1.2"))
    assert (document["version"], document["worst"]) == ("1.2", "fail")
    assert document["checks"][1] == FAIL._asdict()
