"""Prepared Fetch: the fast way of a Fetch that repeats the one before it, from memory, for one
partition.

Owns a connection's repeated request (`Repeated`) and the one decision for this way:
`answer_prepared`. Must not know how a Fetch waits, is split, forwarded, refused or delayed by a
quota. Those belong to `proxy.fetch.handler`, which gets the untouched request after False.
Invariants:
* Nothing has changed until all conditions are checked.
* The limit of what memory may serve is that of `partitions.readable`.
* Response, counters and access log are the same on both ways.
* Only a response that nothing waits before is sent past the transport.

docs/decisions/0024 says why there are two ways, and why the response bypasses the transport.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol import api, header
from protocol.fetch import FetchPartition
from protocol.fetch_build import (
    AnswerHead,
    FetchAnswer,
    build_response,
    build_start,
    plan_answer_head,
)
from proxy.fetch.passthrough import CONSUMER
from proxy.fetch.record import FetchRecord
from proxy.fetch.response import COPIED_BYTES, copy_out, leaves_at_once
from proxy.fetch.sessions.context import FINAL_EPOCH, NO_SESSION, Kind, find_single, note_records
from proxy.fetch.sessions.idle_partitions import IdlePartitions
from proxy.net.send_buffer import PIECE_BYTES, cut_buffers
from proxy.partitions.readable import (
    ISOLATION_LEVELS,
    READ_COMMITTED,
    READABLE,
    PartitionOutcome,
    PartitionStatus,
    find_limit,
    plan_partition,
)
from proxy.replica_fetcher.verifier import Committed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockcache.arena import Hit
    from protocol.fetch import FetchRequest
    from protocol.wire import Frame
    from proxy.broker import Broker
    from proxy.fetch.sessions.cache import Session
    from proxy.net.client_connection import ClientConnection
    from proxy.partitions.table import Partition


class Repeated:
    """A connection's request, decoded once, with the values that all its repetitions share.

    * `request`: the first of them; `asked`: its partition; `partition`: as it was found last.
    * `is_ordinary`: such a request may take this way.
    * `least_bytes`: the Fetch waits for fewer bytes; 0 if one byte is enough. `most_bytes`: the
      limit of record bytes.
    """

    __slots__ = (
        "answer",
        "asked",
        "head",
        "is_ordinary",
        "least_bytes",
        "most_bytes",
        "partition",
        "read_committed",
        "request",
    )

    def __init__(self, link: ClientConnection, request: FetchRequest, frame: Frame) -> None:
        self.request = request
        self.head = head = header.peek_request(frame)
        self.asked = asked = request.partitions[0]
        self.read_committed = request.isolation_level == READ_COMMITTED
        self.most_bytes = min(asked.max_bytes, request.max_bytes)
        self.least_bytes = request.least_bytes if request.least_bytes > 1 else 0
        is_ours = link.stores and request.replica_id == CONSUMER and not link.broker.cache.observes
        is_known = request.isolation_level in ISOLATION_LEVELS and self.most_bytes >= 0
        self.is_ordinary = is_ours and is_known and self.least_bytes <= asked.max_bytes
        self.answer: AnswerHead = plan_answer_head(
            head.api_version, request.session_id, asked.topic, asked.partition, self.read_committed
        )
        self.partition: Partition | None = None


def answer_prepared(link: ClientConnection, frame: Frame) -> bool:
    """Answer a Fetch that repeats the one before it, if memory has enough and nothing requires the
    general way.

    Return True if the response has been sent or queued. False: nothing has changed, and the caller
    must use the general way. After an exception, False only if no byte has left; the general way
    then shows the error.
    """
    gone = link.gone
    try:
        return _answer_repeated(link, frame)
    except Exception:
        link.broker.failed("answering a Fetch at once")
        return link.gone != gone


def _answer_repeated(link: ClientConnection, frame: Frame) -> bool:
    """Check all conditions, then answer. Return False, with nothing changed, if one of them fails."""
    fetches = link.fetches
    changed = fetches.read_again(frame)
    if changed is None:
        return False
    known: Repeated = fetches.known
    if known is None:
        assert fetches.request is not None
        known = fetches.known = Repeated(link, fetches.request, frame)
    correlation_id, session_epoch, offset = changed
    last = known.partition
    if not known.is_ordinary or (last is not None and offset >= last.leader_state.high_watermark):
        return False  # at the end of the log: the Fetch has to wait
    broker, asked = link.broker, known.asked
    if not _stands_alone(link, len(frame)):
        return False
    session = None
    if known.request.session_id != NO_SESSION:
        session = _find_session(link, known, session_epoch)
    if session is None and (known.request.session_id != NO_SESSION or session_epoch != FINAL_EPOCH):
        return False
    now = broker.now()
    partition = _find_allowed(link, known, now)
    if partition is None:
        return False
    limit = find_limit(
        broker.cache, asked, partition, offset, known.read_committed, known.head.api_version, now
    )
    if limit < 0:
        return False
    sender = broker.cache.sender
    found = sender.find(partition.slot, offset, limit, min(known.most_bytes, broker.answer_bytes))
    if found is None:
        return False
    if found[1] < known.least_bytes:
        sender.drop()
        return False
    _note_request(link, known, len(frame))
    if session is not None:
        _note_session(link, known, session, partition, offset, now)
    partition.wanted_at = now
    _answer(link, known, partition, offset, limit, found, correlation_id, now)
    link.authorization.used(asked.topic, partition, now)
    return True


def _stands_alone(link: ClientConnection, size_bytes: int) -> bool:
    """Return True if nothing else is open on the connection, the byte budget has room, and no quota
    is active.
    """
    broker = link.broker
    requests = broker.requests
    return (
        not link.replies.line
        and link.wire.is_idle
        and not link.wire.reading_held
        and not link.reads.by_key
        and not link.preferred_replicas
        and not broker.scheduler.quotas.active
        and broker.accounts.shared_answers is None
        and requests.in_flight_bytes + size_bytes < requests.limit_bytes
    )


def _find_session(link: ClientConnection, known: Repeated, session_epoch: int) -> Session | None:
    """Return the session that the request continues; None if this way does not cover it.

    The session must have this epoch, this partition only, and the same reader: connection,
    isolation level, version.
    """
    request, version = known.request, known.head.api_version
    session = find_single(
        link.broker.sessions,
        request.session_id,
        session_epoch,
        link.session_owner,
        known.asked,
        version,
    )
    if session is None or session.idle_partitions is None:
        return session
    idle_partitions = session.idle_partitions
    reader = link, request.isolation_level, version
    return (
        session
        if isinstance(idle_partitions, IdlePartitions) and idle_partitions.reader == reader
        else None
    )


def find_repeated(record: FetchRecord) -> Repeated | None:
    """Return what is prepared for a delayed Fetch, if `evaluate_waiting` may be used for it; None
    otherwise.
    """
    known: Repeated | None = record.link.fetches.known
    if known is None or not known.is_ordinary or known.least_bytes:
        return None
    if known.request.session_id != NO_SESSION:
        return None  # also if the request ends that session and is answered without one
    return known if record.context is not None and record.context.kind is Kind.SESSIONLESS else None


def evaluate_waiting(record: FetchRecord, known: Repeated, now: float) -> PartitionStatus | None:
    """Return the status of a delayed Fetch's one partition, if it is READABLE and the response can
    leave at once.

    None otherwise, with nothing changed.
    """
    link = record.link
    if link.reads.by_key or not leaves_at_once(record):
        return None
    partition = _find_allowed(link, known, now)
    if partition is None:
        return None
    asked, isolation_level = record.request.partitions[0], known.request.isolation_level
    status = plan_partition(
        link.broker.cache, asked, partition, isolation_level, known.head.api_version, now
    )
    if status.state is not READABLE:
        return None
    link.broker.counters.looked_partitions += 1
    partition.wanted_at = now
    return status


def _find_allowed(link: ClientConnection, known: Repeated, now: float) -> Partition | None:
    """Return the partition, found again if needed; None if it is not followed or the right is
    missing.
    """
    if not link.authorization.allows(known.asked.topic, now):
        return None
    if known.partition is None or not known.partition.is_followed:
        known.partition = _find(link.broker, known.asked)
    return known.partition


def _find(broker: Broker, asked: FetchPartition) -> Partition | None:
    """Return the followed partition of that topic name or id; None if there is none.

    The result stays valid for as long as the partition is followed.
    """
    topic = broker.topics.find(asked.topic)
    return None if topic is None else broker.partitions.find(topic, asked.partition)


def _note_request(link: ClientConnection, known: Repeated, size_bytes: int) -> None:
    """Count the request. Its bytes were never charged to the byte budget, because it is not held."""
    counters = link.broker.counters
    traffic = counters.requests_in[api.FETCH]
    traffic.frames += 1
    traffic.size_bytes += size_bytes
    counters.looked_partitions += 1
    link.client_id = known.head.client_id
    link.authorization.version = known.head.api_version


def _note_session(
    link: ClientConnection,
    known: Repeated,
    session: Session,
    partition: Partition,
    offset: int,
    now: float,
) -> None:
    """Advance the session by one epoch; its one partition is shown with records."""
    leader_state, asked = partition.leader_state, _ask_at(known, offset)
    note_records(
        link.broker.sessions,
        session,
        asked,
        leader_state.high_watermark,
        leader_state.log_start_offset,
        now,
    )
    if session.idle_partitions is not None:
        session.idle_partitions.used_at = now


def _ask_at(known: Repeated, offset: int) -> FetchPartition:
    """Return the partition as the current request names it, with its fetch offset."""
    asked = known.asked
    return FetchPartition(*asked[:3], offset, *asked[4:])


def _answer(
    link: ClientConnection,
    known: Repeated,
    partition: Partition,
    offset: int,
    limit: int,
    found: list[int],
    correlation_id: int,
    now: float,
) -> None:
    """Send the response for one partition; the result equals that of `response.build_answer`.

    `found` is the result of the cache's `Sender.find`. Its five numbers: next offset, record bytes,
    number of pieces, whether they are pinned, and the clock of admitted bytes at the first batch.
    """
    next_offset, size_bytes, _, pinned, admitted_at = found
    broker, leader_state, stable = (
        link.broker,
        partition.leader_state,
        partition.last_stable_offset(),
    )
    aborted: Sequence[tuple[int, int]] | None = None
    if known.read_committed:
        aborted = partition.transactions.aborted(offset, min(next_offset, limit))
        assert aborted is not None
    sender, verifier, fd = broker.cache.sender, broker.verifier, link.wire.plain_fd
    is_sampled, sent_bytes = verifier.ratio > 0 and verifier.draws(), 0
    offsets = leader_state.high_watermark, stable, leader_state.log_start_offset
    start, end = build_start(known.answer, correlation_id, *offsets, size_bytes), known.answer.end
    frame_bytes = len(start) + size_bytes + len(end)
    if pinned and fd >= 0 and frame_bytes <= PIECE_BYTES and not (aborted or is_sampled):
        sent_bytes = sender.send(fd, start, end)
        link.gone += sent_bytes > 0
        if sent_bytes == frame_bytes:
            broker.accounts.enter_hit(
                link,
                known.head.api_version,
                known.request.isolation_level,
                partition,
                offset,
                size_bytes,
                frame_bytes,
                admitted_at,
                now,
            )
            return
    hit = sender.hold()
    if is_sampled:
        verifier.take(
            partition, offset, hit, None if aborted is None else Committed(aborted, stable)
        )
    buffers: Sequence[Frame] = (start, *hit.views, end)
    if aborted:
        buffers = _build_aborted(known, partition, hit, correlation_id, stable, aborted)
        frame_bytes = sum(map(len, buffers))
    record = FetchRecord(link, known.head, known.request, 0, received_at=now)
    status = PartitionStatus(_ask_at(known, offset), partition, READABLE, "", limit)
    outcomes = (PartitionOutcome(status, size_bytes, "hit", "", 0.0, None, admitted_at),)
    if sent_bytes or (size_bytes > COPIED_BYTES and frame_bytes <= PIECE_BYTES and hit.pins):
        _send(record, outcomes, cut_buffers(buffers, sent_bytes), frame_bytes, hit)
    else:
        _send_in_line(record, outcomes, buffers, hit)


def _build_aborted(
    known: Repeated,
    partition: Partition,
    hit: Hit,
    correlation_id: int,
    stable: int,
    aborted: Sequence[tuple[int, int]],
) -> list[Frame]:
    """Return a response that lists aborted transactions."""
    asked, leader_state = known.asked, partition.leader_state
    offsets = leader_state.high_watermark, stable, leader_state.log_start_offset
    answer = FetchAnswer(
        asked.topic, asked.partition, 0, *offsets, aborted, hit.views, hit.size_bytes
    )
    return build_response(
        known.head.api_version,
        correlation_id,
        throttle_time_ms=0,
        error_code=0,
        session_id=known.request.session_id,
        partitions=[answer],
    )


def _send(
    record: FetchRecord,
    outcomes: Sequence[PartitionOutcome],
    buffers: Sequence[Frame],
    frame_bytes: int,
    hit: Hit,
) -> None:
    """Give the rest of the response to the transport, which does not queue it behind others.

    The response holds no memory but the arena's, so it needs no place in the response order.
    `buffers` has the bytes that the kernel has not taken yet, out of `frame_bytes`.
    """
    link = record.link

    def sent(delivered: bool) -> None:
        broker = link.broker
        if delivered:
            traffic = broker.counters.responses_out[api.FETCH]
            traffic.frames += 1
            traffic.size_bytes += frame_bytes
        hit.release()
        broker.accounts.enter(record, outcomes, delivered, is_ours=True)

    link.gone += 1
    link.wire.send(buffers, sent)


def _send_in_line(
    record: FetchRecord, outcomes: Sequence[PartitionOutcome], buffers: Sequence[Frame], hit: Hit
) -> None:
    """Send the response through the response order.

    Few bytes, and bytes that cannot be pinned, are charged until they have left. More than one
    piece waits here, where it can be copied out of the arena.
    """
    record.reply = record.link.replies.reserve()
    if hit.size_bytes <= COPIED_BYTES:
        whole = b"".join(buffers)
        hit.release()
        record.served(outcomes, (whole,), (), len(whole))
        return
    hits = (hit,)
    if hit.pins:
        hit.on_reclaim = lambda _hit: copy_out(record, hits)
    record.served(outcomes, buffers, hits, 0 if hit.pins else hit.size_bytes)
