"""Produce requests and answers of the ordinary form, read in one pass by C: native/ordinary.h says what that form is.

Owns: handing frames to C and its words to Python. Must not know: what is done with them. Invariants: one thread; None
is "of another form, or garbage", for `protocol.produce` to judge, and never an error; what is said of an ordinary
frame is what `protocol.produce` and `protocol.batch` say of it.
"""

from collections.abc import Callable
from typing import Final

from protocol._ordinary import ffi, lib
from protocol.wire import Frame

ROUTE_START: Final[int] = lib.PO_ROUTE_START
"""A request from here to its route's end (client id to partition) is the same whenever a client writes there."""

_request = ffi.new("po_request *")
_request_words = memoryview(ffi.buffer(_request)).cast("q")
_scan_request, _scan_begun, _from_buffer = lib.po_scan_request, lib.po_scan_begun, ffi.from_buffer


def scan_request(frame: Frame, size_bytes: int) -> list[int] | None:
    """Version, correlation id, start of the names, end of the route, start and end of the batch, its attributes, last
    offset delta, CRC, producer id, producer epoch, base sequence and record count. None for any other frame.
    """
    source = frame if type(frame) is bytes else _from_buffer(frame)
    return _request_words.tolist() if _scan_request(source, size_bytes, _request) else None


def scan_begun(begun: bytes, frame_bytes: int) -> list[int] | None:
    """`scan_request`, of the beginning of a frame: what it will be, if the rest is what these bytes announce. None
    where they do not reach to the end of the batch's header, too.
    """
    return (
        _request_words.tolist() if _scan_begun(begun, len(begun), frame_bytes, _request) else None
    )


find_base_offset: Final[Callable[[bytes, int, int, bytes, int], int]] = lib.po_base_offset
"""Of an answer, its size, its version, `names` and their size: where the log of the partition that `names` says has
what was sent; `names`: a request's bytes from the start of its names to the end of its route. Negative for an error,
and for any other frame.
"""
