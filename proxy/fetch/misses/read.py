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
from proxy.fetch.misses.coalescing import build_coalescing_key
from proxy.partitions.leader_state import NO_EPOCH

if TYPE_CHECKING:
    from protocol.fetch import FetchedPartition, FetchPartition
    from protocol.primitives import Frame
    from proxy.fetch.delayed_fetch import DelayedFetch
    from proxy.fetch.misses.coalescing import SharedRead
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

    def __init__(self, status: PartitionStatus, asker: Asker, share_bytes: int, now: float) -> None:
        self.status = status
        self.asked = status.asked
        self.asker = asker
        self.size_bytes = min(status.asked.max_bytes, share_bytes)
        self.topic: Topic | None = None
        self.epoch = NO_EPOCH
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
        self.waiter: DelayedFetch | None = None

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
