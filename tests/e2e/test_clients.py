"""Every family of clients through Forebay: what is sent arrives, what is read equals a direct read.

Owns the comparison, and that who tails is served from memory; how a family is driven is in families.py. Must
not know how Forebay works, beyond its counters.
"""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Partition

from tests.e2e.families import FAMILIES, TIMEOUT_S, Record, confluent_consume, confluent_produce
from tests.kit.broker.topics import create_topic
from tests.kit.log_lines import unfold
from tests.kit.sidecar import PATIENT_CACHE, Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.e2e

COUNT = 12
TAIL = 20
HIT = ("hit", "")
BINARY = ("confluent-kafka", "aiokafka", "kafka-python")


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(settings={"cache": PATIENT_CACHE}, shared=proxied) as running:
        yield running


def text_records(count: int = COUNT) -> list[Record]:
    headers = (("trace", b"a1"), ("kind", b"test"))
    return [
        Record(-1, f"k{number}".encode(), f"value {number} ä€ {'x' * 200}".encode(), headers)
        for number in range(count)
    ]


def binary_records() -> list[Record]:
    """Every byte value, a null key, a null value, empty ones and headers that differ."""
    everything = bytes(range(256))
    return [
        Record(-1, everything, everything * 40, (("h", everything), ("h", b""))),
        Record(-1, None, b"\n\t\0", ()),
        Record(-1, b"tombstone", None, ()),
        Record(-1, b"", b"", (("empty", b""),)),
    ]


def numbered(records: list[Record], start: int = 0) -> list[Record]:
    return [record._replace(offset=start + number) for number, record in enumerate(records)]


def wait_until(check: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.mark.parametrize("name", FAMILIES)
def test_round_trip_equals_a_direct_read(pair: Pair, name: str) -> None:
    topic = create_topic(pair.direct)
    sent = text_records()
    FAMILIES[name].produce(pair.through, topic, sent, "all")
    direct = confluent_consume(pair.direct, topic, COUNT)
    assert direct == numbered(sent)
    assert FAMILIES[name].consume(pair.through, topic, COUNT) == direct


@pytest.mark.parametrize("name", BINARY)
def test_all_bytes_pass_unchanged(pair: Pair, name: str) -> None:
    topic = create_topic(pair.direct)
    sent = binary_records()
    FAMILIES[name].produce(pair.through, topic, sent, "all")
    direct = confluent_consume(pair.direct, topic, len(sent))
    assert direct == numbered(sent)
    for reader in BINARY:
        assert FAMILIES[reader].consume(pair.through, topic, len(sent)) == direct, reader


@pytest.mark.parametrize("name", FAMILIES)
def test_tailing_consumer_is_served_from_memory(pair: Pair, name: str) -> None:
    topic = create_topic(pair.direct)
    first, rest = text_records(2), text_records(TAIL)
    confluent_produce(pair.through, topic, first, "all")
    fetched = pair.sidecar.fetch_requests()
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(FAMILIES[name].consume, pair.through, topic, 2 + TAIL)
        wait_until(
            lambda: pair.sidecar.fetch_requests() >= fetched + 4, "it fetches more than twice"
        )
        before = pair.sidecar.fetch_counts()
        for record in rest:
            confluent_produce(pair.through, topic, [record], "all")
        received = reading.result(TIMEOUT_S)
    after = pair.sidecar.fetch_counts()
    grown = {key: after[key] - before.get(key, 0) for key in after}
    assert received == confluent_consume(pair.direct, topic, 2 + TAIL) == numbered(first + rest)
    assert grown[HIT] >= TAIL * 60 / 2, grown  # gzipped, each record is over 60 bytes


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("name", BINARY)
def test_every_level_of_acks_delivers(pair: Pair, name: str, acks: str) -> None:
    topic = create_topic(pair.direct)
    sent = text_records(3)
    FAMILIES[name].produce(pair.through, topic, sent, acks)
    assert confluent_consume(pair.direct, topic, 3) == numbered(sent)
    assert confluent_consume(pair.through, topic, 3) == numbered(sent)


def test_offsets_told_to_producers_are_the_brokers(pair: Pair) -> None:
    topic = create_topic(pair.direct)
    told: list[int | None] = []
    for bootstrap in (pair.through, pair.direct, pair.through):
        producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
        for number in range(3):
            producer.produce(
                topic, b"%d" % number, on_delivery=lambda _error, one: told.append(one.offset())
            )
        assert producer.flush(TIMEOUT_S) == 0
    assert told == list(range(9))


def test_group_rebalances_and_keeps_its_offsets(pair: Pair) -> None:
    topic = create_topic(pair.direct, partitions=2)
    group = uuid.uuid4().hex

    def join() -> Consumer:
        settings = {
            "bootstrap.servers": pair.through,
            "group.id": group,
            "auto.offset.reset": "earliest",
        }
        consumer = Consumer(settings | {"enable.auto.commit": False, "session.timeout.ms": 6000})
        consumer.subscribe([topic])
        return consumer

    def held(*consumers: Consumer) -> list[int]:
        for consumer in consumers:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                seen.append((message.partition(), message.offset()))
        return [len(consumer.assignment()) for consumer in consumers]

    seen: list[tuple[int | None, int | None]] = []
    producer = Producer({"bootstrap.servers": pair.through})
    for number in range(10):
        producer.produce(topic, b"%d" % number, partition=number % 2)
    assert producer.flush(TIMEOUT_S) == 0
    everything: list[tuple[int | None, int | None]] = [
        (partition, offset) for partition in range(2) for offset in range(5)
    ]
    first = join()
    wait_until(
        lambda: held(first) == [2] and len(seen) >= 10, "the first member reads both partitions"
    )
    assert sorted(seen, key=repr) == everything
    first.commit(asynchronous=False)
    second = join()
    wait_until(lambda: held(first, second) == [1, 1], "two members share the partitions")
    first.close()
    wait_until(lambda: held(second) == [2], "the member that stays takes all")
    committed = second.committed([Partition(topic, 0), Partition(topic, 1)], timeout=TIMEOUT_S)
    assert [one.offset for one in committed] == [5, 5]
    assert sorted(seen, key=repr) == everything  # nothing is read again after the commit
    second.close()


@pytest.mark.smoke39
def test_kafka_39_round_trip_and_hits(proxied_39: ProxiedBroker) -> None:
    with Pair(settings={"cache": PATIENT_CACHE}, shared=proxied_39) as old:
        test_round_trip_equals_a_direct_read(old, "aiokafka")
        test_tailing_consumer_is_served_from_memory(old, "confluent-kafka")
        assert old.sidecar.stop() == 0
        assert {
            line["result"] for line in unfold(old.sidecar.access_lines()) if line["type"] == "fetch"
        } >= {"hit"}
