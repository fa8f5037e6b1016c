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

from operator import attrgetter
from struct import Struct
from typing import TYPE_CHECKING, Any

from blockcache.appending import APPENDER, PLACED_FIELDS
from protocol import batch
from protocol.api import PRODUCE
from protocol.produce_rows import list_errors
from proxy.partitions.forwarded import (
    LEFT_EPOCH,
    LEFT_RUN,
    LEFT_TAIL,
    LEFT_TRANSACTIONS,
    NOT_STORED,
    PLACE_FIELDS,
    SAMPLED,
    STORE,
    admit,
    judge,
    list_left,
    list_others,
    list_stamped,
    list_unplaced,
    place,
    store_placed,
)
from proxy.partitions.leader_state import REFRESH_EPOCH_S
from proxy.partitions.producer_state import DuplicateCheck
from proxy.partitions.recompression import CODEC_MASK, HEAD_OUTSIDE_CRC

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockcache.cache import BlockCache
    from blockcache.results import Inserted
    from protocol.batch import Batch
    from protocol.fetch import FetchPartition
    from protocol.primitives import Frame
    from protocol.produce_rows import ProducedRow
    from proxy.partitions.forwarded import Forwarded, ForwardedBatches, StoredBatch
    from proxy.partitions.services import PartitionServices
    from proxy.partitions.table import Partition

ZSTD, MAGIC_V2 = 4, 2
NOT_DUPLICATE = DuplicateCheck.NOT_DUPLICATE
NOT_PLAIN = batch.TRANSACTIONAL | batch.CONTROL
CRC = Struct(">I")
BASE_OFFSET, LAST_DELTA, LAST_DELTA_AT = Struct(">q"), Struct(">i"), 23
"""Last offset delta of a batch, behind CRC and attributes: DefaultRecordBatch, LastOffsetDelta."""
PARKED = attrgetter("parked")
assert PLACED_FIELDS == PLACE_FIELDS, "C places a batch by the fields that the cache stores it by"
assert APPENDER == STORE, "C stores by the function that the cache offers"


def admit_response(
    broker: PartitionServices,
    frame: Frame,
    forwarded: ForwardedBatches,
    answer: Frame,
    produced: tuple[Any, int],
    now: float,
    said: Any = None,
) -> None:
    """Store the batches of the request `frame` that its response acknowledges, of those that were
    `forwarded`. `produced`: the rows of the response `answer`, as `produce_rows.scan_produced` returns
    them; it arrived at `now` (seconds). `said`: what `admit` has returned, where it was called already (in C).

    Batches that may be stored as they were sent are stored by one call. Before any of them
    is judged, those with a log append time are: they may show that the broker changes what it stores.
    """
    storing = broker.cache.appender, broker.stored_runs is not None, now - REFRESH_EPOCH_S
    if said is None:
        said = admit(forwarded, frame, answer, produced, storing)
        if said.acknowledged != produced[1]:  # nearly always equal
            count_errors(broker, produced)
    if said.changed:
        _revoke_changed(list_unplaced(forwarded))
    if said.stamped:
        for one, row in list_stamped(forwarded):
            admit_singly(broker, one, row, frame, now)
        place(forwarded)
        store_placed(forwarded, frame, storing)
    while said.appended < said.placed:
        broker.cache.make_room()
        store_placed(forwarded, frame, storing)
    left: Sequence[StoredBatch] = ()
    if said.placed:
        if said.stored:
            broker.counters.produce.batches["store"] += said.stored
            broker.counters.stored.batches["produce"] += said.stored
        if said.any_left or any(map(PARKED, filter(None, forwarded.partitions))):
            left = list_left(forwarded)
    others: Sequence[tuple[Forwarded, ProducedRow]] = ()
    if said.stamped + said.stored < said.acknowledged:
        others = list_others(forwarded)
    for stored in left:
        _finish_stored(broker, stored, now)
    for one, row in others:
        admit_singly(broker, one, row, frame, now)


def count_errors(broker: PartitionServices, produced: tuple[Any, int]) -> None:
    """Count the errors of a response, by its rows."""
    for code in list_errors(produced):
        broker.counters.apis.fail(PRODUCE, code)


def _revoke_changed(acknowledged: Sequence[tuple[Forwarded, ProducedRow]]) -> None:
    """Revoke the lease where another epoch is proven by now than when the batch was forwarded: the
    records may have been truncated, so that the broker is asked. Acknowledgements of several
    connections may cross. First of all: what stores batches may raise.
    """
    for one, _ in acknowledged:
        if 0 <= one.epoch != one.partition.leader_state.epoch:
            one.partition.leader_state.revoke()


def _finish_stored(broker: PartitionServices, stored: StoredBatch, now: float) -> None:
    """Do what is left to be done for a batch that was stored as it was sent."""
    partition, base_offset, following, size_bytes, left, clock = stored
    if left & LEFT_RUN and broker.stored_runs is not None:
        broker.stored_runs.add(partition, base_offset, following, size_bytes, 1, "produce", clock)
    if left & LEFT_TAIL:
        partition.extend(broker.cache.contiguous_end(partition.slot, partition.tail))
    if left & LEFT_TRANSACTIONS:
        partition.transactions.observed(b"", (), base_offset, following)
    if partition.parked or left & LEFT_EPOCH:
        # otherwise nothing waits for it, and the epoch was proven recently
        announce(broker, partition, base_offset, True, now)


def admit_singly(
    broker: PartitionServices, one: Forwarded, said: ProducedRow, frame: Frame, now: float
) -> None:
    """Store an acknowledged batch if it may be stored, whatever has to be done for that, and tell
    the replica fetcher of it.
    """
    stored = admit_produced(broker, one, said, frame)
    announce(broker, one.partition, said.base_offset, stored, now)


def announce(
    broker: PartitionServices, partition: Partition, base_offset: int, stored: bool, now: float
) -> None:
    """Tell the replica fetcher and the waiters of records acknowledged at `now` (seconds). If they
    were `stored` and the HW is already above them, wake the waiters: the replica fetcher was faster.
    """
    if stored and partition.leader_state.high_watermark > base_offset:
        partition.wake_parked()
    else:
        partition.tell_acknowledged()
    broker.replica_fetcher.produced(partition, now)


def announce_all(
    broker: PartitionServices, partition: Partition, first: int, last: int, now: float
) -> None:
    """`announce` stored batches with base offsets from `first` to `last`."""
    announce(broker, partition, first, True, now)
    if partition.leader_state.high_watermark > first < last:
        announce(broker, partition, last, True, now)


def explain_not_stored(one: Forwarded, base_offset: int) -> str:
    """Return the reason for which the verdict is NOT_STORED: the replica fetcher has to bring
    the batch.
    """
    partition, leader_state = one.partition, one.partition.leader_state
    if one.row.magic < MAGIC_V2:
        return "old-format"
    if not (0 <= one.epoch == leader_state.epoch and partition.is_followed) or leader_state.frozen:
        return "no-epoch"
    if one.duplicate_check is not NOT_DUPLICATE:
        return str(one.duplicate_check.value)
    if base_offset < max(0, one.high_watermark, leader_state.log_start_offset):
        return "below-hw"
    return "unlike"


def admit_produced(
    broker: PartitionServices, forwarded: Forwarded, said: ProducedRow, frame: Frame
) -> bool:
    """Stamp and store an acknowledged batch if it may be stored. Return True if the tail may have
    moved.
    """
    partition, row, base_offset = forwarded.partition, forwarded.row, said.base_offset
    _find_surprise(broker, forwarded, said)
    judged = judge(forwarded, base_offset)
    if judged == NOT_STORED:
        broker.counters.produce.batches[explain_not_stored(forwarded, base_offset)] += 1
        return False
    broker.counters.produce.batches["sample" if judged == SAMPLED else "store"] += 1
    stamped, start = _stamp(partition, forwarded, said, frame)
    end = start + row.end - row.start
    codec = row.attributes & CODEC_MASK
    if judged == SAMPLED:
        body = bytes(memoryview(stamped)[start + HEAD_OUTSIDE_CRC : end])
        partition.topic.fidelity.keep_sample(partition.index, base_offset, codec, body)
        return False
    last_offset = base_offset + row.last_delta
    came_first = _stored_crc(broker.cache, partition.slot, base_offset, last_offset)
    if (
        came_first is not None
        and came_first != CRC.unpack_from(stamped, start + HEAD_OUTSIDE_CRC)[0]
    ):
        # the replica fetcher was faster, and brought other bytes
        broker.distrust(partition.topic, "mismatch")
        return False
    if codec == ZSTD:
        partition.note_zstd()
    partition.extend(_insert(broker, partition, stamped, start, end, base_offset, "produce"))
    placed: Sequence[Batch] = ()
    if row.attributes & NOT_PLAIN:
        placed = batch.scan_batches(stamped, start, end)
    partition.transactions.observed(stamped, placed, base_offset, last_offset + 1)
    return True


def _find_surprise(broker: PartitionServices, forwarded: Forwarded, said: ProducedRow) -> None:
    """Compare an acknowledgement with the belief about the topic. An acknowledgement can contradict
    a belief, never prove one. The broker answers a duplicate with its old offset, and with a log
    append time whatever the topic's timestamp type (UnifiedLog.append).
    """
    partition = forwarded.partition
    is_below = 0 <= said.base_offset < forwarded.high_watermark
    if is_below and forwarded.duplicate_check is not DuplicateCheck.RESENT:
        broker.replica_fetcher.doubt(partition)  # a duplicate from another process, or another log
    is_log_append_time = said.log_append_time_ms >= 0
    if forwarded.duplicate_check is NOT_DUPLICATE and not partition.topic.fidelity.is_as_known(
        is_log_append_time
    ):
        broker.distrust(partition.topic, "unlike")


def _stamp(
    partition: Partition, forwarded: Forwarded, said: ProducedRow, frame: Frame
) -> tuple[memoryview, int]:
    """Return the batch as the broker stored it, and its start offset in bytes. The buffer of a
    large request is changed in place: the broker has already received it.
    """
    row = forwarded.row
    if isinstance(frame, bytes):
        stamped, start = memoryview(bytearray(memoryview(frame)[row.start : row.end])), 0
    else:
        stamped, start = memoryview(frame), row.start
    batch.stamp_base_offset(stamped, start, said.base_offset)
    batch.stamp_leader_epoch(stamped, start, forwarded.epoch)
    if partition.topic.fidelity.log_append_time:
        batch.stamp_log_append_time(stamped, start, said.log_append_time_ms)
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
        if not partition.zstd and fetched.attributes & CODEC_MASK == ZSTD:
            partition.note_zstd()
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
    inserted_end = _insert(
        broker, partition, frame, batches[first].start, batches[-1].end, covers_from, "watch"
    )
    # also if the arena could not take a batch: else the replica fetcher would ask for it again and
    # again
    partition.extend(max(inserted_end, end))


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
    if topic.fidelity.native.log_append_time != log_append_time:
        topic.fidelity.learn(log_append_time)


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
) -> int:
    """Store batches. Return the end of the stored run that the tail moves to; -1 if it does not
    reach the tail.
    """
    broker.cache.eliminate()
    inserted = broker.cache.insert(partition.slot, buffer, start, end, covers_from)
    _note_inserted(broker, partition, inserted, source)
    if inserted.conflict_offset >= 0:
        broker.invalidate(partition, inserted.conflict_offset, "conflict")
        inserted = broker.cache.insert(partition.slot, buffer, start, end, covers_from)
        _note_inserted(broker, partition, inserted, source)
    if source == "produce" and inserted.stored_bytes:
        partition.note_produced(covers_from)
    if covers_from > partition.tail and source == "produce":
        return -1
    return broker.cache.contiguous_end(partition.slot, max(partition.tail, covers_from))


def _note_inserted(
    broker: PartitionServices, partition: Partition, inserted: Inserted, source: str
) -> None:
    if not inserted.stored_bytes:
        return
    broker.counters.stored.batches[source] += 1
    if broker.stored_runs is not None:
        first, following = inserted.first_offset, inserted.next_offset
        size_bytes, batches = inserted.stored_bytes, inserted.stored_batches
        clock = broker.cache.peek_admitted_bytes() - size_bytes
        broker.stored_runs.add(partition, first, following, size_bytes, batches, source, clock)
