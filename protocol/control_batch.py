"""Control batches: what the record of a transaction's marker says.

Owns: the way to the key of a control batch's first record (DefaultRecord), and the types a key may name
(ControlRecordType). Must not know: transactions, offsets, what a marker ends. Invariants: the type is read from
the first record alone, as CompletedFetch.containsAbortMarker and ProducerAppendInfo.append do; newer key
versions are read like version 0, for fields are only added (ControlRecordType.parseTypeId); a type not known here
is UNKNOWN and to be ignored; markers are never compressed (MemoryRecords.writeEndTransactionalMarker).
"""

from enum import IntEnum
from typing import Final

from protocol.batch import HEADER_BYTES, MAGIC_V2, Batch, codec, is_control
from protocol.errors import BadFrame
from protocol.primitives import INT16, Frame, refuses_garbage

_ATTRIBUTES_BYTES: Final = 1
_KEY_BYTES: Final = 4  # version 2, type 2
_VARINT_BYTES: Final = 5
_VARLONG_BYTES: Final = 10


class ControlType(IntEnum):
    """ControlRecordType's numbers of the two that end a transaction; all others are UNKNOWN."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1


def _read_varint(buf: Frame, at: int, most_bytes: int) -> tuple[int, int]:
    """A zigzag integer of at most that many bytes (ByteUtils.readVarint, readVarlong)."""
    value = shift = 0
    for after in range(at, at + most_bytes):
        byte = buf[after]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), after + 1
        shift += 7
    raise BadFrame(f"a varint is longer than {most_bytes} bytes")


@refuses_garbage
def scan_control(buf: Frame, batch: Batch) -> ControlType | None:
    """The type of a v2 control batch of `buf`, from its first record; None for one without records, which the
    log cleaner leaves of a transaction that is gone altogether. Raises `BadFrame` for what is no control batch.
    """
    if batch.magic != MAGIC_V2 or not is_control(batch.attributes) or codec(batch.attributes):
        raise BadFrame(f"magic {batch.magic}, attributes {batch.attributes}: no control batch")
    if batch.record_count == 0:
        return None
    at = batch.start + HEADER_BYTES
    _, at = _read_varint(buf, at, _VARINT_BYTES)  # the record's length
    _, at = _read_varint(buf, at + _ATTRIBUTES_BYTES, _VARLONG_BYTES)  # timestamp delta
    _, at = _read_varint(buf, at, _VARINT_BYTES)  # offset delta
    size_bytes, at = _read_varint(buf, at, _VARINT_BYTES)
    if size_bytes < _KEY_BYTES or at + size_bytes > batch.end:
        raise BadFrame(f"a control record's key of {size_bytes} bytes, {batch.end - at} left")
    (version,) = INT16.unpack_from(buf, at)
    if version < 0:
        raise BadFrame(f"a control record's key of version {version}")
    (number,) = INT16.unpack_from(buf, at + INT16.size)
    return (
        ControlType(number)
        if number in (ControlType.ABORT, ControlType.COMMIT)
        else ControlType.UNKNOWN
    )
