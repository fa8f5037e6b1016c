"""A Fetch answered by Forebay: records from memory and from reads beside, in one response.

Owns the budgets of an answer and the pins of what it shows. It must not know waiting or links' insides.
Invariants (KIP-74, ReplicaManager.readFromLog): whole batches in partition order, within the request's and
each partition's bytes; the first may be oversized, once; what a broker would fill with a part of a batch counts as
told; of a partition whose first batch does not fit the aborted transactions are null, as firstEntryIncomplete makes
them; what memory shows stays pinned until its last byte has left.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from blockcache.arena import Hit
from protocol.errors import ErrorCode
from protocol.fetch_build import AnswerHead, FetchAnswer, build_headed_answer, build_response
from proxy.fetch.misses.read import Stage
from proxy.fetch.sessions.context import NO_SESSION, PlannedResponse
from proxy.partitions.readable import (
    NEEDS_BROKER,
    READ_COMMITTED,
    READABLE,
    PartitionOutcome,
    PartitionStatus,
)
from proxy.replica_fetcher.verifier import Committed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockcache.cache import BlockCache
    from protocol.fetch import FetchedPartition
    from protocol.wire import Frame
    from proxy.fetch.misses.read import Read
    from proxy.fetch.record import FetchRecord

PENDING = ("miss", "pending")
REFUSED = ("miss", "refused")
PAUSE_MS, LONGEST_PAUSE_MS = 500, 1000
"""A client mutes the whole connection for a throttle time (KIP-219)."""
UNKNOWN = -1
COPIED_BYTES = 16 << 10
"""Records of an answer that are copied out of memory instead of shown, where nothing is before it on its connection."""


class _Budget:
    """What is left of the request's bytes, and the pins of what has been taken. `room_to_copy`: what of it may be
    copied instead.
    """

    __slots__ = ("began", "copied_bytes", "hits", "room", "room_to_copy")

    def __init__(self, max_bytes: int, room_to_copy: int) -> None:
        self.room = max_bytes
        self.began = False
        self.hits: list[Hit] = []
        self.room_to_copy = room_to_copy
        self.copied_bytes = 0

    def take(self, size_bytes: int, most: int = 0) -> None:
        """A partition gives `size_bytes`, of `most` that a broker fills with a part of a batch."""
        self.room = max(self.room - max(size_bytes, most), 0)
        self.began = True


class Found(NamedTuple):
    """Records of memory as an answer says them; of a read_committed one also what a sample is compared with."""

    answer: FetchAnswer
    hit: Hit
    committed: Committed | None


def build_answer(
    record: FetchRecord,
    statuses: Sequence[PartitionStatus],
    reads: Sequence[Read | None],
    has_quiet: bool = False,
) -> None:
    """Answer `record` with what is readable of `statuses`; `reads` are those beside, None where there is none.
    `has_quiet`: its session has more partitions, of which there is nothing new to say.
    """
    context, link = record.context, record.link
    assert context is not None
    most_bytes = min(record.request.max_bytes, link.broker.answer_bytes)
    budget = _Budget(most_bytes, COPIED_BYTES if leaves_at_once(record) else 0)
    answers: list[FetchAnswer] = []
    told: list[PartitionOutcome] = []
    taken: list[Read] = []
    for status, read in zip(statuses, reads, strict=True):
        if status.state not in NEEDS_BROKER:
            answer, one = _from_memory(record, status, budget)
        else:
            answer, one = _beside(record, status, read, budget, taken)
        answers.append(answer)
        told.append(one)
    now = link.broker.now()
    planned = context.plan_response(answers, now)
    pause_ms = _throttle_time_ms(record, told, taken, has_quiet, now)
    buffers: Sequence[Frame] = _build(record, planned, pause_ms)
    for read in taken:
        link.reads.drop(read)
    if len(planned.answers) != len(answers):
        named = {(answer.topic, answer.partition) for answer in planned.answers}
        told = [one for one in told if (one.status.asked.topic, one.status.asked.partition) in named]
    held_bytes = sum([one.size_bytes for one in told if one.status.state in NEEDS_BROKER]) if taken else 0
    _serve(record, told, buffers, budget, held_bytes)
    _note_used(record, statuses, reads, now)


def build_single(record: FetchRecord, status: PartitionStatus, head: AnswerHead) -> None:
    """`build_answer` of the one partition of a request without a session, where it leaves at once: `status` is READY,
    `head` is of such answers.
    """
    budget = _Budget(min(record.request.max_bytes, record.link.broker.answer_bytes), COPIED_BYTES)
    answer, told = _from_memory(record, status, budget)
    buffers: Sequence[Frame]
    if answer.aborted or not answer.records_bytes:
        buffers = _build(record, PlannedResponse(ErrorCode.NONE, NO_SESSION, [answer]), 0)
    else:
        offsets = answer.high_watermark, answer.last_stable_offset, answer.log_start_offset
        buffers = build_headed_answer(
            head, record.head.correlation_id, *offsets, answer.records, answer.records_bytes
        )
    _serve(record, (told,), buffers, budget, 0)
    assert status.partition is not None
    record.link.authorization.used(status.asked.topic, status.partition, record.link.broker.now())


def _serve(
    record: FetchRecord,
    told: Sequence[PartitionOutcome],
    buffers: Sequence[Frame],
    budget: _Budget,
    held_bytes: int,
) -> None:
    """The answer is whole. `held_bytes` of it are on the heap and none of memory's."""
    hits = budget.hits
    if budget.copied_bytes and not (hits or held_bytes):
        buffers = (b"".join(buffers),)
    held_bytes += budget.copied_bytes
    for hit in hits:
        hit.on_reclaim = lambda _hit: copy_out(record, hits)
        held_bytes += 0 if hit.pins else hit.size_bytes
    record.served(told, buffers, hits, held_bytes)


def _beside(
    record: FetchRecord, status: PartitionStatus, read: Read | None, budget: _Budget, taken: list[Read]
) -> tuple[FetchAnswer, PartitionOutcome]:
    """What a read beside has brought for one partition, and as what it counts."""
    if read is not None and _is_due(read, budget):
        answer = _from_read(read, status, budget)
        if read.is_shared:
            record.link.broker.counters.shared_read_bytes += answer.records_bytes
        taken.append(read)
        told = PartitionOutcome(status, answer.records_bytes, status.state.value, status.reason, read.delay_s)
    elif read is not None and read.said is not None and read.stage is not Stage.ARRIVED:
        answer = _retell(read.said, status)
        told = PartitionOutcome(status, 0, status.state.value, status.reason)
    else:
        answered = None if read is None else read.answered
        answer = _empty(record, status) if answered is None else _retell(answered, status)
        told = PartitionOutcome(status, 0, *PENDING)
    return answer, told


def leaves_at_once(record: FetchRecord) -> bool:
    """Whether the answer is the kernel's from here on, but for what it does not take. Then a copy of a few records
    costs less than views with pins, and a client that does not read holds no more than one.
    """
    link = record.link
    return link.replies.oldest is record.reply and not link.wire.unsent_bytes


def _note_used(
    record: FetchRecord, statuses: Sequence[PartitionStatus], reads: Sequence[Read | None], now: float
) -> None:
    """The broker has not seen that this client reads what was not read for it alone."""
    authorization = record.link.authorization
    for status, read in zip(statuses, reads, strict=True):
        is_owed = status.state not in NEEDS_BROKER or (read is not None and read.is_shared)
        if is_owed and status.partition is not None:
            authorization.used(status.asked.topic, status.partition, now)


def refuse_fetch(record: FetchRecord, statuses: Sequence[PartitionStatus], pause_s: float = 0.0) -> None:
    """Answer `record` empty: its queue toward the broker is full, or it is over a quota. It asks again."""
    record.link.broker.counters.fetch_refused += 1
    pause_ms = round(min(max(pause_s * 1000, PAUSE_MS), LONGEST_PAUSE_MS))
    assert record.context is not None
    buffers = _build(record, record.context.plan_throttled(), pause_ms)
    record.served([PartitionOutcome(status, 0, *REFUSED) for status in statuses], buffers, (), 0)


def answer_error(record: FetchRecord) -> None:
    """The request's session is not there, or not where the request thinks it is."""
    assert record.context is not None
    frame = build_error(record, record.context.error_code, 0)
    record.served((), (frame,), (), 0)


def build_error(record: FetchRecord, error_code: int, session_id: int, throttle_time_ms: int = 0) -> bytes:
    """A whole response that says nothing but the error."""
    return b"".join(
        build_response(
            record.head.api_version,
            record.head.correlation_id,
            throttle_time_ms=throttle_time_ms,
            error_code=error_code,
            session_id=session_id,
            partitions=(),
        )
    )


def _build(record: FetchRecord, planned: PlannedResponse[FetchAnswer], throttle_time_ms: int) -> list[Frame]:
    """The response as its session makes it: what has not changed is left out of an incremental one."""
    return build_response(
        record.head.api_version,
        record.head.correlation_id,
        throttle_time_ms=throttle_time_ms,
        error_code=planned.error_code,
        session_id=planned.session_id,
        partitions=planned.answers,
    )


def _throttle_time_ms(
    record: FetchRecord, told: Sequence[PartitionOutcome], taken: Sequence[Read], has_quiet: bool, now: float
) -> int:
    """What the broker has set; or, where all there is to say is that everything waits and the request did not
    wait for it, a pause, so that the client does not ask in a circle (KIP-219).
    """
    if not told or has_quiet or told[0].reason != PENDING[1] or any(one.reason != PENDING[1] for one in told):
        return max([read.throttle_time_ms for read in taken]) if taken else 0
    return max(0, round(PAUSE_MS - (now - record.received_at) * 1000))


def copy_out(record: FetchRecord, hits: Sequence[Hit]) -> None:
    """The arena wants a block that an unsent answer shows: copy what is left of the answer and let go. The copy
    is charged as what the broker answers is; where there is no room for it, the client has to go.
    """
    reply, link, responses = record.reply, record.link, record.link.broker.responses
    pinned_bytes = min(sum(hit.size_bytes for hit in hits if hit.pins), reply.unsent_bytes)
    if pinned_bytes and not responses.has_room(pinned_bytes):
        asyncio.get_running_loop().call_soon(link.close_for_room)
    elif reply.copy_out():
        link.hold(reply, pinned_bytes)
        for hit in hits:
            hit.release()


def _from_memory(
    record: FetchRecord, status: PartitionStatus, budget: _Budget
) -> tuple[FetchAnswer, PartitionOutcome]:
    """What of the partition is stored and fits. While many leave together, those who ask alike are told alike."""
    asked = status.asked
    most = min(asked.max_bytes, budget.room)
    if status.state is not READABLE or (most == 0 and budget.began):
        return _empty(record, status), PartitionOutcome(status, 0, "hit", "")
    broker, isolation_level = record.link.broker, record.request.isolation_level
    alike = broker.accounts.alike if budget.room_to_copy and not budget.began else None
    key = asked, status.limit_offset, most, isolation_level
    found = None if alike is None else alike.get(key)
    if found is None:
        found = _find(record, status, most, budget)
        if found is None:
            return _empty(record, status)._replace(aborted=None), PartitionOutcome(status, 0, "hit", "")
        if alike is not None and found.answer.records_bytes <= COPIED_BYTES:
            alike[key] = found
    answer, hit, committed = found
    budget.take(answer.records_bytes, most if is_cut(broker.cache, status, hit.next_offset) else 0)
    if hit.pins or answer.records_bytes > budget.room_to_copy:
        budget.hits.append(hit)
    else:
        budget.room_to_copy -= answer.records_bytes
        budget.copied_bytes += answer.records_bytes
    assert status.partition is not None
    broker.verifier.offer(status.partition, asked.fetch_offset, hit, committed)
    return answer, PartitionOutcome(status, answer.records_bytes, "hit", "", 0.0, None, hit.admitted_at)


def is_cut(cache: BlockCache, status: PartitionStatus, next_offset: int) -> bool:
    """Whether a batch follows at `next_offset` that does not fit: a broker gives what does of it (LogSegment.read)."""
    if next_offset >= status.limit_offset:
        return False
    assert status.partition is not None
    return cache.contiguous_end(status.partition.slot, next_offset) > next_offset


def _find(record: FetchRecord, status: PartitionStatus, most: int, budget: _Budget) -> Found | None:
    """Records of at most `most` bytes, the first batch regardless; few of them as a copy. None: there are none."""
    partition, asked, cache = status.partition, status.asked, record.link.broker.cache
    assert partition is not None
    hit = cache.lookup(partition.slot, asked.fetch_offset, status.limit_offset, most, not budget.began)
    if hit is None or not hit.size_bytes:
        return None
    if hit.size_bytes <= budget.room_to_copy:
        copied = Hit((memoryview(b"".join(hit.views)),), hit.next_offset, hit.size_bytes, hit.admitted_at)
        hit.release()
        hit = copied
    leader_state, stable = partition.leader_state, partition.last_stable_offset()
    committed = aborted = None
    if record.request.isolation_level == READ_COMMITTED:
        end_offset = min(hit.next_offset, status.limit_offset)  # the plan's: up to there it is known
        aborted = partition.transactions.aborted(asked.fetch_offset, end_offset)
        assert aborted is not None
        committed = Committed(aborted, stable)
    answer = FetchAnswer(
        asked.topic,
        asked.partition,
        ErrorCode.NONE,
        leader_state.high_watermark,
        stable,
        leader_state.log_start_offset,
        aborted,
        hit.views,
        hit.size_bytes,
    )
    return Found(answer, hit, committed)


def _from_read(read: Read, status: PartitionStatus, budget: _Budget) -> FetchAnswer:
    answered, asked = read.answered, status.asked
    assert answered is not None
    told = _retell(answered, status)
    if read.has_error:
        return told
    most = min(asked.max_bytes, budget.room)
    records = read.records(most, not budget.began)
    if not len(records):
        return told._replace(aborted=None) if most > 0 else told
    budget.take(len(records), min(most, read.held_bytes))
    return told._replace(records=(records,), records_bytes=len(records))


def _retell(answered: FetchedPartition, status: PartitionStatus) -> FetchAnswer:
    """What the broker has said of the partition, but for its records. Its HW and LSO may have grown since, and
    this client may have been told so.
    """
    high_watermark, last_stable_offset = answered.high_watermark, answered.last_stable_offset
    if status.partition is not None and status.offsets_known and answered.error_code == ErrorCode.NONE:
        high_watermark = max(high_watermark, status.partition.leader_state.high_watermark)
        last_stable_offset = max(last_stable_offset, status.partition.last_stable_offset())
    return FetchAnswer(
        status.asked.topic,
        status.asked.partition,
        answered.error_code,
        high_watermark,
        last_stable_offset,
        answered.log_start_offset,
        answered.aborted,
        (),
        0,
    )


def _is_due(read: Read, budget: _Budget) -> bool:
    """Whether what the broker has answered is told now: an error always, records where there is room."""
    return read.stage is Stage.ARRIVED and (read.has_error or budget.room > 0 or not budget.began)


def _empty(record: FetchRecord, status: PartitionStatus) -> FetchAnswer:
    """The partition named without records: what the broker last confirmed of it, where that is this client's
    to know.
    """
    aborted: tuple[()] | None = () if record.request.isolation_level == READ_COMMITTED else None
    offsets = (UNKNOWN, UNKNOWN, UNKNOWN)
    if status.partition is not None and (status.offsets_known or status.state not in NEEDS_BROKER):
        leader_state = status.partition.leader_state
        offsets = (
            leader_state.high_watermark,
            status.partition.last_stable_offset(),
            leader_state.log_start_offset,
        )
    return FetchAnswer(status.asked.topic, status.asked.partition, ErrorCode.NONE, *offsets, aborted, (), 0)
