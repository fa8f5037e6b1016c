"""A Produce on the short way, on a link that a test answers for, before a broker that is all known (`followed.py`).

Owns the fake link, whose gate is off, and the frames. It must not know what a test expects. `Link.sent` are the
requests that the broker has got and not answered, `Link.got` what the client was answered, in order.
"""

import struct
from types import SimpleNamespace

from isolation.refusals import RefusedSequences
from protocol import ordinary
from proxy.net.response_order import ResponseOrder
from proxy.produce.single_batch import HeaderCache, forward_single_batch
from tests.protocol.test_ordinary import build

VERSION = 9


class Link:
    """A client's link, as `proxy.produce.single_batch` sees it."""

    def __init__(self, broker, stores=True):
        self.broker = broker
        self.stores = stores
        self.client_id = None
        self.refused = RefusedSequences()
        self.replies = ResponseOrder(None, lambda: None)
        self.upstream = SimpleNamespace(closed=False, send=self._send_up)
        self.last_ordinal = self.answered_ordinal = self.gone = 0
        self.sent, self.got, self.failures = [], [], []
        broker.scheduler = SimpleNamespace(
            enabled=False, quotas=SimpleNamespace(active=False), data_queues=1
        )
        broker.routes = HeaderCache(broker)
        broker.access_log = broker.stored_runs = None
        broker.failed = self.failures.append
        broker.watch.produced = lambda partition, _now: broker.watch.asked.append(partition)

    def _send_up(self, frame, correlation_id, on_answer):
        self.sent.append((bytes(frame), on_answer))
        return False

    def answer_whole(self, api_key, place, frame, size_bytes, request_bytes):
        assert self.replies.line.popleft() is place
        self.got.append(frame)

    def produce(self, records, *, frame_type=bytes, index=0, version=VERSION, **values):
        """Whether it went this way."""
        frame = frame_type(build(version, records=records, index=index, **values))
        scanned = ordinary.scan_request(frame, len(frame))
        return scanned is not None and forward_single_batch(self, frame, len(frame), scanned)

    def reply(self, base_offset, append_time_ms=-1, error_code=0, index=0, more=b"\1\0\0"):
        """The broker answers the oldest request."""
        _frame, on_answer = self.sent.pop(0)
        on_answer(build_answer(base_offset, append_time_ms, error_code, index, more))


def build_answer(
    base_offset, append_time_ms=-1, error_code=0, index=0, more=b"\1\0\0", topic=b"orders"
):
    """Of version 9 (ProduceResponse.json). `more`: record errors, message and tags of the partition."""
    partition = struct.pack(">ihqqq", index, error_code, base_offset, append_time_ms, 0) + more
    topics = b"\2" + bytes([len(topic) + 1]) + topic + b"\2" + partition + b"\0"
    body = struct.pack(">i", 42) + b"\0" + topics + struct.pack(">i", 0) + b"\0"
    return struct.pack(">i", len(body)) + body
