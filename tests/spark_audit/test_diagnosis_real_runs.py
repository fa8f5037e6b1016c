"""Faults planted in real runs, and whether the audit finds them in words; a healthy run gives no finding.

Loads are known before: each fault has a few MiB of its own. Five faults are of different Forebays whose logs stand in
one directory, as those of a cluster do. The flood has an audit of its own, since it explains what a small cache would.
"""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from spark_audit.diagnosis import Prices
from spark_audit.job import Findings, Request, run
from spark_audit.reading import find_inputs
from tests.e2e.signed import start_signed, start_signed_broker
from tests.e2e.slow_broker import SlowBroker
from tests.kit.broker.kafka import USERS
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, RawReader
from tests.kit.sidecar import PATIENT_CACHE, Sidecar
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spark_audit.diagnosis import Diagnosis
    from tests.kit.broker.kafka import KafkaCluster

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1800)]

MIB = 1 << 20
RECORD_BYTES = 128 << 10
DAY_MS = 86_400_000
PATIENCE_S = 120.0
SMALL_CACHE = PATIENT_CACHE | {"size": "16MiB"}
PRICES = Prices(gib_month=4.0, read_gib=0.01)


def build_record(age_ms: int = 0) -> bytes:
    """A batch of one record, written so long ago as its producer says."""
    now_ms = time.time_ns() // 1_000_000
    value = bytes(range(256)) * (RECORD_BYTES // 256)
    return batch_v2(1, value=value, timestamp_ms=now_ms - age_ms)


def write(address: str, topic: str, size_bytes: int, age_ms: int = 0) -> int:
    """Write so many bytes of records to whoever listens there; the offset behind the last."""
    with RawClient(address, "writer") as writer:
        for _ in range(size_bytes // RECORD_BYTES):
            end = writer.produce(topic, build_record(age_ms)) + 1
    return end


def read(address: str, client_id: str, topic: str, end: int, first: int = 0) -> None:
    """Read to `end`, as a consumer without a group whose right is known before its first record."""
    with RawClient(address, client_id) as client:
        reader = RawReader(client, topic)
        reader.offset = end
        reader.settle()
        reader.offset, reader.max_bytes = first, 8 * RECORD_BYTES
        reader.read_to(end)


def follow(write_to: str, read_from: str, topic: str, size_bytes: int) -> int:
    """Write record by record, and read each before the next; the offset behind the last."""
    with RawClient(write_to, "writer") as writer, RawClient(read_from, "tail") as client:
        tail = RawReader(client, topic).settle()
        for _ in range(size_bytes // RECORD_BYTES):
            end = writer.produce(topic, build_record()) + 1
            tail.read_to(end)
    return end


class Stage:
    """A broker and what stands before it; `logs` gets the access log of each Forebay that has ended."""

    def __init__(self, broker: KafkaCluster, logs: Path) -> None:
        self.broker, self.logs = broker, logs
        self.topics: dict[str, str] = {}

    def topic(self, name: str) -> str:
        self.topics[name] = create_topic(self.broker.direct)
        return self.topics[name]

    def keep(self, sidecar: Sidecar) -> None:
        assert sidecar.stop() == 0
        shutil.copytree(sidecar.log_directory, self.logs, dirs_exist_ok=True)

    def start(self, stack: ExitStack, cache: dict[str, Any], upstream: str = "") -> Sidecar:
        lease = stack.enter_context(lease_port())
        entry = {"listen": f"{HOST}:{lease.port}", "upstream": upstream or self.broker.direct}
        return stack.enter_context(Sidecar([entry], {"cache": cache}))


def run_healthy(stage: Stage) -> None:
    """Written and followed through Forebay, and read once more while memory holds it."""
    with ExitStack() as stack:
        sidecar = stage.start(stack, PATIENT_CACHE)
        topic = stage.topic("healthy")
        end = follow(sidecar.bootstrap, sidecar.bootstrap, topic, 8 * MIB)
        read(sidecar.bootstrap, "again", topic, end)
        stage.keep(sidecar)


def run_flood(stage: Stage) -> None:
    """Hardly anybody reads one topic, which is written between the other's records and their second reading. Its first
    records are followed: of a topic that nobody reads Forebay compares no batch with the broker's, and stores none.
    """
    with ExitStack() as stack:
        sidecar = stage.start(stack, SMALL_CACHE)
        quiet, flood = stage.topic("quiet"), stage.topic("flood")
        end = follow(sidecar.bootstrap, sidecar.bootstrap, quiet, 6 * MIB)
        follow(sidecar.bootstrap, sidecar.bootstrap, flood, MIB)
        write(sidecar.bootstrap, flood, 24 * MIB)
        read(sidecar.bootstrap, "again", quiet, end)
        stage.keep(sidecar)


def run_small_past_and_behind(stage: Stage) -> None:
    """A cache that is too small; records that are written past Forebay; a reader of yesterday's records."""
    with ExitStack() as stack:
        history = stage.topic("history")
        end = write(stage.broker.direct, history, 6 * MIB, age_ms=DAY_MS)
        sidecar = stage.start(stack, SMALL_CACHE)
        read(sidecar.bootstrap, "replay", history, end)
        follow(stage.broker.direct, sidecar.bootstrap, stage.topic("past"), 12 * MIB)
        topic = stage.topic("small")
        end = follow(sidecar.bootstrap, sidecar.bootstrap, topic, 22 * MIB)
        read(sidecar.bootstrap, "again", topic, end)
        stage.keep(sidecar)


def run_lapsing(stage: Stage) -> None:
    """The broker answers Forebay's own Fetches later than a lease lasts."""
    with ExitStack() as stack:
        host, port = stage.broker.direct.rsplit(":", 1)
        slow = stack.enter_context(SlowBroker((host, int(port))))
        sidecar = stage.start(stack, SMALL_CACHE | {"confirmEvery": "200ms"}, slow.address)
        topic = stage.topic("lapsing")
        end = follow(sidecar.bootstrap, sidecar.bootstrap, topic, 4 * MIB)
        slow.watch_delay_s = 2.0
        for _ in range(3):
            read(sidecar.bootstrap, "again", topic, end)
        stage.keep(sidecar)


def run_without_rights(stage: Stage) -> None:
    """Forebay signs in as alice, who may read nothing; its clients may."""
    with start_signed_broker() as signed_broker, start_signed(signed_broker, SMALL_CACHE) as signed:
        topic = create_topic(signed.broker.direct)
        stage.topics["rightless"] = topic
        settings = {
            "bootstrap.servers": signed.sidecar.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": USERS["admin"],
        }
        producer = Producer(settings)
        for _ in range(48):
            producer.produce(topic, bytes(RECORD_BYTES), partition=0)
        assert producer.flush(60) == 0
        for number in range(3):
            consumer = Consumer({**settings, "group.id": f"rightless-{number}"})
            consumer.assign([TopicPartition(topic, 0, 0)])
            got, deadline = 0, time.monotonic() + PATIENCE_S
            while got < 48:
                assert time.monotonic() < deadline, f"{got} of 48 records came"
                message = consumer.poll(0.1)
                got += message is not None and message.error() is None
            consumer.close()
        stage.keep(signed.sidecar)


def audit(spark: SparkSession, stage: Stage, out: Path) -> Findings:
    request = Request(find_inputs([str(stage.logs)]), out, prices=PRICES)
    findings = run(spark, request, lambda _text: None)
    assert all(one.agrees for one in findings.reconciliations), findings.reconciliations
    return findings


def by_kind(findings: Findings) -> dict[str, Diagnosis]:
    return {one.kind: one for one in findings.diagnoses}


def test_a_healthy_run_has_no_finding(
    broker: KafkaCluster, spark: SparkSession, tmp_path: Path
) -> None:
    stage = Stage(broker, tmp_path / "logs")
    run_healthy(stage)
    findings = audit(spark, stage, tmp_path / "out")
    assert findings.total["hitRatioBytes"] > 0.9
    assert [one.sentence for one in findings.diagnoses] == []


def test_a_flood_is_found(broker: KafkaCluster, spark: SparkSession, tmp_path: Path) -> None:
    stage = Stage(broker, tmp_path / "logs")
    run_flood(stage)
    found = by_kind(audit(spark, stage, tmp_path / "out"))
    assert set(found) == {"flood"}, found
    flood = found["flood"]
    assert stage.topics["flood"] in flood.cause and stage.topics["quiet"] in flood.cause
    assert flood.bytes >= 4 * MIB and flood.key == "cache.size"


def test_five_faults_are_found_in_one_directory(
    broker: KafkaCluster, spark: SparkSession, tmp_path: Path
) -> None:
    stage = Stage(broker, tmp_path / "logs")
    for plant in (run_lapsing, run_without_rights, run_small_past_and_behind):
        plant(stage)
    findings = audit(spark, stage, tmp_path / "out")
    found = by_kind(findings)
    assert set(found) == {"size", "writers", "laggard", "leases", "rights"}, found
    sizes = [one.bytes for one in findings.diagnoses]
    assert sizes == sorted(sizes, reverse=True)
    assert stage.topics["small"] in found["size"].cause
    assert found["size"].bytes >= 8 * MIB
    assert stage.topics["past"] in found["writers"].cause
    assert stage.topics["history"] in found["laggard"].cause
    assert "replay" in found["laggard"].cause and "24 h" in found["laggard"].cause
    assert stage.topics["lapsing"] in found["leases"].cause
    assert stage.topics["rightless"] in found["rights"].cause
    assert "costs" in found["size"].price and "saves" in found["size"].price
    assert findings.brokers[0]["bytes"] > 0 and len(findings.brokers) == 2
