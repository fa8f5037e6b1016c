"""What C says of ordinary frames, held against the scanners in Python; of anything else it says nothing."""

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import batch, ordinary, produce
from protocol.api import APIS, PRODUCE
from protocol.errors import BadFrame
from protocol.header import peek_request
from protocol.produce_build import Refused, build_refusal
from tests.fuzz.mutations import read_golden, spoil
from tests.kit.examples import examples
from tests.protocol import oracle
from tests.protocol.batches import batch_v2, message_v1

VERSIONS = oracle.versions(PRODUCE)
FIRST, LAST = VERSIONS[0], VERSIONS[-1]
NAMES_START, ROUTE_END = 2, 3
GOLDEN = [one for one in read_golden() if one.api_key == PRODUCE]


def scan(frame):
    return ordinary.scan_request(frame, len(frame))


def read(frame):
    """The same from Python; None where the frame is not ordinary. Raises BadFrame."""
    head = peek_request(frame)
    request = produce.scan_request(frame, head.api_version, head.body_start)
    if head.api_key != PRODUCE or len(request.partitions) != 1 or request.acks == 0:
        return None
    (asked,) = request.partitions
    (one,) = batch.scan_batches(frame, asked.start, asked.end)
    assert (one.start, one.end, one.magic) == (asked.start, asked.end, 2)
    facts = (one.attributes, one.last_offset - one.base_offset, one.crc)
    producer = (one.producer_id, one.producer_epoch, one.base_sequence, one.record_count)
    return [head.api_version, head.correlation_id, one.start, one.end, *facts, *producer]


def check(frame):
    """Whether the frame is ordinary; then both read the same in it."""
    scanned = scan(frame)
    assert scan(memoryview(bytearray(frame))) == scanned
    if scanned is not None:
        try:
            assert scanned[:NAMES_START] + scanned[ROUTE_END + 1 :] == read(frame)
        except BadFrame as error:
            assert "UTF-8" in str(error)  # names are read when a route is
    return scanned is not None


def build(
    version,
    *,
    acks=-1,
    records=None,
    topics=1,
    partitions=1,
    transactional_id=None,
    topic="orders",
    index=7,
):
    """One Produce by hand: the classic or the flexible layout of ProduceRequest.json."""
    flexible = version >= APIS[PRODUCE].flexible_from
    tags = b"\0" if flexible else b""

    def count(number, width=4):
        return oracle_varint(number + 1) if flexible else number.to_bytes(width, "big", signed=True)

    def text(value):
        raw = None if value is None else value.encode()
        return count(-1 if raw is None else len(raw), 2) + (raw or b"")

    records = batch_v2(3) if records is None else records
    length = oracle_varint(len(records) + 1) if flexible else len(records).to_bytes(4, "big")
    name = text(topic) if isinstance(topic, str) else topic
    if isinstance(topic, str) and version >= produce.TOPIC_IDS_FROM:
        name = bytes(range(16))
    one = index.to_bytes(4, "big", signed=True) + length + records + tags
    data = name + count(partitions) + one * partitions + tags
    head = (
        PRODUCE.to_bytes(2, "big")
        + version.to_bytes(2, "big")
        + (42).to_bytes(4, "big")
        + b"\0\1c"
        + tags
    )
    body = text(transactional_id) + acks.to_bytes(2, "big", signed=True) + (5000).to_bytes(4, "big")
    whole = head + body + count(topics) + data * topics + tags
    return len(whole).to_bytes(4, "big") + whole


def oracle_varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize("transactional_id", [None, "t"])
def test_an_ordinary_request_is_read_as_by_python(version, acks, transactional_id):
    producer = (7, 1, 5) if transactional_id else (-1, -1, -1)
    records = batch_v2(40, producer=producer, transactional=transactional_id is not None)
    frame = build(version, acks=acks, records=records, transactional_id=transactional_id)
    assert check(frame)
    route = frame[ordinary.ROUTE_START : scan(frame)[ROUTE_END]]
    assert route.startswith(b"\0\1c") and route.endswith(b"\0\0\0\7")


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_not_ordinary_is_left_to_python(version):
    two, old = batch_v2(1) + batch_v2(1), message_v1()
    others = [build(version, topics=2), build(version, partitions=2), build(version, acks=0)]
    others += [build(version, records=records) for records in (two, old, b"", batch_v2(1) + b"\0")]
    others += [build(FIRST - 1), build(LAST + 1), build(version) + b"\0"]
    assert not any(scan(frame) for frame in others)


def test_names_up_to_the_bound_and_one_byte_more():
    def named(route_bytes):
        frame = build(3, topic="t" * 200, transactional_id="")
        have = scan(frame)[ROUTE_END] - ordinary.ROUTE_START
        return build(3, topic="t" * 200, transactional_id="i" * (route_bytes - have))

    assert scan(named(1024))[ROUTE_END] == ordinary.ROUTE_START + 1024
    assert scan(named(1025)) is None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("change", [-1, 1, 40])
def test_a_part_of_a_frame_and_one_with_a_length_that_is_not_right_are_not_ordinary(
    version, change
):
    frame = build(version)
    assert not any(scan(frame[:end]) for end in range(len(frame)))
    at = scan(frame)[ROUTE_END + 1] + 11
    wrong = frame[:at] + bytes([(frame[at] + change) % 256]) + frame[at + 1 :]
    assert scan(wrong) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_beginning_says_what_the_whole_will_say_or_nothing(version):
    frame = build(version, records=batch_v2(40))
    whole = ordinary.scan_request(frame, len(frame))
    assert whole is not None
    enough = whole[ROUTE_END + 1] + 61
    for end in range(len(frame) + 1):
        assert ordinary.scan_begun(frame[:end], len(frame)) == (whole if end >= enough else None)
    assert not any(
        ordinary.scan_begun(frame[:enough], len(frame) + other) for other in (-4, -3, -1, 1, 3, 60)
    )


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=examples(8), deadline=None)
@given(data=st.data())
def test_of_any_request_of_kio_c_says_what_python_says_or_nothing(version, data):
    check(oracle.request_frame(data.draw(oracle.requests(PRODUCE, version))))


def test_requests_and_answers_of_real_clients_and_brokers_are_ordinary_and_spoiled_ones_agree():
    rng = random.Random(3)
    requests = [one.frame for one in GOLDEN if one.kind == "request"]
    assert sum(map(check, requests)) > len(requests) // 2
    for frame in requests:
        for _ in range(100):
            check(bytes(spoil(frame, rng)))


def names_of(frame):
    scanned = scan(frame)
    return frame[scanned[NAMES_START] : scanned[ROUTE_END]]


def find(answer, version, names):
    return ordinary.find_base_offset(answer, len(answer), version, names, len(names))


def build_answer(version, topic, base_offset, *indexes, error_code=0):
    """To a Produce of these partitions; `base_offset` in the first."""
    answer = build_refusal(version, 42, [Refused(topic, index, error_code) for index in indexes])
    return answer.replace(
        struct.pack(">hq", error_code, -1), struct.pack(">hq", error_code, base_offset), 1
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_is_read_as_by_python_where_it_is_about_what_was_asked(version):
    topic = bytes(range(16)) if version >= produce.TOPIC_IDS_FROM else "orders"
    answer = build_answer(version, topic, 1 << 40, 7)
    (said,) = produce.scan_response(answer, version).partitions
    assert (said.error_code, said.base_offset) == (0, 1 << 40)
    names = names_of(build(version))
    assert find(answer, version, names) == 1 << 40
    assert find(build_answer(version, topic, 5, 7, error_code=19), version, names) < 0
    assert find(build_answer(version, topic, -1, 7), version, names) < 0
    assert find(build_answer(version, topic, 5, 8), version, names) < 0
    assert find(build_answer(version, topic, 5, 7, 8), version, names) < 0
    assert all(find(answer[:end], version, names) < 0 for end in range(len(answer)))
    assert find(answer + b"\0", version, names) < 0


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=examples(8), deadline=None)
@given(data=st.data())
def test_of_any_answer_of_kio_c_says_what_python_says_or_nothing(version, data):
    body = data.draw(oracle.responses(PRODUCE, version))
    answer = oracle.response_frame(body)
    partitions = produce.scan_response(answer, version).partitions
    for one in partitions:
        asked = build(version, topic=one.topic, index=one.partition)
        if scan(asked) is not None:
            said = find(answer, version, names_of(asked))
            is_one = len(partitions) == len(body.responses) == 1
            assert said < 0 or (is_one and not one.error_code)
            assert said < 0 or said == one.base_offset
