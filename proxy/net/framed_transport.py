"""Framed transport: one socket that receives length-prefixed frames and sends buffers. [socket]

Owns the asyncio transport of a client's or broker's connection. Cuts received bytes into frames.
Sends buffers in order, in pieces small enough that a slow reader holds little. Must not know an
API, nor of the peer more than its bytes. Invariants:
* `on_sent` of a response runs when its last byte has left this process's buffers, never before:
  hits are counted then.
* the transport holds at most one piece. All else waits here, where memory of the arena can still be
  copied out.
* after `close_when_sent`, `abort` or a lost connection every waiting `on_sent` runs once, with
  False if its bytes did not leave.
* one turn of the event loop handles TURN_FRAMES of at most TURN_FRAME_BYTES and writes TURN_BYTES,
  whatever the peer asks for: the loop serves others before it goes on.
* a frame that arrives in one chunk is bytes that nobody copies. The rest of a large frame arrives
  in its own buffer (docs/performance.md), which is freed with the connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from protocol.errors import BadFrame
from protocol.framing import EAGER_BYTES, PREFIX_BYTES, Framer, read_length
from proxy.net.send_buffer import PIECE_BYTES, SendBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from protocol.primitives import Frame
    from proxy.net.byte_budget import ByteBudget
    from proxy.net.send_buffer import Sendable
    from proxy.net.splice import SpliceTransfer

SCRATCH = memoryview(bytearray(1 << 12))
"""Receive buffer for bytes that may start another large frame. All connections share the buffer,
since its bytes are copied out before another connection receives. The buffer is small, since bytes
in it are copied twice and the rest of a frame not at all (docs/decisions/0017).
"""
CHUNK_BYTES = 256_000
"""Most bytes that one read brings to `data_received` (uvloop; asyncio: 256 KiB). A frame within that
is cheaper copied once than received through LargeFrame.
"""
LINGER_S = 10.0
"""How long a peer that does not read may delay a close."""
TURN_FRAMES, TURN_FRAME_BYTES = 16, 1 << 14
"""Frames of one connection, and their bytes, after which other connections have their turn: some
milliseconds. A request's time grows with its partitions, and so with its bytes.
"""
TURN_BYTES = 4 * PIECE_BYTES
"""Bytes written to one connection before other connections have their turn."""


def count_turn(frames: Sequence[bytes]) -> int:
    """Return how many of `frames` one turn handles."""
    size_bytes = 0
    for number, frame in enumerate(frames):
        if number == TURN_FRAMES or size_bytes >= TURN_FRAME_BYTES:
            return number
        size_bytes += len(frame)
    return len(frames)


class LargeFrame(asyncio.BufferedProtocol):
    """Replaces a FramedTransport as asyncio's protocol while a large frame arrives, and until one of
    at most CHUNK_BYTES has arrived. Buffered, so that the kernel writes into the frame's own memory.
    """

    __slots__ = ("_framer", "_owner")

    def __init__(self, framed: FramedTransport) -> None:
        self._owner = framed
        self._framer = framed.framer

    def get_buffer(self, _sizehint: int) -> memoryview:
        """The buffer for the next bytes: the splice's, the rest of the large frame's, or SCRATCH."""
        passage = self._owner.passage
        if passage is not None:
            return passage.get_buffer()
        framer = self._framer
        if framer.begun or framer.rest is not None:
            return framer.rest or framer.get_buffer()
        return SCRATCH

    def buffer_updated(self, nbytes: int) -> None:
        """Take the `nbytes` that asyncio has written into the last buffer."""
        framed = self._owner
        passage = framed.passage
        if passage is not None:
            last = passage.received(nbytes)
            if last:
                framed.passed(last)
        elif self._framer.rest is not None:
            frame = self._framer.received_large(nbytes)
            if frame is not None:
                framed.large_arrived(frame)
        else:
            framed.data_received(bytes(SCRATCH[:nbytes]))

    def eof_received(self) -> bool:
        """See FramedTransport.eof_received."""
        return self._owner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """See FramedTransport.connection_lost."""
        self._owner.connection_lost(exc)

    def pause_writing(self) -> None:
        """See FramedTransport.pause_writing."""
        self._owner.pause_writing()

    def resume_writing(self) -> None:
        """See FramedTransport.resume_writing."""
        self._owner.resume_writing()


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the owner of a framed transport does on its events.

    `on_frame`: a frame was received. `on_closed`: the socket is closed; None if the close was clean
    or ours. `on_bad`: received bytes are no frame. `on_eof`: the peer has finished sending; True
    keeps this side open. `on_made`: the socket is open. `on_begun`: received bytes end within a
    frame. `on_drained`: all that was given to `send` has left. `budget`: the byte budget that a
    frame which has begun is charged to, or waits for; None: frames are not charged here.
    """

    on_frame: Callable[[Frame], None]
    on_closed: Callable[[Exception | None], None]
    on_bad: Callable[[BadFrame], None]
    on_eof: Callable[[], bool] | None = None
    on_made: Callable[[], None] | None = None
    on_begun: Callable[[], None] | None = None
    on_drained: Callable[[], None] | None = None
    budget: ByteBudget | None = None


class FramedTransport(asyncio.Protocol):
    """The asyncio protocol of one socket."""

    def __init__(self, max_frame_bytes: int, hooks: Hooks, eager_bytes: int = EAGER_BYTES) -> None:
        self.framer = Framer(max_frame_bytes, eager_bytes=eager_bytes)
        self._hooks = hooks
        self._transport: asyncio.Transport | None = None
        self._outbox: deque[SendBuffer] = deque()
        self._outbox_bytes = 0
        self._write_paused = False
        self._is_resting = False  # TURN_BYTES were written: the next turn goes on
        self._later: tuple[Sequence[bytes], ByteBudget | None] | None = None
        """Frames that the next turn handles, and the budget to tell after the last of them."""
        self._in_large = False
        self._read_holds: dict[int, object] = {}
        self._closed = False
        self._closing = False
        self._linger: asyncio.TimerHandle | None = None
        self._raw_sink: Callable[[bytes], None] | None = None
        self._shortcut: Callable[[bytes, bool], bool] | None = None
        """Called with each received frame before `on_frame`, and whether another follows; True if it
        has handled the frame. Large frames skip it.
        """
        self._end_frames: Callable[[], None] | None = None
        """Called after several frames, whose last one the shortcut may not have handled."""
        self.passage: SpliceTransfer | None = None
        """The splice of the large frame that arrives now; None if frames are received here."""
        self._on_large: Callable[[bytes, int], SpliceTransfer | None] | None = None
        """Called with the first bytes of a large frame and its whole size in bytes. Returns the
        splice that takes the frame, or None to receive it here.
        """
        self._on_passed: Callable[[SpliceTransfer, bytes], None] | None = None
        """Called when a splice has moved all of its frame but the last bytes, with those bytes."""
        self.charged_bytes = 0
        """Bytes that the budget is charged for the frame that has begun; 0 if none. The budget
        writes this.
        """
        self.plain_fd = -1
        """The socket's descriptor, for splice(2); -1 if the connection uses TLS or is not open."""
        self.free_fd = -1
        """The same descriptor while nothing waits to be sent, so that a direct write keeps the
        order; else -1.
        """
        self.peer = ""  # "host:port" of the other end; what a proxy has named stays
        self.frames = 0
        self.pieces = 0
        """Number of pieces that the kernel did not take at once, and has taken since."""

    def intercept(self, shortcut: Callable[[bytes, bool], bool], end: Callable[[], None]) -> None:
        """Give each received frame, large ones excepted, to `shortcut` first, with whether another
        one follows in this turn. It returns False for a frame that `on_frame` has to handle. `end`
        runs after several frames, before anything else.
        """
        self._shortcut, self._end_frames = shortcut, end

    def pass_large(
        self,
        on_large: Callable[[bytes, int], SpliceTransfer | None],
        on_passed: Callable[[SpliceTransfer, bytes], None],
    ) -> None:
        """Offer large frames to `on_large` with their first bytes and their size. `on_passed` gets
        the last bytes of a frame that a splice has taken.
        """
        self._on_large, self._on_passed = on_large, on_passed

    # -- called by asyncio -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio when the socket is open. Writing pauses from the first byte that the
        kernel did not take, and resumes when none is left: a plain transport pauses above its
        limit, the TLS transports (asyncio.sslproto and uvloop's) at it.
        """
        self._transport = cast("asyncio.Transport", transport)
        is_plain = transport.get_extra_info("ssl_object") is None
        self._transport.set_write_buffer_limits(high=0 if is_plain else 1, low=0)
        self.plain_fd = transport.get_extra_info("socket").fileno() if is_plain else -1
        if not self.peer:
            self.peer = "{}:{}".format(*(transport.get_extra_info("peername") or ("?", 0))[:2])
        if self._closed:
            self._transport.abort()
            return
        if self._read_holds:
            self._transport.pause_reading()
        if self._hooks.on_made:
            self._hooks.on_made()
        self._write_outbox()

    def data_received(self, data: bytes) -> None:
        """Called by asyncio with received bytes: hands on the frames that they complete. Nearly
        always the bytes are exactly one frame, which the first branch handles without a copy.
        """
        framer, size_bytes = self.framer, len(data)
        if (
            size_bytes >= PREFIX_BYTES
            and not (
                framer.start or self._in_large or self._raw_sink or self._closed or self._closing
            )
            and read_length(data)[0] == size_bytes - PREFIX_BYTES <= framer.max_frame_bytes
        ):
            self.frames += 1
            if self._shortcut is None or not self._shortcut(data, False):
                self._hooks.on_frame(data)
        else:
            self._split_frames(data)

    def _split_frames(self, data: bytes) -> None:
        if self._raw_sink:
            self.frames += 1
            self._raw_sink(data)
            return
        try:
            frames = self.framer.received(data)
        except BadFrame as error:
            self._hooks.on_bad(error)
            return
        if (self.framer.begun != b"") is not self._in_large:
            self._switch_protocol()
        hooks = self._hooks
        budget = hooks.budget if frames and self.charged_bytes else None
        if budget is not None:
            budget.end(self)
        self._hand_on(frames, budget)

    def _hand_on(self, frames: Sequence[bytes], budget: ByteBudget | None) -> None:
        """Handle `frames`. Those beyond this turn's wait for the loop's next turn, and nothing more
        is read until then.
        """
        most = count_turn(frames)
        for number, frame in enumerate(frames[:most], 1):
            if self._closed or self._closing:
                break
            self.frames += 1
            if self._shortcut is None or not self._shortcut(frame, number < most):
                self._hooks.on_frame(frame)
        if most > 1 and self._end_frames is not None:
            self._end_frames()
        if most < len(frames) and not (self._closed or self._closing):
            self._later = frames[most:], budget
            self.hold_reading(self._later)
            asyncio.get_running_loop().call_soon(self._continue)
            return
        hooks = self._hooks
        if budget is not None:
            budget.sub(0)  # only now: the handler charges the frame itself before others resume
        if hooks.on_begun is not None and (self.framer.start or self.framer.begun):
            hooks.on_begun()
        if self.framer.begun and self.offer():
            return
        if hooks.budget is not None and (self.framer.start or self.framer.begun):
            self._charge(hooks.budget)

    def _continue(self) -> None:
        """Handle frames that waited for this turn, for which reading was held. An exception ends the
        connection, as asyncio does where `data_received` raises.
        """
        later, self._later = self._later, None
        if later is None:
            return  # `_handle_later` was first
        try:
            self._hand_on(*later)
        except Exception as error:
            context = {"message": "a frame was not handled", "exception": error, "protocol": self}
            asyncio.get_running_loop().call_exception_handler(context)
            self.abort()
        if not self._closed:
            self.release_reading(later)

    def _handle_later(self) -> None:
        """Handle all frames that wait for a later turn: the stream has ended. A TLS transport reports
        its end behind frames of the same read, although reading is held.
        """
        while self._later is not None:
            self._continue()

    def offer(self) -> bool:
        """Whether a splice takes the large frame that has begun. Memory must not be set aside for
        the frame yet. False if there is no such frame, or `on_large` wants it received.
        """
        if self._on_large is None or not self.framer.begun or self._closed or self._closing:
            return False
        self.passage = self._on_large(self.framer.begun, self.framer.large_bytes)
        if self.passage is None:
            return False
        self.framer.leave_large()
        self.passage.begin()
        return True

    def _charge(self, budget: ByteBudget) -> None:
        """Charge the frame within which the received bytes end, once."""
        size_bytes = self.framer.frame_bytes
        if size_bytes > budget.uncharged_bytes and not (
            self.charged_bytes or self._closed or self._closing
        ):
            budget.begin(self, size_bytes)

    def passed(self, last: bytes) -> None:
        """End the splice, which has moved all of its frame but the `last` bytes."""
        passage, self.passage = self.passage, None
        if (
            passage is not None
            and self._on_passed is not None
            and not (self._closed or self._closing)
        ):
            self.frames += 1
            self._on_passed(passage, last)

    def large_arrived(self, frame: Frame) -> None:
        """Hand on a large frame that is whole."""
        hooks = self._hooks
        if hooks.budget is not None:
            hooks.budget.end(self)
        if self.framer.large_bytes <= CHUNK_BYTES:
            self._switch_protocol()  # the next one may arrive in one chunk
        if not (self._closed or self._closing):
            self.frames += 1
            hooks.on_frame(frame)
        if hooks.budget is not None:
            hooks.budget.sub(
                0
            )  # only now: the handler charges the frame itself before others resume

    def _switch_protocol(self) -> None:
        self._in_large = self.framer.in_large
        if self._transport is not None:
            self._transport.set_protocol(LargeFrame(self) if self._in_large else self)

    def eof_received(self) -> bool:
        """Called by asyncio when the peer has finished sending. True keeps this side open."""
        self._handle_later()
        on_eof = self._hooks.on_eof
        return bool(on_eof and not self._closed and on_eof())

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio when the socket is closed: every waiting `on_sent` runs with False."""
        self._transport = None
        self.plain_fd = self.free_fd = -1
        self._handle_later()
        self._closed = True
        if self._linger is not None:
            self._linger.cancel()
        self.framer.let_go()
        waiting, self._outbox, self._outbox_bytes = self._outbox, deque(), 0
        for outgoing in waiting:
            outgoing.end(False)
        self._hooks.on_closed(exc)

    def pause_writing(self) -> None:
        """Called by asyncio when the kernel did not take all of the piece."""
        self._write_paused = True
        self.free_fd = -1

    def resume_writing(self) -> None:
        """Called by asyncio when all of the piece has left: writes the next one."""
        self._write_paused = False
        self.pieces += 1
        if self._outbox and self._outbox[0].in_transport:
            self._piece_left(self._outbox[0])
        self._write_outbox()

    # -- called by owners ------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether the socket is connected and not closing."""
        return self._transport is not None and not self._closed and not self._closing

    @property
    def pending_frame_bytes(self) -> int:
        """Bytes received of a frame that has begun and not ended; 0 if there is none."""
        if self.passage is not None:
            return self.passage.begun_bytes
        return 0 if self._raw_sink else self.framer.pending_bytes

    @property
    def is_idle(self) -> bool:
        """Whether the socket is open and all that was given to `send` has left."""
        if self._outbox or self._write_paused or self._closed or self._closing:
            return False
        return self._transport is not None

    @property
    def unsent_bytes(self) -> int:
        """Bytes given to `send` that have not left. A partly sent entry counts whole."""
        return self._outbox_bytes

    def send(
        self,
        buffers: Sequence[Sendable],
        on_sent: Callable[[bool], None] | None = None,
    ) -> SendBuffer | None:
        """Send `buffers` after all earlier ones. Returns an entry that may wait here, or None:
        nothing waits, and `on_sent` has run, with False if the connection is closed or closing.
        Before the socket is open, all waits.
        """
        if self._closed or self._closing:
            if on_sent:
                on_sent(False)
            return None
        size_bytes = len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
        if self._outbox or self._transport is None or size_bytes > PIECE_BYTES:
            outgoing = SendBuffer(buffers, on_sent)
            self._outbox.append(outgoing)
            self._outbox_bytes += outgoing.size_bytes
            self._write_outbox()
            return outgoing
        if len(buffers) == 1:
            self._transport.write(buffers[0])
        else:
            self._transport.writelines(buffers)
        if self._write_paused:
            return self._queue_unsent(size_bytes, on_sent)
        if on_sent:
            on_sent(True)
        if self._hooks.on_drained and not (self._outbox or self._closing):
            self._hooks.on_drained()
        return None

    def send_piece(
        self, piece: Sendable, size_bytes: int, on_sent: Callable[[bool], None] | None = None
    ) -> SendBuffer | None:
        """`send` for one buffer of `size_bytes`. If the outbox is empty, a buffer up to PIECE_BYTES
        is written at once, and gets an entry only if the kernel takes less. `on_drained` does not
        run for a buffer that left at once.
        """
        transport = self._transport
        if (
            transport is None
            or self._outbox
            or self._closed
            or self._closing
            or size_bytes > PIECE_BYTES
        ):
            return self.send((piece,), on_sent)
        transport.write(piece)
        if self._write_paused:
            return self._queue_unsent(size_bytes, on_sent)
        if on_sent:
            on_sent(True)
        return None

    def _queue_unsent(self, size_bytes: int, on_sent: Callable[[bool], None] | None) -> SendBuffer:
        """Add an entry for `size_bytes` of which the kernel did not take all: the transport holds
        the rest.
        """
        outgoing = SendBuffer((), on_sent)
        outgoing.size_bytes = size_bytes
        outgoing.in_transport = True
        self._outbox.append(outgoing)
        self._outbox_bytes += size_bytes
        return outgoing

    def _write_outbox(self) -> None:
        """Write what waits, until the kernel takes no more or TURN_BYTES have left in this turn."""
        self.free_fd, room = -1, TURN_BYTES
        while self._outbox and not self._write_paused and self._transport is not None:
            if self._is_resting:
                return  # this turn's bytes have left, perhaps since an `on_sent` has sent more
            if room <= 0:
                self._is_resting = True
                asyncio.get_running_loop().call_soon(self._end_rest)
                return
            head = self._outbox[0]
            head.in_transport = True
            piece = head.next_piece()
            room -= sum(map(len, piece))
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
        if self._hooks.on_drained:
            self._hooks.on_drained()

    def _end_rest(self) -> None:
        self._is_resting = False
        if not self._closed:
            self._write_outbox()

    def _piece_left(self, head: SendBuffer) -> None:
        head.in_transport = False
        if head.buffers:
            return
        self._outbox.popleft()
        self._outbox_bytes -= head.size_bytes
        head.end(True)

    def hold_reading(self, why: object) -> None:
        """Pause reading until every `why` that was given here is released. Reasons are compared by
        identity.
        """
        first = not self._read_holds
        self._read_holds[id(why)] = why
        if first and self._transport is not None:
            self._transport.pause_reading()

    def release_reading(self, why: object) -> None:
        """Withdraw one reason; reading resumes when none is left. An unknown `why` is ignored."""
        if not self._read_holds or self._read_holds.pop(id(why), None) is None:
            return
        if not self._read_holds and self._transport is not None:
            self._transport.resume_reading()

    @property
    def reading_held(self) -> bool:
        """Whether reading is paused."""
        return bool(self._read_holds)

    def go_blind(self, sink: Callable[[bytes], None]) -> None:
        """Hand raw bytes to `sink` from now on: the peer sends bytes without frames (after
        SaslHandshake v0).
        """
        self._raw_sink = sink

    def close_when_sent(self) -> None:
        """Close once all that was given to `send` has left, or after LINGER_S. Nothing more is
        read. A socket that is still connecting sends first.
        """
        if self._closed or self._closing:
            return
        self._closing = True
        self._linger = asyncio.get_running_loop().call_later(LINGER_S, self.abort)
        self.framer.let_go()
        self.hold_reading(self)
        self._write_outbox()

    def abort(self) -> None:
        """Close at once. Unsent bytes are lost."""
        self._closed = True
        self.free_fd = -1
        if self._transport is not None:
            self._transport.abort()
