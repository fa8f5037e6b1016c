"""What memory can say to each partition of a Fetch. Decides, without effect.

read_committed reads up to the last stable offset (LSO), and only as far as the aborted transactions of what
it reads are known (`Transactions.listed_end`); at the LSO it waits, whatever lies between it and the HW. What
is not known there is on its way while the watch stands at the tail below the HW: a marker comes by no other
way.

Owns the order in which the questions are asked; every partition of every Fetch comes out with exactly one
look. It must not know links or tasks. Results and reasons are those of `metrics.access_log_schema.RESULTS`.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from proxy.partitions.leader_state import NO_EPOCH, NO_OFFSET

if TYPE_CHECKING:
    from blockcache.cache import BlockCache
    from protocol.fetch import FetchPartition
    from proxy.partitions.table import Partition

READ_COMMITTED = 1
ISOLATION_LEVELS = (0, READ_COMMITTED)
"""Those there are (IsolationLevel.forId). A Fetch of another, or of fewer than no bytes (LogSegment.read), is the
broker's to refuse.
"""
ZSTD_FROM_VERSION = 10
"""Below it a broker answers UNSUPPORTED_COMPRESSION_TYPE for zstd topics (KafkaApis.maybeConvertFetchedData).
"""

FOLLOWER_FETCH_FROM_VERSION = 11
"""Below it a broker answers NOT_LEADER_OR_FOLLOWER where it follows (FetchParams.fetchOnlyLeader, KIP-392)."""


class ReadState(Enum):
    """Where a partition stands for a Fetch."""

    READABLE = "readable"
    """Readable bytes are in memory, under a lease."""
    AT_END = "at-end"
    """The offset is where the next record will be; for read_committed also any other from the LSO to the HW."""
    IN_TRANSIT = "in-transit"
    """At the tail, below the HW, and the bytes are on their way: an acknowledgement or the watch brings them.
    """
    UNCONFIRMED = "unconfirmed"
    """Nothing is known against it, but no lease covers it: one small Fetch of Forebay's own will tell."""
    MISS = "miss"
    PASS = "pass"


READABLE, AT_END, IN_TRANSIT, UNCONFIRMED = (
    ReadState.READABLE,
    ReadState.AT_END,
    ReadState.IN_TRANSIT,
    ReadState.UNCONFIRMED,
)
"""Read as often as a Fetch is looked at: a name of a module costs a third of a member's."""
NEEDS_BROKER = (ReadState.MISS, ReadState.PASS)
"""The broker has to say it."""
UNREAD = ("pass", "version")
"""What a Fetch is that cannot be read: one verdict for all of it."""
LAGGING = ("cold", "evicted")
"""Reasons of a miss that is history: memory no longer holds it, or never did."""


class PartitionStatus(NamedTuple):
    """One partition of one Fetch. `reason` of a MISS or PASS, and what it will be counted as if a IN_TRANSIT or an
    UNCONFIRMED is not filled. `limit_offset` ends what may be read; -1 where the partition's offsets are not known
    well enough to be told to this client.
    """

    asked: FetchPartition
    partition: Partition | None
    state: ReadState
    reason: str
    limit_offset: int

    @property
    def offsets_known(self) -> bool:
        """Whether it may be named empty, error 0, with the last confirmed offsets."""
        return self.limit_offset >= 0

    @property
    def queue_key(self) -> str | bytes:
        """The topic in the one form that queues know it by: its name, its id while that is unknown."""
        name = self.partition.topic.name if self.partition is not None else ""
        return name or self.asked.topic

    @property
    def lagging(self) -> bool:
        """Whether its consumer reads what memory does not hold any more."""
        return self.state is ReadState.MISS and self.reason in LAGGING


class PartitionOutcome(NamedTuple):
    """One partition of an answer that leaves: its record bytes, result and reason; how long its read waited
    for its disk; in `cache.mode: observe` the bytes that memory would have given (None: no cache may serve
    it); what the clock of admitted bytes showed when the first of what memory gave was admitted (None: it gave none).
    """

    status: PartitionStatus
    size_bytes: int
    result: str
    reason: str
    delay_s: float = 0.0
    would_hit_bytes: int | None = None
    admitted_at: int | None = None


def plan_given_up(status: PartitionStatus) -> PartitionStatus:
    """What has not come in time, or may not be waited for, is a miss."""
    if status.state is ReadState.IN_TRANSIT:
        return status._replace(state=ReadState.MISS)
    if status.state is ReadState.UNCONFIRMED:
        return status._replace(state=ReadState.MISS, limit_offset=-1)
    return status


def plan_partition(
    cache: BlockCache,
    asked: FetchPartition,
    partition: Partition,
    isolation_level: int,
    version: int,
    now: float,
) -> PartitionStatus:
    """Look at one partition that the client may read and Forebay follows.

    Of the proven epoch nothing readable can diverge: its end is the log's (Partition.readRecords), so a
    last_fetched_epoch that equals it (kafka-python sends one) is as good as none. Fewer than no bytes are the broker's
    to refuse (LogSegment.read), but at the end of the log, where it does not ask.
    """
    leader_state = partition.leader_state
    epoch, offset = leader_state.epoch, asked.fetch_offset
    if asked.max_bytes < 0:
        return PartitionStatus(asked, partition, ReadState.PASS, "version", -1)
    if partition.old_format:
        return PartitionStatus(asked, partition, ReadState.PASS, "old-format", -1)
    if partition.zstd and version < ZSTD_FROM_VERSION:
        return PartitionStatus(asked, partition, ReadState.PASS, "version", -1)
    if epoch == NO_EPOCH:
        return PartitionStatus(asked, partition, ReadState.UNCONFIRMED, "unproven", -1)
    if epoch < asked.current_leader_epoch == leader_state.suggested_epoch:
        return PartitionStatus(asked, partition, ReadState.UNCONFIRMED, "epoch", -1)
    if not (
        (asked.current_leader_epoch == epoch or asked.current_leader_epoch == NO_EPOCH)
        and (asked.last_fetched_epoch == NO_EPOCH or asked.last_fetched_epoch == epoch)
    ):
        return PartitionStatus(asked, partition, ReadState.MISS, "epoch", -1)
    may_follow = version < FOLLOWER_FETCH_FROM_VERSION and not leader_state.is_led
    committed = isolation_level == READ_COMMITTED
    limit = partition.last_stable_offset() if committed else leader_state.high_watermark
    if offset < max(leader_state.log_start_offset, 0):
        return PartitionStatus(asked, partition, ReadState.MISS, plan_absent(cache, partition, offset), -1)
    is_at_end = 0 <= limit <= offset <= leader_state.high_watermark
    stored_end = offset if is_at_end else cache.contiguous_end(partition.slot, offset)
    if not (is_at_end or stored_end > offset or offset >= partition.tail):
        offsets_known = offset <= limit and not may_follow
        return PartitionStatus(
            asked,
            partition,
            ReadState.MISS,
            plan_absent(cache, partition, offset),
            limit if offsets_known else -1,
        )
    if may_follow:
        return PartitionStatus(asked, partition, ReadState.MISS, "epoch", -1)
    if now >= leader_state.lease_until or leader_state.frozen:
        return PartitionStatus(asked, partition, ReadState.UNCONFIRMED, "epoch", -1)
    if is_at_end:
        return PartitionStatus(asked, partition, ReadState.AT_END, "", limit)
    if offset > limit:
        return PartitionStatus(asked, partition, ReadState.UNCONFIRMED, "unproven", limit)
    if stored_end > offset:
        if partition.topic.may_be_compacted and stored_end < min(limit, partition.tail):
            # The offsets that memory lacks may delete records that it has.
            return PartitionStatus(asked, partition, ReadState.MISS, "hole", limit)
        if committed:
            return _plan_committed(asked, partition, limit)
        return PartitionStatus(asked, partition, ReadState.READABLE, "", limit)
    if offset >= partition.tail:
        return PartitionStatus(asked, partition, ReadState.IN_TRANSIT, "hole", limit)
    return PartitionStatus(asked, partition, ReadState.MISS, plan_absent(cache, partition, offset), limit)


def find_limit(
    cache: BlockCache,
    asked: FetchPartition,
    partition: Partition,
    offset: int,
    read_committed: bool,
    version: int,
    now: float,
) -> int:
    """Where `plan_partition` would say that reading ends, of `asked` at `offset`, if it says READABLE; -1 if it does
    not. That anything is stored there is not asked: to a lookup below this limit it shows. Nor are `asked.max_bytes`.
    """
    leader_state = partition.leader_state
    epoch = leader_state.epoch
    if (
        epoch == NO_EPOCH
        or now >= leader_state.lease_until
        or leader_state.frozen
        or (asked.current_leader_epoch != epoch and asked.current_leader_epoch != NO_EPOCH)
        or (asked.last_fetched_epoch != NO_EPOCH and asked.last_fetched_epoch != epoch)
        or offset < leader_state.log_start_offset
        or partition.old_format
        or (partition.zstd and version < ZSTD_FROM_VERSION)
        or (version < FOLLOWER_FETCH_FROM_VERSION and not leader_state.is_led)
    ):
        return -1
    limit = partition.last_stable_offset() if read_committed else leader_state.high_watermark
    if offset >= limit:
        return -1
    if partition.topic.may_be_compacted:
        stored_end = cache.contiguous_end(partition.slot, offset)
        if stored_end < min(limit, partition.tail):
            return -1
    if read_committed:
        listed_end = partition.transactions.listed_end(offset)
        return min(limit, listed_end) if listed_end > offset else -1
    return limit


def _plan_committed(asked: FetchPartition, partition: Partition, limit: int) -> PartitionStatus:
    """What read_committed may have of stored bytes below the LSO."""
    transactions, offset = partition.transactions, asked.fetch_offset
    listed_end = transactions.listed_end(offset)
    if listed_end > offset:
        return PartitionStatus(asked, partition, ReadState.READABLE, "", min(limit, listed_end))
    is_coming = (
        NO_OFFSET < transactions.known_from <= offset
        and partition.tail <= transactions.end < partition.leader_state.high_watermark
    )
    return PartitionStatus(
        asked, partition, ReadState.IN_TRANSIT if is_coming else ReadState.MISS, "transaction", limit
    )


def plan_absent(cache: BlockCache, partition: Partition, offset: int) -> str:
    """Why an offset below the tail is not stored: evicted (the ghost remembers it), hole (newer and older are
    stored) or cold.
    """
    edges = cache.edges(partition.slot, offset)
    if edges.hole_start >= 0:
        return "hole"
    if 0 <= offset < edges.evicted_end or cache.age_bytes(partition.slot, offset) is not None:
        return "evicted"
    return "cold"
