"""Metadata answers of many partitions are read fast; what they say is held against kio in test_control.py."""

import struct
import sys

import pytest

from protocol.errors import BadFrame
from protocol.metadata import scan_metadata_response
from protocol.primitives import build_uvarint

VERSION = 12
MANY = 10_000
MOST_CALLS = 6
"""Of Python functions, for each partition: kio took some fifty."""
HEAD = bytes(8) + b"\0" + bytes(4) + b"\1" + b"\0" + bytes(4)
"""Length, correlation id, tags, throttle time, no brokers, no cluster id, controller."""
REPLICAS = b"\4" + struct.pack(">iii", 1, 2, 3)


def build(topics, partitions):
    described = b"".join(
        struct.pack(">hiii", 0, index, 1, 3) + 2 * REPLICAS + b"\1\0" for index in range(partitions)
    )
    rest = build_uvarint(partitions + 1) + described + bytes(4) + b"\0"
    named = (
        struct.pack(">hB", 0, 6) + b"%05d" % number + struct.pack(">QQ", 1, number) + b"\0"
        for number in range(topics)
    )
    return HEAD + build_uvarint(topics + 1) + b"".join(one + rest for one in named) + b"\0"


@pytest.mark.parametrize(("topics", "partitions"), [(1, MANY), (200, MANY // 200)])
def test_ten_thousand_partitions_hold_nobody_up(topics, partitions):
    frame = build(topics, partitions)
    calls = 0

    def note(_frame, event, _argument):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(note)
    try:
        read = scan_metadata_response(frame, VERSION)
    finally:
        sys.setprofile(None)
    assert calls < MOST_CALLS * MANY
    assert len(read.topics) == topics
    assert {len(topic.partitions) for topic in read.topics} == {partitions}
    assert read.topics[-1].partitions[-1] == (0, partitions - 1, 1, 3)


@pytest.mark.parametrize("count", [b"\0", b"\xff\xff\xff\xff\x0f"])
def test_replicas_that_cannot_be_are_refused(count):
    """Null, or more than there are bytes."""
    frame = build(1, 2).replace(REPLICAS, count, 1)
    with pytest.raises(BadFrame):
        scan_metadata_response(frame, VERSION)
