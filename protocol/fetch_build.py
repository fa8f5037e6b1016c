"""Fetch, versions 4 to 18, written: Forebay's own requests, its answers, a session changed in place.

Owns: the other direction of `fetch`, with the same layouts. Must not know: what a batch holds, why something
is asked or answered. Invariants: an answer is a list of buffers whose first carries the frame's length and
which names the caller's record buffers unchanged, uncopied; what an answer leaves out of a version has the
schema's default, so no tagged field is written; partitions keep their order, consecutive ones of a topic
share its entry (FetchResponse.toMessage).
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from struct import Struct
from typing import Any, NamedTuple, TypeVar

from protocol.api import APIS, FETCH
from protocol.fetch import (
    ANSWER_V4,
    ANSWER_V5,
    FLEXIBLE_FROM,
    LIMITS,
    LOG_START_FROM,
    NONE,
    RACK_FROM,
    REPLICA_STATE_FROM,
    SESSIONS_FROM,
    TOPIC_IDS_FROM,
    FetchPartition,
    fetch_encoding,
    partition_layout,
)
from protocol.header import RESPONSE_TAGS_START, build_request_header, response_body_start
from protocol.wire import (
    INT16,
    INT32,
    INT32_PAIR,
    INT64,
    INT64_PAIR,
    TOPIC_ID_BYTES,
    Encoding,
    Frame,
    Topic,
)

CONSUMER = -1
_HEAD = Struct(">iii")  # length, correlation id, throttle time
_SESSION_HEAD = Struct(">iiihi")  # and error code, session id
_FLEXIBLE_HEAD = Struct(">iibihi")  # with the header's tags
T = TypeVar("T", bound=tuple[Any, ...])


class FetchAnswer(NamedTuple):
    """One partition's answer. `aborted`: pairs of (producer id, first offset); the broker sends None (null)
    to read_uncommitted and a list, maybe empty, to read_committed (LocalLog.read). `records`: whole batches
    in buffers of together `records_bytes`.
    """

    topic: Topic
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: Sequence[tuple[int, int]] | None
    records: Sequence[Frame]
    records_bytes: int


def _by_topic(entries: Sequence[T]) -> list[tuple[Topic, list[T]]]:
    """Consecutive entries of one topic, which is their first field, together."""
    if len(entries) == 1:
        return [(entries[0][0], list(entries))]
    return [(topic, list(group)) for topic, group in groupby(entries, key=lambda entry: entry[0])]


def _build_topic(encoding: Encoding, version: int, topic: Topic) -> bytes:
    """The name, or from version 13 the id; ValueError where the caller has the wrong one."""
    if version < TOPIC_IDS_FROM:
        if not isinstance(topic, str):
            raise ValueError(f"Fetch {version} names topics by name")
        return encoding.build_string(topic)
    if isinstance(topic, str) or len(topic) != TOPIC_ID_BYTES:
        raise ValueError(f"Fetch {version} names topics by id")
    return bytes(topic)


def build_request(
    version: int,
    correlation_id: int,
    client_id: str | None,
    *,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    isolation_level: int,
    session_id: int,
    session_epoch: int,
    partitions: Sequence[FetchPartition],
    forgotten: Sequence[tuple[Topic, int]] = (),
    rack_id: str = "",
) -> bytes:
    """A consumer's Fetch request as a whole frame. Below version 7 there is no session, below 11 no rack id."""
    encoding = fetch_encoding(version)
    frame = build_request_header(FETCH, version, correlation_id, client_id, bool(encoding.no_tags))
    if version < REPLICA_STATE_FROM:
        frame += INT32.pack(CONSUMER)
    frame += LIMITS.pack(max_wait_ms, min_bytes, max_bytes, isolation_level)
    if version >= SESSIONS_FROM:
        frame += INT32_PAIR.pack(session_id, session_epoch)
    _put_asked(frame, encoding, version, partitions)
    if version >= SESSIONS_FROM:
        _put_forgotten(frame, encoding, version, forgotten)
    if version >= RACK_FROM:
        frame += encoding.build_string(rack_id)
    frame += encoding.no_tags
    INT32.pack_into(frame, 0, len(frame) - 4)
    return bytes(frame)


def _put_asked(
    frame: bytearray, encoding: Encoding, version: int, partitions: Sequence[FetchPartition]
) -> None:
    wire, _, build, _ = partition_layout(version)
    topics = _by_topic(partitions)
    frame += encoding.build_count(len(topics))
    for topic, asked in topics:
        frame += _build_topic(encoding, version, topic)
        frame += encoding.build_count(len(asked))
        for partition in asked:
            frame += wire.pack(*build(partition))
            frame += encoding.no_tags
        frame += encoding.no_tags


def _put_forgotten(
    frame: bytearray, encoding: Encoding, version: int, forgotten: Sequence[tuple[Topic, int]]
) -> None:
    topics = _by_topic(forgotten)
    frame += encoding.build_count(len(topics))
    for topic, group in topics:
        frame += _build_topic(encoding, version, topic)
        frame += encoding.build_count(len(group))
        for _topic, partition in group:
            frame += INT32.pack(partition)
        frame += encoding.no_tags


def build_response(
    version: int,
    correlation_id: int,
    *,
    throttle_time_ms: int,
    error_code: int,
    session_id: int,
    partitions: Sequence[FetchAnswer],
) -> list[Frame]:
    """A Fetch response as buffers to be written in order; no preferred replica. Below version 7 neither the
    error code nor the session id is sent.
    """
    encoding = fetch_encoding(version)
    if version >= FLEXIBLE_FROM:
        head = _FLEXIBLE_HEAD.pack(0, correlation_id, 0, throttle_time_ms, error_code, session_id)
    elif version >= SESSIONS_FROM:
        head = _SESSION_HEAD.pack(0, correlation_id, throttle_time_ms, error_code, session_id)
    else:
        head = _HEAD.pack(0, correlation_id, throttle_time_ms)
    piece = first = bytearray(head)
    out: list[Frame] = [first]
    frame_bytes = 0  # of all buffers but the last piece
    topics = _by_topic(partitions)
    piece += encoding.build_count(len(topics))
    for topic, answers in topics:
        piece += _build_topic(encoding, version, topic)
        piece += encoding.build_count(len(answers))
        for answer in answers:
            _put_answer(piece, encoding, version, answer)
            if answer.records_bytes:
                frame_bytes += len(piece) + answer.records_bytes
                piece = bytearray()
                out += (*answer.records, piece)
            piece += encoding.no_tags
        piece += encoding.no_tags
    piece += encoding.no_tags
    INT32.pack_into(first, 0, frame_bytes + len(piece) - 4)
    return out if piece else out[:-1]


def _put_answer(piece: bytearray, encoding: Encoding, version: int, answer: FetchAnswer) -> None:
    """A partition up to its records' bytes."""
    if version >= LOG_START_FROM:
        piece += ANSWER_V5.pack(*answer[1:6])
    else:
        piece += ANSWER_V4.pack(*answer[1:5])
    if answer.aborted is None:
        piece += encoding.build_count(NONE)
    else:
        piece += encoding.build_count(len(answer.aborted))
        for transaction in answer.aborted:
            piece += INT64_PAIR.pack(*transaction)
            piece += encoding.no_tags
    if version >= RACK_FROM:
        piece += INT32.pack(NONE)
    piece += encoding.build_count(answer.records_bytes)


def stamp_session(
    frame: bytearray | memoryview, session_at: int, session_id: int, session_epoch: int
) -> None:
    """Give a request frame another session, in place; `session_at` is from its scan and not -1."""
    INT32_PAIR.pack_into(frame, session_at, session_id, session_epoch)


def end_session(frame: Frame, version: int, body_start: int) -> Frame:
    """A consumer's request frame that names all it asks, as one without a session (FetchMetadata.isFull): the broker
    grants none. Any other, and of any other version than 7 to 18, is returned as it is.
    """
    session_at = body_start + LIMITS.size + (INT32.size if version < REPLICA_STATE_FROM else 0)
    is_known = version >= SESSIONS_FROM and APIS[FETCH].decodes(version)
    if not is_known or len(frame) < session_at + INT32_PAIR.size:
        return frame
    is_replica = version < REPLICA_STATE_FROM and INT32.unpack_from(frame, body_start)[0] >= 0
    if is_replica or INT32_PAIR.unpack_from(frame, session_at)[1] != 0:
        return frame
    frame = bytearray(frame) if isinstance(frame, bytes) else frame
    stamp_session(frame, session_at, 0, NONE)
    return frame


def stamp_max_wait(
    frame: bytearray | memoryview, version: int, body_start: int, max_wait_ms: int
) -> None:
    """Give a request frame another max_wait, in place: the body's first field, after the replica id below
    version 15 (FetchRequest.json).
    """
    INT32.pack_into(
        frame, body_start if version >= REPLICA_STATE_FROM else body_start + 4, max_wait_ms
    )


def stamp_response_session(frame: bytearray | memoryview, version: int, session_id: int) -> None:
    """Give a response frame (version 7 or above) another session id, in place: it stands after the throttle time and
    the error code (FetchResponse.json).
    """
    body_start = response_body_start(frame, FETCH, version)
    INT32.pack_into(frame, body_start + INT32.size + INT16.size, session_id)


class AnswerHead(NamedTuple):
    """What answers with records of one partition and no error say before these, in one version and session: `wire`
    takes length, correlation id, `before`, HW, LSO, log start offset and `after`; then come the records' length as
    `build_count` writes it, the records, and `end`.
    """

    wire: Struct
    before: bytes
    after: bytes
    build_count: Callable[[int], bytes]
    end: bytes


def plan_answer_head(
    version: int, session_id: int, topic: Topic, partition: int, read_committed: bool
) -> AnswerHead:
    """Of answers of version 7 or above without a throttle time, and for read_committed without aborted transactions."""
    aborted = () if read_committed else None
    answer = FetchAnswer(topic, partition, 0, 0, 0, 0, aborted, (), 0)
    whole = b"".join(
        build_response(
            version, 0, throttle_time_ms=0, error_code=0, session_id=session_id, partitions=[answer]
        )
    )
    encoding = fetch_encoding(version)
    count_bytes, end = len(encoding.build_count(0)), 3 * encoding.no_tags
    after_end = len(whole) - len(end) - count_bytes
    after_start = after_end - count_bytes - (INT32.size if version >= RACK_FROM else 0)
    before = whole[RESPONSE_TAGS_START : after_start - 3 * INT64.size]
    after = whole[after_start:after_end]
    wire = Struct(f">ii{len(before)}sqqq{len(after)}s")
    return AnswerHead(wire, before, after, encoding.build_count, end)


def build_headed_answer(
    head: AnswerHead,
    correlation_id: int,
    high_watermark: int,
    last_stable_offset: int,
    log_start_offset: int,
    records: Sequence[Frame],
    records_bytes: int,
) -> tuple[Frame, ...]:
    """The frame as `build_response` gives it: `records`, of together `records_bytes`, unchanged and uncopied."""
    offsets = high_watermark, last_stable_offset, log_start_offset
    start, end = build_start(head, correlation_id, *offsets, records_bytes), head.end
    return (start, *records, end) if end else (start, *records)


def build_start(
    head: AnswerHead,
    correlation_id: int,
    high_watermark: int,
    last_stable_offset: int,
    log_start_offset: int,
    records_bytes: int,
) -> bytes:
    """The frame up to its records, which `head.end` follows."""
    wire, before, after, build_count, end = head
    count = build_count(records_bytes)
    length = wire.size - INT32.size + len(count) + records_bytes + len(end)
    start = wire.pack(
        length, correlation_id, before, high_watermark, last_stable_offset, log_start_offset, after
    )
    return start + count
