"""The broker cleans its log below readers: retention moves the log start, compaction takes records from the middle.

Each test has memory hold what the broker then removes. Retention: from one lease after the broker refuses an offset,
Forebay refuses it too; the rest is byte for byte the broker's, and hits go on. Compaction: memory may still hold what
the cleaner has removed, and says nothing else than the broker once said; a reader of all ends with the same values.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from protocol import batch, control
from protocol.errors import ErrorCode
from proxy.replica_fetcher.compaction_policy import POLICY, VERSION
from proxy.replica_fetcher.fetcher import WANTED_S
from tests.e2e.raw_frames import Raw
from tests.e2e.test_invalidation import (
    LEASE_S,
    RECORDS,
    UNTAILED,
    check_hits,
    check_same,
    hit_bytes,
    poll_until_error,
    tail_while,
    write,
)
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import FetchFailed, RawClient, RawReader, end_of, explain, read_all
from tests.kit.sidecar import PATIENT_CACHE, Pair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0
POLL_S = 0.1
CLEANING = {
    "log.initial.task.delay.ms": 200,
    "log.retention.check.interval.ms": 300,
    "log.cleaner.backoff.ms": 200,
    "log.cleaner.threads": 1,
}
CACHE = PATIENT_CACHE | {"confirmEvery": f"{LEASE_S}s", "verifyRatio": 1}
SEGMENT = {"internal.segment.bytes": "4096"}
"""A few batches; below 1 MiB it takes Kafka's internal name (KIP-1030)."""
COMPACT = SEGMENT | {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "100",
    "min.compaction.lag.ms": "0",
}
KEYS = 4


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair({"overrides": CLEANING}, {"cache": CACHE}) as running:
        yield running


def configure(pair: Pair, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": pair.direct})
    (done,) = admin.incremental_alter_configs([change]).values()
    done.result(PATIENCE_S)


def wait_for(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(POLL_S)


def settled_log_start(pair: Pair, topic: str) -> int:
    """The log start, as the broker says it, when it has not moved for a few checks."""
    with RawClient(pair.direct) as client:
        found, since = -1, time.monotonic()
        while time.monotonic() - since < 1.2:
            reader = RawReader(client, topic, offset=RECORDS)
            reader.poll()
            if reader.log_start_offset != found:
                found, since = reader.log_start_offset, time.monotonic()
            time.sleep(POLL_S)
    return found


@pytest.mark.parametrize(
    ("limit", "value", "removes_all"),
    [("retention.bytes", "3000", False), ("retention.ms", "1", True)],
    ids=["some", "all"],
)
def test_retention(pair: Pair, limit: str, value: str, *, removes_all: bool) -> None:
    topic = create_topic(pair.direct, config=SEGMENT)
    with RawClient(pair.through) as client, RawClient(pair.direct) as direct:
        reader = RawReader(client, topic).settle()
        tail_while(reader, lambda: write(pair, topic, "first"), RECORDS)
        before = hit_bytes(pair)
        again = RawReader(client, topic)
        again.read_to(RECORDS)
        assert hit_bytes(pair) > before, "memory has some of it"
        configure(pair, topic, limit, value)
        assert (
            poll_until_error(RawReader(direct, topic), 0, offset=0) == ErrorCode.OFFSET_OUT_OF_RANGE
        )
        time.sleep(LEASE_S + 0.1)  # the promise is one lease
        for offset in (0, 1):
            with pytest.raises(FetchFailed) as refused:
                RawReader(client, topic, offset=offset).poll()
            assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
        start = settled_log_start(pair, topic)
        assert start == RECORDS if removes_all else 0 < start < RECORDS
        time.sleep(LEASE_S + 0.1)
        for asked in (client, direct):
            assert (
                poll_until_error(RawReader(asked, topic), 0, offset=start - 1)
                == ErrorCode.OFFSET_OUT_OF_RANGE
            )
        check_same(pair, topic, start=start)
        configure(pair, topic, limit, "-1")
        check_hits(pair, reader, topic, "second", 2 * RECORDS)
        assert reader.log_start_offset == start
        check_same(pair, topic, start=start)


def produce_keyed(
    bootstrap: str, topic: str, word: str, rounds: int, keys: range = range(KEYS)
) -> None:
    """In each round one batch with a value for each key; `word` "" deletes them."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    for number in range(rounds):
        for key in keys:
            value = f"{word}-{number}-{key}-".encode() + b"v" * 100 if word else None
            producer.produce(topic, value, b"key-%d" % key, partition=0)
        assert producer.flush(30) == 0


def last_values(bootstrap: str, topic: str) -> dict[bytes, bytes | None]:
    """What a consumer that reads all holds of each key in the end; deleted ones are None or not there."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "auto.offset.reset": "earliest"}
        | {
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 600,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: dict[bytes, bytes | None] = {}
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is not None:
            consumer.close()
            return values
        if message is not None:
            key = message.key()
            assert isinstance(key, bytes)
            values[key] = message.value()
    raise TimeoutError(f"{topic} was not read to its end")


def record_count(raw: bytes) -> int:
    return sum(one.record_count for one in batch.scan_batches(raw, 0, len(raw)))


def wait_cleaned(pair: Pair, topic: str, records: int) -> bytes:
    """Until the broker has less than `records` and no more goes; what it then has."""
    seen = [b"", b""]

    def is_clean() -> bool:
        seen[:] = [seen[1], read_all(pair.direct, topic)]
        time.sleep(1.0)
        return seen[0] == seen[1] and record_count(seen[1]) < records

    wait_for("the cleaner has been there", is_clean)
    return seen[1]


def batches_of(raw: bytes) -> set[bytes]:
    return {raw[one.start : one.end] for one in batch.scan_batches(raw, 0, len(raw))}


def verdicts(pair: Pair) -> dict[str, float]:
    samples = pair.sidecar.metrics()
    return {
        name: samples["forebay_verify_samples_total", name]
        for name in ("equal", "mismatch", "unanswered")
    }


def test_memory_holds_what_was_compacted_since(pair: Pair) -> None:
    """What it serves was the broker's own; at the end of it every key has the value that it has at the broker."""
    topic = create_topic(pair.direct, config=COMPACT)
    rounds = 20
    with RawClient(pair.through) as client:
        reader = RawReader(client, topic).settle()
        tail_while(
            reader,
            lambda: produce_keyed(pair.through, topic, "first", rounds),
            reader.offset + rounds * KEYS,
        )
        tail_while(
            reader, lambda: produce_keyed(pair.through, topic, "", 1, range(1)), rounds * KEYS + 1
        )
        end = rounds * KEYS + KEYS + 1
        tail_while(reader, lambda: produce_keyed(pair.through, topic, "last", 1), end)
        as_written = bytes(reader.raw)
        cleaned = wait_cleaned(pair, topic, end)
        before = hit_bytes(pair)
        again = RawReader(client, topic)
        through = again.read_to(end)
    assert hit_bytes(pair) - before >= len(through) / 2
    assert record_count(cleaned) < record_count(through), "memory still has what was compacted"
    assert batches_of(through) <= batches_of(as_written) | batches_of(cleaned)
    assert last_values(pair.through, topic) == last_values(pair.direct, topic)
    wait_for(
        "all samples are judged",
        lambda: pair.sidecar.metrics()["forebay_queue_depth", "verify_samples"] == 0,
    )
    found = verdicts(pair)
    assert found["mismatch"] == 0, pair.sidecar.log_tail()
    assert found["equal"] > 0
    with RawClient(pair.through) as client:
        reader = RawReader(client, topic, offset=end)
        check_hits_keyed(pair, reader, topic)


def check_hits_keyed(pair: Pair, reader: RawReader, topic: str) -> None:
    """At the tail of a compacted topic memory serves on, and the verifier agrees."""
    reader.settle()
    start, before = reader.offset, hit_bytes(pair)
    reader.raw.clear()
    tail_while(reader, lambda: produce_keyed(pair.through, topic, "tail", 10), start + 10 * KEYS)
    assert hit_bytes(pair) - before >= 0.8 * len(reader.raw)
    assert verdicts(pair)["mismatch"] == 0, pair.sidecar.log_tail()


def test_a_compacted_log_that_memory_never_held(pair: Pair) -> None:
    """Its offsets have gaps: it is read by every offset as from the broker, from start and within the gaps."""
    topic = create_topic(pair.direct, config=COMPACT)
    produce_keyed(pair.direct, topic, "first", 20)
    produce_keyed(pair.direct, topic, "last", 3)
    cleaned = wait_cleaned(pair, topic, 23 * KEYS)
    bases = [one.base_offset for one in batch.scan_batches(cleaned, 0, len(cleaned))]
    assert bases[0] > 0 or any(other - one > KEYS for one, other in itertools.pairwise(bases))
    assert check_same(pair, topic, least=UNTAILED) == cleaned
    for offset in range(0, 23 * KEYS, 7):
        direct = read_all(pair.direct, topic, start=offset)
        through = read_all(pair.through, topic, start=offset, end=end_of(direct))
        assert through == direct, f"from {offset}: {explain(through, direct)}"
    assert last_values(pair.through, topic) == last_values(pair.direct, topic)


def test_what_was_deleted_does_not_come_back(pair: Pair) -> None:
    """Memory has the value; its tombstone was written while nobody tailed, and is gone by now. A reader of all that
    is given the value from memory would keep it for ever.
    """
    topic = create_topic(pair.direct, config=COMPACT)
    common = {"bootstrap.servers": pair.through, "linger.ms": 0}
    known, new = Producer(common), Producer(common | {"enable.idempotence": True})

    def put(producer: Producer, keys: Sequence[str], value: bytes | None = b"v" * 300) -> None:
        for key in keys:
            producer.produce(topic, value, key, partition=0)
            assert producer.flush(30) == 0

    with RawClient(pair.through) as client:
        keys = ["victim" if number == 8 else f"other-{number}" for number in range(16)]
        tail_while(RawReader(client, topic).settle(), lambda: put(known, keys), len(keys))
    time.sleep(WANTED_S + 2)  # the watch leaves what nobody asks for
    put(new, ["victim"], None)  # the first batches of a producer are left to the watch

    def is_forgotten() -> bool:
        put(known, [f"filler-{number}" for number in range(12)])
        return b"victim" not in last_values(pair.direct, topic)

    wait_for("value and tombstone are gone", is_forgotten)
    before = hit_bytes(pair)
    for _ in range(2):
        assert b"victim" not in last_values(pair.through, topic)
    assert hit_bytes(pair) > before
    assert verdicts(pair)["mismatch"] == 0, pair.sidecar.log_tail()


def test_the_broker_says_what_it_may_compact(pair: Pair) -> None:
    """As Forebay asks it."""
    topics = [create_topic(pair.direct, config=config) for config in (COMPACT, {})]
    frame = control.build_describe_configs_request(
        VERSION, 1, "raw", topics=topics, settings=[POLICY]
    )
    with Raw(pair.direct) as raw:
        said = control.scan_describe_configs_response(raw.call(frame), VERSION)
    assert {one.name: one.values[POLICY] for one in said} == dict(
        zip(topics, ("compact", "delete"), strict=True)
    )
