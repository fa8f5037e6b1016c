"""What a tailing client reads through Forebay is, byte for byte, what the broker would have sent.

Each test tails a partition through Forebay while it is written, so that the bytes come from memory, and then
reads the same partition directly: base offsets, leader epochs, CRCs and all.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from protocol import batch
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, RawReader, explain, read_all
from tests.kit.sidecar import PATIENT_CACHE, Pair, ProxiedBroker
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

pytestmark = pytest.mark.e2e

ROUNDS, RECORDS = 25, 12
MOST = 0.9
"""Share of the bytes that must have been hits, so that a test of the cache is one."""
JAVA_LINES = 4000
"""Some hundred batches: what comes before the codec is known, a hole, is a small share of them."""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(settings={"cache": PATIENT_CACHE}, shared=proxied) as running:
        yield running


def produce(bootstrap: str, topic: str, **options: object) -> int:
    """ROUNDS batches with librdkafka; the number of records."""
    settings = {"bootstrap.servers": bootstrap, "linger.ms": 0}
    producer = Producer(
        {**settings, **{name.replace("_", "."): value for name, value in options.items()}}
    )
    for turn in range(ROUNDS):
        for index in range(RECORDS):
            value = b"%d-%d-" % (turn, index) + b"value" * 40
            producer.produce(topic, value, key=b"k%d" % index, partition=0)
        assert producer.flush(20) == 0
    return ROUNDS * RECORDS


def hit_bytes(pair: Pair) -> float:
    return pair.sidecar.fetch_counts().get(("hit", ""), 0)


def tail(
    pair: Pair,
    write: Callable[[str], int],
    *,
    config: Mapping[str, str] | None = None,
    version: int = 13,
    most: float = MOST,
) -> bytes:
    """Create a topic, tail it through Forebay while `write` (topic -> records) runs, compare; the bytes."""
    topic = create_topic(pair.direct, config=config)
    with RawClient(pair.through, "tail") as client:
        reader = RawReader(client, topic, version=version).settle()
        before = hit_bytes(pair)
        with ThreadPoolExecutor(1) as pool:
            enough = threading.Event()
            reading = pool.submit(read_until, reader, enough)
            end = write(topic)
            enough.set()
            reading.result(30)
            reader.read_to(end)
    tailed, hits = bytes(reader.raw), hit_bytes(pair) - before
    direct = read_all(pair.direct, topic, version=version)
    assert tailed == direct, explain(tailed, direct)
    assert reader.offset == end
    assert hits >= most * len(direct), (
        f"{hits:.0f} of {len(direct)} bytes: {pair.sidecar.fetch_counts()}"
    )
    again = read_all(pair.through, topic, version=version, end=end)
    assert again == direct, explain(again, direct)
    return direct


def read_until(reader: RawReader, enough: threading.Event) -> None:
    while not enough.is_set():
        reader.poll(200)


def codecs_of(raw: bytes) -> set[str]:
    return {batch.CODECS[batch.codec(b.attributes)] for b in batch.scan_batches(raw, 0, len(raw))}


@pytest.mark.parametrize("timestamps", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_and_timestamp_type(pair: Pair, codec: str, timestamps: str) -> None:
    raw = tail(
        pair,
        lambda topic: produce(pair.through, topic, compression_type=codec),
        config={"message.timestamp.type": timestamps},
    )
    assert codecs_of(raw) == {codec}
    stamped = {batch.is_log_append_time(b.attributes) for b in batch.scan_batches(raw, 0, len(raw))}
    assert stamped == {timestamps == "LogAppendTime"}


@pytest.mark.parametrize("version", [4, 11, 12, 13, 17])
def test_every_encoding_of_fetch(pair: Pair, version: int) -> None:
    tail(pair, lambda topic: produce(pair.through, topic, compression_type="lz4"), version=version)


@pytest.mark.parametrize(
    "options",
    [
        {"enable_idempotence": True},
        {"enable_idempotence": False, "acks": "all"},
        {"enable_idempotence": False, "acks": "1"},
        {"enable_idempotence": False, "acks": "0"},
    ],
    ids=["idempotent", "all", "leader", "none"],
)
def test_producers_and_acks(pair: Pair, options: dict[str, Any]) -> None:
    tail(pair, lambda topic: produce(pair.through, topic, **options))


def test_topic_that_recompresses(pair: Pair) -> None:
    """The broker stores other bytes than it was sent: only what it showed may be served."""
    raw = tail(
        pair,
        lambda topic: produce(pair.through, topic, compression_type="lz4"),
        config={"compression.type": "gzip"},
    )
    assert codecs_of(raw) == {"gzip"}


def test_topic_that_starts_to_recompress(pair: Pair) -> None:
    """The setting changes under a running producer: nothing that the broker does not have is ever served."""
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    def write(topic: str) -> int:
        first = produce(pair.through, topic, compression_type="lz4")
        entry = ConfigEntry("compression.type", "zstd", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": pair.direct})
        for done in admin.incremental_alter_configs([resource]).values():
            done.result(20)
        return first + produce(pair.through, topic, compression_type="lz4")

    assert codecs_of(tail(pair, write, most=0)) == {"lz4", "zstd"}


def test_writers_that_bypass_forebay(pair: Pair) -> None:
    tail(pair, lambda topic: produce(pair.direct, topic))


def test_writers_on_both_sides(pair: Pair) -> None:
    def write(topic: str) -> int:
        with ThreadPoolExecutor(2) as pool:
            counts = [
                pool.submit(produce, address, topic) for address in (pair.through, pair.direct)
            ]
            return sum(count.result(60) for count in counts)

    tail(pair, write)


def test_java_producer(pair: Pair) -> None:
    def write(topic: str) -> int:
        lines = "".join(f"line {number} {'x' * 100}\n" for number in range(JAVA_LINES))
        flags = ("--compression-codec", "lz4", "--batch-size", "2000")
        pair.broker.tool(
            "org.apache.kafka.tools.ConsoleProducer",
            "--bootstrap-server",
            pair.through,
            "--topic",
            topic,
            *flags,
            stdin=lines,
        )
        return JAVA_LINES

    raw = tail(pair, write)
    assert all(b.producer_id >= 0 for b in batch.scan_batches(raw, 0, len(raw)))


@pytest.mark.parametrize("timestamps", ["CreateTime", "LogAppendTime"])
def test_duplicates_of_an_idempotent_producer(pair: Pair, timestamps: str) -> None:
    """A batch is sent again, on its connection and on others, also past Forebay: it is in the log once."""

    def write(topic: str) -> int:
        frames = [
            batch_v2(3, producer=(7000, 0, 3 * number), value=b"v%d" % number)
            for number in range(20)
        ]
        with (
            RawClient(pair.through) as one,
            RawClient(pair.through) as other,
            RawClient(pair.direct) as past,
        ):
            for number, sent in enumerate(frames):
                first, second = (past, one) if number % 4 == 3 else (one, other)
                assert first.produce(topic, sent) == 3 * number
                assert second.produce(topic, sent) == 3 * number
                if number >= 3:
                    assert one.produce(topic, frames[number - 3]) == 3 * (number - 3)
        return 60

    tail(pair, write, config={"message.timestamp.type": timestamps})


def test_pipelined_duplicates(pair: Pair) -> None:
    """Both copies are under way at once, on two connections; whichever comes first is the one in the log."""

    def write(topic: str) -> int:
        for number in range(20):
            sent = batch_v2(2, producer=(7001, 0, 2 * number), value=b"p%d" % number)
            with (
                RawClient(pair.through) as one,
                RawClient(pair.through) as other,
                ThreadPoolExecutor(2) as pool,
            ):
                offsets = {
                    done.result(20)
                    for done in [pool.submit(c.produce, topic, sent) for c in (one, other)]
                }
            assert offsets == {2 * number}
        return 40

    tail(pair, write)


def test_large_batches(pair: Pair) -> None:
    """Larger than a read of the socket and than a block of the cache."""

    def write(topic: str) -> int:
        with RawClient(pair.through) as client:
            for _ in range(12):
                client.produce(topic, batch_v2(4, value=b"large" * 40_000))
        return 48

    tail(pair, write)
