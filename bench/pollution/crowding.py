"""`python -m bench.pollution.crowding`: many producers of one topic, each sending now and then.

Owns librdkafka producers in one process, as many as asked. Must not know what becomes of the topic. Invariant:
rows are (due, waited, 1 if acknowledged) in ns, one for every record, those never answered too.
"""

from __future__ import annotations

import argparse
import os
import time
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from bench.pollution.series import NS, write_rows

if TYPE_CHECKING:
    from collections.abc import Callable

DRAIN_S = 3.0
PAYLOAD_BYTES = 1024


def crowd(options: argparse.Namespace) -> array[int]:
    """Send until the end, then wait a little for the last answers."""
    rows = array("q")
    pending: set[tuple[int, int]] = set()
    payload = os.urandom(PAYLOAD_BYTES)

    def answered(number: int, due_ns: int) -> Callable[[object, object], None]:
        def note(error: object, _message: object) -> None:
            if error is None:
                pending.discard((number, due_ns))
                rows.extend((due_ns, time.monotonic_ns() - due_ns, 1))

        return note

    producers = [
        Producer(
            {
                "bootstrap.servers": options.bootstrap,
                "client.id": f"crowd-{number}",
                "acks": "all",
                "linger.ms": 0,
                "message.timeout.ms": 300_000,
                "request.timeout.ms": 120_000,
            }
        )
        for number in range(options.producers)
    ]
    interval_ns = NS // options.rate
    due_ns = options.start_ns
    while due_ns < options.end_ns:
        while time.monotonic_ns() < due_ns:
            for producer in producers:
                producer.poll(0)
            time.sleep(0.01)
        for number, producer in enumerate(producers):
            pending.add((number, due_ns))
            producer.produce(
                options.topic, payload, partition=0, on_delivery=answered(number, due_ns)
            )
        due_ns += interval_ns
    deadline = time.monotonic() + DRAIN_S
    while pending and time.monotonic() < deadline:
        for producer in producers:
            producer.poll(0.01)
    now_ns = time.monotonic_ns()
    for _, sent_ns in pending:
        rows.extend((sent_ns, now_ns - sent_ns, 0))
    return rows


def main() -> None:
    """The arguments come from isolating.py."""
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "topic"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("producers", "rate", "start-ns", "end-ns"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    write_rows(options.out, crowd(options))
    os._exit(0)


if __name__ == "__main__":
    main()
