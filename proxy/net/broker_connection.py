"""One connection to the broker: requests out, each answer to whoever asked. [socket]

Owns connecting, the line of unanswered requests and the reopen rule. It must not know what a request means
beyond the facts that the rule needs. Invariants:
* answers come in the order of the requests (a broker works on one request of a connection at a time);
  anything else ends it.
* every `on_answer` runs exactly once: with the answer's frame, or with None when the link is lost.
* a link that closed is reopened silently only where nobody can miss anything (design, "A connection"):
  nothing unanswered, no acks=0 Produce since the last answered request, no share session (KIP-932), nobody
  authenticated on it; and where its owner is not idle (`on_idle_closed`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from struct import error as StructError
from typing import TYPE_CHECKING

from protocol.errors import BadFrame
from protocol.header import FIXED_START, RESPONSE_TAGS_START, peek_correlation_id
from protocol.wire import INT32
from proxy.net.framed_transport import FramedTransport

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from protocol.wire import Frame
    from proxy.accounting.counters import Counters, Traffic
    from proxy.net.byte_budget import ByteBudget
    from proxy.net.send_buffer import Sendable
    from proxy.net.splice import SpliceTransfer
    from proxy.produce.pipeline import Pipeline

    Answer = Callable[[Frame | None], None]
    Begin = Callable[[bytes, int, FramedTransport], SpliceTransfer | None]
    Sent = Callable[[bool], None]
    Expected = tuple[int, int, Answer, Traffic | None, Begin | None]

log = logging.getLogger("forebay.upstream")

read_int = INT32.unpack_from

BROKER_EAGER_BYTES = 16 << 20
"""The broker sends what it announces: its answers get their memory at once. Grown by doubling, an answer to a
Fetch of 1 MiB, which is a little more than that, was copied once more.
"""


@dataclass(frozen=True, slots=True)
class Dial:
    """How to reach the broker. `ssl_context` None is plaintext; `server_hostname` is what its certificate
    must name.
    """

    host: str
    port: int
    ssl_context: ssl.SSLContext | None
    server_hostname: str | None
    connect_timeout_s: float
    max_frame_bytes: int

    async def connect(self, wire: FramedTransport) -> None:
        """Open the socket for `wire`. OSError, ssl.SSLError or TimeoutError when it cannot be."""
        loop = asyncio.get_running_loop()
        hostname = self.server_hostname if self.ssl_context else None
        async with asyncio.timeout(self.connect_timeout_s):
            await loop.create_connection(
                lambda: wire, self.host, self.port, ssl=self.ssl_context, server_hostname=hostname
            )


class BrokerConnection:
    """A connection to the broker, opened at the first `send`."""

    __slots__ = (
        "_bound",
        "_connecting",
        "_counters",
        "_dial",
        "_held_by",
        "_is_clients",
        "_on_lost",
        "_sequence",
        "_wire",
        "authenticated",
        "closed",
        "expected",
        "is_taking",
        "last_unanswerable",
        "loss",
        "on_drained",
        "on_idle_closed",
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
    ) -> None:
        """`is_clients`: a large answer waits where there is no room for it; Forebay's own never do."""
        self._dial = dial
        self._is_clients = is_clients
        self._bound = bound
        self._counters = counters
        self._on_lost = on_lost
        self._wire: FramedTransport | None = None
        self.pipeline: Pipeline | None = None
        """What is unanswered beside, behind all that is `expected`."""
        self._connecting: asyncio.Task[None] | None = None
        self.expected: deque[Expected] = deque()
        """Correlation id, number, `on_answer`, `arrived` and `on_begun` of what the broker owes an answer to."""
        self.loss = ""
        """Why the link is over; empty where it was closed from here."""
        self._sequence = 0
        self.last_unanswerable = 0
        """Number of the last request without an answer, until one behind it is answered."""
        self.authenticated = False
        self.share_session = False
        self.closed = False
        self.is_taking = False
        """A request passes, and has not passed whole: nothing else may be sent."""
        self.reopened = 0
        self.on_drained: Callable[[], None] | None = None
        self.on_idle_closed: Callable[[], bool] | None = None
        """The broker has closed it with nothing unanswered: True where the link is not wanted any more."""
        self._held_by: object | None = None

    @property
    def unanswered(self) -> int:
        """Requests that the broker has not answered."""
        return len(self.expected) + (len(self.pipeline) if self.pipeline is not None else 0)

    @property
    def wire(self) -> FramedTransport:
        """The socket of now: opened if there is none."""
        if self._wire is None:
            self._wire = FramedTransport(
                self._dial.max_frame_bytes,
                self._on_frame,
                self._on_closed,
                self._on_bad,
                eager_bytes=BROKER_EAGER_BYTES,
            )
            if self._is_clients:
                self._wire.bound = self._bound
            self._wire.on_drained = self.on_drained
            self._wire.on_large, self._wire.on_passed = self._on_large, self._on_passed
            if self.pipeline is not None:
                self.carry(self.pipeline)
            if self._held_by is not None:
                self._wire.hold_reading(self._held_by)
            self._connecting = asyncio.get_running_loop().create_task(self._connect(self._wire))
        return self._wire

    def send(
        self,
        frame: Sendable,
        correlation_id: int,
        on_answer: Answer | None,
        on_sent: Sent | None = None,
        arrived: Traffic | None = None,
        on_begun: Begin | None = None,
    ) -> bool:
        """Forward one request frame; `on_answer` None where none will come (acks=0). `arrived` counts the answer.
        `on_begun` is asked with what there is of a large one, its size and its wire: where it lets it pass, `on_answer`
        runs only if the link is lost. True where something of what was sent has yet to leave.
        """
        if self.closed:
            if on_answer:
                on_answer(None)
            if on_sent:
                on_sent(False)
            return False
        if self.is_taking:
            raise AssertionError("a request goes to the broker within another")
        if self.pipeline is not None:
            self.pipeline.materialize()
        self._sequence += 1
        if on_answer is None:
            self.last_unanswerable = self._sequence
        else:
            self.expected.append((correlation_id, self._sequence, on_answer, arrived, on_begun))
        try:
            return (self._wire or self.wire).send_piece(frame, len(frame), on_sent) is not None
        except Exception as error:  # nobody knows how much of it has left
            self._lose(f"a request cannot be sent: {error!r}")
            raise

    # -- what flies ----------------------------------------------------------------------------------------

    def carry(self, pipeline: Pipeline) -> None:
        """From now on an answer that nothing is `expected` before may be one of these."""
        self.pipeline = pipeline
        if self._wire is not None:
            pipeline.wire, self._wire.shortcut = self._wire, pipeline.complete

    def send_rest(self, rest: bytes) -> bool:
        """The kernel did not take this of what was written past `send`. True where something of it has yet to leave."""
        return self._wire is not None and self._wire.send_piece(rest, len(rest)) is not None

    def expect(self, correlation_id: int, on_answer: Answer) -> None:
        """What flew is to be answered like all else."""
        self._sequence += 1
        self.expected.append((correlation_id, self._sequence, on_answer, None, None))

    # -- the socket's --------------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Whether there is a socket, or one is being opened."""
        return self._wire is not None

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the broker has not taken."""
        return self._wire.unsent_bytes if self._wire is not None else 0

    def hold_reading(self, why: object) -> None:
        """The client does not drain: read nothing more for it."""
        self._held_by = why
        if self._wire is not None:
            self._wire.hold_reading(why)

    def release_reading(self, why: object) -> None:
        """The client drains again."""
        self._held_by = None
        if self._wire is not None:
            self._wire.release_reading(why)

    async def call(self, frame: Sendable, correlation_id: int) -> Frame:
        """Send one of Forebay's own requests and wait for its answer. ConnectionError if the link is lost
        first.
        """
        answer: asyncio.Future[Frame | None] = asyncio.get_running_loop().create_future()
        self.send(frame, correlation_id, lambda f: None if answer.done() else answer.set_result(f))
        got = await answer
        if got is None:
            raise ConnectionError(self.loss or "the link was closed")
        return got

    async def _connect(self, wire: FramedTransport) -> None:
        try:
            await self._dial.connect(wire)
        except (OSError, TimeoutError) as error:
            if self._wire is wire:
                self._wire = None
                self._counters.upstream_connect_errors += 1
                address = f"{self._dial.host}:{self._dial.port}"
                self._lose(f"cannot reach the broker at {address}: {error or type(error).__name__}")

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
        except Exception:  # its place among the answers would stay empty
            self._counters.internal_errors += 1
            log.exception("an answer of the broker's could not be handled")
            self._lose("an answer could not be handled")

    def _on_large(self, begun: bytes, frame_bytes: int) -> SpliceTransfer | None:
        """A large answer has begun. One that is not the right one is found out when it has arrived."""
        wire = self._wire
        if wire is None or not self.expected or len(begun) < RESPONSE_TAGS_START:
            return None
        expected_id, _, _, _, on_begun = self.expected[0]
        if on_begun is None or peek_correlation_id(begun) != expected_id:
            return None
        return on_begun(begun, frame_bytes, wire)

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
        wire, self._wire = self._wire, None
        if wire is not None:
            self._bound.forget(wire)
        if self.closed:
            return
        if self.pipeline is not None:
            self.pipeline.materialize()
        is_missed = self.expected or self.last_unanswerable or self.is_taking or self.share_session
        if not is_missed and self.on_idle_closed is not None and self.on_idle_closed():
            return
        if is_missed or self.authenticated:
            self._lose("the broker closed the connection" + (f": {exc}" if exc else ""))
        else:
            self.reopened += 1
            self._counters.upstream_reopened += 1

    def _lose(self, reason: str) -> None:
        """The link is over: whoever waits on it learns so, once."""
        if self.closed:
            return
        self.loss = reason
        self._shut(abort=True)
        self._on_lost(reason)

    def close(self) -> None:
        """End the link; what was sent still leaves, answers are no longer wanted."""
        if not self.closed:
            self._shut(abort=False)

    def _shut(self, abort: bool) -> None:
        if self.pipeline is not None:
            self.pipeline.materialize()
        self.closed = True
        wire, self._wire = self._wire, None
        if wire is not None:
            self._bound.forget(wire)
            if abort:
                wire.abort()
            else:
                wire.close_when_sent()
        waiting, self.expected = self.expected, deque()
        for _, _, on_answer, _, _ in waiting:
            on_answer(None)
