"""The requests that the raw client sends, built before any clock runs.

Owns Produce frames of one record that carries a time, Fetch frames, and answers for a floor that has no broker. Must
not know sockets. Invariants: the CRC is right after `stamp`, or the broker refuses the batch; a time stands in the
first eight bytes of the record's value.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import crc32c

from protocol.batch import scan_batches, stamp_base_offset
from protocol.fetch import FetchPartition
from protocol.fetch_build import FetchAnswer, build_request, build_response
from tests.kit.frames import (
    CRC_AT,
    CRC_FROM,
    HEADER,
    RECORD_BYTES,
    build_batch,
    build_produce,
    build_record,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.kit.raw_fetch import TopicWords

FETCH_VERSION = 13
STAMP = struct.Struct(">q")
LAST_DELTA = struct.Struct(">i")
LAST_DELTA_AT = 23
MARK = 0x0123456789ABCDEF
"""An offset that is found again."""


class Stamped(NamedTuple):
    """A Produce frame whose one record carries a time: where it and its batch lie."""

    frame: bytearray
    batch_at: int
    value_at: int

    def stamp(self, due_ns: int) -> None:
        """Put a time into the record, and the CRC right again."""
        STAMP.pack_into(self.frame, self.value_at, due_ns)
        end = (
            self.batch_at
            + 12
            + int.from_bytes(self.frame[self.batch_at + 8 : self.batch_at + 12], "big")
        )
        crc = crc32c.crc32c(memoryview(self.frame)[self.batch_at + CRC_FROM : end])
        struct.pack_into(">I", self.frame, self.batch_at + CRC_AT, crc)


def build_stamped(topic: str, record_bytes: int = RECORD_BYTES) -> Stamped:
    """A Produce of one record that carries a time."""
    batch = build_batch(record_bytes, record_bytes)
    frame = bytearray(build_produce(topic, batch))
    at = frame.index(batch)
    return Stamped(frame, at, at + VALUE_AT)


VALUE_AT = HEADER.size + len(build_record(0, bytes(RECORD_BYTES))) - RECORD_BYTES - 1
"""Where the value begins in a batch of one record of RECORD_BYTES: behind the headers, before the count of headers."""


class Poll(NamedTuple):
    """A Fetch frame of one partition, sent again and again: where its offset lies."""

    frame: bytearray
    offset_at: int

    def stamp(self, offset: int) -> None:
        """Ask from there."""
        STAMP.pack_into(self.frame, self.offset_at, offset)


def build_poll(topic: TopicWords, max_bytes: int) -> Poll:
    """`build_fetch`, to be stamped."""
    marked = build_fetch(topic, [MARK], max_bytes)
    return Poll(bytearray(marked), marked.index(STAMP.pack(MARK)))


def build_fetch(
    topic: TopicWords, offsets: Sequence[int], max_bytes: int, *, max_wait_ms: int = 500
) -> bytes:
    """A Fetch without a session: partition i from `offsets[i]`, at most `max_bytes` of each."""
    return build_request(
        FETCH_VERSION,
        1,
        "ladder",
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes * len(offsets),
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        partitions=[
            FetchPartition(topic.id, index, -1, offset, -1, -1, max_bytes)
            for index, offset in enumerate(offsets)
        ],
    )


def build_answers(batch: bytes, partitions: int, steps: int) -> Iterator[bytes]:
    """Answers to `steps` Fetches of `build_fetch`: `batch` for each partition, at other offsets in each step."""
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
