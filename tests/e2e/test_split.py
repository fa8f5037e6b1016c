"""One request that mixes what memory holds with what it does not: neither waits for the other, and no byte differs.

The broker is real; a lagging partition is one that was written before Forebay followed it.
"""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from tests.broker.topics import create_topic
from tests.e2e.raw_fetch import RawClient, RawReader, explain, read_all
from tests.e2e.sidecar import Pair

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

VERSIONS = (4, 11, 12, 13, 17)
OLD_RECORDS = 3000


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair() as running:
        yield running


def produce(bootstrap: str, topic: str, partition: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, "batch.size": 16_000})
    for number in range(count):
        producer.produce(topic, b"%d-" % number + b"v" * 1000, partition=partition)
        producer.poll(0)
    assert producer.flush(30) == 0


def poll_both(client: RawClient, readers: list[RawReader], version: int, max_wait_ms: int = 300) -> None:
    """One Fetch of every reader's partition; each takes its own."""
    said = client.fetch(version, [reader.asked() for reader in readers], max_wait_ms=max_wait_ms)
    by_partition = {one.partition: (one, records) for one, records in said}
    assert set(by_partition) == {reader.partition for reader in readers}, "every partition is named"
    for reader in readers:
        reader.take(*by_partition[reader.partition])


@pytest.mark.parametrize("version", VERSIONS)
def test_history_and_tail_in_one_request(pair: Pair, version: int) -> None:
    topic = create_topic(pair.direct, partitions=2)
    produce(pair.direct, topic, 0, OLD_RECORDS)
    with RawClient(pair.through, "split") as client:
        tail = RawReader(client, topic, partition=1, version=version).settle()
        history = RawReader(client, topic, partition=0, version=version)
        before = pair.sidecar.fetch_counts()
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(produce, pair.through, topic, 1, 400)
            while not writing.done() or tail.offset < 400 or history.offset < OLD_RECORDS:
                poll_both(client, [history, tail], version)
            writing.result()
        counts = pair.sidecar.fetch_counts()
        assert counts.get(("pass", "mixed"), 0) == before.get(("pass", "mixed"), 0)
        missed = counts["miss", "cold"] - before.get(("miss", "cold"), 0)
        assert missed >= 0.8 * len(history.raw), "history came from the broker, beside"
    for reader in (history, tail):
        direct = read_all(pair.direct, topic, partition=reader.partition, version=version)
        assert bytes(reader.raw) == direct, explain(bytes(reader.raw), direct)


def test_the_tail_does_not_wait_for_history(pair: Pair) -> None:
    """While one partition reads history, records of the other arrive as soon as they would alone."""
    topic = create_topic(pair.direct, partitions=2)
    produce(pair.direct, topic, 0, OLD_RECORDS)
    with RawClient(pair.through, "split") as client, RawClient(pair.through, "writer") as writer:
        tail = RawReader(client, topic, partition=1).settle()
        history = RawReader(client, topic, partition=0)
        delays = []
        for turn in range(20):
            offset = tail.offset
            produce(pair.through, topic, 1, 1)
            started = time.monotonic()
            while tail.offset == offset:
                poll_both(client, [history, tail], 13, max_wait_ms=2000)
            delays.append(time.monotonic() - started)
            if history.offset >= OLD_RECORDS:
                history.offset = 0
            assert turn >= 0
        assert sorted(delays)[10] < 0.5, delays
        assert writer is not None


def test_seeks_pauses_and_forgotten_partitions(pair: Pair) -> None:
    """A walk at random over three partitions: whatever is asked when, each answer is the log at that offset."""
    topic = create_topic(pair.direct, partitions=3)
    for partition in range(3):
        produce(pair.direct, topic, partition, 800)
    truth = {p: read_all(pair.direct, topic, partition=p) for p in range(3)}
    draw = random.Random(7)
    with RawClient(pair.through, "walk") as client:
        readers = [RawReader(client, topic, partition=p).settle() for p in range(3)]
        for _ in range(150):
            chosen = draw.sample(readers, draw.randint(1, 3))
            for reader in chosen:
                if draw.random() < 0.4:
                    reader.offset = draw.choice([0, draw.randrange(800), 800])
                reader.raw.clear()
            poll_both(client, sorted(chosen, key=lambda r: r.partition), 13, max_wait_ms=20)
            for reader in chosen:
                assert bytes(reader.raw) in truth[reader.partition]
                assert reader.high_watermark == 800
    assert pair.sidecar.fetch_counts("partitions").get(("pass", "mixed"), 0) == 0


def test_an_error_beside_is_the_brokers_own(pair: Pair) -> None:
    """An offset that is not there, beside a partition with data: both are told in one answer, as by the broker."""
    topic = create_topic(pair.direct, partitions=2)
    produce(pair.direct, topic, 0, 10)
    with RawClient(pair.through, "error") as client:
        tail = RawReader(client, topic, partition=1).settle()
        beyond = RawReader(client, topic, partition=0, offset=10_000)
        said = client.fetch(13, [beyond.asked(), tail.asked()], max_wait_ms=500)
        errors = {one.partition: one.error_code for one, _ in said}
        assert errors == {0: 1, 1: 0}


def test_what_is_read_beside_is_accounted_once(pair: Pair) -> None:
    topic = create_topic(pair.direct, partitions=2)
    produce(pair.direct, topic, 0, OLD_RECORDS)
    with RawClient(pair.through, "accounts") as client:
        tail = RawReader(client, topic, partition=1).settle()
        before = pair.sidecar.fetch_counts()
        history = RawReader(client, topic, partition=0)
        while history.offset < OLD_RECORDS:
            poll_both(client, [history, tail], 13)
        after = pair.sidecar.fetch_counts()
        grown = {key: value - before.get(key, 0) for key, value in after.items()}
        assert sum(grown.values()) == history.received_bytes
        assert grown.get(("miss", "pending"), 0) == 0
