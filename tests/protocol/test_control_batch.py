"""Control batches: a marker as Kafka writes it, against aiokafka, and whatever else may stand there."""

import json
from contextlib import suppress
from pathlib import Path
from struct import pack

import pytest
from aiokafka.record.control_record import ABORT_MARKER, COMMIT_MARKER, ControlRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.batch import HEADER_BYTES, scan_batches
from protocol.control_batch import ControlType, scan_control
from protocol.errors import BadFrame
from protocol.fetch import scan_response
from tests.protocol.batches import read_v2
from tests.protocol.markers import build_control, build_marker


def only(buf):
    (found,) = scan_batches(buf, 0, len(buf))
    return found


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize(("type_", "witness"), [("ABORT", ABORT_MARKER), ("COMMIT", COMMIT_MARKER)])
def test_a_marker_is_read_as_aiokafka_reads_it(kind, type_, witness):
    raw = build_marker(100, ControlType[type_], producer_id=7, producer_epoch=3)

    found = only(kind(raw))

    assert scan_control(kind(raw), found) is ControlType[type_]
    assert (found.producer_id, found.producer_epoch, found.base_offset, found.last_offset) == (
        7,
        3,
        100,
        100,
    )
    assert ControlRecord.parse(next(read_v2(raw)).key) == witness


def test_a_marker_is_found_behind_other_batches():
    first = build_marker(1, ControlType.COMMIT)
    raw = first + build_marker(2, ControlType.ABORT)

    _, second = scan_batches(raw, 0, len(raw))

    assert scan_control(raw, second) is ControlType.ABORT


def test_long_varints_are_walked():
    """A marker's timestamp delta is 0; another writer's may take ten bytes (ByteUtils.readVarlong)."""
    raw = build_control(0, pack(">hh", 0, 1), timestamp_delta=-(1 << 62))

    assert scan_control(raw, only(raw)) is ControlType.COMMIT


@pytest.mark.parametrize("number", [2, 3, 4, 5, 6, 7, -1, 32767])
def test_other_types_are_unknown(number):
    raw = build_control(0, pack(">hh", 0, number))

    assert scan_control(raw, only(raw)) is ControlType.UNKNOWN


def test_a_newer_key_version_is_read_like_the_first():
    raw = build_control(0, pack(">hhq", 9, 0, 1))

    assert scan_control(raw, only(raw)) is ControlType.ABORT


def test_a_cleaned_control_batch_has_no_type():
    raw = build_control(0, None)

    assert scan_control(raw, only(raw)) is None


@pytest.mark.parametrize(
    "raw",
    [
        build_control(0, pack(">hh", 0, 0), attributes=0x10),
        build_control(0, pack(">hh", 0, 0), attributes=0x31),
        build_control(0, pack(">hh", -1, 0)),
        build_control(0, b"\0\0\0"),
        build_control(0, b""),
        build_marker(0, ControlType.ABORT)[: HEADER_BYTES + 3] + b"\xff" * 9,
    ],
    ids=["data", "compressed", "key version", "short key", "empty key", "varint"],
)
def test_what_is_no_marker_is_refused(raw):
    patched = bytearray(raw)
    patched[8:12] = pack(">i", len(raw) - 12)
    with pytest.raises(BadFrame):
        scan_control(patched, only(patched))


@settings(max_examples=150)
@given(st.binary(max_size=40))
def test_garbage_is_an_answer_or_bad_frame(record):
    raw = build_control(0, b"")[:HEADER_BYTES] + record
    patched = bytearray(raw)
    patched[8:12] = pack(">i", len(raw) - 12)
    with suppress(BadFrame):
        found = scan_control(patched, only(patched))
        assert found is not None and found in ControlType


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parent / "golden").glob("*.json")), ids=lambda one: one.stem
)
def test_real_markers(path):
    """Each golden Fetch of an aborted transaction ends with the marker that the broker wrote."""
    rows = [
        row
        for row in json.loads(path.read_text())["exchanges"]
        if row["scenario"] == "fetch aborted"
    ]
    for row in rows:
        frame = bytes.fromhex(row["response"])
        (answered,) = scan_response(frame, row["version"]).partitions
        marker = scan_batches(frame, answered.start, answered.end)[-1]
        assert scan_control(frame, marker) is ControlType.ABORT
    assert rows
