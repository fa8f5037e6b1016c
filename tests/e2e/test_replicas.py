"""Two brokers, a Forebay before each: readers of the follower (KIP-392), and leaders that move.

The same is asked directly and through Forebay. A follower is read with its own high watermark, never the leader's: what
its Forebay says is what that broker says. Where leaders move between the two, nothing is lost, nothing comes twice, the
order stays, and memory serves again on either side.
"""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from protocol import batch, fetch
from protocol.errors import ErrorCode
from protocol.fetch_build import build_request
from tests.e2e.racks import FIRST, SECOND, Two, create, move, rack_of, two_brokers, wait_for
from tests.e2e.raw_frames import numbers
from tests.e2e.test_invalidation import (
    CACHE,
    MOST,
    RECORDS,
    UNTAILED,
    check_hits,
    check_same,
    hit_bytes,
    tail_while,
    wait_for_hits,
    write,
)
from tests.kit.raw_fetch import FetchFailed, RawClient, RawReader, explain, read_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.kit.sidecar import Pair

pytestmark = pytest.mark.e2e

LEADER, FOLLOWER = FIRST, SECOND
VERSION = 13
PATIENCE_S = 60.0
MOVES = 6
STEP, RATE = 100, 200
NOT_STORED = ("cold", "hole")
"""Why a Fetch is a miss whose offset memory does not hold: nothing below it, or no more than a part beside it."""


@pytest.fixture(scope="module")
def two() -> Iterator[Two]:
    with two_brokers(CACHE) as running:
        yield running


def ask(
    client: RawClient, reader: RawReader, rack: str, offset: int, max_wait_ms: int = 0
) -> tuple[fetch.FetchedPartition, bytes]:
    """One Fetch of a client in a rack: what is said of the partition, and its records."""
    frame = build_request(
        VERSION,
        next(numbers),
        "racked",
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        partitions=[fetch.FetchPartition(reader.topic.id, 0, -1, offset, -1, -1, 1 << 20)],
        rack_id=rack,
    )
    answer = client.call(frame)
    (said,) = fetch.scan_response(answer, VERSION).partitions
    return said, answer[max(said.start, 0) : max(said.end, 0)]


def words(said: fetch.FetchedPartition) -> tuple[object, ...]:
    """What an answer says beside where its records lie in the frame."""
    return (
        said.error_code,
        said.high_watermark,
        said.last_stable_offset,
        said.log_start_offset,
        said.preferred_read_replica,
        said.end - said.start > 0,
    )


def test_a_client_of_another_rack_is_sent_to_its_follower(two: Two) -> None:
    """Also where memory could serve it: the broker's own word is the same on both ways, every time."""
    topic, side = create(two), two.side(LEADER)
    with RawClient(side.through) as warm:
        reader = RawReader(warm, topic).settle()
        tail_while(reader, lambda: write(side, topic, "first"), RECORDS)
        wait_for_hits(side, reader)
        for offset in (0, RECORDS // 2, RECORDS):
            with RawClient(side.through) as through, RawClient(side.direct) as direct:
                for _ in range(4):
                    seen = [
                        ask(client, reader, rack_of(FOLLOWER), offset)[0]
                        for client in (direct, through)
                    ]
                    assert words(seen[1]) == words(seen[0])
                    assert seen[0].preferred_read_replica == FOLLOWER
        own = [
            ask(warm, reader, rack, RECORDS // 2) for rack in (rack_of(LEADER), rack_of(LEADER), "")
        ]
        assert {said.preferred_read_replica for said, _ in own} == {-1}
        assert len({records for _, records in own}) == 1


def test_a_follower_is_read_with_its_own_high_watermark(two: Two) -> None:
    """Its Forebay names no offset that this broker has not named: asked afterwards, the broker says as much or more."""
    topic, side = create(two), two.side(FOLLOWER)
    with (
        RawClient(side.through) as client,
        RawClient(side.direct) as direct,
        ThreadPoolExecutor(1) as pool,
    ):
        reader = RawReader(client, topic)
        writing = pool.submit(write, two.side(LEADER), topic, "first", 3 * RECORDS)
        offset, raw = 0, b""
        deadline = time.monotonic() + PATIENCE_S
        while offset < 3 * RECORDS:
            assert time.monotonic() < deadline
            said, records = ask(client, reader, rack_of(FOLLOWER), offset, 100)
            afterwards, _ = ask(direct, reader, rack_of(FOLLOWER), offset)
            assert said.error_code == afterwards.error_code == 0
            assert said.preferred_read_replica == -1
            assert said.high_watermark <= afterwards.high_watermark
            batches = batch.scan_batches(records, 0, len(records))
            if batches:
                raw, offset = raw + records[: batches[-1].end], batches[-1].last_offset + 1
                assert offset <= afterwards.high_watermark
        writing.result(PATIENCE_S)
    leaders = read_all(two.direct(LEADER), topic)
    assert raw == leaders, explain(raw, leaders)


def test_a_consumer_with_a_rack_reads_the_follower_through_its_forebay(two: Two) -> None:
    topic = create(two)
    write(two.side(LEADER), topic, "first")
    before = {node: one.fetch_requests() for node, one in two.sidecars.items()}
    options = {
        "bootstrap.servers": two.through,
        "group.id": "unused",
        "client.rack": rack_of(FOLLOWER),
    }
    consumer = Consumer(options | {"enable.auto.commit": False, "fetch.wait.max.ms": 100})
    consumer.assign([TopicPartition(topic, 0, 0)])
    with ThreadPoolExecutor(1) as pool:
        values = read_values(consumer, RECORDS)
        writing = pool.submit(write, two.side(LEADER), topic, "tailed")
        values += read_values(consumer, RECORDS)
        writing.result(PATIENCE_S)
    consumer.close()
    assert [value.split(b"-value")[0] for value in values] == [
        b"%b-%d" % (word, number) for word in (b"first", b"tailed") for number in range(RECORDS)
    ]
    grown = {node: one.fetch_requests() - before[node] for node, one in two.sidecars.items()}
    assert grown[FOLLOWER] > grown[LEADER] > 0, grown


@pytest.mark.parametrize("version", [4, 10])
def test_an_old_client_is_told_that_its_leader_has_gone(two: Two, version: int) -> None:
    """Only from version 11 on does a follower answer consumers; memory does not make it answer others."""
    topic, side = create(two), two.side(LEADER)
    with (
        RawClient(side.through) as client,
        RawClient(side.through) as old,
        RawClient(side.direct) as direct,
    ):
        newer = RawReader(client, topic).settle()
        older = RawReader(old, topic, version=version, with_epoch=False).settle()
        tail_while(older, lambda: write(side, topic, "first"), RECORDS)
        wait_for_hits(side, older)
        move(two, topic, FOLLOWER)
        write(two.side(FOLLOWER), topic, "second")
        newer.read_to(2 * RECORDS)
        wait_for_hits(side, newer)
        for reader in (older, RawReader(direct, topic, version=version, with_epoch=False)):
            for offset in (0, RECORDS, 2 * RECORDS):
                for _ in range(2):
                    reader.offset = offset
                    with pytest.raises(FetchFailed) as refused:
                        reader.poll(200)
                    assert refused.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        move(two, topic, LEADER)
        older.raw.clear()
        older.offset = 0
        older.read_past_errors()
        read = older.read_to(2 * RECORDS)
        wait_for_hits(side, older)
    leaders = read_all(side.direct, topic)
    assert read == leaders, explain(read, leaders)


def read_values(consumer: Consumer, count: int) -> list[bytes]:
    values: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(values) < count:
        assert time.monotonic() < deadline, f"{len(values)} of {count}"
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            value = message.value()
            assert isinstance(value, bytes)
            values.append(value)
    return values


def produce_steadily(two: Two, topic: str, moving: Callable[[], bool]) -> list[object]:
    """Numbered records of an idempotent producer, then "end", while leaders move; errors of what was refused."""
    refused: list[object] = []
    producer = Producer(
        {"bootstrap.servers": two.through, "enable.idempotence": True, "linger.ms": 2}
    )

    def send(value: bytes) -> None:
        producer.produce(
            topic,
            value,
            partition=0,
            on_delivery=lambda error, _message: refused.append(error) if error else None,
        )

    for number in itertools.count():
        if not moving():
            break
        send(b"%d" % number)
        producer.poll(1 / RATE)
    assert producer.flush(PATIENCE_S) == 0
    send(b"end")
    assert producer.flush(PATIENCE_S) == 0
    return refused


def consume_to_end(two: Two, topic: str, seen: list[tuple[int, bytes]]) -> None:
    """Put (offset, value) of all that a tailing consumer is given into `seen`, until the record that says "end"."""
    consumer = Consumer(
        {"bootstrap.servers": two.through, "group.id": "unused", "fetch.wait.max.ms": 200}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    deadline = time.monotonic() + 2 * PATIENCE_S
    while not seen or seen[-1][1] != b"end":
        assert time.monotonic() < deadline, seen[-3:]
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            offset, value = message.offset(), message.value()
            assert isinstance(offset, int)
            assert isinstance(value, bytes)
            seen.append((offset, value))
    consumer.close()


def move_on_and_on(two: Two, topic: str, seen: list[tuple[int, bytes]]) -> None:
    """A move whenever the consumer has read STEP more."""

    def wait_for_more() -> None:
        wanted = len(seen) + STEP
        wait_for(two, lambda: len(seen) >= wanted)

    wait_for_more()
    for turn in range(MOVES):
        move(two, topic, FOLLOWER if turn % 2 == 0 else LEADER)
        wait_for_more()


def check_stored(side: Pair, topic: str) -> None:
    """The whole topic, as `check_same`. Memory serves what it holds: a slow machine's Forebay may have come too late to
    receive all that was written while leaders moved, and those bytes alone are missed.
    """
    before = side.sidecar.fetch_counts()
    check_same(side, topic, least=UNTAILED)
    counted = {key: size - before.get(key, 0) for key, size in side.sidecar.fetch_counts().items()}
    hits = counted.get(("hit", ""), 0)
    absent = sum(counted.get(("miss", reason), 0) for reason in NOT_STORED)
    assert hits >= MOST * (sum(counted.values()) - absent), counted


def test_leaders_that_move_to_and_fro(two: Two) -> None:
    topic = create(two)
    seen: list[tuple[int, bytes]] = []
    with ThreadPoolExecutor(2) as pool:
        reading = pool.submit(consume_to_end, two, topic, seen)
        moving = pool.submit(move_on_and_on, two, topic, seen)
        refused = produce_steadily(two, topic, lambda: not moving.done())
        moving.result(PATIENCE_S)
        reading.result(2 * PATIENCE_S)
    assert not refused
    assert [value for _, value in seen] == [b"%d" % number for number in range(len(seen) - 1)] + [
        b"end"
    ]
    assert [offset for offset, _ in seen] == list(range(len(seen)))
    whole = read_all(two.direct(LEADER), topic)
    assert len({one.leader_epoch for one in batch.scan_batches(whole, 0, len(whole))}) > MOVES
    end = len(seen)
    for node in (LEADER, FOLLOWER, LEADER):
        side = two.side(node)
        move(two, topic, node)
        with RawClient(side.through) as client:
            before = hit_bytes(side)
            check_hits(side, RawReader(client, topic, offset=end), topic, "after", end + RECORDS)
            assert hit_bytes(side) > before
        check_stored(side, topic)
        check_same(side, topic, start=end)
        end += RECORDS
