"""A Fetch that the broker answers: forwarded whole, without a session, and its answer teaches.

Owns the way of such a Fetch through its queue, to the broker and back, and what its session makes of both. It must not
know why it is forwarded (fetch/handler.py, fetch/delayed_fetch.py). Invariants: reads for a client go upstream with
session id 0, epoch -1, never (0, 0), which would make one (KIP-227); the broker's answer leaves as it came but for the
session's id, or an error of the session's in its place.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from isolation.tickets import Waits
from protocol import fetch
from protocol.errors import BadFrame, ErrorCode
from protocol.fetch_build import (
    FetchAnswer,
    build_request,
    stamp_max_wait,
    stamp_response_session,
    stamp_session,
)
from proxy.fetch.misses.coalescing import begin_forwarded, end_forwarded
from proxy.fetch.response import build_error, refuse_fetch
from proxy.fetch.sessions.context import Kind, PlannedResponse
from proxy.partitions.readable import ISOLATION_LEVELS
from proxy.relay import relay_whole

if TYPE_CHECKING:
    from protocol.fetch import FetchedPartition, FetchPartition, FetchResponse
    from protocol.header import RequestHeader
    from protocol.wire import Frame
    from proxy.fetch.misses.coalescing import Flight
    from proxy.fetch.record import FetchRecord
    from proxy.fetch.sessions.context import FetchContext
    from proxy.net.client_connection import ClientConnection
    from proxy.net.framed_transport import FramedTransport
    from proxy.net.splice import SpliceTransfer
    from proxy.partitions.readable import PartitionStatus
    from proxy.scheduling.queued_request import Entry

SESSIONLESS = (0, -1)


def forward_fetch(
    record: FetchRecord, frame: Frame, statuses: list[PartitionStatus], max_wait_ms: int | None = None
) -> None:
    """Send the request to the broker; its answer goes to the client as it comes, and teaches. `max_wait_ms`:
    what is left of the request's own after it has waited here.
    """
    link, head, request, partitions = record.link, record.head, record.request, record.partitions
    assert record.context is not None
    link.reads.drop_asked(partitions)
    link.authorization.has_rack = bool(request.rack_id)
    frame = _without_session(record, record.context, frame, max_wait_ms)
    scheduler = link.broker.scheduler
    pipeline: list[Flight] = []

    def dispatch(entry: Entry) -> None:
        scheduler.dispatched(entry)
        pipeline.extend(begin_forwarded(record, statuses))
        now = link.broker.now()
        link.forward(head, frame, partial(on_answer, entry, now), partial(on_begun, entry, now))

    def on_begun(
        entry: Entry, sent_at: float, begun: bytes, frame_bytes: int, source: FramedTransport
    ) -> SpliceTransfer | None:
        """At the bound it leaves as it comes; a session that the request names is over then: the answer has none."""
        if link.broker.responses.has_room(frame_bytes):
            return None
        response = _scan_begun(head, begun, frame_bytes)
        on_sent = record.passing(statuses, response)
        on_end = partial(scheduler.answered, entry)
        passage = link.begin_pieces(
            head, record.reply, record.request_bytes, on_sent, begun, frame_bytes, source, on_end
        )
        if passage is not None:
            if response is not None:
                link.authorization.learn_answer(response, sent_at)
            end_forwarded(link.broker, pipeline, None, None)
            pipeline.clear()
        return passage

    def on_answer(entry: Entry, sent_at: float, answer: Frame | None) -> None:
        if answer is None:
            record.abandoned()
            end_forwarded(link.broker, pipeline, None, None)
            return
        scheduler.answered(entry)
        response = _scan_answer(link, head, answer)
        if response is not None:
            link.authorization.learn_answer(response, sent_at)
        end_forwarded(link.broker, pipeline, response, answer)
        record.forwarded(statuses, response, _in_session(record, response, answer))

    scheduler.submit(
        link,
        dispatch,
        partial(refuse_fetch, record, statuses),
        topics=[status.queue_key for status in statuses],
        size_bytes=len(frame),
        waits=Waits.NOTHING if any(map(_is_behind, statuses)) else Waits.POLL,
        whole=partial(relay_whole, link, frame, record.reply),
    )


def _is_behind(status: PartitionStatus) -> bool:
    """Whether there are records for it, so that the broker reads instead of waiting for some."""
    return (
        status.partition is not None
        and status.asked.fetch_offset < status.partition.leader_state.high_watermark
    )


def _without_session(
    record: FetchRecord, context: FetchContext, frame: Frame, max_wait_ms: int | None
) -> Frame:
    """The request as the broker is to see it: what a session left unsaid is said."""
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
            partitions=_list_asked(record, context),
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


def _list_asked(record: FetchRecord, context: FetchContext) -> list[FetchPartition]:
    """All that the session asks; where the request as a whole is refused, what it names itself: the refusal repeats
    that (FetchRequest.getErrorResponse).
    """
    is_refused = record.request.isolation_level not in ISOLATION_LEVELS
    return context.changed if is_refused and context.changed else record.partitions


def _in_session(record: FetchRecord, response: FetchResponse | None, answer: Frame) -> Frame:
    """The broker's answer with the session's id. All partitions stay named: a client takes more than it needs."""
    context, request = record.context, record.request
    if context is None or response is None or request.session_at < 0:
        return answer
    if response.error_code != ErrorCode.NONE:  # of the request as a whole: FetchRequest.getErrorResponse
        if context.kind is Kind.INCREMENTAL and not context.changed:
            return build_error(record, response.error_code, request.session_id, response.throttle_time_ms)
        planned = PlannedResponse[FetchAnswer](ErrorCode.NONE, request.session_id, [])
        return _show_session(record, planned, answer, response.throttle_time_ms)
    if response.throttle_time_ms > 0 and not response.partitions:
        planned = context.plan_throttled()
        return _show_session(record, planned, answer, response.throttle_time_ms)
    if context.kind is not Kind.INCREMENTAL and len(response.partitions) != len(context.partitions):
        return answer
    planned = context.plan_response([_shown(one) for one in response.partitions], record.link.broker.now())
    return _show_session(record, planned, answer, response.throttle_time_ms)


def _show_session(
    record: FetchRecord, planned: PlannedResponse[FetchAnswer], answer: Frame, throttle_time_ms: int
) -> Frame:
    """The answer as its session makes it: with its id, or its error in its place."""
    if planned.error_code != ErrorCode.NONE:
        return build_error(record, planned.error_code, planned.session_id, throttle_time_ms)
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


def _scan_begun(head: RequestHeader, begun: bytes, frame_bytes: int) -> FetchResponse | None:
    """The answer as far as its records lack; None where more does."""
    try:
        return fetch.scan_response_head(begun, head.api_version, frame_bytes)
    except BadFrame:
        return None


def _scan_answer(link: ClientConnection, head: RequestHeader, answer: Frame) -> FetchResponse | None:
    try:
        return fetch.scan_response(answer, head.api_version)
    except BadFrame:
        link.broker.counters.bad_frames += 1
        return None
