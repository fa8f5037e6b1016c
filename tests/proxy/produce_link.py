"""A Produce on a connection that a test answers for; broker and partitions are known (`followed_partition.py`).

Owns the fake link, whose scheduler is off, and the frames. It must not know what a test expects. `Link.sent` are the
requests that the broker has got and not answered, `Link.got` what the client was answered, in order.
"""

import struct
from types import SimpleNamespace

from isolation.refusals import RefusedSequences
from proxy.net.client_connection import ClientConnection
from proxy.net.response_order import ResponseOrder
from proxy.produce.handler import handle_produce
from proxy.produce.targets import Targets
from tests.protocol.batches import batch_v2
from tests.protocol.test_produce_rows import build
from tests.proxy.followed_partition import stand_in

VERSION = 9
MOST = 10_000
"""Limit of partitions in a request."""


class Link:
    """A client connection, as `proxy.produce` uses it."""

    name_client = ClientConnection.name_client
    note_answered = ClientConnection.note_answered
    note_group = ClientConnection.note_group
    host = "127.0.0.1"

    def __init__(self, broker, stores=True):
        self.broker = broker
        self.stores = stores
        self.client_id = None
        self.refused = RefusedSequences()
        self.replies = ResponseOrder(stand_in(None), lambda: None)
        self.upstream = SimpleNamespace(closed=False, send=self._send_up)
        self.last_ordinal = self.answered_ordinal = self.sent_count = 0
        self.sent, self.got = [], []
        self.failures: list[str] = []
        broker.scheduler = SimpleNamespace(
            enabled=False,
            quotas=SimpleNamespace(active=False),
            data_queues=1,
            queues=SimpleNamespace(load_of=None),
            hanging=lambda topics: {},
            in_order=lambda link: True,
            dispatched=lambda entry: None,
            answered=lambda entry, now: None,
            withdraw=lambda entry: None,
            submit=self._submit,
        )
        broker.routes = Targets(broker)
        broker.access_log = broker.stored_runs = None
        broker.failed = self.failures.append
        broker.replica_fetcher.produced = lambda partition, _now: (
            broker.replica_fetcher.asked.append(partition)
        )

    def _send_up(self, frame, correlation_id, on_answer):
        self.sent.append((bytes(frame), on_answer))
        return False

    def _submit(self, _link, dispatch, refuse=None, **_values):
        dispatch(SimpleNamespace(watched=(), dispatch=dispatch, refuse=refuse, whole=None))

    def answer_whole(self, api_key, place, frame, size_bytes, request_bytes, on_sent=None):
        assert self.replies.places.popleft() is place
        self.got.append(frame)

    def receive(self, frame):
        """The client sends a whole request."""
        handle_produce(stand_in(self), frame, MOST)

    def count_request(self, api_key, size_bytes):
        """Nothing is counted."""

    def produce(self, records, *, frame_type=bytes, index=0, version=VERSION, **values):
        """Send one Produce; return whether it went to the broker."""
        before = len(self.sent)
        self.receive(frame_type(build(version, records=records, index=index, **values)))
        return len(self.sent) > before

    def reply(self, base_offset, append_time_ms=-1, error_code=0, index=0, more=b"\1\0\0"):
        """The broker answers the oldest request."""
        _frame, on_answer = self.sent.pop(0)
        on_answer(build_answer(base_offset, append_time_ms, error_code, index, more))


def build_answer(
    base_offset, append_time_ms=-1, error_code=0, index=0, more=b"\1\0\0", topic=b"orders"
):
    """Build a response of version 9 (ProduceResponse.json). `more`: record errors, message, tags."""
    partition = struct.pack(">ihqqq", index, error_code, base_offset, append_time_ms, 0) + more
    topics = b"\2" + bytes([len(topic) + 1]) + topic + b"\2" + partition + b"\0"
    body = struct.pack(">i", 42) + b"\0" + topics + struct.pack(">i", 0) + b"\0"
    return struct.pack(">i", len(body)) + body


def build_many(indexes, version=VERSION, **values):
    """Return a Produce of three records to each of these partitions of one topic."""
    one = build(version, records=batch_v2(3), partitions=len(indexes), index=99, **values)
    for index in indexes:
        one = one.replace(struct.pack(">i", 99), struct.pack(">i", index), 1)
    return one


def build_many_answer(indexes, offsets, error_codes=None, times=None):
    """Return a response of version 9 to a Produce of several partitions."""
    codes, times = error_codes or (0,) * len(indexes), times or (-1,) * len(indexes)
    partitions = b"".join(
        struct.pack(">ihqqq", index, code, offset, time_ms, 0) + b"\1\0\0"
        for index, code, offset, time_ms in zip(indexes, codes, offsets, times, strict=True)
    )
    topics = b"\2" + b"\7orders" + bytes([len(indexes) + 1]) + partitions + b"\0"
    body = struct.pack(">i", 42) + b"\0" + topics + struct.pack(">i", 0) + b"\0"
    return struct.pack(">i", len(body)) + body
