"""A read beside that has arrived waits for its connection's next Fetch; meanwhile the partition becomes another.

A Fetch of two partitions, one in memory and one not, leaves with the first; what the broker then brings of the second
is kept for the next Fetch of that offset. If the leader epoch changes in between, or the topic is made again, it is not
what the broker would answer any more.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, NamedTuple, cast

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from protocol import fetch
from protocol.errors import ErrorCode
from tests.chaos.history import Place
from tests.chaos.orders import reassign
from tests.e2e.between import Between
from tests.e2e.test_invalidation import CACHE, RECORDS, tail_while, wait_for_hits, write
from tests.kit.broker.kafka import KafkaCluster
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST, Listener
from tests.kit.broker.topics import delete_topic
from tests.kit.raw_fetch import RawClient, RawReader
from tests.kit.sidecar import Sidecar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kit.sidecar import Pair

pytestmark = pytest.mark.e2e

MEMORY, HISTORY = 0, 1
"""Partitions: of the one memory holds all, the other was written before Forebay knew of it."""
OLD_RECORDS = 400
TRIES = 3
"""A read is kept for some seconds, within which the change has to happen."""
PATIENCE_S = 60.0
POLL_S = 0.02
BY_NAME = 12
HELD_MS, HOLD_S = 1000, 10.0
"""Below a lease: a Fetch that asks for so long leaves from memory while the broker is silent."""


class Held(NamedTuple):
    """A broker, a wire whose answers can be held back, and a Forebay behind that: a `Pair`, as tests know it."""

    broker: KafkaCluster
    wire: Between
    sidecar: Sidecar

    @property
    def direct(self) -> str:
        """Past Forebay and the wire."""
        return self.broker.direct

    @property
    def through(self) -> str:
        """Through both."""
        return self.sidecar.bootstrap


@pytest.fixture(scope="module")
def held() -> Iterator[Held]:
    with contextlib.ExitStack() as stack:
        lease = stack.enter_context(lease_port())
        listener = Listener("CLIENT", advertised=(HOST, lease.port))
        broker = stack.enter_context(KafkaCluster(2, listeners=[listener]))
        wire = stack.enter_context(Between(broker.address("CLIENT")))
        entry = {"listen": f"{HOST}:{lease.port}", "upstream": wire.address}
        yield Held(broker, wire, stack.enter_context(Sidecar([entry], {"cache": CACHE}, [lease])))


@pytest.fixture
def pair(held: Held) -> Pair:
    return cast("Pair", held)


def create(pair: Pair, topic: str, word: str) -> str:
    """A topic of both partitions, led by the broker behind Forebay, its history written past it."""
    admin = AdminClient({"bootstrap.servers": pair.direct})
    wanted = NewTopic(topic, 2, replica_assignment=[[1, 2], [1, 2]])
    admin.create_topics([wanted])[topic].result(20)
    write_history(pair, topic, word)
    return topic


def write_history(pair: Pair, topic: str, word: str) -> None:
    """Past Forebay."""
    producer = Producer({"bootstrap.servers": pair.direct, "linger.ms": 5})
    for number in range(OLD_RECORDS):
        producer.produce(topic, f"{word}-{number}-".encode() + b"value" * 30, partition=HISTORY)
    assert producer.flush(30) == 0


def leave_a_read_behind(held: Held, client: RawClient, topic: str, version: int) -> RawReader:
    """A Fetch of both has left with what memory has; the reader of the other, whose bytes have come by now."""
    pair = cast("Pair", held)
    memory = RawReader(client, topic, partition=MEMORY, version=version)
    tail_while(memory.settle(), lambda: write(pair, topic, "memory"), RECORDS)
    history = RawReader(client, topic, partition=HISTORY, version=version, offset=OLD_RECORDS)
    wait_for_hits(pair, history.settle())
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        wait_for_hits(pair, memory)
        memory.offset, history.offset = 0, 0
        of_memory, of_history = fetch_held(held, client, version, [memory, history])
        if of_memory and not of_history:
            wait_arrived(pair)
            return history
    raise TimeoutError("no Fetch of both left without the history")


def fetch_held(
    held: Held, client: RawClient, version: int, readers: list[RawReader]
) -> list[bytes]:
    """What one Fetch is answered with while the broker's answers are held back. That ends after HOLD_S, since a
    Fetch for which memory's lease has lapsed is the broker's to answer.
    """
    held.wire.stall()
    hold = threading.Timer(HOLD_S, held.wire.flow)
    hold.start()
    try:
        client.send_fetch(version, [reader.asked() for reader in readers], max_wait_ms=HELD_MS)
        frame = client.receive()
    finally:
        hold.cancel()
        held.wire.flow()
    said = {one.partition: one for one in fetch.scan_response(frame, version).partitions}
    assert not any(one.error_code for one in said.values())
    found = [said[reader.partition] for reader in readers]
    return [frame[one.start : one.end] for one in found]


def wait_arrived(pair: Pair) -> None:
    """Until bytes are held that no client has asked for yet."""
    deadline = time.monotonic() + PATIENCE_S
    while not pair.sidecar.metrics()["forebay_in_flight_bytes", "response"]:
        assert time.monotonic() < deadline, "no read has arrived"
        time.sleep(POLL_S)


def test_a_read_from_before_a_new_leader_epoch(held: Held, pair: Pair) -> None:
    """The client still carries the old epoch: the broker fences it, and so does Forebay, which knows the new one."""
    for _ in range(TRIES):
        topic = create(pair, f"before-{time.time_ns()}", "former")
        with (
            RawClient(pair.through) as client,
            RawClient(pair.direct) as direct,
            RawClient(pair.through) as other,
        ):
            history = leave_a_read_behind(held, client, topic, 13)
            assert not reassign(pair.direct.split(",")[0], Place(topic, HISTORY), [1])
            deadline = time.monotonic() + PATIENCE_S
            while direct.topic(topic, 2).epochs[HISTORY] == history.topic.epochs[HISTORY]:
                assert time.monotonic() < deadline, "the epoch did not change"
                time.sleep(POLL_S)
            newer = RawReader(other, topic, partition=HISTORY, offset=OLD_RECORDS)
            newer.read_past_errors()
            wait_for_hits(pair, newer)
            for asker in (direct, client):
                ((said, records),) = asker.fetch(13, [history.asked()], max_wait_ms=0)
                assert (said.error_code, len(records)) == (ErrorCode.FENCED_LEADER_EPOCH, 0)


def test_a_read_from_before_the_topic_was_made_again(held: Held, pair: Pair) -> None:
    """The client asks by name, and does not notice that this is another topic: it is given the new one's records."""
    for _ in range(TRIES):
        topic = create(pair, f"before-{time.time_ns()}", "former")
        with RawClient(pair.through) as client:
            history = leave_a_read_behind(held, client, topic, BY_NAME)
            delete_topic(pair.direct, topic)
            create(pair, topic, "present")
            history.read_past_errors()
            history.read_to(OLD_RECORDS)
            assert b"former-" not in history.raw, (
                f"{history.raw.count(b'former-')} records of the deleted topic"
            )
            assert b"present-" in history.raw
