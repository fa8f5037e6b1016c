"""Clients that work all the time: a producer and tailing consumers, and readers of history.

Owns their threads. Must not know which Forebay they speak to. Invariant: a failure is waited out, since faults are what
the test makes; threads end within seconds of `close`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Self

from confluent_kafka import Consumer, KafkaException, Producer

from tests.kit.raw_fetch import FetchFailed, RawClient, RawReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RECORD = b"v" * 10_000
RECORDS_A_SECOND = 100
PAUSE_S = 0.2
"""Between the Fetches of a patient reader."""


class Worker(threading.Thread):
    """Calls `work` again and again until `close`; errors of the network are waited out."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._over.is_set():
            try:
                self._work()
            except (OSError, FetchFailed, TimeoutError, KafkaException, AssertionError):
                self._over.wait(0.2)

    def close(self) -> None:
        """End it after the present call."""
        self._over.set()
        self.join(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_producer(
    bootstrap: str,
    topic: str,
    options: Mapping[str, object] | None = None,
    records_a_second: int = RECORDS_A_SECOND,
) -> Worker:
    """So many records of 10 KB a second to `topic`."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0, **(options or {})}
    )

    def work() -> None:
        began_at = time.monotonic()
        for _ in range(records_a_second // 10):
            with contextlib.suppress(BufferError):
                producer.produce(topic, RECORD)
        producer.poll(0)
        time.sleep(max(0.0, 0.1 - (time.monotonic() - began_at)))

    return Worker(work)


def start_consumer(
    bootstrap: str, topic: str, group: str, options: Mapping[str, object] | None = None
) -> Worker:
    """Tails `topic`."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "latest",
            "log_level": 0,
            "log.connection.close": False,
            **(options or {}),
        }
    )
    consumer.subscribe([topic])
    return Worker(lambda: consumer.consume(500, 0.2))


class History:
    """Reads a topic from its beginning, again and again, on a connection of its own."""

    def __init__(self, address: str, topic: str, max_bytes: int = 400_000) -> None:
        self._address, self._topic, self._max_bytes = address, topic, max_bytes
        self._reader: RawReader | None = None

    def read(self) -> None:
        """One Fetch; the next one begins anew after the end, or after an error."""
        try:
            if self._reader is None:
                client = RawClient(self._address, "history", timeout_s=5)
                self._reader = RawReader(client, self._topic, max_bytes=self._max_bytes)
            reader = self._reader
            reader.raw.clear()
            reader.poll(50)
            if reader.offset >= reader.high_watermark:
                reader.offset = 0
        except BaseException:
            if self._reader is not None:
                self._reader.client.close()
            self._reader = None
            raise


def start_history(address: str, topic: str, readers: int, pause_s: float = PAUSE_S) -> list[Worker]:
    """So many readers of history, which rest for `pause_s` between Fetches."""

    def build() -> Worker:
        history = History(address, topic)

        def work() -> None:
            history.read()
            time.sleep(pause_s)

        return Worker(work)

    return [build() for _ in range(readers)]
