"""Consumers under failure: each group says what it read, assignment by assignment.

Owns a thread for each member and its librdkafka consumer. Must not know which faults there are. Invariants: a
run is one assignment of one partition, its records in the order of delivery; `reached` counts what was read
and the ends that were seen, control records included. Members commit on their own: what was read may be read
again, not skipped. What they commit they store themselves: at a close librdkafka drops the records that are queued, but
stores the offset of a control record among them, and so commits what was never delivered (rd_kafka_op_handle_std). A
member whose committed offsets could not be had leaves and comes back: librdkafka says so once, and neither asks again
nor gives its partitions up (rd_kafka_assignment_handle_OffsetFetch, "Do nothing for request-level errors").
A consumer whose close does not return is left to itself and counted; it stays in its group until MAX_POLL_S are over,
then the coordinator gives its partitions to another (ConsumerGroup's rebalance timeout is this setting).
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.chaos.history import Group, Place, Read, digest_of, scan_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from confluent_kafka import Message

POLL_S = 0.2
HUNG_S = 60.0
"""librdkafka's own time-outs are of ten seconds, yet commit_transaction has hung for minutes while it drained a
partition, whatever its timeout, and close for good while its group rebalanced and brokers went away, with everything
that it had asked answered (confluent-kafka-python's issue 1667, librdkafka's 3740).
"""
MAX_POLL_S = 30.0
NOT_CLOSED = "did not close"
WITHOUT_OFFSETS = "Failed to fetch committed offset"
CLIENT: dict[str, object] = {
    "enable.partition.eof": True,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "earliest",
    "check.crcs": True,
    "fetch.wait.max.ms": 500,
    "reconnect.backoff.max.ms": 1000,
    "topic.metadata.refresh.interval.ms": 5000,
    "socket.timeout.ms": 10_000,
    "queued.max.messages.kbytes": 4096,
    "log_level": 0,
}
MEMBER: dict[str, object] = {
    "auto.commit.interval.ms": 1000,
    "max.poll.interval.ms": round(MAX_POLL_S * 1000),
}
CLASSIC: dict[str, object] = MEMBER | {"session.timeout.ms": 10_000}
NEW_PROTOCOL: dict[str, object] = MEMBER | {"group.protocol": "consumer"}


class Member(threading.Thread):
    """One member of a group; `bounce` makes it leave and come back."""

    def __init__(self, group: Group, bootstrap: str, protocol: Mapping[str, object]) -> None:
        super().__init__(name=group.name, daemon=True)
        self.group = group
        self.errors: dict[str, int] = {}
        self._settings = CLIENT | {
            "bootstrap.servers": bootstrap,
            "group.id": group.name,
            "isolation.level": isolation(group.committed),
            **protocol,
        }
        self._leaving = threading.Event()
        self._finishing = False
        self._runs: dict[Place, list[Read]] = {}

    def bounce(self) -> None:
        self._leaving.set()

    def finish(self) -> None:
        self._finishing = True
        self._leaving.set()

    def run(self) -> None:
        while not self._finishing:
            self._leaving.clear()
            consumer = Consumer(self._settings)
            consumer.subscribe(list(self.group.topics), on_assign=self._on_assign)
            try:
                while not self._leaving.is_set():
                    message = consumer.poll(POLL_S)
                    if message is not None:
                        self._take(message)
                        if message.error() is None:
                            store(consumer, message)
            finally:
                close(consumer, self.errors)

    def _on_assign(self, _consumer: Consumer, assigned: list[TopicPartition]) -> None:
        self._runs = {}
        for one in assigned:
            self._runs[Place(one.topic, one.partition)] = []
        self.group.runs += self._runs.items()

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is not None and is_failure(message):
            self.errors[error.name()] = self.errors.get(error.name(), 0) + 1
            if waits_for_ever(message):
                self.bounce()
            return
        place = place_of(message)
        run = self._runs.get(place)
        if run is None:  # a run that the group's protocol added
            run = self._runs[place] = []
            self.group.runs.append((place, run))
        take(self.group, run, place, message)


def close(consumer: Consumer, errors: dict[str, int], within_s: float = HUNG_S) -> None:
    """Close it; that it has not in time goes to `errors`."""
    closing = threading.Thread(target=consumer.close, daemon=True)
    closing.start()
    closing.join(within_s)
    if closing.is_alive():
        errors[NOT_CLOSED] = errors.get(NOT_CLOSED, 0) + 1


def store(consumer: Consumer, message: Message) -> None:
    """It is the group's to commit, unless the partition is no longer this member's."""
    with contextlib.suppress(KafkaException):
        consumer.store_offsets(message)


def is_failure(message: Message) -> bool:
    """Neither a record nor the end of a partition."""
    error = message.error()
    return error is not None and error.code() != KafkaError._PARTITION_EOF


def waits_for_ever(message: Message) -> bool:
    """Whether committed offsets could not be had: this consumer reads nothing more."""
    error = message.error()
    return error is not None and error.str().startswith(WITHOUT_OFFSETS)


def place_of(message: Message) -> Place:
    topic, partition = message.topic(), message.partition()
    assert topic is not None
    assert partition is not None
    return Place(topic, partition)


def take(group: Group, run: list[Read], place: Place, message: Message) -> None:
    """Note a record, or the end of the partition."""
    offset = message.offset()
    assert offset is not None
    if message.error() is None:
        key, value = message.key(), message.value()
        assert value is not None
        data = value if isinstance(value, bytes) else value.encode()
        word = key if isinstance(key, bytes) or key is None else key.encode()
        run.append(Read(offset, scan_name(data), digest_of(word, data)))
        offset += 1
    group.reached[place] = max(group.reached.get(place, 0), offset)


def isolation(committed: bool) -> str:
    return "read_committed" if committed else "read_uncommitted"


def find_ends(bootstrap: str, places: Sequence[Place], patience_s: float) -> dict[Place, int]:
    """The log ends. KafkaException where they cannot be had."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends", "log_level": 0})
    deadline = time.monotonic() + patience_s
    ends: dict[Place, int] = {}
    try:
        for place in places:
            while place not in ends:
                try:
                    _, ends[place] = consumer.get_watermark_offsets(
                        TopicPartition(*place), timeout=5
                    )
                except KafkaException:
                    if time.monotonic() > deadline:
                        raise
    finally:
        consumer.close()
    return ends


def read_all(
    name: str,
    bootstrap: str,
    topics: Sequence[str],
    ends: Mapping[Place, int],
    committed: bool,
    patience_s: float,
) -> Group:
    """A group of its own that reads everything from the start to `ends`, or as far as it comes in time."""
    group = Group(name, tuple(topics), committed, reached=dict.fromkeys(ends, 0))
    runs: dict[Place, list[Read]] = {place: [] for place in ends}
    group.runs += runs.items()
    wanted = {
        "bootstrap.servers": bootstrap,
        "group.id": name,
        "isolation.level": isolation(committed),
    }
    consumer = Consumer(CLIENT | wanted | {"enable.auto.commit": False})
    deadline = time.monotonic() + patience_s
    try:
        consumer.assign([TopicPartition(*place, 0) for place in ends])
        while (
            any(group.reached[place] < end for place, end in ends.items())
            and time.monotonic() < deadline
        ):
            message = consumer.poll(POLL_S)
            if message is not None and not is_failure(message):
                place = place_of(message)
                take(group, runs[place], place, message)
    finally:
        consumer.close()
    return group
