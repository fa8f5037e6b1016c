"""Consumers that miss the same range at the same time cost the broker one read, and each gets what it would alone.

Between Forebay and the broker lies a wire that holds answers back, so that what is asked meanwhile is asked at
the same time. The broker is real.
"""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from protocol import control, fetch
from tests.e2e.between import Between
from tests.kit.broker.kafka import USERS, KafkaCluster
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST, Listener
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, RawReader, read_all
from tests.kit.sidecar import Sidecar
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.e2e

TRIES = 50
CONSUMERS = 8
BATCHES = 60
PATIENCE_S = 60.0
WAIT_MS = 5000
VERSION = 13
NOT_AUTHORIZED = 29


class Held(NamedTuple):
    """A broker, the wires before its listeners, and a Forebay before them."""

    broker: KafkaCluster
    sidecar: Sidecar
    wires: dict[str, Between]
    bootstraps: dict[str, str]

    def total(self, name: str, *labels: str) -> float:
        return self.sidecar.metrics().get((f"forebay_{name}", *labels), 0)


@pytest.fixture(scope="module")
def held() -> Iterator[Held]:
    with contextlib.ExitStack() as stack:
        ports = {name: stack.enter_context(lease_port()).port for name in ("OPEN", "SASL")}
        listeners = [
            Listener("OPEN", "PLAINTEXT", (), (HOST, ports["OPEN"])),
            Listener("SASL", "SASL_PLAINTEXT", ("PLAIN",), (HOST, ports["SASL"])),
        ]
        broker = stack.enter_context(KafkaCluster(listeners=listeners, authorizer=True))
        wires = {name: stack.enter_context(Between(broker.address(name))) for name in ports}
        bootstraps = {name: f"{HOST}:{port}" for name, port in ports.items()}
        entries = [
            {"name": name, "listen": bootstraps[name], "upstream": wires[name].address}
            for name in ports
        ]
        settings = {"cache": {"size": "64MiB", "confirmEvery": "10s", "authorizeEvery": "600s"}}
        sidecar = stack.enter_context(Sidecar(entries, settings))
        yield Held(broker, sidecar, wires, bootstraps)


@pytest.fixture
def topic(held: Held) -> str:
    """With records that Forebay has not seen."""
    name = create_topic(held.broker.direct)
    with RawClient(held.broker.direct) as writer:
        for _ in range(BATCHES):
            writer.produce(name, batch_v2(2, value=b"old" * 1000))
    return name


def open_reader(held: Held, topic: str, name: str = "") -> RawReader:
    """A connection of its own that the broker has let read the topic, standing at its start."""
    client = RawClient(held.bootstraps["OPEN"], name or "same")
    reader = RawReader(client, topic, version=VERSION, offset=2 * BATCHES)
    reader.settle(3)
    reader.offset, reader.max_bytes = 0, 100_000
    return reader


def wait_for(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def ask(reader: RawReader) -> tuple[fetch.FetchedPartition, bytes]:
    (said,) = reader.client.fetch(VERSION, [reader.asked()], max_wait_ms=WAIT_MS)
    return said


def read_directly(held: Held, topic: str) -> bytes:
    """What the broker answers to the same Fetch."""
    with RawClient(held.broker.direct) as client:
        reader = RawReader(client, topic, version=VERSION)
        reader.max_bytes = 100_000
        return ask(reader)[1]


def wait_asked(held: Held, before: float, count: int) -> None:
    """Until so many more Fetches have come in."""
    wait_for(lambda: held.sidecar.fetch_requests() >= before + count, "all ask")
    time.sleep(0.1)


def test_eight_consumers_at_one_cold_offset_are_one_read(held: Held, topic: str) -> None:
    readers = [open_reader(held, topic) for _ in range(CONSUMERS)]
    asked = held.sidecar.fetch_requests()
    read_before = held.total("upstream_fetch_bytes_total", "client")
    shared_before = held.total("fetch_shared_reads_total"), held.total("fetch_shared_bytes_total")
    counts = held.sidecar.fetch_counts()
    with ThreadPoolExecutor(CONSUMERS) as pool:
        held.wires["OPEN"].stall()
        asking = [pool.submit(ask, reader) for reader in readers]
        wait_asked(held, asked, CONSUMERS)
        held.wires["OPEN"].flow()
        answers = [one.result(PATIENCE_S) for one in asking]
    expected = read_directly(held, topic)
    assert len(expected) == 100_000
    assert {records for _, records in answers} == {expected}
    assert {said.high_watermark for said, _ in answers} == {2 * BATCHES}
    assert held.total("upstream_fetch_bytes_total", "client") - read_before == len(expected)
    assert held.total("fetch_shared_reads_total") - shared_before[0] == CONSUMERS - 1
    assert held.total("fetch_shared_bytes_total") - shared_before[1] == (CONSUMERS - 1) * len(
        expected
    )
    missed = held.sidecar.fetch_counts()["miss", "cold"] - counts.get(("miss", "cold"), 0)
    assert missed == CONSUMERS * len(expected), "each is accounted what it was given"


def test_consumers_side_by_side_read_the_whole_log_equal_to_it(held: Held, topic: str) -> None:
    """Undisturbed: how much is shared is up to chance, what is read is not."""
    expected = read_all(held.broker.direct, topic)
    readers = [open_reader(held, topic) for _ in range(CONSUMERS)]
    for number, reader in enumerate(readers):
        reader.max_bytes = 30_000 + 1000 * (number // 2)
    before = held.total("upstream_fetch_bytes_total", "client") + held.total(
        "fetch_shared_bytes_total"
    )
    received = sum(reader.received_bytes for reader in readers)
    with ThreadPoolExecutor(CONSUMERS) as pool:
        for raw in pool.map(lambda reader: reader.read_to(2 * BATCHES), readers):
            assert raw == expected
    after = held.total("upstream_fetch_bytes_total", "client") + held.total(
        "fetch_shared_bytes_total"
    )
    assert after - before == sum(reader.received_bytes for reader in readers) - received


def test_the_others_read_for_themselves_when_the_first_one_dies(held: Held, topic: str) -> None:
    readers = [open_reader(held, topic) for _ in range(4)]
    asked = held.sidecar.fetch_requests()
    held.wires["OPEN"].stall()
    with ThreadPoolExecutor(4) as pool:
        readers[0].client.send_fetch(VERSION, [readers[0].asked()], max_wait_ms=WAIT_MS)
        wait_asked(held, asked, 1)
        asking = [pool.submit(ask, reader) for reader in readers[1:]]
        wait_asked(held, asked, 4)
        readers[0].client.abort()
        wait_for(lambda: held.total("fetch_undelivered_partitions_total") >= 1, "the first is gone")
        held.wires["OPEN"].flow()
        answers = [one.result(PATIENCE_S) for one in asking]
    assert {records for _, records in answers} == {read_directly(held, topic)}


def test_a_first_one_that_does_not_drain_holds_nobody(held: Held, topic: str) -> None:
    """It asks again and again and takes nothing, until its link to the broker is not read any more."""
    slow, quick = open_reader(held, topic, "slow"), open_reader(held, topic, "quick")
    slow.max_bytes = 8 << 20
    for _ in range(60):
        slow.client.send_fetch(VERSION, [slow.asked()], max_wait_ms=WAIT_MS)
    quick.max_bytes = slow.max_bytes
    expected = read_all(held.broker.direct, topic)
    for _ in range(5):
        started = time.monotonic()
        _, records = ask(quick)
        assert time.monotonic() - started < 2.5
        assert records == expected
    slow.client.abort()


def sign_in(client: RawClient, user: str) -> None:
    """SASL PLAIN."""
    shake = control.build_sasl_handshake_request(1, 0, client.client_id, mechanism="PLAIN")
    assert control.scan_sasl_handshake_response(client.call(shake), 1).error_code == 0
    token = f"\0{user}\0{USERS[user]}".encode()
    show = control.build_sasl_authenticate_request(2, 0, client.client_id, auth_bytes=token)
    assert control.scan_sasl_authenticate_response(client.call(show), 2).error_code == 0


def allow(held: Held, topic: str, operation: AclOperation) -> None:
    """What alice may do: DESCRIBE is as far as Fetch, and not to read."""
    binding = AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        "User:alice",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )
    admin = AdminClient({"bootstrap.servers": held.broker.direct})
    for future in admin.create_acls([binding]).values():
        future.result(PATIENCE_S)


def test_who_may_not_read_gets_the_brokers_error_and_no_byte(held: Held, topic: str) -> None:
    allow(held, topic, AclOperation.DESCRIBE)
    first = open_reader(held, topic)
    with RawClient(held.bootstraps["SASL"], "same") as client, ThreadPoolExecutor(2) as pool:
        sign_in(client, "alice")
        alice = RawReader(client, topic, version=VERSION)
        alice.max_bytes = first.max_bytes
        asked = held.sidecar.fetch_requests()
        shared = held.total("fetch_shared_reads_total")
        held.wires["OPEN"].stall()
        asking = pool.submit(ask, first)
        wait_asked(held, asked, 1)
        refused = pool.submit(ask, alice)
        said, records = refused.result(PATIENCE_S)
        held.wires["OPEN"].flow()
        assert asking.result(PATIENCE_S)[1] == read_directly(held, topic)
    host, port = held.broker.address("SASL")
    with RawClient(f"{host}:{port}", "same") as client:
        sign_in(client, "alice")
        expected, _ = ask(RawReader(client, topic, version=VERSION))
    assert (said.error_code, records) == (NOT_AUTHORIZED, b"")
    assert said == expected
    assert held.total("fetch_shared_reads_total") == shared


def test_a_topic_that_is_refused_costs_the_others_no_hits(held: Held, topic: str) -> None:
    """One request of a topic that alice may read and one that she may not: the broker's answer, and memory's bytes."""
    mine = create_topic(held.broker.direct)
    allow(held, topic, AclOperation.DESCRIBE)
    allow(held, mine, AclOperation.READ)
    host, port = held.broker.address("SASL")
    with (
        RawClient(held.bootstraps["SASL"], "odd") as client,
        RawClient(f"{host}:{port}", "odd") as direct,
        RawClient(held.bootstraps["OPEN"]) as writer,
    ):
        sign_in(client, "alice")
        sign_in(direct, "alice")
        reader = RawReader(client, mine, version=VERSION).settle()
        refused = RawReader(client, topic, version=VERSION).asked()
        before = held.sidecar.fetch_counts("bytes"), held.sidecar.fetch_counts("partitions")
        for number in range(5):
            writer.produce(mine, batch_v2(2, value=b"%d" % number))
            asked = [refused, reader.asked()]
            for _ in range(TRIES):  # an error is answered at once, with what is confirmed by then
                said, expected = (
                    one.fetch(VERSION, asked, max_wait_ms=500) for one in (client, direct)
                )
                told, wanted = (
                    sorted((*one[:-2], raw) for one, raw in answer) for answer in (said, expected)
                )
                if told == wanted:
                    break
                time.sleep(0.1)
            assert told == wanted
            assert {one.topic: one.error_code for one, _ in said} == {
                refused.topic: NOT_AUTHORIZED,
                reader.topic.id: 0,
            }
            reader.take(*said[-1])
        after = held.sidecar.fetch_counts("bytes"), held.sidecar.fetch_counts("partitions")
    grown = [{k: v - b.get(k, 0) for k, v in a.items()} for b, a in zip(before, after, strict=True)]
    assert {k for k, v in grown[0].items() if v} == {("hit", "")}
    assert grown[1]["miss", "unauthorized-yet"] == grown[1]["hit", ""] >= 5
