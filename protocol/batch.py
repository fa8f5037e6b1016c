"""Headers of record batches: walk them, stamp them.

Owns: the 61-byte header of batch format v2 (DefaultRecordBatch), the bounds of older message sets, CRC-32C.
Must not know: records, compression codecs' content, where batches come from.
Invariants: base offset and leader epoch lie outside the CRC, all from the attributes on inside; a partial
last batch is dropped as Kafka's readers do (ByteBufferLogInputStream.nextBatchSize), the rest is garbage.

     0 base offset 8     | 8 length 4         | 12 leader epoch 4  | 16 magic 1          | 17 CRC 4
    21 attributes 2      | 23 offset delta 4  | 27 base timestamp 8 | 35 max timestamp 8
    43 producer id 8     | 51 producer epoch 2 | 53 base sequence 4 | 57 record count 4
"""

from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from protocol.errors import BadFrame
from protocol.primitives import INT32, INT64, Frame, refuses_garbage

LOG_OVERHEAD: Final = 12
HEADER_UP_TO_MAGIC: Final = 17
HEADER_BYTES: Final = 61
RECORD_OVERHEAD_V0: Final = 14
MAGIC_V2: Final = 2

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_CODEC_MASK: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
_DELETE_HORIZON: Final = 0x40
_KNOWN_ATTRIBUTES: Final = (
    _CODEC_MASK | _LOG_APPEND_TIME | TRANSACTIONAL | CONTROL | _DELETE_HORIZON
)

_LEADER_EPOCH_AT: Final = 12
_CRC_AT: Final = 17
_ATTRIBUTES_AT: Final = 21
_MAX_TIMESTAMP_AT: Final = 35

_UP_TO_MAGIC = Struct(">qiib")
_HEADER = Struct(">qiibIhiqqqhii")
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")
assert _HEADER.size == HEADER_BYTES


class Batch(NamedTuple):
    """One batch at frame[start:end]. Below magic 2 only the bounds, the magic, the offset of the one (perhaps
    compressed) message and the codec are known; the rest is -1. Offsets inclusive, timestamps in ms.
    """

    start: int
    end: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int


def codec(attributes: int) -> int:
    """The compression codec's number, an index into `CODECS` where it is known."""
    return attributes & _CODEC_MASK


def is_log_append_time(attributes: int) -> bool:
    """Whether the broker set the timestamps."""
    return bool(attributes & _LOG_APPEND_TIME)


def is_transactional(attributes: int) -> bool:
    """Whether the batch belongs to a transaction."""
    return bool(attributes & TRANSACTIONAL)


def is_control(attributes: int) -> bool:
    """Whether the batch is a control batch, such as a transaction's marker."""
    return bool(attributes & CONTROL)


@refuses_garbage
def scan_batches(buf: Frame, start: int, end: int) -> list[Batch]:
    """All whole batches of buf[start:end], a records field; raises `BadFrame` where they are none."""
    batches = []
    at = start
    while end - at >= LOG_OVERHEAD:
        (length,) = INT32.unpack_from(buf, at + 8)
        if length < RECORD_OVERHEAD_V0:
            raise BadFrame(f"a batch of {length} bytes at {at - start}")
        if end - at < HEADER_UP_TO_MAGIC:
            break
        magic = buf[at + 16]
        if magic > MAGIC_V2:
            raise BadFrame(f"a batch of magic {magic} at {at - start}")
        after = at + LOG_OVERHEAD + length
        if after > end:
            break
        batches.append(
            _scan_batch(buf, at, after) if magic == MAGIC_V2 else _scan_old(buf, at, after)
        )
        at = after
    return batches


def _scan_batch(buf: Frame, at: int, after: int) -> Batch:
    if after - at < HEADER_BYTES:
        raise BadFrame(f"a batch of {after - at} bytes, less than its header")
    (
        base,
        _,
        epoch,
        magic,
        crc,
        attributes,
        delta,
        _,
        max_timestamp,
        producer_id,
        producer_epoch,
        sequence,
        count,
    ) = _HEADER.unpack_from(buf, at)
    if delta < 0 or count < 0:
        raise BadFrame(f"a batch with a last offset delta of {delta} and {count} records")
    return Batch(
        at,
        after,
        base,
        base + delta,
        epoch,
        magic,
        crc,
        attributes,
        max_timestamp,
        producer_id,
        producer_epoch,
        sequence,
        count,
    )


def _scan_old(buf: Frame, at: int, after: int) -> Batch:
    """Message format 0 or 1: offset 8, length 4, CRC 4, magic 1, attributes 1."""
    offset, magic, attributes = INT64.unpack_from(buf, at)[0], buf[at + 16], buf[at + 17]
    return Batch(at, after, offset, offset, -1, magic, -1, attributes, -1, -1, -1, -1, -1)


def is_crc_right(buf: Frame, batch: Batch) -> bool:
    """Whether a v2 batch's CRC-32C matches its bytes."""
    return crc32c(memoryview(buf)[batch.start + _ATTRIBUTES_AT : batch.end]) == batch.crc


def stamp_base_offset(buf: bytearray | memoryview, at: int, base_offset: int) -> None:
    """Set the base offset of the v2 batch that starts at `at`, in place, outside its CRC."""
    INT64.pack_into(buf, at, base_offset)


def peek_timestamp(buf: Frame, at: int) -> int | None:
    """The max timestamp of the v2 batch that begins at `at`, in ms since 1970; None if none is whole up to there, or it
    has none.
    """
    if (
        len(buf) < at + _MAX_TIMESTAMP_AT + INT64.size
        or buf[at + HEADER_UP_TO_MAGIC - 1] != MAGIC_V2
    ):
        return None
    (timestamp_ms,) = INT64.unpack_from(buf, at + _MAX_TIMESTAMP_AT)
    return timestamp_ms if timestamp_ms >= 0 else None


def stamp_leader_epoch(buf: bytearray | memoryview, at: int, leader_epoch: int) -> None:
    """Set the partition leader epoch of the v2 batch that starts at `at`, in place, outside its CRC."""
    INT32.pack_into(buf, at + _LEADER_EPOCH_AT, leader_epoch)


def stamp_log_append_time(buf: bytearray | memoryview, at: int, timestamp_ms: int) -> None:
    """Give the v2 batch at `at` timestamp type LogAppendTime and its max timestamp, in place, with a new CRC.

    As DefaultRecordBatch.setMaxTimestamp: unchanged values change nothing, not even unknown attribute bits.
    """
    (attributes,) = _ATTRIBUTES.unpack_from(buf, at + _ATTRIBUTES_AT)
    (max_timestamp,) = INT64.unpack_from(buf, at + _MAX_TIMESTAMP_AT)
    if attributes & _LOG_APPEND_TIME and max_timestamp == timestamp_ms:
        return
    _ATTRIBUTES.pack_into(
        buf, at + _ATTRIBUTES_AT, attributes & _KNOWN_ATTRIBUTES | _LOG_APPEND_TIME
    )
    INT64.pack_into(buf, at + _MAX_TIMESTAMP_AT, timestamp_ms)
    end = at + LOG_OVERHEAD + INT32.unpack_from(buf, at + 8)[0]
    with memoryview(buf) as view, view[at + _ATTRIBUTES_AT : end] as covered:
        checksum = crc32c(covered)
    _CRC.pack_into(buf, at + _CRC_AT, checksum)
