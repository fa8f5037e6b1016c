"""Rows that C makes of Produces and of their responses, held against the scanners in Python."""

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import batch, produce
from protocol.api import APIS, PRODUCE
from protocol.errors import BadFrame
from protocol.header import peek_request
from protocol.produce_build import Refused, build_refusal
from protocol.produce_rows import ROOM, ROUTE_START, Row, scan_request, scan_response, scan_single
from tests.fuzz.mutations import read_golden, spoil
from tests.kit import produce_messages
from tests.kit.examples import examples
from tests.protocol import oracle
from tests.protocol.batches import batch_v2, message_v1

VERSIONS = oracle.versions(PRODUCE)
FIRST, LAST = VERSIONS[0], VERSIONS[-1]
GOLDEN = [one for one in read_golden() if one.api_key == PRODUCE]
MOST = 10_000
BATCH_HEADER = 61


def scan(frame, most=MOST):
    scanned = scan_request(frame, len(frame), most)
    return None if scanned is None else (scanned[0], list(scanned[1]))


def scan_one(frame):
    return scan_single(frame, len(frame))


def read_batch(frame, asked):
    """The fields of a row behind its start, from Python."""
    unknown = (-1,) * 6
    if asked.start < 0:
        return -1, -1, *unknown
    try:
        batches = batch.scan_batches(frame, asked.start, asked.end)
    except BadFrame:
        batches = []
    if len(batches) != 1:
        return asked.end, -1, *unknown
    (one,) = batches
    if one.magic < 2:
        return one.end, one.magic, *unknown
    delta = one.last_offset - one.base_offset
    producer = one.producer_id, one.producer_epoch, one.base_sequence, one.record_count
    return one.end, 2, one.attributes, delta, *producer


def read(frame):
    """Head and rows from Python, each topic as it is read. Raises BadFrame."""
    head = peek_request(frame)
    request = produce_messages.scan_request(frame, head.api_version, head.body_start)
    nulls = sum(one.start < 0 for one in request.partitions)
    fields = (head.api_version, head.correlation_id, head.body_start)
    top = (*fields, int(request.transactional_id is not None), request.acks, nulls)
    rows = [
        (one.topic, one.partition, one.start, *read_batch(frame, one)) for one in request.partitions
    ]
    return top, rows


def check(frame):
    """Whether the frame is well-formed; then both read the same in it."""
    scanned = scan(frame)
    assert scan(memoryview(bytearray(frame))) == scanned
    try:
        expected = read(frame)
    except BadFrame as error:
        assert scanned is None or "UTF-8" in str(error)  # texts are decoded when they are looked up
        return False
    if peek_request(frame).api_key != PRODUCE:
        assert scanned is None
        return False
    assert scanned is not None
    head, rows = scanned
    top = (*head[:5], head.null_records)
    named = [produce.peek_topic(frame, head.version, row.topic_start) for row in rows]
    assert (top, [(topic, *row[2:]) for topic, row in zip(named, rows, strict=True)]) == expected
    single = scan_single(bytes(frame), len(frame))
    if single is not None:
        assert [single[1]] == rows and single[0][:6] == head[:6]
        assert len(rows) == 1 and rows[0].magic == 2 and head.acks
    return True


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
@pytest.mark.parametrize("acks", [-1, 0, 1])
@pytest.mark.parametrize("transactional_id", [None, "t"])
def test_a_request_is_read_as_by_python(version, acks, transactional_id):
    producer = (7, 1, 5) if transactional_id else (-1, -1, -1)
    records = batch_v2(40, producer=producer, transactional=transactional_id is not None)
    for topics, partitions in ((1, 1), (2, 3), (0, 0), (1, 0), (3, ROOM)):
        values = {"acks": acks, "transactional_id": transactional_id, "topics": topics}
        frame = build(version, records=records, partitions=partitions, **values)
        assert check(frame)
        _, rows = scan(frame)
        assert len(rows) == topics * partitions
        spans = {frame[row.topic_start : row.topic_end] for row in rows}
        assert len(spans) == (1 if rows else 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_records_that_are_not_one_batch_say_so(version):
    two, old, torn = batch_v2(1) + batch_v2(1), message_v1(), batch_v2(1)[:-1]
    for records, magic in (
        (two, -1),
        (b"", -1),
        (torn, -1),
        (batch_v2(1)[:16] + b"\3" + batch_v2(1)[17:], -1),
        (old, 1),
        (old + old, -1),
        (batch_v2(1), 2),
        (batch_v2(1) + b"\0", 2),
        (batch_v2(1) + batch_v2(1)[:40], 2),
        (batch_v2(1) + struct.pack(">qi", 0, 3), -1),
    ):
        frame = build(version, records=records)
        assert check(frame)
        (row,) = scan(frame)[1]
        assert row.magic == magic
        assert row.producer_epoch == -1
        assert magic != 2 or row.end - row.start == len(batch_v2(1))


@pytest.mark.parametrize("version", VERSIONS)
def test_null_records_are_counted(version):
    frame = build(version, records=b"")
    null = b"\0" if version >= APIS[PRODUCE].flexible_from else b"\xff\xff\xff\xff"
    at = scan(frame)[1][0].start
    width = len(null)
    frame = frame[: at - width] + null + frame[at:]
    assert check(frame)
    head, (row,) = scan(frame)
    assert (head.null_records, row.start, row.end) == (1, -1, -1)


def test_other_versions_and_other_requests_are_not_read():
    frame = build(FIRST)
    others = [build(FIRST - 1), build(LAST + 1), frame[:4] + b"\0\1" + frame[6:]]
    assert [scan(one) for one in others] == [None] * 3


def test_what_is_behind_the_last_field_is_ignored():
    for version in VERSIONS:
        frame = build(version) + b"more"
        assert check(frame)
        assert scan_one(frame) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_a_part_of_a_frame_is_malformed(version):
    frame = build(version, topics=2, partitions=2)
    assert not any(scan(frame[:end]) for end in range(len(frame)))


@pytest.mark.parametrize("version", VERSIONS)
def test_more_than_may_be_read_is_not(version):
    frame = build(version, topics=2, partitions=50)
    assert len(frame) > 2 * 102
    assert scan(frame, 101) is None
    assert len(scan(frame, 102)[1]) == 100


def test_names_up_to_the_bound_of_a_route_and_one_byte_more():
    def named(route_bytes):
        frame = build(3, topic="t" * 200, transactional_id="")
        have = scan_one(frame)[0].route_end - ROUTE_START
        return build(3, topic="t" * 200, transactional_id="i" * (route_bytes - have))

    most, over = named(1024), named(1025)
    assert scan_one(most)[0].route_end == ROUTE_START + 1024
    assert scan_one(over) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_of_a_single_request_the_bytes_to_the_partition_s_index_are_a_route(version):
    frame = build(version)
    head, row = scan_one(frame)
    route = frame[ROUTE_START : head.route_end]
    assert route.startswith(b"\0\1c") and route.endswith(b"\0\0\0\7")
    assert row == scan(frame)[1][0] and isinstance(row, Row)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_not_single_is_not(version):
    two, old = batch_v2(1) + batch_v2(1), message_v1()
    others = [build(version, topics=2), build(version, partitions=2), build(version, acks=0)]
    others += [build(version, records=records) for records in (two, old, b"", batch_v2(1) + b"\0")]
    others += [build(FIRST - 1), build(LAST + 1), build(version) + b"\0"]
    assert not any(scan_one(frame) for frame in others)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("change", [-1, 1, 40])
def test_a_batch_with_a_length_that_is_not_right_is_not_single(version, change):
    frame = build(version)
    at = scan(frame)[1][0].start + 11
    wrong = frame[:at] + bytes([(frame[at] + change) % 256]) + frame[at + 1 :]
    assert scan_one(wrong) is None
    check(wrong)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_beginning_says_what_the_whole_will_say_or_nothing(version):
    frame = build(version, records=batch_v2(40))
    whole = scan_one(frame)
    assert whole is not None
    enough = whole[1].start + BATCH_HEADER
    for end in range(len(frame) + 1):
        assert scan_single(frame[:end], len(frame)) == (whole if end >= enough else None)
    assert not any(
        scan_single(frame[:enough], len(frame) + other) for other in (-4, -3, -1, 1, 3, 60)
    )


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=examples(8), deadline=None)
@given(data=st.data())
def test_any_request_of_kio_is_read_as_by_python(version, data):
    assert check(oracle.request_frame(data.draw(oracle.requests(PRODUCE, version))))


def test_requests_of_real_clients_are_read_as_by_python_and_so_are_spoiled_ones():
    rng = random.Random(3)
    requests = [one.frame for one in GOLDEN if one.kind == "request"]
    assert all(map(check, requests))
    for frame in requests:
        for _ in range(100):
            spoiled = bytes(spoil(frame, rng))
            try:
                peek_request(spoiled)
            except BadFrame:
                continue
            check(spoiled)


def build_answer(version, topic, base_offset, *indexes, error_code=0):
    """To a Produce of these partitions; `base_offset` in the first."""
    answer = build_refusal(version, 42, [Refused(topic, index, error_code) for index in indexes])
    return answer.replace(
        struct.pack(">hq", error_code, -1), struct.pack(">hq", error_code, base_offset), 1
    )


def check_answer(frame, version):
    """Whether the response is well-formed; then both read the same in it."""
    rows = scan_response(frame, version)
    assert scan_response(memoryview(bytearray(frame)), version) == rows
    try:
        expected = produce_messages.scan_response(frame, version).partitions
    except BadFrame as error:
        assert rows is None or "UTF-8" in str(error)
        return False
    assert rows is not None
    named = [produce.peek_topic(frame, version, row.topic_start) for row in rows]
    assert [(topic, *row[2:]) for topic, row in zip(named, rows, strict=True)] == [
        tuple(one) for one in expected
    ]
    return True


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_is_read_as_by_python(version):
    topic = bytes(range(16)) if version >= produce.TOPIC_IDS_FROM else "orders"
    answer = build_answer(version, topic, 1 << 40, *range(7))
    assert check_answer(answer, version)
    found = scan_response(answer, version)
    assert found is not None
    first = found[0]
    assert (first.error_code, first.base_offset) == (0, 1 << 40)
    asked = build(version)
    (row,) = scan(asked)[1]
    assert answer[first.topic_start : first.topic_end] == asked[row.topic_start : row.topic_end], (
        "a topic is written in both alike"
    )
    assert check_answer(build_answer(version, topic, 5, 7, error_code=19), version)
    assert check_answer(build_answer(version, topic, 5, *range(ROOM + 1)), version)
    assert all(scan_response(answer[:end], version) is None for end in range(len(answer)))
    assert check_answer(answer + b"more", version)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=examples(8), deadline=None)
@given(data=st.data())
def test_any_response_of_kio_is_read_as_by_python(version, data):
    body = data.draw(oracle.responses(PRODUCE, version))
    assert check_answer(oracle.response_frame(body), version)


def test_responses_of_real_brokers_are_read_as_by_python_and_so_are_spoiled_ones():
    rng = random.Random(3)
    for one in GOLDEN:
        if one.kind == "response":
            assert check_answer(one.frame, one.version)
            for _ in range(100):
                check_answer(bytes(spoil(one.frame, rng)), one.version)
