"""Clients that come, read a changing topic from its start to its end, and go: librdkafka by id, kafka-python by name.

Owns a thread, one client after the other, and what each got. Must not know what is done to the topics. Invariants: a
client is made after `made_at` and asks for Metadata itself, so that it is told of all that was settled by then; the
end is the high watermark that a broker named, past Forebay.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as NamedPartition
from kafka.errors import KafkaError

from tests.chaos import readers
from tests.chaos.history import Place, digest_of
from tests.chaos.raw_reader import STEP_BYTES, reads_by_id
from tests.chaos.readings import Delivered, Taken

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection, Generator, Mapping, Sequence

PATIENCE_S = 20.0
PAUSE_S = 0.5
END_S = 5.0
POLL_MS = 200
LOG_APPEND_TIME = 2
"""librdkafka's number, one above Kafka's."""
Batch = list[tuple[int, Taken]]


class WholeReader(threading.Thread):
    """Reads one of `topics` (name -> partitions) at a time until `finish`, none that is `hushed`."""

    def __init__(
        self,
        name: str,
        through: str,
        direct: str,
        topics: Mapping[str, int],
        rng: random.Random,
        hushed: Collection[str],
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._through, self._direct, self._topics = through, direct, dict(topics)
        self._rng, self._hushed = rng, hushed
        self._finishing = threading.Event()
        self.delivered: list[Delivered] = []
        self.errors: dict[str, int] = {}

    def finish(self) -> None:
        self._finishing.set()

    def run(self) -> None:
        logging.getLogger("kafka").setLevel(logging.CRITICAL)
        while not self._finishing.wait(PAUSE_S):
            wanted = [topic for topic in self._topics if topic not in self._hushed]
            if wanted:
                topic = self._rng.choice(wanted)
                alone = reads_by_id(topic) in self._hushed
                self.read(topic, read_by_name if alone else self._rng.choice(CLIENTS), PATIENCE_S)

    def read(
        self, topic: str, client: Callable[..., Generator[Batch, None, None]], patience_s: float
    ) -> None:
        """All of a topic, or as far as a client comes in time."""
        places = [Place(topic, one) for one in range(self._topics[topic])]
        try:
            ends = readers.find_ends(self._direct, places, END_S)
        except KafkaException as failed:
            self._count(failed)
            return
        got: dict[int, list[Taken]] = {place.partition: [] for place in places}
        deadline = time.monotonic() + patience_s
        made_at = time.monotonic()
        try:
            with contextlib.closing(
                client(self._through, places, self._rng.choice(STEP_BYTES))
            ) as polls:
                for records in polls:
                    for partition, taken in records:
                        got[partition].append(taken)
                    left = any(reach(got[one.partition]) < end for one, end in ends.items())
                    if not left or time.monotonic() > deadline or topic in self._hushed:
                        break
        except (KafkaException, KafkaError, OSError) as failed:
            self._count(failed)
        for place, end in ends.items():
            whole = tuple(got[place.partition])
            name = f"{self.name}, {client.__name__}"
            self.delivered.append(
                Delivered(name, topic, place.partition, made_at, end, reach(whole), whole)
            )

    def _count(self, failed: Exception) -> None:
        name = type(failed).__name__
        self.errors[name] = self.errors.get(name, 0) + 1


def reach(records: Sequence[Taken]) -> int:
    """The offset after the last of them, 0 of none."""
    return records[-1].offset + 1 if records else 0


def read_by_id(
    bootstrap: str, places: list[Place], step_bytes: int
) -> Generator[Batch, None, None]:
    """With librdkafka, which fetches by topic id; at most `step_bytes` of a partition, or one batch."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "whole",
        "enable.auto.commit": False,
        "fetch.message.max.bytes": step_bytes,
    }
    consumer = Consumer(readers.CLIENT | settings)
    try:
        consumer.assign([TopicPartition(*place, 0) for place in places])
        while True:
            yield [
                (readers.place_of(one).partition, taken_of(one))
                for one in consumer.consume(100, POLL_MS / 1000)
                if one.error() is None
            ]
    finally:
        readers.close(consumer, {})


def taken_of(message: object) -> Taken:
    offset, (kind, stamp) = message.offset(), message.timestamp()  # type: ignore[attr-defined]
    digest = digest_of(message.key(), message.value())  # type: ignore[attr-defined]
    return Taken(offset, digest, (int(kind == LOG_APPEND_TIME), stamp))


def read_by_name(
    bootstrap: str, places: list[Place], step_bytes: int
) -> Generator[Batch, None, None]:
    """With kafka-python, which fetches by name; at most `step_bytes` of a partition, or one batch."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap.split(","),
        client_id="whole",
        group_id=None,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_partition_fetch_bytes=step_bytes,
        bootstrap_timeout_ms=10_000,
        metrics_enabled=False,
    )
    try:
        consumer.assign([NamedPartition(*place) for place in places])
        consumer.seek_to_beginning()
        while True:
            yield [
                (
                    at.partition,
                    Taken(
                        one.offset,
                        digest_of(one.key, one.value),
                        (int(one.timestamp_type), one.timestamp),
                    ),
                )
                for at, records in consumer.poll(timeout_ms=POLL_MS).items()
                for one in records
            ]
    finally:
        consumer.close(autocommit=False)


CLIENTS = (read_by_id, read_by_name)
