"""Produce frames of one record batch, and what a broker answers to them.

Owns batches in format 2 with a right CRC, Produce requests of version 9, and the reading of their responses. Must not
know sockets or Forebay's code: struct and crc32c alone make the bytes. Invariants: a batch is whole; a request has one
topic; `tests/bench/ladder/test_frames.py` compares each request with kio's.
"""

from __future__ import annotations

import random
import struct
import time
from typing import NamedTuple

import crc32c

PRODUCE, PRODUCE_VERSION = 0, 9
ACKS_ALL = -1
TIMEOUT_MS = 5000
RECORD_BYTES = 1000
HEADER = struct.Struct(">qiibIhiqqqhii")
CRC_AT, CRC_FROM = 17, 21
REQUEST_HEADER = struct.Struct(">hhih")
NO_TAGS = b"\0"


def build_uvarint(value: int) -> bytes:
    """Base 128, as compact types have their lengths (ByteUtils.writeUnsignedVarint)."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varint(value: int) -> bytes:
    """Zigzag, as records have it (ByteUtils.writeVarint)."""
    return build_uvarint((value << 1) ^ (value >> 63))


def build_compact(value: bytes) -> bytes:
    return build_uvarint(len(value) + 1) + value


def build_record(delta: int, value: bytes) -> bytes:
    """A record without key, time or headers; `delta`: its offset behind the batch's first."""
    body = (
        b"\0" + _varint(0) + _varint(delta) + _varint(-1) + _varint(len(value)) + value + _varint(0)
    )
    return _varint(len(body)) + body


def build_batch(size_bytes: int, record_bytes: int = RECORD_BYTES) -> bytes:
    """One uncompressed batch of about `size_bytes`, in records with random values of `record_bytes`."""
    source = random.Random(size_bytes)
    count = max(size_bytes // record_bytes, 1)
    records = b"".join(build_record(i, source.randbytes(record_bytes)) for i in range(count))
    now_ms = time.time_ns() // 1_000_000
    head = HEADER.pack(
        0,
        HEADER.size - 12 + len(records),
        -1,
        2,
        0,
        0,
        count - 1,
        now_ms,
        now_ms,
        -1,
        -1,
        -1,
        count,
    )
    batch = bytearray(head + records)
    struct.pack_into(">I", batch, CRC_AT, crc32c.crc32c(memoryview(batch)[CRC_FROM:]))
    return bytes(batch)


def build_produce(
    topic: str,
    batch: bytes,
    acks: int = ACKS_ALL,
    *,
    partitions: int = 1,
    correlation_id: int = 1,
    client_id: str = "ladder",
) -> bytes:
    """A Produce of `batch` to each of the first `partitions` of a topic (ProduceRequest.json, version 9)."""
    name = client_id.encode()
    head = REQUEST_HEADER.pack(PRODUCE, PRODUCE_VERSION, correlation_id, len(name)) + name + NO_TAGS
    records = build_compact(batch) + NO_TAGS
    rows = b"".join(struct.pack(">i", index) + records for index in range(partitions))
    data = build_compact(topic.encode()) + build_uvarint(partitions + 1) + rows + NO_TAGS
    body = (
        build_uvarint(0) + struct.pack(">hi", acks, TIMEOUT_MS) + build_uvarint(2) + data + NO_TAGS
    )
    return struct.pack(">i", len(head) + len(body)) + head + body


class Acknowledged(NamedTuple):
    """One partition of a Produce response; `base_offset` is -1 where `error_code` is not 0."""

    error_code: int
    base_offset: int


def read_produced(frame: bytes) -> Acknowledged:
    """The first partition of a Produce response of version 9, a whole frame."""
    at = 9  # behind size, correlation id and tags
    at += 1  # the count of topics
    at += frame[at]  # the topic's name and its length plus one; names have at most 126 bytes here
    at += 1 + 4  # the count of partitions, the partition
    return Acknowledged(*struct.unpack_from(">hq", frame, at))
