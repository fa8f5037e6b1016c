"""An exactly-once pipeline: reads a topic committed, writes each record to another, offsets in the same transaction.

Owns a thread, a consumer and a transactional producer, both made anew after whatever goes wrong. Must not know which
faults there are. Invariants: a copy has its source's key, value and partition; nothing is copied outside a transaction.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.chaos import readers, writers
from tests.chaos.history import Outcome, Place

if TYPE_CHECKING:
    from pathlib import Path

    from confluent_kafka import Message

BATCH = 50
BATCH_S = 0.5
POLL_WITHIN_S = 30.0


class Pipeline(threading.Thread):
    """Copies `source` to `sink` until `finish`; `copied`: per partition of the source, how far it has committed."""

    def __init__(self, name: str, bootstrap: str, source: str, sink: str, directory: Path) -> None:
        """What its producer says of transactions goes to a log in `directory`."""
        super().__init__(name=name, daemon=True)
        self._source, self._sink = source, sink
        self._finishing = threading.Event()
        self.copied: dict[Place, int] = {}
        self.errors: dict[str, int] = {}
        self._ending_since = float("inf")
        common: dict[str, object] = {"bootstrap.servers": bootstrap, "client.id": name}
        self._reading = (
            readers.CLIENT
            | readers.CLASSIC
            | common
            | {
                "group.id": name,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": False,
                "max.poll.interval.ms": int(
                    POLL_WITHIN_S * 1000
                ),  # one that hangs is put out of the group
            }
        )
        self._writing = (
            writers.CLIENT
            | common
            | {
                "transactional.id": name,
                "transaction.timeout.ms": int(writers.TRANSACTION_S * 1000),
                "debug": "eos",
                "log_level": 7,
                "logger": build_logger(name, directory / f"{name}.log"),
            }
        )

    def finish(self) -> None:
        self._finishing.set()

    @property
    def hangs(self) -> bool:
        """Whether a transaction has been ending for longer than any timeout allows: another pipeline fences it."""
        return time.monotonic() - self._ending_since > readers.HUNG_S

    def run(self) -> None:
        """Whatever goes wrong, both are made anew; `errors` counts why, and what took long."""
        while not self._finishing.is_set():
            consumer = Consumer(self._reading)
            try:
                producer = writers.open_transactional(self._writing, self._finishing)
                consumer.subscribe([self._source])
                while not self._finishing.is_set() and self._copy(consumer, producer):
                    pass
            except KafkaException as failed:
                self._ending_since = float("inf")
                name = failed.args[0].name()
                self.errors[name] = self.errors.get(name, 0) + 1
            finally:
                readers.close(consumer, self.errors)

    def _copy(self, consumer: Consumer, producer: Producer) -> bool:
        """One transaction; whether both are good for another."""
        heard = consumer.consume(BATCH, BATCH_S)
        if any(readers.waits_for_ever(one) for one in heard):
            self.errors["without offsets"] = self.errors.get("without offsets", 0) + 1
            return False
        found = [one for one in heard if one.error() is None]
        if not found:
            return True
        producer.begin_transaction()
        for message in found:
            producer.produce(
                self._sink,
                message.value(),
                message.key(),
                message.partition() or 0,  # copies keep their place
            )
        after = positions(found)
        began = self._ending_since = time.monotonic()
        offsets = [TopicPartition(*place, offset) for place, offset in after.items()]
        self._send_offsets(consumer, producer, offsets)
        sent_s = time.monotonic() - began
        outcome, fresh = writers.commit(producer)
        self._ending_since = float("inf")
        for what, took_s in (("offsets", sent_s), ("commit", time.monotonic() - began - sent_s)):
            if took_s > writers.COMMIT_S:
                self.errors[f"slow {what} {took_s:.0f} s"] = 1
        if outcome is Outcome.COMMITTED:
            self.copied |= after
        return fresh and outcome is Outcome.COMMITTED

    def _send_offsets(
        self, consumer: Consumer, producer: Producer, offsets: list[TopicPartition]
    ) -> None:
        deadline = time.monotonic() + writers.COMMIT_S
        while True:
            try:
                return producer.send_offsets_to_transaction(
                    offsets, consumer.consumer_group_metadata(), writers.COMMIT_S
                )
            except KafkaException as failed:
                if not failed.args[0].retriable() or time.monotonic() > deadline:
                    raise


def build_logger(name: str, path: Path) -> logging.Logger:
    """One that writes to `path` and nowhere else."""
    logger = logging.getLogger(f"chaos.{name}")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.handlers[:] = [handler]
    return logger


def positions(found: list[Message]) -> dict[Place, int]:
    """After which offset of each partition to read on."""
    return {readers.place_of(one): (one.offset() or 0) + 1 for one in found}
