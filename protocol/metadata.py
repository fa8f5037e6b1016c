"""Metadata answers, versions 0 to 13: the cluster's brokers, and what topics are.

Owns: the layout of MetadataResponse.json. Must not know: who asked, what follows. Invariants: replicas are skipped,
so that ten thousand partitions are read in a few hundredths of a second; what a version lacks has the schema's default.
"""

from struct import Struct
from typing import Final, NamedTuple

from protocol.api import METADATA, is_flexible
from protocol.errors import BadFrame
from protocol.header import response_body_start
from protocol.primitives import (
    CLASSIC,
    FLEXIBLE,
    INT16,
    INT32,
    Encoding,
    Frame,
    read_array,
    read_string,
    read_topic_id,
    refuses_garbage,
)

_RACK_FROM: Final = 1  # and the controller, and is_internal
_CLUSTER_ID_FROM: Final = 2
_THROTTLE_FROM: Final = 3
_OFFLINE_FROM: Final = 5
_EPOCH_FROM: Final = 7
_OPERATIONS_FROM: Final = 8
_CLUSTER_OPERATIONS: Final = range(8, 11)
_TOPIC_ID_FROM: Final = 10
_NULL_NAME_FROM: Final = 12
_ERROR_FROM: Final = 13
_NO_TOPIC_ID: Final = bytes(16)
_LED = Struct(">hii")  # error, partition, leader
_LED_EPOCH = Struct(">hiii")


class BrokerAddress(NamedTuple):
    """One broker of the cluster; `rack` is None where it has none."""

    node_id: int
    host: str
    port: int
    rack: str | None


class PartitionMetadata(NamedTuple):
    """`leader_id` -1: none is known; `leader_epoch` -1: the version has none (below 7)."""

    error_code: int
    partition: int
    leader_id: int
    leader_epoch: int


class TopicMetadata(NamedTuple):
    """`topic_id`: 16 bytes, None below version 10 or where unknown; `name` None if only the id was asked."""

    error_code: int
    name: str | None
    topic_id: bytes | None
    is_internal: bool
    partitions: list[PartitionMetadata]


class Metadata(NamedTuple):
    """`error_code`: the answer's own (version 13); `cluster_id` None below 2, `controller_id` -1 below 1."""

    error_code: int
    cluster_id: str | None
    controller_id: int
    brokers: list[BrokerAddress]
    topics: list[TopicMetadata]


@refuses_garbage
def scan_metadata_response(frame: Frame, version: int) -> Metadata:
    """What a Metadata answer says; raises `BadFrame`."""
    encoding = FLEXIBLE if is_flexible(METADATA, version) else CLASSIC
    at = response_body_start(frame, METADATA, version) + (4 if version >= _THROTTLE_FROM else 0)
    brokers, at = _scan_brokers(encoding, version, frame, at)
    cluster_id, controller_id = None, -1
    if version >= _CLUSTER_ID_FROM:
        cluster_id, at = encoding.read_nullable_string(frame, at)
    if version >= _RACK_FROM:
        (controller_id,) = INT32.unpack_from(frame, at)
        at += 4
    topics = []
    named, at = read_array(encoding, frame, at)
    for _ in named:
        topic, at = _scan_topic(encoding, version, frame, at)
        topics.append(topic)
    at += 4 if version in _CLUSTER_OPERATIONS else 0
    error_code = 0
    if version >= _ERROR_FROM:
        (error_code,) = INT16.unpack_from(frame, at)
        at += 2
    if encoding.skip_tags(frame, at) > len(frame):
        raise BadFrame("the answer reaches beyond the frame")
    return Metadata(error_code, cluster_id, controller_id, brokers, topics)


@refuses_garbage
def scan_brokers(frame: Frame, version: int) -> list[BrokerAddress]:
    """The brokers alone, which come first, however many topics follow; raises `BadFrame`."""
    encoding = FLEXIBLE if is_flexible(METADATA, version) else CLASSIC
    at = response_body_start(frame, METADATA, version) + (4 if version >= _THROTTLE_FROM else 0)
    return _scan_brokers(encoding, version, frame, at)[0]


def _scan_brokers(
    encoding: Encoding, version: int, frame: Frame, at: int
) -> tuple[list[BrokerAddress], int]:
    found = []
    brokers, at = read_array(encoding, frame, at)
    for _ in brokers:
        (node_id,) = INT32.unpack_from(frame, at)
        host, at = read_string(encoding, frame, at + 4)
        (port,) = INT32.unpack_from(frame, at)
        rack, at = (
            encoding.read_nullable_string(frame, at + 4)
            if version >= _RACK_FROM
            else (None, at + 4)
        )
        at = encoding.skip_tags(frame, at)
        found.append(BrokerAddress(node_id, host, port, rack))
    return found, at


def _scan_topic(
    encoding: Encoding, version: int, frame: Frame, at: int
) -> tuple[TopicMetadata, int]:
    (error_code,) = INT16.unpack_from(frame, at)
    name: str | None
    if version >= _NULL_NAME_FROM:
        name, at = encoding.read_nullable_string(frame, at + 2)
    else:
        name, at = read_string(encoding, frame, at + 2)
    topic_id: bytes | None = None
    if version >= _TOPIC_ID_FROM:
        topic_id, at = read_topic_id(frame, at)
    is_internal = False
    if version >= _RACK_FROM:
        is_internal, at = frame[at] != 0, at + 1
    partitions, at = _scan_partitions(encoding, version, frame, at)
    at = encoding.skip_tags(frame, at + (4 if version >= _OPERATIONS_FROM else 0))
    if topic_id == _NO_TOPIC_ID:
        topic_id = None
    return TopicMetadata(error_code, name, topic_id, is_internal, partitions), at


def _scan_partitions(
    encoding: Encoding, version: int, frame: Frame, at: int
) -> tuple[list[PartitionMetadata], int]:
    layout = _LED_EPOCH if version >= _EPOCH_FROM else _LED
    without = () if version >= _EPOCH_FROM else (-1,)
    lists = 3 if version >= _OFFLINE_FROM else 2
    read_count, skip_tags = encoding.read_count, encoding.skip_tags
    found = []
    partitions, at = read_array(encoding, frame, at)
    for _ in partitions:
        fields = layout.unpack_from(frame, at)
        at += layout.size
        for _ in range(lists):  # replicas, in sync, offline
            count, at = read_count(frame, at)
            if count < 0:
                raise BadFrame("an array is null that must not be")
            at += 4 * count
        at = skip_tags(frame, at)
        found.append(PartitionMetadata(*fields, *without))
    return found, at
