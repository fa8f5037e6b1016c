"""Behaviour of Fetch: answered from memory, parked at the tail, or forwarded whole.

Versions 4 to 18 are read; any other is relayed. Fetch sessions are Forebay's own (sessions.py): a request is
what its session makes of it, and goes upstream without one. A request all of whose partitions memory can
speak for never reaches the broker; one that mixes hits and misses is split (parked.py, reads.py); any other
is forwarded whole, and its answer teaches. Followers pass untouched, and so do all where memory does not
serve.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from isolation.queues import Waits
from protocol import api, fetch
from protocol.errors import BadFrame, ErrorCode
from protocol.fetch_build import (
    FetchAnswer,
    build_request,
    stamp_max_wait,
    stamp_response_session,
    stamp_session,
)
from proxy.answer import answer_error, build_error, refuse_fetch
from proxy.fetch_plan import HARD, UNREAD, Look, Looked
from proxy.fetch_record import FetchRecord
from proxy.learn import learn_answer
from proxy.looks import look_at
from proxy.observing import peek_would_hit
from proxy.parked import ParkedFetch
from proxy.relay import relay
from proxy.sessions import Kind, open_fetch
from proxy.shared_reads import begin_forwarded, end_forwarded

if TYPE_CHECKING:
    from protocol.fetch import FetchedPartition, FetchRequest, FetchResponse
    from protocol.header import RequestHeader
    from protocol.wire import Frame
    from proxy.client_link import ClientLink
    from proxy.gate import Entry
    from proxy.sessions import FetchContext
    from proxy.shared_reads import Flight

SESSIONLESS = (0, -1)
CONSUMER = -1


def handle_fetch(link: ClientLink, head: RequestHeader, frame: Frame) -> None:
    """Answer, park or forward a Fetch."""
    request = _scan(link, head, frame)
    if request is None:
        relay(link, head, frame, partial(_count_unread, link, head, link.broker.now()))
        return
    link.authorization.version = head.api_version
    passed = _pass_untouched(link, request)
    if passed:
        record = FetchRecord(link, head, request, len(frame))
        forward_fetch(record, frame, _look_past(record, Look.PASS, passed))
        return
    context = open_fetch(
        link.broker.sessions, request, head.api_version, link.session_owner, link.broker.now()
    )
    record = FetchRecord(link, head, request, len(frame), context)
    if context.kind is Kind.ERROR:
        answer_error(record)
    elif (delay_s := _over_quota_s(record)) > 0:
        refuse_fetch(record, _look_past(record, Look.MISS, "refused"), delay_s)
    elif link.preferred_replicas and request.rack_id:
        forward_fetch(record, frame, _look_past(record, Look.PASS, "preferred-replica"))
    elif link.broker.cache.observes:
        _observe(record, frame)
    else:
        ParkedFetch(record, frame).start()


def _observe(record: FetchRecord, frame: Frame) -> None:
    """The broker answers; what memory would have answered is noted before (`cache.mode: observe`)."""
    broker = record.link.broker
    looks = look_at(record, broker.now())
    record.would_hit_bytes = [peek_would_hit(broker.cache, looked) for looked in looks]
    for looked in looks:
        if looked.partition is not None and looked.look not in HARD:
            broker.watch.follow(looked.partition, looked.asked if looked.look is Look.ASK else None)
    forward_fetch(record, frame, looks)


def _count_unread(link: ClientLink, head: RequestHeader, received_at: float, delivered: bool) -> None:
    """A Fetch that could not be read has been answered by the broker."""
    counters = link.broker.counters
    if not delivered:
        counters.undelivered_partitions += 1
        return
    counters.fetch_partitions[UNREAD] += 1
    link.broker.log_unread(link, head, received_at)


def _scan(link: ClientLink, head: RequestHeader, frame: Frame) -> FetchRequest | None:
    """The request, or None where it cannot be read: then the broker judges it, and it is counted as one pass."""
    if api.APIS[api.FETCH].decodes(head.api_version):
        try:
            return fetch.scan_request(frame, head.api_version, head.body_start)
        except BadFrame:
            pass
    return None


def _over_quota_s(record: FetchRecord) -> float:
    """How long the client has to wait until what it has fetched is paid for. Its topics are looked at while one of
    anybody's has to wait.
    """
    link = record.link
    quotas = link.broker.gate.quotas
    if not quotas.active:
        return 0.0
    now, found = link.broker.now(), []
    if record.context is not None and quotas.topics.owes(now):
        found = [link.broker.topics.find(topic) for topic in record.context.topics]
    names = [topic.name for topic in found if topic is not None and topic.name]
    return quotas.peek_delay_s(link.client_id or "", names, now)


def _pass_untouched(link: ClientLink, request: FetchRequest) -> str:
    """The reason for which a request goes to the broker as it came, fetch session and all, or ""."""
    if request.replica_id != CONSUMER:
        return "follower"
    return "" if link.broker.stores_on(link.listener) else "disabled"


def _look_past(record: FetchRecord, look: Look, reason: str) -> list[Looked]:
    """The same for every partition, where nothing of them is asked of memory."""
    return [Looked(asked, None, look, reason, -1) for asked in record.partitions]


def forward_fetch(
    record: FetchRecord, frame: Frame, looks: list[Looked], max_wait_ms: int | None = None
) -> None:
    """Send the request to the broker; its answer goes to the client as it comes, and teaches. `max_wait_ms`:
    what is left of the request's own after it has waited here.
    """
    link, head, request, partitions = record.link, record.head, record.request, record.partitions
    is_ours = record.context is not None
    is_consumer = request.replica_id == CONSUMER
    if record.context is not None:
        link.reads.drop_asked(partitions)
        link.authorization.has_rack = bool(request.rack_id)
        frame = _without_session(record, record.context, frame, max_wait_ms)
    gate = link.broker.gate
    flights: list[Flight] = []

    def go(entry: Entry) -> None:
        gate.sent(entry)
        if is_ours:
            flights.extend(begin_forwarded(record, looks))
        link.forward(head, frame, partial(on_answer, entry, link.broker.now()))

    def on_answer(entry: Entry, sent_at: float, answer: Frame | None) -> None:
        if answer is None:
            record.abandoned()
            end_forwarded(link.broker, flights, None, None)
            return
        gate.answered(entry)
        response = _scan_answer(link, head, answer)
        if response is not None and is_ours:
            learn = partial(learn_answer, link, head.api_version, partitions, response, answer, sent_at)
            link.broker.attempt(learn, "learning from a Fetch answer")
        end_forwarded(link.broker, flights, response, answer)
        record.forwarded(looks, response, _in_session(record, response, answer))

    gate.enter(
        link,
        go,
        partial(refuse_fetch, record, looks) if is_consumer else None,
        is_control=not is_consumer,
        topics=[looked.queue_key for looked in looks],
        size_bytes=len(frame),
        waits=Waits.NOTHING if any(map(_is_behind, looks)) else Waits.POLL,
    )


def _is_behind(looked: Looked) -> bool:
    """Whether there are records for it, so that the broker reads instead of waiting for some."""
    return looked.partition is not None and looked.asked.fetch_offset < looked.partition.truth.high_watermark


def _without_session(
    record: FetchRecord, context: FetchContext, frame: Frame, max_wait_ms: int | None
) -> Frame:
    """The request as the broker is to see it: reads for a client go upstream with session id 0, epoch -1,
    never (0, 0), which would make one (KIP-227); what a session left unsaid is said.
    """
    head, request = record.head, record.request
    if context.kind is Kind.INCREMENTAL:
        return build_request(
            head.api_version,
            head.correlation_id,
            head.client_id,
            max_wait_ms=request.max_wait_ms if max_wait_ms is None else max_wait_ms,
            min_bytes=request.min_bytes,
            max_bytes=request.max_bytes,
            isolation_level=request.isolation_level,
            session_id=SESSIONLESS[0],
            session_epoch=SESSIONLESS[1],
            partitions=record.partitions,
            rack_id=request.rack_id,
        )
    in_session = request.session_at >= 0 and (request.session_id, request.session_epoch) != SESSIONLESS
    if max_wait_ms is None and not in_session:
        return frame
    frame = bytearray(frame) if isinstance(frame, bytes) else frame
    if max_wait_ms is not None:
        stamp_max_wait(frame, head.api_version, head.body_start, max_wait_ms)
    if in_session:
        stamp_session(frame, request.session_at, *SESSIONLESS)
    return frame


def _in_session(record: FetchRecord, response: FetchResponse | None, answer: Frame) -> Frame:
    """The broker's answer with the session's id. All partitions stay named: a client takes more than it needs."""
    context = record.context
    if context is None or response is None or response.error_code != ErrorCode.NONE:
        return answer
    if record.request.session_at < 0 or not response.partitions:
        return answer
    if context.kind is not Kind.INCREMENTAL and len(response.partitions) != len(context.partitions):
        return answer
    planned = context.plan_response([_shown(one) for one in response.partitions], record.link.broker.now())
    if planned.error_code != ErrorCode.NONE:
        return build_error(record, planned.error_code, planned.session_id)
    if planned.session_id:
        answer = bytearray(answer) if isinstance(answer, bytes) else answer
        stamp_response_session(answer, record.head.api_version, planned.session_id)
    return answer


def _shown(one: FetchedPartition) -> FetchAnswer:
    return FetchAnswer(
        one.topic,
        one.partition,
        one.error_code,
        one.high_watermark,
        one.last_stable_offset,
        one.log_start_offset,
        None,
        (),
        one.end - one.start,
    )


def _scan_answer(link: ClientLink, head: RequestHeader, answer: Frame) -> FetchResponse | None:
    try:
        return fetch.scan_response(answer, head.api_version)
    except BadFrame:
        link.broker.counters.bad_frames += 1
        return None
