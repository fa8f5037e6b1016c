"""What C says of ordinary Fetches and answers, held against the scanners in Python; else it says nothing."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import fetch, fetch_ordinary
from protocol.api import FETCH
from protocol.errors import BadFrame
from protocol.fetch import FetchPartition
from protocol.fetch_build import FetchAnswer, build_request, build_response
from protocol.header import CLIENT_ID_START, peek_request
from tests.fuzz.mutations import read_golden, spoil
from tests.kit.examples import examples
from tests.protocol import oracle
from tests.protocol.batches import batch_v2

VERSIONS = oracle.versions(FETCH)
FIRST, LAST = VERSIONS[0], VERSIONS[-1]
GOLDEN = [one for one in read_golden() if one.api_key == FETCH]
ID = bytes(range(16))
RECORDS = batch_v2(3)


def topic_of(version):
    return ID if version >= fetch.TOPIC_IDS_FROM else "orders"


def build(version, *, asked=1, client_id="c", rack_id="", index=7, topic=None):
    """A consumer's Fetch of so many partitions."""
    topic = topic or topic_of(version)
    partitions = [
        FetchPartition(topic, index + number, 3, 40, -1, -1, 1 << 20) for number in range(asked)
    ]
    return build_request(
        version,
        42,
        client_id,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=1,
        session_id=5,
        session_epoch=6,
        partitions=partitions,
        rack_id=rack_id,
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


def check(frame):
    """Whether the frame is ordinary; then both read the same in it."""
    frame = bytes(frame)
    scanned = fetch_ordinary.scan_request(frame)
    assert fetch_ordinary.scan_request(memoryview(bytearray(frame))) == scanned
    if scanned is None:
        return False
    version, correlation_id, client_id_end, body_start, replica_id, asked, start, end = scanned
    head = peek_request(frame)
    request = fetch.scan_request(frame, version, body_start)
    assert (head.api_key, head.api_version, head.correlation_id) == (FETCH, version, correlation_id)
    assert head.body_start == body_start
    raw = frame[CLIENT_ID_START + 2 : client_id_end]
    assert raw.decode("utf-8", "replace") == (head.client_id or "")
    assert (request.replica_id, len(request.partitions)) == (replica_id, asked)
    assert not request.forgotten
    if asked:
        (one,) = request.partitions
        name = one.topic if isinstance(one.topic, bytes) else one.topic.encode()
        assert name in frame[start:end]
        assert frame[start:end].endswith(one.partition.to_bytes(4, "big", signed=True))
    return True


def names_of(frame):
    scanned = fetch_ordinary.scan_request(frame)
    assert scanned is not None
    return frame[scanned[6] : scanned[7]] if scanned[5] else b""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("asked", [0, 1])
@pytest.mark.parametrize("client_id", [None, "", "c", "naïve"])
def test_an_ordinary_request_is_read_as_by_python(version, asked, client_id):
    assert check(build(version, asked=asked, client_id=client_id, rack_id="r1"))


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_not_ordinary_is_left_to_python(version):
    others = [build(version, asked=2), build(version) + b"\0"]
    if version < fetch.TOPIC_IDS_FROM:
        others.append(build(version, topic="naïve"))
    if version >= fetch.RACK_FROM:
        others.append(build(version, rack_id="naïve"))
    if version >= fetch.FLEXIBLE_FROM:
        others.append(build(version)[:-1] + b"\1\0\1\0")
    assert not any(map(check, others))
    frame = build(version)
    assert not any(fetch_ordinary.scan_request(frame[:end]) for end in range(len(frame)))
    for other in (FIRST - 1, LAST + 1):
        assert fetch_ordinary.scan_request(frame[:6] + other.to_bytes(2, "big") + frame[8:]) is None


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=examples(8), deadline=None)
@given(data=st.data())
def test_of_any_request_of_kio_c_says_what_python_says_or_nothing(version, data):
    check(oracle.request_frame(data.draw(oracle.requests(FETCH, version))))


def test_requests_of_real_clients_are_ordinary_and_spoiled_ones_agree():
    rng = random.Random(5)
    requests = [one.frame for one in GOLDEN if one.kind == "request"]
    assert sum(map(check, requests)) > len(requests) // 2
    for frame in requests:
        for _ in range(60):
            check(spoil(frame, rng))


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
