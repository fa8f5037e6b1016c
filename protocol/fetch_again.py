"""A consumer's Fetch, read against an earlier one of its connection, its template.

Owns the template of one connection. A consumer's requests differ in the correlation id, the session
epoch and the fetch offsets. The rest of a request that repeats its template is not read again
(docs/decisions/0024). Must not know what becomes of a request. Invariants:
* The result is what `header.peek_request` and `fetch.scan_request` return, for every frame.
* A template names each partition once. A frame of more than KEPT_BYTES is no template.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from protocol._ordinary import ffi, lib
from protocol.fetch import FetchPartition, FetchRequest, scan_request
from protocol.header import RequestHeader
from protocol.primitives import INT32, Frame

if TYPE_CHECKING:
    from protocol.fetch_build import ResponseLayout

KEPT_BYTES: Final = 32 << 10
LEAST_PARTITION_BYTES: Final = 16
"""Fewest bytes of a partition in a request: index, fetch offset, most bytes (version 4)."""

_changed = ffi.new("int64_t[]", 2 + KEPT_BYTES // LEAST_PARTITION_BYTES)
_changed_words = memoryview(ffi.buffer(_changed)).cast("q")
_repeats, _from_buffer = lib.po_repeats, ffi.from_buffer
_CORRELATION_ID: Final = RequestHeader._fields.index("correlation_id")
_SESSION_EPOCH: Final = FetchRequest._fields.index("session_epoch")
_PARTITIONS: Final = FetchRequest._fields.index("partitions")
_FETCH_OFFSET: Final = FetchPartition._fields.index("fetch_offset")
_new = tuple.__new__
"""Makes a NamedTuple in half the time of its own constructor, which is a Python function."""


class _Template(NamedTuple):
    """A request's frame, and where in it the session epoch (0: nowhere) and the fetch offsets stand.

    `head`, `request` and `rows` have the fields of its header, of its content and of its
    partitions; those of the last request that repeated it.
    """

    frame: bytes
    head: list[Any]
    request: list[Any]
    rows: list[list[Any]]
    epoch_at: int
    offsets_at: Any


class FetchScanner:
    """The requests of one connection, in their order.

    `layout` is the layout of its last response; None before the first.
    """

    __slots__ = ("_template", "layout")

    def __init__(self) -> None:
        self._template: _Template | None = None
        self.layout: ResponseLayout | None = None

    def keep_layout(self, layout: ResponseLayout | None) -> None:
        """Keep the layout of a response for the next one; None: it is not worth keeping."""
        self.layout = layout

    def scan(self, frame: Frame, head: RequestHeader) -> FetchRequest:
        """Return what a Fetch request of version 4 to 18 asks, and keep it as the template.

        Raises `BadFrame`.
        """
        request = scan_request(frame, head.api_version, head.body_start)
        self._template = _build_template(frame, head, request)
        return request

    def read_again(self, frame: Frame) -> tuple[RequestHeader, FetchRequest] | None:
        """Return header and content of a frame that repeats the template; None for any other frame."""
        template = self._template
        if template is None:
            return None
        last, head, request, rows, epoch_at, offsets_at = template
        source = frame if type(frame) is bytes else _from_buffer(frame)
        asked = len(rows)
        if not _repeats(source, len(frame), last, len(last), epoch_at, offsets_at, asked, _changed):
            return None
        head[_CORRELATION_ID], request[_SESSION_EPOCH], *offsets = _changed_words[
            : 2 + asked
        ].tolist()
        for row, offset in zip(rows, offsets, strict=True):
            row[_FETCH_OFFSET] = offset
        request[_PARTITIONS] = list(map(_new, repeat(FetchPartition), rows))
        return _new(RequestHeader, head), _new(FetchRequest, request)


def _build_template(frame: Frame, head: RequestHeader, request: FetchRequest) -> _Template | None:
    """Return the request as a template; None if it cannot be one."""
    partitions = request.partitions
    is_short = isinstance(frame, bytes) and len(frame) <= KEPT_BYTES
    if not is_short or request.forgotten or len({one[:2] for one in partitions}) < len(partitions):
        return None
    epoch_at = 0 if request.session_at < 0 else request.session_at + INT32.size
    offsets_at = ffi.new("uint32_t[]", request.offsets_at)
    rows = list(map(list, partitions))
    return _Template(bytes(frame), list(head), list(request), rows, epoch_at, offsets_at)
