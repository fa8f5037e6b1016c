"""Fetch, versions 4 to 18, written: Forebay's own requests, its answers, a session changed in place.

Owns: the other direction of `fetch`, with the same layouts. Must not know: what a batch holds, why something
is asked or answered. Invariants: an answer is a list of buffers whose first carries the frame's length and
which names the caller's record buffers unchanged, uncopied; what an answer leaves out of a version has the
schema's default, so no tagged field is written; partitions keep their order, consecutive ones of a topic
share its entry (FetchResponse.toMessage).
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from protocol._ordinary import ffi, lib
from protocol.api import APIS, FETCH
from protocol.fetch import (
    LIMITS,
    NONE,
    RACK_FROM,
    REPLICA_STATE_FROM,
    SESSIONS_FROM,
    TOPIC_IDS_FROM,
    FetchPartition,
    fetch_encoding,
    partition_layout,
)
from protocol.fetch_ring import ABORTED_WORD, ANSWERED_WORDS, RECORDS_WORD, FetchRing
from protocol.header import build_request_header, response_body_start
from protocol.primitives import (
    INT16,
    INT32,
    INT32_PAIR,
    TOPIC_ID_BYTES,
    Encoding,
    Frame,
    TopicNameOrId,
)

CONSUMER = -1
HEAD_MAX: Final = 23
"""Most bytes of a response before its topics: length, ids, throttle time, error code, tags."""
ANSWERED_MAX: Final = 40
"""Most bytes of a partition between its index and its records, without aborted transactions."""
PAIR_MAX: Final = 9
"""Most bytes of one of the two numbers of an aborted transaction."""
HEADS_BYTES: Final = 1 << 16
HEADS_PARTITIONS: Final = 1024
NO_ERROR, NO_SESSION = 0, 0
_build_heads: Callable[..., int] = lib.po_build_heads
_build_ring: Callable[..., int] = lib.po_build_ring
KEY: Callable[[tuple[Any, ...]], tuple[TopicNameOrId, int]] = itemgetter(0, 1)
"""Topic and partition of a FetchPartition or FetchAnswer."""
_TOPIC = itemgetter(0)
T = TypeVar("T", bound=tuple[Any, ...])


class FetchAnswer(NamedTuple):
    """One partition's answer. `aborted`: pairs of (producer id, first offset); the broker sends None (null)
    to read_uncommitted and a list, maybe empty, to read_committed (LocalLog.read). `records`: whole batches
    in buffers of together `records_bytes`.
    """

    topic: TopicNameOrId
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: Sequence[tuple[int, int]] | None
    records: Sequence[Frame]
    records_bytes: int


def _by_topic(entries: Sequence[T]) -> list[tuple[TopicNameOrId, list[T]]]:
    """Consecutive entries of one topic, which is their first field, together."""
    if len(entries) == 1:
        return [(entries[0][0], list(entries))]
    return [(topic, list(group)) for topic, group in groupby(entries, key=_TOPIC)]


def _build_topic(encoding: Encoding, version: int, topic: TopicNameOrId) -> bytes:
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
    forgotten: Sequence[tuple[TopicNameOrId, int]] = (),
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
    wire, build = partition_layout(version)
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
    frame: bytearray,
    encoding: Encoding,
    version: int,
    forgotten: Sequence[tuple[TopicNameOrId, int]],
) -> None:
    topics = _by_topic(forgotten)
    frame += encoding.build_count(len(topics))
    for topic, group in topics:
        frame += _build_topic(encoding, version, topic)
        frame += encoding.build_count(len(group))
        for _topic, partition in group:
            frame += INT32.pack(partition)
        frame += encoding.no_tags


class ResponseLayout(NamedTuple):
    """The bytes around the answers of a response of one version that names the partitions `keys`, in
    this order.

    `names`: the bytes before the error code of each answer, one behind another, then those behind
    the last answer. `ends` (`uint32_t[]` of C): where each of them ends.
    """

    version: int
    keys: list[tuple[TopicNameOrId, int]]
    names: bytes
    ends: Any


class KeptLayout:
    """The layout of a connection's last response, for a next one that names the same partitions.

    `layout` is None before the first, and if it is not worth keeping.
    """

    __slots__ = ("layout",)

    def __init__(self) -> None:
        self.layout: ResponseLayout | None = None

    def keep(self, layout: ResponseLayout | None) -> None:
        """Keep it in place of the one before."""
        self.layout = layout


ResponseHeads: TypeAlias = "tuple[bytes, list[int]]"
"""A response without its records, `heads`, and `cuts`: the records of its n-th answer with records
stand before `heads[cuts[n]]`.
"""


def plan_layout(version: int, keys: list[tuple[TopicNameOrId, int]]) -> ResponseLayout:
    """Return the layout of a response; ValueError where the version does not name topics so."""
    encoding = fetch_encoding(version)
    no_tags, build_count = encoding.no_tags, encoding.build_count
    topics = _by_topic(keys)
    names, ends = bytearray(build_count(len(topics))), []
    for topic, group in topics:
        names += _build_topic(encoding, version, topic) + build_count(len(group))
        for _topic, index in group:
            names += INT32.pack(index)
            ends.append(len(names))
            names += no_tags
        names += no_tags
    names += no_tags
    return ResponseLayout(version, keys, bytes(names), ffi.new("uint32_t[]", [*ends, len(names)]))


class _Written:
    """Memory that C writes heads and cuts to, for `room_bytes` and `partitions`. It grows."""

    __slots__ = ("cut_words", "cuts", "heads", "partitions", "room_bytes")

    def __init__(self) -> None:
        self.room_bytes = self.partitions = 0
        self.make_room(HEADS_BYTES, HEADS_PARTITIONS)

    def make_room(self, room_bytes: int, partitions: int) -> None:
        """Have room for at least so much."""
        if room_bytes > self.room_bytes:
            self.room_bytes = room_bytes
            self.heads = ffi.new("uint8_t[]", room_bytes)
        if partitions > self.partitions:
            self.partitions = partitions
            self.cuts = ffi.new("uint64_t[]", partitions)
            self.cut_words = memoryview(ffi.buffer(self.cuts)).cast("Q")


_written = _Written()


def build_heads(
    layout: ResponseLayout,
    correlation_id: int,
    throttle_time_ms: int,
    error_code: int,
    session_id: int,
    answers: Sequence[FetchAnswer],
) -> ResponseHeads:
    """Return a response without its records. `answers` are those of the layout's partitions. Below
    version 7 neither error code nor session id is sent.
    """
    version, keys, names, ends = layout
    words: list[int] = []
    pairs: list[int] = []
    count = with_records = 0
    for _, _, error, high_watermark, stable, log_start, aborted, _, records_bytes in answers:
        listed = -1
        if aborted is not None:
            listed = len(aborted)
            for transaction in aborted:
                pairs += transaction
        words += error, high_watermark, stable, log_start, listed, records_bytes
        with_records += records_bytes > 0
        count += 1
    if count != len(keys):
        raise ValueError(f"{count} answers in a layout of {len(keys)}")
    heading = version, correlation_id, throttle_time_ms, error_code, session_id
    room_bytes = HEAD_MAX + len(names) + count * ANSWERED_MAX + len(pairs) * PAIR_MAX
    if room_bytes > _written.room_bytes or count > _written.partitions:
        _written.make_room(room_bytes, count)
    heads = _written.heads
    size_bytes = _build_heads(
        (heading,), names, ends, words, count, pairs, heads, _written.room_bytes, _written.cuts
    )
    assert size_bytes > 0, "there was room for the most that it can be"
    return ffi.buffer(heads, size_bytes)[:], _written.cut_words[:with_records].tolist()


def build_ring_heads(
    ring: FetchRing,
    slots: Sequence[int],
    correlation_id: int,
    throttle_time_ms: int,
    answers: Sequence[FetchAnswer],
) -> ResponseHeads:
    """Return the response to the request that `ring` has matched, without records and session.

    `answers` are those of the partitions at `slots`, in the request's order. Each other partition
    that the request names is named as last shown, which was without records.
    """
    words = ring.answered_words
    pairs: list[int] = []
    told: list[int] = []
    with_records = 0
    for slot, answer in zip(slots, answers, strict=True):
        _, _, error, high_watermark, stable, log_start, aborted, _, records_bytes = answer
        listed = -1
        if aborted is not None:
            listed = len(aborted)
            for transaction in aborted:
                pairs += transaction
        at = slot * ANSWERED_WORDS
        shown = error, high_watermark, stable, log_start, listed, records_bytes
        words[at : at + ANSWERED_WORDS] = array("q", shown)
        if records_bytes > 0 or listed > 0:
            told.append(at)
            with_records += records_bytes > 0
    heading = ring.version, correlation_id, throttle_time_ms, NO_ERROR, NO_SESSION
    if with_records > _written.partitions:
        _written.make_room(0, with_records)
    while True:
        size_bytes = _build_ring(
            (heading,),
            ring.native,
            ring.answered,
            pairs,
            _written.heads,
            _written.room_bytes,
            _written.cuts,
        )
        if size_bytes > 0:
            break
        _written.make_room(2 * _written.room_bytes, 0)
    for at in told:  # the next response names it without them
        words[at + ABORTED_WORD] = min(words[at + ABORTED_WORD], 0)
        words[at + RECORDS_WORD] = 0
    frame = ffi.buffer(_written.heads, size_bytes)[:]
    return frame, _written.cut_words[:with_records].tolist()


def add_records(frame: ResponseHeads, records: Iterable[Sequence[Frame]]) -> list[Frame]:
    """Return the whole response as buffers, to be written in order. `records`: the buffers of each
    answer with records.
    """
    heads, cuts = frame
    if not cuts:
        return [heads]
    view, at = memoryview(heads), 0
    buffers: list[Frame] = []
    for cut, pieces in zip(cuts, records, strict=True):
        buffers += (view[at:cut], *pieces)
        at = cut
    return [*buffers, view[at:]] if at < len(heads) else buffers


def build_response(
    version: int,
    correlation_id: int,
    *,
    throttle_time_ms: int,
    error_code: int,
    session_id: int,
    partitions: Sequence[FetchAnswer],
) -> list[Frame]:
    """A Fetch response as buffers to be written in order; no preferred replica."""
    layout = plan_layout(version, list(map(KEY, partitions)))
    frame = build_heads(
        layout, correlation_id, throttle_time_ms, error_code, session_id, partitions
    )
    return add_records(frame, [one.records for one in partitions if one.records_bytes])


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
