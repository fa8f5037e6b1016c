"""The requests that the raw client sends, built before any clock runs.

Owns record batches of a given size (one batch, records of 1 KB or one record) and the Produce and Fetch
frames around them. Must not know sockets. Invariants: a batch is whole and its CRC right, or the broker
refuses it; the first eight bytes of a batch's first value are where `stamp` puts a time.
"""

from __future__ import annotations

import random
import struct
import time
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import crc32c

from protocol import fetch
from protocol.fetch_build import build_request
from tests.protocol import oracle
from tests.protocol.golden_capture import produce_body

if TYPE_CHECKING:
    from tests.e2e.raw_fetch import TopicWords

PRODUCE_VERSION = 9
FETCH_VERSION = 13
ACKS_ALL = -1
RECORD_BYTES = 1000
HEADER = struct.Struct(">qiibIhiqqqhii")
CRC_AT, CRC_FROM = 17, 21
STAMP = struct.Struct(">q")
LAST_DELTA = struct.Struct(">i")
LAST_DELTA_AT = 23
MARK = 0x0123456789ABCDEF
"""An offset that is found again."""


def _varint(value: int) -> bytes:
    """Zigzag, as records have it (ByteUtils.writeVarint)."""
    left = (value << 1) ^ (value >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def _record(delta: int, value: bytes) -> bytes:
    body = b"\0" + _varint(0) + _varint(delta) + _varint(-1) + _varint(len(value)) + value + _varint(0)
    return _varint(len(body)) + body


def build_batch(size_bytes: int, record_bytes: int = RECORD_BYTES) -> bytes:
    """One uncompressed batch of about `size_bytes`, in records with random values of `record_bytes`."""
    source = random.Random(size_bytes)
    count = max(size_bytes // record_bytes, 1)
    records = b"".join(_record(i, source.randbytes(record_bytes)) for i in range(count))
    now_ms = time.time_ns() // 1_000_000
    head = HEADER.pack(
        0, HEADER.size - 12 + len(records), -1, 2, 0, 0, count - 1, now_ms, now_ms, -1, -1, -1, count
    )
    batch = bytearray(head + records)
    struct.pack_into(">I", batch, CRC_AT, crc32c.crc32c(memoryview(batch)[CRC_FROM:]))
    return bytes(batch)


class Stamped(NamedTuple):
    """A Produce frame whose one record carries a time: where it and its batch lie."""

    frame: bytearray
    batch_at: int
    value_at: int

    def stamp(self, due_ns: int) -> None:
        """Put a time into the record, and the CRC right again."""
        STAMP.pack_into(self.frame, self.value_at, due_ns)
        end = self.batch_at + 12 + int.from_bytes(self.frame[self.batch_at + 8 : self.batch_at + 12], "big")
        crc = crc32c.crc32c(memoryview(self.frame)[self.batch_at + CRC_FROM : end])
        struct.pack_into(">I", self.frame, self.batch_at + CRC_AT, crc)


def build_produce(topic: str, batch: bytes, acks: int = ACKS_ALL) -> bytes:
    """A Produce of one batch to partition 0."""
    body = produce_body(PRODUCE_VERSION, topic, UUID(int=0), batch, acks=acks)
    return oracle.request_frame(body, 1, "ladder")


def build_stamped(topic: str, record_bytes: int = RECORD_BYTES) -> Stamped:
    """A Produce of one record that carries a time."""
    batch = build_batch(record_bytes, record_bytes)
    frame = bytearray(build_produce(topic, batch))
    at = frame.index(batch)
    return Stamped(frame, at, at + VALUE_AT)


VALUE_AT = HEADER.size + len(_record(0, bytes(RECORD_BYTES))) - RECORD_BYTES - 1
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
    marked = build_fetch(topic, MARK, max_bytes)
    return Poll(bytearray(marked), marked.index(STAMP.pack(MARK)))


def build_fetch(
    topic: TopicWords, offset: int, max_bytes: int, *, max_wait_ms: int = 500, partition: int = 0
) -> bytes:
    """A session-less Fetch of one partition."""
    asked = fetch.FetchPartition(topic.id, partition, -1, offset, -1, -1, max_bytes)
    return build_request(
        FETCH_VERSION,
        1,
        "ladder",
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        partitions=[asked],
    )
