"""The worker ends under clients, and the supervisor goes on: another worker, or pipes to the broker.

Owns what happens to the worker, and clients at work meanwhile. Must not know how the supervisor does its part.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer

from tests.e2e.raw_frames import Raw, build_metadata
from tests.kit.broker.ports import lease_port
from tests.kit.broker.process import die_with_parent
from tests.kit.broker.settings import HOST
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import read_all
from tests.kit.sidecar import (
    PATIENT_CACHE,
    PATIENT_SUPERVISOR,
    Pair,
    ProxiedBroker,
    Sidecar,
    find_worker,
    refuse_workers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

PATIENCE_S = 120.0
KILLS = 3
RECORDS_BETWEEN = 300
UNACKNOWLEDGED = 500
PAUSE_S = 0.001
"""A writer's records without an answer, at most, and its wait after each: eight that wrote as fast as they could had
the processors to themselves where these were slow, and a backlog that took minutes.
"""
VERIFIED = {"cache": {**PATIENT_CACHE, "verifyRatio": 1.0}}
LASTING = {"crashLimit": 1000}
"""Only one test wants pipes."""


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Client(threading.Thread):
    """Works on a topic until `finish`; `values` grows: what was acknowledged, or read."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self._topic = topic
        self._over = threading.Event()
        self.values: list[bytes] = []

    def finish(self) -> None:
        self._over.set()
        self.join(PATIENCE_S + 10)
        assert not self.is_alive()

    def wait_for_more(self, count: int = RECORDS_BETWEEN) -> None:
        wanted = len(self.values) + count
        wait_until(lambda: len(self.values) >= wanted, f"the {type(self).__name__} goes on")


class Writer(Client):
    """Writes numbers, acks=all."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(topic)
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 2, "log_level": 0}
        )
        self.failed: list[str] = []

    def run(self) -> None:
        number = 0
        while not self._over.wait(PAUSE_S):
            if number < len(self.values) + len(self.failed) + UNACKNOWLEDGED:
                self._producer.produce(self._topic, b"%d" % number, on_delivery=self._delivered)
                number += 1
            self._producer.poll(0)
        assert self._producer.flush(PATIENCE_S) == 0

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.values.append(message.value())
        else:
            self.failed.append(str(error))


class Reader(Client):
    """Reads a topic from its beginning."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(topic)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"reads-{topic}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([topic])

    def run(self) -> None:
        while not self._over.is_set():
            self.values += [
                one.value() or b""
                for one in self._consumer.consume(100, 0.1)
                if one.error() is None
            ]
        self._consumer.close()


@contextmanager
def at_work(pair: Pair) -> Iterator[tuple[Writer, Reader]]:
    """A producer and a consumer of one topic; at the end all that was acknowledged is there, in order, and was read."""
    topic = create_topic(pair.direct)
    writer, reader = Writer(pair.through, topic), Reader(pair.through, topic)
    writer.start()
    reader.start()
    try:
        writer.wait_for_more()
        reader.wait_for_more()
        yield writer, reader
        writer.finish()
        wait_until(lambda: reader.values[-1:] == writer.values[-1:], "the reader is at the end")
    finally:
        writer.finish()
        reader.finish()
    assert writer.failed == []
    assert set(writer.values) <= set(reader.values)
    assert bytes(read_all(pair.through, topic)) == bytes(read_all(pair.direct, topic))
    assert mismatches(pair.sidecar) == 0


def mismatches(sidecar: Sidecar) -> float:
    return sidecar.metrics()["forebay_verify_samples_total", "mismatch"]


def restarts(sidecar: Sidecar, reason: str) -> float:
    """-1 while nobody answers."""
    try:
        return sidecar.metrics()["forebay_worker_restarts_total", reason]
    except OSError:
        return -1


@pytest.fixture
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(shared=proxied, settings={**VERIFIED, "supervisor": LASTING}) as running:
        yield running


def test_a_killed_worker_is_replaced_and_nothing_is_lost(pair: Pair) -> None:
    sidecar = pair.sidecar
    with at_work(pair) as (writer, reader):
        for kill in range(1, KILLS + 1):
            with Raw(pair.through) as before:
                assert before.call(build_metadata())
                worker = sidecar.worker_pid
                os.kill(worker, signal.SIGKILL)
                assert before.ends()
            with Raw(pair.through) as after:
                assert after.call(build_metadata()), "nobody is refused: the backlog waits"
                assert find_worker(sidecar.pid) not in (worker, None)
                wait_until(sidecar.is_ready, "the next worker")
                writer.wait_for_more()
                reader.wait_for_more()
                assert after.call(build_metadata()), "connections break once"
            assert restarts(sidecar, "signal") == kill
    assert sidecar.stop() == 0


def test_a_hung_worker_is_replaced(pair: Pair) -> None:
    with at_work(pair) as (writer, reader):
        pair.sidecar.signal_worker(signal.SIGSTOP)
        wait_until(lambda: restarts(pair.sidecar, "hung") == 1, "it is found")
        writer.wait_for_more()
        reader.wait_for_more()
        wait_until(pair.sidecar.is_ready, "the next worker")
        assert "killing a worker that does not answer" in pair.sidecar.log_tail()


def fallback(sidecar: Sidecar) -> float:
    """-1 while nobody answers."""
    try:
        return sidecar.metrics()["forebay_fallback",]
    except OSError:
        return -1


def test_a_crash_loop_pipes_clients_until_a_worker_runs(
    proxied: ProxiedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = refuse_workers(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    settings = {
        **VERIFIED,
        "supervisor": PATIENT_SUPERVISOR | {"crashLimit": 2, "pipeMaxAge": "0s"},
    }
    with Pair(shared=proxied, settings=settings) as pair, at_work(pair) as (writer, reader):
        sidecar = pair.sidecar
        refusal.touch()
        sidecar.signal_worker(signal.SIGKILL)
        wait_until(lambda: fallback(sidecar) == 1, "clients are piped")
        assert sidecar.is_ready(), "clients are served"
        assert sidecar.metrics()["forebay_ready",] == 1
        assert restarts(sidecar, "signal") == 1
        assert restarts(sidecar, "exit") >= 1
        assert sidecar.admin("/livez") == "alive\n"
        writer.wait_for_more()
        reader.wait_for_more()
        with Raw(pair.through) as piped:
            assert piped.call(build_metadata())
            assert sidecar.metrics()["forebay_active_connections",] >= 1
            refusal.unlink()
            wait_until(lambda: fallback(sidecar) == 0, "a worker runs again")
            assert piped.ends(), "its pipe is closed"
        wait_until(sidecar.is_ready, "the worker")
        writer.wait_for_more()
        reader.wait_for_more()
        sidecar.wait_for_log("a worker runs again")


def test_pipes_of_a_former_crash_loop_are_counted(
    proxied: ProxiedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = refuse_workers(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    settings = {"supervisor": PATIENT_SUPERVISOR | {"crashLimit": 2, "pipeMaxAge": "1h"}}

    with Pair(shared=proxied, settings=settings) as running:
        sidecar = running.sidecar

        def count_pipes() -> list[float]:
            metrics = sidecar.metrics()
            return [metrics[name,] for name in ("forebay_pipes", "forebay_pipes_total")]

        assert count_pipes() == [0, 0]
        refusal.touch()
        sidecar.signal_worker(signal.SIGKILL)
        wait_until(lambda: fallback(sidecar) == 1, "clients are piped")
        with Raw(running.through) as piped:
            assert piped.call(build_metadata())
            assert min(count_pipes()) >= 1, "a client of an earlier test may have come back, too"
            refusal.unlink()
            wait_until(lambda: fallback(sidecar) == 0, "a worker runs again")
            assert piped.call(build_metadata())
            assert min(count_pipes()) >= 1
            while_piped = count_pipes()
        wait_until(lambda: count_pipes()[0] < while_piped[0], "its pipe is gone")
        assert count_pipes()[1] >= while_piped[1]


HELD = """
import sys
if "worker" in sys.orig_argv:
    open({!r}).read()
"""
"""A sitecustomize that holds a worker from its first moment on, until somebody has written to the FIFO."""


def test_the_port_answers_before_the_worker_does(proxied: ProxiedBroker, tmp_path: Path) -> None:
    """However long the worker takes."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "sitecustomize.py").write_text(HELD.format(str(fifo)))
    with lease_port() as client_port, lease_port() as admin_port:
        command = [sys.executable, "-m", "proxy", "serve", "--cache-size", "16MiB"]
        command += ["--upstream", proxied.upstream, "--listen", f"{HOST}:{client_port.port}"]
        command += ["--admin", f"{HOST}:{admin_port.port}"]
        environment = {
            **os.environ,
            "PYTHONPATH": str(tmp_path),
            "FOREBAY_SUPERVISOR_START_TIMEOUT": "1h",
        }
        with (
            (tmp_path / "log").open("wb") as log,
            subprocess.Popen(
                command, stderr=log, env=environment, process_group=0, preexec_fn=die_with_parent
            ) as supervisor,
        ):
            try:
                wait_until(lambda: find_worker(supervisor.pid) is not None, "the worker")
                with Raw(f"{HOST}:{client_port.port}") as early:
                    early.send(build_metadata())
                    assert ask(admin_port.port, "/livez").startswith(b"HTTP/1.1 200")
                    not_yet = ask(admin_port.port, "/readyz")
                    assert not_yet.startswith(b"HTTP/1.1 503")
                    assert not_yet.endswith(b"no worker is ready yet\n")
                    fifo.write_text("go on")
                    assert early.take(), "it was in the backlog"
                supervisor.terminate()
                assert supervisor.wait(PATIENCE_S) == 0
            finally:
                if supervisor.poll() is None:
                    os.killpg(supervisor.pid, signal.SIGKILL)


def ask(port: int, path: str) -> bytes:
    with socket.create_connection((HOST, port), PATIENCE_S) as asking:
        asking.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        answer = b""
        while part := asking.recv(4096):
            answer += part
        return answer


def read_ratio(sidecar: Sidecar) -> float:
    """`cache.verifyRatio` in force."""
    with urllib.request.urlopen(f"http://{HOST}:{sidecar.admin_port}/config") as answer:
        return float(json.load(answer)["cache"]["verifyRatio"])


def test_a_reloaded_configuration_outlives_the_worker(proxied: ProxiedBroker) -> None:
    """The next worker has what is in force, not what the supervisor was started with. SIGHUP goes to
    the supervisor.
    """
    with Pair(settings={"supervisor": PATIENT_SUPERVISOR | LASTING}, shared=proxied) as pair:
        sidecar = pair.sidecar
        assert sidecar.reload({"cache": PATIENT_CACHE | {"verifyRatio": 0.25}})["success"]
        worker = find_worker(sidecar.pid)
        sidecar.signal_worker(signal.SIGKILL)
        wait_until(
            lambda: find_worker(sidecar.pid) not in (worker, None) and sidecar.is_ready(),
            "another worker is ready",
        )
        assert read_ratio(sidecar) == 0.25
        sidecar.write_config({"cache": PATIENT_CACHE | {"verifyRatio": 0.5}})
        os.kill(sidecar.pid, signal.SIGHUP)
        wait_until(lambda: read_ratio(sidecar) == 0.5, "SIGHUP reloads")
