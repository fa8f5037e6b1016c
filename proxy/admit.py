"""Bytes into the cache: from an acknowledged Produce, or from an answer of the broker's to somebody's Fetch.

Owns what is stored and the partition's tail (the end of the newest contiguous run, where the next batch is
expected). It must not know links. Invariants (design, "Produce", "Admission", "Bracket"):
* a produced batch is stored only after its acknowledgement, with the epoch proven before it was forwarded and
  still proven now; it is served only below the HW of that same epoch, which is the proof that the epoch was
  right.
* a fetched batch is stored only in the epoch of its answer, at the tail, at the answer's HW or LSO, or to
  fill a hole.
* a lagging reader's bytes and a follower's never enter.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from blockcache.admission import Admission, Run, plan_admission
from protocol import batch, produce
from protocol.errors import BadFrame, ErrorCode
from proxy.fidelity import CODEC_MASK, HEAD_OUTSIDE_CRC
from proxy.producers import Sending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockcache.admission import Inserted
    from blockcache.cache import BlockCache
    from protocol.batch import Batch
    from protocol.fetch import FetchedPartition, FetchPartition
    from protocol.produce import ProducedPartition
    from protocol.wire import Frame
    from proxy.broker import Broker
    from proxy.partitions import Partition

Key = tuple[str | bytes, int]
"""Topic, as a request names it, and partition."""
ZSTD, MAGIC_V2 = 4, 2
FRESH = Sending.FRESH
NOT_PLAIN = batch.TRANSACTIONAL | batch.CONTROL
CRC_AND_ATTRIBUTES = Struct(">IH")
BASE_OFFSET, LAST_DELTA, LAST_DELTA_AT = Struct(">q"), Struct(">i"), 23
"""Where a batch ends: DefaultRecordBatch, LastOffsetDelta behind CRC and attributes."""


class Forwarded(NamedTuple):
    """A produced batch on its way: what was known when it was forwarded. `epoch` -1: none was proven."""

    partition: Partition
    batch: Batch
    sending: Sending
    epoch: int
    high_watermark: int


def settle(partition: Partition, lapsed: bool) -> None:
    """After an answer: where the watch had not looked for a while, what was written meanwhile is history, and
    the tail is at the HW.
    """
    high_watermark = partition.truth.high_watermark
    if partition.tail < 0 or (lapsed and partition.tail < high_watermark):
        partition.tail = high_watermark
    partition.tail = max(partition.tail, partition.truth.log_start_offset)


def note_forwarded(partition: Partition, sent: Batch) -> Forwarded:
    """A batch is about to be forwarded."""
    truth = partition.truth
    sending = partition.producers.note(
        truth.epoch, sent.producer_id, sent.producer_epoch, sent.base_sequence, sent.record_count
    )
    return Forwarded(partition, sent, sending, truth.epoch, truth.high_watermark)


def admit_answer(
    broker: Broker, version: int, forwarded: dict[Key, Forwarded], frame: Frame, answer: Frame
) -> None:
    """What the answer acknowledges of what was forwarded in `frame`."""
    try:
        response = produce.scan_response(answer, version)
    except BadFrame:
        return
    for acknowledged in response.partitions:
        noted = forwarded.get((acknowledged.topic, acknowledged.partition))
        if noted is not None and acknowledged.error_code == ErrorCode.NONE:
            partition = noted.partition
            note_acknowledged(partition, acknowledged.base_offset, noted.batch.record_count)
            stored = admit_produced(broker, noted, acknowledged, frame)
            announce(broker, partition, acknowledged.base_offset, stored)


def note_acknowledged(partition: Partition, base_offset: int, records: int) -> None:
    """The broker has so many records from `base_offset` on. Acknowledgements of several connections may cross."""
    if partition.stand_at < base_offset:
        partition.stand_at = base_offset
    if partition.acknowledged_end < base_offset + records:
        partition.acknowledged_end = base_offset + records


def announce(
    broker: Broker, partition: Partition, base_offset: int, stored: bool, now: float | None = None
) -> None:
    """What was acknowledged at `now` is `stored`, or not: have the watch look, and who waits where the watch was
    faster.
    """
    if stored and partition.truth.high_watermark > base_offset:
        partition.wake_parked()
    broker.watch.produced(partition, now)


def plan_produced(
    partition: Partition, sending: Sending, epoch: int, high_watermark: int, attributes: int, base_offset: int
) -> str:
    """What becomes of an acknowledged batch v2: "store", "sample", or why it is left to the watch. `sending`, `epoch`
    and `high_watermark` are what was known before it was forwarded.
    """
    truth, fidelity = partition.truth, partition.topic.fidelity
    if epoch < 0 or epoch != truth.epoch or not partition.is_followed:
        return "no-epoch"
    if sending is not Sending.FRESH:
        return str(sending.value)
    if base_offset < high_watermark or base_offset < truth.log_start_offset or base_offset < 0:
        return "below-hw"
    if fidelity.log_append_time is None:
        return "unlike"
    return "store" if attributes & CODEC_MASK in fidelity.equal_codecs else "sample"


def plan_forwarded(forwarded: Forwarded, base_offset: int) -> str:
    """`plan_produced`, of a batch of any format."""
    sent = forwarded.batch
    if sent.magic < MAGIC_V2:
        return "old-format"
    known = (forwarded.sending, forwarded.epoch, forwarded.high_watermark)
    return plan_produced(forwarded.partition, *known, sent.attributes, base_offset)


def is_stored_as_sent(
    partition: Partition, sending: Sending, epoch: int, high_watermark: int, attributes: int, base_offset: int
) -> bool:
    """Whether `plan_produced` is "store", and nothing of the batch changes but what a broker assigns: it is of no
    transaction, its timestamps stay, and its codec is one that this partition is known to have where clients must be
    told.
    """
    truth, fidelity, codec = partition.truth, partition.topic.fidelity, attributes & CODEC_MASK
    return (
        0 <= epoch == truth.epoch
        and partition.is_followed
        and sending is FRESH
        and base_offset >= 0
        and base_offset >= high_watermark
        and base_offset >= truth.log_start_offset
        and fidelity.log_append_time is False
        and codec in fidelity.equal_codecs
        and not attributes & NOT_PLAIN
        and (codec != ZSTD or partition.zstd)
    )


def admit_produced(
    broker: Broker, forwarded: Forwarded, acknowledged: ProducedPartition, frame: Frame
) -> bool:
    """A batch was acknowledged: stamp and store it if it may be. True if the tail may have moved."""
    partition, sent = forwarded.partition, forwarded.batch
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
    came_first = _stored_head(broker.cache, partition.slot, acknowledged.base_offset, last_offset)
    ours = CRC_AND_ATTRIBUTES.unpack_from(stamped, start + HEAD_OUTSIDE_CRC)
    if came_first is not None and came_first[0] != ours[0]:
        _mismatch(broker, partition, sent.attributes)  # the watch was faster, and brought other bytes
        return False
    partition.zstd = partition.zstd or sent.attributes & CODEC_MASK == ZSTD
    _insert(broker, partition, stamped, start, end, acknowledged.base_offset, "produce")
    placed: tuple[Batch, ...] = ()
    if batch.is_transactional(sent.attributes) or batch.is_control(sent.attributes):
        placed = (sent._replace(base_offset=acknowledged.base_offset, last_offset=last_offset),)
    partition.transactions.observed(stamped, placed, acknowledged.base_offset, last_offset + 1)
    return True


def _mismatch(broker: Broker, partition: Partition, produced_attributes: int) -> None:
    """The broker does not store what is produced in this codec: no more of it is stored, and what was is dropped."""
    partition.topic.fidelity.suspend(produced_attributes & CODEC_MASK)
    if partition.produced_from >= 0:
        broker.invalidate(partition, partition.produced_from, "mismatch")
    partition.produced_from = -1


def _stamp(
    partition: Partition, forwarded: Forwarded, acknowledged: ProducedPartition, frame: Frame
) -> tuple[memoryview, int]:
    """The batch as the broker stored it, and where it starts. A large request's own buffer is used: the
    broker has taken it.
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
    broker: Broker,
    partition: Partition,
    asking: FetchPartition,
    answered: FetchedPartition,
    frame: Frame,
    batches: Sequence[Batch],
    source: str,
) -> None:
    """Batches came from the broker, in the proven epoch: compare them with what was produced, store what may
    enter.
    """
    truth = partition.truth
    for fetched in batches:
        if fetched.attributes & CODEC_MASK == ZSTD:
            partition.zstd = True
        _compare(broker, partition, fetched, frame, is_young=source != "client")
    covers_from = min(asking.fetch_offset, batches[0].base_offset)
    first = _first_to_enter(broker, partition, answered, batches, covers_from)
    if first < 0:
        return
    if first > 0:
        covers_from = batches[first - 1].last_offset + 1
    if batches[-1].last_offset < truth.log_start_offset:
        return
    at_tail = covers_from <= partition.tail
    entered_by = "fetch" if source == "client" else "watch"
    _insert(broker, partition, frame, batches[first].start, batches[-1].end, covers_from, entered_by)
    if at_tail:  # also where the arena could not take a batch: the watch must not ask for it again and again
        partition.tail = max(partition.tail, batches[-1].last_offset + 1)


def _compare(broker: Broker, partition: Partition, fetched: Batch, frame: Frame, is_young: bool) -> None:
    """Hold a fetched batch against the one that was produced: against the sample, or against what is stored
    at the tail.
    """
    fidelity = partition.topic.fidelity
    body = memoryview(frame)[fetched.start + HEAD_OUTSIDE_CRC : fetched.end]
    equal = fidelity.saw_fetched(
        partition.index, fetched.base_offset, batch.is_log_append_time(fetched.attributes), body
    )
    if is_young and equal is None and fetched.base_offset >= partition.produced_from >= 0:
        stored = _stored_head(broker.cache, partition.slot, fetched.base_offset, fetched.last_offset)
        if stored is not None and stored[0] != fetched.crc:
            _mismatch(broker, partition, stored[1])
    if equal is False:
        broker.counters.invalidations["unlike"] += 1


def _stored_head(cache: BlockCache, slot: int, base_offset: int, last_offset: int) -> tuple[int, int] | None:
    """CRC and attributes of the batch that is stored, or observed, at these offsets, if any."""
    head = cache.peek_head(slot, base_offset)
    if head is None:
        return None
    stored_base, last_delta = BASE_OFFSET.unpack_from(head)[0], LAST_DELTA.unpack_from(head, LAST_DELTA_AT)[0]
    if stored_base + last_delta > last_offset:
        return None
    crc, attributes = CRC_AND_ATTRIBUTES.unpack_from(head, HEAD_OUTSIDE_CRC)
    return crc, attributes


def _first_to_enter(
    broker: Broker,
    partition: Partition,
    answered: FetchedPartition,
    batches: Sequence[Batch],
    covers_from: int,
) -> int:
    """Index of the first batch that enters, -1 for none. Those after it enter too: each then starts at the
    tail.
    """
    end = batches[-1].last_offset + 1
    if partition.tail >= 0 and covers_from <= partition.tail < end:
        return next(i for i, b in enumerate(batches) if b.last_offset >= partition.tail)
    if end <= partition.tail and end <= broker.cache.contiguous_end(partition.slot, covers_from):
        return -1  # nothing of it is new: the usual case, since Produce was faster
    run = Run(
        covers_from,
        end,
        answered.end - answered.start,
        high_watermark=answered.high_watermark,
        last_stable_offset=answered.last_stable_offset,
    )
    plan = plan_admission(run, broker.cache.edges(partition.slot, covers_from), broker.cache.block_max_bytes)
    if not plan.enters:
        return -1
    return 0 if plan in (Admission.FILLS_HOLE, Admission.STARTS_AT_TAIL) else len(batches) - 1


def _insert(
    broker: Broker, partition: Partition, buffer: Frame, start: int, end: int, covers_from: int, source: str
) -> None:
    broker.cache.eliminate()
    inserted = broker.cache.insert(partition.slot, buffer, start, end, covers_from)
    _note_inserted(broker, partition, inserted, source)
    if inserted.conflict_offset >= 0:
        broker.invalidate(partition, inserted.conflict_offset, "conflict")
        inserted = broker.cache.insert(partition.slot, buffer, start, end, covers_from)
        _note_inserted(broker, partition, inserted, source)
    if source == "produce" and inserted.stored_bytes and partition.produced_from < 0:
        partition.produced_from = covers_from
    if covers_from <= partition.tail or source != "produce":
        partition.tail = max(
            partition.tail, broker.cache.contiguous_end(partition.slot, max(partition.tail, covers_from))
        )


def _note_inserted(broker: Broker, partition: Partition, inserted: Inserted, source: str) -> None:
    if not inserted.stored_bytes:
        return
    broker.counters.admitted_batches[source] += 1
    if broker.block_lines is not None:
        first, following = inserted.first_offset, inserted.next_offset
        broker.block_lines.add(partition, first, following, inserted.stored_bytes, source)
