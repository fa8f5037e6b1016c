"""`python -m bench.pollution.tailing`: one consumer group at the end of the topic, end-to-end latency.

Owns one librdkafka consumer in a group of its own. Must not know Forebay or phases. Invariants: it stands at
the end before the first record is due; latency is from when the record was *due* to when the application has
it; while it pauses it stays a member of its group; rows are (due, latency) in ns.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from array import array
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition

from bench.pollution.producing import DRAIN_S, STAMP
from bench.pollution.series import write_rows

BATCH = 500
POLL_S = 0.05


def tail(options: argparse.Namespace) -> array[int]:
    """Read until every record due before the end has come, or the time to wait for it is over."""
    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap,
            "client.id": options.client,
            "group.id": f"{options.client}-{options.start_ns}",
            "auto.offset.reset": "latest",
            "enable.auto.commit": True,
            "auto.commit.interval.ms": 5000,
            "fetch.wait.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 300_000,
        }
    )
    consumer.subscribe([options.topic])
    rows = array("q")
    pause_ns, resume_ns = options.pause_ns or options.end_ns * 2, options.resume_ns
    stop_ns = options.end_ns + int(DRAIN_S * 1e9)
    paused: list[TopicPartition] = []
    last_ns = 0
    while time.monotonic_ns() < stop_ns and last_ns < options.end_ns - 50_000_000:
        first = consumer.poll(POLL_S)  # consume() would wait for a whole batch
        now_ns = time.monotonic_ns()
        messages = [first, *consumer.consume(BATCH, 0)] if first is not None else []
        for message in messages:
            if message.error() is None and message.key() is not None:
                (due_ns,) = STAMP.unpack(message.key() or b"")
                if due_ns >= options.start_ns:
                    rows.extend((due_ns, now_ns - due_ns))
                    last_ns = due_ns
        if not paused and pause_ns <= now_ns < resume_ns:
            paused = consumer.assignment()
            consumer.pause(paused)
        elif paused and now_ns >= resume_ns:
            consumer.resume(paused)
            wake(consumer, paused[0])
            paused, pause_ns = [], stop_ns
    return rows


def wake(consumer: Consumer, partition: TopicPartition) -> None:
    """The library may sleep for a second before it fetches what is paused no more: ask it for something."""
    with contextlib.suppress(KafkaException):
        consumer.get_watermark_offsets(partition, timeout=POLL_S)


def main() -> None:
    """The arguments come from lab.py."""
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "topic", "client"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("start-ns", "end-ns", "pause-ns", "resume-ns"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    write_rows(options.out, tail(options))
    os._exit(0)  # leaving the group may hang where the broker does


if __name__ == "__main__":
    main()
