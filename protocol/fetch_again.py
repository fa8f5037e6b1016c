"""A consumer's Fetch, read against the one before it on its connection.

Owns the last request's frame of one connection, where it asks for one partition or none. At the tail each request is
the one before it but for the correlation id, the session epoch and the fetch offset: what is equal is not read
again (docs/decisions/0013). Must not know: what becomes of it. Invariant: what it returns is what
`fetch.scan_request` would, for every frame; a frame of more than KEPT_BYTES is not kept.
"""

from typing import Final

from protocol.fetch import FetchPartition, FetchRequest, scan_request
from protocol.header import CORRELATION_ID_END, CORRELATION_ID_START
from protocol.wire import INT32, INT64, Frame

KEPT_BYTES: Final = 512


class FetchScanner:
    """The requests of one connection, in their order."""

    __slots__ = ("_epoch_at", "_frame", "_offset_at", "_request")

    def __init__(self) -> None:
        self._frame = b""
        self._request: FetchRequest | None = None
        self._epoch_at = self._offset_at = 0

    def scan(self, frame: Frame, version: int, body_start: int) -> FetchRequest:
        """What a Fetch request of version 4 to 18 asks; raises `BadFrame`."""
        last, request = self._frame, self._request
        if request is None or len(frame) != len(last) or not self._is_alike(frame, last):
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

    def _is_alike(self, frame: Frame, last: bytes) -> bool:
        """Whether nothing differs but what a consumer at the tail changes."""
        epoch_at, offset_at = self._epoch_at, self._offset_at
        return bool(
            frame[CORRELATION_ID_END:epoch_at] == last[CORRELATION_ID_END:epoch_at]
            and frame[epoch_at + INT32.size : offset_at] == last[epoch_at + INT32.size : offset_at]
            and frame[offset_at + INT64.size :] == last[offset_at + INT64.size :]
            and frame[:CORRELATION_ID_START] == last[:CORRELATION_ID_START]
        )

    def _keep(self, frame: Frame, request: FetchRequest, body_start: int) -> None:
        self._request = None
        if not isinstance(frame, bytes) or len(frame) > KEPT_BYTES or request.forgotten:
            return
        if len(request.partitions) > 1:
            return
        self._frame, self._request = frame, request
        self._offset_at = request.offset_at if request.partitions else len(frame)
        self._epoch_at = request.session_at + INT32.size
        if request.session_at < 0:  # nothing is left out before the offset
            self._epoch_at = self._offset_at
