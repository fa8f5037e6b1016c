"""The ordinary Produce, on the shortest way to the broker and back: one topic, one partition, one batch, and
nothing that stands against it.

Owns what is known of a client's repeated requests (`Route`), and the one place that decides who goes this way:
`pass_ordinary`. Must not know how one is refused, cut, held or charged to a quota: that is `proxy.produce`'s, to
which False leaves a request as it came. Invariants: until all questions are answered nothing has changed; what
becomes of a request is the same on both ways. Why there are two: docs/decisions/0012.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from isolation.classify import queue_of_topic
from isolation.queues import Waits
from protocol import api, batch, header, ordinary, produce
from protocol.errors import BadFrame
from protocol.produce import ProducedPartition
from proxy import admit
from proxy.admit import Forwarded
from proxy.producers import NO_PRODUCER_ID, Sending
from proxy.truth import NO_OFFSET

if TYPE_CHECKING:
    from protocol.wire import Frame
    from proxy.admit import Key
    from proxy.broker import Broker
    from proxy.client_link import ClientLink
    from proxy.gate import Entry
    from proxy.partitions import Partition
    from proxy.replies import Reply

ROUTES_LIMIT: Final = 4096
"""Routes remembered, of at most 1 KiB each; at the limit all are forgotten, and found again as they are asked for."""
ROUTE_START: Final = ordinary.ROUTE_START
ACKS_ALL: Final = -1
START: Final = 4
"""Place of the batch's start among what was scanned; its end follows."""


class Route(NamedTuple):
    """What the bytes from client id to partition stand for. `topic`, `queue`: as the gate knows them; `names`: the
    part of the bytes that an answer repeats; `key`: what they say; `partition` None where nothing is stored.
    """

    version: int
    client_id: str | None
    topic: str | bytes
    queue: int
    waits: Waits
    names: bytes
    key: Key
    partition: Partition | None


class Routes:
    """The routes of one broker. What is forgotten of topics or partitions must be forgotten here (`clear`)."""

    __slots__ = ("_broker", "known")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.known: dict[tuple[int, bytes], Route] = {}

    def __len__(self) -> int:
        return len(self.known)

    def clear(self) -> None:
        """They may stand for something else from now on."""
        self.known.clear()

    def learn(self, frame: Frame, version: int, names_start: int, end: int, stores: bool) -> Route | None:
        """The route of an ordinary frame that is not among the known; None where something is not known yet, or cannot
        be.
        """
        route = self._read(frame, bytes(frame[names_start:end]), stores)
        if route is not None:
            if len(self.known) >= ROUTES_LIMIT:
                self.known.clear()
            self.known[version, bytes(frame[ROUTE_START:end])] = route
        return route

    def _read(self, frame: Frame, names: bytes, stores: bool) -> Route | None:
        try:
            head = header.peek_request(frame)
            request = produce.scan_request(frame, head.api_version, head.body_start)
        except BadFrame:
            return None
        (asked,) = request.partitions
        topic = self._broker.topics.find(asked.topic)
        partition = None
        if topic is not None and topic.name and stores:
            partition = self._broker.partitions.follow(topic, asked.partition)
        if topic is None or not topic.name or (stores and partition is None):
            return None
        waits = Waits.ACKS if request.acks == ACKS_ALL else Waits.NOTHING
        queue = queue_of_topic(topic.name, self._broker.gate.data_queues)
        return Route(
            head.api_version,
            head.client_id,
            topic.name,
            queue,
            waits,
            names,
            (asked.topic, asked.partition),
            partition,
        )


def pass_ordinary(link: ClientLink, frame: Frame, scanned: list[int]) -> bool:
    """Send a request of the ordinary form (`protocol.ordinary.scan_request`) to the broker, if it may go now and
    nothing stands against it. False: nothing has happened.
    """
    broker = link.broker
    version, correlation_id, names_start, route_end, _, _, _, _, _, producer_id, epoch, sequence, records = (
        scanned
    )
    if link.refused.entries or broker.gate.quotas.active or link.upstream.closed:
        return False
    start = frame[ROUTE_START:route_end]
    route = broker.routes.known.get((version, start if type(start) is bytes else bytes(start)))
    if route is None or (link.stores and route.partition is None):
        route = broker.routes.learn(frame, version, names_start, route_end, link.stores)
        if route is None:
            return False
    entry = None
    if broker.gate.enabled:
        entry = broker.gate.take(link, route.topic, route.queue, len(frame), route.waits)
        if entry is None:
            return False
    link.client_id = route.client_id
    link.last_ordinal += 1
    going = OrdinaryProduce(link, frame, scanned, route, entry)
    if link.stores and route.partition is not None:
        truth = route.partition.truth
        going.epoch, going.high_watermark = truth.epoch, truth.high_watermark
        going.sending = Sending.FRESH
        if producer_id != NO_PRODUCER_ID:
            note = route.partition.producers.note
            going.sending = note(truth.epoch, producer_id, epoch, sequence, records)
    try:
        link.send(api.PRODUCE, correlation_id, frame, going.answered)
    except Exception:
        if entry is None:
            raise
        broker.gate.fail(entry)
    return True


class OrdinaryProduce:
    """One that the broker has. `sending` None: it is not to be stored."""

    __slots__ = (
        "_entry",
        "_frame",
        "_link",
        "_ordinal",
        "_reply",
        "_route",
        "_scanned",
        "_started_at",
        "epoch",
        "high_watermark",
        "sending",
    )

    def __init__(
        self, link: ClientLink, frame: Frame, scanned: list[int], route: Route, entry: Entry | None
    ) -> None:
        self._link = link
        self._frame = frame
        self._scanned = scanned
        self._route = route
        self._entry = entry
        self._ordinal = link.last_ordinal
        self._reply: Reply = link.replies.reserve()
        self._started_at = link.broker.now()
        self.sending: Sending | None = None
        self.epoch = self.high_watermark = -1

    def answered(self, answer: Frame | None) -> None:
        """The broker's answer; None: its link is lost, and with it the client's."""
        if answer is None:
            return
        link = self._link
        broker = link.broker
        if self._entry is not None:
            broker.gate.answered(self._entry)
        broker.counters.produce_s.observe(broker.now() - self._started_at)
        link.answer_whole(api.PRODUCE, self._reply, answer, len(self._frame))
        # before any Fetch behind it is answered, but the client need not wait for it
        if self.sending is not None:
            try:
                self._admit(answer)
            except Exception:
                broker.failed("storing from Produce")
        if link.answered_ordinal < self._ordinal:
            link.answered_ordinal = self._ordinal

    def _admit(self, answer: Frame) -> None:
        route, sending, frame = self._route, self.sending, self._frame
        partition = route.partition
        assert partition is not None and sending is not None
        broker = self._link.broker
        said = ordinary.scan_answer(answer, route.version, route.names)
        if said is None:
            admit.admit_answer(broker, route.version, {route.key: self._forwarded()}, frame, answer)
            return
        error_code, base_offset, append_time_ms = said
        if error_code:
            return
        _, _, _, _, start, end, attributes, last_delta, _, _, _, _, records = self._scanned
        epoch = self.epoch
        admit.note_acknowledged(partition, base_offset, records)
        plan = admit.plan_produced(partition, sending, epoch, self.high_watermark, attributes, base_offset)
        following = base_offset + last_delta + 1
        stored = plan == "store" and admit.append_produced(
            broker, partition, frame, start, end, attributes, base_offset, following, epoch
        )
        if not stored:
            acknowledged = ProducedPartition(*route.key, error_code, base_offset, append_time_ms, NO_OFFSET)
            stored = admit.admit_produced(broker, self._forwarded(), acknowledged, frame)
        admit.announce(broker, partition, base_offset, stored)

    def _forwarded(self) -> Forwarded:
        partition, sending = self._route.partition, self.sending
        assert partition is not None and sending is not None
        (sent,) = batch.scan_batches(self._frame, self._scanned[START], self._scanned[START + 1])
        return Forwarded(partition, sent, sending, self.epoch, self.high_watermark)
