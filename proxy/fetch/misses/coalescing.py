"""Coalescing: consumers that miss the same range at the same time share one read of the broker's.

Owns the reads that may be shared, their joiners, and the readers that wait for the same range at
the disk throttle. Must not know connections or delayed Fetches beyond a `ReadOwner`. Invariants:
* A joiner has its own right to the topic (a status without it names no partition). A joiner asks
  with the same key and for no more bytes.
* Only records are shared. After an error, a diverging epoch, a preferred replica, an empty response
  or a lost connection each joiner asks for itself.
* Only a read that the broker answers at once is joined: records exist, nothing is unanswered before
  it on its connection, and its client drains.
* Joiners leave a read that takes PATIENCE_S. No reader joins for longer than JOINING_S.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from protocol.errors import ErrorCode
from proxy.partitions.readable import ReadState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from protocol.fetch import FetchedPartition, FetchRequest, FetchResponse
    from protocol.primitives import Frame
    from proxy.fetch.misses.read import Read
    from proxy.partitions.readable import PartitionStatus
    from proxy.partitions.table import Partition

PATIENCE_S = 1.0
"""Seconds that a joiner waits for a shared read."""
JOINING_S = 3.0
"""Seconds after its first joining in which a reader may join another read."""


class CoalescingKey(NamedTuple):
    """All that determines the broker's response, except the bytes. The partition belongs to one
    topic id.
    """

    partition: Partition
    version: int
    isolation_level: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int


class SharingServices(Protocol):
    """Handed to the shared reads."""

    @property
    def now(self) -> Callable[[], float]:
        """The clock, in seconds."""

    def attempt(
        self,
        action: Callable[[], object],
        doing: str,
        otherwise: Callable[[], object] | None = None,
    ) -> None:
        """Run `action`. Log and count its error, then run `otherwise`."""


class Way(Protocol):
    """The broker connection that a read uses."""

    @property
    def reading_held(self) -> bool: ...
    @property
    def unanswered(self) -> int: ...


class ReadOwner(Protocol):
    """Owner of reads that join a shared read."""

    def landed(self, read: Read, answered: FetchedPartition, frame: Frame) -> None:
        """Take the broker's records for `read`, which are in `frame`."""

    def left_alone(self, read: Read) -> None:
        """Fetch `read` another way: the shared read brings no records."""

    def failed(self, read: Read) -> None:
        """Give up `read`: taking its records, or sending it, has raised an exception."""

    def may_join(self, read: Read, shared_read: SharedRead) -> None:
        """Let `read`, which waits at the disk throttle, join `shared_read`: that one has been sent."""


class SharedRead:
    """Read of one partition that is in flight to the broker, with its joiners."""

    __slots__ = ("coalescing_key", "joiners", "max_bytes", "sent_at", "timer", "way")

    def __init__(
        self, coalescing_key: CoalescingKey, max_bytes: int, way: Way, sent_at: float
    ) -> None:
        self.coalescing_key = coalescing_key
        self.max_bytes = max_bytes
        self.way = way
        self.sent_at = sent_at
        self.joiners: dict[Read, ReadOwner] = {}
        self.timer: asyncio.TimerHandle | None = None

    def arm(self, timer: asyncio.TimerHandle) -> None:
        """Cancel `timer` when the read ends."""
        self.timer = timer

    def close(self) -> dict[Read, ReadOwner]:
        """End it, and return its joiners; none can join any more."""
        if self.timer is not None:
            self.timer.cancel()
        joiners, self.joiners = self.joiners, {}
        return joiners

    @property
    def is_held(self) -> bool:
        """True if the response is not being read, because the client of that connection does not
        drain.
        """
        return self.way.reading_held


def build_coalescing_key(
    status: PartitionStatus, version: int, isolation_level: int
) -> CoalescingKey | None:
    """Return the key under which a miss may be shared; None if it may not.

    A miss may be shared if records exist at its offset and its client may read them.
    """
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
    """All reads of the process that may be joined. A read has at most `joiners_limit` joiners; 0
    disables coalescing. `joined` counts the readers that got records of another's read, and
    `joined_bytes` their record bytes in responses.
    """

    __slots__ = (
        "_broker",
        "_joiners_limit",
        "_shared_reads",
        "_waiting",
        "joined",
        "joined_bytes",
    )

    def __init__(self, broker: SharingServices, joiners_limit: int) -> None:
        self._broker = broker
        self._joiners_limit = joiners_limit
        self._shared_reads: dict[CoalescingKey, SharedRead] = {}
        self._waiting: dict[CoalescingKey, dict[Read, ReadOwner]] = {}
        self.joined = self.joined_bytes = 0

    def set_limit(self, joiners_limit: int) -> None:
        """Take another limit. Joiners beyond it stay joined; no more are added."""
        self._joiners_limit = joiners_limit

    def __len__(self) -> int:
        """Number of reads in flight that may be joined."""
        return len(self._shared_reads)

    def find(self, coalescing_key: CoalescingKey | None, max_bytes: int) -> SharedRead | None:
        """Return a read in flight that one more reader of `max_bytes` may join; None if there is
        none.
        """
        shared_read = None if coalescing_key is None else self._shared_reads.get(coalescing_key)
        if shared_read is None or shared_read.max_bytes < max_bytes or shared_read.is_held:
            return None
        return shared_read if len(shared_read.joiners) < self._joiners_limit else None

    def join(self, shared_read: SharedRead, read: Read, reader: ReadOwner) -> None:
        """Add a joiner. `reader` gets one call with the result, unless `leave` comes first."""
        shared_read.joiners[read] = reader
        if shared_read.timer is None:
            loop = asyncio.get_running_loop()
            shared_read.arm(loop.call_later(PATIENCE_S, self._lose_patience, shared_read))

    def count_bytes(self, record_bytes: int) -> None:
        """Count record bytes of another's read in a response."""
        self.joined_bytes += record_bytes

    def leave(self, shared_read: SharedRead, read: Read) -> None:
        """Remove the joiner `read`; no effect if it has not joined."""
        shared_read.joiners.pop(read, None)

    # -- the reader that sends -----------------------------------------------------------------------------

    def begin(
        self, coalescing_key: CoalescingKey | None, max_bytes: int, way: Way
    ) -> SharedRead | None:
        """Register a read that is about to be sent by `way`; None if no other may join it.

        Readers that wait for the same range at the disk throttle are invited to join.
        """
        if coalescing_key is None or not self._joiners_limit or way.unanswered:
            return None
        shared_read = self._shared_reads[coalescing_key] = SharedRead(
            coalescing_key, max_bytes, way, self._broker.now()
        )
        for read, reader in list(self._waiting.get(coalescing_key, {}).items()):
            if read.asked.max_bytes <= max_bytes and len(shared_read.joiners) < self._joiners_limit:
                reader.may_join(read, shared_read)
        return shared_read

    def end(
        self, shared_read: SharedRead, answered: FetchedPartition | None, frame: Frame | None
    ) -> None:
        """Report the result to all joiners. `answered` and `frame` are None if the connection was
        lost.
        """
        joiners = self._close(shared_read)
        is_shared = answered is not None and answered.end > answered.start and is_plain(answered)
        for read, reader in joiners.items():
            if is_shared and answered is not None and frame is not None:
                self.joined += 1
                action = partial(reader.landed, read, answered, frame)
            else:
                action = partial(reader.left_alone, read)
            self._broker.attempt(action, "sharing a read", partial(reader.failed, read))

    def _lose_patience(self, shared_read: SharedRead) -> None:
        for read, reader in self._close(shared_read).items():
            action, fail = partial(reader.left_alone, read), partial(reader.failed, read)
            self._broker.attempt(action, "leaving a shared read", fail)

    def _close(self, shared_read: SharedRead) -> dict[Read, ReadOwner]:
        """Remove the read and return its joiners; no reader can join any more."""
        if self._shared_reads.get(shared_read.coalescing_key) is shared_read:
            del self._shared_reads[shared_read.coalescing_key]
        return shared_read.close()

    # -- a Fetch that is forwarded whole -------------------------------------------------------------------

    def begin_forwarded(
        self, request: FetchRequest, version: int, statuses: Iterable[PartitionStatus], way: Way
    ) -> list[SharedRead]:
        """Register the reads of a request that is about to be forwarded whole by `way`. Return
        those that may be joined.

        Only reads that the broker answers at once qualify.
        """
        if request.rack_id or request.least_bytes > 1:
            return []
        begun = []
        for status in statuses:
            coalescing_key = build_coalescing_key(status, version, request.isolation_level)
            shared_read = self.begin(coalescing_key, status.asked.max_bytes, way)
            if shared_read is not None:
                begun.append(shared_read)
        return begun

    def end_forwarded(
        self, begun: Iterable[SharedRead], response: FetchResponse | None, frame: Frame | None
    ) -> None:
        """Report the results of `begin_forwarded`. `response` is None if none came or it could not
        be decoded.
        """
        said = (
            response.partitions
            if response is not None and response.error_code == ErrorCode.NONE
            else ()
        )
        by_key = {(one.topic, one.partition): one for one in said}
        for shared_read in begun:
            partition = shared_read.coalescing_key.partition
            answered = by_key.get((partition.topic.id, partition.index))
            if answered is None:
                # Versions below 13 name topics, later ones have ids.
                answered = by_key.get((partition.topic.name, partition.index))
            self.end(shared_read, answered, frame)

    # -- readers that wait at the disk throttle ------------------------------------------------------------

    def wait(self, coalescing_key: CoalescingKey | None, read: Read, reader: ReadOwner) -> None:
        """Note that `read` waits at the disk throttle: it may join the same read of another
        consumer.
        """
        if coalescing_key is not None and self._joiners_limit:
            self._waiting.setdefault(coalescing_key, {})[read] = reader

    def stop_waiting(self, coalescing_key: CoalescingKey | None, read: Read) -> None:
        """Undo `wait`: `read` is being sent, or is not wanted any more."""
        waiting = self._waiting.get(coalescing_key) if coalescing_key is not None else None
        if waiting is not None and coalescing_key is not None:
            waiting.pop(read, None)
            if not waiting:
                del self._waiting[coalescing_key]


def is_plain(answered: FetchedPartition) -> bool:
    """Return True if the answer has only records and offsets, which another response can repeat."""
    return (
        answered.error_code == ErrorCode.NONE
        and answered.diverging is None
        and answered.preferred_read_replica < 0
    )


def is_mere_error(answered: FetchedPartition) -> bool:
    """Return True if the answer is an error of one partition without a new leader, divergence or
    preferred replica.
    """
    return (
        answered.error_code != ErrorCode.NONE
        and answered.diverging is None
        and answered.current_leader is None
        and answered.preferred_read_replica < 0
    )
