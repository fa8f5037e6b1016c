"""Fetch requests, versions 4 to 18, read by Python; the product reads them in C (`protocol.fetch_rows`).

Owns: what C is held against, and what played brokers read. Must not know: sessions, which partitions are worth
anything. Invariants: topics are names up to version 12, ids from 13 (KIP-516); a field that a version lacks has the
schema's default; unknown tagged fields are skipped; bytes after the last field are ignored, as the broker does
(AbstractRequest.parseRequest).
"""

from collections.abc import Callable
from operator import itemgetter

from protocol import fetch_rows
from protocol.errors import BadFrame
from protocol.fetch import (
    LIMITS,
    NONE,
    RACK_FROM,
    REPLICA_STATE_FROM,
    SESSIONS_FROM,
    FetchPartition,
    FetchRequest,
    _read_topic,
    fetch_encoding,
    partition_layout,
)
from protocol.primitives import (
    FLEXIBLE,
    INT32,
    INT32_PAIR,
    Encoding,
    Frame,
    TopicNameOrId,
    read_array,
    read_string,
    refuses_garbage,
    scan_tags,
)

_TAG_REPLICA_STATE = 1
_FIELDS: dict[int, Callable[[tuple[int, ...]], tuple[int, ...]]] = {
    4: itemgetter(0, 3, 1, 3, 3, 2),
    5: itemgetter(0, 4, 1, 4, 2, 3),
    9: itemgetter(0, 1, 2, 5, 3, 4),
    12: itemgetter(0, 1, 2, 3, 4, 5),
}
"""By first version: FetchPartition's fields after the topic, from the wire's followed by -1."""


def scan_in_c(frame: Frame) -> FetchRequest:
    """The same, as the product reads it; raises `BadFrame`."""
    scanned = fetch_rows.scan_request(frame, len(frame))
    if scanned is None:
        raise BadFrame("not a Fetch of version 4 to 18")
    return scanned[1]


@refuses_garbage
def scan_request(frame: Frame, version: int, body_start: int) -> FetchRequest:
    """What a Fetch request of version 4 to 18 asks; raises `BadFrame`."""
    encoding = fetch_encoding(version)
    at, replica_id = body_start, NONE
    if version < REPLICA_STATE_FROM:
        (replica_id,) = INT32.unpack_from(frame, at)
        at += 4
    limits = LIMITS.unpack_from(frame, at)
    at += LIMITS.size
    session_id, session_epoch, session_at = 0, NONE, NONE
    if version >= SESSIONS_FROM:
        session_at = at
        session_id, session_epoch = INT32_PAIR.unpack_from(frame, at)
        at += INT32_PAIR.size
    partitions, at = _scan_asked(encoding, version, frame, at)
    forgotten: list[tuple[TopicNameOrId, int]] = []
    if version >= SESSIONS_FROM:
        forgotten, at = _scan_forgotten(encoding, version, frame, at)
    rack_id = ""
    if version >= RACK_FROM:
        rack_id, at = read_string(encoding, frame, at)
    if encoding is FLEXIBLE:
        tags, at = scan_tags(frame, at)
        if version >= REPLICA_STATE_FROM:
            replica_id = _replica_id(frame, tags)
    session = session_id, session_epoch, session_at
    is_distinct = len({one[:2] for one in partitions}) == len(partitions)
    named = rack_id, partitions, forgotten, is_distinct, False
    return FetchRequest._make((replica_id, *limits, *session, *named))


def _replica_id(frame: Frame, tags: list[tuple[int, int, int]]) -> int:
    """From ReplicaState, a tagged field since version 15 (KIP-903)."""
    for tag, start, end in tags:
        if tag == _TAG_REPLICA_STATE:
            if end - start < INT32.size:
                raise BadFrame(
                    f"a tagged field of {end - start} bytes where {INT32.size} are needed"
                )
            return int(INT32.unpack_from(frame, start)[0])
    return NONE


def _scan_asked(
    encoding: Encoding, version: int, frame: Frame, at: int
) -> tuple[list[FetchPartition], int]:
    """All partitions, and what follows."""
    wire = partition_layout(version).wire
    pick = _FIELDS[max(first for first in _FIELDS if first <= version)]
    found = []
    topics, at = read_array(encoding, frame, at)
    for _ in topics:
        topic, at = _read_topic(encoding, version, frame, at)
        partitions, at = read_array(encoding, frame, at)
        for _ in partitions:
            fields = pick((*wire.unpack_from(frame, at), NONE))
            found.append(FetchPartition(topic, *fields))
            at = encoding.skip_tags(frame, at + wire.size)
        at = encoding.skip_tags(frame, at)
    return found, at


def _scan_forgotten(
    encoding: Encoding, version: int, frame: Frame, at: int
) -> tuple[list[tuple[TopicNameOrId, int]], int]:
    found = []
    topics, at = read_array(encoding, frame, at)
    for _ in topics:
        topic, at = _read_topic(encoding, version, frame, at)
        partitions, at = read_array(encoding, frame, at)
        for _ in partitions:
            found.append((topic, INT32.unpack_from(frame, at)[0]))
            at += 4
        at = encoding.skip_tags(frame, at)
    return found, at
