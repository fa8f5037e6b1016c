"""What the admin port shows of several workers: the clients of all, in one view that waits for no worker for long."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from tests.e2e.fake_disks import FakeDisks, build_throttle
from tests.e2e.raw_frames import build_metadata
from tests.e2e.test_throttle import OLD_RECORDS, make_busy, produce, rewind
from tests.e2e.test_warm_restart import wait_until
from tests.e2e.test_workers import attached, owner_of
from tests.kit.broker.settings import HOST
from tests.kit.broker.topics import create_topic
from tests.kit.processes import list_workers
from tests.kit.raw_fetch import RawClient, RawReader
from tests.kit.sidecar import PATIENT_SUPERVISOR, Pair, ProxiedBroker
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

WORKERS = 2
TURNS = 20
OLD_S = 7200
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def pair(disks: FakeDisks, proxied: ProxiedBroker) -> Iterator[Pair]:
    throttle = build_throttle(disks)
    settings = {"supervisor": PATIENT_SUPERVISOR, "workers": WORKERS, "throttle": throttle}
    with Pair(shared=proxied, settings=settings) as running:
        wait_until("all are attached", lambda: attached(running) == WORKERS)
        yield running


def ask(pair: Pair, path: str) -> dict[str, Any]:
    """What the admin port says, however busy the machine is."""
    address = f"http://{HOST}:{pair.sidecar.admin_port}{path}"
    with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
        return dict(json.load(answer))


def spread(stack: ExitStack, pair: Pair, prefix: str) -> list[RawClient]:
    """A client of each worker, each with a client id of its own."""
    pids = list_workers(pair.sidecar)
    found: dict[int, RawClient] = {}
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < len(pids):
        client = stack.enter_context(RawClient(pair.through, f"{prefix}-{len(found)}"))
        client.call(build_metadata())
        found.setdefault(owner_of(client, pids), client)
        assert time.monotonic() < deadline, "one worker accepts nobody"
    return list(found.values())


def write_old(pair: Pair, topic: str) -> None:
    """Records past Forebay, of two hours ago."""
    producer = Producer({"bootstrap.servers": pair.direct})
    for _ in range(20):
        producer.produce(topic, b"v" * 500, timestamp=int(1000 * (time.time() - OLD_S)))
    assert producer.flush(PATIENCE_S) == 0


def test_the_clients_of_all_workers_are_shown(pair: Pair) -> None:
    with ExitStack() as stack:
        clients = spread(stack, pair, "tail")
        topic = create_topic(pair.direct)
        readers = [RawReader(client, topic).settle() for client in clients]

        def read_on() -> bool:
            end = clients[0].produce(topic, batch_v2(1)) + 1
            for reader in readers:
                reader.read_to(end)
            said = ask(pair, "/top")
            shown = {row["name"]: row["bytes"] for row in said["clients"]}
            return all(shown.get(client.client_id, 0) > 0 for client in clients)

        wait_until("both are shown", read_on)
        said = ask(pair, "/top")
        assert said["forebay"]["workers"] == {"answered": WORKERS, "of": WORKERS}
        assert sum(one["connections"] for one in said["forebay"]["listeners"]) >= len(clients)
        of_topic = next(row["bytes"] for row in said["topics"] if row["name"] == topic)
        of_clients = [row for row in said["clients"] if row["name"].startswith("tail-")]
        assert of_topic == sum(row["bytes"] for row in of_clients)
        assert said["fetch"]["bytes"] >= of_topic and said["memory"]["liveBytes"] > 0


def test_readers_behind_are_those_of_all_workers_with_the_retention_that_the_keeper_knows(
    pair: Pair,
) -> None:
    topics = [create_topic(pair.direct, config={"retention.ms": "-1"}) for _ in range(WORKERS)]
    with ExitStack() as stack:
        clients = spread(stack, pair, "behind")
        for topic in topics:
            write_old(pair, topic)

        def find() -> dict[str, Any]:
            for client, topic in zip(clients, topics, strict=True):
                RawReader(client, topic).poll()
            said = ask(pair, "/top")
            return {one["topic"]: one for one in said["readersBehind"]["rows"]}

        def is_whole() -> bool:
            rows = find()
            return all(
                rows.get(one, {}).get("retention", {}).get("state") == "forever" for one in topics
            )

        wait_until("both are shown", is_whole)
        rows = find()
        for client, topic in zip(clients, topics, strict=True):
            assert rows[topic]["client"] == client.client_id
            assert rows[topic]["behindS"] >= OLD_S


def test_queues_are_those_of_all_workers(pair: Pair) -> None:
    def count(said: dict[str, Any]) -> float:
        return float(sum(one["admitted"] for one in said["queues"].values()))

    before = ask(pair, "/isolation")
    with ExitStack() as stack:
        topic = create_topic(pair.direct)
        for client in spread(stack, pair, "writer"):
            for _ in range(TURNS):
                client.produce(topic, batch_v2(1))
    after = ask(pair, "/isolation")
    assert count(after) - count(before) >= WORKERS * TURNS
    assert before["enabled"] and after["queues"]["control"]["slots"] > 0


def test_the_throttle_has_the_misses_of_all_workers(pair: Pair, disks: FakeDisks) -> None:
    topic = create_topic(pair.direct)
    produce(pair.direct, topic, 0, OLD_RECORDS)
    with ExitStack() as stack:
        readers = [RawReader(client, topic) for client in spread(stack, pair, "history")]
        rewind(*readers)
        make_busy(pair, disks.disks["sdx"])

        def all_wait() -> bool:
            for reader in readers:
                reader.poll(max_wait_ms=20)
            assert all(reader.offset < OLD_RECORDS for reader in readers), "nobody was delayed"
            return bool(ask(pair, "/throttle")["waiting_requests"] >= WORKERS)

        wait_until("both wait", all_wait)
    disks.disks["sdx"].busy = False


def test_a_view_goes_without_a_worker_that_does_not_answer(pair: Pair) -> None:
    stopped, *_ = list_workers(pair.sidecar)
    os.kill(stopped, signal.SIGSTOP)
    try:
        wait_until("it has stopped", lambda: " T " in Path(f"/proc/{stopped}/stat").read_text())
        said = ask(pair, "/top")["forebay"]["workers"]
        assert said == {"answered": WORKERS - 1, "of": WORKERS}
        assert ask(pair, "/isolation")["enabled"]
    finally:
        os.kill(stopped, signal.SIGCONT)

    def is_whole() -> bool:
        return bool(ask(pair, "/top")["forebay"]["workers"]["answered"] == WORKERS)

    wait_until("it answers again", is_whole)
    os.kill(stopped, signal.SIGKILL)
    assert ask(pair, "/top")["forebay"]["workers"]["answered"] <= WORKERS
    wait_until(
        "its successor answers", lambda: stopped not in list_workers(pair.sidecar) and is_whole()
    )
