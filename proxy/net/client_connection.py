"""Client connection: frames in, responses out in order, its own connection to the broker behind it. [socket]

Owns the framed transport, the response order, the broker connection and the client's rights to topics. Must
not know a handler's work on a request. Invariants:
* the end of either side ends both, once, with one log line if somebody is to blame.
* the broker is not read while this client does not read. The client is not read while the broker does not, at
  the connection's own limits, and at the process's byte budget.
* a client that has finished sending (EOF) still gets the responses to its requests.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias

from isolation.refusals import RefusedSequences
from proxy.net.broker_connection import BrokerConnection
from proxy.net.catch_up_connection import CatchUpConnection
from proxy.net.framed_transport import FramedTransport, Hooks
from proxy.net.response_order import Reply, ResponseOrder
from proxy.net.send_buffer import PIECE_BYTES
from proxy.net.services import Kept, Services
from proxy.net.splice import SpliceTransfer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from protocol.errors import BadFrame
    from protocol.header import RequestHeader
    from protocol.primitives import Frame
    from proxy.config.model import Limits
    from proxy.net.broker_connection import Answer, Begin, Sent
    from proxy.net.listener import Listener
    from proxy.net.response_order import Place
    from proxy.net.send_buffer import Sendable
    from proxy.net.services import PipelinedRequests, Signer

log = logging.getLogger("forebay.client")

BOUNDS = frozenset(
    {
        *("request_memory", "response_memory", "too_many_connections"),
        *("denied_address", "connections_per_address", "connection_rate"),
    }
)
"""Causes of an end that are no connection errors: the client was in the way of others at a limit."""
UNSIGNED_FRAME_BYTES = 512 << 10
"""Largest frame that a broker takes before authentication (sasl.server.max.receive.size)."""


class ClientConnection(Generic[Services, Kept]):
    """A client and its connections to the broker. `broker`: what its handlers use of the process;
    `handlers`: what handles its requests.
    """

    __slots__ = (
        "_counters",
        "_is_broker_paused",
        "_is_client_paused",
        "_limits",
        "_open",
        "_response_bytes",
        "answered_ordinal",
        "broker",
        "catch_up",
        "client_id",
        "finishing",
        "framed",
        "group",
        "handlers",
        "holds_client",
        "is_signed_in",
        "is_unread",
        "last_ordinal",
        "listener",
        "number",
        "pipeline",
        "preferred_replicas",
        "principal",
        "refused",
        "replies",
        "request_bytes",
        "sasl_rounds",
        "seen_at",
        "seen_frames",
        "sent_count",
        "stores",
        "upstream",
        "use",
    )

    replies: ResponseOrder

    def __init__(
        self, listener: Listener[Services, Kept], number: int, principal: str | None = None
    ) -> None:
        """`number` counts the listener's connections. `listener.dispatch` makes the objects of handlers.
        `principal`: the user as whom Forebay signs in to the broker; None: the client itself does, or nobody.
        """
        self.principal = principal
        self.handlers = listener.dispatch(self)
        self.listener = listener
        self.broker = listener.broker
        self.is_unread = listener.is_bypassed  # its Produces and Fetches are relayed unread
        self.stores = self.broker.stores_on(listener.config) and not self.is_unread
        self.number = number
        self.use = self.broker.modes.find(listener.name, number)
        """What memory does for it."""
        self.client_id: str | None = None
        self.group: str | None = None  # the consumer group, where it is known
        self._limits = self.broker.config.limits
        self._counters = self.broker.counters
        self._open = self.finishing = False
        self.holds_client = False  # the client is not read: the connection is at its own limits
        self._is_client_paused = self._is_broker_paused = (
            False  # since the other side does not read
        )
        self.request_bytes = self._response_bytes = (
            0  # charged to the byte budgets for this connection
        )
        self.is_signed_in = principal is not None  # else: the broker has accepted its SASL exchange
        self.sasl_rounds = 1  # SASL responses without error that are missing until then
        hooks = Hooks(
            self.handlers.receive,
            self._on_closed,
            self.on_bad,
            self._on_eof,
            self._on_made,
            partial(listener.tend, self),
            self._on_drained,
            self.broker.requests,
        )
        self.framed = FramedTransport(self._limits.max_request_frame_bytes, hooks)
        if listener.wants_sasl:
            self.limit_unsigned()
        self.replies = ResponseOrder(self.framed.send, self._on_progress)
        self.upstream = BrokerConnection(
            listener.dial,
            self.broker.responses,
            self._counters,
            self._on_upstream_lost,
            is_clients=True,
            on_drained=self._on_upstream_drained,
            on_idle_closed=self._on_idle_closed,
            signer=self._sign(),
        )
        self.seen_frames, self.seen_at = (
            0,
            self.broker.now(),
        )  # at the last check that found it not idle
        self.pipeline: PipelinedRequests | None = None  # until there can be Produces in it
        self.catch_up = CatchUpConnection(
            self.broker, listener.catch_up_dial, listener.config.use_delegation_tokens
        )
        if principal is not None:
            self.catch_up.sign_in_as(principal)
        self.refused = RefusedSequences()
        self.last_ordinal = self.answered_ordinal = 0
        self.sent_count = 0  # grows with each forwarded request and each response
        self.preferred_replicas = False
        self.handlers.open()

    def _sign(self) -> Signer | None:
        """Who signs in on the broker connection; None: nobody."""
        if self.principal is None:
            return None
        return self.broker.sign_ins.open(self.principal, self.handlers.begin_session)

    def _on_made(self) -> None:
        self._open = True
        self.set_limits(self.broker.config.limits)  # they may have changed since it was accepted
        self.adopt_mode()
        self._counters.clients.open()
        self.listener.opened(self)

    def set_limits(self, limits: Limits) -> None:
        """Take other limits. What is held beyond them stays; the client is read again below them. A frame that
        has begun may still be completed.
        """
        if limits is self._limits:
            return
        self._materialize()  # the next request asks whether it may be pipelined
        self._limits = limits
        self.framed.framer.limit_frames(limits.max_request_frame_bytes)
        if self.listener.wants_sasl:
            self.limit_unsigned()
        self.handlers.set_limits(limits)
        if self.holds_client:
            self.release_client()

    def adopt_mode(self) -> None:
        """Judge the requests that arrive from now on by the cache modes in force."""
        self.use = self.broker.modes.find(self.listener.name, self.number)

    def count_request(self, api_key: int, size_bytes: int) -> None:
        """Charge a whole request until `request_done`; pauses the client at the budget's limit."""
        traffic = self._counters.traffic.requests_in[api_key]
        traffic.frames += 1
        traffic.size_bytes += size_bytes
        self.request_bytes += size_bytes
        requests = self.broker.requests
        requests.in_flight_bytes += size_bytes
        if requests.in_flight_bytes >= requests.limit_bytes:
            requests.pause(self.framed)

    def hold_at_bounds(self) -> None:
        """Call after each request: pauses the client at the connection's own limits."""
        replies = self.replies
        if replies.control:
            self._complete_delayed()
        over = self.request_bytes >= self._limits.connection_request_memory_bytes
        if over or len(replies.places) >= self._limits.pipelined_requests:
            self.holds_client = True
            self.framed.hold_reading(replies)

    def limit_unsigned(self) -> None:
        """Call if the broker wants SASL: no honest client sends larger frames before it has authenticated."""
        if not self.is_signed_in:
            framer = self.framed.framer
            framer.limit_frames(min(framer.max_frame_bytes, UNSIGNED_FRAME_BYTES))

    def begin_sasl(self, rounds: int) -> None:
        """Note that the client authenticates: it has done so after `rounds` responses without error."""
        self.sasl_rounds = rounds

    def saw_preferred_replica(self) -> None:
        """Note that the broker names preferred replicas to this client."""
        self.preferred_replicas = True

    def saw_accepted(self) -> None:
        """Count a SASL response without error; after `sasl_rounds` of them the client has authenticated."""
        self.sasl_rounds -= 1
        if self.sasl_rounds <= 0:
            self.is_signed_in = True
            self.listener.saw_sasl()
            self.framed.framer.limit_frames(self._limits.max_request_frame_bytes)

    def _materialize(self) -> None:
        """Call before any event but the pipeline's next response: makes normal requests of it."""
        if self.pipeline is not None:
            self.pipeline.materialize()

    def plan_pipelined(self, in_flight: int, ring: int) -> int:
        """Whether one more Produce may be pipelined behind all requests of the connection, of which
        `in_flight` are in the pipeline, at most `ring`. 0: no. 1: yes. 2: yes, and so may all that
        follow until another request arrives.
        """
        upstream, line = self.upstream, self.replies.places
        if (
            self.replies.control
            or self.refused.entries
            or upstream.last_unanswerable
            or upstream.is_taking
        ):
            return 0
        limit = self._limits.pipelined_requests
        if len(line) + in_flight + 1 >= limit:
            return 0
        return 1 if line or upstream.expected or limit <= ring + 1 else 2

    def begin_pipelined(self, size_bytes: int) -> bool:
        """Charge a request that is about to be pipelined. False, and no charge, at the bounds."""
        requests = self.broker.requests
        if (
            self.request_bytes + size_bytes >= self._limits.connection_request_memory_bytes
            or requests.in_flight_bytes + size_bytes >= requests.limit_bytes
        ):
            return False
        self.last_ordinal += 1
        self.request_bytes += size_bytes
        requests.in_flight_bytes += size_bytes
        return True

    def undo_pipelined(self, size_bytes: int) -> None:
        """Take back `begin_pipelined`: the request was not sent."""
        self.last_ordinal -= 1
        self.request_bytes -= size_bytes
        self.broker.requests.in_flight_bytes -= size_bytes

    def name_client(self, client_id: str | None) -> None:
        """Note the client id of a request."""
        has_changed, self.client_id = client_id != self.client_id, client_id
        if has_changed:
            self.broker.client_groups.name(self, client_id)

    def note_answered(self, ordinal: int) -> None:
        """Note that Produce number `ordinal` of the connection is answered: a Fetch behind it may be
        answered empty.
        """
        self.answered_ordinal = max(self.answered_ordinal, ordinal)

    def carry(self, pipeline: PipelinedRequests) -> None:
        """Attach the pipeline of Produces, whose `try_forward` sees each request frame first."""
        self.pipeline = pipeline
        self.framed.intercept(pipeline.try_forward, pipeline.flush)

    def end_pipelined(self, size_bytes: int, ordinal: int) -> None:
        """Release a pipelined request. It is answered, and its batch is stored: a Fetch behind it may
        be answered empty.
        """
        requests = self.broker.requests
        self.request_bytes -= size_bytes
        requests.in_flight_bytes -= size_bytes
        if requests.paused:
            requests.sub(0)
        if self.holds_client:
            self.release_client()
        self.answered_ordinal = ordinal

    def on_bad(self, error: BadFrame) -> None:
        """Close a client that has sent an unreadable frame."""
        self._counters.faults.count_bad_frame()
        self.close(
            "bad_frame", "closing a client that sent a frame that cannot be read", f"{error}"
        )

    def _on_eof(self) -> bool:
        self._materialize()
        if self.replies.oldest is None:
            self.close("client_closed")
            return False
        self.finishing = True
        self.handlers.complete_delayed()
        return True

    def _on_closed(self, exc: Exception | None) -> None:
        self.close("client_closed" if exc is None else "client_error")

    @property
    def is_busy(self) -> bool:
        """Whether a response is due, bytes wait to leave, or a frame has begun."""
        framed = self.framed
        is_under_way = self.replies.places or self.upstream.unanswered or framed.unsent_bytes
        return bool(is_under_way or framed.pending_frame_bytes)

    def look_idle(self, now: float) -> float:
        """Seconds for which calls of this method have found the client idle."""
        if self.seen_frames != self.framed.frames or self.is_busy:
            self.seen_frames, self.seen_at = self.framed.frames, now
        return now - self.seen_at

    def _on_idle_closed(self) -> bool:
        """Close an idle client whose broker has closed, as without Forebay. False if not idle."""
        if self.seen_frames != self.framed.frames or self.is_busy or not self.handlers.is_idle:
            return False
        self.close("idle")
        return True

    def _on_upstream_lost(self, reason: str) -> None:
        self.close(
            "upstream_lost", "closing a client whose connection to the broker was lost", reason
        )

    def forward(
        self,
        head: RequestHeader,
        frame: Frame,
        on_answer: Answer | None,
        on_begun: Begin | None = None,
    ) -> None:
        """Send a request to the broker unchanged. `on_answer` None: no response will come."""
        self.send(head.api_key, head.correlation_id, frame, on_answer, on_begun)

    def send(
        self,
        api_key: int,
        correlation_id: int,
        frame: Frame,
        on_answer: Callable[[Frame | None], None] | None,
        on_begun: Begin | None = None,
    ) -> None:
        """`forward` without a decoded header. `on_begun`: see `BrokerConnection.send`."""
        counts, size_bytes = self._counters.traffic, len(frame)
        traffic = counts.requests_out[api_key]
        traffic.frames += 1
        traffic.size_bytes += size_bytes
        if on_answer is None:
            waits = self.upstream.send(
                frame, correlation_id, None, lambda _sent: self.request_done(size_bytes)
            )
        else:
            arrived = counts.responses_in[api_key]
            waits = self.upstream.send(
                frame, correlation_id, on_answer, arrived=arrived, on_begun=on_begun
            )
        self.sent_count += 1
        if waits:
            self.hold_for_broker()

    def hold_for_broker(self) -> None:
        """Pause the client while `connectionRequestMemory` or more waits to leave to the broker."""
        if self.upstream.unsent_bytes >= self._limits.connection_request_memory_bytes:
            self._is_client_paused = True
            self.framed.hold_reading(self.upstream)

    def answer(
        self,
        head: RequestHeader,
        reply: Reply,
        buffers: Sequence[Sendable],
        request_bytes: int,
        on_sent: Callable[[bool], None] | None = None,
        held_bytes: int = 0,
    ) -> None:
        """Complete `reply`, release `request_bytes`, charge `held_bytes` of heap until all has left."""
        size_bytes = sum(map(len, buffers))
        self.request_done(request_bytes)
        if held_bytes and self._open:  # else the response is never sent
            self.hold(reply, held_bytes)
        self.sent_count += 1
        reply.complete(buffers, partial(self._sent, head.api_key, reply, size_bytes, on_sent))

    def answer_whole(
        self,
        api_key: int,
        place: Place,
        frame: Frame,
        size_bytes: int,
        request_bytes: int,
        on_sent: Sent | None = None,
    ) -> None:
        """`answer` for one frame on the heap, not of a control request; charged only if it has to wait."""
        replies = self.replies
        line = replies.places
        self.sent_count += 1
        if not line or line[0] is not place or size_bytes > PIECE_BYTES or not self._open:
            self.request_done(request_bytes)
            reply = replies.stand_in(place)
            if self._open:
                self.hold(reply, size_bytes)
            reply.complete((frame,), partial(self._sent, api_key, reply, size_bytes, on_sent))
            return
        self.request_bytes -= request_bytes
        requests = self.broker.requests
        requests.in_flight_bytes -= request_bytes
        if requests.paused:
            requests.sub(0)
        line.popleft()
        outgoing = self.framed.send_piece(frame, size_bytes)
        if outgoing is None:
            traffic = self._counters.traffic.responses_out[api_key]
            traffic.frames += 1
            traffic.size_bytes += size_bytes
            if on_sent is not None:
                on_sent(True)
            if self.finishing or self._is_broker_paused:
                self._on_drained()
        else:
            reply = replies.stand_in(place)
            self.hold(reply, size_bytes)
            outgoing.on_sent = partial(self._sent, api_key, reply, size_bytes, on_sent)
        if line and isinstance(line[0], Reply):  # else it is a request that was not answered
            replies.release()
        if outgoing is not None or self.holds_client or replies.control:
            self._on_progress()

    def left_directly(
        self, api_key: int, place: Place | None, size_bytes: int, request_bytes: int
    ) -> None:
        """Note that a whole response was written to the socket past the transport. `place` is the oldest; None
        if the response order is empty. `release_next` must follow if others wait, or the client finishes or is
        held.
        """
        self.sent_count += 1
        self.request_bytes -= request_bytes
        requests = self.broker.requests
        requests.in_flight_bytes -= request_bytes
        if requests.paused:
            requests.sub(0)
        if place is not None:
            self.replies.places.popleft()
        traffic = self._counters.traffic.responses_out[api_key]
        traffic.frames += 1
        traffic.size_bytes += size_bytes

    def release_next(self) -> None:
        """Go on after `left_directly`: deliver completed responses, resume reading, or close."""
        if self.finishing or self._is_broker_paused:
            self._on_drained()
        if self.replies.places:
            self.replies.release()
        if self.holds_client or self.replies.control:
            self._on_progress()

    def may_begin_pieces(self, place: Place) -> bool:
        """Return True if the response of `place` could leave at once: it is the oldest, and nothing
        waits to be sent.
        """
        return self.replies.oldest is place and self.framed.is_idle

    def begin_pieces(
        self,
        head: RequestHeader,
        reply: Reply,
        request_bytes: int,
        on_sent: Sent | None,
        begun: bytes,
        frame_bytes: int,
        source: FramedTransport,
        on_end: Callable[[], None],
    ) -> SpliceTransfer:
        """Return the splice of a large response with the first bytes `begun`; `may_begin_pieces` is
        True. `on_end` runs with the last bytes.
        """

        def ended(last: bytes) -> None:
            on_end()
            traffic = self._counters.traffic.responses_out[head.api_key]
            traffic.add(0, frame_bytes - len(last))
            self.answer(head, reply, (last,), request_bytes, on_sent, held_bytes=len(last))

        self.sent_count += 1
        return SpliceTransfer(
            source, self.framed, self.broker.responses, begun, frame_bytes, 1, ended
        )

    def answer_rest(self, api_key: int, rest: bytes, size_bytes: int) -> None:
        """Send `rest` of a response of `size_bytes` that was written directly and not taken whole."""
        reply = Reply(self.replies, False)
        outgoing = self.framed.send_piece(rest, len(rest))
        if outgoing is None:
            self._sent(api_key, reply, size_bytes, None, True)
            return
        self.hold(reply, size_bytes)
        outgoing.on_sent = partial(self._sent, api_key, reply, size_bytes, None)
        self._on_progress()

    def _sent(
        self, api_key: int, reply: Reply, size_bytes: int, on_sent: Sent | None, delivered: bool
    ) -> None:
        """Release the charge of a response that has left (`delivered`), or never will."""
        if reply.held_bytes:
            self._response_bytes -= reply.held_bytes
            self.broker.responses.sub(reply.held_bytes)
            if not self._response_bytes and self.upstream.is_connected:
                self.broker.responses.let_one(self.upstream.framed)
        if delivered:
            traffic = self._counters.traffic.responses_out[api_key]
            traffic.frames += 1
            traffic.size_bytes += size_bytes
        if on_sent:
            on_sent(delivered)

    def hold(self, reply: Reply, held_bytes: int) -> None:
        """Charge `held_bytes` more for `reply`: before it is completed, or after its arena views were copied."""
        reply.held_bytes += held_bytes
        self._response_bytes += held_bytes
        if self.upstream.is_connected:
            self.broker.responses.add(held_bytes, self.upstream.framed)
        else:
            self.broker.responses.in_flight_bytes += held_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes charged for responses that have not left."""
        return self._response_bytes

    @property
    def session_owner(self) -> object:
        """Owner of the client's fetch sessions: this connection if it has an identity, else the listener."""
        has_identity = self.principal is not None or self.upstream.authenticated
        return self if has_identity else self.listener

    def request_done(self, size_bytes: int) -> None:
        """Release the bytes of a request. No effect after `close`, which releases all."""
        if not self._open:
            return
        self.request_bytes -= size_bytes
        self.broker.requests.sub(size_bytes)
        if self.holds_client:  # a Produce without acks has no response that does this
            self.release_client()

    def release_client(self) -> None:
        """Read the client again if it is below the connection's own limits."""
        under = self.request_bytes < self._limits.connection_request_memory_bytes
        if under and len(self.replies) < self._limits.pipelined_requests:
            self.holds_client = False
            self.framed.release_reading(self.replies)

    def _on_progress(self) -> None:
        if self.replies.control:
            self._complete_delayed()
        over = self._response_bytes >= self._limits.connection_response_memory_bytes
        if self.framed.unsent_bytes >= self._limits.connection_response_memory_bytes:
            over = True
            self.framed.hold_reading(self.catch_up)
        if over and self.framed.unsent_bytes:  # else no `_on_drained` would come to end the pause
            self._is_broker_paused = True
            self.upstream.hold_reading(self)
            self.catch_up.hold_reading(self)
        self.release_client()

    def _complete_delayed(self) -> None:
        """Complete the oldest request, a delayed Fetch, if a control response waits behind it."""
        oldest = self.replies.oldest
        if oldest is not None and not oldest.is_control:
            self.handlers.complete_delayed(oldest)

    def _on_drained(self) -> None:
        if self._is_broker_paused:
            self._is_broker_paused = False
            self.framed.release_reading(self.catch_up)
            self.upstream.release_reading(self)
            self.catch_up.release_reading(self)
        if self.finishing and self.replies.oldest is None:
            self.close("client_closed")

    def _on_upstream_drained(self) -> None:
        if self._is_client_paused:
            self._is_client_paused = False
            self.framed.release_reading(self.upstream)

    def note_group(self, group: str | None) -> None:
        """Note the consumer group that the client reads for; None: none, or several."""
        self.group = group

    @property
    def host(self) -> str:
        """The client's address without its port."""
        return self.framed.peer.rpartition(":")[0]

    @property
    def peer(self) -> str:
        """The client's address, for log lines."""
        return self.framed.peer

    def _fields(self, reason: str) -> dict[str, object]:
        """The fields of a log line about this client."""
        fields: dict[str, object] = {"listener": self.listener.name, "connection": self.number}
        fields |= {"client": self.peer, "clientId": self.client_id}
        return fields | {"reason": reason} if reason else fields

    def finish(self) -> None:
        """Take no more requests, complete delayed Fetches, and close once all is answered."""
        self._materialize()
        self.finishing = True
        self.framed.hold_reading(self)
        self.handlers.complete_delayed()
        if self.replies.oldest is None and not self.framed.unsent_bytes:
            self.close("drained")

    def close_for_room(self) -> None:
        """Close a client that does not read its responses while others need their memory."""
        if self._open:
            held = f"{self.framed.unsent_bytes} bytes"
            self.close(
                "response_memory",
                "closing a client that takes no answers at limits.responseMemory",
                held,
            )

    def close(self, cause: str, blame: str = "", reason: str = "") -> None:
        """End both sides, once. `cause` labels the counter. `blame` is logged, with `reason`, unless it is
        "".
        """
        if not self._open:
            self.upstream.close()
            self.framed.abort()
            return
        self._materialize()
        self._open = False
        self._counters.clients.close(cause, is_error=bool(blame) and cause not in BOUNDS)
        if blame:
            log.warning(blame, extra=self._fields(reason))  # the same text for all: a cause
        self.broker.client_groups.close(self)
        self.handlers.close()
        self.upstream.close()
        self.catch_up.close()
        self.replies.abandon()
        self.broker.requests.forget(self.framed)
        self.broker.requests.sub(self.request_bytes)
        self.request_bytes = 0
        if cause in ("bad_frame", "upstream_lost", "drained", "client_closed", "idle"):
            self.framed.close_when_sent()
        else:
            self.framed.abort()
        self.listener.closed(self)


AnyLink: TypeAlias = "ClientConnection[Any, Any]"
"""A client connection where it is a key, or its own part alone is used."""
