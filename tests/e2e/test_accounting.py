"""The access log, the counters and what clients received agree exactly: partitions and bytes.

Every fetch here is a raw client's, which counts its own record bytes; consumers of real libraries would fetch
at moments of their own.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from metrics.access_log_schema import BLOCK_SOURCES, LINE_TYPES, RESULTS
from protocol import fetch
from tests.kit.broker.topics import create_topic
from tests.kit.log_lines import unfold
from tests.kit.raw_fetch import RawClient, RawReader
from tests.kit.sidecar import PATIENT_CACHE, Pair, ProxiedBroker
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0
CALM_FETCHES = 6
TOGETHER = 6
REPLICA_ID_AT = 4 + 2 + 2 + 4 + 2 + 1
"""Where a Fetch 13 of an empty client id has it: size, api key, version, correlation id, client id, tags."""


class Traffic:
    """What the clients of this file did: record bytes and partitions of fetches by client id."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.received_bytes: Counter[str] = Counter()
        self.partitions: Counter[str] = Counter()
        self.undelivered = 0

    def fetch(
        self,
        client: RawClient,
        readers: list[RawReader],
        *,
        wait_ms: int = 50,
        isolation_level: int = 0,
    ) -> bool:
        """One Fetch for all readers, counted; whether it met no error."""
        answered = client.fetch(
            readers[0].version,
            [reader.asked() for reader in readers],
            max_wait_ms=wait_ms,
            isolation_level=isolation_level,
        )
        for said, records in answered:
            reader = next(r for r in readers if r.asked()[:2] == said[:2])
            self.received_bytes[client.client_id] += len(records)
            if not said.error_code:
                reader.take(said, records)
        self.partitions[client.client_id] += len(readers)
        return not any(said.error_code for said, _ in answered)

    def settle(self, client: RawClient, readers: list[RawReader], isolation_level: int = 0) -> None:
        """Stand at the tail for a while: a new topic's first fetches may meet errors, or be the broker's."""
        deadline = time.monotonic() + PATIENCE_S
        calm = 0
        while calm < CALM_FETCHES and time.monotonic() < deadline:
            calm += self.fetch(client, readers, isolation_level=isolation_level)


def write(pair: Pair, topic: str, records: int, partitions: int = 1) -> None:
    producer = Producer({"bootstrap.servers": pair.through, "linger.ms": 0})
    for number in range(records):
        producer.produce(topic, b"value" * 50, partition=number % partitions)
        producer.poll(0)
    assert producer.flush(20) == 0


def tail(traffic: Traffic) -> None:
    """Every encoding, from memory."""
    for version in (4, 11, 13, 17):
        topic = create_topic(traffic.pair.direct)
        with RawClient(traffic.pair.through, f"tail-{version}") as client:
            reader = RawReader(client, topic, version=version)
            traffic.settle(client, [reader])
            for _ in range(10):
                write(traffic.pair, topic, 5)
                traffic.fetch(client, [reader], wait_ms=500)


def read_history(traffic: Traffic) -> None:
    """Written before anybody watched, larger than one answer, with batches that are cut."""
    topic = create_topic(traffic.pair.direct)
    with RawClient(traffic.pair.direct) as writer:
        for _ in range(30):
            writer.produce(topic, batch_v2(2, value=b"old" * 1000))
    with RawClient(traffic.pair.through, "history") as client:
        reader = RawReader(client, topic)
        while reader.offset < 60:
            (asked,) = [reader.asked()._replace(max_bytes=20_000)]
            ((said, records),) = client.fetch(13, [asked], max_wait_ms=100)
            traffic.received_bytes["history"] += len(records)
            traffic.partitions["history"] += 1
            reader.take(said, records)


def read_together(traffic: Traffic) -> None:
    """Several consumers at the same cold offsets: what one reads of the broker may be given to all."""
    topic = create_topic(traffic.pair.direct)
    with RawClient(traffic.pair.direct) as writer:
        for _ in range(40):
            writer.produce(topic, batch_v2(2, value=b"old" * 1000))
    with ExitStack() as stack, ThreadPoolExecutor(TOGETHER) as pool:
        clients = [
            stack.enter_context(RawClient(traffic.pair.through, "together"))
            for _ in range(TOGETHER)
        ]
        readers = [RawReader(client, topic) for client in clients]
        for client, reader in zip(clients, readers, strict=True):
            traffic.settle(client, [reader])
            reader.offset = 0
        while readers[0].offset < 80:
            asking = [
                pool.submit(c.fetch, 13, [r.asked()._replace(max_bytes=20_000)], max_wait_ms=100)
                for c, r in zip(clients, readers, strict=True)
            ]
            for reader, asked in zip(readers, asking, strict=True):
                ((said, records),) = asked.result()
                traffic.received_bytes["together"] += len(records)
                traffic.partitions["together"] += 1
                reader.take(said, records)


def read_several(traffic: Traffic) -> None:
    """Requests of three partitions, some at the tail, some behind it."""
    topic = create_topic(traffic.pair.direct, partitions=3)
    with RawClient(traffic.pair.through, "several") as client:
        readers = [RawReader(client, topic, partition=index) for index in range(3)]
        traffic.settle(client, readers)
        for turn in range(12):
            write(traffic.pair, topic, 9, partitions=1 + turn % 3)
            traffic.fetch(client, readers, wait_ms=300)
        readers[1].offset = 0
        traffic.fetch(client, readers)


def read_committed(traffic: Traffic) -> None:
    """A transaction among plain records."""
    topic = create_topic(traffic.pair.direct)
    with RawClient(traffic.pair.through, "committed") as client:
        reader = RawReader(client, topic)
        traffic.settle(client, [reader], isolation_level=1)
        write(traffic.pair, topic, 5)
        traffic.fetch(client, [reader], isolation_level=1)
        producer = Producer({"bootstrap.servers": traffic.pair.through, "transactional.id": topic})
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.produce(topic, b"in a transaction", partition=0)
        producer.commit_transaction(20)
        for _ in range(4):
            traffic.fetch(client, [reader], wait_ms=100, isolation_level=1)


def meet_errors(traffic: Traffic) -> None:
    """An offset out of range, and a topic that is not there."""
    topic = create_topic(traffic.pair.direct)
    with RawClient(traffic.pair.through, "errors") as client:
        reader = RawReader(client, topic)
        traffic.fetch(client, [reader])
        reader.offset = 10_000
        for _ in range(3):
            traffic.fetch(client, [reader])
        reader.topic = reader.topic._replace(id=bytes(15) + b"\x07")
        for _ in range(2):
            traffic.fetch(client, [reader])


def ask_as_a_replica(traffic: Traffic) -> None:
    """A replica's Fetch is the broker's to answer, whatever memory has."""
    topic = create_topic(traffic.pair.direct)
    with RawClient(traffic.pair.through, "replica") as client:
        reader = RawReader(client, topic)
        traffic.settle(client, [reader])
        frame = bytearray(client.build_fetch(13, [reader.asked()], max_wait_ms=50))
        struct.pack_into(">i", frame, REPLICA_ID_AT + len(client.client_id), 7)
        (said,) = fetch.scan_response(client.call(bytes(frame)), 13).partitions
        assert said.error_code, "no replica of this topic has such an id"
        traffic.partitions["replica"] += 1


def leave_early(traffic: Traffic) -> None:
    """A client that goes away while it is parked is counted apart, without a line."""
    topic = create_topic(traffic.pair.direct)
    client = RawClient(traffic.pair.through, "leaves")
    reader = RawReader(client, topic)
    traffic.settle(client, [reader])
    client.send_fetch(13, [reader.asked()], max_wait_ms=30_000)
    wait_for(lambda: traffic.pair.sidecar.metrics()["forebay_parked_fetches",] == 1)
    client.abort()
    traffic.undelivered += 1


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.05)


class Accounts:
    """What remained when the process had ended."""

    def __init__(self, traffic: Traffic, pair: Pair) -> None:
        self.traffic = traffic
        total = sum(traffic.partitions.values())
        wait_for(lambda: sum(pair.sidecar.fetch_counts("partitions").values()) >= total)
        undelivered = "forebay_fetch_undelivered_partitions_total"
        wait_for(lambda: pair.sidecar.metrics()[undelivered,] >= traffic.undelivered)
        self.bytes = pair.sidecar.fetch_counts("bytes")
        self.partitions = pair.sidecar.fetch_counts("partitions")
        self.metrics = pair.sidecar.metrics()
        assert pair.sidecar.stop() == 0
        self.lines = pair.sidecar.access_lines()
        self.fetches = [line for line in unfold(self.lines) if line["type"] == "fetch"]
        self.empties = [line for line in self.lines if line["type"] == "empty"]
        self.blocks = [line for line in self.lines if line["type"] == "block"]

    def sum_lines(self, size: Callable[[dict[str, Any]], int]) -> dict[tuple[str, str], int]:
        """(result, reason) -> sum over the lines about Fetches, those above zero."""
        sums: Counter[tuple[str, str]] = Counter()
        for line in self.fetches + self.empties:
            sums[line["result"], line["reason"]] += size(line)
        return dict(+sums)


def count_partitions(line: dict[str, Any]) -> int:
    """How many partitions of responses a line about Fetches stands for."""
    return int(line["partitions"]) if line["type"] == "empty" else 1


@pytest.fixture(scope="module")
def accounts(proxied: ProxiedBroker) -> Iterator[Accounts]:
    with Pair(settings={"cache": PATIENT_CACHE}, shared=proxied) as pair:
        traffic = Traffic(pair)
        for act in (
            tail,
            read_history,
            read_together,
            read_several,
            read_committed,
            meet_errors,
            ask_as_a_replica,
            leave_early,
        ):
            act(traffic)
        yield Accounts(traffic, pair)


def test_bytes_agree_at_the_client_in_the_counters_and_in_the_log(accounts: Accounts) -> None:
    assert accounts.sum_lines(lambda line: int(line.get("bytes", 0))) == accounts.bytes
    by_client: Counter[str] = Counter()
    for line in accounts.fetches:
        by_client[line["clientId"]] += line["bytes"]
    assert +by_client == +accounts.traffic.received_bytes


def test_every_partition_of_every_fetch_is_in_one_line_and_has_one_verdict(
    accounts: Accounts,
) -> None:
    by_client: Counter[str] = Counter()
    for line in accounts.fetches + accounts.empties:
        by_client[line["clientId"]] += count_partitions(line)
    assert by_client == accounts.traffic.partitions
    assert accounts.sum_lines(count_partitions) == accounts.partitions
    assert all(line["bytes"] for line in accounts.fetches), (
        "no other is in a line of a response here"
    )
    for result, reason in accounts.partitions:
        assert reason in RESULTS[result]
    for line in accounts.lines:
        assert list(line) == [field.name for field in LINE_TYPES[line["type"]]]


def test_the_traffic_was_of_every_kind(accounts: Accounts) -> None:
    """Else the other tests would compare little."""
    assert {result for result, _ in accounts.partitions} == {"hit", "miss", "pass"}
    assert {"unauthorized-yet", "cold", "follower"} <= {reason for _, reason in accounts.partitions}
    tails = [line for line in accounts.fetches if line["clientId"].startswith("tail-")]
    hits = sum(line["bytes"] for line in tails if line["result"] == "hit")
    others = [line for line in tails if line["result"] != "hit"]
    assert hits >= 0.9 * sum(line["bytes"] for line in tails), others


def test_who_left_early_is_counted_and_not_in_the_log(accounts: Accounts) -> None:
    undelivered = accounts.metrics["forebay_fetch_undelivered_partitions_total",]
    assert undelivered == accounts.traffic.undelivered
    assert accounts.metrics["forebay_parked_fetches",] == 0


def test_bytes_admitted_are_the_block_lines_bytes(accounts: Accounts) -> None:
    admitted = sum(line["bytes"] for line in accounts.blocks)
    assert admitted == accounts.metrics["forebay_cache_admitted_bytes_total",]
    assert admitted == max(line["admittedBytes"] for line in accounts.blocks)
    assert {line["source"] for line in accounts.blocks} <= set(BLOCK_SOURCES)


def test_no_line_was_dropped(accounts: Accounts) -> None:
    closing = accounts.lines[-1]
    assert (closing["type"], closing["event"]) == ("log", "close")
    assert closing["droppedLines"] == 0
    assert closing["writtenLines"] == sum(line["type"] != "log" for line in accounts.lines)


def test_what_came_from_the_broker_for_clients_is_what_was_not_hit(accounts: Accounts) -> None:
    forwarded = sum(size for (result, _), size in accounts.bytes.items() if result != "hit")
    shared = accounts.metrics["forebay_fetch_shared_bytes_total",]
    assert accounts.metrics["forebay_upstream_fetch_bytes_total", "client"] + shared == forwarded
