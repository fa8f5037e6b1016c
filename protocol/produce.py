"""Produce, versions 3 to 13: layouts that Python reads and writes. C reads the messages (`protocol.produce_rows`).

Owns: the layouts of ProduceRequest.json and ProduceResponse.json, and reading a topic or the acks alone. Must not know:
what a batch holds, what becomes of it. Invariants: topics are names up to version 12, ids from 13 (KIP-516).
"""

from struct import Struct

from protocol.api import PRODUCE, is_flexible
from protocol.primitives import (
    CLASSIC,
    FLEXIBLE,
    Encoding,
    Frame,
    TopicNameOrId,
    read_array,
    read_string,
    read_topic_id,
    refuses_garbage,
)

TOPIC_IDS_FROM = 13
_TRANSACTIONS_FROM = 3
_LOG_START_FROM = 5
_RECORD_ERRORS_FROM = 8

_ACKS_AND_TIMEOUT = Struct(">hi")
_PRODUCED_V3 = Struct(">ihqq")
_PRODUCED_V5 = Struct(">ihqqq")


def _encoding(version: int) -> Encoding:
    return FLEXIBLE if is_flexible(PRODUCE, version) else CLASSIC


def _read_topic(
    encoding: Encoding, version: int, frame: Frame, at: int
) -> tuple[TopicNameOrId, int]:
    if version >= TOPIC_IDS_FROM:
        return read_topic_id(frame, at)
    return read_string(encoding, frame, at)


@refuses_garbage
def peek_topic(frame: Frame, version: int, at: int) -> TopicNameOrId:
    """The topic of a Produce message that begins at `at`: its name, from version 13 its id; raises `BadFrame`."""
    return _read_topic(_encoding(version), version, frame, at)[0]


@refuses_garbage
def peek_acks(frame: Frame, version: int, body_start: int) -> int:
    """The acks of a Produce request of version 0 to 13, without reading on; raises `BadFrame`."""
    at = body_start
    if version >= _TRANSACTIONS_FROM:
        _, at = _encoding(version).read_nullable_string(frame, at)
    acks: int = _ACKS_AND_TIMEOUT.unpack_from(frame, at)[0]
    return acks


def _skip_errors(encoding: Encoding, frame: Frame, at: int) -> int:
    """RecordErrors and ErrorMessage (KIP-467); nearly always neither."""
    if encoding is FLEXIBLE and frame[at] == 1 and frame[at + 1] == 0:
        return at + 2
    errors, at = read_array(encoding, frame, at)
    for _ in errors:
        _message, at = encoding.read_nullable_string(frame, at + 4)
        at = encoding.skip_tags(frame, at)
    _message, at = encoding.read_nullable_string(frame, at)
    return at
