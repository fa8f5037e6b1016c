"""Coalescing: consumers that miss the same range at the same time share one read of the broker's.

Owns which reads are under way, who has joined them, and who waits for the same at the throttle. It must not
know links or waiting Fetches beyond a `Reader`. Invariants:
* who joins has the right to the topic on its own connection (a look without it names no partition), asks the
  same of the same leader epoch in the same version and isolation level, and no more bytes.
* only records are shared. An error, a diverging epoch, a preferred replica, nothing at all, a lost link: each
  joiner asks for itself.
* only reads that the broker answers at once are joined: there are records, nothing is unanswered on their link
  before them, and their client drains. One that takes PATIENCE_S all the same is left by its joiners; nobody
  joins for longer than JOINING_S.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from protocol.errors import ErrorCode
from proxy.partitions.readable import ReadState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from protocol.fetch import FetchedPartition, FetchResponse
    from protocol.wire import Frame
    from proxy.broker import Broker
    from proxy.fetch.misses.read import Read
    from proxy.fetch.record import FetchRecord
    from proxy.net.framed_transport import FramedTransport
    from proxy.partitions.readable import PartitionStatus
    from proxy.partitions.table import Partition

PATIENCE_S = 1.0
"""How long a read is waited for by those who have joined it."""
JOINING_S = 3.0
"""How long after its first joining a reader may join another."""


class CoalescingKey(NamedTuple):
    """What shapes the broker's answer, but for the bytes. The partition is of one topic id."""

    partition: Partition
    version: int
    isolation_level: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int


class Way(Protocol):
    """The link that a read goes by."""

    @property
    def is_connected(self) -> bool: ...
    @property
    def unanswered(self) -> int: ...
    @property
    def wire(self) -> FramedTransport: ...


class Reader(Protocol):
    """Whoever has reads that join."""

    def landed(self, read: Read, answered: FetchedPartition, frame: Frame) -> None:
        """The broker's records are there, in `frame`."""

    def left_alone(self, read: Read) -> None:
        """They will not come this way."""

    def failed(self, read: Read) -> None:
        """Taking it, or asking for it, has raised."""

    def may_join(self, read: Read, flight: Flight) -> None:
        """What `read` waits for at the throttle is under way."""


class Flight:
    """One partition's read, at the broker."""

    __slots__ = ("joiners", "max_bytes", "question", "sent_at", "timer", "way")

    def __init__(self, question: CoalescingKey, max_bytes: int, way: Way, sent_at: float) -> None:
        self.question = question
        self.max_bytes = max_bytes
        self.way = way
        self.sent_at = sent_at
        self.joiners: dict[Read, Reader] = {}
        self.timer: asyncio.TimerHandle | None = None

    @property
    def is_held(self) -> bool:
        """Whether its client does not drain, so that the answer is not read."""
        return self.way.is_connected and self.way.wire.reading_held


def build_question(status: PartitionStatus, version: int, isolation_level: int) -> CoalescingKey | None:
    """What may be shared of a miss: records are there for it, and its client may read them. None if nothing."""
    asked = status.asked
    if (
        status.state is not ReadState.MISS
        or status.partition is None
        or asked.fetch_offset >= status.limit_offset
    ):
        return None
    return CoalescingKey(
        status.partition,
        version,
        isolation_level,
        asked.current_leader_epoch,
        asked.fetch_offset,
        asked.last_fetched_epoch,
    )


class SharedReads:
    """All reads of a process that may be joined; one read has at most `joiners_limit` joiners."""

    __slots__ = ("_broker", "_flights", "_joiners_limit", "_waiting")

    def __init__(self, broker: Broker, joiners_limit: int) -> None:
        self._broker = broker
        self._joiners_limit = joiners_limit
        self._flights: dict[CoalescingKey, Flight] = {}
        self._waiting: dict[CoalescingKey, dict[Read, Reader]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def find(self, question: CoalescingKey | None, max_bytes: int) -> Flight | None:
        """A read of that under way which may be joined by one more."""
        flight = None if question is None else self._flights.get(question)
        if flight is None or flight.max_bytes < max_bytes or flight.is_held:
            return None
        return flight if len(flight.joiners) < self._joiners_limit else None

    def join(self, flight: Flight, read: Read, reader: Reader) -> None:
        """`reader` hears of what becomes of it, unless `leave` comes before."""
        flight.joiners[read] = reader
        if flight.timer is None:
            flight.timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._lose_patience, flight)

    def leave(self, flight: Flight, read: Read) -> None:
        """`read` is not wanted any more."""
        flight.joiners.pop(read, None)

    # -- the one that reads --------------------------------------------------------------------------------

    def begin(self, question: CoalescingKey | None, max_bytes: int, way: Way) -> Flight | None:
        """A read is about to be sent by `way`. None where nobody may join it."""
        if question is None or not self._joiners_limit or way.unanswered:
            return None
        flight = self._flights[question] = Flight(question, max_bytes, way, self._broker.now())
        for read, reader in list(self._waiting.get(question, {}).items()):
            if read.asked.max_bytes <= max_bytes and len(flight.joiners) < self._joiners_limit:
                reader.may_join(read, flight)
        return flight

    def end(self, flight: Flight, answered: FetchedPartition | None, frame: Frame | None) -> None:
        """It was answered, or its link is lost (None)."""
        joiners = self._close(flight)
        is_shared = answered is not None and answered.end > answered.start and is_plain(answered)
        for read, reader in joiners.items():
            if is_shared and answered is not None and frame is not None:
                self._broker.counters.shared_reads += 1
                action = partial(reader.landed, read, answered, frame)
            else:
                action = partial(reader.left_alone, read)
            self._broker.attempt(action, "sharing a read", partial(reader.failed, read))

    def _lose_patience(self, flight: Flight) -> None:
        for read, reader in self._close(flight).items():
            action, fail = partial(reader.left_alone, read), partial(reader.failed, read)
            self._broker.attempt(action, "leaving a shared read", fail)

    def _close(self, flight: Flight) -> dict[Read, Reader]:
        """Nobody joins it any more; who has joined it."""
        if self._flights.get(flight.question) is flight:
            del self._flights[flight.question]
        if flight.timer is not None:
            flight.timer.cancel()
        joiners, flight.joiners = flight.joiners, {}
        return joiners

    # -- those that wait at the throttle -------------------------------------------------------------------

    def wait(self, question: CoalescingKey | None, read: Read, reader: Reader) -> None:
        """`read` waits for its disk: it joins whoever goes before it."""
        if question is not None and self._joiners_limit:
            self._waiting.setdefault(question, {})[read] = reader

    def stop_waiting(self, question: CoalescingKey | None, read: Read) -> None:
        """It goes, or is not wanted any more."""
        waiting = self._waiting.get(question) if question is not None else None
        if waiting is not None and question is not None:
            waiting.pop(read, None)
            if not waiting:
                del self._waiting[question]


def begin_forwarded(record: FetchRecord, statuses: Iterable[PartitionStatus]) -> list[Flight]:
    """The reads of a Fetch that is about to be forwarded whole: those that the broker answers at once."""
    request, link = record.request, record.link
    if request.rack_id or request.least_bytes > 1:
        return []
    shared, version = link.broker.shared_reads, record.head.api_version
    pipeline = []
    for status in statuses:
        question = build_question(status, version, request.isolation_level)
        flight = shared.begin(question, status.asked.max_bytes, link.upstream)
        if flight is not None:
            pipeline.append(flight)
    return pipeline


def end_forwarded(
    broker: Broker, pipeline: Iterable[Flight], response: FetchResponse | None, frame: Frame | None
) -> None:
    """What became of them; `response` is None where nothing came that could be read."""
    said = response.partitions if response is not None and response.error_code == ErrorCode.NONE else ()
    by_key = {(one.topic, one.partition): one for one in said}
    for flight in pipeline:
        partition = flight.question.partition
        answered = by_key.get((partition.topic.id, partition.index))
        if answered is None:
            answered = by_key.get((partition.topic.name, partition.index))
        broker.shared_reads.end(flight, answered, frame)


def is_plain(answered: FetchedPartition) -> bool:
    """Records and offsets only: nothing that a split answer could not retell."""
    return (
        answered.error_code == ErrorCode.NONE
        and answered.diverging is None
        and answered.preferred_read_replica < 0
    )


def is_mere_error(answered: FetchedPartition) -> bool:
    """An error of one partition that says nothing else: neither another leader nor a divergence."""
    return (
        answered.error_code != ErrorCode.NONE
        and answered.diverging is None
        and answered.current_leader is None
        and answered.preferred_read_replica < 0
    )
