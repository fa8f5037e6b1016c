"""Answers to a Fetch of the ordinary form, read in one pass by C: native/ordinary.h says what that form is.

Owns: handing frames to C and its words to Python. Must not know: what is done with them. Invariants: one thread; None
is "of another form, or garbage", for `protocol.fetch` to judge, and never an error; what is said of an ordinary frame
is what `protocol.fetch` says of it.
"""

from protocol._ordinary import ffi, lib
from protocol.primitives import Frame

_fetched = ffi.new("po_fetched *")
_fetched_words = memoryview(ffi.buffer(_fetched)).cast("q")
_scan_fetched, _from_buffer = lib.po_scan_fetched, ffi.from_buffer


def scan_answer(head: Frame, frame_bytes: int, version: int, names: bytes) -> list[int] | None:
    """Where the records start and end in an answer of `frame_bytes` that begins with `head`, or is it, about the one
    partition that `names` says, a request's bytes from start to end of its names; b"" says any. None for any other,
    and where `head` does not reach to the records, or to their end without being the whole.
    """
    source = head if type(head) is bytes else _from_buffer(head)
    if _scan_fetched(source, len(head), frame_bytes, version, names, len(names), _fetched):
        return _fetched_words.tolist()
    return None
