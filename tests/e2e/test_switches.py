"""Switches at run time under load on a real broker: no wrong byte, no lost acknowledgement, no Fetch that stays.

Owns one broker, a Forebay whose verifier compares every response, and clients of a wide topic. Must not know how a
switch is applied. Invariants: every record that was acknowledged is consumed, in the order of its partition, by readers
of both isolation levels; no client is told an error but that its connection ended, where it did (`bypass`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.e2e.test_reload import Front, Proxied
from tests.kit.broker.settings import HOST
from tests.kit.broker.topics import create_topic
from tests.kit.sidecar import (
    PATIENT_CACHE,
    PATIENT_SUPERVISOR,
    Pair,
    ProxiedBroker,
    refuse_workers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

PATIENCE_S = 180.0
PARTITIONS = 48
"""More than `sessions.repeated.WIDE_PARTITIONS`: what is remembered of them is under test, too."""
MORE_RECORDS = 60
STEPS = int(os.environ.get("SWITCH_STEPS", "40"))
SEED = int(os.environ.get("SEED", "1"))
CONNECTS_ANEW = ("code=_TRANSPORT", "code=_ALL_BROKERS_DOWN")
"""What librdkafka says of a closed connection, and does not fail for."""
CACHE = PATIENT_CACHE | {"verifyRatio": 1.0}
COMMITTED = {"isolation.level": "read_committed"}


def wait_until(holds: Callable[[], bool], what: object) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Load:
    """A plain and a transactional producer, and a consumer of each isolation level, on all partitions of a topic."""

    def __init__(self, bootstrap: str, topic: str, options: dict[str, str] | None = None) -> None:
        self._options = {
            "bootstrap.servers": bootstrap,
            "error_cb": self._failed,
            "log_level": 0,
            **(options or {}),
        }
        self._topic = topic
        self.errors: list[str] = []
        self.acknowledged: dict[int, list[bytes]] = defaultdict(list)
        self.committed: dict[int, list[bytes]] = defaultdict(list)
        self.consumed: list[dict[int, list[bytes]]] = []
        self._is_over, self._is_abandoned = threading.Event(), False
        self._writers = [self._begin(self._write), self._begin(self._write_transactions)]
        self._readers = [self._begin(self._read, {}), self._begin(self._read, COMMITTED)]

    def _begin(self, work: Callable[..., None], *arguments: Any) -> threading.Thread:
        def run() -> None:
            try:
                work(*arguments)
            except Exception as error:
                self._failed(repr(error))

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def _failed(self, error: object) -> None:
        if not any(one in str(error) for one in CONNECTS_ANEW):
            self.errors.append(str(error))

    def _note(self, into: dict[int, list[bytes]], error: object, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            into[message.partition()].append(message.value())

    def _write(self) -> None:
        producer = Producer({**self._options, "enable.idempotence": True})
        number = 0
        while not self._is_over.is_set():
            producer.produce(
                self._topic,
                b"p%d" % number,
                partition=number % PARTITIONS,
                on_delivery=partial(self._note, self.acknowledged),
            )
            number += 1
            producer.poll(0.004)
        if producer.flush(PATIENCE_S):
            self._failed("records are left")

    def _write_transactions(self) -> None:
        """Every third transaction is aborted."""
        producer = Producer({**self._options, "transactional.id": self._topic})
        producer.init_transactions(PATIENCE_S)
        number = 0
        while not self._is_over.is_set():
            sent: dict[int, list[bytes]] = defaultdict(list)
            producer.begin_transaction()
            for _ in range(5):
                producer.produce(
                    self._topic,
                    b"t%d" % number,
                    partition=number * 7 % PARTITIONS,
                    on_delivery=partial(self._note, sent),
                )
                number += 1
            producer.flush(PATIENCE_S)
            if number % 3:
                producer.commit_transaction(PATIENCE_S)
                for partition, values in sent.items():
                    self.committed[partition] += values
            else:
                producer.abort_transaction(PATIENCE_S)

    def _read(self, options: dict[str, str]) -> None:
        mine: dict[int, list[bytes]] = defaultdict(list)
        self.consumed.append(mine)
        consumer = Consumer({**self._options, "group.id": "none", **options})
        consumer.assign([TopicPartition(self._topic, index, 0) for index in range(PARTITIONS)])
        try:
            while self._is_reading:
                for message in consumer.consume(100, 0.1):
                    if message.error():
                        self._failed(message.error())
                    else:
                        mine[message.partition() or 0].append(message.value() or b"")
        finally:
            consumer.close()

    @property
    def _is_reading(self) -> bool:
        if any(one.is_alive() for one in self._writers):
            return True
        is_missed = any(map(self.find_missing, self.consumed))
        return is_missed and not self.errors and not self._is_abandoned

    def find_missing(self, consumed: dict[int, list[bytes]]) -> int:
        """How many acknowledged records a reader has not seen."""
        found = 0
        for written, mark in ((self.acknowledged, b"p"), (self.committed, b"t")):
            for partition, values in list(written.items()):
                seen = sum(one.startswith(mark) for one in list(consumed[partition]))
                found += max(0, len(values) - seen)
        return found

    def go_on(self, when: object) -> None:
        """Until each reader has MORE_RECORDS more."""

        def count() -> list[int]:
            return [sum(map(len, list(one.values()))) for one in list(self.consumed)]

        most = [one + MORE_RECORDS for one in count()]
        wait_until(
            lambda: bool(self.errors) or all(a >= b for a, b in zip(count(), most, strict=True)),
            when,
        )
        assert self.errors == [], when

    def abandon(self) -> None:
        """After a failure: nobody waits for what is missing."""
        self._is_over.set()
        self._is_abandoned = True

    def stop(self) -> None:
        self._is_over.set()
        for one in [*self._writers, *self._readers]:
            one.join(PATIENCE_S)
            assert not one.is_alive(), self.errors
        assert self.errors == []
        plain, committed = self.consumed
        for consumed in self.consumed:
            for partition, values in self.acknowledged.items():
                seen = [one for one in consumed[partition] if one.startswith(b"p")]
                assert seen == values, partition
        for partition, values in self.committed.items():
            seen = [one for one in committed[partition] if one.startswith(b"t")]
            assert seen == values, partition
            assert set(plain[partition]) >= set(values), partition


@pytest.fixture(scope="module")
def proxied() -> Iterator[ProxiedBroker]:
    with ProxiedBroker() as broker:
        yield broker


@pytest.fixture
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(settings={"cache": CACHE, "supervisor": {"pipeMaxAge": "1s"}}, shared=proxied) as two:
        yield two


@pytest.fixture
def load(pair: Pair) -> Iterator[Load]:
    topic = create_topic(pair.direct, partitions=PARTITIONS)
    load = Load(pair.through, topic)
    wait_until(lambda: len(load.consumed) == 2, "readers begin")
    load.go_on("before any switch")
    yield load
    load.abandon()


def assert_verified(pair: Pair) -> None:
    """What memory gave was compared, and was what the broker has."""

    def count(verdict: str) -> float:
        return pair.sidecar.metrics().get(("forebay_verify_samples_total", verdict), 0.0)

    wait_until(lambda: count("equal") > 0, "something is compared")
    assert count("mismatch") == 0


def draw_switch(draw: Random, topic: str) -> tuple[str, str, dict[str, str]]:
    name = draw.choice(
        ["cache"] * 6 + ["isolation", "throttle", "verify", "bypass", "drop", "reset"]
    )
    if name == "cache":
        scope: dict[str, str] = draw.choice(
            [{}, {}, {"listener": "default"}, {"topic": topic[:4] + "*"}]
        )
        share = draw.choice([{}, {}, {"share": "50%"}])
        return name, draw.choice(["serve", "serve", "observe", "off"]), scope | share
    if name == "verify":
        return name, "1", {}
    return name, topic if name == "drop" else draw.choice(["on", "off"]), {}


def throw(pair: Pair, name: str, value: str, parameters: dict[str, str]) -> dict[str, Any]:
    if name == "drop":
        return pair.sidecar.post(f"/switches/drop?topic={value}")
    if name == "reset":
        return pair.sidecar.post("/switches/reset")
    return pair.sidecar.switch(name, value, **parameters)


def test_random_switches_harm_nobody(pair: Pair, load: Load) -> None:
    draw = Random(SEED)
    done: list[object] = []
    for _ in range(STEPS):
        name, value, parameters = draw_switch(draw, load._topic)
        answer = throw(pair, name, value, parameters)
        is_second_trial = "one at a time" in str(answer.get("error"))
        assert answer["success"] or is_second_trial, (answer, name, value, parameters)
        done.append((name, value, parameters))
        if draw.random() < 0.7:
            load.go_on(done[-6:])
    assert pair.sidecar.post("/switches/reset")["overrides"] == []
    load.go_on(done[-6:])
    hits = pair.sidecar.fetch_counts()["hit", ""]
    wait_until(lambda: pair.sidecar.fetch_counts()["hit", ""] > hits, "memory serves again")
    load.stop()
    assert_verified(pair)
    metrics = pair.sidecar.metrics()
    assert metrics["forebay_internal_errors_total",] == 0
    assert all(value == 0 for key, value in metrics.items() if key[0] == "forebay_switches")


def count_passes(pair: Pair, reason: str) -> float:
    return pair.sidecar.fetch_counts("partitions").get(("pass", reason), 0.0)


def test_off_serves_nothing_and_reset_serves_again(pair: Pair, load: Load) -> None:
    assert pair.sidecar.switch("cache", "off")["success"]
    load.go_on("off")
    hits = pair.sidecar.fetch_counts()["hit", ""]
    passes = count_passes(pair, "disabled")
    load.go_on("off, too")
    assert pair.sidecar.fetch_counts()["hit", ""] == hits
    assert count_passes(pair, "disabled") > passes
    assert pair.sidecar.metrics()["forebay_switches", "cache"] == 1
    assert pair.sidecar.metrics()["forebay_switch_age_seconds",] > 0
    pair.sidecar.post("/switches/reset")
    wait_until(lambda: pair.sidecar.fetch_counts()["hit", ""] > hits, "memory serves again")
    assert pair.sidecar.metrics()["forebay_switch_age_seconds",] == 0
    load.stop()
    assert_verified(pair)


def test_an_override_outlives_worker_and_upgrade_and_reset_ends_it(pair: Pair, load: Load) -> None:
    sidecar = pair.sidecar
    assert sidecar.switch("cache", "off")["success"]
    assert sidecar.switch("verify", "0.5")["success"]

    def is_switched(upgrades: int) -> bool:
        try:
            metrics = sidecar.metrics()
        except OSError:
            return False
        is_over = metrics.get(("forebay_upgrades_total", "done"), 0) == upgrades
        is_served = metrics["forebay_fallback",] == 0
        return metrics["forebay_switches", "cache"] == 1 and is_served and is_over

    former = sidecar.worker_pid
    sidecar.signal_worker(signal.SIGKILL)
    wait_until(lambda: find_worker_of(pair) not in (None, former) and sidecar.is_ready(), "next")
    assert is_switched(upgrades=0)
    load.go_on("after a kill")
    assert sidecar.fetch_counts().get(("hit", ""), 0) == 0
    os.kill(sidecar.pid, signal.SIGUSR2)
    wait_until(lambda: is_switched(upgrades=1), "upgrade")
    load.go_on("after an upgrade")
    assert sidecar.fetch_counts().get(("hit", ""), 0) == 0
    report = sidecar.reload({"cache": CACHE | {"verifyRatio": 0.25, "mode": "serve"}})
    assert report["overridden"] == ["cache.verifyRatio"]
    assert '"verifyRatio": 0.5' in sidecar.admin("/config")
    assert sidecar.post("/switches/reset")["overrides"] == []
    assert '"verifyRatio": 0.25' in sidecar.admin("/config")
    wait_until(lambda: sidecar.fetch_counts().get(("hit", ""), 0) > 0, "memory serves again")
    load.stop()


def find_worker_of(pair: Pair) -> int | None:
    try:
        return pair.sidecar.worker_pid
    except LookupError:
        return None


def test_bypass_pipes_all_clients_and_comes_back(pair: Pair, load: Load) -> None:
    sidecar = pair.sidecar
    assert sidecar.switch("bypass", "on")["success"]

    def metric(*key: str) -> float:
        return sidecar.metrics()[key]

    wait_until(lambda: metric("forebay_pipes") > 0, "clients are piped")
    wait_until(lambda: metric("forebay_active_connections") == 0, "no client is left in the worker")
    load.go_on("piped")
    assert sidecar.is_ready()
    assert metric("forebay_bypassed_listeners") == 1
    requests = sidecar.fetch_requests()
    load.go_on("piped, too")
    assert sidecar.fetch_requests() == requests, "the worker sees none of them"
    sidecar.signal_worker(signal.SIGKILL)
    load.go_on("without a worker")
    wait_until(sidecar.is_ready, "the next worker")
    assert metric("forebay_bypassed_listeners") == 1
    sidecar.post("/switches/reset")
    wait_until(lambda: metric("forebay_pipes") == 0, "pipes end")
    wait_until(lambda: sidecar.fetch_counts().get(("hit", ""), 0) > 0, "memory serves again")
    load.stop()
    assert_verified(pair)


def test_a_listener_of_tls_is_relayed_unread_and_comes_back(tmp_path: Path) -> None:
    """TLS ends at Forebay: nobody can pipe its clients."""
    with contextlib.ExitStack() as stack:
        front = Front(Proxied(stack), tmp_path, stack)
        sidecar = front.sidecar
        tls = {"security.protocol": "SSL", "ssl.ca.location": str(front.files.authority)}
        bootstrap = f"{HOST}:{front.tls_port}"
        load = Load(bootstrap, create_topic(sidecar.bootstrap, partitions=PARTITIONS), tls)
        stack.callback(load.abandon)
        load.go_on("before")
        assert sidecar.switch("bypass", "on", listener="TLS")["success"]

        def count(*reason: str) -> float:
            return sidecar.fetch_counts("partitions").get((reason[0], reason[1]), 0)

        wait_until(lambda: count("pass", "version") > 0, "Fetches are relayed unread")
        load.go_on("relayed")
        hits, unread = count("hit", ""), count("pass", "version")
        load.go_on("relayed, too")
        assert count("hit", "") == hits
        assert count("pass", "version") > unread
        assert sidecar.metrics()["forebay_pipes",] == 0
        assert sidecar.is_ready()
        sidecar.post("/switches/reset")
        wait_until(lambda: count("hit", "") > hits, "memory serves again")
        load.stop()
        assert sidecar.metrics()["forebay_internal_errors_total",] == 0


def test_a_share_widens_and_a_harmful_trial_ends(pair: Pair, load: Load) -> None:
    sidecar = pair.sidecar
    answer = sidecar.switch("cache", "off", share="50%", after="3s")
    assert answer["success"] and answer["overrides"][0]["share"] == 0.5
    assert not sidecar.switch("cache", "off", listener="default", share="10%")["success"]
    wait_until(lambda: sidecar.metrics()["forebay_switch_share",] == 1, "all connections follow")
    hits = sidecar.fetch_counts()["hit", ""]
    load.go_on("all are off")
    assert sidecar.fetch_counts()["hit", ""] == hits
    assert sidecar.metrics()["forebay_switch_changes_total", "widened"] == 1
    sidecar.post("/switches/reset")
    assert sidecar.switch("cache", "observe", share="50%", after="10m")["success"]
    sidecar.signal_worker(signal.SIGSEGV)
    wait_until(lambda: "the trial of a switch was ended" in sidecar.log_tail(100_000), "reverted")
    wait_until(sidecar.is_ready, "the next worker")
    assert sidecar.metrics()["forebay_switch_changes_total", "reverted"] == 1
    assert "SIGSEGV" in sidecar.admin("/switches")
    load.stop()


def test_switches_are_thrown_while_no_worker_runs(
    proxied: ProxiedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = refuse_workers(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    settings = {"supervisor": PATIENT_SUPERVISOR | {"crashLimit": 1, "pipeMaxAge": "0s"}}
    with Pair(shared=proxied, settings=settings) as pair:
        sidecar = pair.sidecar

        def fallback() -> float:
            try:
                return sidecar.metrics()["forebay_fallback",]
            except OSError:
                return -1.0

        refusal.touch()
        sidecar.signal_worker(signal.SIGSEGV)
        wait_until(lambda: fallback() == 1, "clients are piped")
        assert sidecar.switch("cache", "off")["success"]
        assert sidecar.metrics()["forebay_switches", "cache"] == 1
        assert "no listener x" in sidecar.switch("cache", "off", listener="x")["error"]
        assert "no worker is ready" in sidecar.post("/switches/drop?topic=a")["error"]
        refusal.unlink()
        wait_until(lambda: fallback() == 0 and sidecar.is_ready(), "a worker runs")
        assert '"mode": "off"' in sidecar.admin("/config")
        assert sidecar.post("/switches/reset")["overrides"] == []
        assert '"mode": "serve"' in sidecar.admin("/config")


def test_the_command_says_what_is_switched_and_ends_it(pair: Pair) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        admin = f"127.0.0.1:{pair.sidecar.admin_port}"
        command = [sys.executable, "-m", "proxy", "switch", "--admin", admin, *arguments]
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
        return ended.returncode, ended.stdout + ended.stderr

    assert run() == (0, "nothing is switched: the configured values are in force\n")
    code, said = run("cache", "off", "--topic", "orders.*", "--for", "30m")
    assert code == 0 and "cache off; topic orders.*; since 0s" in said and "ends in" in said
    code, said = run("isolation", "off", "--share", "5%")
    assert code == 2 and "takes no share" in said
    code, said = run("cache", "serve", "--listener", "nobody")
    assert code == 2 and "there is no listener nobody; there are default" in said
    code, said = run("bypass")
    assert code == 2 and "bypass takes on or off" in said
    assert run("reset")[1] == "nothing is switched: the configured values are in force\n"
