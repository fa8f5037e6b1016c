"""A large answer on its way from the broker's socket to the client's, past this process's memory. [socket]

Owns the pipe between the two (splice(2); Linux, no TLS on either side) and what is left of the answer. It must not
know what the answer says: who begins it does. Invariants (docs/decisions/0011):
* the pipe is empty between callbacks, and so is one for all connections: what the client's socket does not take is
  read out of it and waits in the client's wire, charged to `limits.responseMemory`.
* nothing is moved past what waits there, and the broker is not read until it has left.
* the last bytes, at least one, are received, and leave as the reply of their place: an answer never ends while a
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

    from proxy.bounds import Bound
    from proxy.wire import Wire

PIPE_BYTES = 1 << 20
"""In pages, each of which holds what one page of the broker's file has: Linux's default limit for any user."""
TURN_BYTES = 1 << 20
"""As much is moved before others are looked after."""
LEAST_BYTES = 1 << 16
"""Below this there is nothing to win."""
RECEIVED = memoryview(bytearray(1 << 12))
"""Where what is not moved is received: taken out before anybody else receives."""
CAN_SPLICE = sys.platform == "linux" and hasattr(os, "splice")


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


class Begun(NamedTuple):
    """An answer of which `head` is there, and of which all but the last `tail_bytes` may be moved."""

    head: bytes
    frame_bytes: int
    tail_bytes: int


def may_pass(source: Wire, sink: Wire, begun: Begun) -> bool:
    """Whether what lacks is worth it, and can go from the one socket to the other now."""
    lacking_bytes = begun.frame_bytes - begun.tail_bytes - len(begun.head)
    if not CAN_SPLICE or lacking_bytes < LEAST_BYTES or begun.tail_bytes > LEAST_BYTES:
        return False
    return sink.is_idle and source.plain_fd >= 0 and sink.plain_fd >= 0


class Passage:
    """One answer from `source` to `sink`; `on_end` is given its last bytes, all before them having gone to `sink`."""

    __slots__ = (
        "_bound",
        "_first",
        "_frame_bytes",
        "_is_stuck",
        "_sink",
        "_source",
        "_tail_bytes",
        "left_bytes",
        "on_end",
    )

    def __init__(
        self,
        source: Wire,
        sink: Wire,
        bound: Bound,
        begun: Begun,
        on_end: Callable[[bytes], None],
    ) -> None:
        self._source = source
        self._sink = sink
        self._bound = bound
        self._first = begun.head
        self._is_stuck = False
        self._tail_bytes = max(begun.tail_bytes, 1)
        self._frame_bytes = begun.frame_bytes
        self.left_bytes = begun.frame_bytes - len(begun.head)
        self.on_end = on_end

    @property
    def begun_bytes(self) -> int:
        """What of it has come."""
        return self._frame_bytes - self.left_bytes

    def begin(self) -> None:
        """What is there already goes first: the usual way, but where it is so small that it goes through the pipe."""
        if len(self._first) > len(RECEIVED):
            self._hand_over(self._take_first())

    def get_buffer(self) -> memoryview:
        """The broker's socket can be read: move what is there. Where the next bytes go that are not moved."""
        room = self.left_bytes - self._tail_bytes
        if room > 0 and not self._is_stuck and self._sink.is_idle:
            self._move(room)
        return RECEIVED[: self.left_bytes]

    def received(self, size_bytes: int) -> bytes:
        """So many bytes are in the buffer. The last bytes of the answer, or nothing where more are to come."""
        chunk = self._take_first() + RECEIVED[:size_bytes]
        self.left_bytes -= size_bytes
        if not self.left_bytes:
            return chunk
        self._hand_over(chunk)
        return b""

    def _move(self, room: int) -> None:
        pipe = open_pipe()
        until = max(room - TURN_BYTES, 0)
        in_pipe = os.write(pipe.in_fd, self._take_first()) if self._first else 0
        while room > until:
            moved = _splice(self._source.plain_fd, pipe.in_fd, min(room, PIPE_BYTES))
            self.left_bytes -= moved
            room -= moved
            self._let_out(pipe, in_pipe + moved)
            in_pipe = 0
            if not moved or self._is_stuck:
                return

    def _let_out(self, pipe: Pipe, size_bytes: int) -> None:
        """Empty the pipe. What the client's socket does not take is handed over next: not now, when a buffer is asked
        for, since that may stop reading.
        """
        while size_bytes:
            taken = _splice(pipe.out_fd, self._sink.plain_fd, size_bytes)
            if not taken:
                self._first = _read_all(pipe, size_bytes)
                self._is_stuck = True
                asyncio.get_running_loop().call_soon(self._unstick)
                return
            size_bytes -= taken

    def _unstick(self) -> None:
        if self._is_stuck and self._source.is_open:
            self._hand_over(self._take_first())

    def _take_first(self) -> bytes:
        first, self._first = self._first, b""
        self._is_stuck = False
        return first

    def _hand_over(self, chunk: bytes) -> None:
        """The usual way, for what is not moved. A socket that is gone says so here."""
        self._bound.add(len(chunk), self._source)

        def sent(_delivered: bool) -> None:
            self._bound.sub(len(chunk))
            self._bound.let_one(self._source)
            self._source.release_reading(self)

        self._sink.send((chunk,), sent)
        if not self._sink.is_idle:
            self._source.hold_reading(self)


def _read_all(pipe: Pipe, size_bytes: int) -> bytes:
    found = os.read(pipe.out_fd, size_bytes)
    while len(found) < size_bytes:
        found += os.read(pipe.out_fd, size_bytes - len(found))
    return found


def _splice(from_fd: int, to_fd: int, size_bytes: int) -> int:
    """Bytes moved. 0 where there are none or no room, and at an end or an error: what reads or writes next sees it."""
    try:
        return os.splice(from_fd, to_fd, size_bytes, flags=os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE)
    except OSError:
        return 0
