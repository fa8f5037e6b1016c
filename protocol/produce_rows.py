"""Produce requests and responses as rows, read by C: one row for each partition (native/ordinary.h).

Owns the handing of frames to C, and the names of the fields that C returns. Must not know what is
done with them. Invariants:
* one thread: the scratch memory is shared by all calls.
* None means a malformed frame, or one that names more than may be read. Nothing is raised.
* texts are not decoded; bytes after the last field are ignored, as the broker does
  (AbstractRequest.parseRequest).
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from protocol._ordinary import ffi, lib
from protocol.primitives import Frame
from protocol.word_layout import build_layout

ROUTE_START: Final[int] = lib.PO_ROUTE_START
"""A client repeats the bytes of a single Produce from here to its `route_end`, client id to partition."""
ROOM: Final = 64
"""Rows that the scratch memory holds. A frame with more is scanned twice."""


class ProduceHead(NamedTuple):
    """Fields of a Produce request before its partitions.

    `is_transactional`: 1 if it has a transactional id, else 0. `acks`: 0, 1 or -1. `body_start`,
    `names_start`: where body and array of topics begin. `route_end`: where the index of the only
    partition ends; 0 unless `scan_single` returned it. `null_records`: number of partitions whose
    records are null.
    """

    version: int
    correlation_id: int
    body_start: int
    is_transactional: int
    acks: int
    names_start: int
    route_end: int
    null_records: int


class Row(NamedTuple):
    """A partition of a Produce request. Positions are indices into the frame.

    `topic_start` to `topic_end`: the name behind its length, or from version 13 the id. `start` to
    `end`: the records; both -1 if they are null. `magic`: format of the records if they are exactly
    one batch, and `end` is then that batch's; else -1. The fields after it are -1 unless it is 2.
    """

    topic_start: int
    topic_end: int
    partition: int
    start: int
    end: int
    magic: int
    attributes: int
    last_delta: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int


ROW_WORDS: Final = len(Row._fields)


class ProduceRows:
    """The partitions of a Produce request, `count` of them, in C memory (`native`: po_row). A `Row` is
    made when it is asked for. `words`: the same memory, ROW_WORDS words of each.
    """

    __slots__ = ("count", "native", "words")

    def __init__(self, native: Any, count: int) -> None:
        self.native = native
        self.count = count
        self.words = memoryview(ffi.buffer(native, count * ROW.size)).cast("q")

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Row]:
        return map(make_row, ROW.iter_unpack(self.words))

    def select(self, keep: Sequence[bool]) -> "ProduceRows":
        """Return the rows for which `keep` is True, in memory of their own."""
        return keep_rows([row for row, is_kept in zip(self, keep, strict=True) if is_kept])


def keep_rows(rows: Sequence[Row]) -> ProduceRows:
    """Return these rows in memory of their own."""
    return ProduceRows(ffi.new("po_row[]", list(map(tuple, rows))), len(rows))


class ProducedRow(NamedTuple):
    """A partition of a Produce response. Look at `error_code` first: some errors carry a base
    offset. -1 is unknown. The topic is written as in a request of the same version.
    """

    topic_start: int
    topic_end: int
    partition: int
    error_code: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int


HEAD: Final = build_layout("po_produce", *ProduceHead._fields)
ROW: Final = build_layout("po_row", *Row._fields)
PRODUCED: Final = build_layout("po_produced", *ProducedRow._fields)
make_head = partial(tuple.__new__, ProduceHead)
make_row = partial(tuple.__new__, Row)
make_produced = partial(tuple.__new__, ProducedRow)
NO_ROWS: Final = ProduceRows(ffi.new("po_row[]", 0), 0)

_head, _rows = ffi.new("po_produce *"), ffi.new("po_row[]", ROOM)
_produced = ffi.new("po_produced[]", ROOM)
_head_bytes, _row_bytes = memoryview(ffi.buffer(_head)), memoryview(ffi.buffer(_rows))
_scan_produce, _scan_single, _scan_produced = (
    lib.po_scan_produce,
    lib.po_scan_single,
    lib.po_scan_produced,
)
_from_buffer = ffi.from_buffer


def scan_request(
    frame: Frame, size_bytes: int, most: int
) -> tuple[ProduceHead, ProduceRows] | None:
    """Return head and rows of a Produce of version 3 to 13. None if `frame` is malformed, is
    another request, or names more than `most` (`protocol.weight`).
    """
    source = frame if type(frame) is bytes else _from_buffer(frame)
    found = _scan_produce(source, size_bytes, most, _head, _rows, ROOM)
    if found < 0:
        return None
    rows = ffi.new("po_row[]", found)
    if found > ROOM:
        _scan_produce(source, size_bytes, most, _head, rows, found)
    else:
        ffi.memmove(rows, _rows, found * ROW.size)
    return make_head(HEAD.unpack(_head_bytes)), ProduceRows(rows, found)


def scan_single(begun: bytes, frame_bytes: int) -> tuple[ProduceHead, Row] | None:
    """Return head and row of a Produce of `frame_bytes` that begins with `begun`, if the rest is as
    announced: one topic, one partition and one batch v2, acks not 0. None if it is anything else,
    or if `begun` ends before the records do begin with a whole batch header.
    """
    if not _scan_single(begun, len(begun), frame_bytes, _head, _rows):
        return None
    return make_head(HEAD.unpack(_head_bytes)), make_row(ROW.unpack_from(_row_bytes))


def scan_response(frame: Frame, version: int) -> list[ProducedRow] | None:
    """Return the rows of a Produce response in `version`, 3 to 13; None if it is malformed."""
    scanned = scan_produced(frame, version)
    if scanned is None:
        return None
    words, found = scanned
    return list(map(make_produced, PRODUCED.iter_unpack(ffi.buffer(words, found * PRODUCED.size))))


def scan_produced(frame: Frame, version: int) -> tuple[Any, int] | None:
    """Return the rows of a Produce response as `po_produced *`, which hold until the next call, and
    their number; None if it is malformed.
    """
    source, size_bytes = frame if type(frame) is bytes else _from_buffer(frame), len(frame)
    found = _scan_produced(source, size_bytes, version, _produced, ROOM)
    if found < 0:
        return None
    if found <= ROOM:
        return _produced, found
    more = ffi.new("po_produced[]", found)
    _scan_produced(source, size_bytes, version, more, found)
    return more, found


def list_errors(produced: tuple[Any, int]) -> list[int]:
    """Return the error codes other than NONE of the rows that `scan_produced` has returned."""
    words, found = produced
    rows = map(make_produced, PRODUCED.iter_unpack(ffi.buffer(words, found * PRODUCED.size)))
    return [row.error_code for row in rows if row.error_code]
