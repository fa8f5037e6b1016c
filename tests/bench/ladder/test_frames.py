"""What the raw client sends is what a broker takes: whole batches with a right CRC, a time where it is looked for."""

import struct

import crc32c

from bench.ladder.frames import STAMP, VALUE_AT, build_stamped
from protocol import batch, header
from tests.kit import produce_messages
from tests.kit.frames import CRC_AT, CRC_FROM, PRODUCE_VERSION, RECORD_BYTES


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
