"""A librdkafka consumer of many partitions reads through Forebay what one reads directly, whatever happens to them.

librdkafka has no fetch sessions: what Forebay remembers of its Fetches answers most partitions. Meanwhile transactions
are aborted, records are deleted, and a topic is deleted and made again under its name.
"""

from __future__ import annotations

import time
from random import Random
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.kit.broker.topics import create_topic, delete_topic
from tests.kit.sidecar import Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

EACH = 30
"""Partitions of each of two topics."""
ROUNDS = 12
WRITTEN = 8
"""Partitions that each round writes to."""
TIMEOUT_S = 60.0
PATIENCE_S = 120.0
POLL_S = 0.05


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(shared=proxied) as running:
        yield running


class Reader:
    """A consumer without a group's offsets. `read`: offset and value of each record, by partition, since it was given
    the topic.
    """

    def __init__(self, address: str, isolation: str) -> None:
        self.address = address
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": isolation,
                "topic.metadata.refresh.interval.ms": 500,
                "fetch.wait.max.ms": 100,
                "log_level": 0,
            }
        )
        self.read: dict[tuple[str, int], list[tuple[int, bytes]]] = {}

    def add(self, topic: str) -> None:
        """Read a topic from the beginning."""
        self._consumer.incremental_assign(
            [TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(EACH)]
        )
        self.read |= {(topic, index): [] for index in range(EACH)}

    def remove(self, topic: str) -> None:
        self._consumer.incremental_unassign([TopicPartition(topic, i) for i in range(EACH)])

    def read_to(self, last: dict[tuple[str, int], bytes]) -> None:
        """Until the last committed value of each partition has been read."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            behind = [
                key for key, value in last.items() if value not in [v for _, v in self.read[key]]
            ]
            if not behind:
                return
            assert time.monotonic() < deadline, (self.address, behind)
            for message in self._consumer.consume(500, POLL_S):
                assert message.error() is None, message.error()
                topic, partition, offset = message.topic(), message.partition(), message.offset()
                value = message.value()
                assert topic is not None
                assert partition is not None
                assert offset is not None
                assert isinstance(value, bytes)
                self.read[topic, partition].append((offset, value))

    def close(self) -> None:
        self._consumer.close()


class Writer:
    """Writes transactions. `last`: the last committed value of each partition that has one."""

    def __init__(self, address: str, name: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": address, "transactional.id": name, "linger.ms": 0, "log_level": 0}
        )
        self._producer.init_transactions(TIMEOUT_S)
        self._written = 0
        self.last: dict[tuple[str, int], bytes] = {}

    def write(self, keys: list[tuple[str, int]], *, commits: bool) -> None:
        """A record to each partition, in one transaction."""
        self._producer.begin_transaction()
        for topic, index in keys:
            self._written += 1
            value = b"%d" % self._written
            self._producer.produce(topic, value, partition=index)
            if commits:
                self.last[topic, index] = value
        assert self._producer.flush(TIMEOUT_S) == 0
        if commits:
            self._producer.commit_transaction(TIMEOUT_S)
        else:
            self._producer.abort_transaction(TIMEOUT_S)

    def forget(self, topic: str) -> None:
        self.last = {key: value for key, value in self.last.items() if key[0] != topic}


def delete_records(address: str, keys: list[tuple[str, int]], readers: list[Reader]) -> None:
    """Up to what all have read."""
    ends = {key: min(map(len, (reader.read[key] for reader in readers))) for key in keys}
    found = [
        TopicPartition(*key, readers[0].read[key][count - 1][0] + 1)
        for key, count in ends.items()
        if count
    ]
    if found:
        admin = AdminClient({"bootstrap.servers": address})
        for one in admin.delete_records(found).values():
            one.result(TIMEOUT_S)


def make_again(pair: Pair, topic: str, writer: Writer, readers: list[Reader]) -> None:
    """Delete a topic while nobody reads it, and make it again."""
    for reader in readers:
        reader.remove(topic)
    delete_topic(pair.direct, topic)
    create_topic(pair.direct, topic, partitions=EACH)
    writer.forget(topic)
    for reader in readers:
        reader.add(topic)


@pytest.mark.parametrize(
    ("isolation", "makes_again"), [("read_committed", True), ("read_uncommitted", False)]
)
def test_all_is_read_as_directly(pair: Pair, isolation: str, makes_again: bool) -> None:
    """With read_uncommitted no topic is made again: librdkafka then passes over a record, directly too."""
    draw = Random(isolation)
    topics = [create_topic(pair.direct, partitions=EACH) for _ in range(2)]
    keys = [(topic, index) for topic in topics for index in range(EACH)]
    writer = Writer(pair.through, f"{topics[0]}-writer")
    readers = [Reader(address, isolation) for address in (pair.through, pair.direct)]
    before = pair.sidecar.metrics()["forebay_fetch_repeated_total",]
    for reader in readers:
        for topic in topics:
            reader.add(topic)
    for number in range(ROUNDS):
        written = draw.sample(keys, WRITTEN)
        writer.write(written, commits=False)
        writer.write(draw.sample(keys, WRITTEN), commits=True)
        for reader in readers:
            reader.read_to(writer.last)
        if number % 3 == 1:
            delete_records(pair.direct, draw.sample(keys, WRITTEN), readers)
        if number % 4 == 2:
            writer.write(keys, commits=True)  # a sign behind all, so that both have read as much
            for reader in readers:
                reader.read_to(writer.last)
            assert readers[0].read == readers[1].read
            if makes_again:
                make_again(pair, topics[1], writer, readers)
    writer.write(keys, commits=True)
    for reader in readers:
        reader.read_to(writer.last)
        reader.close()
    assert readers[0].read == readers[1].read
    assert pair.sidecar.metrics()["forebay_fetch_repeated_total",] > before + ROUNDS
