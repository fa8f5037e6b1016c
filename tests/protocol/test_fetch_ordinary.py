"""What C says of ordinary answers to a Fetch, held against the scanner in Python; else it says nothing."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import fetch, fetch_ordinary
from protocol.api import FETCH
from protocol.errors import BadFrame
from protocol.fetch import FetchPartition
from protocol.fetch_build import FetchAnswer, build_request, build_response
from protocol.fetch_rows import scan_head
from tests.fuzz.mutations import read_golden, spoil
from tests.kit.examples import examples
from tests.protocol import oracle
from tests.protocol.batches import batch_v2

VERSIONS = oracle.versions(FETCH)
GOLDEN = [one for one in read_golden() if one.api_key == FETCH]
ID = bytes(range(16))
RECORDS = batch_v2(3)


def topic_of(version):
    return ID if version >= fetch.TOPIC_IDS_FROM else "orders"


def build(version):
    """A consumer's Fetch of one partition."""
    return build_request(
        version,
        42,
        "c",
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=1,
        session_id=5,
        session_epoch=6,
        partitions=[FetchPartition(topic_of(version), 7, 3, 40, -1, -1, 1 << 20)],
        rack_id="r1",
    )


def answer(version, *, index=7, records=RECORDS, aborted=None, topic=None, answers=1):
    """A broker's answer about so many partitions."""
    topic = topic or topic_of(version)
    said = [
        FetchAnswer(topic, index + number, 0, 90, 80, 0, aborted, (records,), len(records))
        for number in range(answers)
    ]
    return b"".join(
        build_response(version, 42, throttle_time_ms=0, error_code=0, session_id=5, partitions=said)
    )


def names_of(frame):
    """The bytes that name the one partition of a request."""
    head = scan_head(frame, len(frame))
    assert head is not None and head.partitions == 1
    return frame[head.names_start : head.names_end]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("aborted", [None, (), ((7, 41), (8, 42))])
def test_an_answer_is_read_as_by_python_whole_or_as_far_as_its_records_have_come(version, aborted):
    whole = answer(version, aborted=aborted)
    (said,) = fetch.scan_response(whole, version).partitions
    expected = [said.start, said.end]
    for names in (names_of(build(version)), b""):
        assert fetch_ordinary.scan_answer(whole, len(whole), version, names) == expected
        in_view = memoryview(bytearray(whole))
        assert fetch_ordinary.scan_answer(in_view, len(whole), version, names) == expected
        for received in range(len(whole)):
            found = fetch_ordinary.scan_answer(whole[:received], len(whole), version, names)
            assert found == (expected if said.start <= received < said.end else None)
        assert fetch_ordinary.scan_answer(whole + b"\0", len(whole) + 1, version, names) is None
        too_few = said.end - 1
        assert fetch_ordinary.scan_answer(whole[: said.start], too_few, version, names) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_about_something_else_or_of_another_form_is_left_to_python(version):
    names = names_of(build(version))
    other = bytes(16) if version >= fetch.TOPIC_IDS_FROM else "others"
    for frame in (
        answer(version, index=8),
        answer(version, topic=other),
        answer(version, answers=2),
    ):
        assert fetch_ordinary.scan_answer(frame, len(frame), version, names) is None
    assert fetch_ordinary.scan_answer(answer(version, answers=2), 1 << 20, version, b"") is None


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=examples(8), deadline=None)
@given(data=st.data())
def test_of_any_answer_of_kio_c_says_what_python_says_or_nothing(version, data):
    frame = oracle.response_frame(data.draw(oracle.responses(FETCH, version)))
    received = data.draw(st.sampled_from((len(frame), data.draw(st.integers(0, len(frame))))))
    found = fetch_ordinary.scan_answer(frame[:received], len(frame), version, b"")
    if found is not None:
        (said,) = fetch.scan_response(frame, version).partitions
        assert found == [said.start, said.end]
        assert received == len(frame) or said.start <= received < said.end


def test_answers_of_real_brokers_are_ordinary_and_spoiled_ones_agree():
    rng = random.Random(7)
    answers = [one for one in GOLDEN if one.kind == "response"]
    ordinary = 0
    for one in answers:
        for number in range(60):
            frame = bytes(spoil(one.frame, rng)) if number else one.frame
            found = fetch_ordinary.scan_answer(frame, len(frame), one.version, b"")
            if found is None:
                continue
            ordinary += number == 0
            try:
                (said,) = fetch.scan_response(frame, one.version).partitions
            except BadFrame as error:
                assert "UTF-8" in str(error)
            else:
                assert found == [said.start, said.end]
    assert ordinary > len(answers) // 4
