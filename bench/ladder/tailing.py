"""Consumers at the tail: produced at a moderate, steady rate, how late does each record come?

Owns the raw form (long polls of this process's own) and the form with librdkafka. Must not know rungs by
name. Invariants: latency counts from when a record was *due*; producer and consumers go by the same rung;
what the watch cost is read from Forebay's own counters over the same time.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

from bench.ladder.frames import (
    FETCH_VERSION,
    LAST_DELTA,
    LAST_DELTA_AT,
    STAMP,
    VALUE_AT,
    build_poll,
    build_stamped,
)
from bench.ladder.loads import FETCH_BYTES, Figures, Meter, Wrong, check_produced
from bench.ladder.raw import Line
from protocol import batch, fetch
from tests.kit.frames import RECORD_BYTES, build_batch, build_produce
from tests.kit.raw_fetch import RawClient

if TYPE_CHECKING:
    from bench.ladder.arms import Arm
    from tests.kit.raw_fetch import TopicWords

SKIP_S = 0.5
"""What comes in the first half second is not counted: leases and rights are being got."""
WATCHING = ("watch", "proof", "authorization", "confirm")
UPSTREAM_BYTES = "forebay_upstream_fetch_bytes_total"
POLLS = "forebay_watch_polls_total"


def tail_raw(
    arm: Arm, broker_pid: int, direct: str, topic: str, groups: int, rate: float, seconds: float
) -> Figures:
    """`groups` long-polling connections, one producer of 1 KB records with acks=all at `rate` a second."""
    with RawClient(direct) as asking:
        words = asking.topic(topic)
    stop = threading.Event()
    with ExitStack() as stack:
        lines = [stack.enter_context(Line(arm.address, arm.trust)) for _ in range(groups)]
        sender = stack.enter_context(Line(arm.address, arm.trust))
        first = _append(sender, topic) + 1
        pool = stack.enter_context(ThreadPoolExecutor(groups))
        readers = [pool.submit(_follow, line, words, first, stop) for line in lines]
        time.sleep(SKIP_S)
        begun_ns, before = time.monotonic_ns(), _count(arm)
        meter = Meter(arm.pid, broker_pid)
        acknowledged = _send_at(sender, topic, rate, seconds)
        elapsed_s, cpu_s, broker_s = meter.stop()
        after = _count(arm)
        stop.set()
        _append(sender, topic)  # wakes who waits
        late_ns = [late for reader in readers for due, late in reader.result() if due >= begun_ns]
    if len(late_ns) < 0.9 * groups * rate * seconds:
        raise Wrong(f"{arm.name}: {len(late_ns)} records came of {groups * rate * seconds:.0f}")
    figures = _late("end_to_end", late_ns) | _late("ack", acknowledged)
    figures |= {
        "cpu_ms_per_s": cpu_s * 1e3 / elapsed_s,
        "broker_ms_per_s": broker_s * 1e3 / elapsed_s,
    }
    if arm.serves:
        delivered = after["delivered"] - before["delivered"]
        figures["watch_requests_per_s"] = (after["polls"] - before["polls"]) / elapsed_s
        figures["upstream_byte_share"] = (after["upstream"] - before["upstream"]) / max(
            delivered, 1
        )
    return figures


def _late(name: str, values_ns: list[int]) -> Figures:
    ordered = sorted(values_ns)
    return {
        f"{name}_p50_ms": ordered[len(ordered) // 2] / 1e6,
        f"{name}_p99_ms": ordered[len(ordered) * 99 // 100] / 1e6,
    }


def _count(arm: Arm) -> Figures:
    """Forebay's counters: its own requests, record bytes from the broker and to clients."""
    if arm.sidecar is None or not arm.serves:
        return {}
    metrics = arm.sidecar.metrics()
    return {
        "polls": sum(value for key, value in metrics.items() if key[0] == POLLS),
        "upstream": sum(value for key, value in metrics.items() if key[0] == UPSTREAM_BYTES),
        "delivered": sum(arm.sidecar.fetch_counts().values()),
    }


def _append(line: Line, topic: str) -> int:
    frame = build_produce(topic, build_batch(RECORD_BYTES, RECORD_BYTES))
    (offset,) = check_produced(line, line.call(frame))
    return offset


def _send_at(line: Line, topic: str, rate: float, seconds: float) -> list[int]:
    """Produce on schedule; ns from due to acknowledged of each."""
    stamped, taken = build_stamped(topic), []
    begun = time.monotonic_ns()
    for i in range(int(rate * seconds)):
        due = begun + int(i / rate * 1e9)
        ahead = due - time.monotonic_ns()
        if ahead > 0:
            time.sleep(ahead / 1e9)
        stamped.stamp(due)
        line.call(stamped.frame)
        taken.append(time.monotonic_ns() - due)
    return taken


def _follow(
    line: Line, words: TopicWords, offset: int, stop: threading.Event
) -> list[tuple[int, int]]:
    """(due, lateness) in ns of every record from `offset` on. Answers of one size have one form, and the first of them
    is read: what this process does with an answer delays the others that have arrived.
    """
    rows: list[tuple[int, int]] = []
    poll, buffer = build_poll(words, FETCH_BYTES), line.buffer
    places: dict[int, list[int]] = {}
    while not stop.is_set():
        poll.stamp(offset)
        size = line.call(poll.frame)
        now = time.monotonic_ns()
        if not places.get(size):  # one without records may be an error, and is always read
            places[size] = _find_batches(bytes(buffer[:size]))
        for at in places[size]:
            if STAMP.unpack_from(buffer, at) != (offset,):
                raise Wrong(
                    f"a tailing Fetch from {offset} was answered with {bytes(buffer[at : at + 8])!r}"
                )
            offset += LAST_DELTA.unpack_from(buffer, at + LAST_DELTA_AT)[0] + 1
            (due,) = STAMP.unpack_from(buffer, at + VALUE_AT)
            rows.append((due, now - due))
    return rows


def _find_batches(frame: bytes) -> list[int]:
    """Where each batch of an answer begins."""
    found = []
    for said in fetch.scan_response(frame, FETCH_VERSION).partitions:
        if said.error_code or said.start < 0:
            raise Wrong(f"a tailing Fetch failed: {said}")
        found += [one.start for one in batch.scan_batches(frame, said.start, said.end)]
    return found


def tail_librdkafka(arm: Arm, broker_pid: int, topic: str, rate: float, seconds: float) -> Figures:
    """A producer (acks=all, no linger) and one consumer, both librdkafka's."""
    late: list[tuple[int, int]] = []
    acknowledged: list[int] = []
    stop, ready = threading.Event(), threading.Event()
    consumer = Consumer({"bootstrap.servers": arm.address, "group.id": "ladder", "log_level": 3})
    consumer.assign([TopicPartition(topic, 0, OFFSET_END)])

    def read() -> None:
        while not stop.is_set():
            message = consumer.poll(0.05)
            ready.set()
            if message is not None and message.error() is None:
                (due,) = STAMP.unpack_from(message.value() or b"")
                late.append((due, time.monotonic_ns() - due))

    reader = threading.Thread(target=read)
    reader.start()
    producer = Producer(
        {"bootstrap.servers": arm.address, "acks": "all", "linger.ms": 0, "log_level": 3}
    )
    producer.list_topics(topic, timeout=20)
    ready.wait(20)
    time.sleep(SKIP_S)
    meter, begun = Meter(arm.pid, broker_pid), time.monotonic_ns()
    payload = bytes(RECORD_BYTES - STAMP.size)

    def noted(due: int, error: object, _message: object) -> None:
        if error is None:
            acknowledged.append(time.monotonic_ns() - due)

    for i in range(int(rate * seconds)):
        due = begun + int(i / rate * 1e9)
        while (ahead := due - time.monotonic_ns()) > 0:
            producer.poll(min(ahead / 1e9, 0.001))
        producer.produce(topic, STAMP.pack(due) + payload, on_delivery=partial(noted, due))
    producer.flush(20)
    elapsed_s, cpu_s, broker_s = meter.stop()
    time.sleep(0.2)
    stop.set()
    reader.join()
    consumer.close()
    came = [ns for due, ns in late if due >= begun + SKIP_S * 1e9]
    if not came or len(acknowledged) < rate * seconds * 0.99:
        raise Wrong(
            f"{arm.name}: librdkafka got {len(acknowledged)} acknowledgements, {len(came)} records"
        )
    figures = _late("end_to_end", came) | _late("ack", acknowledged)
    return figures | {
        "cpu_ms_per_s": cpu_s * 1e3 / elapsed_s,
        "broker_ms_per_s": broker_s * 1e3 / elapsed_s,
    }
