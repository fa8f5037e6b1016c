"""Kafka's own performance and verification tools through Forebay: they count what they count without it.

Owns how the tools are told and what they print. Must not know Forebay beyond its counters.
"""

from __future__ import annotations

import csv
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.broker.process import kafka_tool
from tests.kit.broker.topics import create_topic
from tests.kit.sidecar import PATIENT_CACHE, Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

RECORDS, RECORD_BYTES = 20_000, 200
TAILED, RATE = 4_000, 1_000
PATIENCE_S = 60.0
MOST = 0.8
HIT = ("hit", "")


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(settings={"cache": PATIENT_CACHE}, shared=proxied) as running:
        yield running


def perf_produce(bootstrap: str, topic: str, records: int, rate: int = -1) -> int:
    """Records that the tool says it sent."""
    printed = kafka_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(records), "--record-size", str(RECORD_BYTES)),
        *(
            "--throughput",
            str(rate),
            "--producer-props",
            f"bootstrap.servers={bootstrap}",
            "acks=all",
        ),
    )
    return int(re.findall(r"^(\d+) records sent", printed, re.MULTILINE)[-1])


def perf_consume(bootstrap: str, topic: str, records: int) -> tuple[float, int]:
    """MB and records that the tool says it read."""
    printed = kafka_tool(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--messages", str(records)),
        *("--timeout", str(int(PATIENCE_S * 1000))),
    )
    lines = [line for line in printed.splitlines() if ", " in line]
    (row,) = csv.DictReader(lines, skipinitialspace=True)
    return float(row["data.consumed.in.MB"]), int(row["data.consumed.in.nMsg"])


def test_perf_tools_count_the_same_on_both_ways(pair: Pair) -> None:
    topics = {bootstrap: create_topic(pair.direct) for bootstrap in (pair.through, pair.direct)}
    for bootstrap, topic in topics.items():
        assert perf_produce(bootstrap, topic, RECORDS) == RECORDS
    read = {
        (bootstrap, topic): perf_consume(bootstrap, topic, RECORDS)
        for bootstrap in (pair.through, pair.direct)
        for topic in topics.values()
    }
    assert len(set(read.values())) == 1, read
    assert {records for _, records in read.values()} == {RECORDS}


def test_a_consumer_that_tails_a_perf_producer_is_served_from_memory(pair: Pair) -> None:
    topic = create_topic(pair.direct)
    assert perf_produce(pair.through, topic, 10) == 10
    seen = pair.sidecar.fetch_requests()
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(perf_consume, pair.through, topic, 10 + TAILED)
        deadline = time.monotonic() + PATIENCE_S
        while pair.sidecar.fetch_requests() < seen + 4:
            assert time.monotonic() < deadline, "it fetches"
            time.sleep(0.05)
        before = pair.sidecar.fetch_counts()
        assert perf_produce(pair.through, topic, TAILED, RATE) == TAILED
        assert reading.result(PATIENCE_S)[1] == 10 + TAILED
    after = pair.sidecar.fetch_counts()
    grown = {key: after[key] - before.get(key, 0) for key in after}
    assert grown[HIT] >= MOST * sum(grown.values()) > 0, grown


def printed_lines(printed: str) -> list[dict[str, Any]]:
    """The tools for verification print one JSON object a line."""
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def test_verifiable_producer_and_consumer(pair: Pair) -> None:
    topic = create_topic(pair.direct)
    common = (
        "--bootstrap-server",
        pair.through,
        "--topic",
        topic,
        "--max-messages",
        str(RECORDS // 10),
    )
    printed = kafka_tool("org.apache.kafka.tools.VerifiableProducer", *common, "--acks", "-1")
    sent = [line for line in printed_lines(printed) if line["name"] == "producer_send_success"]
    assert sorted(line["offset"] for line in sent) == list(range(RECORDS // 10))
    printed = kafka_tool(
        "org.apache.kafka.tools.VerifiableConsumer",
        *(*common, "--group-id", topic, "--reset-policy", "earliest", "--verbose"),
    )
    read = [line for line in printed_lines(printed) if line["name"] == "record_data"]
    assert [(line["offset"], line["value"]) for line in read] == [
        (line["offset"], line["value"])
        for line in sorted(sent, key=lambda line: int(line["offset"]))
    ]
