"""What a request weighs is what its scan finds in it, and what is heavy is not walked."""

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import fetch
from protocol.api import APIS, FETCH, PRODUCE
from protocol.errors import BadFrame
from protocol.fetch import FetchPartition
from protocol.fetch_build import build_request
from protocol.header import peek_request
from protocol.primitives import build_uvarint
from protocol.weight import weigh_request
from tests.kit import fetch_messages, produce_messages
from tests.kit.examples import examples
from tests.protocol import oracle

MUCH = 1000
BEHIND = bytes(2 * MUCH + 1)
"""Ignored behind the last field: with it no frame is too small to be weighed."""
SCANS: dict[int, Any] = {PRODUCE: produce_messages.scan_request, FETCH: fetch_messages.scan_request}
CASES = [
    pytest.param(key, version, id=f"{APIS[key].name} {version}")
    for key in SCANS
    for version in oracle.versions(key)
]


def weigh(frame, most=MUCH):
    return weigh_request(peek_request(frame), frame, most)


def count(key, frame):
    """Partitions, and topics that have one, as the scan finds them."""
    head = peek_request(frame)
    request = SCANS[key](frame, head.api_version, head.body_start)
    named = [*request.partitions, *(request.forgotten if key == FETCH else ())]
    return len(named) + len({one[0] for one in named})


def fetch_of(version, partitions, topics=1):
    asked = [FetchPartition("t", index, -1, 0, -1, -1, 1) for index in range(partitions)]
    names = [
        f"t{number:05}" if version < fetch.TOPIC_IDS_FROM else struct.pack(">QQ", 0, number + 1)
        for number in range(topics)
    ]
    return build_request(
        version,
        1,
        "c",
        max_wait_ms=1,
        min_bytes=1,
        max_bytes=1,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        partitions=[one._replace(topic=name) for name in names for one in asked],
    )


@pytest.mark.parametrize(("key", "version"), CASES)
@settings(max_examples=examples(8))
@given(data=st.data())
def test_all_that_is_read_is_weighed(data, key, version):
    frame = bytes(data.draw(oracle.requests(key, version).map(oracle.request_frame)))
    assert count(key, frame) <= weigh(frame + BEHIND) <= MUCH


@pytest.mark.parametrize(("key", "version"), CASES)
@settings(max_examples=examples(8))
@given(data=st.data())
def test_a_cut_frame_is_garbled_or_heavy(data, key, version):
    """Whatever is not weighed is not read either."""
    frame = bytes(data.draw(oracle.requests(key, version).map(oracle.request_frame)))
    start = peek_request(frame).body_start
    head = (
        frame[: data.draw(st.integers(start, len(frame)))]
        + data.draw(st.binary(max_size=8))
        + BEHIND
    )
    weight = weigh(head)
    if 0 <= weight <= MUCH:
        try:
            found = count(key, head)
        except BadFrame:
            return
        assert found <= weight


@pytest.mark.parametrize("version", range(4, 19))
def test_a_fetch_weighs_its_topics_and_partitions(version):
    assert weigh(fetch_of(version, 7, 30) + BEHIND) == 7 * 30 + 30


@pytest.mark.parametrize("partitions", [MUCH - 1, MUCH])
def test_the_bound_itself(partitions):
    """One topic, and so many partitions: at the bound, and beyond it."""
    assert (weigh(fetch_of(11, partitions)) > MUCH) is (partitions == MUCH)


def test_a_small_frame_is_not_weighed():
    assert weigh(fetch_of(11, 1)) == 0


def test_a_text_weighs():
    asked = FetchPartition("é" * 10_000, 0, -1, 0, -1, -1, 1)
    frame = build_request(
        12,
        1,
        "c",
        max_wait_ms=1,
        min_bytes=1,
        max_bytes=1,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        partitions=[asked],
    )
    assert weigh(frame) == 1 + 1 + 20_000 // 256


def test_tagged_fields_weigh():
    whole = fetch_of(12, 1)
    frame = whole[:-1] + build_uvarint(900) + b"\x7f\0" * 900 + BEHIND
    assert weigh(frame) == 1 + 1 + 900


def test_a_count_of_what_is_not_there_is_heavy_at_once():
    """1 GiB would be announced; nothing is walked."""
    frame = fetch_of(12, 0, 0)
    start = peek_request(frame).body_start + 4 + fetch.LIMITS.size + 8
    assert weigh(frame[:start] + build_uvarint((1 << 28) - 1) + BEHIND) > MUCH
