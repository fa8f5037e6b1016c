"""A request scheduler before a broker that a test answers for, with a clock that the test moves.

Owns the fakes around the real `RequestScheduler`, `ResponseOrder` and `RefusedSequences`: clock and timers, the
broker's record, links. It must not know what a test expects. `Link.sent` are the frames that the broker has got and
not answered, `Link.got` what the client was answered, in order.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from kio.index import load_payload_module
from kio.static.constants import EntityType

from isolation.refusals import RefusedSequences
from protocol import header
from protocol.api import PRODUCE
from protocol.produce_build import Refused, build_refusal
from proxy.accounting.counters import Counters
from proxy.broker import Broker
from proxy.config.isolation import Isolation
from proxy.config.model import Limits
from proxy.net.client_connection import ClientConnection
from proxy.net.response_order import ResponseOrder
from proxy.partitions.store import admit_response
from proxy.produce.handler import handle_produce
from proxy.produce.targets import Targets
from proxy.relay import relay_whole
from proxy.scheduling.request_scheduler import RequestScheduler
from tests.kit import produce_messages
from tests.protocol import oracle
from tests.protocol.batches import batch_v2
from tests.protocol.golden_capture import make
from tests.proxy.followed_partition import stand_in
from tests.proxy.manual_clock import ManualClock

VERSION = 9
REFUSED = 19


def make_broker(monkeypatch, **isolation):
    """A fake broker with a real request scheduler; by default each queue has one slot."""
    clock = ManualClock()
    clock.replace_loop(monkeypatch, "proxy.scheduling.request_scheduler")
    slots = {"floor": 1, "initial": 1, "ceiling": 1}
    config = Isolation.model_validate({"data_queues": 1, "data_slots": slots, **isolation})
    broker: Any = SimpleNamespace(
        clock=clock,
        config=SimpleNamespace(isolation=config, limits=Limits()),
        now=lambda: clock.now,
        counters=Counters(),
        attempt=lambda action, doing, otherwise=None: action(),
        stores_on=lambda listener: False,
        topics=SimpleNamespace(find=lambda topic: SimpleNamespace(name=topic, leaders={0: None})),
        partitions=SimpleNamespace(follow=lambda topic, index: None),
        topic_lookup=SimpleNamespace(ask=lambda topic, link: None, want=lambda topic, link: None),
    )
    broker._log_failures_at, broker._unlogged_failures = 0.0, 0
    broker.failed = partial(Broker.failed, broker)
    broker.fall_back = partial(Broker.fall_back, broker)
    broker.admit_produced = partial(admit_response, broker)
    broker.scheduler = RequestScheduler(broker)
    broker.routes = Targets(broker)
    return broker


@dataclass(eq=False)
class BrokerSide:
    """A connection to the broker."""

    send: Callable[..., bool]
    closed: bool = False
    reading_held: bool = False


class Link:
    """A client connection, as handlers and the request scheduler use it."""

    peer = "client"
    client_id = "c"
    listener = SimpleNamespace(tend=lambda link: None, config=None)
    name_client = ClientConnection.name_client
    note_answered = ClientConnection.note_answered

    def __init__(self, broker):
        self.broker = broker
        self.stores = broker.stores_on(self.listener.config)
        self.replies = ResponseOrder(self._deliver, lambda: None)
        self.refused = RefusedSequences()
        self.pipeline = None
        self.last_ordinal = self.answered_ordinal = self.sent_count = 0
        self.count_request = lambda api_key, size_bytes: None
        self.upstream, self.catch_up = BrokerSide(self._send_up), BrokerSide(self._send_up)
        self.sent = []  # (frame, on_answer)
        self.got = []
        self.causes = []
        self.open = True

    def _deliver(self, buffers, on_sent):
        self.got.append(b"".join(map(bytes, buffers)))
        if on_sent:
            on_sent(True)

    def forward(self, head, frame, on_answer, _on_begun=None):
        self.send(head.api_key, head.correlation_id, frame, on_answer)

    def send(self, api_key, correlation_id, frame, on_answer):
        if self.upstream.closed:
            if on_answer:
                on_answer(None)
            return
        self.upstream.send(frame, correlation_id, on_answer)
        self.sent_count += 1

    def _send_up(self, frame, correlation_id, on_answer):
        self.sent.append((bytes(frame), on_answer))
        return False

    def answer(self, head, reply, buffers, request_bytes, on_sent=None, held_bytes=0):
        reply.complete(buffers, on_sent)

    def answer_whole(self, api_key, place, frame, size_bytes, request_bytes, on_sent=None):
        self.replies.stand_in(place).complete((frame,), on_sent)

    def close(self, cause, blame=""):
        if not self.open:
            return
        self.open = False
        self.causes.append(cause)
        self.broker.scheduler.drop_link(self)
        self.lose()
        self.replies.abandon()

    def lose(self):
        """The broker connection ends; each request in flight is told."""
        self.upstream.closed = True
        sent, self.sent = self.sent, []
        for _, on_answer in sent:
            if on_answer:
                on_answer(None)

    # -- the script's side ---------------------------------------------------------------------------------

    def produce(self, *batches, acks=-1, transactional_id=None):
        """`batches`: (topic, partition, base sequence) of one record each; sequence -1: no producer id."""
        frame = build_produce(batches, acks, transactional_id)
        most = self.broker.config.limits.request_partitions
        line, sent_count = self.replies.places, self.sent_count
        newest = line[-1] if line else None
        link = stand_in(self)
        try:
            handle_produce(link, frame, most)
        except ValueError:  # as ClientConnection does
            place = line[-1] if line and line[-1] is not newest else None
            self.broker.fall_back(
                self, sent_count, "producing", partial(relay_whole, link, frame, place)
            )

    def reply(self, base_offset=-1):
        """The broker answers the oldest request: a Produce with success."""
        frame, on_answer = self.sent.pop(0)
        head = header.peek_request(frame)
        if head.api_key != PRODUCE:
            on_answer(b"answer")
            return
        asked = produce_messages.scan_request(frame, head.api_version, head.body_start)
        done = [Refused(one.topic, one.partition, 0) for one in asked.partitions]
        answer = build_refusal(VERSION, head.correlation_id, done)
        on_answer(answer.replace(struct.pack(">hq", 0, -1), struct.pack(">hq", 0, base_offset)))

    def seen(self):
        """(topic, partition) of the Produces that the broker has not answered, one list for each Produce."""
        found: list[object] = []
        for frame, _ in self.sent:
            head = header.peek_request(frame)
            if head.api_key != PRODUCE:
                found.append(head.api_key)
                continue
            asked = produce_messages.scan_request(frame, head.api_version, head.body_start)
            found.append([(one.topic, one.partition) for one in asked.partitions])
        return found

    def codes(self):
        """Error codes of each new response, by (topic, partition)."""
        got, self.got = self.got, []
        answers = [produce_messages.scan_response(frame, VERSION).partitions for frame in got]
        return [
            {(one.topic, one.partition): one.error_code for one in answer} for answer in answers
        ]


def build_produce(batches, acks, transactional_id):
    module = load_payload_module(PRODUCE, VERSION, EntityType.request)
    topics = []
    for topic, partition, sequence in batches:
        producer = (7, 0, sequence) if sequence >= 0 else (-1, -1, -1)
        records = batch_v2(1, producer=producer, transactional=transactional_id is not None)
        data = make(module, "PartitionProduceData", {"index": partition, "records": records})
        values = {"name": topic, "topic_id": UUID(int=0), "partition_data": (data,)}
        topics.append(make(module, "TopicProduceData", values))
    values = {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": timedelta(seconds=5),
        "topic_data": tuple(topics),
    }
    return bytes(oracle.request_frame(make(module, "ProduceRequest", values), 1, "c"))


def held(broker):
    """Count of all that the request scheduler holds; 0 once everything is answered, refused or lost."""
    queues, health = broker.scheduler.statistics()
    names = ("in_use", "waiting", "waiting_bytes", "lingering_polls", "lingering_acks", "unread")
    quotas = [
        account.in_flight_bytes for account in broker.scheduler.quotas.topics._accounts.values()
    ]
    quotas += [
        account.in_flight_bytes for account in broker.scheduler.quotas.clients._accounts.values()
    ]
    links = (
        len(broker.scheduler._of_connection)
        + len(broker.scheduler.lines)
        + len(broker.scheduler._admitted)
    )
    return (
        sum(state[name] for state in queues.values() for name in names)
        + sum(quotas)
        + links
        + health["hanging"]
    )
