"""Single-batch Produce, on the short path to the broker and back: one topic, partition and batch.

Owns the knowledge of a client's repeated requests (`Route`), and the decision which request takes
this path (`forward_single_batch`). Must not know how a request is refused, cut or charged to a
quota. `proxy.produce.handler` does that: it gets a request unchanged if `forward_single_batch`
returns False. A request that waited for a slot goes there, too, if a check fails by then.
Invariants: until all checks have passed nothing has changed; a request has the same effects on both
paths.

docs/decisions/0025 says why there are two paths, and why a waiting request stays on this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from isolation.classify import queue_of_topic
from isolation.tickets import Waits
from protocol import api, batch, header, ordinary, produce
from protocol.errors import BadFrame, ErrorCode
from protocol.ordinary import find_base_offset
from protocol.produce import ProducedPartition
from proxy.partitions import store
from proxy.partitions.leader_state import NO_OFFSET
from proxy.partitions.producer_state import NO_PRODUCER_ID, DuplicateCheck
from proxy.partitions.store import Forwarded
from proxy.produce._pipeline import ffi
from proxy.produce.handler import ProduceHandling
from proxy.relay import relay_whole
from proxy.replica_fetcher.fetcher import REFRESH_EPOCH_S

if TYPE_CHECKING:
    from isolation.health import Sent
    from isolation.queues import Queue
    from isolation.tickets import State
    from protocol.wire import Frame
    from proxy.broker import Broker
    from proxy.net.client_connection import ClientConnection
    from proxy.partitions.store import Key
    from proxy.partitions.table import Partition
    from proxy.scheduling.queued_request import Entry

ROUTES_LIMIT: Final = 4096
"""Limit of remembered routes, of at most 1 KiB each. At the limit all are forgotten, and learned
again with the next requests.
"""
ROUTE_START: Final = ordinary.ROUTE_START
ACKS_ALL: Final = -1
NO_TIME: Final = -1
CORRELATION_ID: Final = 1
ROUTE_END: Final = 3
START: Final = 4
PRODUCER_ID: Final = 9
"""Indices into the scanned fields: correlation id, end of the route, start of the batch, producer
id. The batch's end follows its start. Producer epoch, sequence and number of records follow the
producer id.
"""
NOT_DUPLICATE = DuplicateCheck.NOT_DUPLICATE
NOT_BEGUN: Final = -1.0
"""`started_at` of a request behind another: the broker does not work on it yet."""


@dataclass(frozen=True, slots=True)
class Route:
    """Meaning of the header bytes from client id to partition, which are the same in repeated
    requests.

    `topic`, `queue`: as the request scheduler knows them. `names`: the part of the bytes that a
    response repeats. `key`: topic and partition as the request names them. `partition` None:
    nothing is stored. `line`: its queue if isolation is enabled, else None. `native`: the same for
    C (fl_route of native/pipeline.h); it points into `bytes`.
    """

    version: int
    client_id: str | None
    topic: str | bytes
    queue: int
    waits: Waits
    names: bytes
    names_bytes: int
    key: Key
    partition: Partition | None
    line: Queue | None
    bytes: Any
    native: Any


class HeaderCache:
    """The known routes of one broker. Whoever forgets a topic or partition must call `clear`."""

    __slots__ = ("_broker", "clears", "known")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.clears = 0
        """Number of calls of `clear`. A route found before the last one may be out of date."""
        self.known: dict[tuple[int, bytes], Route] = {}

    def __len__(self) -> int:
        return len(self.known)

    def clear(self) -> None:
        """Forget all routes: topics or partitions have changed."""
        self.known.clear()
        self.clears += 1

    def learn(
        self, frame: Frame, version: int, names_start: int, end: int, stores: bool
    ) -> Route | None:
        """Return and remember the route of a single-batch frame. Return None if its topic, or a
        partition to be stored, is unknown, or if the frame cannot be decoded.
        """
        start = bytes(frame[ROUTE_START:end])
        route = self._read(frame, start, names_start - ROUTE_START, stores)
        if route is not None:
            if len(self.known) >= ROUTES_LIMIT:
                self.clear()
            self.known[version, start] = route
        return route

    def _read(self, frame: Frame, start: bytes, names_at: int, stores: bool) -> Route | None:
        try:
            head = header.peek_request(frame)
            request = produce.scan_request(frame, head.api_version, head.body_start)
        except BadFrame:
            return None
        (asked,) = request.partitions
        topic = self._broker.topics.find(asked.topic)
        partition = None
        if topic is not None and stores:
            partition = self._broker.partitions.follow(topic, asked.partition)
        if topic is None or (stores and partition is None):
            return None
        waits = Waits.ACKS if request.acks == ACKS_ALL else Waits.NOTHING
        scheduler, names, shown = self._broker.scheduler, start[names_at:], ffi.from_buffer(start)
        queue = queue_of_topic(topic.name, scheduler.data_queues)
        return Route(
            head.api_version,
            head.client_id,
            topic.name,
            queue,
            waits,
            names,
            len(names),
            (asked.topic, asked.partition),
            partition,
            scheduler.queues.find(queue) if scheduler.enabled else None,
            shown,
            ffi.new("fl_route *", (head.api_version, shown, len(start), names_at)),
        )


def forward_single_batch(
    link: ClientConnection, frame: Frame, size_bytes: int, scanned: list[int]
) -> bool:
    """Send a single-batch Produce to the broker, now or at its turn. `scanned` comes from
    `protocol.ordinary.scan_request`. Return False if a check failed; nothing has changed then.
    """
    broker = link.broker
    version, names_start, route_end = scanned[0], scanned[2], scanned[3]
    if link.refused.entries or broker.scheduler.quotas.active or link.upstream.closed:
        return False
    start = frame[ROUTE_START:route_end]
    route = broker.routes.known.get((version, start if type(start) is bytes else bytes(start)))
    if route is None or (link.stores and route.partition is None):
        route = broker.routes.learn(frame, version, names_start, route_end, link.stores)
        if route is None:
            return False
    request = SingleBatchProduce(link, frame, size_bytes, route, scanned, broker.now())
    waits = broker.scheduler.enabled and not broker.scheduler.try_dispatch(request)
    if waits and broker.scheduler.hanging(request.watched):
        return False
    link.client_id = route.client_id
    request.ordinal = link.last_ordinal = link.last_ordinal + 1
    link.replies.line.append(request)
    if waits:
        request.wait()
        return True
    try:
        request.forward()
    except Exception:
        broker.scheduler.withdraw(request)
        raise
    return True


class SingleBatchProduce:
    """Single-batch Produce that the broker has, or that waits for its turn.

    The object is its own entry in the response order, and its own ticket (`Admitted`) in the
    scheduler's queue. If it had to wait, the scheduler knows `waited` instead. `ticket`: itself
    while the scheduler has it, else None. `duplicate_check` None: the batch is not to be stored.
    """

    __slots__ = (
        "duplicate_check",
        "epoch",
        "frame",
        "generation",
        "high_watermark",
        "holds_slot",
        "link",
        "ordinal",
        "queue",
        "route",
        "scanned",
        "sent",
        "since_s",
        "size_bytes",
        "started_at",
        "state",
        "ticket",
        "topic",
        "waited",
        "waits",
    )

    is_control = False
    is_measured = True

    link: ClientConnection
    waited: Entry | None
    frame: Frame
    size_bytes: int
    scanned: list[int]
    route: Route
    topic: str | bytes
    queue: int
    waits: Waits
    since_s: float
    started_at: float
    ticket: SingleBatchProduce | None
    sent: Sent | None
    duplicate_check: DuplicateCheck | None
    ordinal: int
    epoch: int
    high_watermark: int
    generation: int
    holds_slot: bool
    state: State

    def __init__(
        self,
        link: ClientConnection,
        frame: Frame,
        size_bytes: int,
        route: Route,
        scanned: list[int],
        since_s: float,
    ) -> None:
        """The request arrived at `since_s` (seconds, monotonic). The object is in no queue yet, and
        nothing of its partition is noted.
        """
        self.link, self.route, self.scanned = link, route, scanned
        self.frame, self.size_bytes = frame, size_bytes
        self.topic, self.queue, self.waits = route.topic, route.queue, route.waits
        self.since_s, self.started_at = since_s, NOT_BEGUN
        self.ticket = self.sent = self.duplicate_check = self.waited = None

    @property
    def watched(self) -> tuple[str | bytes]:
        """Return the topics whose health depends on this request."""
        return (self.topic,)

    def forward(self) -> None:
        """Send the request to the broker, and note the present state of its partition."""
        link, scanned, partition = self.link, self.scanned, self.route.partition
        if link.stores and partition is not None:
            leader_state = partition.leader_state
            self.epoch, self.high_watermark = leader_state.epoch, leader_state.high_watermark
            self.generation = partition.topic.fidelity.generation
            self.duplicate_check = NOT_DUPLICATE
            producer_id, epoch, sequence, records = scanned[PRODUCER_ID:]
            if producer_id != NO_PRODUCER_ID:
                self.duplicate_check = partition.producers.note(
                    leader_state.epoch, producer_id, epoch, sequence, records
                )
        traffic = link.broker.counters.requests_out[api.PRODUCE]
        traffic.frames += 1
        traffic.size_bytes += self.size_bytes
        waits = link.upstream.send(self.frame, scanned[CORRELATION_ID], self.on_answer)
        link.gone += 1
        if waits:
            link.hold_for_broker()

    def wait(self) -> None:
        """Submit the request to the scheduler: no slot is free, or an earlier request of the
        connection waits. Later `dispatch` or `refuse` is called.
        """
        topics = self.watched
        self.link.broker.scheduler.submit(
            self.link,
            self.dispatch,
            self.refuse,
            topics=topics,
            size_bytes=self.size_bytes,
            waits=self.waits,
            is_ordered=True,
            watched=topics,
            whole=partial(relay_whole, self.link, self.frame, self),
        )

    def dispatch(self, entry: Entry) -> None:
        """Forward the request after its wait. If it may no longer use the short path, it continues
        as a `ProduceHandling`.
        """
        link, partition = self.link, self.route.partition
        is_gone = partition is not None and not partition.is_followed
        if is_gone or link.refused.entries or link.broker.scheduler.hanging(entry.watched):
            self._on_general_path().dispatch(entry)
            return
        self.waited = entry
        # break the reference cycle: the callbacks hold this request
        entry.dispatch = entry.refuse = entry.whole = None
        self.since_s = link.broker.now()
        link.broker.scheduler.dispatched(entry)
        self.forward()

    def refuse(self) -> None:
        """Refuse the request: no slot became free in time, or there is no room to wait."""
        self._on_general_path().refuse_late()

    def _on_general_path(self) -> ProduceHandling:
        """Return the same request as a `ProduceHandling`, in the same place of the response order."""
        link, frame = self.link, self.frame
        head = header.peek_request(frame)
        request = produce.scan_request(frame, head.api_version, head.body_start)
        return ProduceHandling(
            link, head, frame, request, link.replies.stand_in(self), self.ordinal
        )

    def on_answer(self, answer: Frame | None) -> None:
        """Handle the broker's response; None: the broker connection is lost, and the client's with
        it.
        """
        if answer is None:
            return
        link = self.link
        broker = link.broker
        now, size_bytes = broker.now(), len(answer)
        counters = broker.counters
        traffic = counters.responses_in[api.PRODUCE]
        traffic.frames += 1
        traffic.size_bytes += size_bytes
        if self.ticket is not None:
            broker.scheduler.answered(self, now)
        elif self.waited is not None:
            broker.scheduler.answered(self.waited, now)
        counters.produce_s.observe(now - self.since_s)
        link.answer_whole(api.PRODUCE, self, answer, size_bytes, self.size_bytes)
        # store before a later Fetch is answered, but after the client has its response
        if self.duplicate_check is not None:
            try:
                self._admit(answer, size_bytes, now)
            except Exception:
                broker.failed("storing from Produce")
        if link.answered_ordinal < self.ordinal:
            link.answered_ordinal = self.ordinal

    def _admit(self, answer: Frame, size_bytes: int, now: float) -> None:
        route, base_offset = self.route, -1
        assert self.duplicate_check is not None
        if type(answer) is bytes:
            base_offset = find_base_offset(
                answer, size_bytes, route.version, route.names, route.names_bytes
            )
        admit_acknowledged(
            self.link.broker,
            route,
            self.scanned,
            self.frame,
            self.duplicate_check,
            self.epoch,
            self.high_watermark,
            self.generation,
            base_offset,
            answer,
            now,
        )


def admit_acknowledged(
    broker: Broker,
    route: Route,
    scanned: list[int],
    frame: Frame,
    duplicate_check: DuplicateCheck,
    epoch: int,
    high_watermark: int,
    generation: int,
    base_offset: int,
    answer: Frame,
    now: float,
) -> None:
    """Store the batch of an answered request if it may be stored.

    `duplicate_check`, `epoch`, `high_watermark` and `generation` are the state of the partition
    when it was forwarded. `base_offset` is negative if the response is no plain success; `answer`
    is then decoded in full.
    """
    partition = route.partition
    assert partition is not None
    _, _, _, _, start, end, attributes, last_delta, _, _, _, _, records = scanned
    if base_offset < 0 or partition.topic.fidelity.log_append_time:
        forwarded = _forwarded(
            partition, frame, start, end, duplicate_check, epoch, high_watermark, generation
        )
        store.admit_answer(broker, route.version, {route.key: forwarded}, frame, answer)
        return
    store.note_acknowledged(partition, epoch, base_offset, records)
    ends = None
    if base_offset <= partition.tail and store.is_stored_as_sent(
        partition, duplicate_check, epoch, high_watermark, generation, attributes, base_offset
    ):
        ends = broker.cache.append(partition.slot, frame, start, end, base_offset, epoch)
    if ends is None:
        acknowledged = ProducedPartition(
            *route.key, ErrorCode.NONE, base_offset, NO_TIME, NO_OFFSET
        )
        forwarded = _forwarded(
            partition, frame, start, end, duplicate_check, epoch, high_watermark, generation
        )
        stored = store.admit_produced(broker, forwarded, acknowledged, frame)
        store.announce(broker, partition, base_offset, stored, now)
        return
    following = base_offset + last_delta + 1
    counters = broker.counters
    counters.produce_batches["store"] += 1
    counters.admitted_batches["produce"] += 1
    if broker.stored_runs is not None:
        broker.stored_runs.add(partition, base_offset, following, end - start, "produce")
    store.note_produced(partition, base_offset)
    tail = partition.tail
    partition.tail = (
        ends if ends >= tail else max(tail, broker.cache.contiguous_end(partition.slot, tail))
    )
    partition.transactions.passed(base_offset, following)
    if (
        partition.parked or now - partition.leader_state.proven_at > REFRESH_EPOCH_S
    ):  # otherwise nothing waits for it, and the epoch was proven recently
        store.announce(broker, partition, base_offset, True, now)


def _forwarded(
    partition: Partition,
    frame: Frame,
    start: int,
    end: int,
    duplicate_check: DuplicateCheck,
    epoch: int,
    high_watermark: int,
    generation: int,
) -> Forwarded:
    (sent,) = batch.scan_batches(frame, start, end)
    return Forwarded(partition, sent, duplicate_check, epoch, high_watermark, generation)
