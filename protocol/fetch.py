"""Fetch, versions 4 to 18: what a client asks, and what the broker answered, read.

Owns: the layouts of FetchRequest.json and FetchResponse.json, of which `fetch_build` is the other direction.
Must not know: what a batch holds, sessions, which partitions are worth anything. Invariants: records are
spans of the frame, never copied; topics are names up to version 12, ids from 13 (KIP-516); a field that a
version lacks has the schema's default; unknown tagged fields are skipped; bytes after the last field are
ignored, as the broker does (AbstractRequest.parseRequest).
"""

from collections.abc import Callable
from operator import itemgetter
from struct import Struct
from typing import Final, NamedTuple

from protocol.api import APIS, FETCH
from protocol.errors import BadFrame
from protocol.header import response_body_start
from protocol.primitives import (
    CLASSIC,
    FLEXIBLE,
    INT16,
    INT32,
    INT32_PAIR,
    INT64_PAIR,
    Encoding,
    Frame,
    TopicNameOrId,
    read_array,
    read_string,
    read_topic_id,
    read_uvarint,
    refuses_garbage,
    scan_tags,
)

TOPIC_IDS_FROM: Final = 13
SESSIONS_FROM: Final = 7
LOG_START_FROM: Final = 5
FLEXIBLE_FROM: Final = APIS[FETCH].flexible_from
REPLICA_STATE_FROM: Final = 15
RACK_FROM: Final = 11
NONE: Final = -1

LIMITS = Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
ANSWER_V4 = Struct(">ihqq")  # partition, error, high watermark, last stable offset
ANSWER_V5 = Struct(">ihqqq")  # the same and log start offset
_DIVERGING = Struct(">iq")

_TAG_DIVERGING_EPOCH: Final = 0
_TAG_CURRENT_LEADER: Final = 1


class FetchPartition(NamedTuple):
    """One partition asked for; -1 stands for no epoch and no log start offset."""

    topic: TopicNameOrId
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


class FetchRequest(NamedTuple):
    """`replica_id` is -1 for consumers (from version 15 read from ReplicaState); `session_at` is the index of
    the session id in the frame, -1 below version 7; `rack_id` is empty where none was given; `is_distinct`: no
    partition is asked for twice; `is_repeated`: the ring that the scan was given has its partitions.
    """

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    session_at: int
    rack_id: str
    partitions: list[FetchPartition]
    forgotten: list[tuple[TopicNameOrId, int]]
    is_distinct: bool
    is_repeated: bool = False

    @property
    def least_bytes(self) -> int:
        """How many bytes are waited for, no more than may be told (KafkaApis.handleFetchRequest); 0 where nothing is
        waited for (ReplicaManager.fetchMessages).
        """
        return max(min(self.min_bytes, self.max_bytes), 0) if self.max_wait_ms > 0 else 0


class FetchedPartition(NamedTuple):
    """One partition answered; records are frame[start:end], both -1 where null. `diverging`: (epoch, end
    offset), `current_leader`: (leader id, epoch), `aborted`: pairs of (producer id, first offset) or null.
    """

    topic: TopicNameOrId
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    preferred_read_replica: int
    diverging: tuple[int, int] | None
    current_leader: tuple[int, int] | None
    aborted: list[tuple[int, int]] | None
    start: int
    end: int


class FetchResponse(NamedTuple):
    """Below version 7 the error code and the session id are 0."""

    throttle_time_ms: int
    error_code: int
    session_id: int
    partitions: list[FetchedPartition]


class PartitionLayout(NamedTuple):
    """A request's partition in one range of versions: its fields on the wire, picked by `build`."""

    wire: Struct
    build: Callable[[FetchPartition], tuple[int, ...]]


_V4 = PartitionLayout(Struct(">iqi"), itemgetter(1, 3, 6))
_V5 = PartitionLayout(Struct(">iqqi"), itemgetter(1, 3, 5, 6))
_V9 = PartitionLayout(Struct(">iiqqi"), itemgetter(1, 2, 3, 5, 6))
_V12 = PartitionLayout(Struct(">iiqiqi"), itemgetter(1, 2, 3, 4, 5, 6))


def partition_layout(version: int) -> PartitionLayout:
    """How a partition of a request of that version lies on the wire."""
    if version >= 12:
        return _V12
    if version >= 9:
        return _V9
    return _V5 if version >= LOG_START_FROM else _V4


def fetch_encoding(version: int) -> Encoding:
    """The encoding of that version's bodies."""
    return FLEXIBLE if version >= FLEXIBLE_FROM else CLASSIC


def _read_topic(
    encoding: Encoding, version: int, frame: Frame, at: int
) -> tuple[TopicNameOrId, int]:
    if version >= TOPIC_IDS_FROM:
        return read_topic_id(frame, at)
    return read_string(encoding, frame, at)


def _check_tag(start: int, end: int, least: int) -> None:
    if end - start < least:
        raise BadFrame(f"a tagged field of {end - start} bytes where {least} are needed")


@refuses_garbage
def scan_response(frame: Frame, version: int) -> FetchResponse:
    """What a Fetch response of version 4 to 18 says; raises `BadFrame`. Endpoints are skipped."""
    encoding = fetch_encoding(version)
    throttle_time_ms, error_code, session_id, at = _scan_top(frame, version)
    found: list[FetchedPartition] = []
    topics, at = read_array(encoding, frame, at)
    for _ in topics:
        topic, at = _read_topic(encoding, version, frame, at)
        partitions, at = read_array(encoding, frame, at)
        for _ in partitions:
            answer, at = _scan_answer(encoding, version, frame, at, topic)
            found.append(answer)
        at = encoding.skip_tags(frame, at)
    encoding.skip_tags(frame, at)
    return FetchResponse(throttle_time_ms, error_code, session_id, found)


@refuses_garbage
def scan_response_head(head: Frame, version: int, frame_bytes: int) -> FetchResponse | None:
    """The same of a frame of which only its `head` is there yet, if what lacks is the records of its last partition and
    what is behind them; that partition's hints are not read. None for any other; raises `BadFrame`.
    """
    encoding = fetch_encoding(version)
    throttle_time_ms, error_code, session_id, at = _scan_top(head, version)
    found: list[FetchedPartition] = []
    topics, at = read_array(encoding, head, at)
    for topics_left in reversed(topics):
        topic, at = _read_topic(encoding, version, head, at)
        partitions, at = read_array(encoding, head, at)
        for left in reversed(partitions):
            if left or topics_left:
                answer, at = _scan_answer(encoding, version, head, at, topic)
            else:
                answer, at = _scan_to_records(encoding, version, head, at, topic, frame_bytes)
            found.append(answer)
        if topics_left:
            at = encoding.skip_tags(head, at)
    if not found or not 0 <= found[-1].start <= len(head) < at:
        return None
    return FetchResponse(throttle_time_ms, error_code, session_id, found)


def _scan_top(frame: Frame, version: int) -> tuple[int, int, int, int]:
    """Throttle time, error code, session id, and where the topics begin."""
    at = response_body_start(frame, FETCH, version)
    (throttle_time_ms,) = INT32.unpack_from(frame, at)
    if version < SESSIONS_FROM:
        return throttle_time_ms, 0, 0, at + 4
    (error_code,) = INT16.unpack_from(frame, at + 4)
    (session_id,) = INT32.unpack_from(frame, at + 6)
    return throttle_time_ms, error_code, session_id, at + 10


def _scan_answer(
    encoding: Encoding, version: int, frame: Frame, at: int, topic: TopicNameOrId
) -> tuple[FetchedPartition, int]:
    found, at = _scan_to_records(encoding, version, frame, at, topic)
    if encoding is FLEXIBLE:
        tags, at = scan_tags(frame, at)
        if tags:
            diverging, leader = _scan_hints(frame, tags)
            found = found._replace(diverging=diverging, current_leader=leader)
    return found, at


def _scan_to_records(
    encoding: Encoding,
    version: int,
    frame: Frame,
    at: int,
    topic: TopicNameOrId,
    frame_bytes: int = 0,
) -> tuple[FetchedPartition, int]:
    """A partition without its hints, and where its records end: not there yet where `frame_bytes` will be."""
    if version >= LOG_START_FROM:
        partition, error_code, high_watermark, stable, log_start = ANSWER_V5.unpack_from(frame, at)
        at += ANSWER_V5.size
    else:
        partition, error_code, high_watermark, stable = ANSWER_V4.unpack_from(frame, at)
        log_start, at = NONE, at + ANSWER_V4.size
    aborted, at = _scan_aborted(encoding, frame, at)
    replica = NONE
    if version >= RACK_FROM:
        (replica,) = INT32.unpack_from(frame, at)
        at += 4
    if frame_bytes:
        length, start = _read_announced(encoding, frame, at, frame_bytes)
    else:
        length, start = encoding.read_count(frame, at)
    if length < 0:
        start, end, at = NONE, NONE, start
    else:
        end = at = start + length
    return FetchedPartition(
        topic,
        partition,
        error_code,
        high_watermark,
        stable,
        log_start,
        replica,
        None,
        None,
        aborted,
        start,
        end,
    ), at


def _read_announced(encoding: Encoding, head: Frame, at: int, frame_bytes: int) -> tuple[int, int]:
    """A length of records that reaches beyond the head of a frame."""
    if encoding is CLASSIC:
        (length,) = INT32.unpack_from(head, at)
        at += INT32.size
    else:
        length, at = read_uvarint(head, at)
        length -= 1
    if not NONE <= length <= frame_bytes - at:
        raise BadFrame(f"a length of {length} where {frame_bytes - at} bytes are left")
    return length, at


def _scan_aborted(
    encoding: Encoding, frame: Frame, at: int
) -> tuple[list[tuple[int, int]] | None, int]:
    count, at = encoding.read_count(frame, at)
    if count < 0:
        return None, at
    aborted = []
    for _ in range(count):
        aborted.append(INT64_PAIR.unpack_from(frame, at))
        at = encoding.skip_tags(frame, at + INT64_PAIR.size)
    return aborted, at


def _scan_hints(
    frame: Frame, tags: list[tuple[int, int, int]]
) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """DivergingEpoch (an epoch below 0 is none: FetchResponse.divergingEpoch) and CurrentLeader."""
    diverging = leader = None
    for tag, start, end in tags:
        if tag == _TAG_DIVERGING_EPOCH:
            _check_tag(start, end, _DIVERGING.size)
            epoch, end_offset = _DIVERGING.unpack_from(frame, start)
            diverging = (epoch, end_offset) if epoch >= 0 else None
        elif tag == _TAG_CURRENT_LEADER:
            _check_tag(start, end, INT32_PAIR.size)
            leader = INT32_PAIR.unpack_from(frame, start)
    return diverging, leader
