"""A Forebay whose memory raises now and then, in the middle of a request: its clients get what the broker would give.

The broker is real, and so is the process; of its looks at memory one in three is spoiled.
"""

from __future__ import annotations

import stat
import sys
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer

from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, RawReader, explain, read_all
from tests.kit.sidecar import PATIENT_CACHE, Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

RECORDS = 200
SPOILED = """#!{python}
import os, runpy, sys
sys.path.insert(0, os.getcwd())
from blockcache.sending import Sender
from proxy.fetch import evaluate

def spoil(real, calls=[0]):
    def spoiled(*args, **options):
        calls[0] += 1
        if calls[0] % 3 == 0:
            raise RuntimeError("spoiled")
        return real(*args, **options)
    return spoiled

Sender.find_all = spoil(Sender.find_all)
evaluate.find_limits = spoil(evaluate.find_limits)
evaluate.explain_unreadable = spoil(evaluate.explain_unreadable)
sys.argv = sys.argv[2:]
runpy.run_module("proxy", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def pair(tmp_path: Path, proxied: ProxiedBroker) -> Iterator[Pair]:
    python = tmp_path / "spoiled"
    python.write_text(SPOILED.format(python=sys.executable))
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    with Pair(settings={"cache": PATIENT_CACHE}, interpreter=python, shared=proxied) as running:
        yield running


def test_errors_of_ours_cost_no_connection_and_no_record(pair: Pair) -> None:
    topic = create_topic(pair.direct)
    producer = Producer(
        {"bootstrap.servers": pair.through, "linger.ms": 0, "enable.idempotence": True}
    )
    consumer = Consumer(
        {"bootstrap.servers": pair.through, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    got: list[bytes | None] = []
    with RawClient(pair.through, "one-connection") as client:
        reader = RawReader(client, topic)
        reader.read_past_errors()
        for number in range(RECORDS):
            producer.produce(topic, b"%d" % number, partition=0)
            assert producer.flush(30) == 0
            if number % 10 == 9:
                reader.read_to(number + 1)
        while len(got) < RECORDS:
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None
            got.append(message.value())
        direct = read_all(pair.direct, topic)
        assert bytes(reader.raw) == direct, explain(bytes(reader.raw), direct)
    consumer.close()
    assert got == [b"%d" % number for number in range(RECORDS)]
    metrics = pair.sidecar.metrics()
    assert metrics["forebay_internal_errors_total",] > 10
    assert pair.sidecar.fetch_counts()["hit", ""] > 0
    logged = pair.sidecar.log_path.read_text().count("Traceback")
    assert 0 < logged < metrics["forebay_internal_errors_total",]
    assert not metrics.get(("forebay_disconnects_total", "internal_error"))
