"""Producers under failure: plain, idempotent, transactional; each says what it sent and what it was told.

Owns a thread and a librdkafka producer each, made anew where the former is beyond repair (in the same name:
sequences go on). Must not know which faults there are. Invariants: `sent` has every record given to the
library once, with the offset its last report named; a transaction is ABORTED where no commit was begun or the
library says it must be aborted, UNKNOWN where a commit was begun and its end is not known.
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, ClassVar

from confluent_kafka import KafkaException, Producer

from tests.chaos.history import Kind, Name, Outcome, Place, Sent, build_value, digest_of

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SIZES_BYTES = (40, 6000)
COMMIT_S = 20.0
ABORT_S = 30.0
TRANSACTION_S = 15.0
PAUSE_S = 0.2
MOST_IN_TRANSACTION = 20
ABORTED_SHARE, ABANDONED_SHARE = 0.25, 0.05
CLIENT: dict[str, object] = {
    "linger.ms": 5,
    "reconnect.backoff.max.ms": 1000,
    "topic.metadata.refresh.interval.ms": 5000,
    "socket.timeout.ms": 10_000,
    "log_level": 0,
}


class Writer(threading.Thread):
    """Writes to all partitions of a topic until `finish`. `rate` in records a second."""

    kind = Kind.PLAIN
    sizes_bytes = SIZES_BYTES
    extra: ClassVar[dict[str, object]] = {
        "enable.idempotence": False,
        "retries": 0,
        "message.timeout.ms": 10_000,
    }

    def __init__(
        self, name: str, bootstrap: str, topic: str, partitions: int, rate: float, seed: int
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.rng = random.Random(f"{seed}/{name}")
        self.sent: list[Sent] = []
        self.outcomes: dict[tuple[str, int], Outcome] = {}
        self.errors: dict[str, int] = {}
        self.topic = topic
        self._partitions = partitions
        self._rate = rate
        self._settings = CLIENT | {
            "bootstrap.servers": bootstrap,
            "client.id": name,
            "acks": "all",
            "compression.type": self.rng.choice(CODECS),
            **self.extra,
        }
        self._acknowledged: dict[Place, int] = {}
        self._finishing = threading.Event()
        self._due = 0.0
        self.producer = Producer(self._settings)

    @property
    def acknowledged(self) -> int:
        return sum(one.offset >= 0 for one in self.sent)

    def run(self) -> None:
        self._due = time.monotonic()
        while not self._finishing.is_set():
            self.write_one()
            self.pace()
        self.producer.flush(COMMIT_S * 6)

    def finish(self) -> None:
        """Write nothing more; `join` until all is acknowledged or given up."""
        self._finishing.set()

    def close(self) -> None:
        """Let go of the library's connections, which end with its object."""
        del self.producer

    def pace(self) -> None:
        self._due = max(self._due + 1 / self._rate, time.monotonic() - 1)
        self.producer.poll(max(self._due - time.monotonic(), 0))

    def write_one(self, transaction: int = -1) -> None:
        name = Name(self.name, len(self.sent))
        place = Place(self.topic, self.rng.randrange(self._partitions))
        value = build_value(name, transaction, self.rng.randint(*self.sizes_bytes), self.rng)
        key = f"{self.name}-{self.rng.randrange(50)}".encode()
        above = self._acknowledged.get(place, -1)
        self.sent.append(Sent(name, place, digest_of(key, value), -1, transaction, above))

        def told(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.count(error)
            elif (offset := message.offset()) is not None:
                self.sent[name.sequence] = self.sent[name.sequence]._replace(offset=offset)
                self._acknowledged[place] = max(self._acknowledged.get(place, -1), offset)

        try:
            self.producer.produce(place.topic, value, key, place.partition, on_delivery=told)
        except BufferError:
            self.producer.poll(PAUSE_S)

    def count(self, error: KafkaError) -> None:
        self.errors[error.name()] = self.errors.get(error.name(), 0) + 1


class IdempotentWriter(Writer):
    """Sends again until it is acknowledged, however long that takes."""

    kind = Kind.IDEMPOTENT
    extra: ClassVar[dict[str, object]] = {"enable.idempotence": True, "message.timeout.ms": 0}

    def write_one(self, transaction: int = -1) -> None:
        if len(self.producer) < 2000:
            super().write_one(transaction)


class BulkWriter(IdempotentWriter):
    """Large records that do not shrink: the arena fills."""

    sizes_bytes = (40_000, 80_000)
    extra: ClassVar[dict[str, object]] = {**IdempotentWriter.extra, "compression.type": "none"}


class TransactionalWriter(Writer):
    """Transactions of some records; many aborted, some abandoned by a producer that is gone.

    One that aborted while records were unanswered is made anew, so that it has a new epoch: librdkafka goes on with
    the sequence of a record that it has purged, also where the broker has that record (its answer was lost), and
    the next one is then taken for a repetition of it: acknowledged at its offset, and lost. Seen with librdkafka and
    a broker alone, where a connection is cut between an append and its answer and the transaction aborted.
    """

    kind = Kind.TRANSACTIONAL
    extra: ClassVar[dict[str, object]] = {
        "message.timeout.ms": int(TRANSACTION_S * 1000),
        "transaction.timeout.ms": int(TRANSACTION_S * 1000),
    }

    def run(self) -> None:
        self._settings["transactional.id"] = self.name
        number = 0
        fresh = False
        while not self._finishing.is_set():
            try:
                if not fresh:
                    self.producer = open_transactional(self._settings, self._finishing)
                    fresh = True
                self._due = time.monotonic()
                fresh = self._transact(number)
            except KafkaException as failed:
                self.count(failed.args[0])
                fresh = False
            number += 1
        if fresh:
            self.producer.flush(COMMIT_S)

    def _transact(self, number: int) -> bool:
        """One transaction; whether the producer is good for another."""
        transaction = (self.name, number)
        self.outcomes[transaction] = Outcome.ABORTED
        self.producer.begin_transaction()
        for _ in range(self.rng.randint(1, MOST_IN_TRANSACTION)):
            self.write_one(number)
            self.pace()
        fate = self.rng.random()
        if fate < ABANDONED_SHARE:
            self.producer.poll(PAUSE_S)
            return False
        if fate < ABANDONED_SHARE + ABORTED_SHARE:
            unanswered = self.producer.flush(self.rng.choice((0, 1)))
            abort(self.producer)
            return not unanswered
        self.outcomes[transaction] = Outcome.UNKNOWN
        self.outcomes[transaction], fresh = commit(self.producer)
        return fresh


def open_transactional(settings: dict[str, object], finishing: threading.Event) -> Producer:
    """A producer that has fenced whoever had its transactional id. Tries until it succeeds or `finishing`."""
    while True:
        producer = Producer(settings)
        try:
            producer.init_transactions(COMMIT_S)
        except KafkaException:
            if finishing.is_set():
                raise
            finishing.wait(PAUSE_S)
            continue
        return producer


def abort(producer: Producer) -> None:
    """KafkaException where it cannot be, or not within ABORT_S: one made anew aborts what is open."""
    deadline = time.monotonic() + ABORT_S
    while True:
        try:
            return producer.abort_transaction(COMMIT_S)
        except KafkaException as failed:
            if not failed.args[0].retriable() or time.monotonic() > deadline:
                raise


def commit(producer: Producer) -> tuple[Outcome, bool]:
    """How it ended, and whether the producer is good for more."""
    for _ in range(6):
        try:
            producer.commit_transaction(COMMIT_S)
        except KafkaException as failed:
            error = failed.args[0]
            if error.txn_requires_abort():
                abort(producer)
                return Outcome.ABORTED, False
            if not error.retriable():
                return Outcome.UNKNOWN, False
        else:
            return Outcome.COMMITTED, True
    return Outcome.UNKNOWN, False
