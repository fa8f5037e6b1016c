"""Forwarded Fetch: the broker answers the whole request, and Forebay learns from the response.

Owns the way of such a Fetch through the request scheduler, to the broker and back, and what its
fetch session makes of both frames. Must not know why a Fetch is forwarded (fetch/handler.py,
fetch/delayed_fetch.py). Invariants:
* A Fetch for a client goes to the broker with session id 0, epoch -1; never (0, 0), which would
  create a session (KIP-227).
* The broker's response leaves as it came, except for the session id, or a session error in its
  place.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from isolation.tickets import Waits
from protocol import fetch
from protocol.errors import BadFrame, ErrorCode
from protocol.fetch import TOPIC_IDS_FROM
from protocol.fetch_build import (
    FetchAnswer,
    build_request,
    stamp_max_wait,
    stamp_response_session,
    stamp_session,
)
from proxy.fetch.response import build_error, refuse_fetch
from proxy.fetch.sessions.context import Kind, PlannedResponse
from proxy.relay import relay_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.fetch import FetchedPartition, FetchPartition, FetchResponse
    from protocol.header import RequestHeader
    from protocol.primitives import Frame
    from proxy.fetch.misses.coalescing import SharedRead
    from proxy.fetch.record import FetchRecord
    from proxy.fetch.services import FetchLink
    from proxy.fetch.sessions.context import FetchContext
    from proxy.net.framed_transport import FramedTransport
    from proxy.net.splice import SpliceTransfer
    from proxy.partitions.readable import PartitionStatus
    from proxy.scheduling.queued_request import Entry

SESSIONLESS = (0, -1)
"""Session id and epoch of a Fetch without a session (FetchMetadata.LEGACY)."""
NO_PLAN = PlannedResponse[FetchAnswer](ErrorCode.NONE, 0, [])
"""What a session makes of a response that does not concern it: nothing."""
WHOLE_BYTES = 4 << 20
"""Largest response that is received whole where memory has room: four times what a consumer takes
of a partition by default (max.partition.fetch.bytes).
"""


def forward_fetch(
    record: FetchRecord,
    frame: Frame,
    statuses: list[PartitionStatus],
    max_wait_ms: int | None = None,
) -> None:
    """Send the request to the broker; its response goes to the client and updates rights and
    accounting.

    `statuses` has one status for each partition. `max_wait_ms` is the rest of max_wait, in
    milliseconds, after a wait here; None leaves the request's own value.
    """
    link, head, request, partitions = record.link, record.head, record.request, record.partitions
    link.handlers.reads.drop_asked(partitions)
    authorization, has_rack = link.handlers.authorization, bool(request.rack_id)
    if authorization.has_rack != has_rack:
        authorization.note_rack(has_rack)
    frame = _without_session(record, record.context, frame, max_wait_ms)
    scheduler, shared = link.broker.scheduler, link.broker.shared_reads
    shared_reads: list[SharedRead] = []

    def dispatch(entry: Entry) -> None:
        scheduler.dispatched(entry)
        begun = shared.begin_forwarded(request, head.api_version, statuses, link.upstream)
        shared_reads.extend(begun)
        now = link.broker.now()
        link.forward(head, frame, partial(on_answer, entry, now), partial(on_begun, entry, now))

    def on_begun(
        entry: Entry, sent_at: float, begun: bytes, frame_bytes: int, source: FramedTransport
    ) -> SpliceTransfer | None:
        """Return the splice that sends a large response in pieces as they arrive; None: the response
        is received whole.

        So memory never holds what one client asked for and perhaps never takes. A response whose
        partitions are not known yet leaves in pieces only if memory has no room for it: its bytes
        are not counted, and it ends the session that the request names.
        """
        response = _scan_begun(head, begun, frame_bytes)
        has_joiners = any(one.joiners for one in shared_reads)
        is_wanted = response is None or frame_bytes <= WHOLE_BYTES or has_joiners
        has_room = link.broker.responses.has_room(frame_bytes)
        if (is_wanted and has_room) or not link.may_begin_pieces(record.reply):
            return None
        if response is not None:
            link.handlers.authorization.learn_answer(response, sent_at)
            begun = _begun_in_session(record, response, begun)
        # Joiners fetch for themselves: the whole frame is never in memory here.
        shared.end_forwarded(shared_reads, None, None)
        shared_reads.clear()
        return link.begin_pieces(
            head,
            record.reply,
            record.fetch.request_bytes,
            record.passing(statuses, response, begun),
            begun,
            frame_bytes,
            source,
            partial(scheduler.answered, entry),
        )

    def on_answer(entry: Entry, sent_at: float, answer: Frame | None) -> None:
        if answer is None:
            record.abandoned()
            shared.end_forwarded(shared_reads, None, None)
            return
        scheduler.answered(entry)
        response = _scan_answer(link, head, answer)
        if response is not None:
            link.handlers.authorization.learn_answer(response, sent_at)
        shared.end_forwarded(shared_reads, response, answer)
        record.forwarded(statuses, response, answer, _in_session(record, response, answer))

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
    """Return True if records exist at the requested offset, so that the broker reads at once
    instead of waiting.
    """
    return (
        status.partition is not None
        and status.asked.fetch_offset < status.partition.leader_state.high_watermark
    )


def _without_session(
    record: FetchRecord, context: FetchContext | None, frame: Frame, max_wait_ms: int | None
) -> Frame:
    """Return the request for the broker: without a session, and with every partition that the
    session remembers.
    """
    head, request = record.head, record.request
    if context is not None and context.kind is Kind.INCREMENTAL:
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
    in_session = (
        request.session_at >= 0 and (request.session_id, request.session_epoch) != SESSIONLESS
    )
    if max_wait_ms is None and not in_session:
        return frame
    frame = bytearray(frame) if isinstance(frame, bytes) else frame
    if max_wait_ms is not None:
        stamp_max_wait(frame, head.api_version, head.body_start, max_wait_ms)
    if in_session:
        stamp_session(frame, request.session_at, *SESSIONLESS)
    return frame


def _in_session(record: FetchRecord, response: FetchResponse | None, answer: Frame) -> Frame:
    """Return the broker's response with the session's id, or an error response if the session is in
    error, or if the broker refuses the whole request.

    All partitions stay in the response: a client accepts more partitions than it needs. But a
    refusal repeats the partitions that the client named (FetchRequest.getErrorResponse).
    """
    if response is None:
        return answer
    planned = _plan_session(record, response)
    if planned.error_code == ErrorCode.NONE:
        return _stamp_session(record, planned, answer)
    named: Sequence[FetchPartition] = ()
    if response.error_code != ErrorCode.NONE and record.head.api_version < TOPIC_IDS_FROM:
        named = record.request.partitions  # also those that the same request forgets
    throttle_ms = response.throttle_time_ms
    return build_error(record, planned.error_code, planned.session_id, throttle_ms, named)


def _begun_in_session(record: FetchRecord, response: FetchResponse, begun: bytes) -> bytes:
    """Return the first bytes of the broker's response with the session's id. A session in error
    ends: the response stays without an id (FetchSessionHandler.handleResponse).
    """
    planned = _plan_session(record, response)
    if planned.error_code != ErrorCode.NONE:
        return begun
    return bytes(_stamp_session(record, planned, begun))


def _plan_session(record: FetchRecord, response: FetchResponse) -> PlannedResponse[FetchAnswer]:
    """Return what the session makes of the broker's response; call once. Its partitions are not
    used: the broker's frame names them. An error code other than NONE replaces the response.
    """
    context, request = record.context, record.request
    if context is None or request.session_at < 0:
        return NO_PLAN
    if response.error_code != ErrorCode.NONE:  # of the whole request
        has_named_all = context.kind is not Kind.INCREMENTAL
        error_code = ErrorCode.NONE if has_named_all else response.error_code
        return PlannedResponse(error_code, request.session_id, [])
    if response.throttle_time_ms > 0 and not response.partitions:
        return context.plan_throttled()
    if context.kind is not Kind.INCREMENTAL and len(response.partitions) != len(context.partitions):
        return NO_PLAN
    return context.plan_response(
        [_shown(one) for one in response.partitions], record.link.broker.now()
    )


def _stamp_session(
    record: FetchRecord, planned: PlannedResponse[FetchAnswer], answer: Frame
) -> Frame:
    """Return the response, or its first bytes, with the session id stamped in place."""
    if planned.session_id:
        answer = bytearray(answer) if isinstance(answer, bytes) else answer
        stamp_response_session(answer, record.head.api_version, planned.session_id)
    return answer


def _shown(one: FetchedPartition) -> FetchAnswer:
    """Return the partition's offsets, error and size as the session compares them, without records."""
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
    """Return the response whose last records are still arriving; None if more than records is
    missing.
    """
    try:
        return fetch.scan_response_head(begun, head.api_version, frame_bytes)
    except BadFrame:
        return None


def _scan_answer(link: FetchLink, head: RequestHeader, answer: Frame) -> FetchResponse | None:
    """Return the decoded response; None if it is malformed, which is counted."""
    try:
        return fetch.scan_response(answer, head.api_version)
    except BadFrame:
        link.broker.counters.faults.count_bad_frame()
        return None
