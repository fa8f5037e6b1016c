"""Decides how the cache can answer each partition of a Fetch. Without effect.

A read_committed Fetch reads up to the last stable offset (LSO), and only as far as the aborted
transactions of that range are known (`Transactions.listed_end`). At the LSO it waits, whatever lies
between LSO and HW. If the transactions of stored bytes are unknown while the replica fetcher stands
at the tail below the HW, they are in transit: a marker arrives no other way. So they are while they are being
recalled from the stored bytes (update.py).

Owns the order of the checks; every partition of every Fetch gets exactly one status. Must not know
connections or tasks. Results and reasons are those of `metrics.access_log_schema.RESULTS`.
"""

from __future__ import annotations

from enum import Enum
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from proxy.partitions._rows import ffi, lib
from proxy.partitions.leader_state import NO_EPOCH, NO_OFFSET
from proxy.partitions.partition_row import NO_ROW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockcache.cache import BlockCache
    from protocol.fetch import FetchPartition
    from proxy.partitions.table import Partition

READ_COMMITTED = 1
ISOLATION_LEVELS = (0, READ_COMMITTED)
"""All isolation levels (IsolationLevel.forId). The broker refuses a Fetch with another level, and
one with a negative byte limit (LogSegment.read).
"""
ZSTD_FROM_VERSION = lib.PT_ZSTD_FROM_VERSION
"""Below this Fetch version a broker answers UNSUPPORTED_COMPRESSION_TYPE for zstd topics
(KafkaApis.maybeConvertFetchedData).
"""

FOLLOWER_FETCH_FROM_VERSION = lib.PT_FOLLOWER_FETCH_FROM_VERSION
"""Below this Fetch version a broker answers NOT_LEADER_OR_FOLLOWER for partitions that it follows
(FetchParams.fetchOnlyLeader, KIP-392).
"""


class ReadState(Enum):
    """State of one partition for one Fetch. The values of MISS and PASS are results of the access
    log.
    """

    READABLE = "ready"
    """Readable bytes are stored, under a lease."""
    AT_END = "tail"
    """The offset is where the next record will be. For read_committed also any other offset from
    LSO to HW.
    """
    IN_TRANSIT = "gap"
    """The offset is at the tail, below the HW, and the bytes are in transit: an acknowledgement or
    the replica fetcher brings them.
    """
    UNCONFIRMED = "ask"
    """No check failed, but there is no lease: one small Fetch of Forebay's own will tell."""
    MISS = "miss"
    PASS = "pass"


READABLE, AT_END, IN_TRANSIT, UNCONFIRMED = (
    ReadState.READABLE,
    ReadState.AT_END,
    ReadState.IN_TRANSIT,
    ReadState.UNCONFIRMED,
)
"""Module names for the hot path: reading one costs a third of reading an enum member."""
NEEDS_BROKER = (ReadState.MISS, ReadState.PASS)
"""Only the broker can answer these."""
UNREADABLE, AT_END_BELOW = lib.PT_UNREADABLE, lib.PT_AT_END_BELOW
"""Numbers of `find_limits`: neither readable nor at the end; the one from which ends are subtracted."""
ROOM = 64
"""Partitions of a Fetch for which there is memory from the start."""
_put_asked = Struct("=4q").pack_into
ASKED_BYTES = ffi.sizeof("pt_asked")
_find_limits, _find_stored = lib.pt_find_limits, lib.pt_find_stored
UNREAD = ("pass", "version")
"""Result and reason of a Fetch that cannot be read, for all of its partitions."""
LAGGING = ("cold", "evicted")
"""Reasons of a miss on history: the cache no longer holds it, or never did."""


class _Judged:
    """What C says of one Fetch: memory for one at a time (`pt_judged`)."""

    __slots__ = ("_parts", "limits", "native", "questions", "room", "rows", "words")

    def __init__(self) -> None:
        self.native = ffi.new("pt_judged *")
        self.make_room(ROOM)

    def make_room(self, count: int) -> None:
        """For so many partitions."""
        fields = ("limits", "numbers", "places", "stored_numbers", "least_ends", "ends")
        self._parts = {name: ffi.new("int64_t[]", 2 * count) for name in fields}
        for name, part in self._parts.items():
            setattr(self.native, name, part)
        self.limits = memoryview(ffi.buffer(self._parts["limits"])).cast("q")
        self.rows, self.questions = ffi.new("pt_row *[]", count), ffi.new("pt_asked[]", count)
        self.words = ffi.buffer(self.questions)
        self.room = count


_judged = _Judged()


class PartitionStatus(NamedTuple):
    """Status of one partition of one Fetch.

    `reason`: of a MISS or PASS; for IN_TRANSIT or UNCONFIRMED, the reason that is counted if the
    bytes do not arrive in time. `limit_offset` ends the readable range (exclusive); -1 if the
    partition's offsets are not known well enough to return them to this client. `partition` is None
    if Forebay does not follow it.
    """

    asked: FetchPartition
    partition: Partition | None
    state: ReadState
    reason: str
    limit_offset: int

    @property
    def offsets_known(self) -> bool:
        """True if the partition may be returned empty, with error 0 and the last confirmed offsets."""
        return self.limit_offset >= 0

    @property
    def queue_key(self) -> str | bytes:
        """Return the topic as the scheduler's queues know it: its name, or its id while the name is
        unknown.
        """
        name = self.partition.topic.name if self.partition is not None else ""
        return name or self.asked.topic

    @property
    def lagging(self) -> bool:
        """True if the consumer reads history that the cache does not hold any more."""
        return self.state is ReadState.MISS and self.reason in LAGGING


class PartitionOutcome(NamedTuple):
    """Outcome of one partition of a Fetch response: its record bytes, result and reason.

    `delay_s`: how long its read waited for its disk. `would_hit_bytes`: in `cache.mode: observe`,
    the bytes that the cache would have given; None if no cache may answer it. `admitted_at`: the
    clock of admitted bytes when the first of the cached bytes was admitted; None if the cache gave
    none. `timestamp_ms`: maxTimestamp of the first batch handed out; None where it was not read.
    """

    status: PartitionStatus
    size_bytes: int
    result: str
    reason: str
    delay_s: float = 0.0
    would_hit_bytes: int | None = None
    admitted_at: int | None = None
    timestamp_ms: int | None = None


def plan_given_up(status: PartitionStatus) -> PartitionStatus:
    """Return the status after the waiting time, or where waiting is not allowed: IN_TRANSIT and
    UNCONFIRMED become MISS. UNCONFIRMED also loses its `limit_offset` (-1). Other statuses are
    returned unchanged.
    """
    if status.state is IN_TRANSIT:
        return status._replace(state=ReadState.MISS)
    if status.state is UNCONFIRMED:
        return status._replace(state=ReadState.MISS, limit_offset=-1)
    return status


def find_limits(
    cache: BlockCache,
    asked: Sequence[FetchPartition],
    partitions: Sequence[Partition | None],
    isolation_level: int,
    version: int,
    now: float,
) -> list[int]:
    """Return for each of `asked` the end offset (exclusive) up to which it may be read from memory
    now. Below 0 it may not be read: UNREADABLE (`explain_unreadable` says why), or it is at the end
    of what the client may read, and `AT_END_BELOW` less the number is that end.

    This is the one judge of every Fetch; its loop runs in C (native/fetch_limits.c). `partitions` has the
    partition of each, which the client has the right to read and Forebay follows, or None. `now` is in
    seconds. Nothing is at the end at the greatest offset of 64 bits, which no log reaches. Between the
    calls of C nothing awaits or calls back, so that no other Fetch enters `_judged`.
    """
    count = len(asked)
    if count > _judged.room:
        _judged.make_room(count)
    judged, is_committed = _judged.native, isolation_level == READ_COMMITTED
    rows, questions, words = _judged.rows, _judged.questions, _judged.words
    for number, (one, partition) in enumerate(zip(asked, partitions, strict=True)):
        rows[number] = NO_ROW if partition is None else partition.row
        _put_asked(words, number * ASKED_BYTES, one[2], one[3], one[4], one[6])
    _find_limits(rows, questions, count, version, is_committed, now, judged)
    for number in judged.numbers[0 : judged.unsettled] if judged.unsettled else ():
        partition = partitions[number]
        assert partition is not None
        stable_offset = partition.last_stable_offset()
        lib.pt_settle(partition.row, questions, number, stable_offset, judged)
    if judged.stored:
        cache.contiguous_ends(judged.places, judged.stored, judged.ends)
        _find_stored(judged)
    limits: list[int] = _judged.limits[:count].tolist()
    return limits


def plan_partition(
    cache: BlockCache,
    asked: FetchPartition,
    partition: Partition,
    isolation_level: int,
    version: int,
    now: float,
) -> PartitionStatus:
    """Return the status of one partition that the client may read and Forebay follows."""
    (limit,) = find_limits(cache, (asked,), (partition,), isolation_level, version, now)
    if limit >= 0:
        return PartitionStatus(asked, partition, READABLE, "", limit)
    if limit != UNREADABLE:
        return PartitionStatus(asked, partition, AT_END, "", AT_END_BELOW - limit)
    return explain_unreadable(cache, asked, partition, isolation_level, version, now)


def explain_unreadable(
    cache: BlockCache,
    asked: FetchPartition,
    partition: Partition,
    isolation_level: int,
    version: int,
    now: float,
) -> PartitionStatus:
    """Return the status of a partition for which `find_limits` has UNREADABLE, with the reason.

    The broker refuses a negative byte limit (LogSegment.read), except at the end of the log, where
    it does not check the limit.
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
        return PartitionStatus(asked, partition, UNCONFIRMED, "unproven", -1)
    # the client and Metadata name the same newer epoch, which only a Fetch can prove
    if epoch < asked.current_leader_epoch == leader_state.suggested_epoch:
        return PartitionStatus(asked, partition, UNCONFIRMED, "epoch", -1)
    if not (
        (asked.current_leader_epoch == epoch or asked.current_leader_epoch == NO_EPOCH)
        and (asked.last_fetched_epoch == NO_EPOCH or asked.last_fetched_epoch == epoch)
    ):
        return PartitionStatus(asked, partition, ReadState.MISS, "epoch", -1)
    may_follow = version < FOLLOWER_FETCH_FROM_VERSION and not leader_state.is_led
    committed = isolation_level == READ_COMMITTED
    limit = partition.last_stable_offset() if committed else leader_state.high_watermark
    if offset < max(leader_state.log_start_offset, 0):
        return PartitionStatus(
            asked, partition, ReadState.MISS, plan_absent(cache, partition, offset), -1
        )
    is_at_end = 0 <= limit <= offset <= leader_state.high_watermark
    if cache.is_withheld and not is_at_end:
        return PartitionStatus(asked, partition, ReadState.MISS, "locked", -1)
    stored_end = (
        -1 if is_at_end else partition.seen_end(cache.contiguous_end(partition.slot, offset))
    )
    is_stored = stored_end > offset
    if not (is_at_end or is_stored or offset >= partition.tail):
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
    if now >= leader_state.lease.until or leader_state.frozen:
        return PartitionStatus(asked, partition, UNCONFIRMED, "epoch", -1)
    if offset > limit:
        return PartitionStatus(asked, partition, UNCONFIRMED, "unproven", limit)
    if not is_stored:
        return PartitionStatus(asked, partition, IN_TRANSIT, "hole", limit)
    lacks_batches = partition.topic.may_be_compacted and stored_end < min(limit, partition.tail)
    if committed and not lacks_batches:
        return _explain_unlisted(asked, partition, limit)
    return PartitionStatus(asked, partition, ReadState.MISS, "hole", limit)


def _explain_unlisted(asked: FetchPartition, partition: Partition, limit: int) -> PartitionStatus:
    """Return the status of stored bytes below the LSO, whose aborted transactions are unknown, for
    read_committed.
    """
    transactions, offset = partition.transactions, asked.fetch_offset
    is_coming = (
        NO_OFFSET < transactions.known_from <= offset
        and partition.tail <= transactions.end < partition.leader_state.high_watermark
    ) or (partition.recalling is not None and offset < transactions.known_from)
    return PartitionStatus(
        asked, partition, IN_TRANSIT if is_coming else ReadState.MISS, "transaction", limit
    )


def plan_absent(cache: BlockCache, partition: Partition, offset: int) -> str:
    """Return why an offset below the tail is not stored: "evicted" (the ghost remembers it), "hole"
    (newer and older offsets are stored) or "cold".
    """
    edges = cache.edges(partition.slot, offset)
    if edges.hole_start >= 0:
        return "hole"
    if 0 <= offset < edges.evicted_end or cache.age_bytes(partition.slot, offset) is not None:
        return "evicted"
    return "cold"
