"""The ordinary cached Fetch, on the shortest way: it asks for one partition, as the Fetch before it on its connection
did, and memory has at once what it waits for.

Owns what is known of a connection's repeated request (`Repeated`), and the one place that decides who goes this way:
`answer_prepared`. Must not know how a Fetch waits, is read beside, forwarded, refused or delayed by a quota: that
is `proxy.fetch.handler`'s, to which False leaves a request as it came. Invariants: until all questions are answered
nothing has changed; what memory may say is what the plan says; what is said, counted and logged is the same on both
ways; past the transport goes only what nothing waits before. Why there are two: docs/decisions/0014; past the
transport: 0024.
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
from proxy.fetch.sessions.idle_partitions import Standing
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
    """What is the same in all repetitions of `request`, the first of them; `asked` is its partition. `least_bytes`:
    fewer are waited for; `most_bytes`: more are not told. `is_ordinary`: such a request may go this way. `partition`:
    as it was found last.
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
    """Answer a Fetch that repeats the one before it, if memory has what it waits for and nothing stands against it.
    False: nothing has happened, or what has raised is the general way's to find out.
    """
    gone = link.gone
    try:
        return _answer_repeated(link, frame)
    except Exception:
        link.broker.failed("answering a Fetch at once")
        return link.gone != gone


def _answer_repeated(link: ClientConnection, frame: Frame) -> bool:
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
        return False  # at the tail
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
    """Whether it is the connection's only concern, and no bound or quota has a say in it."""
    broker = link.broker
    requests = broker.requests
    return (
        not link.replies.line
        and link.wire.is_idle
        and not link.wire.reading_held
        and not link.reads.by_key
        and not link.preferred_replicas
        and not broker.scheduler.quotas.active
        and broker.accounts.alike is None
        and requests.in_flight_bytes + size_bytes < requests.limit_bytes
    )


def _find_session(link: ClientConnection, known: Repeated, session_epoch: int) -> Session | None:
    """The session that it goes on with, if its partition is all there is of it and nobody else knows it."""
    request, version = known.request, known.head.api_version
    session = find_single(
        link.broker.sessions, request.session_id, session_epoch, link.session_owner, known.asked, version
    )
    if session is None or session.standing is None:
        return session
    standing = session.standing
    looker = link, request.isolation_level, version
    return session if isinstance(standing, Standing) and standing.looker == looker else None


def find_repeated(record: FetchRecord) -> Repeated | None:
    """What is known of a request that waits, if `look_waiting` may be asked for it; None for others."""
    known: Repeated | None = record.link.fetches.known
    if known is None or not known.is_ordinary or known.least_bytes:
        return None
    if known.request.session_id != NO_SESSION:
        return None  # also where it ends that session, and is answered without one
    return known if record.context is not None and record.context.kind is Kind.SESSIONLESS else None


def look_waiting(record: FetchRecord, known: Repeated, now: float) -> PartitionStatus | None:
    """What memory has by now for a Fetch that waited at the tail, and may leave with it at once; else None: nothing has
    happened.
    """
    link = record.link
    if link.reads.by_key or not leaves_at_once(record):
        return None
    partition = _find_allowed(link, known, now)
    if partition is None:
        return None
    asked, isolation_level = record.request.partitions[0], known.request.isolation_level
    status = plan_partition(link.broker.cache, asked, partition, isolation_level, known.head.api_version, now)
    if status.state is not READABLE:
        return None
    link.broker.counters.looked_partitions += 1
    partition.wanted_at = now
    return status


def _find_allowed(link: ClientConnection, known: Repeated, now: float) -> Partition | None:
    """The partition, as it was found last or is found now; None where it is not followed, or not this client's."""
    if not link.authorization.allows(known.asked.topic, now):
        return None
    if known.partition is None or not known.partition.is_followed:
        known.partition = _find(link.broker, known.asked)
    return known.partition


def _find(broker: Broker, asked: FetchPartition) -> Partition | None:
    """What is followed under that name or id, which is one partition's for as long as that is followed."""
    topic = broker.topics.find(asked.topic)
    return None if topic is None else broker.partitions.find(topic, asked.partition)


def _note_request(link: ClientConnection, known: Repeated, size_bytes: int) -> None:
    """It has arrived, and is not held: its bytes were never charged."""
    counters = link.broker.counters
    traffic = counters.requests_in[api.FETCH]
    traffic.frames += 1
    traffic.size_bytes += size_bytes
    counters.looked_partitions += 1
    link.client_id = known.head.client_id
    link.authorization.version = known.head.api_version


def _note_session(
    link: ClientConnection, known: Repeated, session: Session, partition: Partition, offset: int, now: float
) -> None:
    """It goes on by one epoch, and its one partition is shown with records."""
    leader_state, asked = partition.leader_state, _ask_at(known, offset)
    note_records(
        link.broker.sessions, session, asked, leader_state.high_watermark, leader_state.log_start_offset, now
    )
    if session.standing is not None:
        session.standing.used_at = now


def _ask_at(known: Repeated, offset: int) -> FetchPartition:
    """The partition as it is asked for now."""
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
    """`answer.build_answer` of one partition, of which the cache's sender has `found` something."""
    next_offset, size_bytes, _, pinned, admitted_at = found
    broker, leader_state, stable = link.broker, partition.leader_state, partition.last_stable_offset()
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
                link, known.head.api_version, known.request.isolation_level, partition, offset, size_bytes, frame_bytes,
                admitted_at, now,
            )  # fmt: skip
            return
    hit = sender.hold()
    if is_sampled:
        verifier.take(partition, offset, hit, None if aborted is None else Committed(aborted, stable))
    buffers: Sequence[Frame] = (start, *hit.views, end)
    if aborted:
        buffers = _build_aborted(known, partition, hit, correlation_id, stable, aborted)
        frame_bytes = sum(map(len, buffers))
    record = FetchRecord(link, known.head, known.request, 0, received_at=now)
    status = PartitionStatus(_ask_at(known, offset), partition, READABLE, "", limit)
    told = (PartitionOutcome(status, size_bytes, "hit", "", 0.0, None, admitted_at),)
    if sent_bytes or (size_bytes > COPIED_BYTES and frame_bytes <= PIECE_BYTES and hit.pins):
        _send(record, told, cut_buffers(buffers, sent_bytes), frame_bytes, hit)
    else:
        _send_in_line(record, told, buffers, hit)


def _build_aborted(
    known: Repeated,
    partition: Partition,
    hit: Hit,
    correlation_id: int,
    stable: int,
    aborted: Sequence[tuple[int, int]],
) -> list[Frame]:
    """An answer that lists aborted transactions."""
    asked, leader_state = known.asked, partition.leader_state
    offsets = leader_state.high_watermark, stable, leader_state.log_start_offset
    answer = FetchAnswer(asked.topic, asked.partition, 0, *offsets, aborted, hit.views, hit.size_bytes)
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
    told: Sequence[PartitionOutcome],
    buffers: Sequence[Frame],
    frame_bytes: int,
    hit: Hit,
) -> None:
    """All of it is the kernel's from here on, and it holds no memory but the arena's: it needs no place in the line.
    `buffers`: what the kernel has not taken yet of `frame_bytes`.
    """
    link = record.link

    def sent(delivered: bool) -> None:
        broker = link.broker
        if delivered:
            traffic = broker.counters.responses_out[api.FETCH]
            traffic.frames += 1
            traffic.size_bytes += frame_bytes
        hit.release()
        broker.accounts.enter(record, told, delivered, is_ours=True)

    link.gone += 1
    link.wire.send(buffers, sent)


def _send_in_line(
    record: FetchRecord, told: Sequence[PartitionOutcome], buffers: Sequence[Frame], hit: Hit
) -> None:
    """What is few bytes, or may not be pinned, is charged until it has left; what is more than one piece waits here,
    where it can be copied out.
    """
    record.reply = record.link.replies.reserve()
    if hit.size_bytes <= COPIED_BYTES:
        whole = b"".join(buffers)
        hit.release()
        record.served(told, (whole,), (), len(whole))
        return
    hits = (hit,)
    if hit.pins:
        hit.on_reclaim = lambda _hit: copy_out(record, hits)
    record.served(told, buffers, hits, 0 if hit.pins else hit.size_bytes)
