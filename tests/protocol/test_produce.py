"""Produce against kio, every version; what kio cannot write is written by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.api import PRODUCE
from protocol.errors import BadFrame
from protocol.header import peek_request
from tests.kit import produce_messages
from tests.kit.examples import examples
from tests.protocol import oracle

VERSIONS = oracle.versions(PRODUCE)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=examples(8), deadline=None)
@given(data=st.data())
def test_a_request_of_kio_is_scanned(version, data):
    body = data.draw(oracle.requests(PRODUCE, version))
    frame = oracle.request_frame(body)

    scanned = produce_messages.scan_request(frame, version, peek_request(frame).body_start)

    assert (scanned.transactional_id, scanned.acks) == (body.transactional_id, body.acks)
    assert scanned.timeout_ms == oracle.milliseconds(body.timeout)
    expected = [
        (oracle.topic_of(topic), partition.index, partition.records)
        for topic in body.topic_data
        for partition in topic.partition_data
    ]
    assert [(p.topic, p.partition, _records(frame, p)) for p in scanned.partitions] == expected


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=examples(8), deadline=None)
@given(data=st.data())
def test_a_response_of_kio_is_scanned(version, data):
    body = data.draw(oracle.responses(PRODUCE, version))

    scanned = produce_messages.scan_response(oracle.response_frame(body), version)

    assert scanned.throttle_time_ms == oracle.milliseconds(body.throttle_time)
    expected = [
        (
            oracle.topic_of(topic),
            partition.index,
            int(partition.error_code),
            partition.base_offset,
            _append_time_ms(partition),
            getattr(partition, "log_start_offset", -1),
        )
        for topic in body.responses
        for partition in topic.partition_responses
    ]
    assert [tuple(p) for p in scanned.partitions] == expected


def _records(frame, partition):
    if partition.start == -1:
        assert partition.end == -1
        return None
    return frame[partition.start : partition.end]


def _append_time_ms(partition):
    if partition.log_append_time is None:
        return -1
    return oracle.milliseconds(partition.log_append_time - oracle.EPOCH)


def request_v9(*, tags=b"\0", topics=b"\1"):
    """A Produce request v9: header with tags, null transactional id, acks -1, 30 s, no topics."""
    head = bytes.fromhex("0000 0009 0000002a ffff 00 00 ffff 00007530")
    body = head + topics + tags
    return len(body).to_bytes(4, "big") + body


def test_unknown_tagged_fields_are_skipped():
    frame = request_v9(tags=bytes.fromhex("02 05 01 ff b960 03 aabbcc"))

    assert produce_messages.scan_request(frame, 9, 15).partitions == []


def test_a_tagged_field_that_reaches_beyond_the_frame_is_refused():
    with pytest.raises(BadFrame, match="beyond the frame"):
        produce_messages.scan_request(request_v9(tags=bytes.fromhex("01 05 03 aabb")), 9, 15)


def test_bytes_after_the_last_field_are_ignored_as_the_broker_does():
    assert produce_messages.scan_request(request_v9(tags=b"\0trailing"), 9, 15).partitions == []


@pytest.mark.parametrize(
    "topics", [b"\0", bytes.fromhex("ffffffff0f"), b"\x05", bytes.fromhex("ffffffffff01")]
)
def test_a_count_that_cannot_be_is_refused_before_anything_is_allocated(topics):
    with pytest.raises(BadFrame):
        produce_messages.scan_request(request_v9(topics=topics), 9, 15)


def test_records_up_to_the_end_of_the_frame_and_one_byte_beyond():
    def frame(records_bytes):
        body = bytes.fromhex(
            "0000 0003 00000001 ffff ffff 0001 00007530 00000001 0001 74 00000001 00000000"
        )
        body += records_bytes.to_bytes(4, "big", signed=True) + bytes(10)
        return len(body).to_bytes(4, "big") + body

    (partition,) = produce_messages.scan_request(frame(10), 3, 14).partitions
    assert partition.end - partition.start == 10
    assert partition.end == len(frame(10))
    for wrong in (11, -2, 2**31 - 1, -(2**31)):
        with pytest.raises(BadFrame):
            produce_messages.scan_request(frame(wrong), 3, 14)
