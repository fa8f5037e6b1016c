"""A consumer's Fetch, read against the one before it on its connection.

Owns the last request's frame of one connection, where it asks for one partition or none. Each request of a consumer is
the one before it but for the correlation id, the session epoch and the fetch offset: what is equal is not read
again (docs/decisions/0024). Must not know: what becomes of it. Invariants: what it returns is what
`fetch.scan_request` would, for every frame; a frame of more than KEPT_BYTES is not kept.
"""

from typing import Any, Final

from protocol._ordinary import ffi, lib
from protocol.fetch import FetchPartition, FetchRequest, scan_request
from protocol.wire import INT32, Frame

KEPT_BYTES: Final = 512

_changed = ffi.new("po_changed *")
_changed_words = memoryview(ffi.buffer(_changed)).cast("q")
_repeats, _from_buffer = lib.po_repeats, ffi.from_buffer


class FetchScanner:
    """The requests of one connection, in their order. `request` is the first of those that differ in nothing else; None
    while none is kept. `known`: what its reader has made of that request, forgotten with it.
    """

    __slots__ = ("_changed", "_epoch_at", "_frame", "_offset_at", "known", "request")

    def __init__(self) -> None:
        self._frame = b""
        self._changed: list[int] | None = None
        self.request: FetchRequest | None = None
        self.known: Any = None
        self._epoch_at = self._offset_at = 0

    def scan(self, frame: Frame, version: int, body_start: int) -> FetchRequest:
        """What a Fetch request of version 4 to 18 asks; raises `BadFrame`."""
        request = self.request
        changed = None if request is None else self._compare(frame)
        if request is None or changed is None:
            request = scan_request(frame, version, body_start)
            self._keep(frame, request, body_start)
            return request
        _, session_epoch, offset = changed
        if request.session_at < 0:
            session_epoch = request.session_epoch
        partitions = []
        if request.partitions:
            one = request.partitions[0]
            partitions.append(FetchPartition(*one[:3], offset, *one[4:]))
        return FetchRequest(*request[:6], session_epoch, *request[7:9], partitions, *request[10:])

    def read_again(self, frame: Frame) -> list[int] | None:
        """Correlation id, session epoch and fetch offset of a frame that asks for the one partition of `request` again;
        None for any other, and where `request` has no session id (below version 7).
        """
        request = self.request
        if request is None or not request.partitions or request.session_at < 0:
            return None
        return self._compare(frame)

    def _compare(self, frame: Frame) -> list[int] | None:
        """What a consumer changes, where nothing else differs from the frame that is kept. Then it is the one to keep:
        who leaves it to another has it compared again.
        """
        last = self._frame
        if frame is last and self._changed is not None:
            return self._changed
        source = frame if type(frame) is bytes else _from_buffer(frame)
        if not _repeats(
            source, len(frame), last, len(last), self._epoch_at, self._offset_at, _changed
        ):
            return None
        changed: list[int] = _changed_words.tolist()
        if source is frame:
            self._frame, self._changed = frame, changed
        return changed

    def _keep(self, frame: Frame, request: FetchRequest, body_start: int) -> None:
        self.request = self.known = self._changed = None
        if not isinstance(frame, bytes) or len(frame) > KEPT_BYTES or request.forgotten:
            return
        if len(request.partitions) > 1:
            return
        self._frame, self.request = frame, request
        self._offset_at = request.offset_at if request.partitions else len(frame)
        self._epoch_at = request.session_at + INT32.size
        if request.session_at < 0:  # nothing is left out before the offset
            self._epoch_at = self._offset_at
