"""Produce frames are kio's, byte by byte, and a batch is read as a broker reads it."""

import io
import struct
from datetime import timedelta
from typing import Any

import crc32c
import pytest
from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.constants import EntityType

from protocol import batch
from tests.kit.frames import CRC_AT, CRC_FROM, build_batch, build_produce, read_produced

request: Any = load_payload_module(0, 9, EntityType.request)
response: Any = load_payload_module(0, 9, EntityType.response)


def frame_of(header: Any, body: Any) -> bytes:
    out = io.BytesIO()
    for entity in (header, body):
        entity_writer(type(entity))(out, entity)
    return struct.pack(">i", len(out.getvalue())) + out.getvalue()


def kio_produce(
    topic: str, records: bytes, acks: int, correlation_id: int, client_id: str
) -> bytes:
    partition = request.PartitionProduceData(index=0, records=records)
    data = request.TopicProduceData(name=topic, partition_data=(partition,))
    body = request.ProduceRequest(
        transactional_id=None, acks=acks, timeout=timedelta(seconds=5), topic_data=(data,)
    )
    header = body.__header_schema__(
        request_api_key=0, request_api_version=9, correlation_id=correlation_id, client_id=client_id
    )
    return frame_of(header, body)


@pytest.mark.parametrize("size_bytes", [100, 1000, 65_000, 3_000_000])
@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_requests_are_kios(size_bytes: int, acks: int) -> None:
    made = build_batch(size_bytes, min(size_bytes, 1000))
    topic = "orders" * (size_bytes % 30 + 1)
    assert build_produce(topic, made) == kio_produce(topic, made, -1, 1, "ladder")
    built = build_produce(topic, made, acks, correlation_id=77, client_id="")
    assert built == kio_produce(topic, made, acks, 77, "")


@pytest.mark.parametrize(("error", "base_offset"), [(0, 0), (0, 1 << 40), (6, -1)])
def test_responses_are_read_as_kio_writes_them(error: int, base_offset: int) -> None:
    partition = response.PartitionProduceResponse(
        index=0,
        error_code=ErrorCode(error),
        base_offset=base_offset,
        log_append_time=None,
        log_start_offset=0,
        record_errors=(),
        error_message=None,
    )
    topic = response.TopicProduceResponse(name="orders", partition_responses=(partition,))
    body = response.ProduceResponse(responses=(topic,), throttle_time=timedelta(0))
    frame = frame_of(body.__header_schema__(correlation_id=1), body)
    assert read_produced(frame) == (error, base_offset)


def test_a_batch_has_records_of_1_kb_and_a_right_crc() -> None:
    made = build_batch(65_000)
    (found,) = batch.scan_batches(made, 0, len(made))
    assert (found.record_count, found.end) == (65, len(made))
    assert struct.unpack_from(">I", made, CRC_AT)[0] == crc32c.crc32c(made[CRC_FROM:])
    assert 65_000 < len(made) < 66_000
