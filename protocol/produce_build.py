"""Produce, versions 3 to 13, written: refusals, and the cutting of a request and the mending of its answer.

Owns: the other direction of `produce`, with the same layouts. Must not know: why a partition is refused.
Invariants: a cut request keeps every byte of what it keeps, tagged fields included, and names the records as
views of the frame, uncopied; a mended answer keeps every byte of the broker's (record errors, current leader,
node endpoints, throttle time) and has each topic's refused partitions after the broker's in the topic's one
entry; what a refusal leaves out has the schema's default, so no tagged field is written.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from protocol.api import PRODUCE, has_flexible_response_header
from protocol.errors import BadFrame
from protocol.header import response_body_start
from protocol.primitives import (
    INT32,
    TOPIC_ID_BYTES,
    Encoding,
    Frame,
    TopicNameOrId,
    read_array,
    refuses_garbage,
)
from protocol.produce import (
    _ACKS_AND_TIMEOUT,
    _LOG_START_FROM,
    _PRODUCED_V3,
    _PRODUCED_V5,
    _RECORD_ERRORS_FROM,
    TOPIC_IDS_FROM,
    _encoding,
    _read_topic,
    _skip_errors,
)

_NONE = -1
_VIEW_FROM_BYTES = 512  # shorter pieces are copied: a buffer costs more than their bytes


class Refused(NamedTuple):
    """A partition that was not handed to the broker, and what to say of it."""

    topic: TopicNameOrId
    partition: int
    error_code: int


class _TopicEntry(NamedTuple):
    """A topic's entry in a frame: where it starts, where its partitions' count does, where each partition
    starts (and the last one ends), where the entry ends.
    """

    topic: TopicNameOrId
    start: int
    count_start: int
    bounds: list[int]
    end: int


def _build_topic(encoding: Encoding, version: int, topic: TopicNameOrId) -> bytes:
    """The name, or from version 13 the id; ValueError where the caller has the wrong one."""
    if version < TOPIC_IDS_FROM:
        if not isinstance(topic, str):
            raise ValueError(f"Produce {version} names topics by name")
        return encoding.build_string(topic)
    if isinstance(topic, str) or len(topic) != TOPIC_ID_BYTES:
        raise ValueError(f"Produce {version} names topics by id")
    return bytes(topic)


def _build_partition(encoding: Encoding, version: int, refused: Refused) -> bytes:
    fields = (refused.partition, refused.error_code, _NONE, _NONE)
    if version >= _LOG_START_FROM:
        out = _PRODUCED_V5.pack(*fields, _NONE)
    else:
        out = _PRODUCED_V3.pack(*fields)
    if version >= _RECORD_ERRORS_FROM:
        out += encoding.build_count(0) + encoding.build_string(None)
    return out + encoding.no_tags


def _build_topics(
    encoding: Encoding, version: int, refused: Sequence[Refused]
) -> tuple[int, bytes]:
    """Entries of refused partitions, consecutive ones of a topic together, and their number."""
    out, count = bytearray(), 0
    for topic, group in groupby(refused, key=lambda one: one.topic):
        partitions = [_build_partition(encoding, version, one) for one in group]
        out += _build_topic(encoding, version, topic) + encoding.build_count(len(partitions))
        out += b"".join(partitions) + encoding.no_tags
        count += 1
    return count, bytes(out)


def build_refusal(
    version: int, correlation_id: int, refused: Sequence[Refused], throttle_time_ms: int = 0
) -> bytes:
    """A whole Produce response that refuses every partition: offsets and times -1, no message."""
    encoding = _encoding(version)
    count, topics = _build_topics(encoding, version, refused)
    header_tags = b"\0" if has_flexible_response_header(PRODUCE, version) else b""
    body = INT32.pack(correlation_id) + header_tags + encoding.build_count(count) + topics
    body += INT32.pack(throttle_time_ms) + encoding.no_tags
    return INT32.pack(len(body)) + body


@refuses_garbage
def cut_request(frame: Frame, version: int, body_start: int, keep: Sequence[bool]) -> list[Frame]:
    """A Produce request with only the partitions to `keep` (one flag each, in the order of `scan_request`), as
    buffers to be written in order. Topics of which nothing is kept are left out, and so are bytes after the
    last field. ValueError where nothing is kept or the flags are not as many as the partitions.
    """
    encoding = _encoding(version)
    _, at = encoding.read_nullable_string(frame, body_start)
    topics_start = at + _ACKS_AND_TIMEOUT.size
    entries, at = _walk(encoding, version, frame, topics_start, _skip_asked)
    if not any(keep) or sum(len(entry.bounds) - 1 for entry in entries) != len(keep):
        raise ValueError("a flag for each partition is needed, and one partition to keep")
    flags = iter(keep)
    kept = [
        (entry, ones) for entry in entries if any(ones := [next(flags) for _ in entry.bounds[1:]])
    ]
    pieces = _Pieces(frame)
    pieces.keep(0, topics_start)
    pieces.put(encoding.build_count(len(kept)))
    for entry, ones in kept:
        pieces.keep(entry.start, entry.count_start)
        pieces.put(encoding.build_count(sum(ones)))
        for index, one in enumerate(ones):
            if one:
                pieces.keep(entry.bounds[index], entry.bounds[index + 1])
        pieces.keep(entry.bounds[-1], entry.end)
    pieces.keep(at, encoding.skip_tags(frame, at))
    return pieces.finish()


def _walk(
    encoding: Encoding,
    version: int,
    frame: Frame,
    at: int,
    skip_partition: Callable[[Encoding, int, Frame, int], int],
) -> tuple[list[_TopicEntry], int]:
    """The entries of an array of topics, and where it ends."""
    topics, at = read_array(encoding, frame, at)
    entries = []
    for _ in topics:
        start = at
        topic, count_start = _read_topic(encoding, version, frame, at)
        partitions, at = read_array(encoding, frame, count_start)
        bounds = [at]
        for _ in partitions:
            at = encoding.skip_tags(frame, skip_partition(encoding, version, frame, at))
            bounds.append(at)
        at = encoding.skip_tags(frame, at)
        entries.append(_TopicEntry(topic, start, count_start, bounds, at))
    return entries, at


def _skip_asked(encoding: Encoding, _version: int, frame: Frame, at: int) -> int:
    length, at = encoding.read_count(frame, at + INT32.size)
    return at + max(length, 0)


def _skip_answered(encoding: Encoding, version: int, frame: Frame, at: int) -> int:
    at += _PRODUCED_V5.size if version >= _LOG_START_FROM else _PRODUCED_V3.size
    return _skip_errors(encoding, frame, at) if version >= _RECORD_ERRORS_FROM else at


@refuses_garbage
def merge_response(frame: Frame, version: int, refused: Sequence[Refused]) -> bytes:
    """The broker's answer to a cut request with the refused partitions added; raises `BadFrame`. Everything
    after the topics (throttle time, tagged fields) stays as it came.
    """
    encoding = _encoding(version)
    body_start = response_body_start(frame, PRODUCE, version)
    entries, rest = _walk(encoding, version, frame, body_start, _skip_answered)
    if rest + INT32.size > len(frame):
        raise BadFrame("the throttle time is missing")
    added: dict[TopicNameOrId, list[Refused]] = {}
    for one in refused:
        added.setdefault(one.topic, []).append(one)
    out = bytearray()
    for entry in entries:
        more = [_build_partition(encoding, version, one) for one in added.pop(entry.topic, ())]
        out += frame[entry.start : entry.count_start]
        out += encoding.build_count(len(entry.bounds) - 1 + len(more))
        out += frame[entry.bounds[0] : entry.bounds[-1]]
        out += b"".join(more)
        out += frame[entry.bounds[-1] : entry.end]
    count, topics = _build_topics(
        encoding, version, [one for group in added.values() for one in group]
    )
    head = bytes(frame[INT32.size : body_start]) + encoding.build_count(len(entries) + count)
    length = len(head) + len(out) + len(topics) + len(frame) - rest
    return INT32.pack(length) + head + out + topics + frame[rest:]


class _Pieces:
    """A frame put together from spans of another one; the first buffer carries the length."""

    __slots__ = ("_frame", "_last", "_out", "_size_bytes", "_span")

    def __init__(self, frame: Frame) -> None:
        self._frame = memoryview(frame)
        self._last = bytearray()
        self._out: list[Frame] = [self._last]
        self._size_bytes = 0
        self._span = (0, 0)

    def keep(self, start: int, end: int) -> None:
        """A span of the old frame; joined to the one before where it follows on it."""
        if start == self._span[1]:
            self._span = (self._span[0], end)
            return
        self._flush()
        self._span = (start, end)

    def put(self, raw: bytes) -> None:
        """Bytes of our own."""
        self._flush()
        self._last += raw
        self._size_bytes += len(raw)

    def _flush(self) -> None:
        start, end = self._span
        self._span = (end, end)
        piece = self._frame[start:end]
        self._size_bytes += len(piece)
        if len(piece) < _VIEW_FROM_BYTES or (len(self._out) == 1 and not self._last):
            self._last += piece
            return
        self._last = bytearray()
        self._out += (piece, self._last)

    def finish(self) -> list[Frame]:
        """The buffers, with the length set."""
        self._flush()
        first = self._out[0]
        assert isinstance(first, bytearray)
        INT32.pack_into(first, 0, self._size_bytes - INT32.size)
        return [piece for piece in self._out if len(piece)]
