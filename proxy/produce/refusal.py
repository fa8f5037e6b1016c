"""Produces that cannot simply be sent or queued: they are refused, are cut, or end a connection.

Owns these decisions at the arrival of a request and again when its turn has come, and the responses
that Forebay writes itself. Must not know batches beyond their header. Invariants:
* the broker has not seen what is refused: NOT_ENOUGH_REPLICAS (19) tells the client to try again.
* after a refusal the sequences of a producer come back in order (`isolation.refusals`).
* a transactional request is never cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolation import refusals
from isolation.health import Verdict as Health
from protocol import api
from protocol.produce import peek_topic
from protocol.produce_build import Refused, build_refusal, cut_request, merge_response

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from isolation.quotas import Reservation
    from isolation.refusals import Plan
    from protocol.primitives import Frame
    from proxy.produce.in_flight import InFlightProduce

PASS, REFUSE = refusals.PartitionVerdict.PASS, refusals.PartitionVerdict.REFUSE
MAGIC_V2 = 2


def submit(request: InFlightProduce) -> None:
    """Submit a request, which has its place, to the scheduler; or refuse it, or close the client."""
    link = request.link
    scheduler, refused = link.broker.scheduler, link.refused
    hung = _find_hung(request)
    reserved = _reserve(request) if scheduler.quotas.active else ()
    if hung or reserved is None or (refused.entries and scheduler.in_order(link)):
        plan = _plan(request, lambda one: reserved is None or one.topic in hung)
        if plan.must_close or not (plan.passes or plan.must_wait):
            for one in reserved or ():
                one.release()
            _end(request, plan)
            return
        if plan.refuses and plan.passes:
            request.plan_cut(plan, _find_kept(request, plan))
    request.reserve(reserved or ())
    scheduler.enter(request, link)


def dispatch(request: InFlightProduce) -> None:
    """Forward, cut, refuse or close when the turn of a request has come. Topics that hang now
    count, and batches refused before on this connection.
    """
    scheduler, hung = request.link.broker.scheduler, _find_hung(request)
    plan = _plan(request, lambda one: one.topic in hung)
    if plan.must_close or not (plan.passes or plan.must_wait):
        scheduler.withdraw(request)
        _end(request, plan)
        return
    _apply(request, plan)
    if plan.refuses and not plan.must_wait:
        head, keep = request.head, [verdict is PASS for verdict in plan.verdicts]
        frame = b"".join(cut_request(request.frame, head.version, head.body_start, keep))
        request.watch(_find_kept(request, plan))
        scheduler.dispatched(request)
        request.forward(frame, len(frame), (plan, keep))
    else:
        scheduler.dispatched(request)
        request.forward(request.frame, request.size_bytes)


def refuse_late(request: InFlightProduce) -> None:
    """Refuse all of a request: no slot became free in time, or there is no room to wait."""
    plan = _plan(request, lambda _one: True)
    if plan.must_wait or plan.must_close:
        _close(request)
    else:
        _refuse(request, plan)


def answer_merged(request: InFlightProduce, plan: Plan, answer: Frame) -> None:
    """Send the broker's response to a request that was cut, with what was refused of it. Raises
    BadFrame if the response is malformed.
    """
    told = merge_response(answer, request.head.version, _list_refused(request, plan))
    _answer(request, plan, told)


def _end(request: InFlightProduce, plan: Plan) -> None:
    """Refuse the request or close the connection; the broker does not see the request."""
    if plan.must_close:
        _close(request)
    else:
        _refuse(request, plan)


def _close(request: InFlightProduce) -> None:
    request.link.close(
        "refusals_full", "closing a client with too many refused batches to remember"
    )


def _refuse(request: InFlightProduce, plan: Plan) -> None:
    """Refuse all of the request; the broker has not seen it."""
    _apply(request, plan)
    refused = _list_refused(request, plan)
    head = request.head
    _answer(request, plan, build_refusal(head.version, head.correlation_id, refused))
    link = request.link
    link.note_answered(request.ordinal)


def _answer(request: InFlightProduce, plan: Plan, frame: Frame) -> None:
    link, ordinal = request.link, request.ordinal
    on_sent = None
    if plan.refuses:
        on_sent = lambda _delivered: link.refused.reply_left(ordinal, link.last_ordinal)  # noqa: E731
    link.answer_whole(api.PRODUCE, request, frame, len(frame), request.size_bytes, on_sent)


def _apply(request: InFlightProduce, plan: Plan) -> None:
    link = request.link
    link.refused.apply(_list_batches(request), plan, request.ordinal, link.broker.now())
    link.broker.counters.produce.refuse(plan.verdicts.count(REFUSE))


def _list_refused(request: InFlightProduce, plan: Plan) -> list[Refused]:
    version = request.head.version
    return [
        Refused(
            peek_topic(request.frame, version, row.topic_start),
            row.partition,
            refusals.NOT_ENOUGH_REPLICAS,
        )
        for row, verdict in zip(request.rows, plan.verdicts, strict=True)
        if verdict is REFUSE
    ]


def _find_kept(request: InFlightProduce, plan: Plan) -> Sequence[str | bytes]:
    """Return the topics of the partitions that pass."""
    asked = zip(request.targets, plan.verdicts, strict=True)
    return tuple(dict.fromkeys([target.topic for target, verdict in asked if verdict is PASS]))


def _list_batches(request: InFlightProduce) -> list[refusals.SequencedBatch]:
    return [
        refusals.SequencedBatch(
            target.topic,
            row.partition,
            row.producer_id,
            row.producer_epoch,
            row.base_sequence,
            row.record_count,
        )
        if row.magic == MAGIC_V2
        else refusals.SequencedBatch(target.topic, row.partition)
        for row, target in zip(request.rows, request.targets, strict=True)
    ]


def has_room(request: InFlightProduce) -> bool:
    """Whether refusals of all of the request's batches can be remembered."""
    return request.link.refused.has_room_for(_list_batches(request))


def _plan(request: InFlightProduce, is_refused: Callable[[refusals.SequencedBatch], bool]) -> Plan:
    return refusals.plan_refusal(
        _list_batches(request),
        is_refused,
        request.link.refused,
        ordinal=request.ordinal,
        acks=request.head.acks,
        is_transactional=bool(request.head.is_transactional),
    )


def _reserve(request: InFlightProduce) -> Sequence[Reservation] | None:
    """Reserve the bytes under the quotas; None if a quota is exhausted."""
    link = request.link
    named = [target.topic for target in request.targets if isinstance(target.topic, str)]
    return link.broker.scheduler.quotas.reserve(
        link.client_id or "", named, request.size_bytes, link.broker.now()
    )


def _find_hung(request: InFlightProduce) -> set[str | bytes]:
    """Return the topics to refuse because they hang.

    A probe is sent alone, so the other topics of its request are refused. A transactional request
    is not cut: refusing its other topics would refuse the probe, too, and none could ever be sent.
    Of such a request only the topics with the verdict REFUSE are returned.
    """
    hanging = request.link.broker.scheduler.hanging(request.watched)
    if not hanging:
        return set()
    probe = next((topic for topic, verdict in hanging.items() if verdict is Health.PROBE), None)
    if probe is not None and not request.head.is_transactional:
        return {topic for topic in request.watched if topic != probe}
    return {topic for topic, verdict in hanging.items() if verdict is Health.REFUSE}
