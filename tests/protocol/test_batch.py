"""Batch headers against aiokafka: walked, stamped, checked."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import batch
from protocol.errors import BadFrame
from tests.protocol.batches import TIMESTAMP_MS, batch_v2, message_v1, read_v2

GZIP = 1


def only(buf):
    (found,) = batch.scan_batches(buf, 0, len(buf))
    return found


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_batch_is_read_as_it_was_made(kind):
    raw = batch_v2(5, codec=GZIP, transactional=True, producer=(7, 2, 100))

    found = only(kind(raw))

    assert found[:8] == (
        0,
        len(raw),
        0,
        4,
        found.leader_epoch,
        2,
        read_v2(raw).crc,
        found.attributes,
    )
    assert found.max_timestamp == TIMESTAMP_MS + 4
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (7, 2, 100)
    assert found.record_count == 5
    assert batch.CODECS[batch.codec(found.attributes)] == "gzip"
    assert batch.is_transactional(found.attributes)
    assert not batch.is_control(found.attributes)
    assert not batch.is_log_append_time(found.attributes)
    assert batch.is_crc_right(raw, found)


@pytest.mark.parametrize(
    ("bit", "reads"),
    [(0x08, batch.is_log_append_time), (0x10, batch.is_transactional), (0x20, batch.is_control)],
)
def test_each_attribute_has_its_bit(bit, reads):
    assert reads(bit)
    assert not reads(0x7F & ~bit)


def test_consecutive_batches_inside_a_larger_buffer():
    parts = [batch_v2(1), message_v1(1), batch_v2(3), message_v1(0)]
    buf = b"before" + b"".join(parts) + b"after"

    found = batch.scan_batches(buf, 6, len(buf) - 5)

    assert [buf[b.start : b.end] for b in found] == parts
    assert [b.magic for b in found] == [2, 1, 2, 0]
    assert [b.record_count for b in found] == [1, -1, 3, -1]


def test_a_partial_last_batch_is_dropped_wherever_it_is_cut():
    whole, last = batch_v2(2), batch_v2(1)

    for cut in range(len(last)):
        buf = whole + last[:cut]
        assert [b.end for b in batch.scan_batches(buf, 0, len(buf))] == [len(whole)]


def test_no_bytes_are_no_batches():
    assert batch.scan_batches(b"", 0, 0) == []


def changed(raw, at, value, size):
    out = bytearray(raw)
    out[at : at + size] = value.to_bytes(size, "big", signed=True)
    return bytes(out)


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 13])
def test_a_length_below_any_message_is_garbage_even_in_a_partial_batch(length):
    with pytest.raises(BadFrame):
        only(changed(batch_v2(), 8, length, 4)[:12])


@pytest.mark.parametrize("magic", [3, 127, -1])
def test_an_unknown_magic_is_garbage(magic):
    with pytest.raises(BadFrame, match="magic"):
        only(changed(batch_v2(), 16, magic, 1))


def test_a_v2_batch_needs_its_whole_header():
    bare = changed(batch_v2(), 8, batch.HEADER_BYTES - 12, 4)[: batch.HEADER_BYTES]
    assert only(bare).end == batch.HEADER_BYTES
    with pytest.raises(BadFrame, match="less than its header"):
        only(changed(bare, 8, batch.HEADER_BYTES - 13, 4)[:-1])


@pytest.mark.parametrize("at", [23, 57])
def test_negative_counts_and_deltas_are_garbage(at):
    with pytest.raises(BadFrame):
        only(changed(batch_v2(), at, -1, 4))


def test_base_offset_and_leader_epoch_lie_outside_the_crc():
    raw = batch_v2(4)
    buf = bytearray(b"xx" + raw)

    batch.stamp_base_offset(buf, 2, 1 << 40)
    batch.stamp_leader_epoch(memoryview(buf), 2, 17)

    (found,) = batch.scan_batches(buf, 2, len(buf))
    assert (found.base_offset, found.last_offset, found.leader_epoch) == (
        (1 << 40),
        (1 << 40) + 3,
        17,
    )
    assert batch.is_crc_right(buf, found)
    assert read_v2(bytes(buf[2:])).validate_crc()
    assert buf[18:] == raw[16:], "nothing else changed"


def test_log_append_time_changes_type_timestamp_and_crc():
    raw = batch_v2(2, codec=GZIP)
    buf = bytearray(b"xx" + raw + b"yy")

    batch.stamp_log_append_time(buf, 2, TIMESTAMP_MS + 999)

    (found,) = batch.scan_batches(buf, 2, len(buf) - 2)
    witness = read_v2(bytes(buf[2:-2]))
    assert witness.validate_crc()
    assert witness.timestamp_type == 1
    assert witness.max_timestamp == found.max_timestamp == TIMESTAMP_MS + 999
    assert batch.is_log_append_time(found.attributes)
    assert batch.codec(found.attributes) == GZIP
    assert buf[:2] + buf[-2:] == b"xxyy"
    assert [record.timestamp for record in witness] == [TIMESTAMP_MS + 999] * 2


def test_unknown_attribute_bits_are_dropped_only_when_something_changes():
    buf = bytearray(changed(batch_v2(1), 21, 0x108, 2))
    unchanged = bytes(buf)

    batch.stamp_log_append_time(buf, 0, TIMESTAMP_MS)
    assert buf == unchanged
    batch.stamp_log_append_time(buf, 0, TIMESTAMP_MS + 1)
    assert only(buf).attributes == 0x08


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(batch_v2()) - 1), st.integers(1, 255), st.booleans())
def test_a_changed_byte_is_found_by_the_crc_or_lies_outside_it(at, change, truncate):
    raw = bytearray(batch_v2())
    raw[at] ^= change
    try:
        found = batch.scan_batches(raw, 0, len(raw) - truncate)
    except BadFrame:
        return
    for one in found:
        assert batch.is_crc_right(raw, one) == (at < 8 or 12 <= at < 16)
