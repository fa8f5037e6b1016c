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
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from blockcache.sending import NO_ROOM
from protocol import api
from protocol.batch import peek_timestamp
from protocol.errors import ErrorCode
from protocol.fetch_build import (
    KEY,
    FetchAnswer,
    add_records,
    build_heads,
    build_response,
    plan_layout,
)
from proxy.fetch.misses.read import Stage
from proxy.fetch.services import NOT_PARKED
from proxy.fetch.sessions.context import NO_SESSION, PlannedResponse
from proxy.net.send_buffer import PIECE_BYTES, cut_buffers
from proxy.partitions.readable import (
    AT_END,
    NEEDS_BROKER,
    READ_COMMITTED,
    READABLE,
    PartitionOutcome,
    PartitionStatus,
)
from proxy.replica_fetcher.verifier import Committed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from blockcache.arena import Hit
    from protocol.fetch import FetchedPartition, FetchPartition
    from protocol.fetch_build import ResponseHeads, ResponseLayout
    from protocol.primitives import Frame, TopicNameOrId
    from proxy.fetch.misses.read import Read
    from proxy.fetch.record import FetchRecord
    from proxy.fetch.services import ClientFetch, FetchLink
    from proxy.fetch.sessions.cache import PartitionKey
    from proxy.net.response_order import Reply

UNKNOWN = -1
"""Offset in a response for one that is unknown."""
HIT = "hit"
"""Result of what memory answers; it has no reason."""
NOTHING = (NO_ROOM, UNKNOWN, 0, UNKNOWN)
"""Size, next offset, age and time stamp of a partition that memory is not asked about."""
PENDING = ("miss", "pending")
"""Result and reason of a partition whose miss fetch has not arrived."""
REFUSED = ("miss", "refused")
"""Result and reason of a partition whose request was refused before the broker saw it."""
PAUSE_MS, LONGEST_PAUSE_MS = 500, 1000
"""Throttle times in milliseconds: usual and longest. A client mutes its whole connection for this
time (KIP-219).
"""
COPIED_BYTES = 16 << 10
"""Record bytes of a response that are copied instead of pinned, if nothing is before it, and it
cannot leave by a direct write.
"""
KEPT_PARTITIONS = 1024
"""Most partitions of a response whose layout is kept for the connection's next."""
SIZE = attrgetter("size_bytes")
PARTITION = attrgetter("partition")
NO_ERROR = int(ErrorCode.NONE)
"""As an integer, which is packed faster than an enum member."""
_new = tuple.__new__
"""Makes a NamedTuple in half the time of its own constructor, which is a Python function."""


class Outdated(Exception):
    """What the arena holds of a partition has changed while it was read."""


@dataclass(slots=True)
class _Budget:
    """Rest of the request's bytes, and what was taken of it.

    `room`: bytes left; `began`: a partition has given records; `taken`: miss fetches that were used.
    """

    room: int
    began: bool = False
    taken: tuple[Read, ...] = ()

    def use(self, read: Read) -> None:
        """Note that the records of `read` are in the response."""
        self.taken += (read,)

    def take(self, size_bytes: int, most: int = 0) -> None:
        """Subtract the bytes of one partition: `size_bytes` given, or `most` if a broker would fill
        that with a part of a batch.
        """
        self.room = max(self.room - max(size_bytes, most), 0)
        self.began = True


def build_answer(
    fetch: ClientFetch,
    statuses: Sequence[PartitionStatus],
    reads: Sequence[Read | None] | None = None,
    record: FetchRecord | None = None,
    has_clean: bool = False,
) -> None:
    """Answer `fetch` with what is readable of `statuses`.

    `reads` has the miss fetch of each status, or None; None instead of a list: no status needs the
    broker.
    `record` None: the Fetch has no place in the response order yet. `has_clean`: the session has
    more partitions, without changes. Precondition: the Fetch was not answered.
    """
    link, head, request, context, _, _, repeated = fetch
    broker = link.broker
    sender = broker.cache.sender
    if sender.size_bytes:
        sender.drop()  # of a response that could not be built
    while True:
        budget = _Budget(min(request.max_bytes, broker.answer_bytes))
        answers: list[FetchAnswer] = []
        outcomes: list[PartitionOutcome] = []
        begin = 0
        try:
            for number, read in enumerate(reads or ()):
                status = statuses[number]
                if status.state in NEEDS_BROKER:
                    _add_stored(fetch, statuses[begin:number], budget, answers, outcomes)
                    begin = number + 1
                    answer, outcome = _from_miss_fetch(fetch, status, read, budget)
                    answers.append(answer)
                    outcomes.append(outcome)
            _add_stored(fetch, statuses[begin:], budget, answers, outcomes)
            break
        except Outdated:  # once at most; the client asks again for what it does not get
            sender.drop()
            statuses = [_as_empty(status) for status in statuses]
    now = broker.now()
    error_code, session_id, named, pause_ms = NO_ERROR, NO_SESSION, answers, 0
    if context is not None:
        error_code, session_id, named = context.plan_response(answers, now)
    if reads is not None:
        pause_ms = _throttle_time_ms(fetch, outcomes, budget.taken, has_clean, now)
        for one in budget.taken:
            link.handlers.reads.drop(one)
    correlation_id = head.correlation_id
    if repeated is not None:
        frame = repeated.build_heads(correlation_id, pause_ms, named)
    else:
        layout, keys = link.handlers.kept.layout, list(map(KEY, named))
        if len(named) != len(answers):
            outcomes = [one for one in outcomes if KEY(one.status.asked) in keys]
        if not named:
            sender.drop()  # the session is in error
        if layout is None or layout.keys != keys or layout.version != head.api_version:
            layout = _plan_layout(fetch, keys)
        frame = build_heads(layout, correlation_id, pause_ms, error_code, session_id, named)
    _send(fetch, record, outcomes, named, frame, budget)
    _note_used(fetch, statuses, reads, now)


def _as_empty(status: PartitionStatus) -> PartitionStatus:
    """The status of a partition that gives nothing, although it was readable."""
    return status._replace(state=AT_END) if status.state is READABLE else status


def _add_stored(
    fetch: ClientFetch,
    statuses: Sequence[PartitionStatus],
    budget: _Budget,
    answers: list[FetchAnswer],
    outcomes: list[PartitionOutcome],
) -> None:
    """Add the answers and outcomes of partitions that follow each other and need no broker.

    One call of the cache's `Sender` finds the records of all of them, and keeps them.
    """
    wanted: list[int] = []
    for asked, partition, state, _, limit_offset in statuses:
        if state is READABLE and partition is not None:
            wanted += partition.slot, asked[3], limit_offset, asked[6]
    found: Iterator[tuple[int, int, int, int]] = iter(())
    if wanted:
        broker = fetch.link.broker
        sender = broker.cache.sender
        budget.room, *columns = sender.find_all(wanted, budget.room, budget.began)
        budget.began = budget.began or sender.size_bytes > 0
        found = zip(*columns, strict=True)
        if not broker.keeps and not broker.confirms(map(PARTITION, statuses)):
            raise Outdated
    committed = fetch.request.isolation_level == READ_COMMITTED
    for status in statuses:
        (topic, index, _, offset, _, _, _), partition, state, _, limit_offset = status
        assert partition is not None
        row = partition.row
        high_watermark, stable_offset = row.high_watermark, row.last_stable_offset
        if stable_offset != high_watermark:  # else the broker has shown that none is open
            stable_offset = partition.last_stable_offset()
        offsets = high_watermark, stable_offset, row.log_start_offset
        size_bytes, next_offset, at, stamp = next(found) if state is READABLE else NOTHING
        aborted: Sequence[tuple[int, int]] | None = None
        admitted_at: int | None = at
        timestamp_ms = stamp if stamp >= 0 else None
        if size_bytes <= 0:
            if committed and size_bytes == NO_ROOM:
                aborted = ()
            size_bytes, admitted_at, timestamp_ms = 0, None, None
        elif committed:  # aborted transactions are known up to the limit
            aborted = partition.transactions.aborted(offset, min(next_offset, limit_offset))
            assert aborted is not None
        answers.append(
            _new(FetchAnswer, (topic, index, NO_ERROR, *offsets, aborted, (), size_bytes))
        )
        outcome = status, size_bytes, "hit", "", 0.0, None, admitted_at, timestamp_ms
        outcomes.append(_new(PartitionOutcome, outcome))


def _plan_layout(fetch: ClientFetch, keys: list[PartitionKey]) -> ResponseLayout:
    """Return the layout of a response, and keep it for the connection's next one."""
    layout = plan_layout(fetch.head.api_version, keys)
    fetch.link.handlers.kept.keep(layout if len(keys) <= KEPT_PARTITIONS else None)
    return layout


def _send(
    fetch: ClientFetch,
    record: FetchRecord | None,
    outcomes: Sequence[PartitionOutcome],
    answers: Sequence[FetchAnswer],
    frame: ResponseHeads,
    budget: _Budget,
) -> None:
    """Send the finished response: by one write from the arena to the socket if nothing is before it,
    else through the response order.
    """
    link, _, request, _, request_bytes, _, repeated = fetch
    clean = 0 if repeated is None else len(request.partitions) - len(outcomes)
    place, waited_s = (None, NOT_PARKED) if record is None else (record.reply, record.waited_s)
    accounts, line = link.broker.accounts, link.replies.places
    is_next = line[0] is place if line else place is None
    sender, sent_bytes = link.broker.cache.sender, 0
    size_bytes = len(frame[0]) + sender.size_bytes
    verifier = link.broker.verifier
    samples = verifier.choose(sender.hits) if verifier.ratio else ()
    if (
        is_next
        and link.framed.free_fd >= 0
        and size_bytes <= PIECE_BYTES
        and not (budget.taken or samples)
    ):
        sent_bytes = sender.send(link.framed.free_fd, *frame)
        if sent_bytes == size_bytes:
            link.left_directly(api.FETCH, place, size_bytes, request_bytes)
            try:
                accounts.enter(fetch, outcomes, True, True, waited_s, clean)
            finally:
                if link.replies.places or link.finishing or link.holds_client:
                    link.release_next()
            return
        link.sent_count += sent_bytes > 0
    hits = sender.hold()
    if samples:
        _take_samples(fetch, samples, outcomes, answers, hits)
    found = iter(hits)
    records = [one.records or next(found).views for one in answers if one.records_bytes]
    buffers = cut_buffers(add_records(frame, records), sent_bytes)
    is_copied = is_next and not budget.taken and sum(map(SIZE, hits)) <= COPIED_BYTES
    if is_copied and not link.framed.unsent_bytes:
        buffers = [b"".join(buffers)]
        for hit in hits:
            hit.release()
    held_bytes = sum([one.size_bytes for one in outcomes if one.status.state in NEEDS_BROKER])
    left = partial(accounts.enter, fetch, outcomes, True, waited_s=waited_s, clean=clean)
    _send_in_order(fetch, place, buffers, hits, held_bytes, partial(_left, fetch, sent_bytes, left))


def _take_samples(
    fetch: ClientFetch,
    numbers: Sequence[int],
    outcomes: Sequence[PartitionOutcome],
    answers: Sequence[FetchAnswer],
    hits: Sequence[Hit],
) -> None:
    """Give the verifier the hits of these numbers."""
    stored = [
        (outcome.status, answer)
        for outcome, answer in zip(outcomes, answers, strict=True)
        if outcome.admitted_at is not None
    ]
    for number in numbers:
        (asked, partition, _, _, _), answer = stored[number]
        assert partition is not None
        committed = None
        if fetch.request.isolation_level == READ_COMMITTED:
            committed = Committed(answer.aborted or (), answer.last_stable_offset)
        fetch.link.broker.verifier.take(partition, asked.fetch_offset, hits[number], committed)


def _send_in_order(
    fetch: ClientFetch,
    place: Reply | None,
    buffers: Sequence[Frame],
    hits: Sequence[Hit],
    held_bytes: int,
    left: Callable[[bool], None],
) -> None:
    """Send the buffers through the response order.

    `hits` pin the arena's bytes in them; `held_bytes` of them are on the heap and come from miss
    fetches. A single buffer is charged only if it has to wait.
    """
    link = fetch.link
    link.sent_count += 1
    reply = link.replies.reserve() if place is None else place

    def sent(delivered: bool) -> None:
        for hit in hits:
            hit.release()
        left(delivered)

    if len(buffers) == 1:
        (whole,) = buffers
        link.answer_whole(api.FETCH, reply, whole, len(whole), fetch.request_bytes, sent)
        return
    for hit in hits:
        hit.on_reclaim = lambda _hit: copy_out(link, reply, hits)
        held_bytes += 0 if hit.pins else hit.size_bytes
    link.answer(fetch.head, reply, buffers, fetch.request_bytes, sent, held_bytes=held_bytes)


def _left(
    fetch: ClientFetch, sent_bytes: int, left: Callable[[bool], None], delivered: bool
) -> None:
    """Count a response of which `sent_bytes` have left before the rest."""
    if delivered and sent_bytes:
        fetch.link.broker.counters.traffic.responses_out[api.FETCH].add(0, sent_bytes)
    left(delivered)


def _from_miss_fetch(
    fetch: ClientFetch,
    status: PartitionStatus,
    read: Read | None,
    budget: _Budget,
) -> tuple[FetchAnswer, PartitionOutcome]:
    """Return what a miss fetch brought for one partition, and its outcome."""
    if read is not None and _is_due(read, budget):
        answer = _from_read(read, status, budget)
        if read.is_shared:
            fetch.link.broker.shared_reads.count_bytes(answer.records_bytes)
        budget.use(read)
        outcome = PartitionOutcome(
            status,
            answer.records_bytes,
            status.state.value,
            status.reason,
            read.delay_s,
            timestamp_ms=peek_timestamp(answer.records[0], 0) if answer.records_bytes else None,
        )
    elif read is not None and read.said is not None and read.stage is not Stage.ARRIVED:
        answer = _retell(read.said, status)
        outcome = PartitionOutcome(status, 0, status.state.value, status.reason)
    else:
        answered = None if read is None else read.answered
        answer = _empty(fetch, status) if answered is None else _retell(answered, status)
        outcome = PartitionOutcome(status, 0, *PENDING)
    return answer, outcome


def _note_used(
    fetch: ClientFetch,
    statuses: Sequence[PartitionStatus],
    reads: Sequence[Read | None] | None,
    now: float,
) -> None:
    """Note topics whose records this client got without a request that the broker saw.

    Their rights must be renewed by Forebay's own Fetch.
    """
    topic: TopicNameOrId = b""
    for number, (asked, partition, state, _, _) in enumerate(statuses):
        if partition is None or asked.topic == topic:
            continue
        read = reads[number] if reads else None
        if state not in NEEDS_BROKER or (read is not None and read.is_shared):
            topic = asked.topic
            fetch.link.handlers.authorization.used(topic, partition, now)


def refuse_fetch(
    record: FetchRecord, statuses: Sequence[PartitionStatus], pause_s: float = 0.0
) -> None:
    """Answer `record` empty: its queue toward the broker is full, or it is over a quota. The client
    asks again.

    `pause_s` is the wanted pause in seconds. The throttle time is between PAUSE_MS and
    LONGEST_PAUSE_MS.
    """
    record.link.broker.counters.fetch.refuse()
    pause_ms = round(min(max(pause_s * 1000, PAUSE_MS), LONGEST_PAUSE_MS))
    planned = PlannedResponse[FetchAnswer](ErrorCode.NONE, NO_SESSION, [])
    if record.context is not None:
        planned = record.context.plan_throttled()
    frame = build_error(record, planned.error_code, planned.session_id, pause_ms)
    record.refused([PartitionOutcome(status, 0, *REFUSED) for status in statuses], frame)


def answer_error(record: FetchRecord) -> None:
    """Answer with the session's error: the session does not exist, or the epoch does not match."""
    assert record.context is not None
    record.refused((), build_error(record, record.context.error_code, 0))


def build_error(
    record: FetchRecord,
    error_code: int,
    session_id: int,
    throttle_time_ms: int = 0,
    named: Sequence[FetchPartition] = (),
) -> bytes:
    """Return a whole response frame with an error, which the `named` partitions repeat with an
    empty list of aborted transactions (FetchResponse.partitionResponse).
    """
    offsets = UNKNOWN, UNKNOWN, UNKNOWN
    refused = [
        FetchAnswer(one.topic, one.partition, error_code, *offsets, (), (), 0) for one in named
    ]
    return b"".join(
        build_response(
            record.head.api_version,
            record.head.correlation_id,
            throttle_time_ms=throttle_time_ms,
            error_code=error_code,
            session_id=session_id,
            partitions=refused,
        )
    )


def _throttle_time_ms(
    fetch: ClientFetch,
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
    return max(0, round(PAUSE_MS - (now - fetch.received_at) * 1000))


def copy_out(link: FetchLink, reply: Reply, hits: Sequence[Hit]) -> None:
    """Copy the unsent rest of a response, so that the arena can reuse the block, and release the
    pins.

    The copy is charged to the budget of response bytes. Without room for it, the connection is
    closed.
    """
    responses = link.broker.responses
    pinned_bytes = min(sum(hit.size_bytes for hit in hits if hit.pins), reply.unsent_bytes)
    if pinned_bytes and not responses.has_room(pinned_bytes):
        asyncio.get_running_loop().call_soon(link.close_for_room)
    elif reply.copy_out():
        link.hold(reply, pinned_bytes)
        for hit in hits:
            hit.release()


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


def _empty(fetch: ClientFetch, status: PartitionStatus) -> FetchAnswer:
    """Return the partition without records.

    Offsets are the last ones that the broker confirmed, if this client may know them; UNKNOWN
    otherwise.
    """
    aborted: tuple[()] | None = () if fetch.request.isolation_level == READ_COMMITTED else None
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
