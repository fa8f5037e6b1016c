"""Transactional producers, and a raw read_committed consumer whose every answer can be held against the broker's own.

Owns how a transaction is written, left open or fenced, and the comparison. It must not know Forebay. Producers are
librdkafka's: transactions V1 (KIP-98); Java's, of V2 (KIP-890), are driven by Kafka's tools in the tests.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import Producer

from protocol.batch import scan_batches
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, RawReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.kit.sidecar import Pair

COMMITTED = 1
TIMEOUT_S = 30
VALUE = b"v" * 200
MOST = 0.8
"""Share of the bytes that must have been hits."""


class Writer:
    """One transactional id on partition 0; a new producer of it fences the one before, whose transaction is aborted.
    `committed` are the values of committed transactions, `left` producers that were not closed.
    """

    def __init__(self, bootstrap: str, topic: str, name: str, **options: object) -> None:
        self.options: dict[str, object] = {
            "bootstrap.servers": bootstrap,
            "transactional.id": f"{topic}-{name}",
            "linger.ms": 0,
            "log_level": 2,  # those that are left open outlive their broker
        }
        self.options |= {key.replace("_", "."): value for key, value in options.items()}
        self.topic = topic
        self.name = name
        self.left: list[Producer] = []
        self.committed: list[bytes] = []
        self.pending: list[bytes] = []
        self.written = 0
        self.renew()

    def renew(self) -> None:
        """A new producer of the same transactional id."""
        self.producer = Producer(self.options)
        self.left.append(self.producer)
        self.producer.init_transactions(TIMEOUT_S)
        self.is_open = False
        self.pending = []

    def begin(self) -> None:
        """Begin a transaction where none is open."""
        if not self.is_open:
            self.producer.begin_transaction()
            self.is_open = True

    def write(self, count: int, value: bytes = VALUE) -> None:
        """`count` records, each in a batch of its own or several in one; they are acknowledged when this returns."""
        self.begin()
        for _ in range(count):
            self.pending.append(b"%s-%d-" % (self.name.encode(), self.written) + value)
            self.producer.produce(self.topic, self.pending[-1], partition=0)
            self.written += 1
        assert self.producer.flush(TIMEOUT_S) == 0

    def end(self, *, commits: bool) -> None:
        """Commit or abort what is open."""
        if self.is_open:
            end = self.producer.commit_transaction if commits else self.producer.abort_transaction
            end(TIMEOUT_S)
            self.committed += self.pending if commits else []
            self.pending = []
            self.is_open = False


class Answer(NamedTuple):
    """What one Fetch said, and the whole batches it brought; `end_offset` is behind the last."""

    fetch_offset: int
    end_offset: int
    high_watermark: int
    last_stable_offset: int
    aborted: list[tuple[int, int]] | None
    records: bytes


class CommittedReader(RawReader):
    """Walks a partition with read_committed, and keeps all that it was told."""

    def __init__(
        self, client: RawClient, topic: str, *, version: int = 13, offset: int = 0
    ) -> None:
        super().__init__(client, topic, version=version, offset=offset)
        self.answers: list[Answer] = []

    def poll(self, max_wait_ms: int = 0) -> int:
        """One Fetch; the bytes of whole batches it brought. FetchFailed."""
        asked = self.asked()
        ((said, records),) = self.client.fetch(
            self.version, [asked], max_wait_ms=max_wait_ms, isolation_level=COMMITTED
        )
        size_bytes = self.take(said, records)
        self.answers.append(
            Answer(
                asked.fetch_offset,
                self.offset,
                said.high_watermark,
                said.last_stable_offset,
                said.aborted,
                records[:size_bytes],
            )
        )
        return size_bytes

    @property
    def last_stable_offset(self) -> int:
        """As the last answer said."""
        return self.answers[-1].last_stable_offset

    def wait_stable(self, offset: int, max_wait_ms: int = 500) -> float:
        """Fetch until the LSO is at least `offset` and all below is read; how long it took, in seconds."""
        started = time.monotonic()
        while self.offset < offset or self.last_stable_offset < offset:
            assert time.monotonic() < started + TIMEOUT_S, self.answers[-1]
            self.poll(max_wait_ms)
        return time.monotonic() - started


def read_offsets(address: str, topic: str, offset: int = 0) -> tuple[int, int]:
    """HW and LSO of partition 0, as the broker says now to a Fetch of `offset`."""
    with RawClient(address, "raw-offsets") as client:
        reader = CommittedReader(client, topic, offset=offset)
        reader.poll()
        return reader.answers[-1].high_watermark, reader.answers[-1].last_stable_offset


def check_answers(direct: str, topic: str, answers: Sequence[Answer]) -> int:
    """Hold each answer against the broker's to the same Fetch, asked now; the length of all aborted lists."""
    high_watermark, stable = read_offsets(direct, topic, answers[-1].fetch_offset)
    listed = 0
    with RawClient(direct, "raw-check") as client:
        reader = CommittedReader(client, topic)
        for one in answers:
            assert one.last_stable_offset <= min(one.high_watermark, stable) <= high_watermark
            assert one.end_offset <= max(one.last_stable_offset, one.fetch_offset)
            if not one.records:
                assert one.aborted == []
                continue
            reader.offset, reader.max_bytes = one.fetch_offset, len(one.records)
            reader.poll()
            said = reader.answers[-1]
            assert said.records == one.records, f"{one[:5]} {said[:5]}"
            # The broker's upper bound is an index entry's (LogSegment.fetchUpperBoundOffset): it may list more.
            wanted = [(pid, first) for pid, first in said.aborted or () if first < one.end_offset]
            assert list(map(tuple, one.aborted or ())) == wanted, f"{one[:5]} {said[:5]}"
            listed += len(wanted)
    for one, other in pairwise(answers):
        assert one.last_stable_offset <= other.last_stable_offset
    return listed


def count_batches(answers: Sequence[Answer]) -> int:
    """Batches that were brought."""
    return sum(len(scan_batches(one.records, 0, len(one.records))) for one in answers)


class Tail:
    """A raw consumer at the tail of a topic that is empty yet, on a thread of its own."""

    def __init__(self, pair: Pair, client: RawClient, topic: str, version: int) -> None:
        self.pair = pair
        self.topic = topic
        self.reader = CommittedReader(client, self.topic, version=version)
        self.reader.settle()
        self.hits_before = self.hits()
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._enough.is_set():
            self.reader.poll(200)

    def wait_stable(self) -> None:
        """Until this consumer was told the LSO that the broker has now, and stands there. Never is it told one that
        the broker has not: markers are written after a commit was answered, so the broker is asked again then.
        """
        deadline = time.monotonic() + TIMEOUT_S
        wanted = -1
        while self.reader.last_stable_offset != wanted or self.reader.offset != wanted:
            assert time.monotonic() < deadline, f"LSO {wanted}, not {self.reader.answers[-1][:5]}"
            told = self.reader.last_stable_offset
            if told > wanted or wanted < 0:
                wanted = read_offsets(self.pair.direct, self.topic, self.reader.offset)[1]
                assert told <= wanted, f"LSO {told}, the broker has {wanted}"
            time.sleep(0.005)

    def hits(self) -> float:
        return self.pair.sidecar.fetch_counts().get(("hit", ""), 0)

    def stop(self) -> None:
        self._enough.set()
        self._thread.join()

    def check(self, listed: int = 0, most: float = MOST) -> None:
        """All that was told is what the broker tells, at least `listed` aborted transactions among it."""
        self.wait_stable()
        self.stop()
        found = check_answers(self.pair.direct, self.topic, self.reader.answers)
        assert found >= listed
        hits = self.hits() - self.hits_before
        total = sum(len(one.records) for one in self.reader.answers)
        assert hits >= most * total, (
            f"{hits:.0f} of {total} bytes: {self.pair.sidecar.fetch_counts()}"
        )


@contextmanager
def tailing(pair: Pair, version: int = 13, topic: str | None = None) -> Iterator[Tail]:
    """Tail `topic`, a new one if none is given."""
    with RawClient(pair.through, "tail") as client:
        tail = Tail(pair, client, topic or create_topic(pair.direct), version)
        try:
            yield tail
        finally:
            tail.stop()
