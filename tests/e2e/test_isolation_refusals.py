"""Refused producers lose nothing: idempotent ones are exactly once and in order, transactions are whole.

One slot, two places in line and 50 ms of patience before a broker whose appends take 10 ms, and a crowd of four that
wants them too: each test asks that its producer was refused, beyond what the crowd was.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.e2e.asking import NOT_ANSWERED, Asking
from tests.e2e.raw_frames import build_produce, read_batch
from tests.e2e.slow_broker import ALL, SlowPair
from tests.kit.broker.process import kafka_tool
from tests.kit.broker.topics import create_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kit.sidecar import ProxiedBroker

pytestmark = pytest.mark.e2e

SLOTS = {"floor": 1, "initial": 1, "ceiling": 1}
TIGHT = {
    "dataQueues": 1,
    "dataSlots": SLOTS,
    "queueRequests": 2,
    "maxQueueWait": "50ms",
    "releaseAfter": "1s",
}
APPEND_S, PAUSE_S = 0.01, 0.015
CROWD = 4
NOT_ENOUGH_REPLICAS = 19
COUNT, PER_TRANSACTION, ABORTED = 400, 50, 3
PATIENCE_S = 60.0
GO = Path(__file__).with_name("go")


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[SlowPair]:
    with SlowPair(proxied, {"isolation": TIGHT}) as running:
        running.slow.delay(ALL, APPEND_S)
        yield running


@pytest.fixture
def topic(pair: SlowPair) -> Iterator[str]:
    """A topic whose producer is refused at least once: a crowd produces to another by the same queue."""
    batch, other = read_batch(pair), create_topic(pair.direct)
    before = refused(pair)
    crowd = [
        Asking(pair.through, lambda: build_produce(other, batch, -1), PAUSE_S) for _ in range(CROWD)
    ]
    try:
        yield create_topic(pair.direct)
    finally:
        for one in crowd:
            one.finish()
    codes = [code for one in crowd for _, _, code in one.rows]
    assert NOT_ANSWERED not in codes
    assert refused(pair) - before > codes.count(NOT_ENOUGH_REPLICAS) > 0


def refused(pair: SlowPair) -> float:
    """Produce requests, of whomever."""
    return pair.sidecar.metrics()["forebay_produce_refused_total",]


def committed(pair: SlowPair, topic: str) -> list[int]:
    """The values that a transaction's reader sees, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": pair.direct,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[int] = []
    while (message := consumer.poll(PATIENCE_S)) is not None and message.error() is None:
        values.append(int(message.value() or b"-1"))
    assert message is not None, "the end of the partition was reached"
    consumer.close()
    return values


def librdkafka(pair: SlowPair, errors: list[object], **settings: object) -> Producer:
    return Producer(
        {
            "bootstrap.servers": pair.through,
            "enable.idempotence": True,
            "batch.num.messages": 10,
            "linger.ms": 0,
            "retry.backoff.ms": 20,
            "error_cb": errors.append,
            **settings,
        }
    )


def send(producer: Producer, topic: str, values: range, errors: list[object]) -> None:
    for value in values:
        producer.produce(
            topic,
            str(value),
            partition=0,
            on_delivery=lambda error, _message: errors.append(error) if error else None,
        )
        producer.poll(0)


def test_librdkafka_idempotent(pair: SlowPair, topic: str) -> None:
    errors: list[object] = []
    producer = librdkafka(pair, errors)
    send(producer, topic, range(COUNT), errors)
    assert producer.flush(PATIENCE_S) == 0
    assert not errors
    assert committed(pair, topic) == list(range(COUNT))


def test_librdkafka_transactional(pair: SlowPair, topic: str) -> None:
    errors: list[object] = []
    producer = librdkafka(pair, errors, **{"transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    expected: list[int] = []
    for number, start in enumerate(range(0, COUNT, PER_TRANSACTION)):
        values = range(start, start + PER_TRANSACTION)
        producer.begin_transaction()
        send(producer, topic, values, errors)
        if number % ABORTED == 2:
            producer.flush(PATIENCE_S)
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
            expected += values
    assert not errors
    assert committed(pair, topic) == expected


def java_performance(pair: SlowPair, topic: str, *more: str) -> None:
    settings = (
        "acks=all",
        "batch.size=200",
        "linger.ms=0",
        "retry.backoff.ms=20",
        "retry.backoff.max.ms=50",
    )
    printed = kafka_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *(
            "--topic",
            topic,
            "--num-records",
            str(COUNT),
            "--payload-monotonic",
            "--throughput",
            "-1",
            *more,
        ),
        *("--producer-props", f"bootstrap.servers={pair.through}", *settings),
    )
    assert f"{COUNT} records sent" in printed


def test_java_idempotent(pair: SlowPair, topic: str) -> None:
    java_performance(pair, topic)
    assert committed(pair, topic) == list(range(COUNT))


def test_java_transactional(pair: SlowPair, topic: str) -> None:
    java_performance(pair, topic, "--transactional-id", topic, "--transaction-duration-ms", "300")
    assert committed(pair, topic) == list(range(COUNT))


@pytest.fixture(scope="module")
def franz_go(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The producer of tests/e2e/go, built outside the tree."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed: franz-go is not tried")
    folder = tmp_path_factory.mktemp("go")
    for name in ("go.mod", "go.sum", "producing.go"):
        shutil.copy(GO / name, folder)
    command = [go, "build", "-o", "producing", "."]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    return folder / "producing"


@pytest.mark.parametrize("mode", ["idempotent", "transactional"])
def test_franz_go(pair: SlowPair, franz_go: Path, topic: str, mode: str) -> None:
    command = [str(franz_go), pair.through, topic, mode, str(COUNT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert committed(pair, topic) == [int(line) for line in done.stdout.split()]
