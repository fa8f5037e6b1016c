"""Produce messages, versions 3 to 13, read by Python; the product reads them in C (`protocol.produce_rows`).

Owns: what C is held against, and what played brokers and benches read. Must not know: what a batch holds. Invariants:
records are spans of the frame, never copied; topics are names up to version 12, ids from 13 (KIP-516); bytes after the
last field are ignored, as the broker does (AbstractRequest.parseRequest).
"""

from typing import NamedTuple

from protocol.api import PRODUCE
from protocol.header import response_body_start
from protocol.primitives import INT32, Frame, TopicNameOrId, read_array, refuses_garbage
from protocol.produce import (
    _ACKS_AND_TIMEOUT,
    _LOG_START_FROM,
    _PRODUCED_V3,
    _PRODUCED_V5,
    _RECORD_ERRORS_FROM,
    _encoding,
    _read_topic,
    _skip_errors,
)

_NONE = -1


class ProducePartition(NamedTuple):
    """`start`, `end`: the records field's content in the frame; both -1 where it is null."""

    topic: TopicNameOrId
    partition: int
    start: int
    end: int


class ProduceRequest(NamedTuple):
    """`acks`: 0, 1 or -1; with 0 no response follows."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    partitions: list[ProducePartition]


class ProducedPartition(NamedTuple):
    """Look at `error_code` before anything else: some errors carry a base offset. -1 is unknown."""

    topic: TopicNameOrId
    partition: int
    error_code: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int


class ProduceResponse(NamedTuple):
    """Partitions in the order of the answer."""

    partitions: list[ProducedPartition]
    throttle_time_ms: int


@refuses_garbage
def scan_request(frame: Frame, version: int, body_start: int) -> ProduceRequest:
    """The spans of a Produce request of version 3 to 13; raises `BadFrame`."""
    encoding = _encoding(version)
    read_count, skip_tags = encoding.read_count, encoding.skip_tags
    transactional_id, at = encoding.read_nullable_string(frame, body_start)
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, at)
    topics, at = read_array(encoding, frame, at + _ACKS_AND_TIMEOUT.size)
    found = []
    for _ in topics:
        topic, at = _read_topic(encoding, version, frame, at)
        partitions, at = read_array(encoding, frame, at)
        for _ in partitions:
            (partition,) = INT32.unpack_from(frame, at)
            length, start = read_count(frame, at + 4)
            if length < 0:
                found.append(ProducePartition(topic, partition, _NONE, _NONE))
                at = skip_tags(frame, start)
            else:
                found.append(ProducePartition(topic, partition, start, start + length))
                at = skip_tags(frame, start + length)
        at = skip_tags(frame, at)
    skip_tags(frame, at)
    return ProduceRequest(transactional_id, acks, timeout_ms, found)


@refuses_garbage
def scan_response(frame: Frame, version: int) -> ProduceResponse:
    """What a Produce response of version 3 to 13 says; raises `BadFrame`. Messages are skipped."""
    encoding = _encoding(version)
    skip_tags = encoding.skip_tags
    has_log_start = version >= _LOG_START_FROM
    layout = _PRODUCED_V5 if has_log_start else _PRODUCED_V3
    topics, at = read_array(encoding, frame, response_body_start(frame, PRODUCE, version))
    found = []
    for _ in topics:
        topic, at = _read_topic(encoding, version, frame, at)
        partitions, at = read_array(encoding, frame, at)
        for _ in partitions:
            fields = layout.unpack_from(frame, at)
            found.append(ProducedPartition(topic, *fields, *(() if has_log_start else (_NONE,))))
            at += layout.size
            if version >= _RECORD_ERRORS_FROM:
                at = _skip_errors(encoding, frame, at)
            at = skip_tags(frame, at)
        at = skip_tags(frame, at)
    (throttle_time_ms,) = INT32.unpack_from(frame, at)
    skip_tags(frame, at + 4)
    return ProduceResponse(found, throttle_time_ms)
