"""A broker, six Forebays with different settings, a canary, and Prometheus that scrapes them.

Owns what runs and where. Must not know faults. Invariants: targets have only the labels `job` and `instance`, as on
plain machines; a Forebay keeps its ports when it is started anew.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import pytest
from confluent_kafka import Producer

from tests.e2e.between import Between
from tests.e2e.fake_disks import FakeDisks, build_throttle
from tests.e2e.slow_broker import SlowBroker
from tests.kit.broker.kafka import USERS, KafkaCluster
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST, Listener
from tests.kit.broker.topics import create_topic
from tests.kit.prometheus import PrometheusServer
from tests.kit.sidecar import Sidecar
from tests.monitoring.load import start_consumer, start_history, start_producer
from tests.monitoring.rules import write_configuration, write_targets
from tests.monitoring.tls import ListenerTls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

PATIENCE_S = 120.0
SIGNED = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "admin",
    "sasl.password": USERS["admin"],
}
_SPOILED = """
import os, sys, threading, time
if "worker" in sys.orig_argv:
    if os.path.exists({refused!r}):
        os._exit(3)
    def spoil():
        while True:
            time.sleep(0.1)
            dispatch = sys.modules.get("proxy.dispatch")
            if dispatch is not None and hasattr(dispatch, "ROUTES"):
                if os.path.exists({broken!r}):
                    dispatch.ROUTES[3] = lambda *_: 1 / 0
                else:
                    dispatch.ROUTES.pop(3, None)
    threading.Thread(target=spoil, daemon=True).start()
"""
"""Put before a worker's own code: it ends at its start while `refused` exists, and a handler of Metadata fails while
`broken` does.
"""


def wait_until(
    holds: Callable[[], bool], what: Callable[[], object] | str, timeout_s: float = PATIENCE_S
) -> None:
    """Until something holds. AssertionError with `what`, or what it returns, if it never does."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        time.sleep(0.2)


class Stage:
    """All of it, as a context manager. `machines`: the Forebays by name."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.refused, self.broken = directory / "refused", directory / "broken"
        self.machines: dict[str, Sidecar] = {}
        self.began_at = time.time()
        self._stack = contextlib.ExitStack()
        self.entries: dict[str, list[dict[str, Any]]] = {}
        """The listeners of a Forebay, by its name."""

    def __enter__(self) -> Self:
        with self._stack:
            self._open()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def _open(self) -> None:
        enter = self._stack.enter_context
        patch = enter(pytest.MonkeyPatch.context())
        spoiled = _SPOILED.format(refused=str(self.refused), broken=str(self.broken))
        (self.directory / "sitecustomize.py").write_text(spoiled)
        patch.setenv("PYTHONPATH", str(self.directory), prepend=os.pathsep)
        plain, signed = enter(lease_port()), enter(lease_port())
        listeners = [
            Listener("CLIENT", advertised=(HOST, plain.port)),
            Listener("CATCHUP", advertised=(HOST, plain.port)),
            Listener(
                "SASL", "SASL_PLAINTEXT", ("PLAIN", "SCRAM-SHA-256"), advertised=(HOST, signed.port)
            ),
        ]
        self.broker = enter(KafkaCluster(listeners=listeners, authorizer=True))
        self.slow = enter(SlowBroker(self.broker.address("CLIENT")))
        self.disks = enter(FakeDisks(self.directory / "diskstats", ["sdx", "sdy"]))
        self.wire = enter(Between(self.broker.address("CATCHUP")))
        self.topic = create_topic(self.broker.direct, partitions=24)
        self.old = self._write_old()
        self.told, self.signed_told = f"{HOST}:{plain.port}", f"{HOST}:{signed.port}"
        self._open_plain(plain.port)
        self._open_throttled()
        self._open_secured(signed.port)
        self._open_loose()
        self._open_observing()
        self._open_several()
        self._open_canary()
        self.prometheus = enter(
            PrometheusServer(
                write_configuration(self.directory),
                self.directory / "data",
                enter(lease_port()).port,
            )
        )
        self.tell_targets()
        self._start_load()

    def _write_old(self) -> str:
        """A topic of 40 MB that no Forebay has seen being written."""
        topic = create_topic(self.broker.direct)
        producer = Producer({"bootstrap.servers": self.broker.direct, "linger.ms": 5})
        for _ in range(4000):
            producer.produce(topic, os.urandom(5000).hex().encode())
            producer.poll(0)
        assert producer.flush(60) == 0
        return topic

    def _add(self, name: str, listeners: Sequence[Any], settings: dict[str, Any]) -> None:
        self.entries[name] = [dict(one) for one in listeners]
        sidecar = Sidecar(listeners, settings)
        self.machines[name] = self._stack.enter_context(sidecar)

    def _upstream(self, listener: str = "CLIENT") -> str:
        host, port = self.broker.address(listener)
        return f"{host}:{port}"

    def _build_entry(self) -> dict[str, Any]:
        """A listener of its own. Its clients are told another one's address, which is no fault here."""
        return {
            "listen": self._own_address(),
            "upstream": self._upstream(),
            "advertised": self.told,
        }

    def _own_address(self) -> str:
        return f"{HOST}:{self._stack.enter_context(lease_port()).port}"

    def _open_plain(self, port: int) -> None:
        """Behind the slow forwarder; what the broker's clients are told."""
        arena = self.directory / "arena"
        arena.mkdir()
        self.arena = arena
        self._add(
            "plain",
            [{"listen": f"{HOST}:{port}", "upstream": self.slow.address}],
            {
                "cache": {"size": "16MiB", "verifyRatio": 1, "directory": str(arena)},
                "isolation": {"hangAfter": "3s", "queueRequests": 10},
                "limits": {
                    "maxConnections": 60,
                    "idleTimeout": "1h",
                    "requestMemory": "2MiB",
                    "connectionRequestMemory": "1MiB",
                },
            },
        )

    def _open_throttled(self) -> None:
        """With disks whose counters the test writes."""
        places = [{"device": "sdx", "throughput": "1GB"}]
        throttle = build_throttle(self.disks, places, maxDelay="300ms", waitingRequests="3")
        self._add("throttled", [self._build_entry()], {"throttle": throttle})

    def _open_secured(self, port: int) -> None:
        """TLS with revocation lists toward clients, SASL on another listener, and a user without rights of its own."""
        self.tls = ListenerTls(self.directory)
        self.password = self.directory / "password"
        self.password.write_text(USERS["alice"])
        credentials = {
            "mechanism": "PLAIN",
            "username": "alice",
            "passwordFile": str(self.password),
        }
        common = {"upstream": self._upstream("SASL"), "upstreamCredentials": credentials}
        self._add(
            "secured",
            [
                {"name": "sasl", "listen": f"{HOST}:{port}", **common},
                {
                    "name": "tls",
                    "listen": self._own_address(),
                    **common,
                    "advertised": self.signed_told,
                    "tls": self.tls.section,
                    "allowSharedIdentity": True,
                },
            ],
            {"cache": {"size": "64MiB", "verifyRatio": 1}},
        )

    def _open_loose(self) -> None:
        """With a second listener whose wire can be cut, and disks that hold none of the broker's directories."""
        places = [
            {"device": name, "brokerDirectory": f"/nowhere/{name}"} for name in self.disks.disks
        ]
        entry = {**self._build_entry(), "catchUpUpstream": self.wire.address}
        self._add("loose", [entry], {"throttle": build_throttle(self.disks, places)})

    def _open_observing(self) -> None:
        """It serves nothing from memory, and has a listener that passes bytes through."""
        entries = [
            {"name": "observed", **self._build_entry()},
            {
                "name": "unread",
                "listen": self._own_address(),
                "passThrough": True,
                "upstream": self._upstream(),
            },
        ]
        self._add("observing", entries, {"cache": {"mode": "observe", "size": "64MiB"}})

    def _open_several(self) -> None:
        """Two workers and their keeper."""
        self._add("several", [self._build_entry()], {"workers": 2})

    def add_certified(self) -> Sidecar:
        """A Forebay, not started, that signs in for clients by delegation tokens."""
        credentials = {
            "mechanism": "SCRAM-SHA-256",
            "username": "alice",
            "passwordFile": str(self.password),
        }
        entry = {
            "listen": self._own_address(),
            "upstream": self._upstream("SASL"),
            "advertised": self.signed_told,
            "upstreamCredentials": credentials,
            "useDelegationTokens": True,
            "tls": self.tls.section,
        }
        self.machines["certified"] = machine = Sidecar([entry])
        self._stack.callback(machine.__exit__, None, None, None)
        self.tell_targets()
        return machine

    def _open_canary(self) -> None:
        port = self._stack.enter_context(lease_port()).port
        self.canary = f"{HOST}:{port}"
        config = self.machines["plain"].directory / "forebay.yaml"
        command = [sys.executable, "-m", "proxy", "canary", str(config), "--metrics", self.canary]
        command += ["--direct", self._upstream(), "--every", "250ms", "--timeout", "2s"]
        log = self._stack.enter_context((self.directory / "canary.log").open("wb"))
        process = subprocess.Popen(command, stdout=log, stderr=log)
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)

    def _start_load(self) -> None:
        plain = self.bootstrap("plain")
        for worker in (
            start_producer(plain, self.topic),
            start_consumer(plain, self.topic, "one"),
            start_consumer(plain, self.topic, "two"),
            start_producer(self.bootstrap("secured"), self.topic, SIGNED, 20),
            start_consumer(self.bootstrap("secured"), self.topic, "three", SIGNED),
            *start_history(self.bootstrap("throttled"), self.old, 1),
            *start_history(self.bootstrap("several"), self.old, 1),
            *start_history(self.bootstrap("observing"), self.old, 1),
            *start_history(self.listen("observing", 1), self.old, 1),
        ):
            self._stack.callback(worker.close)

    def bootstrap(self, name: str) -> str:
        """Where clients of a Forebay connect."""
        return self.machines[name].bootstrap

    def listen(self, name: str, index: int) -> str:
        """The address of one of a Forebay's listeners."""
        return str(self.entries[name][index]["listen"])

    def instance(self, name: str) -> str:
        """The label `instance` of a Forebay."""
        return f"{HOST}:{self.machines[name].admin_port}"

    def tell_targets(self, leaving_out: str = "") -> None:
        """Have Prometheus scrape all Forebays but one, and the canary."""
        names = [name for name in self.machines if name != leaving_out]
        write_targets(self.directory, "forebay", [self.instance(name) for name in names])
        write_targets(self.directory, "forebay-canary", [self.canary])

    def is_firing(self, alert: str, instance: str) -> bool:
        """Whether an alert fires for an instance."""
        return any(
            one["state"] == "firing"
            and one["labels"]["alertname"] == alert
            and one["labels"]["instance"] == instance
            for one in self.prometheus.list_alerts()
        )

    def find_alert(self, alert: str, instance: str) -> dict[str, Any]:
        """A firing alert as Prometheus has it. LookupError."""
        for one in self.prometheus.list_alerts():
            if (one["labels"]["alertname"], one["labels"]["instance"]) == (alert, instance):
                return one
        raise LookupError(alert)

    def kill_worker(self, name: str) -> None:
        """SIGKILL, and wait for the next one."""
        machine = self.machines[name]
        former = machine.worker_pid
        os.kill(former, signal.SIGKILL)
        wait_until(
            lambda: machine.is_ready() and machine.worker_pid != former, "another worker serves"
        )
