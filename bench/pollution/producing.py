"""`python -m bench.pollution.producing`: records on a schedule, or the backlog as fast as it goes.

Owns one librdkafka producer (acks=all) and what each record's acknowledgement cost from the moment it was
*due*: a stall counts for every record it delays. Must not know Forebay or phases. Invariants: it never waits
for answers before sending what is due; records that no answer came for are written with the time they have
waited so far, so that a hang cannot improve a figure; rows are (due, waited, 1 if acknowledged) in ns.
"""

from __future__ import annotations

import argparse
import os
import time
from array import array
from pathlib import Path
from struct import Struct

from confluent_kafka import KafkaException, Message, Producer

from bench.pollution.series import NS, write_rows

STAMP = Struct(">q")
STICKY = 25  # records to one partition in a row, as a partitioner that fills batches does
TICK_S = 0.002
DRAIN_S = 10.0
QUEUE_KIB = 2 << 20
FULL_S = 0.01


class Schedule:
    """Sends `rate` records a second from `start_ns` to `end_ns`; `rows` is what became of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rows = array("q")
        self._pending: set[int] = set()
        self._payload = os.urandom(options.size)
        self._producer = Producer(
            {
                "bootstrap.servers": options.bootstrap,
                "client.id": options.client,
                "acks": "all",
                "linger.ms": 5,
                "queue.buffering.max.kbytes": QUEUE_KIB - 1,
                "queue.buffering.max.messages": 2_000_000,
                "message.timeout.ms": 300_000,
                "request.timeout.ms": 120_000,
            }
        )

    def run(self) -> None:
        """To the end, and `DRAIN_S` more for the last answers."""
        interval_ns = NS // self.options.rate
        start_ns, count = self.options.start_ns, 0
        total = (self.options.end_ns - start_ns) // interval_ns
        self._producer.list_topics(
            self.options.topic, timeout=30
        )  # connected before the first is due
        while count < total:
            due_count = min((time.monotonic_ns() - start_ns) // interval_ns + 1, total)
            while count < due_count:
                self._send(start_ns + count * interval_ns, count)
                count += 1
            self._producer.poll(TICK_S)
        deadline = time.monotonic() + DRAIN_S
        while self._pending and time.monotonic() < deadline:
            self._producer.poll(0.05)
        now_ns = time.monotonic_ns()
        for due_ns in self._pending:
            self.rows.extend((due_ns, now_ns - due_ns, 0))

    def _send(self, due_ns: int, number: int) -> None:
        partition = number // STICKY % self.options.partitions
        self._pending.add(due_ns)
        while True:
            try:
                self._producer.produce(
                    self.options.topic,
                    self._payload,
                    key=STAMP.pack(due_ns),
                    partition=partition,
                    on_delivery=self._delivered,
                )
                return
            except BufferError:
                self._producer.poll(FULL_S)

    def _delivered(self, error: object, message: Message) -> None:
        (due_ns,) = STAMP.unpack(message.key() or b"")
        if error is None:
            self._pending.discard(due_ns)
            self.rows.extend((due_ns, time.monotonic_ns() - due_ns, 1))


def fill(options: argparse.Namespace) -> None:
    """`size_bytes` of old records, as fast as the broker takes them. KafkaException: it did not."""
    payload = os.urandom(options.size)
    producer = Producer(
        {
            "bootstrap.servers": options.bootstrap,
            "client.id": options.client,
            "acks": 1,
            "linger.ms": 50,
            "batch.size": 512 << 10,
            "queue.buffering.max.kbytes": 128 << 10,
            "message.timeout.ms": 300_000,
        }
    )
    for number in range(options.fill_bytes // options.size):
        while True:
            try:
                producer.produce(options.topic, payload, partition=number % options.partitions)
                break
            except BufferError:
                producer.poll(FULL_S)
    if producer.flush(300):
        raise KafkaException("the backlog was not taken")


def main() -> None:
    """The arguments come from lab.py."""
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "topic", "client"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("partitions", "size", "rate", "start-ns", "end-ns", "fill-bytes"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.fill_bytes:
        fill(options)
        return
    schedule = Schedule(options)
    schedule.run()
    write_rows(options.out, schedule.rows)
    os._exit(0)  # what is still queued in the client is counted already


if __name__ == "__main__":
    main()
