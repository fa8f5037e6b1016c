"""The scan and Arrow's reader accept what the judgement of one line accepts, and hand over the same values. A line of a
response has a row for each of its partitions.
"""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrics.access_log import AnsweredPartition, ResponseLine, format_lines
from metrics.access_log_schema import READ_VERSIONS
from spark_audit.lines import ScannedChunk, judge_line, scan_chunk
from tests.kit.log_lines import unfold
from tests.spark_audit.conftest import BAD_LINES
from tests.spark_audit.traffic import START_MS, write_log

LATEST_MS = START_MS + 10**9
FETCH = (
    '{"v":2,"type":"fetch","boot":"b","ts":%s,"listener":"main","connection":1,"clientId":%s,"apiVersion":17,"topic":"t"'
    ',"topicId":null,"partition":%s,"offset":-1,"isolation":0,"result":"%s","reason":"","bytes":%s,"highWatermark":5'
    ',"lag":5,"ageBytes":null,"waitMs":%s,"totalMs":0.297,"admittedBytes":0,"delayMs":null,"wouldHit":null}'
)

RESPONSE = (
    f'{{"v":4,"type":"response","boot":"b","ts":{START_MS},"section":3,"listener":"main","connection":1,"clientId":"c"'
    ',"group":null,"apiVersion":17,"isolation":0,"waitMs":0.000,"totalMs":0.297,"admittedBytes":0,"answers":[%s]}'
)
ROW = "[0,7,10,8,9,null,null,null]"


def line(
    ts: str = str(START_MS),
    client: str = '"c"',
    partition: str = "-1",
    result: str = "hit",
    size: str = "10",
    wait: str = "0.000",
) -> str:
    return FETCH % (ts, client, partition, result, size, wait)


def rows_of(scanned: ScannedChunk) -> dict[int, list[dict[str, Any]]]:
    """The rows of each good line, by its number."""
    found: dict[int, list[dict[str, Any]]] = {}
    for rows in scanned.good:
        columns = {name: column.to_pylist() for name, column in rows.columns.items()}
        for place, index in enumerate(rows.numbers.tolist()):
            one = {name: values[place] for name, values in columns.items()}
            found.setdefault(index, []).append(one)
    return found


def respond(*answers: str) -> str:
    return RESPONSE % ",".join(answers)


def answer(*rows: str, result: str = '"hit"', topic: str = '"t"') -> str:
    return f'{{"topic":{topic},"topicId":null,"result":{result},"reason":"","partitions":[{",".join(rows)}]}}'


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
        for row, wanted in zip(rows[index], unfold([judged]), strict=True):
            assert_equal(row, wanted, text)


def assert_equal(row: dict[str, Any], wanted: dict[str, Any], text: bytes) -> None:
    for name, value in row.items():
        if isinstance(value, float):
            assert isinstance(wanted.get(name), float | int)
            assert math.isclose(value, wanted[name], rel_tol=0, abs_tol=0), (name, text)
        elif not isinstance(value, list):
            assert value == wanted.get(name), (name, text)


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
        'null"v"',
    ],
)
def test_odd_lines_are_judged_alike_by_all_readers(text: str) -> None:
    assert_judged_alike([line().encode(), text.encode(), line(partition="12").encode()])


@pytest.mark.parametrize(
    "text",
    [
        respond(answer(ROW)),
        respond(answer(ROW, ROW), answer(ROW)),
        respond(answer(ROW, result='"miss"')),
        respond(answer(ROW), answer(ROW, topic="null")),
        respond(),
        respond(answer()),
        respond(answer(), answer(ROW)),
        respond(answer(ROW), answer()),
        respond(answer("[0,7,10,8,9,null,null]")),
        respond(answer("[0,7,10,8,9,null,null,null,null]")),
        respond(answer("[0,7,10,8,9,null,null,null]", "[0,7,10,8,9,null,null]")),
        respond(answer("[null,7,10,8,9,null,null,null]")),
        respond(answer("[0,7,null,8,9,null,null,null]")),
        respond(answer("[0,7,10,null,null,1,2,3]")),
        respond(answer("[0,9,10,8,null,1,2500,3]")),
        respond(answer("[0,7,1.5,8,9,null,null,null]")),
        respond(answer("[0,7,true,8,9,null,null,null]")),
        respond(answer('[0,7,"a",8,9,null,null,null]')),
        respond(answer("[0,7,10,8,9,null,null,[1]]")),
        respond(answer("[]")),
        respond(answer("[0,7", "[[0,7")).replace("]", ""),
        respond(answer("[0,7,10,8,9,null,null,null")).replace("]", "") + ",[[",
        respond(answer("null")),
        respond("null"),
        respond(answer(ROW), "null"),
        respond(answer(ROW) + answer(ROW)),
        respond(answer(ROW + ROW)),
        respond(answer(ROW), "", answer(ROW)),
        respond(answer(ROW))[:-1],
        respond(answer(ROW))[:-2] + "}",
        respond(answer(ROW)) + "}",
        respond(answer(ROW)).replace(',"answers":', ',"answerz":'),
        respond(answer(ROW)).replace('"partitions":', '"partition":'),
        respond(answer(ROW)).replace('"topic":"t",', ""),
        respond(answer(ROW)).replace('"clientId":"c"', '"clientId":null'),
        respond(answer(ROW)).replace('"section":3', '"section":null'),
        respond(answer(ROW), answer(ROW, topic='"a,b"')),
        respond(answer(ROW), answer(ROW, topic='"[1,2]"')),
        respond(answer(ROW), answer(ROW, topic='"],[0,7,10,8,9,null,null,null"')),
        respond(answer(ROW), answer(ROW, topic='"]]},{"')),
        respond(answer(ROW), answer(ROW, topic='"a[["')),
        respond(answer(ROW), answer(ROW, topic='"}]"')),
        respond(answer(ROW)).replace('"clientId":"c"', '"clientId":"[{]"'),
        respond(answer(ROW)).replace('"clientId":"c"', '"clientId":"[]"'),
        respond(answer(ROW)).replace('"clientId":"c"', '"clientId":"\\u00fc"'),
        respond(answer(ROW)).replace(",", ", "),
        respond(answer(ROW, result='"luck"')),
        respond(answer(ROW), answer(ROW, result="null")),
    ],
)
def test_odd_responses_are_judged_alike_by_all_readers(text: str) -> None:
    good = respond(answer(ROW, ROW)).encode()
    assert_judged_alike([good, text.encode(), line().encode(), good])
    assert_judged_alike([text.encode()])


@settings(deadline=None)
@given(
    st.lists(
        st.builds(
            AnsweredPartition,
            topic=st.none() | st.sampled_from(["orders", "a,b", "[", "ü", "]]},{"]),
            topic_id=st.none() | st.sampled_from([b"1" * 16, bytes(16)]),
            result=st.sampled_from(["hit"]),
            reason=st.sampled_from([""]),
            partition=st.integers(-1, 2**31 - 1),
            offset=st.integers(-1, 2**62),
            bytes=st.integers(0, 2**31),
            high_watermark=st.integers(-1, 2**62),
            age_bytes=st.none() | st.integers(0, 2**62),
            timestamp_ms=st.none() | st.integers(-1, 2**62),
            delay_us=st.none() | st.integers(0, 2**40),
            would_hit_bytes=st.none() | st.integers(0, 2**31),
        ),
        min_size=1,
        max_size=9,
    ),
    st.none() | st.text(max_size=9),
    st.integers(1, 3),
)
def test_rows_are_what_was_put(answers, client_id, times) -> None:
    put: Any = ResponseLine(
        START_MS, "main", 7, client_id, None, 13, 1, 1.5, 2.25, 1 << 40, answers
    )
    text = format_lines("b1", 5, [put] * times).encode()
    scanned = scan_chunk(text, LATEST_MS)
    assert scanned.bad == [] and scanned.lines == times
    wanted = list(unfold(map(json.loads, text.splitlines())))
    assert len(wanted) == times * len(answers)
    assert [row for rows in rows_of(scanned).values() for row in rows] == wanted
    for row, one in zip(wanted, answers * times, strict=True):
        assert (row["topic"], row["partition"], row["bytes"]) == (
            one.topic,
            one.partition,
            one.bytes,
        )
        assert (row["clientId"], row["timestamp"]) == (client_id, one.timestamp_ms)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from([line(), respond(answer(ROW, ROW), answer(ROW, topic="null"), answer(ROW))]),
    st.integers(0, 900),
    st.sampled_from([bytes([one]) for one in b'[]{},":0-n']) | st.binary(min_size=1, max_size=3),
)
def test_a_changed_byte_is_judged_alike(good: str, at: int, change: bytes) -> None:
    text = good.encode()
    at %= len(text)
    changed = (text[:at] + change + text[at + len(change) :]).replace(b"\n", b" ")
    scanned = scan_chunk(b"".join(one + b"\n" for one in (text, changed, text)), 1 << 60)
    judged = judge_line(changed)
    rows = rows_of(scanned)
    if isinstance(judged, str):
        assert [(one.number, one.problem) for one in scanned.bad] == [(1, judged)]
    elif judged["ts"] >= 1_577_836_800_000:
        for row, wanted in zip(rows[1], unfold([judged]), strict=True):
            assert row == {name: wanted.get(name) for name in row}


@pytest.mark.parametrize("ts", [253_402_300_800_000, 0, LATEST_MS + 1])
def test_a_clock_that_is_wrong_is_a_problem_and_no_row(ts: int) -> None:
    """The first: a time stamp in the year 10000."""
    scanned = scan_chunk(f"{line()}\n{line(ts=str(ts))}\n".encode(), LATEST_MS)
    assert [(one.number, one.problem) for one in scanned.bad] == [(1, "implausible-clock")]
    assert json.loads(line(ts=str(ts)))["ts"] == ts
