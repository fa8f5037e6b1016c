"""Control batches as Kafka writes them, byte by byte, since no client library writes any.

Owns: MemoryRecords.writeEndTransactionalMarker in Python. Must not know: the code under test, beyond the
numbers of the types.
"""

from struct import pack

from crc32c import crc32c

TRANSACTIONAL_CONTROL = 0x30


def _varint(value):
    """Zigzag (ByteUtils.writeVarlong)."""
    value = value << 1 ^ value >> 63
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def build_control(
    base_offset, key, *, attributes=TRANSACTIONAL_CONTROL, timestamp_delta=0, producer=(1, 0)
):
    """A control batch of one record with that key, or of none where the key is None."""
    records = b""
    if key is not None:
        value = pack(">hi", 0, 5)  # EndTransactionMarker: version, coordinator epoch
        body = b"\0" + _varint(timestamp_delta) + _varint(0)
        body += _varint(len(key)) + key + _varint(len(value)) + value + _varint(0)
        records = _varint(len(body)) + body
    count = 0 if key is None else 1
    timestamp_ms = 1_700_000_000_000
    sealed = (
        pack(">hiqqqhii", attributes, 0, timestamp_ms, timestamp_ms, *producer, -1, count) + records
    )
    return pack(">qiibI", base_offset, len(sealed) + 9, 0, 2, crc32c(sealed)) + sealed


def build_marker(offset, type_, *, producer_id=1, producer_epoch=0):
    """The marker that ends a transaction of that producer."""
    return build_control(offset, pack(">hh", 0, type_), producer=(producer_id, producer_epoch))
