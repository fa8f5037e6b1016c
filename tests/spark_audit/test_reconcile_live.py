"""Twenty looks at two proxies under load: counters and log agree at each, also over a restart, or the audit says why.

A look saves /metrics and copies the log as it is. All looks are one log for Spark: the copy of a look gets boot ids of
its own, so that one audit holds each of them against its scrape.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer

from spark_audit.job import Request, run
from spark_audit.reading import find_inputs
from spark_audit.reconcile import scan_counters
from tests.kit.broker.kafka import KafkaCluster
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST, Listener
from tests.kit.broker.topics import create_topic
from tests.kit.sidecar import PATIENT_CACHE, Sidecar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spark_audit.reconcile import Reconciliation, ScrapedCounters

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1200)]

LOOKS = 20
RESTART_AT = 10
PARTITIONS_A_LOOK = 20
PATIENCE_S = 120.0


class Load:
    """A producer and a consumer of all partitions of a topic through one proxy, until it is stopped."""

    def __init__(self, address: str, topic: str, group: str) -> None:
        self._address, self._topic, self._group = address, topic, group
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._write, self._read)]
        for thread in self._threads:
            thread.start()

    def _write(self) -> None:
        producer = Producer({"bootstrap.servers": self._address, "linger.ms": 5})
        number = 0
        while not self._stop.is_set():
            producer.produce(self._topic, b"value" * 100, partition=number % 4)
            number += 1
            producer.poll(0.002)
        producer.flush(20)

    def _read(self) -> None:
        settings = {"bootstrap.servers": self._address, "group.id": self._group}
        consumer = Consumer(settings | {"client.id": f"client-{self._group}"})
        consumer.subscribe([self._topic])
        while not self._stop.is_set():
            consumer.consume(500, 0.05)
        consumer.close()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)


def wait_for_more(sidecar: Sidecar, before: float) -> float:
    """Until the load has asked for a few more partitions; how many there are by then."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        now = sum(sidecar.fetch_counts("partitions").values())
        if now >= before + PARTITIONS_A_LOOK:
            return now
        assert time.monotonic() < deadline, f"the load stands still at {now}"
        time.sleep(0.02)


def wait_for_counters(sidecar: Sidecar, known: int) -> int:
    """Under load, until the log of the present process holds more lines of counters than `known`; how many. A look that
    has one alone has nothing to compare. Each scrape asks for one more, after new Fetches.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        boot = scan_counters(sidecar.admin("/metrics")).boot
        paths = sidecar.log_directory.glob(f"*-{boot}-*.jsonl")
        count = sum(path.read_bytes().count(b'"type":"counters"') for path in paths)
        if count > known:
            return count
        assert time.monotonic() < deadline, "no counters are written"
        time.sleep(0.05)


def look(sidecar: Sidecar, number: int, name: str, directory: Path) -> ScrapedCounters:
    """Save the scrape, then copy the log; both get a boot id of their own."""
    scrape = scan_counters(sidecar.admin("/metrics"))
    boot = f"{scrape.boot}-{number}-{name}"
    target = directory / f"{number}-{name}"
    target.mkdir(parents=True)
    for path in sidecar.log_directory.glob(f"*-{scrape.boot}-*.jsonl"):
        text = path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]  # the writer may be within a line
        (target / path.name).write_bytes(whole.replace(scrape.boot.encode(), boot.encode()))
    return scrape._replace(boot=boot)


@pytest.fixture(scope="module")
def looks(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[list[Reconciliation], list[ScrapedCounters], list[dict]]]:
    directory = tmp_path_factory.mktemp("live")
    scrapes: list[ScrapedCounters] = []
    with ExitStack() as stack:
        ports = {name: stack.enter_context(lease_port()).port for name in ("a", "b")}
        listeners = [Listener(name, advertised=(HOST, port)) for name, port in ports.items()]
        broker = stack.enter_context(KafkaCluster(listeners=listeners))
        topic = create_topic(broker.direct, partitions=4)
        sidecars: dict[str, Sidecar] = {}
        for name, port in ports.items():
            host, upstream = broker.address(name)
            entry = {"listen": f"{HOST}:{port}", "upstream": f"{host}:{upstream}"}
            sidecars[name] = stack.enter_context(Sidecar([entry], {"cache": PATIENT_CACHE}))
        loads = [Load(one.bootstrap, topic, f"group-{name}") for name, one in sidecars.items()]
        for load in loads:
            stack.callback(load.stop)
        counted, known = dict.fromkeys(sidecars, 0.0), dict.fromkeys(sidecars, 1)
        for number in range(LOOKS):
            if number == RESTART_AT:
                assert sidecars["a"].stop() == 0
                sidecars["a"].start()
                counted["a"], known["a"] = 0.0, 1
            for name, sidecar in sidecars.items():
                known[name] = wait_for_counters(sidecar, known[name])
                counted[name] = wait_for_more(sidecar, counted[name])
                scrapes.append(look(sidecar, number, name, directory / "logs"))
        for load in loads:
            load.stop()
    request = Request(find_inputs([str(directory / "logs")]), directory / "out", tuple(scrapes))
    findings = run(spark, request, lambda _text: None)
    assert findings.problems == {}
    yield findings.reconciliations, scrapes, findings.groups


def test_every_look_agrees(looks: tuple[list, list, list]) -> None:
    reconciliations, scrapes, _ = looks
    of_scrapes = [one for one in reconciliations if one.source == "scrape"]
    assert [one.boot for one in of_scrapes] == [scrape.boot for scrape in scrapes]
    assert len(of_scrapes) == 2 * LOOKS
    assert [one.text for one in of_scrapes if one.agrees is not True] == []
    compared = [sum(row.log_partitions for row in one.rows) for one in of_scrapes]
    assert sum(size > 0 for size in compared) > LOOKS, compared


def test_every_boot_s_log_agrees_with_its_own_counters(looks: tuple[list, list, list]) -> None:
    reconciliations, _, _ = looks
    of_logs = [one for one in reconciliations if one.source == "log"]
    assert len(of_logs) == 2 * LOOKS and all(one.agrees for one in of_logs), of_logs


def test_three_boots_were_looked_at(looks: tuple[list, list, list]) -> None:
    _, scrapes, _ = looks
    assert len({scrape.boot.split("-")[0] for scrape in scrapes}) == 3


def test_groups_are_those_of_the_consumers(looks: tuple[list, list, list]) -> None:
    """librdkafka asks its coordinator on another connection than the leader. After the restart its group is known from
    its next commit on, and holds for what the same connection fetched before.
    """
    _, _, groups = looks
    named = {row["group"]: row["bytes"] for row in groups}
    assert named["group-a"] > 0 and named["group-b"] > 0
    assert sum(named.values()) - named["group-a"] - named["group-b"] == 0, named
