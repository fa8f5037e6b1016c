"""Pipeline of single Produces: two calls of C carry one to the broker and its response back.

Owns the requests in flight on this path, per connection, from sending until the response. Must not
know how a Produce waits, is refused, is cut or is charged to a quota. Any event other than the next
response turns the requests in flight into `InFlightProduce` (`materialize`). Invariants:
* it judges nothing: scheduler, connection and partitions decide, and change their own state.
* if `try_forward` or `complete` returns False, nothing has changed.
* requests in flight are behind all others of their connection; only another may follow them.
* a request has the same effects as without a pipeline.
* an isolated request holds a slot; its queue and the health check know it whenever they look.

Why: docs/decisions/0025.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from isolation.tickets import Waits
from protocol import api
from protocol.errors import BadFrame
from protocol.produce_rows import ROUTE_START, keep_rows, make_head, make_row
from proxy.partitions.forwarded import forward_batches
from proxy.produce._pipeline import ffi, lib
from proxy.produce.in_flight import ACKS_ALL, NOT_BEGUN, InFlightProduce
from proxy.produce.routes import Route
from proxy.scheduling.request_scheduler import LANDED, LANDED_FOR_WAITING, LIFTED_FIRST

if TYPE_CHECKING:
    from proxy.net.framed_transport import FramedTransport
    from proxy.partitions.forwarded import ForwardedBatches
    from proxy.produce.services import ProduceLink

forward_request, complete_request, push = lib.fl_forward, lib.fl_complete, lib.fl_push
NOT_FORWARDED, OTHER_ROUTE, RING, HEAD_WORDS = (
    lib.FL_NOT_FORWARDED,
    lib.FL_OTHER_ROUTE,
    lib.FL_RING,
    lib.FL_HEAD_WORDS,
)
CORRELATION_IDS = slice(8, 12), slice(4, 8)
"""Position of the correlation id in a request and in a response."""
ALONE = 2
"""Result of `ClientConnection.plan_pipelined`."""


class InFlight(NamedTuple):
    """A request that the broker has; it arrived at `since_s` (seconds). `forwarded`: its batch, if that
    may be stored.
    """

    frame: bytes
    route: Route
    since_s: float
    forwarded: ForwardedBatches | None


class Pipeline:
    """Requests in flight of one client. `start_pipeline` creates it with the client's first Produce
    of one partition: most connections need none.
    """

    __slots__ = (
        "_broker",
        "_clears",
        "_in_flight",
        "_is_alone",
        "_link",
        "_native",
        "_route",
        "_said",
        "_scheduler",
        "_started_at",
        "_stores",
        "_unpushed",
        "framed",
    )

    def __init__(self, link: ProduceLink) -> None:
        self._link, self._broker, self._scheduler = link, link.broker, link.broker.scheduler
        self._stores = link.stores
        self._native = ffi.new("fl_link *")
        self._native.counts = link.broker.pipeline_counts.native
        self._said = [memoryview(ffi.buffer(self._native.said[i])).cast("q") for i in range(RING)]
        self._in_flight: deque[InFlight] = deque()
        self._started_at = NOT_BEGUN  # when the broker began to work on the oldest request
        self._is_alone = False  # since it was last empty, only this pipeline used the connection
        self._route: Route | None = None
        self._clears = -1
        self._unpushed: FramedTransport | None = None  # its kernel may hold bytes back
        self.framed: FramedTransport = link.upstream.framed
        """The broker connection's framed transport."""

    def __len__(self) -> int:
        return len(self._in_flight)

    # -- requests ----------------------------------------------------------------------------------

    def try_forward(self, frame: bytes, has_more: bool) -> bool:
        """Forward a request that has arrived, if it is a single Produce that nothing is against.
        Return False if the caller has to handle it. `has_more`: another one follows at once, or
        `flush`, so that the kernel may send both together.
        """
        link, in_flight, fd, size_bytes = (
            self._link,
            self._in_flight,
            self.framed.free_fd,
            len(frame),
        )
        if fd < 0 or type(frame) is not bytes or not (self._is_alone or self._may_follow()):
            return False
        native, route, now, lifted = self._native, self._route, self._broker.now(), 0
        if route is None or self._clears != self._broker.routes.clears:
            native.route, route = ffi.NULL, None
        elif route.queue is not None:
            lifted = self._scheduler.lift(route.queue, link, route.waits, now)
            if not lifted:
                return False
        # only now: the scheduler may have materialized what is in flight
        is_charged = link.begin_pipelined(size_bytes)
        code = (
            forward_request(native, frame, size_bytes, fd, has_more)
            if is_charged
            else NOT_FORWARDED
        )
        if code <= OTHER_ROUTE:
            if lifted and route is not None and route.queue is not None:
                self._scheduler.queues.drop(route.queue)
            if is_charged:
                link.undo_pipelined(size_bytes)
            return (
                code == OTHER_ROUTE
                and self._switch_route(frame)
                and self.try_forward(frame, has_more)
            )
        assert route is not None
        if has_more:
            self._unpushed = self.framed
        if not in_flight and lifted == LIFTED_FIRST:
            self._started_at = now
        forwarded = None
        if self._stores:
            said = native.said[(native.first + native.count - 1) % RING]
            forwarded = forward_batches(said + HEAD_WORDS, (route.target,))
        in_flight.append(InFlight(frame, route, now, forwarded))
        if link.client_id is not route.client_id:
            link.name_client(route.client_id)
        if native.sent != size_bytes and link.upstream.send_rest(frame[native.sent :]):
            link.hold_for_broker()
        return True

    def flush(self) -> None:
        """Send what the kernel may hold back: no request or response follows at once."""
        framed, self._unpushed = self._unpushed, None
        if framed is not None and framed.plain_fd >= 0:
            push(framed.plain_fd)

    def _may_follow(self) -> bool:
        """True if a request may be forwarded behind all requests that are on the connection now."""
        if self._scheduler.quotas.active:  # set since the pipeline was started: it reserves nothing
            self._is_alone = False
            return False
        plan = self._link.plan_pipelined(len(self._in_flight), RING)
        self._is_alone = plan == ALONE
        return bool(plan)

    def _switch_route(self, frame: bytes) -> bool:
        """Use the route of this request, which is for another partition than the last. Return False
        if its partition is unknown.
        """
        native, targets = self._native, self._broker.routes
        said = self._said[(native.first + native.count) % RING].tolist()
        head, row = make_head(said[:HEAD_WORDS]), make_row(said[HEAD_WORDS:])
        routes = self._broker.pipeline_counts.find_routes(targets.clears)
        raw = frame[ROUTE_START : head.route_end]
        route = routes.get((head.version, raw))
        if route is None or (self._stores and route.target.partition is None):
            try:
                (target,) = targets.find(self._link, frame, head.version, keep_rows((row,)))
                client_id = targets.find_client(frame, frame[ROUTE_START : head.body_start])
            except BadFrame:
                return False
            if targets.peek(frame, head.version, row, self._stores) is None:
                return False  # what it stands for may change with the next request
            held, queue = ffi.from_buffer(raw), None
            if self._scheduler.enabled:
                queue = self._scheduler.queues.find(target.queue)
            waits = Waits.ACKS if head.acks == ACKS_ALL else Waits.NOTHING
            known = ffi.new("fl_route *", (head.version, held, len(raw)))
            route = Route(client_id, target, waits, queue, held, known)
            routes[head.version, raw] = route
        self._route, native.route, self._clears = route, route.native, targets.clears
        return True

    # -- responses ---------------------------------------------------------------------------------

    def complete(self, answer: bytes, has_more: bool) -> bool:
        """Send a broker's response to the client, and store the batch that it acknowledges. Return
        False if the response does not answer the oldest request in flight, or if its turn has
        not come. `has_more`: as for `try_forward`.
        """
        in_flight, link, fd = self._in_flight, self._link, self._link.framed.free_fd
        if (
            not in_flight
            or fd < 0
            or type(answer) is not bytes
            or not (self._is_alone or not (link.upstream.expected or link.replies.places))
        ):
            return False
        frame, route, since_s, forwarded = in_flight[0]
        asked_at, answered_at = CORRELATION_IDS
        if frame[asked_at] != answer[answered_at]:
            return False
        now, queue, native, landed = self._broker.now(), route.queue, self._native, LANDED
        if queue is not None:
            landed = self._scheduler.land(queue, route.target.topic, self._started_at, now)
            if not landed:
                return False
        size_bytes = len(answer)
        complete_request(native, answer, size_bytes, fd, has_more, now - since_s)
        if has_more:
            self._unpushed = link.framed
        in_flight.popleft()
        ordinal = link.last_ordinal - len(in_flight)
        self._started_at = now if in_flight else NOT_BEGUN
        if native.sent != size_bytes:
            link.answer_rest(api.PRODUCE, answer[native.sent :], size_bytes)
        # store before a later Fetch is answered, but after the client has its response
        if forwarded is not None and native.produced_count == 1:
            try:
                produced = native.produced, 1
                self._broker.admit_produced(frame, forwarded, answer, produced, now)
            except Exception:
                self._broker.failed("storing from Produce")
        link.end_pipelined(len(frame), ordinal)
        if queue is not None and landed == LANDED_FOR_WAITING:
            self._scheduler.admit_waiting(queue, now)
        return True

    def begin(self, now: float) -> None:
        """Note that all requests before the pipeline's are answered: the broker works on the oldest
        from now on.
        """
        if self._in_flight:
            self._started_at = now

    # -- leaving the pipeline ----------------------------------------------------------------------

    def materialize(self) -> None:
        """Call before any event other than the next in-order broker response.

        Turns each request in flight into an `InFlightProduce`: in the response order, the
        expected responses and the request scheduler.
        """
        self._is_alone = False
        if not self._in_flight:
            return
        link, scheduler, native = self._link, self._scheduler, self._native
        in_flight = list(self._in_flight)
        # clear in place: `try_forward` may be the caller, and holds this deque
        self._in_flight.clear()
        first, started_at, native.count = native.first, self._started_at, 0
        self._started_at = NOT_BEGUN
        materialized = []
        for number, one in enumerate(in_flight):
            said = self._said[(first + number) % RING].tolist()
            request = InFlightProduce(
                link,
                one.frame,
                len(one.frame),
                make_head(said[:HEAD_WORDS]),
                keep_rows((make_row(said[HEAD_WORDS:]),)),
                (one.route.target,),
                one.since_s,
            )
            ordinal = link.last_ordinal - len(in_flight) + 1 + number
            request.adopt(ordinal, one.forwarded, NOT_BEGUN if number else started_at)
            materialized.append(request)
        if scheduler.enabled:
            scheduler.materialize(link, materialized)


def start_pipeline(link: ProduceLink) -> None:
    """Start a pipeline on a connection that had a Produce of one partition. Both sides must be plain
    sockets, and no quota may be set; otherwise nothing happens.
    """
    upstream = link.upstream
    if link.broker.scheduler.quotas.active or link.framed.plain_fd < 0:
        return
    if upstream.is_connected and upstream.framed.plain_fd >= 0:
        pipeline = Pipeline(link)
        link.carry(pipeline)
        upstream.carry(pipeline)
        link.broker.scheduler.pipelines[pipeline] = None
