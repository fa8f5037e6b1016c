"""The access log of an ordinary consumer: it grows with news, not with questions, and its totals are the counters'.

A consumer of librdkafka names all of its partitions in each Fetch, and most of them have nothing new.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.kit.broker.topics import create_topic
from tests.kit.log_lines import unfold
from tests.kit.sidecar import PATIENT_CACHE, Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

pytestmark = pytest.mark.e2e

PARTITIONS = 48
RECORDS = 1600
RECORDS_A_SECOND = 500
PATIENCE_S = 60.0
LINES_A_PARTITION = 1.2
"""Most lines for each partition that was answered with records."""
CLIENT = "tail"
SUMS = "forebay_queue_depth", "access_log_sums"


def write_and_read(address: str, topics: Sequence[str]) -> None:
    """Write to the first topic and read all topics at their ends, until every record has come."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    settings = {"bootstrap.servers": address, "client.id": CLIENT, "group.id": "tail"}
    consumer = Consumer(settings | {"auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, i, 0) for topic in topics for i in range(PARTITIONS)])
    begun, written, received = time.monotonic(), 0, 0
    try:
        while received < RECORDS:
            spent_s = time.monotonic() - begun
            assert spent_s < PATIENCE_S, f"{received} of {RECORDS} records came"
            while written < min(RECORDS, spent_s * RECORDS_A_SECOND):
                producer.produce(topics[0], b"value" * 50, partition=written % PARTITIONS)
                written += 1
            producer.poll(0)
            received += sum(not message.error() for message in consumer.consume(500, 0.01))
    finally:
        consumer.close()
    assert producer.flush(20) == 0


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Until it holds; AssertionError where it never does."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def settle(pair: Pair) -> dict[str, dict[tuple[str, str], float]]:
    """The counters once they stand still."""
    before: dict[str, dict[tuple[str, str], float]] = {}
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        now = {kind: pair.sidecar.fetch_counts(kind) for kind in ("partitions", "bytes")}
        if now == before:
            return now
        before = now
        time.sleep(0.5)
    raise AssertionError(f"it goes on: {before}")


class Logged:
    """What a run left behind: the counters, and the lines that name the consumer."""

    def __init__(self, pair: Pair) -> None:
        self.topics = [create_topic(pair.direct, partitions=PARTITIONS) for _ in range(2)]
        write_and_read(pair.through, self.topics)
        self.counters = settle(pair)
        wait_until(lambda: pair.sidecar.metrics()[SUMS] == 0, "sums end while Forebay runs")
        assert pair.sidecar.stop() == 0
        self.lines = pair.sidecar.access_lines()
        self.responses = [line for line in self.lines if line["type"] == "response"]
        self.fetches = list(unfold(self.responses))
        self.empties = [line for line in self.lines if line["type"] == "empty"]
        assert {line["clientId"] for line in self.fetches + self.empties} == {CLIENT}

    def sum_partitions(self) -> Counter[tuple[str, str]]:
        """(result, reason) -> partitions of responses."""
        sums = Counter((line["result"], line["reason"]) for line in self.fetches)
        for line in self.empties:
            sums[line["result"], line["reason"]] += line["partitions"]
        return sums


@pytest.fixture(scope="module")
def logged(proxied: ProxiedBroker) -> Iterator[Logged]:
    with Pair(settings={"cache": PATIENT_CACHE}, shared=proxied) as pair:
        yield Logged(pair)


def test_most_partitions_had_no_news(logged: Logged) -> None:
    """Else the other tests would show little. The poll's rest gathers news, so that responses are fewer."""
    asked = sum(logged.counters["partitions"].values())
    carried = sum(line["bytes"] > 0 for line in logged.fetches)
    assert asked > 4 * carried > 0
    assert sum(line["bytes"] > 0 for line in logged.fetches if line["result"] == "hit") > 0


def test_lines_are_as_many_as_partitions_answered_with_records(logged: Logged) -> None:
    carried = sum(line["bytes"] > 0 for line in logged.fetches)
    assert len(logged.fetches) <= LINES_A_PARTITION * carried
    assert 0 < len(logged.responses) < len(logged.fetches), "a line names several"


def test_sums_are_at_most_one_line_a_second_of_each_connection_and_topic(logged: Logged) -> None:
    per_topic: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for line in logged.empties:
        per_topic.setdefault((line["connection"], line["topicId"]), []).append(line)
    assert {line["topic"] for line in logged.empties} - {None} == set(logged.topics)
    for lines in per_topic.values():
        first_ms, last_ms = min(one["firstMs"] for one in lines), max(one["ts"] for one in lines)
        kinds = {(one["result"], one["reason"], one["group"]) for one in lines}
        assert len(lines) <= len(kinds) + (last_ms - first_ms) / 1000


def test_the_totals_are_those_of_the_counters(logged: Logged) -> None:
    assert logged.sum_partitions() == logged.counters["partitions"]
    sizes: Counter[tuple[str, str]] = Counter()
    for line in logged.fetches:
        sizes[line["result"], line["reason"]] += line["bytes"]
    assert +sizes == logged.counters["bytes"]
    for line in logged.empties:
        counted = (one["responses"] * len(one["partitions"]) for one in line["counts"])
        assert line["partitions"] == sum(counted)


def test_no_line_was_dropped(logged: Logged) -> None:
    closing = logged.lines[-1]
    assert (closing["event"], closing["droppedLines"]) == ("close", 0)
    assert closing["writtenLines"] == sum(line["type"] != "log" for line in logged.lines)


def test_counters_are_those_of_the_lines_before_them_at_every_look(logged: Logged) -> None:
    """Each scrape has put a line, among others; all were made under load."""
    before: dict[str, Counter[tuple[str, str]]] = {"partitions": Counter(), "bytes": Counter()}
    compared = 0
    for line in unfold(logged.lines):
        if line["type"] == "counters":
            for one in line["results"]:
                verdict = one["result"], one["reason"]
                assert one["partitions"] - one["unwritten"] == before["partitions"][verdict]
                assert one["bytes"] == before["bytes"][verdict]
            compared += bool(line["results"])
            continue
        if line["type"] in ("fetch", "empty"):
            verdict = line["result"], line["reason"]
            before["partitions"][verdict] += line.get("partitions", 1)
            before["bytes"][verdict] += line.get("bytes", 0)
    assert compared >= 2
    events = [line["event"] for line in logged.lines if line["type"] == "counters"]
    assert (events[0], events[-1]) == ("open", "close") and "scrape" in events


def test_records_are_as_old_as_their_time_stamps_say(logged: Logged) -> None:
    """The producer sets them when a record is written, a moment before it is read."""
    carried = [line for line in logged.fetches if line["bytes"]]
    assert {line["timestamp"] is None for line in carried} == {False}
    assert all(0 <= line["ts"] - line["timestamp"] < 1000 * PATIENCE_S for line in carried)
    assert {line["result"] for line in carried} > {"hit"}, "of both ways"


def test_the_log_names_listener_and_broker(logged: Logged) -> None:
    closing = logged.lines[-1]
    assert closing["nodeId"] == 1
    (listener,) = closing["listeners"]
    assert set(listener) == {"name", "address", "upstream"}
    assert listener["address"].startswith("127.0.0.1:")
