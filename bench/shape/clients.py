"""librdkafka's own clients on a topic of many partitions: one producer, and a consumer for each group.

Owns the clients, and the lateness of what they read. Must not know rungs. Invariant: lateness counts from when a record
was due.
"""

from __future__ import annotations

import threading
import time
from functools import partial

from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

from bench.ladder.frames import STAMP
from bench.ladder.loads import Wrong

CLOSE_S = 60.0
SETTLE_AGAIN_S, POLL_S = 1.0, 0.05
"""A partition that no group has read from by then is written again: a consumer may have begun behind its record."""


class Group:
    """A consumer of all partitions, from the end, in a thread of its own; `late` are (due, lateness) in ns, `seen` the
    partitions read from."""

    def __init__(self, address: str, topic: str, partitions: int) -> None:
        settings = {"bootstrap.servers": address, "group.id": "shape", "log_level": 3}
        self._consumer = Consumer({**settings, "fetch.wait.max.ms": 500})
        self._consumer.assign([TopicPartition(topic, i, OFFSET_END) for i in range(partitions)])
        self._over = threading.Event()
        self.late: list[tuple[int, int]] = []
        self.seen: set[int | None] = set()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._over.is_set():
            for message in self._consumer.consume(500, 0.05):
                if message.error() is None:
                    (due,) = STAMP.unpack_from(message.value() or b"")
                    self.late.append((due, time.monotonic_ns() - due))
                    self.seen.add(message.partition())

    def late_since(self, due_ns: int) -> list[int]:
        """Lateness in ns of the records due at or after `due_ns` that have come."""
        return [late for due, late in self.late if due >= due_ns]

    def close(self) -> None:
        """Leave."""
        self._over.set()
        self._thread.join(CLOSE_S)
        self._consumer.close()


class LibrdkafkaClients:
    """`Clients` of `bench.shape.tails`: one producer, `groups` consumers."""

    def __init__(
        self, address: str, topic: str, partitions: int, groups: int, record_bytes: int
    ) -> None:
        self._topic = topic
        self._partitions = partitions
        self._payload = bytes(record_bytes - STAMP.size)
        self._groups = [Group(address, topic, partitions) for _ in range(groups)]
        self._producer = Producer(
            {"bootstrap.servers": address, "acks": "all", "linger.ms": 5, "log_level": 3}
        )
        self._failed: list[str] = []
        self._begun_ns = self._count = 0

    def settle(self, patience_s: float) -> None:
        """Write until each group has read from every partition, and so stands at every tail. Wrong."""
        self._producer.list_topics(self._topic, timeout=patience_s)
        deadline = time.monotonic() + patience_s
        lacking = self._list_lacking()
        while lacking:
            if time.monotonic() > deadline:
                raise Wrong("a group does not come to the tail")
            for index in lacking:
                self._send(index, time.monotonic_ns())
            self._producer.flush(patience_s)
            again = time.monotonic() + SETTLE_AGAIN_S
            while lacking and time.monotonic() < again:
                time.sleep(POLL_S)
                lacking = self._list_lacking()

    def _list_lacking(self) -> list[int]:
        """The partitions that some group has not read from."""
        return [
            index
            for index in range(self._partitions)
            if not all(index in one.seen for one in self._groups)
        ]

    def produce(self, rate: float, seconds: float) -> int:
        """Send on schedule, partition after partition, until all is acknowledged. Return the number sent. Wrong."""
        self._failed.clear()
        self._begun_ns, self._count = time.monotonic_ns(), int(rate * seconds)
        for number in range(self._count):
            due = self._begun_ns + int(number / rate * 1e9)
            while (ahead := due - time.monotonic_ns()) > 0:
                self._producer.poll(min(ahead / 1e9, 0.002))
            self._send(number % self._partitions, due)
        if self._producer.flush(CLOSE_S) or self._failed:
            raise Wrong(f"{len(self._failed)} failed {self._failed[:1]}")
        return self._count

    def drain(self, patience_s: float) -> list[int]:
        """Wait until every group has what was produced last. Return each record's lateness in each group, in ns."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            late = [one.late_since(self._begun_ns) for one in self._groups]
            if all(len(one) >= self._count for one in late):
                break
            time.sleep(POLL_S)
        return [ns for one in late for ns in one]

    def close(self) -> None:
        """Let the groups leave."""
        for one in self._groups:
            one.close()

    def _send(self, partition: int, due_ns: int) -> None:
        self._producer.produce(
            self._topic,
            STAMP.pack(due_ns) + self._payload,
            partition=partition,
            on_delivery=partial(_note, self._failed),
        )


def _note(failed: list[str], error: object, _message: object) -> None:
    if error is not None:
        failed.append(str(error))
