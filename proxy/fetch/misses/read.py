"""One partition's read beside the answers of its connection: what it asks, how far it is, what it has brought.

Owns the states of a read and which of its bytes fit into an answer. It must not know links, the throttle or
who else reads. Invariant: what it asks never changes; a Fetch of another offset, epoch, isolation level or version has
another read.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from protocol import batch
from protocol.errors import ErrorCode
from proxy.fetch.misses.coalescing import build_question
from proxy.partitions.leader_state import NO_EPOCH

if TYPE_CHECKING:
    from protocol.fetch import FetchedPartition, FetchPartition
    from protocol.wire import Frame
    from proxy.fetch.delayed_fetch import DelayedFetch
    from proxy.fetch.misses.coalescing import Flight
    from proxy.partitions.readable import PartitionStatus
    from proxy.partitions.topics import Topic
    from throttle.tickets import Ticket

Key = tuple[str | bytes, int]
NOT_READ = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_ID}
)


class Stage(Enum):
    """How far a read is."""

    DELAYED = "delayed"
    """It waits in the delayed queue."""
    READING = "reading"
    ARRIVED = "arrived"
    """With records, or with an error that can be retold."""
    SAID = "said"
    """The broker has named the partition empty: there is nothing to read yet."""
    FAILED = "failed"
    """The broker had more to say than can be retold, or the link was lost."""


class Asker(NamedTuple):
    """What of the request goes into the read: everything that shapes the broker's answer."""

    version: int
    client_id: str | None
    max_bytes: int
    isolation_level: int


class Read:
    """One partition's read, of the log of `topic` (None: not known) in leader epoch `epoch`, as far as these were known
    when it began, or at the latest when it arrived. `charged_bytes` are held against the process's bound until it is
    collected.
    """

    __slots__ = (
        "answered",
        "asked",
        "asked_at",
        "asker",
        "charged_bytes",
        "epoch",
        "flight",
        "frame",
        "is_shared",
        "join_until",
        "question",
        "said",
        "sent_at",
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
        self.question = build_question(status, asker.version, asker.isolation_level)
        self.flight: Flight | None = None
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
        self.ticket: Ticket | None = None
        self.waiter: DelayedFetch | None = None

    @property
    def key(self) -> Key:
        """Topic as the client names it, and partition."""
        return self.asked.topic, self.asked.partition

    @property
    def is_odd(self) -> bool:
        """Whether nothing can be said of the partition but by the broker, not even that it is empty."""
        return not self.status.offsets_known

    @property
    def holds_up(self) -> bool:
        """Whether the broker is reading it, and has not said before that there is nothing yet."""
        return self.stage is Stage.READING and self.said is None

    @property
    def has_error(self) -> bool:
        """Whether the broker's answer is an error."""
        return self.answered is not None and self.answered.error_code != ErrorCode.NONE

    @property
    def is_erroneous(self) -> bool:
        """Whether the broker has not read it, which ends nobody's wait (`erroneous`, KafkaApis.handleFetchRequest)."""
        return self.answered is not None and self.answered.error_code in NOT_READ

    @property
    def held_bytes(self) -> int:
        """Record bytes that have arrived."""
        return 0 if self.answered is None else self.answered.end - self.answered.start

    @property
    def delay_s(self) -> float:
        """How long it waited until the disk could bear it."""
        return 0.0 if self.ticket is None else self.ticket.delay_s

    def answers(self, asked: FetchPartition, isolation_level: int, version: int) -> bool:
        """Whether this is the read that `asked` wants: sizes may differ."""
        asker = self.asker
        is_alike = asker.isolation_level == isolation_level and asker.version == version
        return is_alike and self.asked[:5] == asked[:5]

    def records(self, room: int, at_least_one: bool) -> memoryview:
        """The whole batches that fit into `room`, the first one regardless if `at_least_one`."""
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
