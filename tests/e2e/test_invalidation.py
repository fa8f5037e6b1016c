"""The log changes below a tailing consumer: what Forebay then serves is what the broker has, and it hits
again.

Each test tails through Forebay, has the log changed, writes and reads on, and compares byte for byte with a
direct reader. Records are told apart by their values, so that bytes of a former log would show.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from protocol import batch
from protocol.errors import ErrorCode
from tests.kit.broker.topics import create_topic, delete_topic
from tests.kit.raw_fetch import FetchFailed, RawClient, RawReader, end_of, explain, read_all
from tests.kit.sidecar import PATIENT_CACHE, Pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.kit.broker.kafka import KafkaCluster

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0
POLL_S = 0.05
RECORDS = 40
MOST = 0.8
UNTAILED = 0.0
"""What was written while nobody read it is the broker's to answer."""
STEP_BYTES = 1000
"""Of `check_same` a Fetch: a batch or two of those that `write` makes."""
CALM_FETCHES = 5
LEASE_S = 1.0
AWAY_S = 8.0
"""Long enough for a pause that doubled without a bound to be longer than RESUME_S."""
RESUME_S = 10.0
"""It takes one to two seconds where nothing else runs."""
CACHE = PATIENT_CACHE | {"confirmEvery": f"{LEASE_S}s"}


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair(settings={"cache": CACHE}) as running:
        yield running


def write(pair: Pair, topic: str, word: str, records: int = RECORDS) -> None:
    """Some batches through Forebay whose values begin with `word`."""
    producer = Producer(
        {"bootstrap.servers": pair.through, "linger.ms": 0, "message.timeout.ms": 30_000}
    )
    refused: list[object] = []
    for number in range(records):
        producer.produce(
            topic,
            f"{word}-{number}-".encode() + b"value" * 30,
            partition=0,
            on_delivery=lambda error, _message: refused.append(error) if error else None,
        )
        if number % 4 == 3:
            assert producer.flush(30) == 0
    assert producer.flush(30) == 0
    assert not refused


def hit_bytes(pair: Pair) -> float:
    return pair.sidecar.fetch_counts().get(("hit", ""), 0)


def tail_while(reader: RawReader, action: Callable[[], object], end: int) -> None:
    """Fetch up to `end` while `action` runs elsewhere."""
    with ThreadPoolExecutor(1) as pool:
        acting = pool.submit(action)
        try:
            while not acting.done() or reader.offset < end:
                reader.poll(200)
                if acting.done() and acting.exception():
                    break
        finally:
            acting.result(60)


def check_same(pair: Pair, topic: str, start: int = 0, least: float = MOST) -> bytes:
    """A read from `start` through Forebay in small steps equals the direct one, twice on one connection; the bytes.
    The first read shows the connection's right to the topic: of the second at least the share `least` are hits.
    """
    direct = read_all(pair.direct, topic, start=start)
    with RawClient(pair.through) as client:
        reader = RawReader(client, topic, max_bytes=STEP_BYTES)
        for _ in range(2):
            reader.offset, before = start, hit_bytes(pair)
            reader.raw.clear()
            through = reader.read_to(end_of(direct))
            assert through == direct, explain(through, direct)
    hits = hit_bytes(pair) - before
    assert hits >= least * len(direct), f"{hits} of {len(direct)}: {pair.sidecar.fetch_counts()}"
    return direct


def check_hits(pair: Pair, reader: RawReader, topic: str, word: str, end: int) -> None:
    """Write and tail until `end`: most comes from memory again, and equals what a direct reader gets. On a busy machine
    a lease may lapse meanwhile: then RECORDS more are written, for PATIENCE_S.
    """
    deadline = time.monotonic() + PATIENCE_S
    reader.settle()
    while True:
        wait_for_hits(pair, reader)
        start, before = reader.offset, hit_bytes(pair)
        reader.raw.clear()
        tail_while(reader, lambda: write(pair, topic, word), end)
        tailed, direct = bytes(reader.raw), read_all(pair.direct, topic, start=start)
        assert tailed == direct, explain(tailed, direct)
        hits = hit_bytes(pair) - before
        if hits >= MOST * len(direct):
            return
        assert time.monotonic() < deadline, (
            f"{hits} of {len(direct)}: {pair.sidecar.fetch_counts()}"
        )
        end = reader.offset + RECORDS


def wait_for_hits(pair: Pair, reader: RawReader) -> None:
    """Stand at the tail until memory answers: a few fetches in a row are hits."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        before = pair.sidecar.fetch_counts("partitions").get(("hit", ""), 0)
        for _ in range(CALM_FETCHES):
            reader.poll(50)
        if pair.sidecar.fetch_counts("partitions").get(("hit", ""), 0) >= before + CALM_FETCHES - 1:
            return
    raise TimeoutError(f"no hits: {pair.sidecar.fetch_counts('partitions')}")


def poll_until_error(reader: RawReader, wait_ms: int = 200, offset: int = -1) -> int:
    """Fetch, always at `offset` if one is given, until the answer is an error; its code."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        reader.offset = offset if offset >= 0 else reader.offset
        try:
            reader.poll(wait_ms)
        except FetchFailed as failed:
            return failed.code
    raise TimeoutError("no fetch was refused")


def epochs_of(raw: bytes) -> set[int]:
    return {b.leader_epoch for b in batch.scan_batches(raw, 0, len(raw))}


@pytest.mark.parametrize("version", [12, 13], ids=["by-name", "by-id"])
def test_a_topic_made_again_under_its_name(pair: Pair, version: int) -> None:
    topic = create_topic(pair.direct)
    with RawClient(pair.through) as client:
        reader = RawReader(client, topic, version=version).settle()
        tail_while(reader, lambda: write(pair, topic, "former", 2 * RECORDS), 2 * RECORDS)
        delete_topic(pair.direct, topic)
        code = poll_until_error(reader)
        assert code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
        create_topic(pair.direct, topic)
        write(pair, topic, "present")
        again = RawReader(client, topic, version=version)
        assert again.topic.id != reader.topic.id
        again.read_past_errors()
        again.read_to(RECORDS)
        assert b"former" not in again.raw
        assert check_same(pair, topic, least=UNTAILED) == bytes(again.raw)
        check_hits(pair, again, topic, "tailed", 2 * RECORDS)
    assert b"former" not in check_same(pair, topic, start=RECORDS)


def test_a_topic_made_again_at_once_while_a_fetch_is_parked(pair: Pair) -> None:
    """The client that asks by name may not notice: it is told that its offset is out of range, or reads on."""
    topic = create_topic(pair.direct)
    with RawClient(pair.through) as client, ThreadPoolExecutor(1) as pool:
        reader = RawReader(client, topic, version=12).settle()
        tail_while(reader, lambda: write(pair, topic, "former"), RECORDS)
        parked = pool.submit(poll_until_error, reader, 10_000)
        delete_topic(pair.direct, topic)
        create_topic(pair.direct, topic)
        write(pair, topic, "present", RECORDS // 2)
        assert parked.result(PATIENCE_S) in (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.OFFSET_OUT_OF_RANGE,
        )
        again = RawReader(client, topic, version=12)
        again.read_past_errors()
        again.read_to(RECORDS // 2)
        assert b"former" not in again.raw
    assert b"former" not in check_same(pair, topic, least=UNTAILED)


def delete_records(pair: Pair, topic: str, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": pair.direct})
    (done,) = admin.delete_records([TopicPartition(topic, 0, before)]).values()
    assert done.result(20).low_watermark == before


@pytest.mark.parametrize("before", [RECORDS // 2, RECORDS], ids=["some", "all"])
def test_delete_records(pair: Pair, before: int) -> None:
    """What was deleted is refused as the broker refuses it; the rest is served from where it is."""
    topic = create_topic(pair.direct)
    with RawClient(pair.through) as client:
        reader = RawReader(client, topic).settle()
        tail_while(reader, lambda: write(pair, topic, "first"), RECORDS)
        delete_records(pair, topic, before)
        late = RawReader(client, topic)
        assert poll_until_error(late, 0, offset=0) == ErrorCode.OFFSET_OUT_OF_RANGE
        check_same(pair, topic, start=before)
        check_hits(pair, reader, topic, "second", 2 * RECORDS)
        assert reader.log_start_offset == before
        check_same(pair, topic, start=before)
        for offset in (0, before - 1):
            assert poll_until_error(late, 0, offset) == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_reader_below_the_moved_log_start_is_refused_from_then_on(pair: Pair) -> None:
    """After one lease at most nobody reads from memory what the broker would not give."""
    topic = create_topic(pair.direct)
    with RawClient(pair.through) as client:
        reader = RawReader(client, topic).settle()
        tail_while(reader, lambda: write(pair, topic, "first"), RECORDS)
        delete_records(pair, topic, RECORDS // 2)
        time.sleep(LEASE_S + 0.1)  # the promise is one lease
        late = RawReader(client, topic, offset=1)
        with pytest.raises(FetchFailed) as refused:
            late.poll()
        assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_broker_that_restarts(pair: Pair) -> None:
    """The leader epoch grows; what is stored from before is checked, then both sides of the restart are right."""
    topic = create_topic(pair.direct)
    with RawClient(pair.through) as client:
        reader = RawReader(client, topic).settle()
        tail_while(reader, lambda: write(pair, topic, "before"), RECORDS)
    pair.broker.stop(gracefully=True)
    pair.broker.start()
    wait_ready(pair)
    with RawClient(pair.through) as client:
        reader = RawReader(client, topic, offset=RECORDS).settle()
        wait_for_hits(pair, reader)
        tail_while(reader, lambda: write(pair, topic, "after"), 2 * RECORDS)
    whole = check_same(pair, topic)
    assert len(epochs_of(whole)) == 2
    with RawClient(pair.through) as client:
        reader = RawReader(client, topic, offset=2 * RECORDS)
        check_hits(pair, reader, topic, "tailed", 3 * RECORDS)
    check_same(pair, topic)


def test_hits_resume_soon_after_the_broker_is_back(pair: Pair) -> None:
    """However long it was away: its epoch has changed, and what is stored is checked against it."""
    topic = create_topic(pair.direct)
    with RawClient(pair.through) as client:
        reader = RawReader(client, topic).settle()
        tail_while(reader, lambda: write(pair, topic, "before"), RECORDS)
    pair.broker.stop(gracefully=True)
    time.sleep(AWAY_S)
    pair.broker.start()
    with RawClient(pair.direct) as client:
        RawReader(client, topic).read_past_errors()
    started = time.monotonic()
    with RawClient(pair.through) as client:
        reader = RawReader(client, topic, offset=RECORDS)
        reader.read_past_errors()
        wait_for_hits(pair, reader)
    assert time.monotonic() - started < RESUME_S


def wait_ready(pair: Pair) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not pair.sidecar.is_ready() and time.monotonic() < deadline:
        time.sleep(POLL_S)


def reassign(broker: KafkaCluster, topic: str, replicas: list[int]) -> None:
    """Give partition 0 other replicas, and wait until they are all there are."""
    plan = {
        "version": 1,
        "partitions": [{"topic": topic, "partition": 0, "replicas": replicas}],
    }
    path = broker.directory / "reassignment.json"
    path.write_text(json.dumps(plan))
    servers = ("--bootstrap-server", broker.direct)
    broker.tool(
        "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
        *servers,
        "--reassignment-json-file",
        str(path),
        "--execute",
    )
    admin = AdminClient({"bootstrap.servers": broker.direct})
    deadline = time.monotonic() + PATIENCE_S
    while admin.list_topics(topic, timeout=20).topics[topic].partitions[0].replicas != replicas:
        assert time.monotonic() < deadline, "the reassignment did not end"
        time.sleep(POLL_S)


def test_a_leader_epoch_that_changes_while_the_leader_stays() -> None:
    """A reassignment drops a replica: the same broker leads on, in a newer epoch."""
    with Pair({"size": 2}, {"cache": CACHE}) as pair, RawClient(pair.through) as client:
        topic = f"moved-{time.time_ns()}"
        admin = AdminClient({"bootstrap.servers": pair.direct})
        admin.create_topics([NewTopic(topic, 1, replica_assignment=[[1, 2]])])[topic].result(20)
        reader = RawReader(client, topic).settle()
        former = reader.topic.epochs[0]
        tail_while(reader, lambda: write(pair, topic, "first"), RECORDS)
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write, pair, topic, "during", 4 * RECORDS)
            reassign(pair.broker, topic, [1])
            writing.result(60)
        assert client.topic(topic).epochs[0] > former
        reader.read_to(5 * RECORDS)
        whole = check_same(pair, topic)
        assert bytes(reader.raw) == whole, explain(bytes(reader.raw), whole)
        check_hits(pair, reader, topic, "after", 6 * RECORDS)
        assert max(epochs_of(check_same(pair, topic))) > former
