"""Consumers and producers of more partitions than Forebay reads in one request: they pass, and lose nothing.

Owns a pair whose bound is low. Must not know how requests are counted.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.kit.broker.topics import create_topic
from tests.kit.sidecar import Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

MOST = 100
PARTITIONS = 300
ROUNDS = 3
PATIENCE_S = 90.0


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(settings={"limits": {"requestPartitions": MOST}}, shared=proxied) as pair:
        yield pair


def test_all_that_is_produced_is_read(pair: Pair) -> None:
    """librdkafka's sessions among them: whole requests pass unread, and the broker grants no session."""
    topic = create_topic(pair.direct, partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": pair.through, "linger.ms": 200, "acks": "all"})
    consumer = Consumer(
        {"bootstrap.servers": pair.through, "group.id": "wide", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    deadline = time.monotonic() + PATIENCE_S
    for number in range(ROUNDS):
        for index in range(PARTITIONS):
            producer.produce(topic, b"%d-%d" % (number, index), partition=index)
        assert producer.flush(PATIENCE_S) == 0
        read: set[bytes | None] = set()
        while len(read) < PARTITIONS:
            assert time.monotonic() < deadline, f"{len(read)} of round {number}"
            for message in consumer.consume(PARTITIONS, 0.2):
                assert message.error() is None, message.error()
                read.add(message.value())
        assert read == {b"%d-%d" % (number, index) for index in range(PARTITIONS)}
    consumer.close()
    metrics = pair.sidecar.metrics()
    assert metrics["forebay_wide_requests_total",] > ROUNDS
    assert metrics["forebay_internal_errors_total",] == 0
    assert metrics["forebay_bad_frames_total",] == 0
