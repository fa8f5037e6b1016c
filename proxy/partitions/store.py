"""Stores bytes in the cache: from an acknowledged Produce, or from a response to Forebay's own
Fetch.

Owns the decision to store, and the partition's tail (end of the newest contiguous run, where the
next batch is expected). Must not know connections. Invariants (design, "Produce", "Admission",
"Bracket"):
* a produced batch is stored only after its acknowledgement, under the epoch proven before it was
  forwarded and still proven now. The cache returns it only below that epoch's HW, which proves the
  epoch right.
* a batch forwarded before the topic's last surprise (`partitions/recompression.py`) is not stored,
  and batches stored before it are dropped.
* a fetched batch comes from Forebay's own Fetch by topic id, and is stored only in its response's
  epoch, at the tail: time order, never pollution. Responses to clients or followers never enter.
* nothing is stored while the partition is frozen.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from protocol import batch, produce
from protocol.errors import BadFrame, ErrorCode
from proxy.partitions.producer_state import DuplicateCheck
from proxy.partitions.recompression import CODEC_MASK, HEAD_OUTSIDE_CRC

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockcache.cache import BlockCache
    from blockcache.results import Inserted
    from protocol.batch import Batch
    from protocol.fetch import FetchPartition
    from protocol.produce import ProducedPartition
    from protocol.wire import Frame
    from proxy.partitions.services import PartitionServices
    from proxy.partitions.table import Partition

Key = tuple[str | bytes, int]
"""Topic as a request names it (name or id), and partition index."""
ZSTD, MAGIC_V2 = 4, 2
NOT_DUPLICATE = DuplicateCheck.NOT_DUPLICATE
NOT_PLAIN = batch.TRANSACTIONAL | batch.CONTROL
CRC = Struct(">I")
BASE_OFFSET, LAST_DELTA, LAST_DELTA_AT = Struct(">q"), Struct(">i"), 23
"""Last offset delta of a batch, behind CRC and attributes: DefaultRecordBatch, LastOffsetDelta."""


class Forwarded(NamedTuple):
    """A produced batch in flight, with the state of its partition when it was forwarded.

    `epoch` -1: no epoch was proven. `generation`: that of the topic's recompression check.
    """

    partition: Partition
    batch: Batch
    duplicate_check: DuplicateCheck
    epoch: int
    high_watermark: int
    generation: int


def settle(partition: Partition, lapsed: bool) -> None:
    """Move the tail after a response, at least to the log start offset. If the lease had lapsed,
    records written meanwhile are history, and the tail moves to the HW.
    """
    high_watermark = partition.leader_state.high_watermark
    if partition.tail < 0 or (lapsed and partition.tail < high_watermark):
        partition.tail = high_watermark
    partition.tail = max(partition.tail, partition.leader_state.log_start_offset)


def note_forwarded(partition: Partition, sent: Batch) -> Forwarded:
    """Note that a batch is about to be forwarded; return it with the present state of its
    partition.
    """
    leader_state = partition.leader_state
    duplicate_check = partition.producers.note(
        leader_state.epoch,
        sent.producer_id,
        sent.producer_epoch,
        sent.base_sequence,
        sent.record_count,
    )
    generation = partition.topic.fidelity.generation
    return Forwarded(
        partition,
        sent,
        duplicate_check,
        leader_state.epoch,
        leader_state.high_watermark,
        generation,
    )


def admit_answer(
    broker: PartitionServices,
    version: int,
    forwarded: dict[Key, Forwarded],
    frame: Frame,
    answer: Frame,
) -> None:
    """Store the batches of `frame` that a Produce response acknowledges. An unreadable response
    stores nothing.
    """
    try:
        response = produce.scan_response(answer, version)
    except BadFrame:
        return
    for acknowledged in response.partitions:
        noted = forwarded.get((acknowledged.topic, acknowledged.partition))
        if noted is not None and acknowledged.error_code == ErrorCode.NONE:
            partition = noted.partition
            note_acknowledged(
                partition, noted.epoch, acknowledged.base_offset, noted.batch.record_count
            )
            stored = admit_produced(broker, noted, acknowledged, frame)
            announce(broker, partition, acknowledged.base_offset, stored)


def note_acknowledged(partition: Partition, epoch: int, base_offset: int, records: int) -> None:
    """Note that the broker has `records` records from `base_offset` on, which shows that it leads.

    `epoch` is the epoch that was proven when they were forwarded. If another epoch is proven by
    now, the records may have been truncated, and the lease is revoked so that the broker is asked.
    Acknowledgements of several connections may cross.
    """
    leader_state = partition.leader_state
    if 0 <= epoch != leader_state.epoch:
        leader_state.revoke()
        return
    if epoch > leader_state.led_epoch:
        leader_state.led_epoch = epoch
    if partition.probe_offset < base_offset:
        partition.probe_offset = base_offset
    if partition.young_from < 0:
        partition.young_from = base_offset
    if partition.acknowledged_end < base_offset + records:
        partition.acknowledged_end = base_offset + records


def announce(
    broker: PartitionServices,
    partition: Partition,
    base_offset: int,
    stored: bool,
    now: float | None = None,
) -> None:
    """Tell the replica fetcher of records acknowledged at `now` (seconds; None: the present time).
    If they were `stored` and the HW is already above them, wake the waiters: the replica fetcher
    was faster.
    """
    if stored and partition.leader_state.high_watermark > base_offset:
        partition.wake_parked()
    broker.watch.produced(partition, now)


def plan_produced(
    partition: Partition,
    duplicate_check: DuplicateCheck,
    epoch: int,
    high_watermark: int,
    generation: int,
    attributes: int,
    base_offset: int,
) -> str:
    """Return "store" or "sample" for an acknowledged batch of format v2, or the reason why the
    replica fetcher has to bring it.

    `duplicate_check`, `epoch`, `high_watermark` and `generation` are the state before it was
    forwarded.
    """
    leader_state, fidelity = partition.leader_state, partition.topic.fidelity
    if epoch < 0 or epoch != leader_state.epoch or leader_state.frozen or not partition.is_followed:
        return "no-epoch"
    if duplicate_check is not DuplicateCheck.NOT_DUPLICATE:
        return str(duplicate_check.value)
    if (
        base_offset < high_watermark
        or base_offset < leader_state.log_start_offset
        or base_offset < 0
    ):
        return "below-hw"
    if fidelity.log_append_time is None or generation != fidelity.generation:
        return "unlike"
    return "store" if attributes & CODEC_MASK in fidelity.equal_codecs else "sample"


def plan_forwarded(forwarded: Forwarded, base_offset: int) -> str:
    """Return `plan_produced` for a batch of any format; "old-format" below v2."""
    sent = forwarded.batch
    if sent.magic < MAGIC_V2:
        return "old-format"
    known = (
        forwarded.duplicate_check,
        forwarded.epoch,
        forwarded.high_watermark,
        forwarded.generation,
    )
    return plan_produced(forwarded.partition, *known, sent.attributes, base_offset)


def is_stored_as_sent(
    partition: Partition,
    duplicate_check: DuplicateCheck,
    epoch: int,
    high_watermark: int,
    generation: int,
    attributes: int,
    base_offset: int,
) -> bool:
    """True if `plan_produced` is "store" and the broker changes only the fields that it assigns.

    The batch belongs to no transaction, and its timestamps stay. A zstd batch needs a partition
    already known to have zstd, since old clients must get an error.
    """
    leader_state, fidelity, codec = (
        partition.leader_state,
        partition.topic.fidelity,
        attributes & CODEC_MASK,
    )
    return (
        0 <= epoch == leader_state.epoch
        and not leader_state.frozen
        and partition.is_followed
        and duplicate_check is NOT_DUPLICATE
        and base_offset >= 0
        and base_offset >= high_watermark
        and base_offset >= leader_state.log_start_offset
        and fidelity.log_append_time is False
        and generation == fidelity.generation
        and codec in fidelity.equal_codecs
        and not attributes & NOT_PLAIN
        and (codec != ZSTD or partition.zstd)
    )


def admit_produced(
    broker: PartitionServices, forwarded: Forwarded, acknowledged: ProducedPartition, frame: Frame
) -> bool:
    """Stamp and store an acknowledged batch if it may be stored. Return True if the tail may have
    moved.
    """
    partition, sent = forwarded.partition, forwarded.batch
    _find_surprise(broker, forwarded, acknowledged)
    plan = plan_forwarded(forwarded, acknowledged.base_offset)
    broker.counters.produce_batches[plan] += 1
    if plan not in ("store", "sample"):
        return False
    stamped, start = _stamp(partition, forwarded, acknowledged, frame)
    end = start + sent.end - sent.start
    if plan == "sample":
        body = bytes(memoryview(stamped)[start + HEAD_OUTSIDE_CRC : end])
        partition.topic.fidelity.keep_sample(
            partition.index, acknowledged.base_offset, sent.attributes & CODEC_MASK, body
        )
        return False
    last_offset = acknowledged.base_offset + sent.last_offset - sent.base_offset
    came_first = _stored_crc(broker.cache, partition.slot, acknowledged.base_offset, last_offset)
    if (
        came_first is not None
        and came_first != CRC.unpack_from(stamped, start + HEAD_OUTSIDE_CRC)[0]
    ):
        # the replica fetcher was faster, and brought other bytes
        broker.distrust(partition.topic, "mismatch")
        return False
    partition.zstd = partition.zstd or sent.attributes & CODEC_MASK == ZSTD
    _insert(broker, partition, stamped, start, end, acknowledged.base_offset, "produce")
    placed: tuple[Batch, ...] = ()
    if batch.is_transactional(sent.attributes) or batch.is_control(sent.attributes):
        placed = (sent._replace(base_offset=acknowledged.base_offset, last_offset=last_offset),)
    partition.transactions.observed(stamped, placed, acknowledged.base_offset, last_offset + 1)
    return True


def _find_surprise(
    broker: PartitionServices, forwarded: Forwarded, acknowledged: ProducedPartition
) -> None:
    """Compare an acknowledgement with the belief about the topic. An acknowledgement can contradict
    a belief, never prove one. The broker answers a duplicate with its old offset, and with a log
    append time whatever the topic's timestamp type (UnifiedLog.append).
    """
    partition = forwarded.partition
    is_below = 0 <= acknowledged.base_offset < forwarded.high_watermark
    if is_below and forwarded.duplicate_check is not DuplicateCheck.RESENT:
        broker.watch.doubt(partition)  # a duplicate from another process, or another log
    is_log_append_time = acknowledged.log_append_time_ms >= 0
    if forwarded.duplicate_check is NOT_DUPLICATE and not partition.topic.fidelity.is_as_known(
        is_log_append_time
    ):
        broker.distrust(partition.topic, "unlike")


def _stamp(
    partition: Partition, forwarded: Forwarded, acknowledged: ProducedPartition, frame: Frame
) -> tuple[memoryview, int]:
    """Return the batch as the broker stored it, and its start offset in bytes. The buffer of a
    large request is changed in place: the broker has already received it.
    """
    sent = forwarded.batch
    if isinstance(frame, bytes):
        stamped, start = memoryview(bytearray(memoryview(frame)[sent.start : sent.end])), 0
    else:
        stamped, start = memoryview(frame), sent.start
    batch.stamp_base_offset(stamped, start, acknowledged.base_offset)
    batch.stamp_leader_epoch(stamped, start, forwarded.epoch)
    if partition.topic.fidelity.log_append_time:
        batch.stamp_log_append_time(stamped, start, acknowledged.log_append_time_ms)
    return stamped, start


def admit_fetched(
    broker: PartitionServices,
    partition: Partition,
    asking: FetchPartition,
    frame: Frame,
    batches: Sequence[Batch],
) -> None:
    """Compare fetched batches of the proven epoch with the produced ones, and store those that may
    enter. `batches` is not empty.
    """
    for fetched in batches:
        if fetched.attributes & CODEC_MASK == ZSTD:
            partition.zstd = True
        if fetched.base_offset >= partition.young_from >= 0:
            _compare(broker, partition, fetched, frame)
    covers_from, end = min(asking.fetch_offset, batches[0].base_offset), batches[-1].last_offset + 1
    tail = partition.tail
    if (
        not covers_from <= tail < end
    ):  # history, or nothing new: the usual case, since Produce was faster
        return
    first = next(number for number, one in enumerate(batches) if one.last_offset >= tail)
    if first > 0:
        covers_from = batches[first - 1].last_offset + 1
    _insert(broker, partition, frame, batches[first].start, batches[-1].end, covers_from, "watch")
    # also if the arena could not take a batch: else the replica fetcher would ask for it again and
    # again
    partition.tail = max(partition.tail, end)


def _compare(broker: PartitionServices, partition: Partition, fetched: Batch, frame: Frame) -> None:
    """Compare a young fetched batch with the produced one: with the sample, or with the stored
    bytes. A batch from before this process followed the partition may stem from other settings.
    """
    topic, log_append_time = partition.topic, batch.is_log_append_time(fetched.attributes)
    body = memoryview(frame)[fetched.start + HEAD_OUTSIDE_CRC : fetched.end]
    if not topic.fidelity.is_as_known(log_append_time):
        broker.distrust(topic, "unlike")
    elif topic.fidelity.compare_fetched(partition.index, fetched.base_offset, body) is False:
        broker.distrust(topic, "mismatch")
    elif fetched.base_offset >= partition.produced_from >= 0:
        stored = _stored_crc(broker.cache, partition.slot, fetched.base_offset, fetched.last_offset)
        if stored is not None and stored != fetched.crc:
            broker.distrust(topic, "mismatch")
    topic.fidelity.log_append_time = log_append_time


def _stored_crc(cache: BlockCache, slot: int, base_offset: int, last_offset: int) -> int | None:
    """Return the CRC of the batch stored (or only observed) at these offsets; None if there is
    none.
    """
    head = cache.peek_head(slot, base_offset)
    if head is None:
        return None
    stored_base, last_delta = (
        BASE_OFFSET.unpack_from(head)[0],
        LAST_DELTA.unpack_from(head, LAST_DELTA_AT)[0],
    )
    if stored_base + last_delta > last_offset:
        return None
    return int(CRC.unpack_from(head, HEAD_OUTSIDE_CRC)[0])


def _insert(
    broker: PartitionServices,
    partition: Partition,
    buffer: Frame,
    start: int,
    end: int,
    covers_from: int,
    source: str,
) -> None:
    broker.cache.eliminate()
    inserted = broker.cache.insert(partition.slot, buffer, start, end, covers_from)
    _note_inserted(broker, partition, inserted, source)
    if inserted.conflict_offset >= 0:
        broker.invalidate(partition, inserted.conflict_offset, "conflict")
        inserted = broker.cache.insert(partition.slot, buffer, start, end, covers_from)
        _note_inserted(broker, partition, inserted, source)
    if source == "produce" and inserted.stored_bytes:
        note_produced(partition, covers_from)
    if covers_from <= partition.tail or source != "produce":
        partition.tail = max(
            partition.tail,
            broker.cache.contiguous_end(partition.slot, max(partition.tail, covers_from)),
        )


def note_produced(partition: Partition, base_offset: int) -> None:
    """Note that stored bytes of a producer begin at `base_offset` or before. Acknowledgements of
    several connections may cross.
    """
    if not 0 <= partition.produced_from <= base_offset:
        partition.produced_from = base_offset


def _note_inserted(
    broker: PartitionServices, partition: Partition, inserted: Inserted, source: str
) -> None:
    if not inserted.stored_bytes:
        return
    broker.counters.admitted_batches[source] += 1
    if broker.stored_runs is not None:
        first, following = inserted.first_offset, inserted.next_offset
        broker.stored_runs.add(partition, first, following, inserted.stored_bytes, source)
