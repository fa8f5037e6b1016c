"""Splice: a large frame moves between the broker's and a client's socket past this process's
memory. [socket]

Owns the pipe for splice(2) (Linux, no TLS on either side), or the pieces that are received and sent
instead. Counts the bytes that are left. Must not know the frame's content: the caller that begins a
splice knows it. Invariants (docs/decisions/0017):
* the pipe is empty between callbacks, so that all connections share it. Bytes that the sink does
  not take are read back and wait in the sink's framed transport, charged to `limits.responseMemory`
  or `requestMemory`.
* nothing overtakes bytes that wait there, and the source is not read until they have left.
* the last bytes, at least one, are received and leave as a normal response or request. A splice
  thus never ends in `get_buffer`, where nothing may close or stop reading: libuv's `uv_read_stop`
  forgets the callback.
* a splice that has begun ends, or both connections do.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sys
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.net.byte_budget import ByteBudget
    from proxy.net.framed_transport import FramedTransport

PIPE_BYTES = 1 << 20
"""Size of the pipe, and most bytes of a move: Linux's default limit for any user. The pipe counts
in pages, each of which holds the bytes of one page of the broker's file.
"""
LEAST_BYTES = 1 << 16
"""Least bytes for which a splice is worth its cost, and largest tail."""
RECEIVED = memoryview(bytearray(1 << 12))
"""Receive buffer for bytes that are not moved. All splices share the buffer, since its bytes are
copied out before another connection receives.
"""
PROBE_BYTES = 64
PROBE = RECEIVED[:PROBE_BYTES]
"""Receive buffer while there is more to move. After a move asyncio's read mostly finds nothing,
which costs no exception; bytes that came meanwhile are copied only up to this size.
"""
PIECE = memoryview(bytearray(LEAST_BYTES))
"""Receive buffer between sockets of which one uses TLS."""
CAN_SPLICE = sys.platform == "linux" and hasattr(os, "splice")
FLAGS = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE if CAN_SPLICE else 0


class PipeEnds(NamedTuple):
    """The descriptors of a pipe's ends: `out_fd` is read, `in_fd` is written."""

    out_fd: int
    in_fd: int


@cache
def open_pipe() -> PipeEnds:
    """The pipe of this process, opened once. Smaller than PIPE_BYTES if an unprivileged user may
    not have that much. OSError if there are no descriptors left.
    """
    pipe = PipeEnds(*os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC))
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe.in_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return pipe


def may_pass(
    source: FramedTransport,
    sink: FramedTransport,
    lacking_bytes: int,
    tail_bytes: int,
    has_room: bool = True,
) -> bool:
    """Whether a splice of `lacking_bytes`, of which the last `tail_bytes` are received, is worth it
    and possible now. The sink must be idle. If memory has no room for the frame (`has_room` False),
    pieces through this process do, too.
    """
    if lacking_bytes < LEAST_BYTES or tail_bytes > LEAST_BYTES or not sink.is_idle:
        return False
    return not has_room or (CAN_SPLICE and source.plain_fd >= 0 and sink.plain_fd >= 0)


class SpliceTransfer:
    """A frame of `frame_bytes` from `source` to `sink`, of which `head` has been received. All
    but the last `tail_bytes` may be moved. `on_end` gets the last bytes, after all bytes before
    them went to `sink`.
    """

    __slots__ = (
        "_budget",
        "_can_splice",
        "_first",
        "_has_returned",
        "_receive_buffer",
        "_sink",
        "_sink_fd",
        "_source",
        "_source_fd",
        "_tail_bytes",
        "frame_bytes",
        "left_bytes",
        "on_end",
    )

    def __init__(
        self,
        source: FramedTransport,
        sink: FramedTransport,
        bound: ByteBudget,
        head: bytes,
        frame_bytes: int,
        tail_bytes: int,
        on_end: Callable[[bytes], None],
    ) -> None:
        self._source, self._source_fd = source, source.plain_fd
        self._sink, self._sink_fd = sink, sink.plain_fd
        self._can_splice = CAN_SPLICE and source.plain_fd >= 0 and sink.plain_fd >= 0
        self._budget = bound
        self._first = head
        self._receive_buffer = RECEIVED
        self._has_returned = False
        self._tail_bytes = tail_bytes or 1
        self.frame_bytes = frame_bytes
        self.left_bytes = frame_bytes - len(head)
        self.on_end = on_end

    @property
    def begun_bytes(self) -> int:
        """Bytes of the frame that have arrived."""
        return self.frame_bytes - self.left_bytes

    def end(self, last: bytes) -> None:
        """Run `on_end` with the last bytes of the frame."""
        self.on_end(last)

    def begin(self) -> None:
        """Send the head first: by the framed transport if it is larger than RECEIVED, else through
        the pipe later.
        """
        if len(self._first) > len(RECEIVED):
            self._send_received(self._take_first())

    def get_buffer(self) -> memoryview:
        """Move the bytes that the source has; returns the buffer for the next bytes that are not
        moved. asyncio calls this when the socket can be read.
        """
        self._receive_buffer = RECEIVED
        room = self.left_bytes - self._tail_bytes
        if room <= 0 or self._has_returned or not self._sink.is_idle:
            return RECEIVED[: self.left_bytes]
        if not self._can_splice:
            self._receive_buffer = PIECE
            return PIECE[: self.left_bytes]
        pipe_out, pipe_in = open_pipe()
        in_pipe = 0
        if self._first:
            in_pipe = os.write(pipe_in, self._first)
            self._first = b""
        most = (
            PIPE_BYTES if self._budget.in_flight_bytes < self._budget.limit_bytes else LEAST_BYTES
        )
        asked = room if room < most else most
        try:
            moved = os.splice(self._source_fd, pipe_in, asked, flags=FLAGS)
            self.left_bytes -= moved
            in_pipe += moved
        except OSError:
            pass  # nothing to move, or an error that asyncio's next read reports
        try:
            while in_pipe:
                in_pipe -= os.splice(pipe_out, self._sink_fd, in_pipe, flags=FLAGS)
        except OSError:
            self._read_back(pipe_out, in_pipe)
        return (
            PROBE
            if self.left_bytes - self._tail_bytes > PROBE_BYTES
            else RECEIVED[: self.left_bytes]
        )

    def received(self, size_bytes: int) -> bytes:
        """Take `size_bytes` from the buffer of the last `get_buffer`. Returns the last bytes of the
        frame, or b"" if more are to come.
        """
        chunk = self._receive_buffer[:size_bytes].tobytes()
        self.left_bytes -= size_bytes
        if self._first:
            chunk = self._take_first() + chunk
        if not self.left_bytes:
            return chunk
        if len(chunk) <= PROBE_BYTES and self._sink.is_idle:
            self._first = chunk  # leaves with the next move, as a rule at once
        else:
            self._send_received(chunk)
        return b""

    def _read_back(self, pipe_out: int, size_bytes: int) -> None:
        """Read back `size_bytes` that the sink has not taken. `call_soon` sends them: a send within
        `get_buffer` might stop reading, which libuv does not allow there.
        """
        found = os.read(pipe_out, size_bytes)
        while len(found) < size_bytes:
            found += os.read(pipe_out, size_bytes - len(found))
        self._first = found
        self._has_returned = True
        asyncio.get_running_loop().call_soon(self._send_returned)

    def _send_returned(self) -> None:
        if self._has_returned and self._source.is_open:
            self._send_received(self._take_first())

    def _take_first(self) -> bytes:
        first, self._first = self._first, b""
        self._has_returned = False
        return first

    def _send_received(self, chunk: bytes) -> None:
        """Send bytes that are not moved by the sink's framed transport. The source is not read
        until they have left, or the sink is closed.
        """
        # charged at the limit, too: no more of the frame comes before this has left
        self._budget.in_flight_bytes += len(chunk)

        def sent(_delivered: bool) -> None:
            self._budget.sub(len(chunk))
            self._budget.let_one(self._source)
            self._source.release_reading(self)

        self._sink.send((chunk,), sent)
        if not self._sink.is_idle:
            self._source.hold_reading(self)
