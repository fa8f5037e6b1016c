"""Exactly-once pipelines through Forebay: every committed record once, no aborted one, from memory, and as soon.

Real clients on both sides: librdkafka (transactions V1) and Java (V2, KIP-890: each transaction has its own
epoch). What a consumer past Forebay reads of the same partition is the measure.
"""

from __future__ import annotations

import random
import threading
import time
from statistics import median
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from protocol.batch import is_control, scan_batches
from tests.e2e.transactional import MOST, TIMEOUT_S, Writer, tailing
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import read_all
from tests.kit.sidecar import PATIENT_CACHE, Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.e2e

LAST = b"last"
SEED, RANDOM_S = 61, 20.0
SLOWER_S = 0.05
"""By how much the median of a consumer through Forebay may be later: a noisy machine's bound."""


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(settings={"cache": PATIENT_CACHE}, shared=proxied) as running:
        yield running


class Reading:
    """A librdkafka consumer of partition 0 from the start, on a thread, until it reads `LAST`."""

    def __init__(self, bootstrap: str, topic: str, isolation_level: str = "read_committed") -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "isolation.level": isolation_level,
                "auto.offset.reset": "error",
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self.records: list[tuple[int, bytes]] = []
        self.seen_at: list[float] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        deadline = time.monotonic() + 3 * TIMEOUT_S
        while time.monotonic() < deadline:
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                offset, value = message.offset(), message.value()
                assert offset is not None and value is not None
                self.records.append((offset, value))
                self.seen_at.append(time.monotonic())
                if message.value() == LAST:
                    break
        self._consumer.close()

    def result(self) -> list[tuple[int, bytes]]:
        """What was read, (offset, value), once the last has come."""
        self._thread.join()
        assert self.records[-1][1] == LAST, f"{len(self.records)} records"
        return self.records


def write_last(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, LAST, partition=0)
    assert producer.flush(TIMEOUT_S) == 0


def values(records: list[tuple[int, bytes]]) -> list[bytes]:
    return [value for _, value in records]


def check_hits(pair: Pair, before: dict[tuple[str, str], float]) -> None:
    counts = {key: size - before.get(key, 0) for key, size in pair.sidecar.fetch_counts().items()}
    assert counts["hit", ""] >= MOST * sum(counts.values()), counts


class Copier:
    """Consume, transform, produce, with offsets in the transaction (KIP-447)."""

    def __init__(self, bootstrap: str, source: str, target: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"copy-{source}",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        self._consumer.subscribe([source])
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"copy-{source}", "linger.ms": 0}
        )
        self._producer.init_transactions(TIMEOUT_S)
        self._target = target
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        turn = 0
        while not self._enough.is_set():
            messages = [one for one in self._consumer.consume(20, 0.05) if one.error() is None]
            if not messages:
                continue
            turn += 1
            for attempt in (0, 1):
                self._producer.begin_transaction()
                for one in messages:
                    self._producer.produce(
                        self._target, b"copy of " + (one.value() or b""), partition=0
                    )
                self._producer.send_offsets_to_transaction(
                    self._consumer.position(self._consumer.assignment()),
                    self._consumer.consumer_group_metadata(),
                    TIMEOUT_S,
                )
                if attempt == 0 and turn % 4 == 0:
                    self._producer.flush(TIMEOUT_S)
                    self._producer.abort_transaction(TIMEOUT_S)
                    continue
                self._producer.commit_transaction(TIMEOUT_S)
                break
        self._consumer.close()

    def stop(self) -> None:
        self._enough.set()
        self._thread.join()


def test_a_pipeline_is_served_from_memory_and_as_soon(pair: Pair) -> None:
    run_pipeline(pair, 60)


def test_a_pipeline_on_an_older_broker(proxied_39: ProxiedBroker) -> None:
    with Pair(settings={"cache": PATIENT_CACHE}, shared=proxied_39) as old:
        run_pipeline(old, 30)


def run_pipeline(pair: Pair, turns: int) -> None:
    source, target = create_topic(pair.direct), create_topic(pair.direct)
    copier = Copier(pair.through, source, target)
    through, direct, control = (
        Reading(address, target) for address in (pair.through, pair.direct, pair.direct)
    )
    writer = Writer(pair.through, source, "feed")
    try:
        for turn in range(
            12
        ):  # what comes before the codec and the clients' rights are known is the broker's
            writer.write(1)
            writer.end(commits=True)
            time.sleep(0.1 if turn < 10 else 0.5)
        before = pair.sidecar.fetch_counts()
        for turn in range(turns):
            writer.write(4)
            writer.end(commits=turn % 5 != 0)
            time.sleep(0.05)
        check_hits(pair, before)
        deadline = time.monotonic() + TIMEOUT_S
        while len(direct.records) < len(writer.committed) and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        copier.stop()
        write_last(pair.direct, target)
    assert values(through.result()) == [*(b"copy of " + value for value in writer.committed), LAST]
    assert direct.result() == through.records
    assert control.result() == through.records
    later_s = median(
        one - other for one, other in zip(through.seen_at, direct.seen_at, strict=True)
    )
    apart_s = median(
        abs(one - other) for one, other in zip(control.seen_at, direct.seen_at, strict=True)
    )
    assert later_s < max(SLOWER_S, 4 * apart_s), (
        f"a record is seen {1000 * later_s:.1f} ms later than past Forebay, where two readers there are"
        f" {1000 * apart_s:.1f} ms apart"
    )


def test_java_copies_with_transactions_of_version_two(pair: Pair) -> None:
    source = create_topic(pair.direct)
    producer = Producer({"bootstrap.servers": pair.through})
    lines = [b"line %d " % number + b"x" * 100 for number in range(600)]
    for line in lines:
        producer.produce(source, line, partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    with tailing(pair) as tail:
        where = ("--input-topic", source, "--input-partition", "0", "--output-topic", tail.topic)
        how = (
            "--transaction-size",
            "20",
            "--transactional-id",
            f"copy-{source}",
            "--enable-random-aborts",
        )
        pair.broker.tool(
            "org.apache.kafka.tools.TransactionalMessageCopier",
            *("--broker-list", pair.through, "--consumer-group", f"copy-{source}"),
            *(*where, *how, "--max-messages", str(len(lines)), "--use-group-metadata"),
        )
        tail.check(listed=1, most=0.5)
        topic = tail.topic
    raw = read_all(pair.direct, topic)
    batches = scan_batches(raw, 0, len(raw))
    assert len({one.producer_epoch for one in batches if not is_control(one.attributes)}) > 10
    printed = pair.broker.tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", pair.through, "--topic", topic, "--from-beginning"),
        *(
            "--isolation-level",
            "read_committed",
            "--max-messages",
            str(len(lines)),
            "--timeout-ms",
            "30000",
        ),
    )
    assert printed.encode().splitlines() == lines
    write_last(pair.through, topic)
    through, direct = (Reading(address, topic) for address in (pair.through, pair.direct))
    assert values(through.result()) == [*lines, LAST]
    assert direct.result() == through.records


def run_until(deadline: float, act: Callable[[], None]) -> threading.Thread:
    def run() -> None:
        while time.monotonic() < deadline:
            act()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def act_at_random(writer: Writer, draw: random.Random) -> Callable[[], None]:
    def act() -> None:
        step = draw.random()
        if step < 0.6:
            writer.write(draw.randint(1, 5), b"v" * draw.randint(1, 2000))
        elif step < 0.98:
            writer.end(commits=draw.random() < 0.6)
        else:
            writer.renew()
        time.sleep(draw.random() * 0.03)

    return act


def test_at_random(pair: Pair) -> None:
    """Transactions, fences and plain records of several producers, some of them past Forebay."""
    topic = create_topic(pair.direct)
    readings = [
        Reading(pair.through, topic),
        Reading(pair.through, topic, "read_uncommitted"),
        Reading(pair.direct, topic),
    ]
    writers = [
        Writer(address, topic, f"w{number}")
        for number, address in enumerate((pair.through, pair.through, pair.direct))
    ]
    plain: list[bytes] = []
    producer = Producer({"bootstrap.servers": pair.through, "enable.idempotence": True})

    def write_plain() -> None:
        plain.append(b"plain %d" % len(plain))
        producer.produce(topic, plain[-1], partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        time.sleep(0.02)

    before = pair.sidecar.fetch_counts()
    until = time.monotonic() + RANDOM_S
    draws = [random.Random(SEED + number) for number in range(len(writers))]
    threads = [
        run_until(until, act_at_random(writer, draw))
        for writer, draw in zip(writers, draws, strict=True)
    ]
    for thread in (*threads, run_until(until, write_plain)):
        thread.join()
    for writer in writers:
        writer.end(commits=True)
    write_last(pair.through, topic)
    committed, all_of_it, direct = (reading.result() for reading in readings)
    assert committed == direct
    wanted = [*(value for writer in writers for value in writer.committed), *plain, LAST]
    assert sorted(values(committed)) == sorted(wanted)
    chosen = set(wanted)
    assert committed == [record for record in all_of_it if record[1] in chosen]
    reread = Reading(pair.direct, topic, "read_uncommitted").result()
    assert all_of_it == reread
    check_hits(pair, before)
