"""The ordinary Produce, on the shortest way to the broker and back: one topic, one partition, one batch, and
nothing that stands against it.

Owns what is known of a client's repeated requests (`Route`), and the one place that decides who goes this way:
`forward_single_batch`. Must not know how one is refused, cut or charged to a quota: that is `proxy.produce.handler`'s,
to which False leaves a request as it came, and which takes over one that waited for a slot if something stands against
it by then. Invariants: until all questions are answered nothing has changed; what becomes of a request is the same on
both ways. Why there are two: docs/decisions/0012; why one that waits stays on this one: 0021.
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
"""Routes remembered, of at most 1 KiB each; at the limit all are forgotten, and found again as they are asked for."""
ROUTE_START: Final = ordinary.ROUTE_START
ACKS_ALL: Final = -1
NO_TIME: Final = -1
CORRELATION_ID: Final = 1
ROUTE_END: Final = 3
START: Final = 4
PRODUCER_ID: Final = 9
"""Places of the correlation id, of the route's end, of the batch's start and of its producer's id among what was
scanned. The batch's end follows its start; the producer's epoch, the sequence and the number of records follow the id.
"""
NOT_DUPLICATE = DuplicateCheck.NOT_DUPLICATE
NOT_BEGUN: Final = -1.0
"""When the broker came to work on what is behind something else."""


@dataclass(frozen=True, slots=True)
class Route:
    """What the bytes from client id to partition stand for. `topic`, `queue`: as the gate knows them; `names`: the
    part of the bytes that an answer repeats; `key`: what they say; `partition` None where nothing is stored; `line`:
    its queue, if there is isolation; `native`: the same for C (fl_route of native/flights.h), which shows `bytes`.
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
    """The routes of one broker. What is forgotten of topics or partitions must be forgotten here (`clear`)."""

    __slots__ = ("_broker", "clears", "known")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.clears = 0
        """How often all were forgotten: what was found before may stand for something else."""
        self.known: dict[tuple[int, bytes], Route] = {}

    def __len__(self) -> int:
        return len(self.known)

    def clear(self) -> None:
        """They may stand for something else from now on."""
        self.known.clear()
        self.clears += 1

    def learn(self, frame: Frame, version: int, names_start: int, end: int, stores: bool) -> Route | None:
        """The route of an ordinary frame that is not among the known; None where something is not known yet, or cannot
        be.
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


def forward_single_batch(link: ClientConnection, frame: Frame, size_bytes: int, scanned: list[int]) -> bool:
    """Send a request of the ordinary form (`protocol.ordinary.scan_request`) to the broker, now or when it is its
    turn, if nothing stands against it. False: nothing has happened.
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
    """One that the broker has, or that waits for its turn: its place in the line of replies, and itself what the gate
    and its queue know of it (`Admitted`), unless it had to wait: then they know `waited`. `ticket`: itself, while it is
    with the gate. `sending` None: it is not to be stored.
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
        """It came at `since_s`; nothing is known of its partition yet, and nobody knows of it."""
        self.link, self.route, self.scanned = link, route, scanned
        self.frame, self.size_bytes = frame, size_bytes
        self.topic, self.queue, self.waits = route.topic, route.queue, route.waits
        self.since_s, self.started_at = since_s, NOT_BEGUN
        self.ticket = self.sent = self.duplicate_check = self.waited = None

    @property
    def watched(self) -> tuple[str | bytes]:
        """The topics that can hang by it."""
        return (self.topic,)

    def forward(self) -> None:
        """To the broker, with what is known of the partition now."""
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
        """No slot is free, or an earlier one of its connection waits: so does it, until `go` or `refuse`."""
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
        """It waited, and its turn has come. Where something stands against it by now it is the other way's."""
        link, partition = self.link, self.route.partition
        is_gone = partition is not None and not partition.is_followed
        if is_gone or link.refused.entries or link.broker.scheduler.hanging(entry.watched):
            self._on_general_path().dispatch(entry)
            return
        self.waited = entry
        entry.dispatch = entry.refuse = entry.whole = None  # they hold this request
        self.since_s = link.broker.now()
        link.broker.scheduler.dispatched(entry)
        self.forward()

    def refuse(self) -> None:
        """No slot came free in time, or there is no room to wait."""
        self._on_general_path().refuse_late()

    def _on_general_path(self) -> ProduceHandling:
        """The same request, in the same places, on the other way."""
        link, frame = self.link, self.frame
        head = header.peek_request(frame)
        request = produce.scan_request(frame, head.api_version, head.body_start)
        return ProduceHandling(link, head, frame, request, link.replies.stand_in(self), self.ordinal)

    def on_answer(self, answer: Frame | None) -> None:
        """The broker's answer; None: its link is lost, and with it the client's."""
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
        # before any Fetch behind it is answered, but the client need not wait for it
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
            base_offset = find_base_offset(answer, size_bytes, route.version, route.names, route.names_bytes)
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
    """A request was answered: store what of it may be. `sending`, `epoch`, `high_watermark` and `generation` are what
    was known of the partition when it was forwarded; `base_offset` is negative where the answer is no ordinary success.
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
        acknowledged = ProducedPartition(*route.key, ErrorCode.NONE, base_offset, NO_TIME, NO_OFFSET)
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
    partition.tail = ends if ends >= tail else max(tail, broker.cache.contiguous_end(partition.slot, tail))
    partition.transactions.passed(base_offset, following)
    if (
        partition.parked or now - partition.leader_state.proven_at > REFRESH_EPOCH_S
    ):  # else nobody needs to know
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
