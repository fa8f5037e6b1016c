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
from typing import TYPE_CHECKING, NamedTuple, Protocol

from protocol import batch
from protocol.produce_rows import ProducedRow
from proxy.partitions.leader_state import REFRESH_EPOCH_S
from proxy.partitions.producer_state import NO_PRODUCER_ID, DuplicateCheck
from proxy.partitions.recompression import CODEC_MASK, HEAD_OUTSIDE_CRC

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockcache.cache import BlockCache
    from blockcache.results import Inserted
    from protocol.batch import Batch
    from protocol.fetch import FetchPartition
    from protocol.primitives import Frame
    from protocol.produce_rows import Row
    from proxy.partitions.services import PartitionServices
    from proxy.partitions.table import Partition

ZSTD, MAGIC_V2 = 4, 2
NOT_DUPLICATE = DuplicateCheck.NOT_DUPLICATE
NOT_PLAIN = batch.TRANSACTIONAL | batch.CONTROL
CRC = Struct(">I")
BASE_OFFSET, LAST_DELTA, LAST_DELTA_AT = Struct(">q"), Struct(">i"), 23
"""Last offset delta of a batch, behind CRC and attributes: DefaultRecordBatch, LastOffsetDelta."""
_new = tuple.__new__
"""Makes a NamedTuple in half the time of its own constructor, which is a Python function."""
NOT_STORED, SAMPLED, STAMPED, AS_SENT = range(4)
"""Verdicts of `judge_all`. SAMPLED: kept to be compared with the bytes that the broker returns.
STAMPED: stored, after a copy was changed or transactions were told. AS_SENT: stored, and the broker
changes only the fields that it assigns.
"""


class Forwarded(NamedTuple):
    """A produced batch in flight, with the state of its partition when it was forwarded.

    `named`: the topic as the request's bytes name it. `row`: where the batch lies, and its header;
    its magic is not -1. `epoch` -1: no epoch was proven. `generation`: that of the topic's
    recompression check.
    """

    partition: Partition
    named: bytes
    row: Row
    duplicate_check: DuplicateCheck
    epoch: int
    high_watermark: int
    generation: int


class Named(Protocol):
    """A partition as a request names it. `named`: the topic as the request's bytes name it.
    `partition` None: nothing of it is stored.
    """

    @property
    def named(self) -> bytes:
        """The topic's bytes in the request."""

    @property
    def partition(self) -> Partition | None:
        """The partition to be stored."""


def note_forwarded(rows: Sequence[Row], targets: Sequence[Named]) -> list[Forwarded]:
    """Note that the batches of these rows are about to be forwarded; return them with the present
    states of their partitions. Rows that have no partition to be stored, or are not exactly one
    batch, are left out.
    """
    forwarded = []
    for row, target in zip(rows, targets, strict=True):
        partition = target.partition
        if partition is None or row.magic < 0:
            continue
        leader_state, duplicate_check = partition.leader_state, NOT_DUPLICATE
        epoch, high_watermark = leader_state.epoch, leader_state.high_watermark
        if row.producer_id != NO_PRODUCER_ID:
            duplicate_check = partition.producers.note(
                epoch, row.producer_id, row.producer_epoch, row.base_sequence, row.record_count
            )
        generation = partition.topic.fidelity.generation
        fields = partition, target.named, row, duplicate_check, epoch, high_watermark, generation
        forwarded.append(_new(Forwarded, fields))
    return forwarded


def admit_response(
    broker: PartitionServices,
    frame: Frame,
    forwarded: Sequence[Forwarded],
    answer: Frame,
    produced: Sequence[ProducedRow],
    now: float,
) -> None:
    """Store the batches of the request `frame` that its response acknowledges, of those that were
    `forwarded`. `produced` are the rows of the response `answer`; it arrived at `now` (seconds).

    Batches that may be stored as they were sent are stored by one call. Before any of them
    is judged, those with a log append time are: they may show that the broker changes what it stores.
    """
    plain = []
    for pair in acknowledge(forwarded, answer, produced):
        one, said = pair
        if said.log_append_time_ms >= 0:
            admit_singly(broker, one, said, frame, now)
        else:
            plain.append(pair)
    as_sent, others = [], []
    placed: list[int] = []
    for pair, verdict in zip(plain, judge_all(plain), strict=True):
        if verdict == AS_SENT:
            one, said = pair
            row = one.row
            as_sent.append(pair)
            placed += one.partition.slot, row.start, row.end, said.base_offset, one.epoch, 0
        else:
            others.append(pair)
    stored_batches, runs = 0, broker.stored_runs
    ends = broker.cache.append(frame, placed) if placed else ()
    for pair, run_end in zip(as_sent, ends, strict=True):
        if run_end < 0:
            others.append(pair)
            continue
        one, said = pair
        partition, base_offset, row = one.partition, said.base_offset, one.row
        following = base_offset + row.last_delta + 1
        stored_batches += 1
        if runs is not None:
            runs.add(partition, base_offset, following, row.end - row.start, "produce")
        if not 0 <= partition.produced_from <= base_offset:
            partition.produced_from = base_offset
        tail = partition.tail
        if base_offset <= tail:  # else acknowledgements of several connections have crossed
            if run_end < tail:
                run_end = broker.cache.contiguous_end(partition.slot, tail)
            if run_end > tail:
                partition.tail = run_end
        partition.transactions.passed(base_offset, following)
        if partition.parked or now - partition.leader_state.proven_at > REFRESH_EPOCH_S:
            # otherwise nothing waits for it, and the epoch was proven recently
            announce(broker, partition, base_offset, True, now)
    if stored_batches:
        broker.counters.produce.batches["store"] += stored_batches
        broker.counters.stored.batches["produce"] += stored_batches
    for one, said in others:
        admit_singly(broker, one, said, frame, now)


def admit_singly(
    broker: PartitionServices, one: Forwarded, said: ProducedRow, frame: Frame, now: float
) -> None:
    """Store an acknowledged batch if it may be stored, whatever has to be done for that, and tell
    the replica fetcher of it.
    """
    stored = admit_produced(broker, one, said, frame)
    announce(broker, one.partition, said.base_offset, stored, now)


def acknowledge(
    forwarded: Sequence[Forwarded], answer: Frame, produced: Sequence[ProducedRow]
) -> list[tuple[Forwarded, ProducedRow]]:
    """Return the batches that a response acknowledges, with its rows. Note of each that the broker
    has its records, which shows that it leads.

    If another epoch is proven by now than when they were forwarded, the records may have been
    truncated, and the lease is revoked so that the broker is asked. Acknowledgements of several
    connections may cross.
    """
    expected: dict[bytes, dict[int, Forwarded]] = {}
    for one in forwarded:
        if one.named in expected:
            expected[one.named][one.row.partition] = one
        else:
            expected[one.named] = {one.row.partition: one}
    acknowledged: list[tuple[Forwarded, ProducedRow]] = []
    topic_start = -1
    of_topic: dict[int, Forwarded] = {}
    for said in produced:
        if said.topic_start != topic_start:
            topic_start = said.topic_start
            of_topic = expected.get(bytes(answer[topic_start : said.topic_end]), {})
        found = of_topic.get(said.partition)
        if found is None or said.error_code:
            continue
        acknowledged.append((found, said))
        partition, epoch, base_offset = found.partition, found.epoch, said.base_offset
        leader_state = partition.leader_state
        if 0 <= epoch != leader_state.epoch:
            leader_state.revoke()
            continue
        if epoch > leader_state.led_epoch:
            leader_state.led_epoch = epoch
        if partition.probe_offset < base_offset:
            partition.probe_offset = base_offset
        if partition.young_from < 0:
            partition.young_from = base_offset
        end = base_offset + found.row.record_count
        if partition.acknowledged_end < end:
            partition.acknowledged_end = end
    return acknowledged


def announce(
    broker: PartitionServices, partition: Partition, base_offset: int, stored: bool, now: float
) -> None:
    """Tell the replica fetcher of records acknowledged at `now` (seconds). If they were `stored`
    and the HW is already above them, wake the waiters: the replica fetcher was faster.
    """
    if stored and partition.leader_state.high_watermark > base_offset:
        partition.wake_parked()
    broker.replica_fetcher.produced(partition, now)


def judge_produced(one: Forwarded, base_offset: int) -> int:
    """Return the verdict of `judge_all` on one batch acknowledged at `base_offset`."""
    (verdict,) = judge_all(((one, _new(ProducedRow, (-1, -1, -1, 0, base_offset, -1, -1))),))
    return verdict


def judge_all(acknowledged: Sequence[tuple[Forwarded, ProducedRow]]) -> list[int]:
    """Return NOT_STORED, SAMPLED, STAMPED or AS_SENT for each acknowledged batch.

    `explain_not_stored` has the reason for NOT_STORED. A zstd batch is stored as sent only in a
    partition already known to have zstd, since old clients must get an error.
    """
    verdicts = []
    for one, said in acknowledged:
        partition, _, row, duplicate_check, epoch, high_watermark, generation = one
        leader_state, fidelity = partition.leader_state, partition.topic.fidelity
        base_offset = said.base_offset
        if not (
            0 <= epoch == leader_state.epoch
            and not leader_state.frozen
            and partition.is_followed
            and row.magic == MAGIC_V2
            and duplicate_check is NOT_DUPLICATE
            and base_offset >= 0
            and base_offset >= high_watermark
            and base_offset >= leader_state.log_start_offset
            and fidelity.log_append_time is not None
            and generation == fidelity.generation
        ):
            verdicts.append(NOT_STORED)
            continue
        codec = row.attributes & CODEC_MASK
        if codec not in fidelity.equal_codecs:
            verdicts.append(SAMPLED)
        elif (
            fidelity.log_append_time
            or row.attributes & NOT_PLAIN
            or (codec == ZSTD and not partition.zstd)
        ):
            verdicts.append(STAMPED)
        else:
            verdicts.append(AS_SENT)
    return verdicts


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
    judged = judge_produced(forwarded, base_offset)
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
    if topic.fidelity.log_append_time is not log_append_time:
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
        broker.stored_runs.add(partition, first, following, inserted.stored_bytes, source)
