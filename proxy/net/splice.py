"""A large frame on its way from one socket to another, past this process's memory: the broker's, a client's. [socket]

Owns the pipe between the two (splice(2); Linux, no TLS on either side), or the pieces that are received and sent where
there is none, and what is left of the frame. It must not know what the frame says: who begins it does. Invariants
(docs/decisions/0017):
* the pipe is empty between callbacks, and so is one for all connections: what the socket does not take is read out
  of it and waits in that wire, charged to `limits.responseMemory`, or `requestMemory`.
* nothing is moved past what waits there, and the other side is not read until it has left.
* the last bytes, at least one, are received, and leave as a reply or request of their place: it never ends while a
  buffer is asked for, when nothing may be closed, and reading not be stopped (libuv forgets then whom to tell).
* what has begun ends, or both connections do.
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
"""In pages, each of which holds what one page of the broker's file has: Linux's default limit for any user. As much is
moved at a time.
"""
LEAST_BYTES = 1 << 16
"""Below this there is nothing to win."""
RECEIVED = memoryview(bytearray(1 << 12))
"""Where what is not moved is received: taken out before anybody else receives."""
PROBE_BYTES = 64
PROBE = RECEIVED[:PROBE_BYTES]
"""Where it is received while there is more to move: the read that finds nothing says so without an exception, and what
came meanwhile is copied no further than to find that out.
"""
PIECE = memoryview(bytearray(LEAST_BYTES))
"""Where it is received between sockets that are not plain."""
CAN_SPLICE = sys.platform == "linux" and hasattr(os, "splice")
FLAGS = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE if CAN_SPLICE else 0


class Pipe(NamedTuple):
    """Its two ends."""

    out_fd: int
    in_fd: int


@cache
def open_pipe() -> Pipe:
    """The process's one. What an unprivileged user may not have of its size, it has not."""
    pipe = Pipe(*os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC))
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe.in_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return pipe


def may_pass(
    source: FramedTransport, sink: FramedTransport, lacking_bytes: int, tail_bytes: int, has_room: bool = True
) -> bool:
    """Whether what lacks before the last `tail_bytes` is worth it, and can go from the one socket to the other now.
    Where memory has no room for it, also through this process, in pieces.
    """
    if lacking_bytes < LEAST_BYTES or tail_bytes > LEAST_BYTES or not sink.is_idle:
        return False
    return not has_room or (CAN_SPLICE and source.plain_fd >= 0 and sink.plain_fd >= 0)


class SpliceTransfer:
    """One frame of `frame_bytes` from `source` to `sink`, of which `head` is there, and of which all but the last
    `tail_bytes` may be moved; `on_end` is given its last bytes, all before them having gone to `sink`.
    """

    __slots__ = (
        "_bound",
        "_can_splice",
        "_first",
        "_given",
        "_is_stuck",
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
        self._bound = bound
        self._first = head
        self._given = RECEIVED
        self._is_stuck = False
        self._tail_bytes = tail_bytes or 1
        self.frame_bytes = frame_bytes
        self.left_bytes = frame_bytes - len(head)
        self.on_end = on_end

    @property
    def begun_bytes(self) -> int:
        """What of it has come."""
        return self.frame_bytes - self.left_bytes

    def end(self, last: bytes) -> None:
        """Its last bytes are here."""
        self.on_end(last)

    def begin(self) -> None:
        """What is there already goes first: the usual way, but where it is so small that it goes through the pipe."""
        if len(self._first) > len(RECEIVED):
            self._hand_over(self._take_first())

    def get_buffer(self) -> memoryview:
        """The socket can be read: move what is there. Where the next bytes go that are not moved."""
        self._given = RECEIVED
        room = self.left_bytes - self._tail_bytes
        if room <= 0 or self._is_stuck or not self._sink.is_idle:
            return RECEIVED[: self.left_bytes]
        if not self._can_splice:
            self._given = PIECE
            return PIECE[: self.left_bytes]
        pipe_out, pipe_in = open_pipe()
        in_pipe = 0
        if self._first:
            in_pipe = os.write(pipe_in, self._first)
            self._first = b""
        most = PIPE_BYTES if self._bound.in_flight_bytes < self._bound.limit_bytes else LEAST_BYTES
        asked = room if room < most else most
        try:
            moved = os.splice(self._source_fd, pipe_in, asked, flags=FLAGS)
            self.left_bytes -= moved
            in_pipe += moved
        except OSError:
            pass  # there is nothing, or an error that the read behind this sees
        try:
            while in_pipe:
                in_pipe -= os.splice(pipe_out, self._sink_fd, in_pipe, flags=FLAGS)
        except OSError:
            self._stick(pipe_out, in_pipe)
        return PROBE if self.left_bytes - self._tail_bytes > PROBE_BYTES else RECEIVED[: self.left_bytes]

    def received(self, size_bytes: int) -> bytes:
        """So many bytes are in the buffer. The last bytes of the frame, or nothing where more are to come."""
        chunk = self._given[:size_bytes].tobytes()
        self.left_bytes -= size_bytes
        if self._first:
            chunk = self._take_first() + chunk
        if not self.left_bytes:
            return chunk
        if len(chunk) <= PROBE_BYTES and self._sink.is_idle:
            self._first = chunk  # it goes with what is moved next, as a rule at once
        else:
            self._hand_over(chunk)
        return b""

    def _stick(self, pipe_out: int, size_bytes: int) -> None:
        """The other socket has not taken so many bytes. They are handed over next: not now, when a buffer is asked
        for, since that may stop reading.
        """
        found = os.read(pipe_out, size_bytes)
        while len(found) < size_bytes:
            found += os.read(pipe_out, size_bytes - len(found))
        self._first = found
        self._is_stuck = True
        asyncio.get_running_loop().call_soon(self._unstick)

    def _unstick(self) -> None:
        if self._is_stuck and self._source.is_open:
            self._hand_over(self._take_first())

    def _take_first(self) -> bytes:
        first, self._first = self._first, b""
        self._is_stuck = False
        return first

    def _hand_over(self, chunk: bytes) -> None:
        """The usual way, for what is not moved. A socket that is gone says so here."""
        self._bound.in_flight_bytes += len(
            chunk
        )  # at the bound, too: no more of it comes before this has left

        def sent(_delivered: bool) -> None:
            self._bound.sub(len(chunk))
            self._bound.let_one(self._source)
            self._source.release_reading(self)

        self._sink.send((chunk,), sent)
        if not self._sink.is_idle:
            self._source.hold_reading(self)
