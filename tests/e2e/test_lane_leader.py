"""A partition whose leader moves away while its history is read over the second link.

The second listener names itself in such an answer (KIP-951): a client that heard of it would go past Forebay.
"""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from protocol.errors import ErrorCode
from tests.e2e.between import Between
from tests.e2e.test_invalidation import reassign
from tests.kit.broker.kafka import KafkaCluster
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST, Listener
from tests.kit.raw_fetch import FetchFailed, RawClient, RawReader
from tests.kit.sidecar import Sidecar

pytestmark = pytest.mark.e2e

SECOND = "second-listener.invalid"
COUNT, BITE_BYTES = 500, 50_000
NODE_ENDPOINTS_FROM = 16
TIMEOUT_S = 60.0


class Recording(RawClient):
    """Counts the answers that name the second listener."""

    told = 0
    answers = 0

    def call(self, frame: bytes) -> bytes:
        answer = super().call(frame)
        self.answers += 1
        self.told += SECOND.encode() in answer
        return answer


def test_the_second_listeners_endpoints_reach_nobody() -> None:
    with contextlib.ExitStack() as stack:
        lease = stack.enter_context(lease_port())
        client_listener = Listener("CLIENT", advertised=(HOST, lease.port))
        listeners = [client_listener, Listener("CATCHUP", advertised=(SECOND, 1))]
        broker = stack.enter_context(KafkaCluster(2, listeners=listeners))
        wire = stack.enter_context(Between(broker.address("CATCHUP"), SECOND.encode()))
        host, port = broker.address("CLIENT")
        entry = {
            "listen": f"{HOST}:{lease.port}",
            "upstream": f"{host}:{port}",
            "catchUpUpstream": wire.address,
        }
        sidecar = stack.enter_context(Sidecar([entry], leases=[lease]))
        topic = f"moving-{time.time_ns()}"
        admin = AdminClient({"bootstrap.servers": broker.direct})
        admin.create_topics([NewTopic(topic, 1, replica_assignment=[[1]])])[topic].result(20)
        producer = Producer({"bootstrap.servers": broker.direct, "batch.size": 16_000})
        for number in range(COUNT):
            producer.produce(topic, b"%d-" % number + b"v" * 1000)
        assert producer.flush(20) == 0
        client = stack.enter_context(Recording(sidecar.bootstrap, "moved"))
        pool = stack.enter_context(ThreadPoolExecutor(1))
        moving = pool.submit(reassign, broker, topic, [2])
        assert read_until_moved(client, topic) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        moving.result(TIMEOUT_S)
        assert wire.noticed > 0, "the second listener did say where it thinks the leader is"
        assert client.answers > 10
        assert client.told == 0
        assert sidecar.metrics()["forebay_lanes_lost_total",] == 0


def read_until_moved(client: Recording, topic: str) -> int:
    """Read the same piece of history again and again; the error that ends it."""
    reader = RawReader(client, topic, version=NODE_ENDPOINTS_FROM)
    reader.read_past_errors()
    reader.max_bytes = BITE_BYTES
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        reader.offset = 0
        try:
            reader.poll(max_wait_ms=200)
        except FetchFailed as failed:
            return failed.code
        time.sleep(0.01)
    raise TimeoutError("the leader has not moved")
