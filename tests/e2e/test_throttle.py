"""Lagging consumers on a busy disk wait; what tails, writes or has waited long enough does not.

The broker is real. The disk is not: its /proc/diskstats is a file that the test writes, so that it is busy
when the test says so (fake_disks.py; bench/pollution proves the same on a real one).
"""

from __future__ import annotations

import json
import threading
import time
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from proxy.fetch.completion import GRACE_S
from proxy.scheduling.disk_throttle import START_BYTES
from tests.e2e.fake_disks import FLOOR_BYTES, FakeDisk, FakeDisks, build_throttle
from tests.kit.broker.topics import create_topic
from tests.kit.log_lines import unfold
from tests.kit.raw_fetch import RawClient, RawReader, read_all
from tests.kit.sidecar import Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

OLD_RECORDS = 4000
SMALL_BYTES = 200_000


@pytest.fixture(scope="module")
def disk(disks: FakeDisks) -> FakeDisk:
    return disks.disks["sdx"]


@pytest.fixture(scope="module")
def pair(disks: FakeDisks, proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(settings={"throttle": build_throttle(disks)}, shared=proxied) as running:
        yield running


@pytest.fixture(autouse=True)
def calm(disk: FakeDisk, pair: Pair) -> Iterator[None]:
    yield
    disk.busy = False
    wait_until(lambda: pair.sidecar.metrics()["forebay_throttle_disk_busy", "sdx"] == 0)


def wait_until(is_so: object, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)


def make_busy(pair: Pair, disk: FakeDisk) -> None:
    """Busy, and for so long that the controller is at its floor."""
    disk.busy = True
    rate = ("forebay_throttle_rate_bytes_per_second", "sdx")
    wait_until(lambda: pair.sidecar.metrics()[rate] <= FLOOR_BYTES)


def make_fast(pair: Pair) -> None:
    """At a rate whose surge between two looks bears all of OLD_RECORDS, as Forebay has it at its start. A busy disk
    has lowered it, and it grows to what the disk has borne: that may be less.
    """
    assert pair.sidecar.stop() == 0
    pair.sidecar.start()
    rate = ("forebay_throttle_rate_bytes_per_second", "sdx")
    wait_until(lambda: pair.sidecar.metrics()[rate] >= START_BYTES)


def produce(bootstrap: str, topic: str, partition: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, "batch.size": 16_000})
    for number in range(count):
        producer.produce(topic, b"%d-" % number + b"v" * 1000, partition=partition)
        producer.poll(0)
    assert producer.flush(120) == 0


def is_delayed(reader: RawReader) -> bool:
    """Whether its next Fetch from the start brings nothing: what is not proven yet, the broker answers."""
    reader.offset = 0
    return not reader.poll(max_wait_ms=20)


def rewind(*readers: RawReader) -> None:
    """To the start, in bites of SMALL_BYTES."""
    for reader in readers:
        reader.read_past_errors()
        reader.offset, reader.max_bytes = 0, SMALL_BYTES
        reader.raw.clear()
        reader.received_bytes = 0


def throttled(pair: Pair, name: str) -> float:
    return pair.sidecar.metrics()[f"forebay_throttle_{name}_total", "sdx"]


@pytest.mark.alone
def test_history_waits_and_is_read_whole_the_tail_does_not(pair: Pair, disk: FakeDisk) -> None:
    topic = create_topic(pair.direct, partitions=2)
    produce(pair.direct, topic, 0, OLD_RECORDS)
    delayed = throttled(pair, "delayed")
    with (
        RawClient(pair.through, "lagging") as client,
        RawClient(pair.through, "tailing") as other,
        RawClient(pair.direct, "past") as third,
    ):
        history = RawReader(client, topic, partition=0)
        rewind(history)
        tail = RawReader(other, topic, partition=1).settle()
        control = RawReader(third, topic, partition=1).settle()
        make_busy(pair, disk)
        waits, delays, past = [], [], []
        started = time.monotonic()
        while history.offset < OLD_RECORDS:
            asked_at = time.monotonic()
            history.poll(max_wait_ms=200)
            waits.append(time.monotonic() - asked_at)
            if len(waits) % 3 == 0:
                delays.append(measure_delay(pair.through, tail, control.offset))
                past.append(measure_delay(pair.direct, control, tail.offset))
        took_s = time.monotonic() - started
        size_bytes = len(history.raw)
        assert bytes(history.raw) == read_all(pair.direct, topic, partition=0)
    assert throttled(pair, "delayed") > delayed
    assert took_s > size_bytes / FLOOR_BYTES / 3, "half a MiB a second was the budget"
    assert max(waits) < max(2.0, 4 * max(past)), "no fetch is held beyond its max_wait"
    assert median(delays) < max(0.2, 3 * median(past)), (delays, past)


def measure_delay(address: str, tail: RawReader, start: int) -> float:
    """Seconds from the acknowledgement of a record to its arrival at the reader, which has read up to `start`."""
    tail.read_to(start)
    offset = tail.offset
    produce(address, tail.topic.name, 1, 1)
    written_at = time.monotonic()
    while tail.offset == offset:
        tail.poll(500)
    return time.monotonic() - written_at


def test_on_an_idle_disk_every_fetch_brings_its_bytes_also_one_that_does_not_wait(
    pair: Pair,
) -> None:
    topic = create_topic(pair.direct)
    produce(pair.direct, topic, 0, OLD_RECORDS)
    make_fast(pair)
    with RawClient(pair.through, "eager") as client:
        history = RawReader(client, topic)
        rewind(history)
        while history.offset < OLD_RECORDS:
            asked_at = time.monotonic()
            brought = history.poll(max_wait_ms=0)
            assert brought or time.monotonic() - asked_at > GRACE_S, (
                "empty, and the broker was not that slow"
            )
        assert bytes(history.raw) == read_all(pair.direct, topic)


def test_a_delayed_miss_keeps_its_place_from_fetch_to_fetch(pair: Pair, disk: FakeDisk) -> None:
    """Fetches come and go every 50 ms; the miss is submitted once, and collected when it has arrived."""
    topic = create_topic(pair.direct)
    produce(pair.direct, topic, 0, OLD_RECORDS)
    with RawClient(pair.through, "patient") as client:
        history = RawReader(client, topic)
        history.read_past_errors()
        rewind(history)
        make_busy(pair, disk)
        granted, cancelled = throttled(pair, "granted"), throttled(pair, "cancelled")
        bites, most = 0, 0
        while history.offset < OLD_RECORDS // 2:
            polls = 0
            while history.poll(max_wait_ms=50) == 0:
                polls += 1
                assert history.high_watermark == OLD_RECORDS, (
                    "named with what the broker last confirmed"
                )
                assert polls < 400
            bites, most = bites + 1, max(most, polls)
        assert most > 1, "some bite was waited for over several fetches"
        assert throttled(pair, "granted") - granted == bites
        assert throttled(pair, "cancelled") == cancelled


def test_seeking_away_gives_the_place_up(pair: Pair, disk: FakeDisk) -> None:
    topic = create_topic(pair.direct)
    produce(pair.direct, topic, 0, OLD_RECORDS)
    with RawClient(pair.through, "fickle") as client, RawClient(pair.through, "greedy") as other:
        history, rival = RawReader(client, topic), RawReader(other, topic)
        history.read_past_errors()
        rival.read_past_errors()
        make_busy(pair, disk)
        cancelled = throttled(pair, "cancelled")
        rewind(history, rival)
        for _ in range(200):
            rival.poll(max_wait_ms=20)
            history.offset = 100 if history.offset != 100 else 200
            history.poll(max_wait_ms=20)
            if throttled(pair, "cancelled") > cancelled:
                break
        else:
            pytest.fail("no place was given up")


def test_equal_laggards_get_equal_shares(pair: Pair, disk: FakeDisk) -> None:
    topic = create_topic(pair.direct, partitions=3)
    for partition in range(3):
        produce(pair.direct, topic, partition, OLD_RECORDS)
    got: dict[Any, Any] = {}

    def read(partition: int) -> None:
        with RawClient(pair.through, f"laggard-{partition}") as client:
            reader = RawReader(client, topic, partition=partition)
            reader.read_past_errors()
            ready.wait()
            rewind(reader)
            deadline = time.monotonic() + 12
            while time.monotonic() < deadline and reader.offset < OLD_RECORDS:
                reader.poll(200)
            got[partition] = reader.received_bytes

    ready = threading.Barrier(4)
    threads = [threading.Thread(target=read, args=(partition,)) for partition in range(3)]
    for thread in threads:
        thread.start()
    make_busy(pair, disk)
    ready.wait()
    for thread in threads:
        thread.join()
    assert max(got.values()) - min(got.values()) <= max(1.2 * (1 << 20), 0.3 * max(got.values())), (
        got
    )


def test_a_real_client_catches_up_under_pressure_without_noticing_more_than_time(
    pair: Pair, disk: FakeDisk
) -> None:
    topic = create_topic(pair.direct, partitions=2)
    for partition in range(2):
        produce(pair.direct, topic, partition, 1500)
    make_busy(pair, disk)
    consumer = Consumer(
        {"bootstrap.servers": pair.through, "group.id": "slow", "fetch.wait.max.ms": 100}
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(2)])
    seen: dict[int, list[int]] = {0: [], 1: []}
    deadline = time.monotonic() + 60
    while sum(map(len, seen.values())) < 3000 and time.monotonic() < deadline:
        for message in consumer.consume(500, 0.5):
            assert message.error() is None
            place: Any = message
            seen[place.partition()].append(place.offset())
    consumer.close()
    assert seen == {0: list(range(1500)), 1: list(range(1500))}


def test_nothing_is_left_of_clients_that_are_gone(pair: Pair, disk: FakeDisk) -> None:
    """Waiting, granted and under way: every ticket and every byte is given back."""
    topic = create_topic(pair.direct)
    produce(pair.direct, topic, 0, OLD_RECORDS)
    make_busy(pair, disk)
    clients = [RawClient(pair.through, f"leaving-{number}") for number in range(8)]
    for client in clients:
        history = RawReader(client, topic)
        rewind(history)
        for _ in range(3):
            history.poll(max_wait_ms=20)
        history.client.send_fetch(history.version, [history.asked()], max_wait_ms=10_000)
    wait_until(lambda: pair.sidecar.metrics()["forebay_throttle_waiting_requests", "sdx"] > 0)
    for client in clients:
        client.abort()

    def is_clear() -> bool:
        queue = json.loads(pair.sidecar.admin("/throttle"))["disks"]["sdx"]["queue"]
        kept = [queue[what] for what in ("waiting_requests", "waiting_bytes", "in_flight_requests")]
        return (
            kept == [0, 0, 0] and pair.sidecar.metrics()["forebay_in_flight_bytes", "response"] == 0
        )

    wait_until(is_clear)
    assert pair.sidecar.metrics()["forebay_internal_errors_total",] == 0


def test_throttle_shows_its_state(pair: Pair) -> None:
    shown = json.loads(pair.sidecar.admin("/throttle"))
    assert shown["disks"]["sdx"]["sampled"] is True


def test_a_stop_does_not_wait_for_what_is_delayed(pair: Pair, disk: FakeDisk) -> None:
    topics = [
        create_topic(pair.direct) for _ in range(2)
    ]  # what both read of one topic, they would share
    for topic in topics:
        produce(pair.direct, topic, 0, OLD_RECORDS)
    make_busy(pair, disk)
    with RawClient(pair.through, "one") as client, RawClient(pair.through, "other") as other:
        for reader in (RawReader(client, topics[0]), RawReader(other, topics[1])):
            rewind(reader)
            reader.max_bytes = 4 << 20  # at the floor, eight seconds
            wait_until(partial(is_delayed, reader))
            reader.client.send_fetch(reader.version, [reader.asked()], max_wait_ms=30_000)
        wait_until(lambda: pair.sidecar.metrics()["forebay_throttle_waiting_requests", "sdx"] > 0)
        started = time.monotonic()
        assert pair.sidecar.stop() == 0
        assert time.monotonic() - started < 15
    said = pair.sidecar.log_path.read_text()
    pair.sidecar.start()
    assert not any(word in said for word in ("Traceback", "never retrieved", "was destroyed"))


def test_each_delay_is_in_the_access_log_of_the_fetch_that_collects_it(
    pair: Pair, disk: FakeDisk
) -> None:
    topic = create_topic(pair.direct)
    produce(pair.direct, topic, 0, OLD_RECORDS)
    with RawClient(pair.through, "logged") as client:
        history = RawReader(client, topic)
        history.read_past_errors()
        rewind(history)
        make_busy(pair, disk)
        before_s = pair.sidecar.metrics()["forebay_throttle_delay_seconds_total", "sdx"]
        history.read_to(OLD_RECORDS // 2, max_wait_ms=100)
        delayed_s = pair.sidecar.metrics()["forebay_throttle_delay_seconds_total", "sdx"] - before_s
    assert pair.sidecar.stop() == 0
    lines = [
        line for line in unfold(pair.sidecar.access_lines()) if line.get("clientId") == "logged"
    ]
    pair.sidecar.start()
    late = [line for line in lines if line.get("delayMs") is not None]
    assert late and all(
        line["delayMs"] > 0 and line["bytes"] and line["result"] == "miss" for line in late
    )
    assert sum(line["delayMs"] for line in late) / 1000 == pytest.approx(delayed_s, rel=0.01)
    pending = [line for line in lines if line.get("reason") == "pending"]
    assert pending and all(line["type"] == "empty" for line in pending), (
        "what was named empty meanwhile has waited for nothing yet"
    )
