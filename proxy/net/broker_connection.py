"""Broker connection: sends requests to the broker and hands each response to its requester.
[socket]

Owns connecting, the queue of unanswered requests and the reopen rule. Must not know what a request
means beyond the facts that the rule needs. Invariants:
* responses come in the order of the requests (a broker works on one request of a connection at a
  time). Any other response ends the connection.
* every `on_answer` runs exactly once: with the response frame, or with None when the connection is
  lost.
* a connection that the broker closed is reopened silently only if nobody can miss anything (design,
  "A connection"). All of this must hold: nothing is unanswered, no acks=0 Produce followed the last
  answered request, no share session exists (KIP-932), nobody has authenticated, the owner is not
  idle (`on_idle_closed`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from dataclasses import dataclass
from functools import partial
from struct import error as StructError
from typing import TYPE_CHECKING

from protocol.errors import BadFrame
from protocol.header import FIXED_START, RESPONSE_TAGS_START, peek_correlation_id
from protocol.primitives import INT32
from proxy.config.units import Address
from proxy.net.framed_transport import FramedTransport, Hooks
from proxy.net.signed_session import SignedSession, SignInRefused
from proxy.pipe import connect
from proxy.sockets import handing_over

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Iterator

    from protocol.primitives import Frame
    from proxy.accounting.counters import Counters, Traffic
    from proxy.net.byte_budget import ByteBudget
    from proxy.net.send_buffer import Sendable
    from proxy.net.services import PipelinedRequests, Signer
    from proxy.net.splice import SpliceTransfer

    Answer = Callable[[Frame | None], None]
    Begin = Callable[[bytes, int, FramedTransport], SpliceTransfer | None]
    Sent = Callable[[bool], None]
    Expected = tuple[int, int, Answer, Traffic | None, Begin | None]

log = logging.getLogger("forebay.broker_connection")

read_int = INT32.unpack_from

BROKER_EAGER_BYTES = 16 << 20
"""Up to this size a response frame gets its memory at once, since a broker sends all bytes that it
announces. A buffer that grows by doubling copied the response to a Fetch of 1 MiB, which is
slightly larger, once more.
"""


@dataclass(frozen=True, slots=True)
class Dial:
    """How to reach the broker. `ssl_context` None: plaintext. `server_hostname`: the name that the
    broker's certificate must have; ignored in plaintext.
    """

    host: str
    port: int
    ssl_context: ssl.SSLContext | None
    server_hostname: str | None
    connect_timeout_s: float
    max_frame_bytes: int

    async def connect(self, framed: FramedTransport) -> None:
        """Open the socket for `framed`, TLS handshake included. Raises OSError, ssl.SSLError or
        TimeoutError if that fails.
        """
        await self.open(lambda: framed)

    async def open(self, build: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """`connect` for the protocol that `build` makes. Returns the transport."""
        loop = asyncio.get_running_loop()
        hostname = self.server_hostname if self.ssl_context else None
        async with asyncio.timeout(self.connect_timeout_s):
            broker = await connect(Address(self.host, self.port), self.connect_timeout_s)
            with handing_over(broker):
                transport, _ = await loop.create_connection(
                    build, sock=broker, ssl=self.ssl_context, server_hostname=hostname
                )
        return transport


class BrokerConnection:
    """A connection to the broker, opened at the first `send`. `on_lost` runs once with the reason
    if the connection is lost, and not after `close`.
    """

    __slots__ = (
        "_budget",
        "_connecting",
        "_counters",
        "_dial",
        "_held",
        "_hold_reason",
        "_is_clients",
        "_on_drained",
        "_on_idle_closed",
        "_on_lost",
        "_sequence",
        "_session",
        "_transport",
        "authenticated",
        "closed",
        "expected",
        "is_taking",
        "last_unanswerable",
        "loss",
        "pipeline",
        "reopened",
        "share_session",
    )

    def __init__(
        self,
        dial: Dial,
        bound: ByteBudget,
        counters: Counters,
        on_lost: Callable[[str], None],
        *,
        is_clients: bool = False,
        on_drained: Callable[[], None] | None = None,
        on_idle_closed: Callable[[], bool] | None = None,
        signer: Signer | None = None,
    ) -> None:
        """`is_clients`: the connection serves a client, so that a large response waits unread if
        the byte budget `bound` has no room. Responses to Forebay's own requests never wait.
        `on_drained`: called when all that was sent has left. `on_idle_closed`: called when the
        broker has closed the connection with nothing unanswered. True: do not reopen. `signer`:
        signs each socket in before its first request; None: nobody does, or the client itself.
        """
        self._dial = dial
        self._session = SignedSession(self, signer) if signer is not None else None
        self._held: deque[Callable[[], object]] | None = None
        """Requests that wait for the end of a repeated sign-in; None outside of one."""
        self._is_clients = is_clients
        self._budget = bound
        self._counters = counters
        self._on_lost = on_lost
        self._transport: FramedTransport | None = None
        self.pipeline: PipelinedRequests | None = None
        """Produces in flight that are not in `expected`; all of them follow those. None until there
        can be any.
        """
        self._connecting: asyncio.Task[None] | None = None
        self.expected: deque[Expected] = deque()
        """Unanswered requests, oldest first: correlation id, sequence number, `on_answer`,
        `arrived` and `on_begun` of each.
        """
        self.loss = ""
        """Why the connection was lost; "" while it lives, and after `close`."""
        self._sequence = 0
        self.last_unanswerable = 0
        """Sequence number of the last request without a response (acks=0), until a later request is
        answered; else 0.
        """
        self.authenticated = False
        self.share_session = False
        self.closed = False
        self.is_taking = False
        """A spliced request is incomplete; sending anything else would corrupt the stream."""
        self.reopened = 0
        self._on_drained = on_drained
        self._on_idle_closed = on_idle_closed
        self._hold_reason: object | None = None

    @property
    def unanswered(self) -> int:
        """Number of requests that the broker has not answered, those of the pipeline included."""
        return len(self.expected) + (len(self.pipeline) if self.pipeline is not None else 0)

    @property
    def framed(self) -> FramedTransport:
        """The framed transport of the current socket. Starts connecting if there is none."""
        if self._transport is None:
            hooks = Hooks(
                self._on_frame,
                self._on_closed,
                self._on_bad,
                on_drained=self._on_drained,
                budget=self._budget if self._is_clients else None,
            )
            max_frame_bytes = self._dial.max_frame_bytes
            self._transport = FramedTransport(max_frame_bytes, hooks, BROKER_EAGER_BYTES)
            self._transport.pass_large(self._on_large, self._on_passed)
            if self.pipeline is not None:
                self.carry(self.pipeline)
            if self._hold_reason is not None:
                self._transport.hold_reading(self._hold_reason)
            self._connecting = asyncio.get_running_loop().create_task(
                self._connect(self._transport)
            )
        return self._transport

    def send(
        self,
        frame: Sendable,
        correlation_id: int,
        on_answer: Answer | None,
        on_sent: Sent | None = None,
        arrived: Traffic | None = None,
        on_begun: Begin | None = None,
    ) -> bool:
        """Send one request frame. Returns True if bytes of it may wait to leave, False if all have
        left or the connection is closed. If it is closed, `on_answer(None)` and `on_sent(False)`
        have run. Must not be called while `is_taking`: AssertionError.

        `on_answer` None: no response will come (acks=0). `arrived`: the traffic counter of the
        response. `on_begun`: called for a large response with its first bytes, its size in bytes
        and its framed transport. If it returns a splice, `on_answer` runs only if the connection is
        lost. An exception while sending ends the connection and is raised again.
        """
        if self.closed:
            if on_answer:
                on_answer(None)
            if on_sent:
                on_sent(False)
            return False
        if self.is_taking:
            raise AssertionError("a request goes to the broker within another")
        if self._held is not None:
            self._held.append(
                partial(self.send, frame, correlation_id, on_answer, on_sent, arrived, on_begun)
            )
            return True
        if self.pipeline is not None:
            self.pipeline.materialize()
        self._sequence += 1
        if on_answer is None:
            self.last_unanswerable = self._sequence
        else:
            self.expected.append((correlation_id, self._sequence, on_answer, arrived, on_begun))
        try:
            return (self._transport or self.framed).send_piece(
                frame, len(frame), on_sent
            ) is not None
        except Exception as error:  # unknown how much of the frame has left: the stream is corrupt
            self._lose(f"a request cannot be sent: {error!r}")
            raise

    @contextlib.contextmanager
    def hold_requests(self) -> Iterator[Callable[[bytes], Awaitable[Frame]]]:
        """Context in which requests given to `send` wait, and leave in their order at its end. It
        gives a function that sends one of Forebay's own past them. Each request that waits is
        charged as one in flight, so that a client's limits bound them.
        """
        held: deque[Callable[[], object]] = deque()
        self._held = held

        async def call(frame: bytes) -> Frame:
            self._held = None
            try:
                answer = self._call(frame, 0)
            finally:
                self._held = held
            return await answer

        try:
            yield call
        finally:
            self._held = None
            while held:
                held.popleft()()

    def lose(self, reason: str) -> None:
        """End the connection for `reason`, as if the broker had closed it."""
        self._lose(reason)

    def authenticate(self) -> None:
        """Note that the connection gets an identity: it is never reopened silently from now on."""
        self.authenticated = True

    def open_share_session(self) -> None:
        """Note that share sessions may depend on it: it is never reopened silently from now on."""
        self.share_session = True

    # -- the pipeline --------------------------------------------------------------------------------------

    def carry(self, pipeline: PipelinedRequests) -> None:
        """Attach the pipeline of Produces, whose `complete` sees each response frame first."""
        self.pipeline = pipeline
        if self._transport is not None:
            pipeline.framed = self._transport
            self._transport.intercept(pipeline.complete, pipeline.flush)

    def send_rest(self, rest: bytes) -> bool:
        """Send the `rest` of a frame that was written past `send`, and that the kernel did not take
        whole. Returns True if bytes of it wait to leave.
        """
        return (
            self._transport is not None and self._transport.send_piece(rest, len(rest)) is not None
        )

    def expect(self, correlation_id: int, on_answer: Answer) -> None:
        """Append a request of the pipeline, which was sent, to the unanswered requests."""
        self._sequence += 1
        self.expected.append((correlation_id, self._sequence, on_answer, None, None))

    # -- the socket ----------------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Whether there is a socket, or it is being opened."""
        return self._transport is not None

    @property
    def reading_held(self) -> bool:
        """Whether responses are not read now: the client does not take its own, or memory has no room."""
        return self._transport is not None and self._transport.reading_held

    @property
    def unsent_bytes(self) -> int:
        """Bytes of requests that have not left this process."""
        return self._transport.unsent_bytes if self._transport is not None else 0

    def hold_reading(self, why: object) -> None:
        """Read no more responses until `why` is released. Holds for a reopened socket, too. Keeps a
        single reason.
        """
        self._hold_reason = why
        if self._transport is not None:
            self._transport.hold_reading(why)

    def release_reading(self, why: object) -> None:
        """Read responses again, unless the transport has other reasons not to."""
        self._hold_reason = None
        if self._transport is not None:
            self._transport.release_reading(why)

    def begin_taking(self) -> None:
        """Send nothing else until `end_taking`: a spliced request is on its way."""
        self.is_taking = True

    def end_taking(self) -> None:
        """Undo `begin_taking`: the last bytes of the request follow."""
        self.is_taking = False

    async def call(self, frame: Sendable, correlation_id: int) -> Frame:
        """Send one of Forebay's own requests and wait for its response frame. Raises
        ConnectionError if the connection is lost or closed first.
        """
        return await self._call(frame, correlation_id)

    def _call(self, frame: Sendable, correlation_id: int) -> Awaitable[Frame]:
        """Send a request now; what is returned waits for its response."""
        answer: asyncio.Future[Frame | None] = asyncio.get_running_loop().create_future()
        self.send(frame, correlation_id, lambda f: None if answer.done() else answer.set_result(f))

        async def wait() -> Frame:
            got = await answer
            if got is None:
                raise ConnectionError(self.loss or "the link was closed")
            return got

        return wait()

    async def _connect(self, framed: FramedTransport) -> None:
        try:
            if self._session is None:
                await self._dial.connect(framed)
            else:
                await self._session.connect(self._dial, framed)
        except (OSError, TimeoutError) as error:
            if self._transport is framed:
                self._transport = None
                self._counters.upstream.fail()
                address = f"{self._dial.host}:{self._dial.port}"
                why = f"cannot reach the broker at {address}: {error or type(error).__name__}"
                self._lose(f"{error}" if isinstance(error, SignInRefused) else why)

    def _on_frame(self, frame: Frame) -> None:
        if self.pipeline is not None and not self.expected:
            self.pipeline.materialize()
        line = self.expected
        if not line:
            self._lose("the broker answered what nobody asked")
            return
        expected_id, sequence, on_answer, arrived, _ = line[0]
        try:
            (correlation_id,) = read_int(frame, FIXED_START)
        except StructError:
            self._on_bad(BadFrame(f"the frame ends too early: {len(frame)} bytes"))
            return
        if correlation_id != expected_id:
            self._lose(f"the broker answered {correlation_id} where {expected_id} was due")
            return
        line.popleft()
        if sequence > self.last_unanswerable:
            self.last_unanswerable = 0
        if arrived is not None:
            arrived.frames += 1
            arrived.size_bytes += len(frame)
        try:
            on_answer(frame)
        except Exception:  # the client's place for this response would stay empty for good
            self._counters.faults.count_error()
            log.exception("an answer of the broker's could not be handled")
            self._lose("an answer could not be handled")

    def _on_large(self, begun: bytes, frame_bytes: int) -> SpliceTransfer | None:
        """Ask the oldest request about the large response that has begun. A wrong correlation id is
        left to `_on_frame`, which sees the frame once it is whole.
        """
        framed = self._transport
        if framed is None or not self.expected or len(begun) < RESPONSE_TAGS_START:
            return None
        expected_id, _, _, _, on_begun = self.expected[0]
        if on_begun is None or peek_correlation_id(begun) != expected_id:
            return None
        return on_begun(begun, frame_bytes, framed)

    def _on_passed(self, passage: SpliceTransfer, last: bytes) -> None:
        _, sequence, _, arrived, _ = self.expected.popleft()
        if sequence > self.last_unanswerable:
            self.last_unanswerable = 0
        if arrived is not None:
            arrived.frames += 1
            arrived.size_bytes += passage.frame_bytes
        passage.on_end(last)

    def _on_bad(self, error: BadFrame) -> None:
        self._lose(f"a frame of the broker's is unreadable: {error}")

    def _on_closed(self, exc: Exception | None) -> None:
        framed, self._transport = self._transport, None
        if framed is not None:
            self._budget.forget(framed)
        if self.closed:
            return
        if self.pipeline is not None:
            self.pipeline.materialize()
        is_missed = self.expected or self.last_unanswerable or self.is_taking or self.share_session
        if not is_missed and self._on_idle_closed is not None and self._on_idle_closed():
            return
        if is_missed or self.authenticated:
            self._lose("the broker closed the connection" + (f": {exc}" if exc else ""))
        else:
            self.reopened += 1
            self._counters.upstream.reopen()

    def _lose(self, reason: str) -> None:
        """End the connection with a reason, once: `on_answer(None)` for all unanswered requests,
        then `on_lost`.
        """
        if self.closed:
            return
        self.loss = reason
        self._shut(abort=True)
        self._on_lost(reason)

    def close(self) -> None:
        """End the connection. Requests given to `send` still leave; every waiting `on_answer` gets
        None.
        """
        if not self.closed:
            self._shut(abort=False)

    def _shut(self, abort: bool) -> None:
        if self.pipeline is not None:
            self.pipeline.materialize()
        self.closed = True
        if self._session is not None:
            self._session.close()
        framed, self._transport = self._transport, None
        if framed is not None:
            self._budget.forget(framed)
            if abort:
                framed.abort()
            else:
                framed.close_when_sent()
        waiting, self.expected = self.expected, deque()
        for _, _, on_answer, _, _ in waiting:
            on_answer(None)
