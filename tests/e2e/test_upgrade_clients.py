"""Upgrade in place under other clients than librdkafka on plain text: Java, and TLS that ends at Forebay.

Owns what these clients tell. Must not know how the workers change places.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.test_reload import Front, Proxied, Traffic
from tests.e2e.test_supervisor import mismatches, wait_until
from tests.e2e.test_upgrade import TAKEOVERS, wait_for_upgrade
from tests.kit.broker.jars import KAFKA_4
from tests.kit.broker.process import JVM_FLAGS, JavaProcess, java_command
from tests.kit.broker.settings import HOST
from tests.kit.broker.topics import create_topic
from tests.kit.sidecar import PATIENT_CACHE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

MORE_RECORDS = 500
RATE = "500"
CONNECTS_ANEW = ("code=_TRANSPORT", "code=_ALL_BROKERS_DOWN")
"""What librdkafka says of a closed connection, and does not fail for."""
CACHE = PATIENT_CACHE | {"verifyRatio": 1.0}


@pytest.fixture(scope="module")
def proxied() -> Iterator[Proxied]:
    with contextlib.ExitStack() as stack:
        yield Proxied(stack)


@pytest.fixture
def front(proxied: Proxied, tmp_path: Path) -> Iterator[Front]:
    with contextlib.ExitStack() as stack:
        running = Front(proxied, tmp_path, stack)
        assert running.sidecar.reload({"cache": CACHE | {"size": "32MiB"}})["success"]
        yield running


class JavaTool(JavaProcess):
    """One of Kafka's verifiable clients, which print an object of JSON for each event."""

    def __init__(self, name: str, directory: Path, *arguments: str) -> None:
        main = f"org.apache.kafka.tools.Verifiable{name}"
        limits = {"version": KAFKA_4, "heap_mb": 96, "log_level": "warn", "flags": JVM_FLAGS}
        command = java_command(main, *arguments, **limits)  # type: ignore[arg-type]
        super().__init__(command, directory / f"{name}.log")

    def list_events(self, name: str) -> list[dict[str, Any]]:
        """All so far, but for a line that is not written to its end."""
        text = self.log_path.read_text()
        lines = text[: text.rfind("\n") + 1].splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [one for one in found if one["name"] == name]


class JavaTraffic:
    """A producer and a consumer of one topic, over TLS, until `stop`."""

    def __init__(self, front: Front, topic: str, directory: Path) -> None:
        config = directory / "client.properties"
        settings = {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(front.files.authority),
            "ssl.endpoint.identification.algorithm": "",
            "retries": "1000",  # as every producer has it, but this one
        }
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        where: tuple[str, ...] = ("--topic", topic, "--bootstrap-server")
        where += (f"{HOST}:{front.tls_port}", "--command-config", str(config))
        self.producer = JavaTool(
            "Producer", directory, *where, "--acks", "-1", "--throughput", RATE
        )
        group = ("--group-id", topic, "--reset-policy", "earliest", "--verbose")
        self.consumer = JavaTool("Consumer", directory, *where, *group)

    def list_consumed(self) -> list[int]:
        return [one["offset"] for one in self.consumer.list_events("record_data")]

    def list_acknowledged(self) -> list[int]:
        return [one["offset"] for one in self.producer.list_events("producer_send_success")]

    def go_on(self) -> None:
        """Until MORE_RECORDS more have been consumed."""
        wanted = len(self.list_consumed()) + MORE_RECORDS
        wait_until(
            lambda: len(self.list_consumed()) >= wanted,
            f"more is consumed:\n{self.producer.log_tail()}\n{self.consumer.log_tail()}",
        )

    def stop(self) -> None:
        """Every record was acknowledged once, and consumed once, in order."""
        assert self.producer.stop(gracefully=True)
        acknowledged = self.list_acknowledged()
        wait_until(lambda: len(self.list_consumed()) >= len(acknowledged), "all is consumed")
        assert self.consumer.stop(gracefully=True)
        failed = self.producer.list_events("producer_send_error")
        assert failed == [], failed[:1]
        assert sorted(acknowledged) == self.list_consumed() == list(range(len(acknowledged)))


def test_java_and_tls_clients_work_through_an_upgrade(
    proxied: Proxied, front: Front, tmp_path: Path
) -> None:
    sidecar, direct = front.sidecar, proxied.broker.direct
    secure = {"security.protocol": "SSL", "ssl.ca.location": str(front.files.authority)}
    java = JavaTraffic(front, create_topic(direct), tmp_path)
    traffic = Traffic(f"{HOST}:{front.tls_port}", create_topic(direct), secure)
    try:
        java.go_on()
        traffic.go_on()
        former = sidecar.worker_pid
        os.kill(sidecar.pid, signal.SIGUSR2)
        wait_for_upgrade(sidecar, former)
        wait_until(lambda: sidecar.metrics()[TAKEOVERS, "taken-over"] == 1, "it is taken over")
        java.go_on()
        java.stop()
    finally:
        java.producer.stop()
        java.consumer.stop()
        told = traffic.errors[:]
        traffic.errors.clear()
        traffic.stop()
    assert [one for one in told if not any(word in one for word in CONNECTS_ANEW)] == []
    assert sidecar.fetch_counts()["hit", ""] > 0
    assert mismatches(sidecar) == 0
