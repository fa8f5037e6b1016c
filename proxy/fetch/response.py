"""Response to a Fetch that Forebay answers: records from memory and from miss fetches, in one
frame.

Owns the byte budgets of a response and the pins of the bytes it shows. Must not know waiting or the
inside of connections. Invariants (KIP-74, ReplicaManager.readFromLog):
* Whole batches in partition order, within max_bytes of the request and of each partition.
* The first batch of a response may exceed the limits, once.
* Bytes that a broker would fill with a part of a batch count as used.
* If the first batch of a partition does not fit, its aborted transactions are null
  (firstEntryIncomplete).
* Bytes of the arena stay pinned until their last byte has left.
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
"""Result and reason of a partition whose miss fetch has not arrived."""
REFUSED = ("miss", "refused")
"""Result and reason of a partition whose request was refused before the broker saw it."""
PAUSE_MS, LONGEST_PAUSE_MS = 500, 1000
"""Throttle times in milliseconds: usual and longest. A client mutes its whole connection for this
time (KIP-219).
"""
UNKNOWN = -1
"""Offset in a response for one that is unknown."""
COPIED_BYTES = 16 << 10
"""Record bytes of a response that are copied instead of pinned, if no response is queued before it.
"""


class _Budget:
    """Rest of the request's bytes, and the pins of the hits that were taken.

    `room`: bytes left; `began`: a partition has given records; `room_to_copy`: bytes of the rest
    that may be copied.
    """

    __slots__ = ("began", "copied_bytes", "hits", "room", "room_to_copy")

    def __init__(self, max_bytes: int, room_to_copy: int) -> None:
        self.room = max_bytes
        self.began = False
        self.hits: list[Hit] = []
        self.room_to_copy = room_to_copy
        self.copied_bytes = 0

    def take(self, size_bytes: int, most: int = 0) -> None:
        """Subtract the bytes of one partition: `size_bytes` given, or `most` if a broker would fill
        that with a part of a batch.
        """
        self.room = max(self.room - max(size_bytes, most), 0)
        self.began = True


class Found(NamedTuple):
    """Records from memory as a response names them. `committed`: expected values for the verifier's
    sample; None unless read_committed.
    """

    answer: FetchAnswer
    hit: Hit
    committed: Committed | None


def build_answer(
    record: FetchRecord,
    statuses: Sequence[PartitionStatus],
    reads: Sequence[Read | None],
    has_clean: bool = False,
) -> None:
    """Answer `record` with what is readable of `statuses`.

    `reads` has the miss fetch of each status, or None. `has_clean`: the session has more
    partitions, without changes. Preconditions: the record has a context, and its response has not
    been sent.
    """
    context, link = record.context, record.link
    assert context is not None
    most_bytes = min(record.request.max_bytes, link.broker.answer_bytes)
    budget = _Budget(most_bytes, COPIED_BYTES if leaves_at_once(record) else 0)
    answers: list[FetchAnswer] = []
    outcomes: list[PartitionOutcome] = []
    taken: list[Read] = []
    for status, read in zip(statuses, reads, strict=True):
        if status.state not in NEEDS_BROKER:
            answer, one = _from_memory(record, status, budget)
        else:
            answer, one = _from_miss_fetch(record, status, read, budget, taken)
        answers.append(answer)
        outcomes.append(one)
    now = link.broker.now()
    planned = context.plan_response(answers, now)
    pause_ms = _throttle_time_ms(record, outcomes, taken, has_clean, now)
    buffers: Sequence[Frame] = _build(record, planned, pause_ms)
    for read in taken:
        link.reads.drop(read)
    if len(planned.answers) != len(answers):
        named = {(answer.topic, answer.partition) for answer in planned.answers}
        outcomes = [
            one for one in outcomes if (one.status.asked.topic, one.status.asked.partition) in named
        ]
    held_bytes = (
        sum([one.size_bytes for one in outcomes if one.status.state in NEEDS_BROKER])
        if taken
        else 0
    )
    _serve(record, outcomes, buffers, budget, held_bytes)
    _note_used(record, statuses, reads, now)


def build_single(record: FetchRecord, status: PartitionStatus, head: AnswerHead) -> None:
    """Answer a request of one partition without a session, whose response leaves at once.

    `status` must be READABLE; `head` is the prepared start of such responses. The result equals
    that of `build_answer`.
    """
    budget = _Budget(min(record.request.max_bytes, record.link.broker.answer_bytes), COPIED_BYTES)
    answer, outcome = _from_memory(record, status, budget)
    buffers: Sequence[Frame]
    if answer.aborted or not answer.records_bytes:
        buffers = _build(record, PlannedResponse(ErrorCode.NONE, NO_SESSION, [answer]), 0)
    else:
        offsets = answer.high_watermark, answer.last_stable_offset, answer.log_start_offset
        buffers = build_headed_answer(
            head, record.head.correlation_id, *offsets, answer.records, answer.records_bytes
        )
    _serve(record, (outcome,), buffers, budget, 0)
    assert status.partition is not None
    record.link.authorization.used(status.asked.topic, status.partition, record.link.broker.now())


def _serve(
    record: FetchRecord,
    outcomes: Sequence[PartitionOutcome],
    buffers: Sequence[Frame],
    budget: _Budget,
    held_bytes: int,
) -> None:
    """Send the finished response; `held_bytes` of it are on the heap and come from miss fetches."""
    hits = budget.hits
    if budget.copied_bytes and not (hits or held_bytes):
        buffers = (b"".join(buffers),)
    held_bytes += budget.copied_bytes
    for hit in hits:
        hit.on_reclaim = lambda _hit: copy_out(record, hits)
        held_bytes += 0 if hit.pins else hit.size_bytes
    record.served(outcomes, buffers, hits, held_bytes)


def _from_miss_fetch(
    record: FetchRecord,
    status: PartitionStatus,
    read: Read | None,
    budget: _Budget,
    taken: list[Read],
) -> tuple[FetchAnswer, PartitionOutcome]:
    """Return what a miss fetch brought for one partition, and its outcome. Appends a used miss
    fetch to `taken`.
    """
    if read is not None and _is_due(read, budget):
        answer = _from_read(read, status, budget)
        if read.is_shared:
            record.link.broker.counters.shared_read_bytes += answer.records_bytes
        taken.append(read)
        outcome = PartitionOutcome(
            status, answer.records_bytes, status.state.value, status.reason, read.delay_s
        )
    elif read is not None and read.said is not None and read.stage is not Stage.ARRIVED:
        answer = _retell(read.said, status)
        outcome = PartitionOutcome(status, 0, status.state.value, status.reason)
    else:
        answered = None if read is None else read.answered
        answer = _empty(record, status) if answered is None else _retell(answered, status)
        outcome = PartitionOutcome(status, 0, *PENDING)
    return answer, outcome


def leaves_at_once(record: FetchRecord) -> bool:
    """Return True if no response is queued before this one, so that the kernel gets it at once.

    Then a copy of a few records costs less than views with pins. A client that does not read holds
    at most one copy.
    """
    link = record.link
    return link.replies.oldest is record.reply and not link.wire.unsent_bytes


def _note_used(
    record: FetchRecord,
    statuses: Sequence[PartitionStatus],
    reads: Sequence[Read | None],
    now: float,
) -> None:
    """Note topics whose records this client got without a request that the broker saw.

    Their rights must be renewed by Forebay's own Fetch.
    """
    authorization = record.link.authorization
    for status, read in zip(statuses, reads, strict=True):
        is_owed = status.state not in NEEDS_BROKER or (read is not None and read.is_shared)
        if is_owed and status.partition is not None:
            authorization.used(status.asked.topic, status.partition, now)


def refuse_fetch(
    record: FetchRecord, statuses: Sequence[PartitionStatus], pause_s: float = 0.0
) -> None:
    """Answer `record` empty: its queue toward the broker is full, or it is over a quota. The client
    asks again.

    `pause_s` is the wanted pause in seconds. The throttle time is between PAUSE_MS and
    LONGEST_PAUSE_MS.
    """
    record.link.broker.counters.fetch_refused += 1
    pause_ms = round(min(max(pause_s * 1000, PAUSE_MS), LONGEST_PAUSE_MS))
    assert record.context is not None
    buffers = _build(record, record.context.plan_throttled(), pause_ms)
    record.served([PartitionOutcome(status, 0, *REFUSED) for status in statuses], buffers, (), 0)


def answer_error(record: FetchRecord) -> None:
    """Answer with the session's error: the session does not exist, or the epoch does not match."""
    assert record.context is not None
    frame = build_error(record, record.context.error_code, 0)
    record.served((), (frame,), (), 0)


def build_error(
    record: FetchRecord, error_code: int, session_id: int, throttle_time_ms: int = 0
) -> bytes:
    """Return a whole response frame that carries only the error."""
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


def _build(
    record: FetchRecord, planned: PlannedResponse[FetchAnswer], throttle_time_ms: int
) -> list[Frame]:
    """Return the response's buffers. An incremental response omits unchanged partitions."""
    return build_response(
        record.head.api_version,
        record.head.correlation_id,
        throttle_time_ms=throttle_time_ms,
        error_code=planned.error_code,
        session_id=planned.session_id,
        partitions=planned.answers,
    )


def _throttle_time_ms(
    record: FetchRecord,
    outcomes: Sequence[PartitionOutcome],
    taken: Sequence[Read],
    has_clean: bool,
    now: float,
) -> int:
    """Return the throttle time in milliseconds; usually the broker's own, or 0.

    A response that names only pending partitions gets a pause, if the request did not wait for it.
    Otherwise the client would ask in a loop (KIP-219).
    """
    if (
        not outcomes
        or has_clean
        or outcomes[0].reason != PENDING[1]
        or any(one.reason != PENDING[1] for one in outcomes)
    ):
        return max([read.throttle_time_ms for read in taken]) if taken else 0
    return max(0, round(PAUSE_MS - (now - record.received_at) * 1000))


def copy_out(record: FetchRecord, hits: Sequence[Hit]) -> None:
    """Copy the unsent rest of a response, so that the arena can reuse the block, and release the
    pins.

    The copy is charged to the budget of response bytes. Without room for it, the connection is
    closed.
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
    """Return the stored records of the partition that fit, and the outcome.

    In a batch of responses, equal requests share one lookup.
    """
    asked = status.asked
    most = min(asked.max_bytes, budget.room)
    if status.state is not READABLE or (most == 0 and budget.began):
        return _empty(record, status), PartitionOutcome(status, 0, "hit", "")
    broker, isolation_level = record.link.broker, record.request.isolation_level
    shared = broker.accounts.shared_answers if budget.room_to_copy and not budget.began else None
    key = asked, status.limit_offset, most, isolation_level
    found = None if shared is None else shared.get(key)
    if found is None:
        found = _find(record, status, most, budget)
        if found is None:
            return _empty(record, status)._replace(aborted=None), PartitionOutcome(
                status, 0, "hit", ""
            )
        if shared is not None and found.answer.records_bytes <= COPIED_BYTES:
            shared[key] = found
    answer, hit, committed = found
    budget.take(answer.records_bytes, most if is_cut(broker.cache, status, hit.next_offset) else 0)
    if hit.pins or answer.records_bytes > budget.room_to_copy:
        budget.hits.append(hit)
    else:
        budget.room_to_copy -= answer.records_bytes
        budget.copied_bytes += answer.records_bytes
    assert status.partition is not None
    broker.verifier.offer(status.partition, asked.fetch_offset, hit, committed)
    return answer, PartitionOutcome(
        status, answer.records_bytes, "hit", "", 0.0, None, hit.admitted_at
    )


def is_cut(cache: BlockCache, status: PartitionStatus, next_offset: int) -> bool:
    """Return True if a stored batch follows at `next_offset` that does not fit.

    A broker returns the part of it that fits (LogSegment.read).
    """
    if next_offset >= status.limit_offset:
        return False
    assert status.partition is not None
    return cache.contiguous_end(status.partition.slot, next_offset) > next_offset


def _find(record: FetchRecord, status: PartitionStatus, most: int, budget: _Budget) -> Found | None:
    """Return records of at most `most` bytes, the first batch whatever its size; None if there are
    none.

    A few bytes are returned as a copy, without pins.
    """
    partition, asked, cache = status.partition, status.asked, record.link.broker.cache
    assert partition is not None
    hit = cache.lookup(
        partition.slot, asked.fetch_offset, status.limit_offset, most, not budget.began
    )
    if hit is None or not hit.size_bytes:
        return None
    if hit.size_bytes <= budget.room_to_copy:
        copied = Hit(
            (memoryview(b"".join(hit.views)),), hit.next_offset, hit.size_bytes, hit.admitted_at
        )
        hit.release()
        hit = copied
    leader_state, stable = partition.leader_state, partition.last_stable_offset()
    committed = aborted = None
    if record.request.isolation_level == READ_COMMITTED:
        end_offset = min(hit.next_offset, status.limit_offset)  # aborted ones are known up to there
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
    answer = _retell(answered, status)
    if read.has_error:
        return answer
    most = min(asked.max_bytes, budget.room)
    records = read.records(most, not budget.began)
    if not len(records):
        return answer._replace(aborted=None) if most > 0 else answer
    budget.take(len(records), min(most, read.held_bytes))
    return answer._replace(records=(records,), records_bytes=len(records))


def _retell(answered: FetchedPartition, status: PartitionStatus) -> FetchAnswer:
    """Return the broker's answer for the partition, without records.

    The client may know a newer HW and LSO from another response meanwhile; so the newer value of
    each is used.
    """
    high_watermark, last_stable_offset = answered.high_watermark, answered.last_stable_offset
    if (
        status.partition is not None
        and status.offsets_known
        and answered.error_code == ErrorCode.NONE
    ):
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
    """Return True if the miss fetch is to be used now: an error always, records if there is room."""
    return read.stage is Stage.ARRIVED and (read.has_error or budget.room > 0 or not budget.began)


def _empty(record: FetchRecord, status: PartitionStatus) -> FetchAnswer:
    """Return the partition without records.

    Offsets are the last ones that the broker confirmed, if this client may know them; UNKNOWN
    otherwise.
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
    return FetchAnswer(
        status.asked.topic, status.asked.partition, ErrorCode.NONE, *offsets, aborted, (), 0
    )
