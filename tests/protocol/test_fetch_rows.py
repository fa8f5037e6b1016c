"""What C says of a Fetch's answer as rows, held against the scanner in Python; else it says nothing."""

import random
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import fetch
from protocol.api import FETCH
from protocol.errors import BadFrame
from protocol.fetch_build import FetchAnswer, build_response
from protocol.fetch_rows import ROOM, ROWS_VERSION, scan_rows
from protocol.primitives import Frame, build_uvarint
from tests.fuzz.mutations import read_golden, spoil
from tests.protocol import oracle
from tests.protocol.batches import batch_v2
from tests.proxy.tracing import count_calls

IDS = [bytes([number]) * 16 for number in range(3)]
RECORDS = batch_v2(3)
COUNT_AT = 9 + 4 + 2 + 4
"""Of the topics: behind length, correlation id, tags, throttle time, error and session id."""


def build(*answers: FetchAnswer, throttle_time_ms: int = 0, error_code: int = 0) -> bytes:
    return b"".join(
        build_response(
            ROWS_VERSION,
            42,
            throttle_time_ms=throttle_time_ms,
            error_code=error_code,
            session_id=5,
            partitions=answers,
        )
    )


def say(
    topic: bytes,
    index: int,
    records: bytes = RECORDS,
    error_code: int = 0,
    aborted: tuple[tuple[int, int], ...] | None = None,
) -> FetchAnswer:
    return FetchAnswer(topic, index, error_code, 90, 80, 7, aborted, (records,), len(records))


def check(frame: Frame) -> bool:
    """Whether C reads the answer; then it says what Python says."""
    said = scan_rows(frame)
    if said is not None:
        assert said == fetch.scan_response(frame, ROWS_VERSION)
    return said is not None


def test_answers_about_no_one_and_many_partitions_are_read() -> None:
    one = build(say(IDS[0], 7))
    many = build(*(say(topic, index, RECORDS[: 20 * index]) for topic in IDS for index in range(3)))
    refused = build(say(IDS[0], 7, b"", error_code=6), throttle_time_ms=9, error_code=70)
    for frame in (build(), one, many, refused):
        assert check(frame)
        assert check(bytearray(frame))
        assert check(memoryview(bytearray(frame)))
        assert not any(check(frame[:end]) for end in range(len(frame)))
        assert not check(frame + b"\0")


def test_an_answer_of_another_form_is_left_to_python() -> None:
    whole = build(say(IDS[0], 7))
    tagged = whole[:-1] + b"\1\0\1\0"
    for other in (
        build(say(IDS[0], 7, aborted=())),
        build(say(IDS[0], 7, aborted=((7, 41),))),
        tagged,
    ):
        assert not check(other)
        fetch.scan_response(other, ROWS_VERSION)


def test_records_may_be_null() -> None:
    whole = build(say(IDS[0], 7, b""))
    assert whole.endswith(b"\1\0\0\0")
    assert check(whole[:-4] + b"\0\0\0\0")
    null = scan_rows(whole[:-4] + b"\0\0\0\0")
    assert null is not None
    assert (null.partitions[0].start, null.partitions[0].end) == (-1, -1)


@pytest.mark.parametrize("is_split", [True, False])
def test_the_buffer_of_rows_has_an_end(is_split: bool) -> None:
    topics = IDS[:2] if is_split else IDS[:1]
    share = ROOM // len(topics)
    full = [say(topic, index, b"") for topic in topics for index in range(share)]
    assert check(build(*full))
    assert not check(build(*full, say(topics[-1], share, b"")))


@pytest.mark.parametrize("topics", [ROOM, ROOM + 1])
def test_so_has_the_buffer_of_topics(topics: int) -> None:
    none = build()
    assert none[COUNT_AT:] == b"\1\0"
    empty = bytes(16) + b"\1\0"
    assert check(none[:COUNT_AT] + build_uvarint(topics + 1) + empty * topics + b"\0") == (
        topics == ROOM
    )


def test_partitions_share_the_object_of_their_topic_and_call_nothing() -> None:
    counts = []
    for partitions in (1, 300):
        answers = [say(topic, index, b"") for topic in IDS for index in range(partitions)]
        frame = build(*answers)
        said = scan_rows(frame)
        assert said is not None and len(said.partitions) == len(answers)
        assert len({id(one.topic) for one in said.partitions}) == len(IDS)
        counts.append(count_calls(partial(scan_rows, frame)))
    assert counts[0] == counts[1] <= 3


def test_a_count_in_more_bytes_than_needed_is_the_same_count() -> None:
    whole = build(say(IDS[0], 7))
    assert whole[COUNT_AT] == 2
    check(whole[:COUNT_AT] + b"\x82\0" + whole[COUNT_AT + 1 :])


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_of_any_answer_of_kio_it_says_what_python_says_or_nothing(data: st.DataObject) -> None:
    check(oracle.response_frame(data.draw(oracle.responses(FETCH, ROWS_VERSION))))


def test_spoiled_answers_of_real_brokers_are_read_as_by_python_or_not() -> None:
    rng = random.Random(11)
    answers = [
        one.frame
        for one in read_golden()
        if (one.api_key, one.kind, one.version) == (FETCH, "response", ROWS_VERSION)
    ]
    assert any(map(check, answers))
    for frame in answers:
        for _ in range(300):
            spoiled = bytes(spoil(frame, rng))
            try:
                check(spoiled)
            except BadFrame:
                pytest.fail(f"C reads what Python refuses: {spoiled.hex()}")
