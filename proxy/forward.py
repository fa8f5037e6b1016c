"""A Fetch that the broker answers: forwarded whole, without a session, and its answer teaches.

Owns the way of such a Fetch through its queue, to the broker and back, and what its session makes of both. It must not
know why it is forwarded (fetch.py, parked.py). Invariants: reads for a client go upstream with session id 0, epoch -1,
never (0, 0), which would make one (KIP-227); the broker's answer leaves as it came but for the session's id, or an
error of the session's in its place.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from isolation.queues import Waits
from protocol import fetch
from protocol.errors import BadFrame, ErrorCode
from protocol.fetch_build import (
    FetchAnswer,
    build_request,
    stamp_max_wait,
    stamp_response_session,
    stamp_session,
)
from proxy.answer import build_error, refuse_fetch
from proxy.learn import learn_answer
from proxy.passage import Begun, Passage, may_pass
from proxy.sessions import Kind
from proxy.shared_reads import begin_forwarded, end_forwarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.fetch import FetchedPartition, FetchResponse
    from protocol.header import RequestHeader
    from protocol.wire import Frame
    from proxy.client_link import ClientLink
    from proxy.fetch_plan import Looked
    from proxy.fetch_record import FetchRecord
    from proxy.gate import Entry
    from proxy.sessions import FetchContext
    from proxy.shared_reads import Flight
    from proxy.wire import Wire

SESSIONLESS = (0, -1)
CONSUMER = -1
"""The replica id of who is no follower."""


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
        begun = None if is_ours else partial(_begin, record, partial(passed, entry))
        link.forward(head, frame, partial(on_answer, entry, link.broker.now()), begun)

    def passed(entry: Entry, response: FetchResponse, last: bytes) -> None:
        gate.answered(entry)
        record.forwarded(looks, response, last)

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


def _begin(
    record: FetchRecord,
    passed: Callable[[FetchResponse, bytes], None],
    frame: memoryview,
    received: int,
    source: Wire,
) -> Passage | None:
    """A large answer has begun that teaches nothing: it passes, if all that is to be known of it is there, it is its
    turn, and nothing waits before it.
    """
    try:
        response = fetch.scan_response_head(frame, record.head.api_version, received)
    except BadFrame:
        return None
    if response is None:
        return None
    link = record.link
    frame_bytes = len(frame)
    begun = Begun(bytes(frame[:received]), frame_bytes, frame_bytes - response.partitions[-1].end)
    if link.replies.oldest is not record.reply or not may_pass(source, link.wire, begun):
        return None

    def end(last: bytes) -> None:
        link.broker.counters.responses_out[record.head.api_key].size_bytes += frame_bytes - len(last)
        passed(response, last)

    return Passage(source, link.wire, link.broker.responses, begun, end)


def _is_behind(looked: Looked) -> bool:
    """Whether there are records for it, so that the broker reads instead of waiting for some."""
    return looked.partition is not None and looked.asked.fetch_offset < looked.partition.truth.high_watermark


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
