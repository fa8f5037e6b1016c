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

from protocol import fetch
from protocol.fetch import TOPIC_IDS_FROM
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, RawReader, explain, read_all
from tests.kit.sidecar import PATIENT_CACHE, Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from protocol.fetch import FetchedPartition

pytestmark = pytest.mark.e2e

FETCHED_BYTES = ("forebay_upstream_fetch_bytes_total", "client")
LONG_WAIT_MS = 600_000
VERSIONS = (4, 11, 12, 13, 17)
OLD_RECORDS = 3000
STEP_BYTES = 256 << 10
"""Of history a Fetch: one that finds both proofs lapsed and the broker slow goes to it whole, and is a small part.
"""


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(settings={"cache": PATIENT_CACHE}, shared=proxied) as running:
        yield running


def produce(bootstrap: str, topic: str, partition: int, count: int, codec: str = "none") -> None:
    options = {"linger.ms": 1, "batch.size": 16_000, "compression.type": codec}
    producer = Producer({"bootstrap.servers": bootstrap} | options)
    for number in range(count):
        producer.produce(topic, b"%d-" % number + b"v" * 1000, partition=partition)
        producer.poll(0)
    assert producer.flush(30) == 0


def poll_both(
    client: RawClient, readers: list[RawReader], version: int, max_wait_ms: int = 300
) -> None:
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
        history.max_bytes = STEP_BYTES
        before = pair.sidecar.fetch_counts()
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(produce, pair.through, topic, 1, 400)
            while not writing.done() or tail.offset < 400 or history.offset < OLD_RECORDS:
                poll_both(client, [history, tail], version)
            writing.result()
        counts = pair.sidecar.fetch_counts()
        grown = {key: count - before.get(key, 0) for key, count in counts.items()}
        assert grown.get(("pass", "mixed"), 0) == 0
        assert grown["miss", "cold"] >= 0.8 * len(history.raw), (
            f"history came from the broker, beside: {grown}"
        )
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


def tell(said: list[tuple[FetchedPartition, bytes]]) -> list[tuple[object, ...]]:
    """All that an answer says of its partitions, but for where in the frame the records lie."""
    return sorted((*one[:-2], records) for one, records in said)


@pytest.mark.parametrize("version", [12, 13])
def test_an_unknown_topic_costs_the_others_no_hits(pair: Pair, version: int) -> None:
    """Each answer is the broker's own to the same question, and what memory holds comes from memory."""
    topic = create_topic(pair.direct)
    produce(pair.direct, topic, 0, 1)
    with RawClient(pair.through, "odd") as client, RawClient(pair.direct, "odd") as direct:
        tail = RawReader(client, topic, version=version).settle()
        nobody = bytes(15) + b"\x07" if version >= TOPIC_IDS_FROM else "not-there"
        odd = tail.asked()._replace(topic=nobody, fetch_offset=0)
        before = pair.sidecar.fetch_counts()
        for _ in range(5):
            produce(pair.through, topic, 0, 3)
            time.sleep(0.1)  # an error is answered at once, with what is confirmed by then
            asked = [odd, tail.asked()]
            said = client.fetch(version, asked, max_wait_ms=500)
            assert tell(said) == tell(direct.fetch(version, asked, max_wait_ms=500))
            tail.take(*next(one for one in said if one[0].topic == tail.asked().topic))
        grown = {k: v - before.get(k, 0) for k, v in pair.sidecar.fetch_counts().items()}
        assert {k for k, v in grown.items() if v} == {("hit", "")}


def test_what_is_too_new_for_the_client_costs_the_others_no_hits(pair: Pair) -> None:
    """zstd for a Fetch below version 10: whatever the broker says to it, beside a partition from memory."""
    packed, plain = (
        create_topic(pair.direct, config={"compression.type": "zstd"}),
        create_topic(pair.direct),
    )
    with RawClient(pair.through, "old") as client, RawClient(pair.direct, "old") as direct:
        RawReader(client, packed, version=9).settle()
        produce(pair.through, packed, 0, 3, "zstd")  # from here on Forebay knows of the codec
        tail = RawReader(client, plain, version=9).settle()
        produce(pair.through, plain, 0, 3)
        time.sleep(0.1)
        asked = [RawReader(client, packed, version=9).asked(), tail.asked()]
        before = pair.sidecar.fetch_counts(), pair.sidecar.fetch_counts("partitions")
        said = client.fetch(9, asked, max_wait_ms=500)
        assert tell(said) == tell(direct.fetch(9, asked, max_wait_ms=500))
        after = pair.sidecar.fetch_counts(), pair.sidecar.fetch_counts("partitions")
    grown = [{k: v - b.get(k, 0) for k, v in a.items()} for b, a in zip(before, after, strict=True)]
    by_topic = {one.topic: len(records) for one, records in said}
    assert grown[0]["hit", ""] == by_topic[plain] > 0
    assert {k for k, v in grown[1].items() if v} == {("hit", ""), ("pass", "version")}


def test_what_memory_cannot_speak_for_ends_the_wait_as_at_the_broker(pair: Pair) -> None:
    """A Fetch stands at two tails. One is only the broker's to read: its next record arrives at once."""
    packed, plain = (
        create_topic(pair.direct, config={"compression.type": "zstd"}),
        create_topic(pair.direct),
    )
    with RawClient(pair.through, "both") as client, ThreadPoolExecutor(1) as pool:
        odd, tail = (RawReader(client, topic, version=9).settle() for topic in (packed, plain))
        produce(pair.through, packed, 0, 3, "zstd")
        odd.read_to(3)
        for _ in range(3):
            asking = pool.submit(client.fetch, 9, [odd.asked(), tail.asked()], max_wait_ms=30_000)
            time.sleep(0.3)
            produce(pair.direct, packed, 0, 1, "zstd")
            started = time.monotonic()
            ((said, records),) = [one for one in asking.result() if one[0].topic == packed]
            assert time.monotonic() - started < 15
            assert odd.take(said, records) > 0
        both = client.fetch(9, [odd.asked(), tail.asked()], max_wait_ms=300)
        assert [(one.error_code, one.high_watermark, records) for one, records in both] == [
            (0, odd.offset, b""),
            (0, 0, b""),
        ]


@pytest.mark.parametrize("is_beside_a_tail", [True, False])
def test_fetches_sent_together_bring_history_of_several_offsets(
    pair: Pair, is_beside_a_tail: bool
) -> None:
    """Each brings what it asks for, and the broker is not asked again and again."""
    topic = create_topic(pair.direct, partitions=2)
    produce(pair.direct, topic, 0, OLD_RECORDS)
    with RawClient(pair.through, "split") as client:
        tail = RawReader(client, topic, partition=1).settle()
        history = RawReader(client, topic).settle()  # its offsets are known
        before = pair.sidecar.metrics().get(FETCHED_BYTES, 0)
        offsets = [*range(0, OLD_RECORDS, 500), 0, 0]
        for offset in offsets:
            history.offset = offset
            asked = [history.asked(), tail.asked()] if is_beside_a_tail else [history.asked()]
            client.send_fetch(13, asked, max_wait_ms=LONG_WAIT_MS)
        received_bytes = history.received_bytes
        for offset in offsets:
            frame = client.receive()
            history.offset = offset
            found = fetch.scan_response(frame, 13).partitions[0]
            assert history.take(found, frame[found.start : found.end]) > 0
            assert history.offset > offset
        received_bytes = history.received_bytes - received_bytes
        assert pair.sidecar.metrics()[FETCHED_BYTES] - before < 1.1 * received_bytes
