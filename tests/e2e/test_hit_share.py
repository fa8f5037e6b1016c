"""Groups of librdkafka consumers at the tail of many hot partitions: more than 99.9 % of bytes come from memory.

The consumers have no fetch sessions, so that each Fetch names all partitions. The producer writes a record to each
partition, waits for the acknowledgements, and writes the next: no clock decides how fast. Settings are the defaults.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

import pytest
from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

from tests.kit.broker.topics import create_topic
from tests.kit.sidecar import Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from confluent_kafka import KafkaError, Message

pytestmark = pytest.mark.e2e

GROUPS = 3
RECORD_BYTES = 1000
RECORDS = 3000
LEAST_SHARE, LEAST_DISTURBED_SHARE = 0.999, 0.98
PHASES = 4
PATIENCE_S = 120.0
POLL_S = 0.05


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(shared=proxied) as running:
        yield running


class Group:
    """A consumer of all partitions, from their ends, in a thread of its own. `ends`: the offset behind the last record
    read of each partition, -1 before the first.
    """

    def __init__(self, address: str, topic: str, partitions: int, number: int) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": address, "group.id": f"group-{number}", "log_level": 0}
        )
        self._consumer.assign([TopicPartition(topic, i, OFFSET_END) for i in range(partitions)])
        self.ends = [-1] * partitions
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        while not self._ended.is_set():
            for message in self._consumer.consume(500, POLL_S):
                assert message.error() is None, message.error()
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                self.ends[partition] = offset + 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._consumer.close()


class Writer:
    """A producer with acks=all. `ends`: the offset behind the last acknowledged record of each partition."""

    def __init__(self, address: str, topic: str, partitions: int) -> None:
        self._producer = Producer(
            {"bootstrap.servers": address, "acks": "all", "linger.ms": 5, "log_level": 0}
        )
        self._topic = topic
        self.ends = [0] * partitions

    def write_round(self) -> None:
        """One record to each partition, all acknowledged."""
        for partition in range(len(self.ends)):
            self._producer.produce(
                self._topic, bytes(RECORD_BYTES), partition=partition, on_delivery=self._note
            )
        assert self._producer.flush(PATIENCE_S) == 0

    def _note(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        self.ends[partition] = offset + 1


def bring_to_tail(writer: Writer, groups: list[Group]) -> None:
    """Write until each group has read from every partition, and stands at the end of all."""
    deadline = time.monotonic() + PATIENCE_S
    while any(min(group.ends) < 0 for group in groups):
        assert time.monotonic() < deadline, "a group does not come to the tail"
        writer.write_round()
        time.sleep(POLL_S)
    wait_until_read(writer, groups)


def wait_until_read(writer: Writer, groups: list[Group]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while any(group.ends != writer.ends for group in groups):
        assert time.monotonic() < deadline, "not all has been read"
        time.sleep(POLL_S)


def measure_share(pair: Pair, writer: Writer, groups: list[Group]) -> float:
    """The share of bytes from memory while RECORDS are written and read; prints the counts of each reason."""
    before = pair.sidecar.fetch_counts()
    for _ in range(RECORDS // len(writer.ends)):
        writer.write_round()
    wait_until_read(writer, groups)
    grown = {key: size - before.get(key, 0) for key, size in pair.sidecar.fetch_counts().items()}
    lapses = pair.sidecar.metrics()["forebay_watch_lease_lapses_total",]
    print(f"{len(writer.ends)} partitions: {grown}, lease lapses so far: {lapses}")
    return grown["hit", ""] / sum(grown.values())


@pytest.mark.parametrize("partitions", [48, 300])
def test_tail_of_many_partitions_is_read_from_memory(pair: Pair, partitions: int) -> None:
    """Where the machine keeps Forebay from a processor for a second, leases lapse, and the broker is asked: a phase in
    which this happened is measured anew.
    """
    topic = create_topic(pair.direct, partitions=partitions)
    writer, shares = Writer(pair.through, topic, partitions), [0.0]
    with ExitStack() as stack:
        groups = [
            stack.enter_context(Group(pair.through, topic, partitions, number))
            for number in range(GROUPS)
        ]
        bring_to_tail(writer, groups)
        while shares[-1] <= LEAST_SHARE and len(shares) <= PHASES:
            shares.append(measure_share(pair, writer, groups))
    assert pair.sidecar.metrics()["forebay_fetch_repeated_total",] > partitions, (
        "librdkafka has no fetch sessions: nearly all of its Fetches name what the one before named"
    )
    assert shares[-1] > LEAST_SHARE, shares
    assert min(shares[1:]) > LEAST_DISTURBED_SHARE, shares
