"""One framed socket: frames in, buffers out. [socket]

Owns the transport of one connection, client's or upstream's: it cuts what arrives into frames, and sends what
it is given in order, in pieces small enough that a slow reader holds little. It knows no API and no peer
beyond the bytes. Invariants:
* `on_sent` of a reply runs when its last byte has left this process's buffers, never before: hits are counted
  then.
* the transport holds at most one piece; everything else waits here, where memory of the arena can still be
  copied out.
* after `close` or a lost connection every waiting `on_sent` runs once with False.
* what is small arrives as bytes that nobody copies; the rest of a large frame straight in its own buffer
  (docs/performance.md), which is let go of with the connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

from protocol.errors import BadFrame
from protocol.framing import EAGER_BYTES, PREFIX_BYTES, Framer, read_length
from proxy.net.send_buffer import PIECE_BYTES, SendBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from protocol.wire import Frame
    from proxy.net.byte_budget import ByteBudget
    from proxy.net.send_buffer import Sendable
    from proxy.net.splice import SpliceTransfer

SCRATCH = memoryview(bytearray(1 << 12))
"""Where what may be the start of another large frame is received: taken out before anybody else receives. Small:
what is received here is copied twice, the frame's rest not at all (docs/decisions/0017).
"""
LINGER_S = 10.0
"""How long a peer that does not read may hold up a close."""


class LargeFrame(asyncio.BufferedProtocol):
    """Stands in for a wire on its transport while large frames arrive, until one comes that is not."""

    __slots__ = ("_framer", "_wire")

    def __init__(self, wire: FramedTransport) -> None:
        self._wire = wire
        self._framer = wire.framer

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Where the next bytes go."""
        passage = self._wire.passage
        if passage is not None:
            return passage.get_buffer()
        framer = self._framer
        if framer.begun or framer.rest is not None:
            return framer.rest or framer.get_buffer()
        return SCRATCH

    def buffer_updated(self, nbytes: int) -> None:
        """`nbytes` more have arrived."""
        wire = self._wire
        passage = wire.passage
        if passage is not None:
            last = passage.received(nbytes)
            if last:
                wire.passed(last)
        elif self._framer.rest is not None:
            frame = self._framer.received_large(nbytes)
            if frame is not None:
                wire.large_arrived(frame)
        else:
            wire.data_received(bytes(SCRATCH[:nbytes]))

    def eof_received(self) -> bool:
        """The wire's."""
        return self._wire.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The wire's."""
        self._wire.connection_lost(exc)

    def pause_writing(self) -> None:
        """The wire's."""
        self._wire.pause_writing()

    def resume_writing(self) -> None:
        """The wire's."""
        self._wire.resume_writing()


class FramedTransport(asyncio.Protocol):
    """asyncio's face of one socket. Callbacks: on_frame(frame), on_closed(exception or None),
    on_bad(BadFrame), on_eof().
    """

    def __init__(
        self,
        max_frame_bytes: int,
        on_frame: Callable[[Frame], None],
        on_closed: Callable[[Exception | None], None],
        on_bad: Callable[[BadFrame], None],
        on_eof: Callable[[], bool] | None = None,
        eager_bytes: int = EAGER_BYTES,
    ) -> None:
        self.framer = Framer(max_frame_bytes, eager_bytes=eager_bytes)
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._on_bad = on_bad
        self._on_eof = on_eof
        self._transport: asyncio.Transport | None = None
        self._outbox: deque[SendBuffer] = deque()
        self._outbox_bytes = 0
        self._write_paused = False
        self._in_large = False
        self._read_holds: dict[int, object] = {}
        self._closed = False
        self._closing = False
        self._linger: asyncio.TimerHandle | None = None
        self._blind: Callable[[bytes], None] | None = None
        self.shortcut: Callable[[bytes], bool] | None = None
        """Asked with each frame of a chunk before `on_frame`: True where it has taken the frame."""
        self.passage: SpliceTransfer | None = None
        """The large frame that arrives and is not received here."""
        self.on_large: Callable[[bytes, int], SpliceTransfer | None] | None = None
        """Asked with what there is of a large frame, and how large it will be, whether it is to pass."""
        self.on_passed: Callable[[SpliceTransfer, bytes], None] | None = None
        self.on_drained: Callable[[], None] | None = None
        self.on_begun: Callable[[], None] | None = None
        """Told whenever a chunk ends within a frame."""
        self.on_made: Callable[[], None] | None = None
        self.bound: ByteBudget | None = None
        """Where a frame that has begun is charged, and waits where it may not be."""
        self.charged_bytes = 0
        """What is charged there for it."""
        self.plain_fd = -1
        """The socket, for who moves bytes past this process; -1 where they are to be encrypted, or it is not open."""
        self.free_fd = -1
        """The same where what is written to it now follows all that was given to `send`; else -1."""
        self.peer = ""
        self.frames = 0
        self.pieces = 0
        """That the kernel did not take at once, and has taken since."""

    # -- asyncio's side ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open. Writes are 'paused' from the first byte the kernel did not take, resumed at
        none left: a plain transport pauses above its limit, TLS's (asyncio.sslproto and uvloop's) at it.
        """
        self._transport = cast("asyncio.Transport", transport)
        is_plain = transport.get_extra_info("ssl_object") is None
        self._transport.set_write_buffer_limits(high=0 if is_plain else 1, low=0)
        self.plain_fd = transport.get_extra_info("socket").fileno() if is_plain else -1
        self.peer = "{}:{}".format(*(transport.get_extra_info("peername") or ("?", 0))[:2])
        if self._closed:
            self._transport.abort()
            return
        if self._read_holds:
            self._transport.pause_reading()
        if self.on_made:
            self.on_made()
        self._feed()

    def data_received(self, data: bytes) -> None:
        """More has arrived: hand on the frames it completes. Nearly always it is one, and nothing else."""
        framer, size_bytes = self.framer, len(data)
        if (
            size_bytes >= PREFIX_BYTES
            and not (framer.start or self._in_large or self._blind or self._closed or self._closing)
            and read_length(data)[0] == size_bytes - PREFIX_BYTES <= framer.max_frame_bytes
        ):
            self.frames += 1
            if self.shortcut is None or not self.shortcut(data):
                self._on_frame(data)
        else:
            self._cut(data)

    def _cut(self, data: bytes) -> None:
        if self._blind:
            self.frames += 1
            self._blind(data)
            return
        try:
            frames = self.framer.received(data)
        except BadFrame as error:
            self._on_bad(error)
            return
        if (self.framer.begun != b"") is not self._in_large:
            self._stand_in()
        bound = self.bound if frames and self.charged_bytes else None
        if bound is not None:
            bound.end(self)
        for frame in frames:
            if self._closed or self._closing:
                return
            self.frames += 1
            if self.shortcut is None or not self.shortcut(frame):
                self._on_frame(frame)
        if bound is not None:
            bound.sub(0)
        if self.on_begun is not None and (self.framer.start or self.framer.begun):
            self.on_begun()
        if self.framer.begun and self.offer():
            return
        if self.bound is not None and (self.framer.start or self.framer.begun):
            self._charge(self.bound)

    def offer(self) -> bool:
        """A large frame has begun, and no memory is set aside for it: whether it passes now."""
        if self.on_large is None or not self.framer.begun or self._closed or self._closing:
            return False
        self.passage = self.on_large(self.framer.begun, self.framer.large_bytes)
        if self.passage is None:
            return False
        self.framer.leave_large()
        self.passage.begin()
        return True

    def _charge(self, bound: ByteBudget) -> None:
        """A chunk has ended within a frame."""
        size_bytes = self.framer.frame_bytes
        if size_bytes > bound.uncharged_bytes and not (self.charged_bytes or self._closed or self._closing):
            bound.begin(self, size_bytes)

    def passed(self, last: bytes) -> None:
        """All of a large frame but its `last` bytes has been given to where it goes."""
        passage, self.passage = self.passage, None
        if passage is not None and self.on_passed is not None and not (self._closed or self._closing):
            self.frames += 1
            self.on_passed(passage, last)

    def large_arrived(self, frame: Frame) -> None:
        """All of a large frame has arrived: hand it on."""
        if self.bound is not None:
            self.bound.end(self)
        if not (self._closed or self._closing):
            self.frames += 1
            self._on_frame(frame)
        if self.bound is not None:
            self.bound.sub(0)

    def _stand_in(self) -> None:
        self._in_large = self.framer.in_large
        if self._transport is not None:
            self._transport.set_protocol(LargeFrame(self) if self._in_large else self)

    def eof_received(self) -> bool:
        """The peer has finished sending. True keeps our half open."""
        return bool(self._on_eof and not self._closed and self._on_eof())

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone: nothing waiting will be sent."""
        self._closed = True
        self._transport = None
        self.plain_fd = self.free_fd = -1
        if self._linger is not None:
            self._linger.cancel()
        self.framer.let_go()
        waiting, self._outbox, self._outbox_bytes = self._outbox, deque(), 0
        for outgoing in waiting:
            outgoing.end(False)
        self._on_closed(exc)

    def pause_writing(self) -> None:
        """The kernel did not take all of the piece."""
        self._write_paused = True
        self.free_fd = -1

    def resume_writing(self) -> None:
        """The piece has left."""
        self._write_paused = False
        self.pieces += 1
        if self._outbox and self._outbox[0].in_transport:
            self._piece_left(self._outbox[0])
        self._feed()

    # -- our side ------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Connected, and not closing."""
        return self._transport is not None and not self._closed and not self._closing

    @property
    def pending_frame_bytes(self) -> int:
        """Bytes of a frame that has begun and not ended."""
        if self.passage is not None:
            return self.passage.begun_bytes
        return 0 if self._blind else self.framer.pending_bytes

    @property
    def is_idle(self) -> bool:
        """Open, and everything that was given to `send` has left."""
        if self._outbox or self._write_paused or self._closed or self._closing:
            return False
        return self._transport is not None

    @property
    def unsent_bytes(self) -> int:
        """Bytes accepted by `send` that have not left."""
        return self._outbox_bytes

    def send(
        self,
        buffers: Sequence[Sendable],
        on_sent: Callable[[bool], None] | None = None,
    ) -> SendBuffer | None:
        """Send `buffers`, after all that was given before. None when nothing of it waits here: `on_sent` has run."""
        if self._closed or self._closing:
            if on_sent:
                on_sent(False)
            return None
        size_bytes = len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
        if self._outbox or self._transport is None or size_bytes > PIECE_BYTES:
            outgoing = SendBuffer(buffers, on_sent)
            self._outbox.append(outgoing)
            self._outbox_bytes += outgoing.size_bytes
            self._feed()
            return outgoing
        if len(buffers) == 1:
            self._transport.write(buffers[0])
        else:
            self._transport.writelines(buffers)
        if self._write_paused:
            return self._wait_stuck(size_bytes, on_sent)
        if on_sent:
            on_sent(True)
        if self.on_drained and not (self._outbox or self._closing):
            self.on_drained()
        return None

    def send_piece(
        self, piece: Sendable, size_bytes: int, on_sent: Callable[[bool], None] | None = None
    ) -> SendBuffer | None:
        """`send` of one buffer. One that nothing is before, and that is no larger than a piece, needs no place in the
        line unless the kernel does not take it all; for such a one `on_drained` does not run.
        """
        transport = self._transport
        if transport is None or self._outbox or self._closed or self._closing or size_bytes > PIECE_BYTES:
            return self.send((piece,), on_sent)
        transport.write(piece)
        if self._write_paused:
            return self._wait_stuck(size_bytes, on_sent)
        if on_sent:
            on_sent(True)
        return None

    def _wait_stuck(self, size_bytes: int, on_sent: Callable[[bool], None] | None) -> SendBuffer:
        """The kernel did not take all of what was never in the line."""
        outgoing = SendBuffer((), on_sent)
        outgoing.size_bytes = size_bytes
        outgoing.in_transport = True
        self._outbox.append(outgoing)
        self._outbox_bytes += size_bytes
        return outgoing

    def _feed(self) -> None:
        self.free_fd = -1
        while self._outbox and not self._write_paused and self._transport is not None:
            head = self._outbox[0]
            head.in_transport = True
            piece = head.next_piece()
            if len(piece) == 1:
                self._transport.write(piece[0])
            else:
                self._transport.writelines(piece)
            if not self._write_paused and self._outbox and self._outbox[0] is head:
                self._piece_left(head)
        if self._outbox or self._write_paused or self._transport is None:
            return
        if self._closing:
            self._closed = True
            self._transport.close()
            return
        self.free_fd = -1 if self._closed else self.plain_fd
        if self.on_drained:
            self.on_drained()

    def _piece_left(self, head: SendBuffer) -> None:
        head.in_transport = False
        if head.buffers:
            return
        self._outbox.popleft()
        self._outbox_bytes -= head.size_bytes
        head.end(True)

    def hold_reading(self, why: object) -> None:
        """Take no more from the peer until every reason given here was released. Reasons are compared by
        identity.
        """
        first = not self._read_holds
        self._read_holds[id(why)] = why
        if first and self._transport is not None:
            self._transport.pause_reading()

    def release_reading(self, why: object) -> None:
        """`why` no longer stands against reading."""
        if not self._read_holds or self._read_holds.pop(id(why), None) is None:
            return
        if not self._read_holds and self._transport is not None:
            self._transport.resume_reading()

    @property
    def reading_held(self) -> bool:
        """Whether the peer is being held back."""
        return bool(self._read_holds)

    def go_blind(self, sink: Callable[[bytes], None]) -> None:
        """From here on hand raw bytes to `sink`: the peer speaks something unframed (SaslHandshake v0)."""
        self._blind = sink

    def close_when_sent(self) -> None:
        """Close once everything that was given to `send` has left; nothing more is read. A socket still
        connecting sends first.
        """
        if self._closed or self._closing:
            return
        self._closing = True
        self._linger = asyncio.get_running_loop().call_later(LINGER_S, self.abort)
        self.framer.let_go()
        self.hold_reading(self)
        self._feed()

    def abort(self) -> None:
        """Close at once; what was not sent is lost."""
        self._closed = True
        self.free_fd = -1
        if self._transport is not None:
            self._transport.abort()
