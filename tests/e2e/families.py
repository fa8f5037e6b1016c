"""One way to produce and one to consume for each family of clients, all with the same arguments.

Owns how librdkafka (confluent-kafka and kcat), aiokafka, kafka-python and Kafka's own Java tools are told to
send and read. Must not know whether Forebay stands between. Invariant: records go to partition 0 and are read
from its beginning, within TIMEOUT_S. kcat and Java write text alone, so their records are UTF-8 without tabs
or line breaks.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition

from tests.kit.broker.process import kafka_tool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TIMEOUT_S = 40.0
KCAT_FORMAT = r"%o %K %S|%k%s|%h;"
CONSOLE_LINE = re.compile(r"Offset:(\d+)\t(\S+)\t([^\t]*)\t(.*)")


class Record(NamedTuple):
    """What a consumer is given of a record. `offset` is -1 in a record still to be sent."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class Family(NamedTuple):
    """`produce(bootstrap, topic, records, acks)`, done when all are acknowledged, and `consume(bootstrap,
    topic, count)`.
    """

    produce: Callable[[str, str, Sequence[Record], str], None]
    consume: Callable[[str, str, int], list[Record]]


def confluent_produce(bootstrap: str, topic: str, records: Sequence[Record], acks: str) -> None:
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": acks, "compression.type": "gzip"})
    for record in records:
        producer.produce(
            topic,
            record.value,
            record.key,
            partition=0,
            headers=list(record.headers),
            on_delivery=lambda error, _message: errors.append(error) if error else None,
        )
    assert producer.flush(TIMEOUT_S) == 0
    assert not errors


def confluent_consume(bootstrap: str, topic: str, count: int) -> list[Record]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    records: list[Record] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(records) < count and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            given: Any = message.headers() or ()
            headers = tuple((name, bytes(value)) for name, value in given)
            offset = message.offset()
            assert offset is not None
            records.append(Record(offset, message.key(), message.value(), headers))
    consumer.close()
    return records


def aiokafka_produce(bootstrap: str, topic: str, records: Sequence[Record], acks: str) -> None:
    async def run() -> None:
        level = acks if acks == "all" else int(acks)
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap, acks=level, linger_ms=5
        ) as producer:
            sent = [
                await producer.send(
                    topic, one.value, one.key, partition=0, headers=list(one.headers)
                )
                for one in records
            ]
            await asyncio.wait_for(asyncio.gather(*sent), TIMEOUT_S)

    asyncio.run(run())


def aiokafka_consume(bootstrap: str, topic: str, count: int) -> list[Record]:
    records: list[Record] = []

    async def run() -> None:
        async with AIOKafkaConsumer(
            bootstrap_servers=bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([AioPartition(topic, 0)])
            while len(records) < count:
                one = await consumer.getone()
                records.append(Record(one.offset, one.key, one.value, tuple(one.headers)))

    async def bounded() -> None:
        await asyncio.wait_for(run(), TIMEOUT_S)

    asyncio.run(bounded())
    return records


def python_produce(bootstrap: str, topic: str, records: Sequence[Record], acks: str) -> None:
    level = acks if acks == "all" else int(acks)
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks=level, linger_ms=5)
    sent = [
        producer.send(topic, one.value, one.key, list(one.headers), partition=0) for one in records
    ]
    for one in sent:
        one.get(TIMEOUT_S)
    producer.close()


def python_consume(bootstrap: str, topic: str, count: int) -> list[Record]:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id=None
    )
    consumer.assign([PythonPartition(topic, 0)])
    records: list[Record] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(records) < count and time.monotonic() < deadline:
        for batch in consumer.poll(timeout_ms=200, max_records=count - len(records)).values():
            records += [Record(one.offset, one.key, one.value, tuple(one.headers)) for one in batch]
    consumer.close()
    return records


def run_kcat(*arguments: str, stdin: bytes = b"") -> bytes:
    """What kcat printed. Its own messages are in the error where it fails."""
    program = shutil.which("kcat")
    assert program, "kcat is not installed; .ci/run installs it (Debian: apt-get install kcat)"
    done = subprocess.run(
        [program, *arguments], input=stdin, capture_output=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def kcat_produce(bootstrap: str, topic: str, records: Sequence[Record], acks: str) -> None:
    headers = [f"-H{name}={value.decode()}" for name, value in records[0].headers]
    assert all(one.headers == records[0].headers for one in records), (
        "kcat gives all records the same headers"
    )
    lines = b"".join(b"%b\t%b\n" % (one.key or b"", one.value or b"") for one in records)
    level = "-1" if acks == "all" else acks
    where = ("-P", "-q", "-b", bootstrap, "-t", topic, "-p", "0")
    run_kcat(*where, "-K", "\t", f"-Xrequest.required.acks={level}", *headers, stdin=lines)


def kcat_consume(bootstrap: str, topic: str, count: int) -> list[Record]:
    where = ("-C", "-q", "-b", bootstrap, "-t", topic, "-p", "0", "-o", "beginning")
    printed = run_kcat(*where, "-c", str(count), "-f", KCAT_FORMAT)
    records = []
    at = 0
    while at < len(printed):
        bar = printed.index(b"|", at)
        offset, key_bytes, value_bytes = map(int, printed[at:bar].split())
        value_at = bar + 1 + max(key_bytes, 0)
        end = value_at + max(value_bytes, 0)
        at = printed.index(b";", end) + 1
        pairs = (pair.split(b"=", 1) for pair in printed[end + 1 : at - 1].split(b",") if pair)
        headers = tuple((name.decode(), value) for name, value in pairs)
        key = printed[bar + 1 : value_at] if key_bytes >= 0 else None
        records.append(
            Record(offset, key, printed[value_at:end] if value_bytes >= 0 else None, headers)
        )
    return records


def java_produce(bootstrap: str, topic: str, records: Sequence[Record], acks: str) -> None:
    lines = []
    for one in records:
        headers = ",".join(f"{name}:{value.decode()}" for name, value in one.headers)
        lines.append(f"{headers}\t{(one.key or b'').decode()}\t{(one.value or b'').decode()}\n")
    options = ("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true")
    kafka_tool(
        "org.apache.kafka.tools.ConsoleProducer",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--command-property", f"acks={acks}"),
        *("--compression-codec", "lz4", *options),
        stdin="".join(lines),
    )


def java_consume(bootstrap: str, topic: str, count: int) -> list[Record]:
    options = []
    for what in ("key", "offset", "headers"):
        options += ["--formatter-property", f"print.{what}=true"]
    where = (
        "--bootstrap-server",
        bootstrap,
        "--topic",
        topic,
        "--partition",
        "0",
        "--offset",
        "earliest",
    )
    bounds = ("--max-messages", str(count), "--timeout-ms", str(int(TIMEOUT_S * 1000)))
    printed = kafka_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer", *where, *bounds, *options
    )
    records = []
    for line in printed.splitlines():
        found = CONSOLE_LINE.fullmatch(line)
        assert found, line
        offset, said, key, value = found.groups()
        pairs = (pair.split(":", 1) for pair in said.split(",")) if said != "NO_HEADERS" else ()
        headers = tuple((name, text.encode()) for name, text in pairs)
        records.append(Record(int(offset), key.encode(), value.encode(), headers))
    return records


FAMILIES = {
    "confluent-kafka": Family(confluent_produce, confluent_consume),
    "aiokafka": Family(aiokafka_produce, aiokafka_consume),
    "kafka-python": Family(python_produce, python_consume),
    "kcat": Family(kcat_produce, kcat_consume),
    "java": Family(java_produce, java_consume),
}
