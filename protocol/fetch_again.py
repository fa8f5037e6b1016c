"""A consumer's Fetch, read against the one before it on its connection.

Owns the last request's frame of one connection, where it asks for one partition or none. Each request of a consumer is
the one before it but for the correlation id, the session epoch and the fetch offset: what is equal is not read
again (docs/decisions/0013, 0014). Must not know: what becomes of it. Invariants: what it returns is what
`fetch.scan_request` would, for every frame; a frame of more than KEPT_BYTES is not kept.
"""

from struct import Struct
from typing import Any, Final

from protocol.fetch import FetchPartition, FetchRequest, scan_request
from protocol.header import CORRELATION_ID_END, CORRELATION_ID_START
from protocol.wire import INT32, INT64, Frame

KEPT_BYTES: Final = 512


class FetchScanner:
    """The requests of one connection, in their order. `request` is the first of those that differ in nothing else; None
    while none is kept. `known`: what its reader has made of that request, forgotten with it.
    """

    __slots__ = ("_changing", "_epoch_at", "_frame", "_offset_at", "known", "request")

    def __init__(self) -> None:
        self._frame = b""
        self.request: FetchRequest | None = None
        self.known: Any = None
        self._epoch_at = self._offset_at = 0
        self._changing: Struct | None = None

    def scan(self, frame: Frame, version: int, body_start: int) -> FetchRequest:
        """What a Fetch request of version 4 to 18 asks; raises `BadFrame`."""
        request = self.request
        if request is None or not self._repeats(frame):
            request = scan_request(frame, version, body_start)
            self._keep(frame, request, body_start)
            return request
        session_epoch = request.session_epoch
        if request.session_at >= 0:
            (session_epoch,) = INT32.unpack_from(frame, self._epoch_at)
        partitions = []
        if request.partitions:
            one = request.partitions[0]
            (offset,) = INT64.unpack_from(frame, self._offset_at)
            partitions.append(FetchPartition(*one[:3], offset, *one[4:]))
        return FetchRequest(*request[:6], session_epoch, *request[7:9], partitions, *request[10:])

    def read_again(self, frame: Frame) -> tuple[Any, ...] | None:
        """Correlation id, session epoch and fetch offset of a frame that asks for the one partition of `request` again;
        None for any other, and where `request` has no session id (below version 7).
        """
        request = self.request
        if request is None or not request.partitions or request.session_at < 0 or not self._repeats(frame):
            return None
        if self._changing is None:
            before, between = (
                self._epoch_at - CORRELATION_ID_END,
                self._offset_at - self._epoch_at - INT32.size,
            )
            self._changing = Struct(f">{CORRELATION_ID_START}xi{before}xi{between}xq")
        return self._changing.unpack_from(frame)

    def _repeats(self, frame: Frame) -> bool:
        """Whether nothing differs but what a consumer changes. Then it is the one to compare the next with."""
        last = self._frame
        if frame is last:
            return True
        epoch_at, offset_at = self._epoch_at, self._offset_at
        is_alike = bool(
            len(frame) == len(last)
            and frame[CORRELATION_ID_END:epoch_at] == last[CORRELATION_ID_END:epoch_at]
            and frame[epoch_at + INT32.size : offset_at] == last[epoch_at + INT32.size : offset_at]
            and frame[offset_at + INT64.size :] == last[offset_at + INT64.size :]
            and frame[:CORRELATION_ID_START] == last[:CORRELATION_ID_START]
        )
        if is_alike and isinstance(frame, bytes):
            self._frame = frame
        return is_alike

    def _keep(self, frame: Frame, request: FetchRequest, body_start: int) -> None:
        self.request = self.known = self._changing = None
        if not isinstance(frame, bytes) or len(frame) > KEPT_BYTES or request.forgotten:
            return
        if len(request.partitions) > 1:
            return
        self._frame, self.request = frame, request
        self._offset_at = request.offset_at if request.partitions else len(frame)
        self._epoch_at = request.session_at + INT32.size
        if request.session_at < 0:  # nothing is left out before the offset
            self._epoch_at = self._offset_at
