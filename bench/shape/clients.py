"""librdkafka's own clients on a topic of many partitions: one producer at a steady rate, groups at the tail.

Owns one turn of it, and the busy loops beside it. Must not know rungs by name. Invariants: latency counts from when a
record was due; every record is acknowledged and read by each group, or the turn is void; lines of the access log are
Forebay's own count of the same time.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

from bench.ladder.frames import STAMP
from bench.ladder.loads import Figures, Meter, Wrong
from tests.kit.broker.process import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.ladder.arms import Arm

RECORD_BYTES = 1000
WARM_S = 3.0
"""Nothing of the first seconds is counted: positions, leases and rights are being got."""
PATIENCE_S = 60.0
LINES, DROPPED = (
    ("forebay_access_log_written_lines_total",),
    ("forebay_access_log_dropped_lines_total",),
)
BUSY = "while True: pass"


class Counts(NamedTuple):
    """Forebay's own: lines of the access log, written and dropped; record bytes from memory, and in all."""

    lines: float
    dropped: float
    hit_bytes: float
    fetched_bytes: float


class Group:
    """A consumer of all partitions, from the end, in a thread of its own; `late` are (due, lateness) in ns."""

    def __init__(self, address: str, topic: str, partitions: int) -> None:
        settings = {"bootstrap.servers": address, "group.id": "shape", "log_level": 3}
        self._consumer = Consumer({**settings, "fetch.wait.max.ms": 500})
        self._consumer.assign([TopicPartition(topic, i, OFFSET_END) for i in range(partitions)])
        self._over = threading.Event()
        self.late: list[tuple[int, int]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._over.is_set():
            for message in self._consumer.consume(500, 0.05):
                if message.error() is None:
                    (due,) = STAMP.unpack_from(message.value() or b"")
                    self.late.append((due, time.monotonic_ns() - due))

    def count_since(self, due_ns: int) -> int:
        """Records due at or after `due_ns` that have come."""
        return sum(due >= due_ns for due, _ in self.late)

    def close(self) -> None:
        """Leave."""
        self._over.set()
        self._thread.join(PATIENCE_S)
        self._consumer.close()


@contextlib.contextmanager
def busy_processors() -> Iterator[None]:
    """A loop at nice 19 on each processor that this process may use, for as long as the block lasts."""
    loops = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"import os; os.nice(19); os.sched_setaffinity(0, {{{cpu}}})\n{BUSY}",
            ],
            preexec_fn=die_with_parent,
        )
        for cpu in sorted(os.sched_getaffinity(0))
    ]
    try:
        yield
    finally:
        for one in loops:
            one.kill()
            one.wait()


def tail_many(
    arm: Arm, broker_pid: int, topic: str, partitions: int, groups: int, rate: float, seconds: float
) -> Figures:
    """A producer of `rate` records of 1 KB a second over all partitions, acks=all; `groups` at the tail."""
    readers = [Group(arm.address, topic, partitions) for _ in range(groups)]
    producer = Producer(
        {"bootstrap.servers": arm.address, "acks": "all", "linger.ms": 5, "log_level": 3}
    )
    failed: list[str] = []
    try:
        producer.list_topics(topic, timeout=PATIENCE_S)
        _wait_until_all_read(producer, topic, partitions, readers)
        _produce(producer, topic, partitions, rate, WARM_S, failed)
        before, meter, begun_ns = _count(arm), Meter(arm.pid, broker_pid), time.monotonic_ns()
        count = _produce(producer, topic, partitions, rate, seconds, failed)
        spent, after = meter.stop(), _count(arm)
        producer.flush(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while any(one.count_since(begun_ns) < count for one in readers):
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
    finally:
        for one in readers:
            one.close()
    late = sorted(ns for one in readers for due, ns in one.late if due >= begun_ns)
    if failed or len(late) < groups * count:
        raise Wrong(
            f"{arm.name}: {len(failed)} failed {failed[:1]}, {len(late)} of {groups * count} came"
        )
    figures = {
        "end_to_end_p50_ms": late[len(late) // 2] / 1e6,
        "end_to_end_p99_ms": late[len(late) * 99 // 100] / 1e6,
        "cpu_ms_per_s": spent.cpu_s * 1e3 / spent.elapsed_s,
        "broker_ms_per_s": spent.broker_s * 1e3 / spent.elapsed_s,
    }
    if before is not None and after is not None:
        grown = Counts(*(b - a for a, b in zip(before, after, strict=True)))
        figures["log_lines_per_s"] = grown.lines / spent.elapsed_s
        figures["log_lines_dropped"] = grown.dropped
        figures["hit_share"] = grown.hit_bytes / max(grown.fetched_bytes, 1.0)
    return figures


def _wait_until_all_read(
    producer: Producer, topic: str, partitions: int, readers: list[Group]
) -> None:
    """Write to every partition until each group has read from all of them, and so stands at every tail."""
    deadline = time.monotonic() + PATIENCE_S
    while any(len(one.late) < partitions for one in readers):
        if time.monotonic() > deadline:
            raise Wrong("a group does not come to the tail")
        for index in range(partitions):
            producer.produce(topic, STAMP.pack(time.monotonic_ns()), partition=index)
        producer.flush(PATIENCE_S)
        time.sleep(1.0)


def _produce(
    producer: Producer, topic: str, partitions: int, rate: float, seconds: float, failed: list[str]
) -> int:
    """Send on schedule, partition after partition; the number sent."""
    payload, count = bytes(RECORD_BYTES - STAMP.size), int(rate * seconds)
    begun = time.monotonic_ns()
    for number in range(count):
        due = begun + int(number / rate * 1e9)
        while (ahead := due - time.monotonic_ns()) > 0:
            producer.poll(min(ahead / 1e9, 0.002))
        producer.produce(
            topic,
            STAMP.pack(due) + payload,
            partition=number % partitions,
            on_delivery=partial(_note, failed),
        )
    return count


def _note(failed: list[str], error: object, _message: object) -> None:
    if error is not None:
        failed.append(str(error))


def _count(arm: Arm) -> Counts | None:
    if arm.sidecar is None or not arm.serves:
        return None
    metrics, fetched = arm.sidecar.metrics(), arm.sidecar.fetch_counts()
    hit_bytes = sum(size for key, size in fetched.items() if key[0] == "hit")
    return Counts(
        metrics.get(LINES, 0.0), metrics.get(DROPPED, 0.0), hit_bytes, sum(fetched.values())
    )
