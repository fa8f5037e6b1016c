"""Read: the miss fetch of one partition; what it asks, how far it is, what it has brought.

Owns the states of a read, and which of its bytes fit into a response. Must not know connections,
the disk throttle or other readers. Invariant: a read's request never changes. A Fetch of another
offset, epoch, isolation level or version has another read.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from protocol import batch
from protocol.errors import ErrorCode
from proxy.fetch.misses.coalescing import JOINING_S, build_coalescing_key
from proxy.partitions.leader_state import NO_EPOCH

if TYPE_CHECKING:
    from protocol.fetch import FetchedPartition, FetchPartition
    from protocol.primitives import Frame
    from proxy.fetch.misses.coalescing import SharedRead
    from proxy.fetch.wakeups import WaitingFetch
    from proxy.partitions.readable import PartitionStatus
    from proxy.partitions.topics import Topic
    from throttle.tickets import DelayTicket

MissKey = tuple[str | bytes, int]
"""Topic as the client names it (name or id), and partition."""
NOT_READ = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""Error codes that a broker finds before it reads the log."""
PATIENCE_S = 20.0
"""Seconds after which the client's own Fetch goes to the broker, and waits like any other."""


class Stage(Enum):
    """Progress of a read."""

    DELAYED = "delayed"
    """The read waits in the disk throttle's queue."""
    READING = "reading"
    """The read was submitted to the broker, or joined another consumer's."""
    ARRIVED = "arrived"
    """The broker has answered, with records or with an error that may be repeated."""
    SAID = "said"
    """The broker has named the partition empty: no records exist yet."""
    FAILED = "failed"
    """The broker's answer cannot be repeated, or the connection was lost."""


class Asker(NamedTuple):
    """Fields of a request that determine the broker's response to all of its partitions."""

    version: int
    client_id: str | None
    max_bytes: int
    isolation_level: int


class Read:
    """Miss fetch of one partition.

    `topic` (None: unknown) and `epoch` say which log is read, as known when the read began, or at
    the latest when it arrived. `charged_bytes` count against the budget of response bytes until the
    read is collected.
    """

    __slots__ = (
        "answered",
        "asked",
        "asked_at",
        "asker",
        "charged_bytes",
        "coalescing_key",
        "epoch",
        "frame",
        "is_shared",
        "join_until",
        "said",
        "sent_at",
        "shared_read",
        "size_bytes",
        "stage",
        "status",
        "throttle_time_ms",
        "ticket",
        "topic",
        "waiter",
    )

    def __init__(
        self,
        status: PartitionStatus,
        asker: Asker,
        share_bytes: int,
        now: float,
        waiter: WaitingFetch | None = None,
        topic: Topic | None = None,
        epoch: int = NO_EPOCH,
    ) -> None:
        self.status = status
        self.asked = status.asked
        self.asker = asker
        self.size_bytes = min(status.asked.max_bytes, share_bytes)
        self.topic = topic
        self.epoch = epoch
        self.coalescing_key = build_coalescing_key(status, asker.version, asker.isolation_level)
        self.shared_read: SharedRead | None = None
        self.is_shared = False
        self.join_until = float("inf")
        self.stage = Stage.READING
        self.sent_at = now
        self.asked_at = now
        self.answered: FetchedPartition | None = None
        self.said: FetchedPartition | None = None
        self.frame: Frame = b""
        self.charged_bytes = 0
        self.throttle_time_ms = 0
        self.ticket: DelayTicket | None = None
        self.waiter = waiter

    @property
    def key(self) -> MissKey:
        """Topic as the client names it, and partition."""
        return self.asked.topic, self.asked.partition

    @property
    def offsets_unknown(self) -> bool:
        """True if the partition's offsets are unknown, so that it cannot be returned as empty."""
        return not self.status.offsets_known

    @property
    def holds_up(self) -> bool:
        """True if the broker is reading it, and has not named the partition empty before."""
        return self.stage is Stage.READING and self.said is None

    @property
    def has_error(self) -> bool:
        """True if the broker's answer is an error."""
        return self.answered is not None and self.answered.error_code != ErrorCode.NONE

    @property
    def is_erroneous(self) -> bool:
        """True if the broker found the error before it read. Such an error ends no wait
        (`erroneous`, KafkaApis.handleFetchRequest).
        """
        return self.answered is not None and self.answered.error_code in NOT_READ

    @property
    def held_bytes(self) -> int:
        """Record bytes that have arrived; 0 before."""
        return 0 if self.answered is None else self.answered.end - self.answered.start

    @property
    def delay_s(self) -> float:
        """Seconds that the read waited at the disk throttle."""
        return 0.0 if self.ticket is None else self.ticket.delay_s

    def answers(self, asked: FetchPartition, isolation_level: int, version: int) -> bool:
        """Return True if this read is of the offset, epochs, isolation level and version of
        `asked`. Sizes may differ.
        """
        asker = self.asker
        is_alike = asker.isolation_level == isolation_level and asker.version == version
        return is_alike and self.asked[:5] == asked[:5]

    # -- events ------------------------------------------------------------------------------------

    def touch(self, now: float) -> None:
        """A Fetch asks for it at `now`, in seconds. It fails after PATIENCE_S without an answer."""
        self.asked_at = now
        if self.stage is Stage.READING and now - self.sent_at > PATIENCE_S:
            self.stage = Stage.FAILED

    def begin(self) -> None:
        """It is not submitted to the disk throttle: a former ticket counts no more."""
        self.ticket = None

    def begin_again(self) -> None:
        """It is sent again, past the disk throttle: the broker had no records."""
        self.stage, self.ticket = Stage.READING, None

    def submit(self, ticket: DelayTicket) -> None:
        """The disk throttle has answered; it delays the read unless `ticket` is granted."""
        self.ticket = ticket
        if not ticket.granted:
            self.stage = Stage.DELAYED

    def grant(self) -> None:
        """The disk throttle delays it no more."""
        self.stage = Stage.READING

    def send(self, now: float) -> None:
        """It goes to the broker at `now`, in seconds."""
        self.sent_at = now

    def join(self, shared_read: SharedRead, now: float) -> None:
        """It joins another consumer's read; it may join further ones for JOINING_S."""
        self.stage = Stage.READING
        self.sent_at = shared_read.sent_at
        self.join_until = min(self.join_until, now + JOINING_S)
        self.shared_read = shared_read

    def part(self, is_shared: bool = False) -> None:
        """The read that it had joined is over; `is_shared`: with records for it."""
        self.shared_read = None
        self.is_shared = self.is_shared or is_shared

    def attach(self, waiter: WaitingFetch | None) -> None:
        """`waiter` is the Fetch that waits for it; None: no Fetch does."""
        self.waiter = waiter

    def pause(self, throttle_time_ms: int) -> None:
        """The broker's response to it carried this throttle time, in milliseconds."""
        self.throttle_time_ms = throttle_time_ms

    def arrive(self, answered: FetchedPartition, frame: Frame, epoch: int) -> None:
        """Take records, which are in `frame`, and charge them. `epoch` is the leader epoch known
        now, or NO_EPOCH.
        """
        self.stage, self.answered, self.frame = Stage.ARRIVED, answered, frame
        if self.epoch == NO_EPOCH:
            self.epoch = epoch
        self.charged_bytes = self.held_bytes

    def arrive_empty(self, answered: FetchedPartition) -> None:
        """Take the broker's answer that no records exist yet."""
        self.stage, self.said = Stage.SAID, answered

    def arrive_as_error(self, answered: FetchedPartition) -> None:
        """Take an error that the waiting Fetch may repeat."""
        self.stage, self.answered = Stage.ARRIVED, answered

    def fail(self) -> None:
        """The broker's answer cannot be repeated, or none comes."""
        self.stage = Stage.FAILED

    def release(self) -> int:
        """End the charge of its bytes; return their number."""
        charged_bytes, self.charged_bytes = self.charged_bytes, 0
        return charged_bytes

    def records(self, room: int, at_least_one: bool) -> memoryview:
        """Return the whole batches that fit into `room` bytes; with `at_least_one` the first one
        whatever its size.

        The read must have arrived. The view shows the response frame; no bytes are copied.
        """
        assert self.answered is not None
        start, end = self.answered.start, self.answered.end
        if end - start > room:
            fits = start
            for one in batch.scan_batches(self.frame, start, end):
                if one.end - start > room and not (at_least_one and fits == start):
                    break
                fits = one.end
            end = fits
        return memoryview(self.frame)[start:end]
