"""What the raw client sends is what a broker takes: whole batches with a right CRC, a time where it is looked for."""

import struct

import crc32c

from bench.ladder.frames import (
    FETCH_VERSION,
    STAMP,
    VALUE_AT,
    build_answers,
    build_fetch,
    build_stamped,
)
from protocol import batch, fetch, header
from tests.kit import fetch_messages, produce_messages
from tests.kit.frames import (
    CRC_AT,
    CRC_FROM,
    PRODUCE_VERSION,
    RECORD_BYTES,
    build_batch,
    build_produce,
)
from tests.kit.raw_fetch import TopicWords


def scan(frame):
    head = header.peek_request(frame)
    assert head.api_version == PRODUCE_VERSION
    (asked,) = produce_messages.scan_request(frame, PRODUCE_VERSION, head.body_start).partitions
    (found,) = batch.scan_batches(frame, asked.start, asked.end)
    return found


def crc_of(frame, found):
    return crc32c.crc32c(bytes(frame[found.start + CRC_FROM : found.end]))


def test_a_stamp_lies_at_the_beginning_of_the_value_and_keeps_the_crc_right():
    stamped = build_stamped("orders")
    stamped.stamp(123_456_789)
    found = scan(bytes(stamped.frame))

    assert found.start == stamped.batch_at
    assert STAMP.unpack_from(stamped.frame, found.start + VALUE_AT) == (123_456_789,)
    assert struct.unpack_from(">I", stamped.frame, found.start + CRC_AT)[0] == crc_of(
        stamped.frame, found
    )
    assert found.end - (found.start + VALUE_AT) == RECORD_BYTES + 1


def test_a_produce_has_a_batch_for_each_partition() -> None:
    records = build_batch(1000)
    frame = build_produce("topic", records, partitions=3, client_id="c")
    head = header.peek_request(frame)
    assert (head.api_version, head.client_id) == (PRODUCE_VERSION, "c")
    request = produce_messages.scan_request(frame, head.api_version, head.body_start)
    assert request.acks == -1
    assert [(one.topic, one.partition) for one in request.partitions] == [
        ("topic", index) for index in range(3)
    ]
    assert all(frame[one.start : one.end] == records for one in request.partitions)


def test_a_fetch_asks_each_partition_from_its_offset() -> None:
    words = TopicWords("topic", bytes(range(16)), {})
    frame = build_fetch(words, [5, 7], 1 << 16)
    request = fetch_messages.scan_request(
        frame, FETCH_VERSION, header.peek_request(frame).body_start
    )
    assert [(one.topic, one.partition, one.fetch_offset) for one in request.partitions] == [
        (words.id, 0, 5),
        (words.id, 1, 7),
    ]
    assert (request.session_id, request.session_epoch) == (0, -1)


def test_answers_of_the_floor_have_rising_offsets() -> None:
    answers = list(build_answers(build_batch(8000), 3, 4))
    records = 8
    assert len(answers) == 4
    for step, answer in enumerate(answers):
        said = fetch.scan_response(answer, FETCH_VERSION)
        assert [one.partition for one in said.partitions] == [0, 1, 2]
        for one in said.partitions:
            (found,) = batch.scan_batches(answer, one.start, one.end)
            assert (found.base_offset, found.record_count) == (step * records, records)
