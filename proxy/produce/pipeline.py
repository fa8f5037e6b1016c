"""Pipeline of single-batch Produces: two calls of C carry one to the broker and its response back.

Owns the requests in flight on this path, per connection, from sending until the response. Must not
know how a Produce waits, is refused, is cut or is charged to a quota. Any event other than the next
response turns the requests in flight into `SingleBatchProduce` (`materialize`). Invariants:
* if `try_forward` or `complete` returns False, nothing has changed.
* requests in flight are behind all others of their connection; only another may follow them.
* a request has the same effects on every path.
* an isolated request holds a slot; its queue and the health check know it whenever they look.

Why: docs/decisions/0025.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from isolation.tickets import ACKS
from protocol import api
from proxy.accounting.counters import WAIT_BOUNDS_S
from proxy.partitions.producer_state import NO_PRODUCER_ID
from proxy.produce._pipeline import ffi, lib
from proxy.produce.single_batch import (
    CORRELATION_ID,
    NOT_BEGUN,
    NOT_DUPLICATE,
    PRODUCER_ID,
    ROUTE_END,
    ROUTE_START,
    SingleBatchProduce,
    admit_acknowledged,
)

if TYPE_CHECKING:
    from proxy.accounting.counters import Counters
    from proxy.net.client_connection import ClientConnection
    from proxy.net.framed_transport import FramedTransport
    from proxy.partitions.producer_state import DuplicateCheck
    from proxy.produce.single_batch import Route

    InFlight = tuple[bytes, Route, float, DuplicateCheck | None, int, int, int]
    """A request that the broker has: frame, route, arrival time (seconds), duplicate check, then
    epoch, high watermark and generation of its partition at the time. Duplicate check None: the
    batch is not to be stored.
    """

HOPS = ("requests_in", "requests_out", "responses_in", "responses_out")
forward_request, complete_request = lib.fl_forward, lib.fl_complete
SENT, OTHER_ROUTE, NOT_COMPLETED, RING = (
    lib.FL_FORWARDED,
    lib.FL_OTHER_ROUTE,
    lib.FL_NOT_COMPLETED,
    lib.FL_RING,
)


class PipelineCounts:
    """Counts that C keeps of all pipelines of a process, until the scrape reads them."""

    __slots__ = ("native",)

    def __init__(self) -> None:
        self.native = ffi.new("fl_counts *")
        self.native.bounds_s = WAIT_BOUNDS_S

    def settle(self, counters: Counters) -> None:
        """Move the counts into `counters`, and reset them."""
        native = self.native
        for name in HOPS:
            counted, traffic = getattr(native, name), getattr(counters, name)[api.PRODUCE]
            traffic.frames += counted.frames
            traffic.size_bytes += counted.size_bytes
            counted.frames = counted.size_bytes = 0
        counters.produce_s.add(list(native.took), native.took_s[0])
        native.took = [0] * len(native.took)
        native.took_s[0] = 0.0


class Pipeline:
    """Requests in flight of one client. `start_pipeline` creates it with the client's first
    single-batch Produce: most connections need none.
    """

    __slots__ = (
        "_broker",
        "_clears",
        "_headers",
        "_held_limit_bytes",
        "_in_flight",
        "_is_alone",
        "_limit",
        "_link",
        "_native",
        "_route",
        "_scheduler",
        "_started_at",
        "_stores",
        "wire",
    )

    def __init__(self, link: ClientConnection) -> None:
        self._link, self._broker, self._scheduler = link, link.broker, link.broker.scheduler
        limits = link.broker.config.limits
        self._held_limit_bytes = limits.connection_request_memory_bytes
        self._limit = limits.pipelined_requests
        self._stores = link.stores
        self._native = ffi.new("fl_link *")
        self._native.counts = link.broker.pipeline_counts.native
        self._headers = [
            memoryview(ffi.buffer(self._native.said[i])).cast("q") for i in range(RING)
        ]
        self._in_flight: deque[InFlight] = deque()
        self._started_at = NOT_BEGUN  # when the broker began to work on the oldest request
        self._is_alone = False  # since it was last empty, only this pipeline used the connection
        self._route: Route | None = None
        self._clears = -1
        self.wire: FramedTransport = link.upstream.wire
        """The broker connection's framed transport."""

    def __len__(self) -> int:
        return len(self._in_flight)

    # -- requests ----------------------------------------------------------------------------------

    def try_forward(self, frame: bytes) -> bool:
        """Forward a request that has arrived, if it is a single-batch Produce and no check fails.
        Return False if the caller has to handle it.
        """
        link, broker, scheduler = self._link, self._broker, self._scheduler
        native, in_flight, fd, size_bytes = (
            self._native,
            self._in_flight,
            self.wire.free_fd,
            len(frame),
        )
        requests = broker.requests
        if (
            fd < 0
            or link.request_bytes + size_bytes >= self._held_limit_bytes
            or requests.in_flight_bytes + size_bytes >= requests.limit_bytes
            or not (self._is_alone or self._may_follow())
            or type(frame) is not bytes
        ):
            return False
        route, now, queue = self._route, broker.now(), None
        if route is None or self._clears != broker.routes.clears:
            native.route = ffi.NULL
        elif (queue := route.line) is not None and not (
            now < scheduler.next_health_check_at
            and not scheduler.watched
            and not scheduler.is_dispatching
            and (scheduler.due_at <= now + scheduler.release_after_s or route.waits is not ACKS)
            and scheduler.queues.lift(queue, link, now)
        ):
            return False
        code = forward_request(native, frame, size_bytes, fd)
        if code <= OTHER_ROUTE:
            if queue is not None:
                scheduler.queues.drop(queue)
            return code == OTHER_ROUTE and self._switch_route(frame) and self.try_forward(frame)
        assert route is not None
        if not in_flight and link not in scheduler.lines:
            self._started_at = now
        partition = route.partition
        if self._stores and partition is not None:
            leader_state, duplicate_check = partition.leader_state, NOT_DUPLICATE
            if code != SENT and native.producer_id != NO_PRODUCER_ID:
                said = self._headers[(native.first + native.count - 1) % RING].tolist()
                duplicate_check = partition.producers.note(leader_state.epoch, *said[PRODUCER_ID:])
            generation = partition.topic.fidelity.generation
            in_flight.append(
                (
                    frame,
                    route,
                    now,
                    duplicate_check,
                    leader_state.epoch,
                    leader_state.high_watermark,
                    generation,
                )
            )
        else:
            in_flight.append((frame, route, now, None, -1, -1, -1))
        link.client_id = route.client_id
        link.last_ordinal += 1
        link.request_bytes += size_bytes
        requests.in_flight_bytes += size_bytes
        if (
            code != SENT
            and native.sent != size_bytes
            and link.upstream.send_rest(frame[native.sent :])
        ):
            link.hold_for_broker()
        return True

    def _may_follow(self) -> bool:
        """True if a request may be forwarded behind all requests that are on the connection now."""
        link, upstream, line = self._link, self._link.upstream, self._link.replies.line
        if (
            link.replies.control
            or link.refused.entries
            or upstream.last_unanswerable
            or upstream.is_taking
        ):
            return False
        self._is_alone = not (line or upstream.expected) and self._limit > RING + 1
        return len(line) + len(self._in_flight) + 1 < self._limit

    def _switch_route(self, frame: bytes) -> bool:
        """Use the route of this request, which is for another partition than the last. Return False
        if the route is unknown.
        """
        native = self._native
        said = self._headers[(native.first + native.count) % RING]
        route = self._broker.routes.known.get((said[0], frame[ROUTE_START : said[ROUTE_END]]))
        if route is None or (self._stores and route.partition is None):
            return False
        self._route, native.route, self._clears = route, route.native, self._broker.routes.clears
        return True

    # -- responses ---------------------------------------------------------------------------------

    def complete(self, answer: bytes) -> bool:
        """Send a broker's response to the client, and store the batch that it acknowledges. Return
        False if the response does not answer the oldest request in flight, or if its turn has
        not come.
        """
        in_flight, link, scheduler = self._in_flight, self._link, self._scheduler
        if not (
            in_flight and (self._is_alone or not (link.upstream.expected or link.replies.line))
        ):
            return False
        broker, fd, size_bytes = self._broker, link.wire.free_fd, len(answer)
        if fd < 0 or type(answer) is not bytes:
            return False
        now = broker.now()
        frame, route, since_s, duplicate_check, epoch, high_watermark, generation = in_flight[0]
        queue, topic, started_at = route.line, route.topic, self._started_at
        if queue is not None and (
            scheduler.watched
            or topic not in scheduler.last_timely
            or started_at < 0
            or now - started_at >= scheduler.hang_after_s
            or queue.waiting
            or now >= queue.ages_at_s
        ):
            return False
        native = self._native
        said = self._headers[native.first]
        base_offset = complete_request(native, answer, size_bytes, fd, now - since_s)
        if base_offset == NOT_COMPLETED:
            return False
        in_flight.popleft()
        ordinal = link.last_ordinal - len(in_flight)
        self._started_at = now if in_flight else NOT_BEGUN
        if queue is not None:
            scheduler.queues.land(queue, now, now - started_at)
            if scheduler.last_timely[topic] < started_at:
                scheduler.last_timely[topic] = started_at
        if base_offset < 0 and native.sent != size_bytes:
            link.answer_rest(api.PRODUCE, answer[native.sent :], size_bytes)
            base_offset = native.base_offset
        requests = broker.requests
        link.request_bytes -= len(frame)
        requests.in_flight_bytes -= len(frame)
        if requests.paused:
            requests.sub(0)
        if link.holds_client:
            link.release_client()
        # store before a later Fetch is answered, but after the client has its response
        if duplicate_check is not None:
            try:
                admit_acknowledged(
                    broker,
                    route,
                    said.tolist(),
                    frame,
                    duplicate_check,
                    epoch,
                    high_watermark,
                    generation,
                    base_offset,
                    answer,
                    now,
                )
            except Exception:
                broker.failed("storing from Produce")
        link.answered_ordinal = ordinal
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

        Turns each request in flight into a `SingleBatchProduce`: in the response order, the
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
        for number, (
            frame,
            route,
            since_s,
            duplicate_check,
            epoch,
            high_watermark,
            generation,
        ) in enumerate(in_flight):
            scanned = self._headers[(first + number) % RING].tolist()
            request = SingleBatchProduce(link, frame, len(frame), route, scanned, since_s)
            request.duplicate_check, request.epoch, request.high_watermark = (
                duplicate_check,
                epoch,
                high_watermark,
            )
            request.generation = generation
            request.ordinal = link.last_ordinal - len(in_flight) + 1 + number
            link.replies.line.append(request)
            link.upstream.expect(scanned[CORRELATION_ID], request.on_answer)
            materialized.append(request)
        materialized[0].started_at = started_at
        if scheduler.enabled:
            scheduler.materialize(link, materialized)


def start_pipeline(link: ClientConnection) -> None:
    """Start a pipeline on a connection that had a single-batch Produce. Both sides must be plain
    sockets, and no quota may be set; otherwise nothing happens.
    """
    upstream = link.upstream
    if link.broker.scheduler.quotas.active or link.wire.plain_fd < 0:
        return
    if upstream.is_connected and upstream.wire.plain_fd >= 0:
        link.pipeline = Pipeline(link)
        link.wire.shortcut = link.pipeline.try_forward
        upstream.carry(link.pipeline)
        link.broker.scheduler.pipelines[link.pipeline] = None
