"""Requests of several partitions, built before any clock runs.

Owns Produce and Fetch frames that name partitions of one topic. Must not know sockets. Invariant: a Produce has one
batch for each partition (ProduceRequest.json, version 9; `tests/bench/shape` compares it with kio's).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from protocol.batch import scan_batches, stamp_base_offset
from protocol.fetch import FetchPartition
from protocol.fetch_build import FetchAnswer, build_request, build_response
from tests.kit.frames import (
    ACKS_ALL,
    NO_TAGS,
    PRODUCE,
    PRODUCE_VERSION,
    REQUEST_HEADER,
    TIMEOUT_MS,
    build_compact,
    build_uvarint,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.kit.raw_fetch import TopicWords

FETCH_VERSION = 13
CLIENT_ID = b"shape"


def build_wide_produce(topic: str, batch: bytes, partitions: range) -> bytes:
    """A Produce with acks=all and `batch` for each of `partitions`."""
    head = REQUEST_HEADER.pack(PRODUCE, PRODUCE_VERSION, 1, len(CLIENT_ID)) + CLIENT_ID + NO_TAGS
    data = build_compact(batch) + NO_TAGS
    rows = b"".join(struct.pack(">i", index) + data for index in partitions)
    named = build_compact(topic.encode()) + build_uvarint(len(partitions) + 1) + rows + NO_TAGS
    settings = build_uvarint(0) + struct.pack(">hi", ACKS_ALL, TIMEOUT_MS)
    body = settings + build_uvarint(2) + named + NO_TAGS
    return struct.pack(">i", len(head) + len(body)) + head + body


def build_wide_fetch(
    topic: TopicWords, offsets: Sequence[int], max_bytes: int, *, max_wait_ms: int = 500
) -> bytes:
    """A Fetch without a session of the partitions from 0 on, each from its offset, `max_bytes` of each at most."""
    return build_request(
        FETCH_VERSION,
        1,
        CLIENT_ID.decode(),
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=50 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        partitions=[
            FetchPartition(topic.id, index, -1, offset, -1, -1, max_bytes)
            for index, offset in enumerate(offsets)
        ],
    )


def build_wide_answers(batch: bytes, partitions: int, steps: int) -> Iterator[bytes]:
    """Answers to `steps` Fetches of `build_wide_fetch`: `batch` for each partition, at other offsets in each step."""
    records = scan_batches(batch, 0, len(batch))[0].last_offset + 1
    end = steps * records
    for step in range(steps):
        said = memoryview(bytearray(batch))
        stamp_base_offset(said, 0, step * records)
        rows = [
            FetchAnswer(bytes(16), index, 0, end, end, 0, None, [said], len(said))
            for index in range(partitions)
        ]
        yield b"".join(
            build_response(
                FETCH_VERSION, 0, throttle_time_ms=0, error_code=0, session_id=0, partitions=rows
            )
        )
