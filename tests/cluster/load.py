"""The clients of the cluster tests: a producer (acks=all) and a consumer group in one pod. [socket]

Runs in Forebay's image, which has aiokafka. Owns what was sent, acknowledged and read, and what the clients saw.
Must not import the repository: the pod gets this one file. Invariants:
* each record has a number; numbers are acknowledged, then read; an acknowledged number that is never read is lost.
* at most UNACKNOWLEDGED records wait for their acknowledgement.
* it tells its state in the file `status.json` of its directory, and takes orders by files there: `mark-N` begins a new
  window of measurement, `stop` ends the producer.
"""

import asyncio
import contextlib
import json
import logging
import os
import ssl
import time
from collections import Counter
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError

UNACKNOWLEDGED = 2000
TELL_EVERY_S = 0.2
PATIENCE_MS = 180_000
"""As long as Java's delivery.timeout.ms (120 s) and one round of its requests: until then a send may be repeated."""


class Window:
    """What was seen since the last mark. Times in seconds."""

    def __init__(self) -> None:
        self.begun = self.last_acknowledged = self.last_read = time.monotonic()
        self.slowest = self.longest_silence = self.longest_unread = 0.0
        self.warnings: Counter[str] = Counter()

    def acknowledge(self, took: float) -> None:
        now = time.monotonic()
        self.slowest = max(self.slowest, took)
        self.longest_silence = max(self.longest_silence, now - self.last_acknowledged)
        self.last_acknowledged = now

    def read(self) -> None:
        now = time.monotonic()
        self.longest_unread = max(self.longest_unread, now - self.last_read)
        self.last_read = now


class Warnings(logging.Handler):
    """Counts the clients' own warnings and errors by their text before the details."""

    def __init__(self, load: "Load") -> None:
        super().__init__(logging.WARNING)
        self._load = load

    def emit(self, record: logging.LogRecord) -> None:
        self._load.window.warnings[str(record.msg)[:60]] += 1


class Load:
    """Both clients and their counts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.window = Window()
        self.mark = 0
        self.next = self.acknowledged = self.duplicates = 0
        self.failures: Counter[str] = Counter()
        self.unread: set[int] = set()
        self.seen: set[int] = set()
        self.waiting = asyncio.Semaphore(UNACKNOWLEDGED)
        self.sends: set[asyncio.Task[None]] = set()

    def tell(self) -> None:
        """Write the state."""
        window = self.window
        state = {
            "mark": self.mark,
            "sent": self.next,
            "acknowledged": self.acknowledged,
            "failures": self.failures,
            "unread": len(self.unread),
            "read": len(self.seen),
            "duplicates": self.duplicates,
            "slowest": window.slowest,
            "silence": window.longest_silence,
            "read_silence": window.longest_unread,
            "warnings": window.warnings,
        }
        fresh = self.directory / "status.new"
        fresh.write_text(json.dumps(state))
        fresh.replace(self.directory / "status.json")

    async def keep_telling(self) -> None:
        while True:
            if (self.directory / f"mark-{self.mark + 1}").exists():
                self.mark += 1
                self.window = Window()
            self.tell()
            await asyncio.sleep(TELL_EVERY_S)

    async def send(self, producer: AIOKafkaProducer, topic: str, number: int) -> None:
        begun = time.monotonic()
        try:
            await producer.send_and_wait(topic, b"%d" % number)
        except (KafkaError, OSError) as error:
            self.failures[type(error).__name__] += 1
        else:
            self.acknowledged += 1
            self.window.acknowledge(time.monotonic() - begun)
            if number not in self.seen:
                self.unread.add(number)
        finally:
            self.waiting.release()

    async def produce(self, producer: AIOKafkaProducer, topic: str, rate: float) -> None:
        due = time.monotonic()
        while not (self.directory / "stop").exists():
            await self.waiting.acquire()
            task = asyncio.create_task(self.send(producer, topic, self.next))
            self.next += 1
            self.sends.add(task)
            task.add_done_callback(self.sends.discard)
            due = max(due + 1 / rate, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
        await asyncio.gather(*self.sends)

    async def consume(self, consumer: AIOKafkaConsumer) -> None:
        async for record in consumer:
            number = int(record.value)
            self.window.read()
            if number in self.seen:
                self.duplicates += 1
            self.seen.add(number)
            self.unread.discard(number)


def build_security() -> dict[str, object]:
    """The clients' TLS, if CA_FILE names an authority."""
    authority = os.environ.get("CA_FILE")
    if not authority:
        return {}
    return {
        "security_protocol": "SSL",
        "ssl_context": ssl.create_default_context(cafile=authority),
    }


async def main() -> None:
    load = Load(Path(os.environ["DIRECTORY"]))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger().addHandler(Warnings(load))
    servers, topic = os.environ["BOOTSTRAP"], os.environ["TOPIC"]
    common = {"bootstrap_servers": servers, "retry_backoff_ms": 100, **build_security()}
    producer = AIOKafkaProducer(
        **common, acks="all", enable_idempotence=True, request_timeout_ms=PATIENCE_MS
    )
    consumer = AIOKafkaConsumer(
        topic,
        **common,
        group_id=os.environ.get("GROUP", "readers"),
        auto_offset_reset="earliest",
        metadata_max_age_ms=10_000,
    )
    await producer.start()
    await consumer.start()
    background = [asyncio.create_task(load.keep_telling())]
    background.append(asyncio.create_task(load.consume(consumer)))
    await load.produce(producer, topic, float(os.environ["RATE"]))
    await asyncio.gather(*background)  # until the pod is deleted


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
