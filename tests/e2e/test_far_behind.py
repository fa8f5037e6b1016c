"""One consumer, one partition half a gigabyte behind, another at the tail: the tail's latency stays the tail's.

A librdkafka consumer in a group reads both through Forebay, while what it does with the far one changes: it reads
on, seeks back, pauses, is joined by another member, gets it back. Latency is from the producer's call to the
application. Far fetches are small, so that the far partition stays far behind for all of a phase. A phase that does not
hold is measured again, and so is the tail alone: a busy machine passes, a tail that waits for others does not.
"""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.kit.broker.topics import create_topic
from tests.kit.sidecar import PATIENT_CACHE, Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from confluent_kafka import Message

pytestmark = [pytest.mark.e2e, pytest.mark.alone]

FAR, TAIL = 0, 1
RECORD_BYTES = 1 << 14
BEHIND_BYTES = 1 << 29
RECORDS = BEHIND_BYTES // RECORD_BYTES
EVERY_S = 0.02
PHASE_S = 1.5
PATIENCE_S = 60.0
MOST_BEHIND_S, MOST_SHARE = 0.03, 3.0
"""The median beside the far partition: this much more than without it, or this many times."""
LONGEST_S = 1.5
"""Of one record, where no rebalance is: a poll with nothing to say would hold it for longer."""


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(settings={"cache": PATIENT_CACHE | {"size": "64MiB"}}, shared=proxied) as running:
        yield running


@pytest.fixture(scope="module")
def topic(pair: Pair) -> str:
    name = create_topic(pair.direct, partitions=2)
    options = {"bootstrap.servers": pair.direct, "linger.ms": 20, "batch.size": 65_536}
    producer = Producer(options | {"queue.buffering.max.kbytes": 1 << 17})
    for _ in range(RECORDS):
        while True:
            try:
                producer.produce(name, bytes(RECORD_BYTES), partition=FAR)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0
    return name


class Ticker(threading.Thread):
    """Writes the time to the tail partition again and again, through Forebay."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._topic = topic
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(EVERY_S):
            self._producer.produce(self._topic, f"{time.monotonic():.6f}".encode(), partition=TAIL)
            self._producer.poll(0)
        self._producer.flush(20)

    def finish(self) -> None:
        self._over.set()
        self.join(30)


class Reader:
    """One member. `delays_s`: of each of the tail's records, as it came; `far`: the offsets of the other partition."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 500,
                "queued.max.messages.kbytes": 4096,
                "fetch.queue.backoff.ms": 10,
                "fetch.message.max.bytes": 65_536,
                "session.timeout.ms": 6000,
            }
        )
        self._topic = topic
        self.group = group
        self.delays_s: list[float] = []
        self.far: list[int] = []
        self.consumer.subscribe([topic])

    def read(self, until: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + patience_s
        while not until():
            assert time.monotonic() < deadline, (len(self.far), len(self.delays_s))
            for message in self.consumer.consume(100, 0.05):
                self._take(message)

    def _take(self, message: Message) -> None:
        if message.error() is not None:
            return
        if message.partition() == TAIL:
            self.delays_s.append(time.monotonic() - float(message.value() or b"0"))
        else:
            self.far.append(message.offset() or 0)

    def phase(self) -> list[float]:
        """The tail's delays over PHASE_S, after what was on its way has been read."""
        self.read_for(0.5)
        self.delays_s.clear()
        self.read_for(PHASE_S)
        return self.delays_s.copy()

    def read_for(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        self.read(lambda: time.monotonic() >= ends, seconds + PATIENCE_S)

    def pause_often(self) -> None:
        """The far partition pauses and goes on, six times."""
        for _ in range(6):
            self.consumer.pause([self.far_place()])
            self.read_for(0.3)
            self.consumer.resume([self.far_place()])
            self.read_for(0.3)

    def has(self, *partitions: int) -> bool:
        return {one.partition for one in self.consumer.assignment()} >= set(partitions)

    def far_place(self, offset: int = -1001) -> TopicPartition:
        return TopicPartition(self._topic, FAR, offset)


def find_wrong(delays_s: list[float], alone: list[float]) -> str:
    """How the tail's delays are worse than those of a phase without the far partition; empty if they are not."""
    if len(delays_s) <= len(alone) / 2 or not alone:
        return f"{len(delays_s)} records, alone {len(alone)}"
    median_s, alone_s = statistics.median(delays_s), statistics.median(alone)
    if median_s >= max(alone_s * MOST_SHARE, alone_s + MOST_BEHIND_S):
        return f"median {median_s} s, alone {alone_s} s"
    if max(delays_s) >= max(LONGEST_S, MOST_SHARE * max(alone)):
        return f"{max(delays_s)} s, alone {max(alone)} s"
    return ""


@dataclass
class Members:
    """Who reads the tail, who has the far partition, and the last phase in which only the tail was read."""

    tailing: Reader
    far: Reader
    alone: list[float] = field(default_factory=list)

    def measure_alone(self) -> None:
        """The far partition pauses meanwhile, and is read from its start afterwards."""
        self.far.consumer.pause([self.far.far_place()])
        self.far.consumer.seek(self.far.far_place(0))
        self.alone = self.tailing.phase()
        self.far.consumer.resume([self.far.far_place()])

    def check_tail(self, what: str, change: Callable[[], None] = lambda: None) -> None:
        """After `change`, the tail is as fast as alone: within PATIENCE_S, both are measured again and again."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            change()
            wrong = find_wrong(self.tailing.phase(), self.alone)
            if not wrong:
                return
            assert time.monotonic() < deadline, f"{what}: {wrong}"
            self.measure_alone()


def test_the_tail_stays_the_tail_beside_a_partition_far_behind(pair: Pair, topic: str) -> None:
    ticker = Ticker(pair.through, topic)
    ticker.start()
    reader = Reader(pair.through, topic, f"far-{time.time_ns()}")
    members = Members(reader, reader)
    try:
        reader.read(lambda: reader.has(FAR, TAIL) and len(reader.far) > 0)
        members.measure_alone()
        assert pair.sidecar.fetch_counts("partitions").get(("hit", ""), 0) > 0

        members.check_tail("reading on", reader.far.clear)
        assert reader.far and reader.far[-1] < RECORDS - 1, "it is read, and still behind"

        def seek_back() -> None:
            reader.consumer.seek(reader.far_place(0))
            reader.far.clear()

        members.check_tail("after a seek", seek_back)
        assert reader.far == list(range(len(reader.far))), "in order, no hole"
        assert 0 < len(reader.far) < RECORDS

        members.check_tail("after pauses", reader.pause_often)
        check_rebalance(pair, topic, members)
    finally:
        ticker.finish()
        reader.consumer.close()


def check_rebalance(pair: Pair, topic: str, members: Members) -> None:
    """Another member comes and takes one of the two, and goes; whoever has the tail gets it in time."""
    reader = members.tailing
    (tail,) = reader.consumer.position([TopicPartition(topic, TAIL)])
    reader.consumer.commit(offsets=[reader.far_place(0), tail], asynchronous=False)
    other = Reader(pair.through, topic, reader.group)
    both = (reader, other)
    deadline = time.monotonic() + PATIENCE_S
    while not all(len(one.consumer.assignment()) == 1 for one in both):
        assert time.monotonic() < deadline
        for one in both:
            one.read_for(0.1)
    tailing, far = both if reader.has(TAIL) else both[::-1]
    beside = Members(tailing, far, members.alone)
    beside.check_tail("after a member came")
    other.consumer.close()
    reader.read(lambda: reader.has(FAR, TAIL))
    reader.read_for(1)
    Members(reader, reader, beside.alone).check_tail("after it went")
