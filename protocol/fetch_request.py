"""Fetch requests, versions 4 to 18, read by C in one call: a head, and a row for each partition (native/ordinary.h).

Owns the handing of frames to C, and the making of `FetchRequest` from C's rows. Must not know what is
done with a request. Invariants:
* one thread: the scratch memory is shared by all calls.
* None means a malformed frame, another request, or one that names more than may be read. Nothing is raised.
* a topic is one object, which its partitions share; no Python function is called for a partition.
* bytes after the last field are ignored, as the broker does (AbstractRequest.parseRequest).
"""

from collections.abc import Iterable
from itertools import chain, islice, repeat
from operator import itemgetter
from typing import Final, NamedTuple

from protocol._ordinary import ffi, lib
from protocol.api import FETCH
from protocol.fetch import TOPIC_IDS_FROM, FetchPartition, FetchRequest
from protocol.header import CLIENT_ID_START, RequestHeader
from protocol.primitives import Frame, TopicNameOrId

ROOM: Final = 1024
"""Topics, and partitions, that the scratch memory holds. A frame with more is scanned twice."""
_CLIENT_ID_AT: Final = CLIENT_ID_START + 2
_KEY: Final = itemgetter(0, 1)
_INDEX: Final = itemgetter(1)


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


def _count_words(struct: str, fields: tuple[str, ...]) -> int:
    """Return the words of a C struct. AssertionError unless it has these fields, in this order."""
    declared = tuple(name for name, _ in ffi.typeof(struct).fields)
    assert declared == fields and ffi.sizeof(struct) == len(fields) * WORD_BYTES, struct
    return len(fields)


WORD_BYTES: Final = 8
TOPIC_WORDS: Final = _count_words("po_topic", ("start", "end", "partitions"))
ASKED_WORDS: Final = _count_words("po_asked", FetchPartition._fields[1:])
_count_words("po_fetch", FetchHead._fields)
_REQUEST: Final = slice(FetchHead._fields.index("replica_id"), FetchHead._fields.index("names_start"))
"""Those of the head's fields with which a FetchRequest begins."""
assert FetchHead._fields[_REQUEST] == FetchRequest._fields[: _REQUEST.stop - _REQUEST.start]


class _Rows:
    """Memory that C writes topics and partitions to, for `room` of each, and its words."""

    __slots__ = ("asked", "asked_words", "topic_words", "topics")

    def __init__(self, room: int) -> None:
        self.topics = ffi.new("po_topic[]", room)
        self.asked = ffi.new("po_asked[]", room)
        self.topic_words = memoryview(ffi.buffer(self.topics)).cast("q")
        self.asked_words = memoryview(ffi.buffer(self.asked)).cast("q")


_rows = _Rows(ROOM)
_head = ffi.new("po_fetch *")
_head_words = memoryview(ffi.buffer(_head)).cast("q")
_scan_fetch, _from_buffer = lib.po_scan_fetch, ffi.from_buffer
_new = tuple.__new__
"""Makes a NamedTuple in half the time of its own constructor, which is a Python function."""


def scan_head(frame: Frame, most: int) -> FetchHead | None:
    """Return the head of a Fetch request. None if `frame` is malformed, is another request, or
    names more than `most` (`protocol.weight`).
    """
    source = frame if type(frame) is bytes else _from_buffer(frame)
    if _scan_fetch(source, len(frame), most, _head, _rows.topics, _rows.asked, ROOM) < 0:
        return None
    return _new(FetchHead, _head_words.tolist())


def scan_request(frame: Frame, most: int) -> tuple[RequestHeader, FetchRequest] | None:
    """Return header and content of a Fetch request. None as from `scan_head`."""
    source, rows = frame if type(frame) is bytes else _from_buffer(frame), _rows
    found = _scan_fetch(source, len(frame), most, _head, rows.topics, rows.asked, ROOM)
    if found < 0:
        return None
    if found > ROOM:
        rows = _Rows(found)
        _scan_fetch(source, len(frame), most, _head, rows.topics, rows.asked, found)
    words = _head_words.tolist()
    version, correlation_id, client_id_end, body_start = words[: _REQUEST.start]
    _, _, topics, asked, forgotten, rack_start, rack_end = words[_REQUEST.stop :]
    client_id = None
    if frame[CLIENT_ID_START] < 0x80:  # else its length is -1
        client_id = str(frame[_CLIENT_ID_AT:client_id_end], "utf-8", "replace")
    rack_id = str(frame[rack_start:rack_end], "utf-8") if rack_start < rack_end else ""
    named = _name_topics(frame, version, rows, topics)
    fields = iter(rows.asked_words[: asked * ASKED_WORDS].tolist())
    each = fields, fields, fields, fields, fields, fields
    partitions = list(map(_new, repeat(FetchPartition), zip(named, *each)))
    left: list[tuple[TopicNameOrId, int]] = []
    if forgotten:
        indices = rows.asked_words[asked * ASKED_WORDS : (asked + forgotten) * ASKED_WORDS]
        left = list(zip(islice(named, asked, None), indices[::ASKED_WORDS].tolist()))
    key = _INDEX if topics == 1 else _KEY
    is_distinct = asked < 2 or len(set(map(key, partitions))) == asked
    head = FETCH, version, correlation_id, client_id, body_start
    request = *words[_REQUEST], rack_id, partitions, left, is_distinct
    return _new(RequestHeader, head), _new(FetchRequest, request)


def _name_topics(frame: Frame, version: int, rows: _Rows, topics: int) -> Iterable[TopicNameOrId]:
    """Return the topic of each partition, those of forgotten partitions at the end. The iterable
    may be longer, and begins anew each time.
    """
    words = rows.topic_words[: topics * TOPIC_WORDS].tolist()
    has_ids = version >= TOPIC_IDS_FROM
    if topics == 1:
        one = frame[words[0] : words[1]]
        return repeat(bytes(one) if has_ids else str(one, "utf-8"))
    spans = zip(words[::TOPIC_WORDS], words[1::TOPIC_WORDS], strict=True)
    texts = [frame[start:end] for start, end in spans]
    topics_named = map(bytes, texts) if has_ids else map(str, texts, repeat("utf-8"))
    return list(chain.from_iterable(map(repeat, topics_named, words[2::TOPIC_WORDS])))
