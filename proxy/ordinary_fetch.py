"""The ordinary cached Fetch, on the shortest way: it asks for one partition, as the Fetch before it on its connection
did, and memory has at once what it waits for.

Owns what is known of a connection's repeated request (`Repeated`), and the one place that decides who goes this way:
`answer_ordinary`. Must not know how a Fetch waits, is read beside, forwarded, refused or delayed by a quota: that
is `proxy.fetch`'s, to which False leaves a request as it came. Invariants: until all questions are answered nothing
has changed; what memory may say is `plan_partition`'s to judge on both ways, and what is said, counted and logged is
the same. Why there are two: docs/decisions/0014.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol import api, header
from protocol.fetch import FetchPartition
from protocol.fetch_build import (
    AnswerHead,
    FetchAnswer,
    build_headed_answer,
    build_response,
    plan_answer_head,
)
from proxy.answer import COPIED_BYTES, copy_out, leaves_at_once
from proxy.fetch_plan import READ_COMMITTED, READY, Told, plan_partition
from proxy.fetch_record import FetchRecord
from proxy.outgoing import PIECE_BYTES
from proxy.passed import CONSUMER
from proxy.sessions import FINAL_EPOCH, NO_SESSION, Kind, find_single, note_records
from proxy.standing import Standing
from proxy.verify import Committed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockcache.arena import Hit
    from protocol.fetch import FetchRequest
    from protocol.wire import Frame
    from proxy.broker import Broker
    from proxy.client_link import ClientLink
    from proxy.fetch_plan import Looked
    from proxy.partitions import Partition
    from proxy.session_table import Session


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

    def __init__(self, link: ClientLink, request: FetchRequest, frame: Frame) -> None:
        self.request = request
        self.head = head = header.peek_request(frame)
        self.asked = asked = request.partitions[0]
        self.read_committed = request.isolation_level == READ_COMMITTED
        self.most_bytes = min(asked.max_bytes, request.max_bytes)
        self.least_bytes = request.min_bytes if request.max_wait_ms > 0 and request.min_bytes > 1 else 0
        is_ours = link.stores and request.replica_id == CONSUMER and not link.broker.cache.observes
        self.is_ordinary = is_ours and self.least_bytes <= max(asked.max_bytes, 0)
        self.answer: AnswerHead = plan_answer_head(
            head.api_version, request.session_id, asked.topic, asked.partition, self.read_committed
        )
        self.partition: Partition | None = None


def answer_ordinary(link: ClientLink, frame: Frame) -> bool:
    """Answer a Fetch that repeats the one before it, if memory has what it waits for and nothing stands against it.
    False: nothing has happened.
    """
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
    if not known.is_ordinary or (last is not None and offset >= last.truth.high_watermark):
        return False  # at the tail
    if not _stands_alone(link, len(frame)):
        return False
    session = None
    if known.request.session_id != NO_SESSION:
        session = _find_session(link, known, session_epoch)
    if session is None and (known.request.session_id != NO_SESSION or session_epoch != FINAL_EPOCH):
        return False
    now = link.broker.now()
    asked = known.asked
    looked = _look(link, known, FetchPartition(*asked[:3], offset, *asked[4:]), now)
    if looked is None or looked.partition is None:
        return False
    hit = link.broker.cache.lookup(looked.partition.slot, offset, looked.limit_offset, known.most_bytes)
    if hit is None:
        return False
    if not hit.size_bytes or hit.size_bytes < known.least_bytes:
        hit.release()
        return False
    _note_request(link, known, len(frame))
    if session is not None:
        _note_session(link, session, looked, now)
    _answer(link, known, looked, hit, correlation_id, now)
    return True


def _stands_alone(link: ClientLink, size_bytes: int) -> bool:
    """Whether it is the connection's only concern, and no bound or quota has a say in it."""
    broker = link.broker
    requests = broker.requests
    return (
        not link.replies.line
        and link.wire.is_idle
        and not link.wire.reading_held
        and not link.reads.by_key
        and not link.preferred_replicas
        and not broker.gate.quotas.active
        and broker.accounts.alike is None
        and requests.in_flight_bytes + size_bytes < requests.limit_bytes
    )


def _find_session(link: ClientLink, known: Repeated, session_epoch: int) -> Session | None:
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
    if (
        known.request.session_id != NO_SESSION
    ):  # also where it ends that session: then it is answered without one
        return None
    return known if record.context is not None and record.context.kind is Kind.SESSIONLESS else None


def look_waiting(record: FetchRecord, known: Repeated, now: float) -> Looked | None:
    """What memory has by now for a Fetch that waited at the tail, and may leave with it at once; else None: nothing has
    happened.
    """
    link = record.link
    if link.reads.by_key or not leaves_at_once(record):
        return None
    looked = _look(link, known, record.request.partitions[0], now)
    if looked is not None and looked.partition is not None:
        link.broker.counters.looked_partitions += 1
        looked.partition.wanted_at = now
    return looked


def _look(link: ClientLink, known: Repeated, asked: FetchPartition, now: float) -> Looked | None:
    """`looks.look_at_one` of what is known; None where there is nothing to read."""
    broker, partition = link.broker, known.partition
    if not link.authorization.allows(asked.topic, now):
        return None
    if partition is None or not partition.is_followed:
        partition = known.partition = _find(broker, asked)
        if partition is None:
            return None
    looked = plan_partition(
        broker.cache, asked, partition, known.request.isolation_level, known.head.api_version, now
    )
    return looked if looked.look is READY else None


def _find(broker: Broker, asked: FetchPartition) -> Partition | None:
    """What is followed under that name or id, which is one partition's for as long as that is followed."""
    topic = broker.topics.find(asked.topic)
    return None if topic is None or not topic.name else broker.partitions.find(topic, asked.partition)


def _note_request(link: ClientLink, known: Repeated, size_bytes: int) -> None:
    """It has arrived, and is not held: its bytes were never charged."""
    counters = link.broker.counters
    hop = counters.requests_in[api.FETCH]
    hop.frames += 1
    hop.size_bytes += size_bytes
    counters.looked_partitions += 1
    link.client_id = known.head.client_id
    link.authorization.version = known.head.api_version


def _note_session(link: ClientLink, session: Session, looked: Looked, now: float) -> None:
    """It goes on by one epoch, and its one partition is shown with records."""
    assert looked.partition is not None
    truth = looked.partition.truth
    note_records(
        link.broker.sessions, session, looked.asked, truth.high_watermark, truth.log_start_offset, now
    )
    if session.standing is not None:
        session.standing.used_at = now


def _answer(
    link: ClientLink, known: Repeated, looked: Looked, hit: Hit, correlation_id: int, now: float
) -> None:
    """`answer.build_answer` of one partition."""
    partition, offset, size_bytes = looked.partition, looked.asked.fetch_offset, hit.size_bytes
    assert partition is not None
    broker, truth, stable = link.broker, partition.truth, partition.last_stable_offset()
    partition.wanted_at = now
    aborted = committed = None
    if known.read_committed:
        aborted = partition.transactions.aborted(offset, min(hit.next_offset, looked.limit_offset))
        assert aborted is not None
        committed = Committed(aborted, stable)
    broker.verifier.offer(partition, offset, hit, committed)
    buffers: Sequence[Frame]
    if aborted:
        buffers = _build_aborted(known, looked, hit, correlation_id, stable, aborted)
    else:
        offsets = truth.high_watermark, stable, truth.log_start_offset
        buffers = build_headed_answer(known.answer, correlation_id, *offsets, hit.views, size_bytes)
    record = FetchRecord(link, known.head, known.request, 0, received_at=now)
    told = (Told(looked, size_bytes, "hit", "", 0.0, None, hit.admitted_at),)
    frame_bytes = sum(map(len, buffers))
    if size_bytes > COPIED_BYTES and frame_bytes <= PIECE_BYTES and hit.pins:
        _send(record, told, buffers, frame_bytes, hit)
    else:
        _send_in_line(record, told, buffers, hit)
    link.authorization.used(looked.asked.topic, partition, now)


def _build_aborted(
    known: Repeated,
    looked: Looked,
    hit: Hit,
    correlation_id: int,
    stable: int,
    aborted: Sequence[tuple[int, int]],
) -> list[Frame]:
    """An answer that lists aborted transactions."""
    asked, partition = known.asked, looked.partition
    assert partition is not None
    truth = partition.truth
    offsets = truth.high_watermark, stable, truth.log_start_offset
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
    record: FetchRecord, told: Sequence[Told], buffers: Sequence[Frame], frame_bytes: int, hit: Hit
) -> None:
    """All of it is the kernel's from here on, and it holds no memory but the arena's: it needs no place in the line."""
    link = record.link

    def sent(delivered: bool) -> None:
        broker = link.broker
        if delivered:
            hop = broker.counters.responses_out[api.FETCH]
            hop.frames += 1
            hop.size_bytes += frame_bytes
        hit.release()
        broker.accounts.enter(record, told, delivered, is_ours=True)

    link.wire.send(buffers, sent, frame_bytes)


def _send_in_line(record: FetchRecord, told: Sequence[Told], buffers: Sequence[Frame], hit: Hit) -> None:
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
