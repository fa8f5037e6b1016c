"""A Fetch over partitions of which memory holds some and not others: it names all that a broker would have read for it,
and waits for its own reads as the broker's client waits for the broker's disk.

The broker is real. What memory does not hold was written before Forebay followed it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient

from proxy.fetch.completion import READ_WAIT_S
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, RawReader
from tests.kit.sidecar import PATIENT_CACHE, Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

PARTITIONS = 6
RECORDS = 100
TIMES = 3
TIMES_EACH = 2
"""Of eight ways to ask, which differ little."""


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(settings={"cache": PATIENT_CACHE}, shared=proxied) as running:
        yield running


def produce(bootstrap: str, topic: str, partition: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
    for number in range(count):
        producer.produce(topic, b"%d-" % number + b"v" * 100, partition=partition)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("max_wait_ms", [0, 500])
@pytest.mark.parametrize("version", [4, 12, 13, 17])
def test_a_fetch_over_six_partitions_brings_all_of_them(
    pair: Pair, version: int, max_wait_ms: int
) -> None:
    """Half are in memory, half are read for it: as the broker does, it brings records of all."""
    for _ in range(TIMES_EACH):
        topic = create_topic(pair.direct, partitions=PARTITIONS)
        with RawClient(pair.through, "six") as client:
            odd = range(1, PARTITIONS, 2)
            for partition in odd:
                produce(pair.direct, topic, partition, RECORDS)
            readers = [
                RawReader(client, topic, partition=p, version=version) for p in range(PARTITIONS)
            ]
            for reader in readers[::2]:
                reader.settle()
                produce(pair.through, topic, reader.partition, RECORDS)
                reader.read_to(RECORDS)
                reader.offset = 0
            began = time.monotonic()
            said = client.fetch(version, [one.asked() for one in readers], max_wait_ms=max_wait_ms)
            brought = sorted(one.partition for one, records in said if records)
            has_waited = (
                time.monotonic() - began >= READ_WAIT_S
            )  # on a busy machine a read may take longer
            assert brought == list(range(PARTITIONS)) or has_waited
    counts = pair.sidecar.fetch_counts("partitions")
    assert counts["hit", ""] > 0


@pytest.mark.parametrize("attempt", range(TIMES))
def test_a_consumer_that_polls_once_after_records_were_deleted(pair: Pair, attempt: int) -> None:
    """As kafka-python's own test_delete_records: six partitions of two topics, of some only a part is left."""
    topics = [create_topic(pair.direct, partitions=3) for _ in range(2)]
    partitions = [TopicPartition(topic, index) for topic in topics for index in range(3)]
    options = {"bootstrap_servers": pair.through, "auto_offset_reset": "earliest", "group_id": None}
    writer = KafkaProducer(bootstrap_servers=pair.through)
    first, second = KafkaConsumer(**options), KafkaConsumer(**options)
    admin = KafkaAdminClient(bootstrap_servers=pair.through)
    try:
        for one in partitions:
            sent = [
                writer.send(one.topic, b"%d" % number, partition=one.partition)
                for number in range(RECORDS)
            ]
            for future in sent:
                future.get(timeout=30)
        first.assign(partitions)
        for _record in range(6 * RECORDS):
            next(first)
        below = {partitions[0]: -1, partitions[1]: 50, partitions[3]: 40, partitions[5]: 30}
        admin.delete_records(below, timeout_ms=60_000)
        second.assign(partitions)
        polled = second.poll(max_records=6 * RECORDS, timeout_ms=60_000)
        found = [len(polled.get(one, ())) for one in partitions]
        assert found == [0, 50, 100, 60, 100, 70], attempt
    finally:
        for one in (writer, first, second, admin):
            one.close()
