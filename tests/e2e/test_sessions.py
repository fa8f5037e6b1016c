"""Fetch sessions toward clients, kept by Forebay: served from memory, and as a broker keeps them."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from protocol import batch
from protocol.fetch import TOPIC_IDS_FROM, FetchPartition
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, read_all
from tests.kit.session_client import SessionClient
from tests.kit.sidecar import PATIENT_CACHE, Pair, ProxiedBroker
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

PARTITIONS = 40
RECORDS = 400
PATIENCE_S = 60.0
VERSIONS = (7, 11, 12, 13, 17)
LONG_POLL_MS = 60_000
NOT_FOUND, WRONG_EPOCH = 70, 71
NOT_YET = (3, 6, 100)
"""Metadata runs ahead of the log: a fresh topic's partitions may not be there yet."""


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(settings={"cache": PATIENT_CACHE}, shared=proxied) as running:
        yield running


def produce(bootstrap: str, topic: str, partitions: int, count: int, pause_s: float = 0.0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    draw = random.Random(3)
    for number in range(count):
        producer.produce(topic, b"%d-" % number + b"v" * 200, partition=draw.randrange(partitions))
        producer.poll(0)
        if pause_s:
            time.sleep(pause_s)
    assert producer.flush(30) == 0


def want_all(client: SessionClient, topic: str, partitions: int) -> str | bytes:
    words = client.client.topic(topic, partitions)
    key: str | bytes = words.id if client.version >= TOPIC_IDS_FROM else words.name
    for partition in range(partitions):
        client.want[key, partition] = FetchPartition(key, partition, -1, 0, -1, -1, 1 << 20)
    return key


def take(client: SessionClient, response: object, frame: bytes, into: dict[int, bytearray]) -> int:
    """Keep the records of one answer and move on; how many bytes."""
    taken = 0
    for one in response.partitions:  # type: ignore[attr-defined]
        if one.error_code in NOT_YET:
            continue
        assert one.error_code == 0
        batches = batch.scan_batches(frame, max(one.start, 0), max(one.end, 0))
        if not batches:
            continue
        into[one.partition] += frame[one.start : batches[-1].end]
        taken += batches[-1].end - one.start
        key = one.topic, one.partition
        client.want[key] = client.want[key]._replace(fetch_offset=batches[-1].last_offset + 1)
    return taken


def settle(client: SessionClient, into: dict[int, bytearray]) -> None:
    quiet, deadline = 0, time.monotonic() + PATIENCE_S
    while quiet < 8:
        response, frame = client.poll(50)
        take(client, response, frame, into)
        quiet = 0 if any(one.error_code for one in response.partitions) else quiet + 1
        assert time.monotonic() < deadline, "some partition keeps answering with an error"
    assert client.id > 0


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_reads_every_byte_from_memory(pair: Pair, version: int) -> None:
    topic = create_topic(pair.direct, partitions=PARTITIONS)
    with RawClient(pair.through, "session") as raw:
        client = SessionClient(raw, version)
        want_all(client, topic, PARTITIONS)
        into = {partition: bytearray() for partition in range(PARTITIONS)}
        settle(client, into)
        before = pair.sidecar.fetch_counts()
        writing = threading.Thread(
            target=produce, args=(pair.through, topic, PARTITIONS, RECORDS, 0.002)
        )
        writing.start()
        named, polls, taken = 0, 0, 0
        read, deadline = 0, time.monotonic() + PATIENCE_S
        while read < RECORDS and time.monotonic() < deadline:
            response, frame = client.poll(200)
            assert response.error_code == 0
            taken += take(client, response, frame, into)
            named, polls = named + len(response.partitions), polls + 1
            read = sum(asked.fetch_offset for asked in client.want.values())
        writing.join()
        for partition in range(PARTITIONS):
            assert bytes(into[partition]) == read_all(pair.direct, topic, partition=partition)
        after = pair.sidecar.fetch_counts()
        hits = after["hit", ""] - before.get(("hit", ""), 0)
        assert hits >= 0.6 * taken, "most of it came from memory"
        assert named / polls < PARTITIONS / 2, "an incremental answer names what has changed"
        assert pair.sidecar.fetch_counts("partitions").get(("pass", "session"), 0) == 0


def test_an_idle_session_costs_few_bytes_either_way(pair: Pair) -> None:
    topic = create_topic(pair.direct, partitions=PARTITIONS)
    with RawClient(pair.through, "idle") as raw:
        client = SessionClient(raw, 13)
        want_all(client, topic, PARTITIONS)
        settle(client, {partition: bytearray() for partition in range(PARTITIONS)})
        asked, answered = client.request_bytes, client.response_bytes
        for _ in range(10):
            response, _ = client.poll(30)
            assert response.partitions == []
        assert client.request_bytes - asked < 10 * 80
        assert client.response_bytes - answered < 10 * 40


def count_looks(pair: Pair) -> float:
    return pair.sidecar.metrics()["forebay_fetch_looks_total",]


@pytest.mark.parametrize("partitions", [10, 300])
def test_a_poll_looks_at_what_is_new_however_many_stand_at_the_tail(
    pair: Pair, partitions: int
) -> None:
    topic = create_topic(pair.direct, partitions=partitions)
    with RawClient(pair.through, "quiet") as raw:
        client = SessionClient(raw, 13)
        key = want_all(client, topic, partitions)
        into = {partition: bytearray() for partition in range(partitions)}
        settle(client, into)
        idle = []
        for _ in range(4):  # all are looked at once in ten seconds
            before = count_looks(pair)
            for _ in range(10):
                assert client.poll(30)[0].partitions == []
            idle.append(count_looks(pair) - before)
        assert min(idle) == 0, idle
        producer = Producer({"bootstrap.servers": pair.through, "linger.ms": 0})
        busy = []
        for number in range(8):
            before, partition = count_looks(pair), number * 37 % partitions
            producer.produce(topic, b"v" * 100, partition=partition)
            assert producer.flush(PATIENCE_S) == 0
            started, found = time.monotonic(), 0
            while not found:
                response, frame = client.poll(LONG_POLL_MS)
                assert {one.partition for one in response.partitions} <= {partition}
                found = take(client, response, frame, into)
            assert time.monotonic() - started < LONG_POLL_MS / 2000
            busy.append(count_looks(pair) - before)
        assert sorted(busy)[4] < 10, busy
        assert client.want[key, 0].fetch_offset == len(batch.scan_batches(into[0], 0, len(into[0])))


def test_history_of_one_partition_is_read_beside_the_quiet_ones(pair: Pair) -> None:
    """All that is lively is a miss: it goes alone, not with all that its session holds."""
    topic = create_topic(pair.direct, partitions=PARTITIONS)
    with RawClient(pair.direct) as writer:
        writer.topic(topic, PARTITIONS)
        for _ in range(20):
            writer.produce(topic, batch_v2(2, value=b"old" * 100))
    truth = read_all(pair.direct, topic)
    with RawClient(pair.through, "one-lags") as raw:
        client = SessionClient(raw, 13)
        key = want_all(client, topic, PARTITIONS)
        into = {partition: bytearray() for partition in range(PARTITIONS)}
        settle(client, into)
        end = client.want[key, 0].fetch_offset
        before = pair.sidecar.fetch_counts("partitions"), count_looks(pair)
        into[0].clear()
        client.want[key, 0] = client.want[key, 0]._replace(fetch_offset=0, max_bytes=1500)
        while client.want[key, 0].fetch_offset < end:
            response, frame = client.poll(500)
            assert {one.partition for one in response.partitions} <= {0}
            take(client, response, frame, into)
        assert bytes(into[0]) == truth
        grown = {
            k: v - before[0].get(k, 0) for k, v in pair.sidecar.fetch_counts("partitions").items()
        }
        assert {k for k, v in grown.items() if v} <= {
            ("miss", "cold"),
            ("miss", "pending"),
            ("hit", ""),
        }
        assert grown["miss", "cold"] > 3
        assert count_looks(pair) - before[1] < 12 * grown["miss", "cold"]


def test_a_quiet_partition_whose_log_start_moves_is_named(pair: Pair) -> None:
    topic = create_topic(pair.direct, partitions=3)
    told = {}
    produce(pair.direct, topic, 3, 30)
    with RawClient(pair.direct, "start") as direct, RawClient(pair.through, "start") as through:
        clients = [SessionClient(one, 13) for one in (direct, through)]
        for client in clients:
            want_all(client, topic, 3)
            settle(client, {partition: bytearray() for partition in range(3)})
        ends = {key[1]: asked.fetch_offset for key, asked in clients[0].want.items()}
        admin = AdminClient({"bootstrap.servers": pair.direct})
        for future in admin.delete_records([TopicPartition(topic, 1, 4)]).values():
            future.result(10)
        for client, name in zip(clients, ("direct", "through"), strict=True):
            named: list[Any] = []
            deadline = time.monotonic() + PATIENCE_S
            while not named and time.monotonic() < deadline:
                named = [one[:-2] for one in client.poll(100)[0].partitions]
            told[name] = named
        assert told["direct"] == told["through"]
        assert [(one[1], one[3], one[5]) for one in told["through"]] == [(1, ends[1], 4)]


def test_wrong_epochs_foreign_ids_and_closing_are_answered_as_by_the_broker(pair: Pair) -> None:
    topic = create_topic(pair.direct, partitions=2)
    told = {}
    for address in (pair.direct, pair.through):
        with RawClient(address, "epochs") as raw:
            client = SessionClient(raw, 12)
            want_all(client, topic, 2)
            said: list[object] = []
            client.poll(0)
            session_id = client.id
            client.epoch = 5
            said.append(client.poll(0)[0].error_code)
            client.poll(0)
            client.id, client.epoch = session_id ^ 1, 1
            said.append(client.poll(0)[0].error_code)
            client.poll(0)
            kept = client.id
            client.epoch = -1
            closing = client.poll(0)[0]
            said.append((closing.error_code, closing.session_id, len(closing.partitions)))
            client.id, client.epoch = kept, 2
            said.append(client.poll(0)[0].error_code)
            told[address] = said
    assert told[pair.direct] == told[pair.through]
    assert told[pair.through][0] == WRONG_EPOCH
    assert told[pair.through][1] == NOT_FOUND


def test_forgotten_and_added_partitions(pair: Pair) -> None:
    topic = create_topic(pair.direct, partitions=4)
    produce(pair.direct, topic, 4, 200)
    truth = {partition: read_all(pair.direct, topic, partition=partition) for partition in range(4)}
    draw = random.Random(5)
    with RawClient(pair.through, "changing") as raw:
        client = SessionClient(raw, 13)
        key = want_all(client, topic, 4)
        for _ in range(80):
            chosen = draw.sample(range(4), draw.randint(1, 4))
            client.want = {
                (key, p): FetchPartition(key, p, -1, draw.choice([0, 5, 20]), -1, -1, 1 << 20)
                for p in chosen
            }
            response, frame = client.poll(20)
            assert response.error_code == 0
            assert {one.partition for one in response.partitions} <= set(chosen)
            for one in response.partitions:
                if one.end > one.start:
                    assert frame[one.start : one.end] in truth[one.partition]


def test_the_java_consumer_keeps_a_session_and_hits(pair: Pair) -> None:
    topic = create_topic(pair.direct, partitions=8)
    before = pair.sidecar.metrics()["forebay_fetch_partitions_total", "", "hit"]
    writing = threading.Thread(target=produce, args=(pair.through, topic, 8, 1500, 0.004))
    writing.start()
    out = pair.broker.tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server",
        pair.through,
        "--topic",
        topic,
        "--from-beginning",
        "--max-messages",
        "1500",
        "--timeout-ms",
        "120000",
    )
    writing.join()
    assert len(out.splitlines()) == 1500
    metrics = pair.sidecar.metrics()
    assert metrics["forebay_fetch_partitions_total", "", "hit"] > before
    assert metrics["forebay_fetch_partitions_total", "session", "pass"] == 0
