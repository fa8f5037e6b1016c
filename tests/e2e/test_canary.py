"""`forebay canary` beside a real broker and a real Forebay: both sides, what it sees of faults, and its metrics.

Owns one pair, and one with TLS and SASL. Must not know how aiokafka asks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from functools import partial
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from proxy.canary.topic import SETTINGS
from tests.kit.broker.kafka import USERS, KafkaCluster
from tests.kit.broker.ports import lease_port
from tests.kit.broker.process import die_with_parent
from tests.kit.broker.settings import HOST, Listener
from tests.kit.scrape import read_samples
from tests.kit.sidecar import Pair, ProxiedBroker, Sidecar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.e2e

PATIENCE_S = 120.0
TOPIC = "forebay-canary-1"
WIDE = ("--factor", "1000", "--plus", "1h")
"""A bar that a busy machine does not break."""
PRODUCES = "forebay_client_to_proxy_request_total", "Produce"


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(shared=proxied) as running:
        yield running


def build_command(sidecar: Sidecar, *flags: str) -> list[str]:
    config = sidecar.directory / "forebay.yaml"
    return [sys.executable, "-m", "proxy", "canary", str(config), *flags]


def run_once(sidecar: Sidecar, *flags: str) -> subprocess.CompletedProcess[str]:
    command = build_command(sidecar, "--once", *flags)
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


class RunningCanary:
    """A canary with rounds every 100 ms."""

    def __init__(self, sidecar: Sidecar, port: int) -> None:
        self._port = port
        flags = ("--every", "100ms", "--timeout", "2s", "--metrics", f"{HOST}:{port}")
        self._log = (sidecar.directory / "canary.log").open("w+")
        self.process = subprocess.Popen(
            build_command(sidecar, *flags),
            stderr=self._log,
            preexec_fn=partial(die_with_parent, signal.SIGTERM),
        )

    def metrics(self) -> dict[tuple[str, ...], float]:
        """The scrape; empty while there is no port yet."""
        at = f"http://{HOST}:{self._port}/metrics"
        with contextlib.suppress(OSError), urllib.request.urlopen(at, timeout=5) as answer:
            return read_samples(answer.read().decode())
        return {}

    def failures(self, path: str) -> float:
        return sum(
            value
            for key, value in self.metrics().items()
            if key[0] == "forebay_canary_failures_total" and path in key
        )

    def received(self, path: str) -> float:
        return self.metrics().get(("forebay_canary_end_to_end_seconds_count", path), 0.0)

    def wait_until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def stop(self) -> int:
        self.process.terminate()
        code = self.process.wait(PATIENCE_S)
        self._log.close()
        return code


@pytest.fixture
def canary(pair: Pair) -> Iterator[RunningCanary]:
    with lease_port() as lease:
        running = RunningCanary(pair.sidecar, lease.port)
        yield running
        if running.process.returncode is None:
            running.stop()


def test_one_side_passes_forebay_and_the_other_does_not(pair: Pair) -> None:
    before = pair.sidecar.metrics()[PRODUCES]
    done = run_once(pair.sidecar, "--rounds", "5", *WIDE)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {line.split()[0]: line.split()[1:3] for line in done.stdout.splitlines()}
    assert rows["through"] == rows["direct"] == ["5", "0"]
    assert "holds" in done.stdout and done.stderr == ""
    assert pair.sidecar.metrics()[PRODUCES] - before == 6, "five records, and the first one"


def test_the_topic_is_small_and_lies_on_this_broker(pair: Pair) -> None:
    assert run_once(pair.sidecar, "--rounds", "1", *WIDE).returncode == 0
    admin = AdminClient({"bootstrap.servers": pair.direct})
    (partition,) = admin.list_topics(TOPIC, 30).topics[TOPIC].partitions.values()
    assert (partition.leader, partition.replicas) == (1, [1])
    resource = ConfigResource(ResourceType.TOPIC, TOPIC)
    settings = admin.describe_configs([resource])[resource].result(30)
    assert {name: settings[name].value for name in SETTINGS} == SETTINGS


def test_a_side_that_cannot_be_reached_breaks_the_bar(pair: Pair) -> None:
    done = run_once(pair.sidecar, "--rounds", "3", *WIDE, "--through", "127.0.0.1:1")
    assert done.returncode == 1
    rows = {line.split()[0]: line.split()[1:3] for line in done.stdout.splitlines()}
    assert (rows["through"], rows["direct"]) == (["3", "3"], ["3", "0"])
    assert "failed: connect: 127.0.0.1:1: [Errno 111] Connect call failed" in done.stdout
    assert "broken" in done.stdout


def test_a_frozen_forebay_fails_one_side_alone(pair: Pair, canary: RunningCanary) -> None:
    canary.wait_until(lambda: canary.received("through") > 2)
    worker = pair.sidecar.worker_pid
    os.kill(worker, signal.SIGSTOP)
    try:
        seen = canary.received("direct")
        canary.wait_until(lambda: canary.failures("through") > 0)
        canary.wait_until(lambda: canary.received("direct") > seen)
    finally:
        os.kill(worker, signal.SIGCONT)
    assert "through failed" in canary.log()
    seen = canary.received("through")
    canary.wait_until(lambda: canary.received("through") > seen)
    assert canary.metrics()["forebay_canary_last_round_timestamp_seconds",] > 0
    assert canary.stop() == 0


def test_a_frozen_broker_fails_both_sides(pair: Pair, canary: RunningCanary) -> None:
    canary.wait_until(lambda: canary.received("direct") > 2)
    pair.broker.stall()
    try:
        canary.wait_until(lambda: min(map(canary.failures, ("through", "direct"))) > 0)
    finally:
        pair.broker.wake()
    seen = canary.received("through"), canary.received("direct")
    canary.wait_until(lambda: canary.received("through") > seen[0])
    canary.wait_until(lambda: canary.received("direct") > seen[1])


def test_tls_and_sasl_are_forebays_own() -> None:
    """The certificate on Forebay's side names nobody that is asked for; SCRAM goes through."""
    with lease_port() as lease:
        listener = Listener(
            "CLIENT", "SASL_SSL", ("SCRAM-SHA-256",), advertised=("advertised.invalid", lease.port)
        )
        with KafkaCluster(listeners=[listener], authorizer=True) as cluster:
            assert cluster.tls is not None
            secret = cluster.directory / "password"
            secret.touch(mode=0o600)
            secret.write_text(USERS["admin"] + "\n")
            host, port = cluster.address("CLIENT")
            server = cluster.tls.server
            entry = {
                "listen": f"127.0.0.2:{lease.port}",
                "upstream": f"{host}:{port}",
                "tls": {"certificateFile": str(server.certificate), "keyFile": str(server.key)},
                "upstreamTls": {
                    "enabled": True,
                    "caFile": str(cluster.tls.authority),
                    "serverName": "localhost",
                },
                "upstreamCredentials": {
                    "mechanism": "SCRAM-SHA-256",
                    "username": "admin",
                    "passwordFile": str(secret),
                },
            }
            with Sidecar([entry]) as sidecar:
                done = run_once(sidecar, "--rounds", "3", *WIDE)
                assert done.returncode == 0, done.stdout + done.stderr
                assert sidecar.metrics()[PRODUCES] == 4
                assert USERS["admin"] not in done.stdout + done.stderr
