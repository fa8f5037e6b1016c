"""A reload under producers and consumers on a real broker: values change, and no request fails.

Owns one broker and a Forebay with a plain and a TLS listener. Must not know how a room takes a value, beyond
metrics and `/config`. Invariants: every record that was acknowledged is consumed, in order; no client sees an
error; a refused configuration changes nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer

from tests.kit.broker.certificates import TlsFiles, write_certificates
from tests.kit.broker.kafka import KafkaCluster
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST, Listener
from tests.kit.broker.topics import create_topic
from tests.kit.sidecar import PATIENT_CACHE, Sidecar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

PATIENCE_S = 120.0
MORE_RECORDS = 100
CACHE = PATIENT_CACHE | {"size": "32MiB"}


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Traffic:
    """A producer and a consumer of one topic, until `stop`. `errors`: all that a client was told."""

    def __init__(self, bootstrap: str, topic: str, options: dict[str, Any]) -> None:
        self._options = {"bootstrap.servers": bootstrap, "error_cb": self._failed, **options}
        self._topic = topic
        self.errors: list[str] = []
        self.acknowledged: list[bytes] = []
        self.consumed: list[bytes] = []
        self._is_over, self._has_written = threading.Event(), threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(work,)) for work in (self._write, self._read)
        ]
        for thread in self._threads:
            thread.start()

    def _failed(self, error: object) -> None:
        self.errors.append(str(error))

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._failed(repr(error))

    def _write(self) -> None:
        producer = Producer({**self._options, "enable.idempotence": True})

        def delivered(error: object, message: Any) -> None:
            if error is not None:
                self._failed(error)
            else:
                self.acknowledged.append(message.value() or b"")

        number = 0
        while not self._is_over.is_set():
            producer.produce(self._topic, b"%d" % number, on_delivery=delivered)
            number += 1
            producer.poll(0.005)
        if producer.flush(PATIENCE_S):
            self._failed("records are left")
        self._has_written.set()

    def _read(self) -> None:
        consumer = Consumer(
            {**self._options, "group.id": self._topic, "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([self._topic])
        try:
            while not self._has_written.is_set() or len(self.consumed) < len(self.acknowledged):
                message = consumer.poll(0.1)
                if message is None:
                    continue
                if message.error():
                    self._failed(message.error())
                else:
                    self.consumed.append(message.value() or b"")
        finally:
            consumer.close()

    def go_on(self, when: str = "") -> None:
        """Until MORE_RECORDS more have been consumed."""
        most = len(self.consumed) + MORE_RECORDS
        wait_until(lambda: bool(self.errors) or len(self.consumed) >= most, "no more is consumed")
        assert self.errors == [], when

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert self.errors == []
        assert self.consumed == self.acknowledged


class Front:
    """The Forebay, its certificate's files and what it is configured by."""

    def __init__(self, proxied: Proxied, directory: Path, stack: contextlib.ExitStack) -> None:
        self.files: TlsFiles = write_certificates(directory)
        self.other: TlsFiles = write_certificates(self._make(directory / "other"))
        self.certificate, self.key = directory / "listener.crt", directory / "listener.key"
        self.install(self.files)
        self.tls_port = proxied.ports["TLS"]
        tls = {"certificateFile": str(self.certificate), "keyFile": str(self.key)}
        self.listeners: list[dict[str, Any]] = [
            {"name": name, "listen": f"{HOST}:{port}", "upstream": proxied.upstream(name)}
            for name, port in proxied.ports.items()
        ]
        self.listeners[1]["tls"] = tls
        disks = [{"device": "no-such-disk"}]
        settings = {"cache": CACHE, "throttle": {"disks": disks}}
        self.sidecar = stack.enter_context(Sidecar(self.listeners, settings))

    @staticmethod
    def _make(directory: Path) -> Path:
        directory.mkdir()
        return directory

    def install(self, files: TlsFiles) -> None:
        """Put another certificate into the listener's files."""
        self.certificate.write_bytes(files.server.certificate.read_bytes())
        self.key.write_bytes(files.server.key.read_bytes())

    def is_trusted_by(self, files: TlsFiles) -> bool:
        """Whether a new handshake on the TLS listener shows a certificate of that authority."""
        context = ssl.create_default_context(cafile=str(files.authority))
        context.check_hostname = False
        with socket.create_connection((HOST, self.tls_port), PATIENCE_S) as plain:
            try:
                with context.wrap_socket(plain):
                    return True
            except ssl.SSLCertVerificationError:
                return False


class Proxied:
    """A broker with a listener for each of Forebay's."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.ports = {name: stack.enter_context(lease_port()).port for name in ("PLAIN", "TLS")}
        listeners = [Listener(name, advertised=(HOST, port)) for name, port in self.ports.items()]
        self.broker = stack.enter_context(KafkaCluster(listeners=listeners))

    def upstream(self, name: str) -> str:
        """Where Forebay reaches the broker's listener of this name."""
        host, port = self.broker.address(name)
        return f"{host}:{port}"


@pytest.fixture(scope="module")
def proxied() -> Iterator[Proxied]:
    with contextlib.ExitStack() as stack:
        yield Proxied(stack)


@pytest.fixture
def front(proxied: Proxied, tmp_path: Path) -> Iterator[Front]:
    with contextlib.ExitStack() as stack:
        yield Front(proxied, tmp_path, stack)


def keys_of(changes: list[dict[str, Any]]) -> set[str]:
    return {change["key"] for change in changes}


CHANGES: tuple[tuple[dict[str, Any], set[str]], ...] = (
    (
        {"isolation": {"dataSlots": {"floor": 1, "initial": 1, "ceiling": 2}, "hangAfter": "9s"}},
        {
            "isolation.dataSlots.floor",
            "isolation.dataSlots.initial",
            "isolation.dataSlots.ceiling",
            "isolation.hangAfter",
        },
    ),
    (
        {"isolation": {"clientQuotas": [{"pattern": "*", "inFlight": "1MiB"}]}},
        {
            "isolation.dataSlots.floor",
            "isolation.dataSlots.initial",
            "isolation.dataSlots.ceiling",
            "isolation.hangAfter",
            "isolation.clientQuotas",
        },
    ),
    (
        {"limits": {"requestMemory": "16MiB", "pipelinedRequests": 2, "parkedFetches": 0}},
        {"limits.requestMemory", "limits.pipelinedRequests", "limits.parkedFetches"},
    ),
    (
        {"limits": {}},
        {"limits.requestMemory", "limits.pipelinedRequests", "limits.parkedFetches"},
    ),
    (
        {"throttle": {"disks": [{"device": "no-such-disk"}], "target": 0.3}},
        {"throttle.target"},
    ),
    ({"cache": CACHE | {"verifyRatio": 1.0}}, {"cache.verifyRatio"}),
    ({"cache": CACHE | {"verifyRatio": 1.0, "mode": "observe"}}, {"cache.mode"}),
    ({"cache": CACHE | {"verifyRatio": 1.0, "mode": "off"}}, {"cache.mode"}),
    ({"cache": CACHE | {"verifyRatio": 1.0}}, {"cache.mode"}),
    ({"log": {"level": "warning", "format": "text"}}, {"log.level"}),
    ({"log": {"level": "info", "format": "text"}}, {"log.level"}),
)


def test_no_request_fails_while_values_change(proxied: Proxied, front: Front) -> None:
    sidecar = front.sidecar
    secure = {"security.protocol": "SSL", "ssl.ca.location": str(front.files.authority)}
    traffic = [
        Traffic(sidecar.bootstrap, create_topic(proxied.broker.direct), {}),
        Traffic(f"{HOST}:{front.tls_port}", create_topic(proxied.broker.direct), secure),
    ]
    for one in traffic:
        one.go_on()
    for settings, keys in CHANGES:
        answer = sidecar.reload(settings)
        assert (answer["success"], answer["errors"], answer["needsRestart"]) == (True, [], [])
        assert keys_of(answer["applied"]) == keys
        for one in traffic:
            one.go_on(f"after {settings}")
    front.install(front.other)
    assert front.is_trusted_by(front.files)
    answer = sidecar.reload({})
    assert answer["certificates"] == ["TLS"]
    assert front.is_trusted_by(front.other)
    assert not front.is_trusted_by(front.files)
    for one in traffic:
        one.go_on()
        one.stop()


def test_the_mode_changes_where_fetches_are_answered(proxied: Proxied, front: Front) -> None:
    sidecar = front.sidecar
    traffic = Traffic(sidecar.bootstrap, create_topic(proxied.broker.direct), {})

    def hits() -> float:
        return sum(size for (result, _), size in sidecar.fetch_counts().items() if result == "hit")

    def passes() -> float:
        return sidecar.fetch_counts().get(("pass", "disabled"), 0.0)

    def would_hit() -> float:
        return sidecar.metrics()["forebay_fetch_would_hit_bytes_total",]

    wait_until(lambda: hits() > 0, "memory serves")
    assert passes() == 0
    sidecar.reload({"cache": CACHE | {"mode": "off"}})
    traffic.go_on()
    served, passed = hits(), passes()
    traffic.go_on()
    assert hits() == served
    assert passes() > passed > 0
    sidecar.reload({"cache": CACHE | {"mode": "observe"}})
    would = would_hit()
    traffic.go_on()
    wait_until(lambda: would_hit() > would, "observe estimates")
    assert hits() == served
    sidecar.reload({"cache": CACHE})
    wait_until(lambda: hits() > served, "memory serves again")
    traffic.stop()


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda front: front.sidecar.directory.joinpath("forebay.yaml").write_text("a: ["), "YAML"),
        (lambda front: front.sidecar.write_config({"limit": {}}), "unknown key"),
        (lambda front: front.certificate.write_text("no certificate"), "cannot be loaded"),
        (lambda front: front.certificate.unlink(), "cannot be read"),
    ],
    ids=["yaml", "unknown-key", "garbled-certificate", "absent-certificate"],
)
def test_a_broken_file_changes_nothing(
    front: Front, write: Callable[[Front], object], said: str
) -> None:
    sidecar = front.sidecar
    before = sidecar.admin("/config")
    sidecar.write_config({"limits": {"maxConnections": 77}})
    write(front)
    os.kill(sidecar.pid, signal.SIGHUP)
    sidecar.wait_for_log("the configuration was not reloaded")
    assert said in sidecar.log_tail()
    assert sidecar.admin("/config") == before
    assert sidecar.metrics()["forebay_config_last_reload_success",] == 0
    assert front.is_trusted_by(front.files)
