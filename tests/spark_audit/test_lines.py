"""The scan and Arrow's reader accept what the judgement of one line accepts, and hand over the same values."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrics.access_log_schema import READ_VERSIONS
from spark_audit.lines import ScannedChunk, all_fields, judge_line, scan_chunk
from tests.spark_audit.conftest import BAD_LINES
from tests.spark_audit.traffic import START_MS, write_log

LATEST_MS = START_MS + 10**9
FETCH = (
    '{"v":2,"type":"fetch","boot":"b","ts":%s,"listener":"main","connection":1,"clientId":%s,"apiVersion":17,"topic":"t"'
    ',"topicId":null,"partition":%s,"offset":-1,"isolation":0,"result":"%s","reason":"","bytes":%s,"highWatermark":5'
    ',"lag":5,"ageBytes":null,"waitMs":%s,"totalMs":0.297,"admittedBytes":0,"delayMs":null,"wouldHit":null}'
)


def line(
    ts: str = str(START_MS),
    client: str = '"c"',
    partition: str = "-1",
    result: str = "hit",
    size: str = "10",
    wait: str = "0.000",
) -> str:
    return FETCH % (ts, client, partition, result, size, wait)


def rows_of(scanned: ScannedChunk) -> dict[int, dict[str, Any]]:
    found = {}
    for rows in scanned.good:
        columns = {name: column.to_pylist() for name, column in rows.columns.items()}
        for place, index in enumerate(rows.numbers.tolist()):
            found[index] = {name: values[place] for name, values in columns.items()}
    return found


def assert_judged_alike(texts: list[bytes]) -> None:
    scanned = scan_chunk(b"".join(text + b"\n" for text in texts), LATEST_MS)
    rows = rows_of(scanned)
    bad = {one.number: one.problem for one in scanned.bad}
    assert scanned.lines == len(texts) == len(rows) + len(bad)
    for index, text in enumerate(texts):
        judged = judge_line(text)
        if isinstance(judged, str):
            assert bad[index] == judged, text
            continue
        assert index in rows, text
        for name, value in rows[index].items():
            wanted = judged.get(name)
            if isinstance(value, float):
                assert isinstance(wanted, float | int)
                assert math.isclose(value, wanted, rel_tol=0, abs_tol=0), (name, text)
            elif not isinstance(value, list):
                assert value == wanted, (name, text)


@pytest.mark.parametrize("version", READ_VERSIONS)
def test_the_writer_s_lines_have_the_values_of_a_json_reader(tmp_path, version: int) -> None:
    write_log(tmp_path, "b1", rounds=150, version=version)
    texts = []
    for path in sorted(tmp_path.glob("*.jsonl")):
        texts += path.read_bytes().splitlines()
    assert len(texts) > 100
    assert_judged_alike(texts)
    scanned = scan_chunk(b"".join(text + b"\n" for text in texts), LATEST_MS)
    assert scanned.bad == [] and {rows.line_type for rows in scanned.good} >= {"fetch", "block"}


@pytest.mark.parametrize("problem", BAD_LINES)
def test_bad_lines_have_their_problem_between_good_ones(problem: str) -> None:
    for text in BAD_LINES[problem]:
        scanned = scan_chunk(f"{line()}\n{text}\n{line()}\n".encode(), LATEST_MS)
        assert [(one.number, one.problem) for one in scanned.bad] == [(1, problem)]
        assert sorted(rows_of(scanned)) == [0, 2]


@pytest.mark.parametrize(
    "text",
    [
        line() + line(),
        line() + " " + line(),
        line(size="007"),
        line(size="1.0"),
        line(size="1e3"),
        line(size="-0"),
        line(size=str(1 << 63)),
        line(size=str((1 << 63) - 1)),
        line(size="true"),
        line(size=""),
        line(size="null"),
        line(wait="1.5"),
        line(wait=".500"),
        line(wait="1..00"),
        line(wait="-1.000"),
        line(wait="01.000"),
        line(wait="NaN"),
        line(client='"a,b"'),
        line(client='"a\\"b"'),
        line(client='"a"b"'),
        line(client='"\\u00fc"'),
        line(client='"ü"'),
        line(client="null"),
        line(client="nule"),
        line(result="luck"),
        line()[:-1],
        line()[:-1] + ',"more":1}',
        line().replace('"offset"', '"offsez"'),
        line().replace('"v":2', '"v":9'),
        line().replace(",", ", "),
        "\x00" * 40,
    ],
)
def test_odd_lines_are_judged_alike_by_all_readers(text: str) -> None:
    assert_judged_alike([line().encode(), text.encode(), line(partition="12").encode()])


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 600), st.binary(min_size=1, max_size=3))
def test_a_changed_byte_is_judged_alike(at: int, change: bytes) -> None:
    text = line().encode()
    at %= len(text)
    changed = (text[:at] + change + text[at + len(change) :]).replace(b"\n", b" ")
    scanned = scan_chunk(b"".join(one + b"\n" for one in (text, changed, text)), 1 << 60)
    judged = judge_line(changed)
    rows = rows_of(scanned)
    if isinstance(judged, str):
        assert [(one.number, one.problem) for one in scanned.bad] == [(1, judged)]
    elif judged["ts"] >= START_MS:
        assert {name: value for name, value in rows[1].items() if name in all_fields()} == {
            name: judged.get(name) for name in rows[1]
        }


@pytest.mark.parametrize("ts", [253_402_300_800_000, 0, LATEST_MS + 1])
def test_a_clock_that_is_wrong_is_a_problem_and_no_row(ts: int) -> None:
    """The first: a time stamp in the year 10000."""
    scanned = scan_chunk(f"{line()}\n{line(ts=str(ts))}\n".encode(), LATEST_MS)
    assert [(one.number, one.problem) for one in scanned.bad] == [(1, "implausible-clock")]
    assert json.loads(line(ts=str(ts)))["ts"] == ts
