"""A consumer's Fetch, read against an earlier one of its connection, its template.

Owns the template of one connection. A consumer's requests differ in the correlation id, the session
epoch and the fetch offsets. The rest of a request that repeats its template is not read again
(docs/decisions/0024). Must not know what becomes of a request. Invariants:
* The result is what `header.peek_request` and `fetch.scan_request` return, for every frame.
* A template names each partition once. A frame of more than KEPT_BYTES is no template.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from protocol._ordinary import ffi, lib
from protocol.fetch import FetchPartition, FetchRequest, scan_request
from protocol.header import RequestHeader
from protocol.wire import INT32, Frame

if TYPE_CHECKING:
    from protocol.fetch_build import ResponseLayout

KEPT_BYTES: Final = 32 << 10
LEAST_PARTITION_BYTES: Final = 16
"""Fewest bytes of a partition in a request: index, fetch offset, most bytes (version 4)."""

_changed = ffi.new("int64_t[]", 2 + KEPT_BYTES // LEAST_PARTITION_BYTES)
_changed_words = memoryview(ffi.buffer(_changed)).cast("q")
_repeats, _from_buffer = lib.po_repeats, ffi.from_buffer


class _Template(NamedTuple):
    """A request with its frame, and where in the frame its session epoch (0: nowhere) and its fetch
    offsets stand. `columns` are the fields of its partitions, one tuple for each field.
    """

    frame: bytes
    head: RequestHeader
    request: FetchRequest
    epoch_at: int
    offsets_at: Any
    columns: list[tuple[Any, ...]]


class FetchScanner:
    """The requests of one connection, in their order.

    `layout` is the layout of its last response; None before the first.
    """

    __slots__ = ("_template", "layout")

    def __init__(self) -> None:
        self._template: _Template | None = None
        self.layout: ResponseLayout | None = None

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
        last, head, request, epoch_at, offsets_at, columns = template
        source = frame if type(frame) is bytes else _from_buffer(frame)
        asked = len(request.partitions)
        if not _repeats(source, len(frame), last, len(last), epoch_at, offsets_at, asked, _changed):
            return None
        correlation_id, session_epoch, *offsets = _changed_words[: 2 + asked].tolist()
        partitions = list(map(FetchPartition, *columns[:3], offsets, *columns[4:]))
        head = RequestHeader(*head[:2], correlation_id, *head[3:])
        return head, FetchRequest(
            *request[:6], session_epoch, *request[7:9], partitions, *request[10:]
        )


def _build_template(frame: Frame, head: RequestHeader, request: FetchRequest) -> _Template | None:
    """Return the request as a template; None if it cannot be one."""
    partitions = request.partitions
    is_short = isinstance(frame, bytes) and len(frame) <= KEPT_BYTES
    if not is_short or request.forgotten or len({one[:2] for one in partitions}) < len(partitions):
        return None
    epoch_at = 0 if request.session_at < 0 else request.session_at + INT32.size
    columns = list(zip(*partitions, strict=True)) or [()] * len(FetchPartition._fields)
    offsets_at = ffi.new("uint32_t[]", request.offsets_at)
    return _Template(bytes(frame), head, request, epoch_at, offsets_at, columns)
