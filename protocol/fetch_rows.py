"""Fetch requests, and answers to Forebay's own, as rows, read by C: one row for each partition (native/ordinary.h).

Owns the handing of frames to C, and the making of `protocol.fetch`'s tuples from C's rows. Must not know
what is done with them. Invariants:
* one thread: the scratch memory is shared by all calls.
* Nothing is raised: None is returned for a frame of which no rows can be given.
* a topic is one object, which its partitions share; no Python function is called for a partition.
* bytes after the last field of a request are ignored, as the broker does (AbstractRequest.parseRequest).
"""

from __future__ import annotations

from functools import partial
from itertools import chain, islice, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from protocol._ordinary import ffi, lib
from protocol.api import FETCH
from protocol.fetch import (
    TOPIC_IDS_FROM,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from protocol.fetch_ring import ASKED_WORDS
from protocol.header import CLIENT_ID_START, RequestHeader
from protocol.word_layout import build_layout, count_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from protocol.fetch_ring import FetchRing
    from protocol.primitives import Frame, TopicNameOrId

ROWS_VERSION: Final = 13
"""Version of Forebay's own Fetches: the first that names topics by id (KIP-516)."""
ROOM: Final = 1024
"""Topics, and partitions, that the scratch memory holds. A request with more is scanned twice; an
answer with more is left to `protocol.fetch`.
"""
_CLIENT_ID_AT: Final = CLIENT_ID_START + 2
_KEY: Final = itemgetter(0, 1)
_INDEX: Final = itemgetter(1)
_DIVERGING: Final = FetchedPartition._fields.index("diverging")
_ABORTED: Final = FetchedPartition._fields.index("aborted")


class FetchHead(NamedTuple):
    """Fields of a Fetch but for its topics; positions are indices into the frame.

    `client_id_end`: the client id begins behind its length. `body_start`: behind the header.
    `replica_id`: -1 for consumers. `session_at`: where the session id begins, -1 below version 7.
    `names_start`: where the array of topics begins. `names_end`: behind the index of its first
    partition; behind the array if it has none. `topics`, `partitions`: how many; `topics` counts
    those of `forgotten` partitions, too. `rack_start`, `rack_end`: the rack id; both 0 below
    version 11.
    """

    version: int
    correlation_id: int
    client_id_end: int
    body_start: int
    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    session_at: int
    names_start: int
    names_end: int
    topics: int
    partitions: int
    forgotten: int
    rack_start: int
    rack_end: int


_HEAD: Final = build_layout("po_fetch", *FetchHead._fields)
_TOPIC_WORDS: Final = count_words("po_topic", "start", "end", "partitions")
_ANSWER: Final = build_layout("po_answer", *FetchResponse._fields[:-1], "topics")
_POLLED_WORDS: Final = count_words(
    "po_polled", *FetchedPartition._fields[1:_DIVERGING], *FetchedPartition._fields[_ABORTED + 1 :]
)
_REPLICA_ID: Final = FetchHead._fields.index("replica_id")
_NAMES_START: Final = FetchHead._fields.index("names_start")
"""Between them a head has the fields with which a FetchRequest begins."""
assert (
    FetchHead._fields[_REPLICA_ID:_NAMES_START]
    == FetchRequest._fields[: FetchRequest._fields.index("rack_id")]
)


class _Rows:
    """Memory that C writes topics and partitions of a request to, for `room` of each."""

    __slots__ = ("asked", "asked_words", "topic_words", "topics")

    def __init__(self, room: int) -> None:
        self.topics = ffi.new("po_topic[]", room)
        self.asked = ffi.new("po_asked[]", room)
        self.topic_words = memoryview(ffi.buffer(self.topics)).cast("q")
        self.asked_words = memoryview(ffi.buffer(self.asked)).cast("q")


_rows, _head = _Rows(ROOM), ffi.new("po_fetch *")
_answer, _polled = ffi.new("po_answer *"), ffi.new("po_polled[]", ROOM)
_head_bytes, _answer_bytes = memoryview(ffi.buffer(_head)), memoryview(ffi.buffer(_answer))
_polled_words = memoryview(ffi.buffer(_polled)).cast("q")
_scan_fetch, _scan_rows, _from_buffer = lib.po_scan_fetch, lib.po_scan_rows, ffi.from_buffer
_decode = partial(str, encoding="utf-8")
_new = tuple.__new__
"""Makes a NamedTuple in half the time of its own constructor, which is a Python function."""


def scan_head(frame: Frame, most: int) -> FetchHead | None:
    """Return the head of a Fetch request of version 4 to 18. None if `frame` is malformed, is
    another request, or names more than `most` (`protocol.weight`).
    """
    source = frame if type(frame) is bytes else _from_buffer(frame)
    if _scan_fetch(source, len(frame), most, _head, _rows.topics, _rows.asked, ROOM) < 0:
        return None
    return _new(FetchHead, _HEAD.unpack(_head_bytes))


def scan_request(
    frame: Frame, most: int, ring: FetchRing | None = None
) -> tuple[RequestHeader, FetchRequest] | None:
    """Return header and content of a Fetch request. None as from `scan_head`.

    `ring` has the partitions of an earlier request. If it matches this one, which forgets nothing,
    `is_repeated` is True, and its objects are shared; if not, the ring is of no use any more.
    """
    source, rows = frame if type(frame) is bytes else _from_buffer(frame), _rows
    found = _scan_fetch(source, len(frame), most, _head, rows.topics, rows.asked, ROOM)
    if found < 0:
        return None
    if found > ROOM:
        rows = _Rows(found)
        _scan_fetch(source, len(frame), most, _head, rows.topics, rows.asked, found)
    words = _HEAD.unpack(_head_bytes)
    version, correlation_id, client_id_end, body_start = words[:_REPLICA_ID]
    _, _, topics, asked, forgotten, rack_start, rack_end = words[_NAMES_START:]
    client_id = None
    if frame[CLIENT_ID_START] < 0x80:  # else its length is -1
        client_id = str(frame[_CLIENT_ID_AT:client_id_end], "utf-8", "replace")
    rack_id = str(frame[rack_start:rack_end], "utf-8") if rack_start < rack_end else ""
    head = FETCH, version, correlation_id, client_id, body_start
    if ring is not None and ring.version == version and not forgotten:
        repeated = ring.match(source, rows.topics, topics, rows.asked, asked)
        if repeated is not None:
            request = *words[_REPLICA_ID:_NAMES_START], rack_id, repeated, [], True, True
            return _new(RequestHeader, head), _new(FetchRequest, request)
    named: Iterable[TopicNameOrId]
    if topics == 1:
        only = frame[rows.topic_words[0] : rows.topic_words[1]]
        named = repeat(str(only, "utf-8") if version < TOPIC_IDS_FROM else bytes(only))
    else:
        named = _name_topics(frame, version, rows.topic_words, topics)
    word = iter(rows.asked_words[: asked * ASKED_WORDS].tolist())
    fields = zip(named, word, word, word, word, word, word, strict=False)
    partitions = list(map(_new, repeat(FetchPartition), fields))
    left: list[tuple[TopicNameOrId, int]] = []
    if forgotten:
        indices = rows.asked_words[asked * ASKED_WORDS : (asked + forgotten) * ASKED_WORDS]
        left = list(zip(islice(named, asked, None), indices[::ASKED_WORDS].tolist(), strict=False))
    key = _INDEX if topics == 1 else _KEY
    is_distinct = asked < 2 or len(set(map(key, partitions))) == asked
    request = *words[_REPLICA_ID:_NAMES_START], rack_id, partitions, left, is_distinct, False
    return _new(RequestHeader, head), _new(FetchRequest, request)


def scan_rows(frame: Frame) -> FetchResponse | None:
    """`fetch.scan_response` of an answer of ROWS_VERSION, without aborted transactions, diverging
    epochs and hints of leaders; None for any other.
    """
    source = frame if type(frame) is bytes else _from_buffer(frame)
    count = _scan_rows(source, len(frame), _answer, _rows.topics, _polled, ROOM)
    if count < 0:
        return None
    throttle_time_ms, error_code, session_id, topics = _ANSWER.unpack(_answer_bytes)
    named: Iterable[TopicNameOrId] = ()
    if topics == 1:
        named = repeat(bytes(frame[_rows.topic_words[0] : _rows.topic_words[1]]))
    elif topics:
        named = _name_topics(frame, ROWS_VERSION, _rows.topic_words, topics)
    word, no = iter(_polled_words[: count * _POLLED_WORDS].tolist()), repeat(None)
    fields = zip(named, word, word, word, word, word, word, no, no, no, word, word, strict=False)
    found = list(map(_new, repeat(FetchedPartition), fields))
    return _new(FetchResponse, (throttle_time_ms, error_code, session_id, found))


def _name_topics(
    frame: Frame, version: int, words: memoryview[int], topics: int
) -> list[TopicNameOrId]:
    """Return the topic of each partition, in order. `words` are those of so many po_topic."""
    end = topics * _TOPIC_WORDS
    starts, ends, counts = (
        words[:end:_TOPIC_WORDS],
        words[1:end:_TOPIC_WORDS],
        words[2:end:_TOPIC_WORDS],
    )
    texts = map(frame.__getitem__, map(slice, starts, ends))
    decoded = map(_decode, texts) if version < TOPIC_IDS_FROM else map(bytes, texts)
    return list(chain.from_iterable(map(repeat, decoded, counts)))
