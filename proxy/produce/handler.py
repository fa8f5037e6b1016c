"""Handles Produce: forwards it unchanged, or refuses it before the broker sees it; then stores it.

Versions 3 to 13 are decoded; any other is relayed. Owns the decision of forwarding or refusal, the
response, and the handover of acknowledged batches to `partitions.store`. Must not know sockets or
the arena. Invariants:
* nothing is acknowledged before the broker did, and nothing is changed or retried. A request is cut
  only where some of its topics are refused.
* a frame that cannot be decoded is still the broker's to judge: it is relayed, and not stored.
* deliberate omission: acks=0 brings no offsets back, so its batches are not stored here; the
  replica fetcher fetches them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from isolation import refusals
from isolation.health import Verdict as Health
from isolation.tickets import Waits
from protocol import api, batch, produce
from protocol.errors import BadFrame, ErrorCode
from protocol.produce_build import Refused, build_refusal, cut_request, merge_response
from proxy.partitions import store
from proxy.relay import is_left_unread, relay_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from isolation.quotas import Reservation
    from protocol.batch import Batch
    from protocol.header import RequestHeader
    from protocol.produce import ProducePartition, ProduceRequest
    from protocol.wire import Frame
    from proxy.net.client_connection import ClientConnection
    from proxy.net.response_order import Reply
    from proxy.partitions.store import Forwarded, Key
    from proxy.partitions.table import Partition
    from proxy.scheduling.queued_request import Entry

ACKS_ALL = -1
PASS = refusals.Verdict.PASS
ONE_PASSES = refusals.Plan((PASS,))


def handle_produce(link: ClientConnection, head: RequestHeader, frame: Frame) -> None:
    """Forward a Produce when its turn comes; store its batches when the acknowledgement arrives."""
    request = _scan(link, head, frame)
    if request is None:
        _relay_unread(link, head, frame)
    elif (
        not link.broker.scheduler.enabled
        and request.acks
        and not link.broker.stores_on(link.listener)
    ):
        _pass(link, head, frame)
    elif any(asked.start < 0 for asked in request.partitions):
        _pass(
            link, head, frame
        )  # a broker (4.3.1) never answers null records; no topic hangs for it
    elif request.acks == 0:
        _hand_over_unanswered(link, head, frame, request)
    else:
        reply = link.replies.reserve()
        link.last_ordinal += 1
        ProduceHandling(link, head, frame, request, reply, link.last_ordinal).arrive()


def _scan(link: ClientConnection, head: RequestHeader, frame: Frame) -> ProduceRequest | None:
    if not api.APIS[api.PRODUCE].decodes(head.api_version) or is_left_unread(link, head, frame):
        return None
    try:
        return produce.scan_request(frame, head.api_version, head.body_start)
    except BadFrame:
        return None


def _relay_unread(link: ClientConnection, head: RequestHeader, frame: Frame) -> None:
    """Relay a frame for the broker to judge. Behind refused batches it closes the connection
    instead: an undecoded frame may contain a refused producer's batch, out of order.
    """
    if len(link.refused):
        link.close(
            "refusals_full",
            "closing a client with refused batches that sent a Produce which is not read",
        )
        return
    link.last_ordinal += 1
    relay_whole(link, frame, None)


def _pass(link: ClientConnection, head: RequestHeader, frame: Frame) -> None:
    """Forward without queue, refusal or storage: only the broker's latency is measured."""
    broker = link.broker
    reply = link.replies.reserve()
    started = broker.now()

    def on_answer(answer: Frame | None) -> None:
        if answer is not None:
            broker.counters.produce_s.observe(broker.now() - started)
            link.answer(head, reply, (answer,), len(frame), held_bytes=len(answer))

    link.forward(head, frame, on_answer)


def _hand_over_unanswered(
    link: ClientConnection, head: RequestHeader, frame: Frame, request: ProduceRequest
) -> None:
    """Forward an acks=0 request at its turn. Such a request is never refused, and no response shows
    when the broker is done with it.
    """
    scheduler = link.broker.scheduler

    def dispatch(entry: Entry) -> None:
        _want_those_of(link, request)
        link.forward(head, frame, None)
        scheduler.withdraw(entry)

    topics = _topics(link, request)
    whole = partial(relay_whole, link, frame, None)
    scheduler.submit(
        link, dispatch, topics=topics, size_bytes=len(frame), is_ordered=True, whole=whole
    )


class ProduceHandling:
    """Produce that gets a response: from the broker, by refusal, or merged from both."""

    __slots__ = (
        "_arriving",
        "_batches",
        "_frame",
        "_head",
        "_link",
        "_ordinal",
        "_passing",
        "_reply",
        "_request",
        "_scanned",
        "_topics",
    )

    def __init__(
        self,
        link: ClientConnection,
        head: RequestHeader,
        frame: Frame,
        request: ProduceRequest,
        reply: Reply,
        ordinal: int,
    ) -> None:
        self._link = link
        self._head = head
        self._frame = frame
        self._request = request
        self._arriving: refusals.Plan | None = None
        parts = len(request.partitions)
        self._passing = ONE_PASSES if parts == 1 else refusals.Plan((PASS,) * parts)
        self._reply = reply
        self._ordinal = ordinal
        self._scanned = [_one_batch(produced, frame) for produced in request.partitions]
        self._topics = _topics(link, request)
        self._batches = [
            _batch_of(topic, produced.partition, scanned)
            for topic, produced, scanned in zip(
                self._topics, request.partitions, self._scanned, strict=True
            )
        ]

    # -- admission ---------------------------------------------------------------------------------

    def arrive(self) -> None:
        """Submit the request to the scheduler, refuse it, or close the connection."""
        link = self._link
        scheduler = link.broker.scheduler
        hung = self._hung_topics()
        reserved = self._reserve() if scheduler.quotas.active else ()
        plan = self._passing
        if hung or reserved is None or (len(link.refused) and scheduler.in_order(link)):
            plan = self._plan(lambda one: reserved is None or one.topic in hung)
        if plan.must_close or not (plan.passes or plan.must_wait):
            for one in reserved or ():
                one.release()
            self._end(plan)
            return
        if plan is not self._passing or scheduler.in_order(link):
            self._arriving = plan
        self._enter(plan, reserved or ())
        self._arriving = None

    def _enter(self, plan: refusals.Plan, reserved: Sequence[Reservation]) -> None:
        kept: Sequence[str | bytes] = self._topics
        if plan.refuses and plan.passes:
            kept = [
                t for t, verdict in zip(self._topics, plan.verdicts, strict=True) if verdict is PASS
            ]
        may_refuse = not plan.must_wait and self._link.refused.has_room_for(self._batches)
        self._link.broker.scheduler.submit(
            self._link,
            self.dispatch,
            self.refuse_late if may_refuse else None,
            topics=kept,
            size_bytes=len(self._frame),
            waits=Waits.ACKS if self._request.acks == ACKS_ALL else Waits.NOTHING,
            is_ordered=True,
            watched=tuple(dict.fromkeys(kept)),
            reserved=reserved,
            whole=partial(relay_whole, self._link, self._frame, self._reply),
        )

    def _reserve(self) -> Sequence[Reservation] | None:
        """Reserve the bytes under the quotas; None if a quota is exhausted."""
        link = self._link
        named = [topic for topic in self._topics if isinstance(topic, str)]
        return link.broker.scheduler.quotas.reserve(
            link.client_id or "", named, len(self._frame), link.broker.now()
        )

    def _hung_topics(self) -> set[str | bytes]:
        """Return the topics to refuse because they hang.

        A probe is sent alone, so the other topics of its request are refused. A transactional
        request is not cut: refusing its other topics would refuse the probe, too, and none could
        ever be sent. Of such a request only the topics with the verdict REFUSE are returned.
        """
        hanging = self._link.broker.scheduler.hanging(self._topics)
        if not hanging:
            return set()
        probe = next((topic for topic, verdict in hanging.items() if verdict is Health.PROBE), None)
        if probe is not None and self._request.transactional_id is None:
            return {topic for topic in self._topics if topic != probe}
        return {topic for topic, verdict in hanging.items() if verdict is Health.REFUSE}

    def _plan(self, is_refused: Callable[[refusals.Batch], bool]) -> refusals.Plan:
        return refusals.plan_refusal(
            self._batches,
            is_refused,
            self._link.refused,
            ordinal=self._ordinal,
            acks=self._request.acks,
            is_transactional=self._request.transactional_id is not None,
        )

    def dispatch(self, entry: Entry) -> None:
        """Forward, refuse or close when the turn has come. Topics that hang now count, and batches
        refused before on this connection. A request dispatched at its arrival keeps the plan of
        its arrival.
        """
        plan = self._arriving
        if plan is None or plan.refuses:
            hung = self._hung_topics()
            plan = self._plan(lambda one: one.topic in hung)
        if plan.must_close or not (plan.passes or plan.must_wait):
            self._link.broker.scheduler.withdraw(entry)
            self._end(plan)
        else:
            self._forward(entry, plan)

    def _end(self, plan: refusals.Plan) -> None:
        """Refuse the request or close the connection; the broker does not see the request."""
        if plan.must_close:
            self._close()
        else:
            self._refuse(plan)

    def refuse_late(self) -> None:
        """Refuse all of the request: no slot became free in time, or there is no room to wait."""
        plan = self._plan(lambda _one: True)
        if plan.must_wait or plan.must_close:
            self._close()
        else:
            self._refuse(plan)

    # -- responses ---------------------------------------------------------------------------------

    def _close(self) -> None:
        self._link.close(
            "refusals_full", "closing a client with too many refused batches to remember"
        )

    def _refused(self, plan: refusals.Plan) -> list[Refused]:
        asked = zip(self._request.partitions, plan.verdicts, strict=True)
        return [
            Refused(one.topic, one.partition, refusals.NOT_ENOUGH_REPLICAS)
            for one, verdict in asked
            if verdict is refusals.Verdict.REFUSE
        ]

    def _apply(self, plan: refusals.Plan) -> None:
        link = self._link
        link.refused.apply(self._batches, plan, self._ordinal, link.broker.now())
        link.broker.counters.produce_refused += plan.verdicts.count(refusals.Verdict.REFUSE)

    def _refuse(self, plan: refusals.Plan) -> None:
        """Refuse all of the request; the broker has not seen it."""
        self._apply(plan)
        frame = build_refusal(
            self._head.api_version, self._head.correlation_id, self._refused(plan)
        )
        self._answer(frame, plan)
        self._settle()

    def _answer(self, frame: Frame, plan: refusals.Plan) -> None:
        link, ordinal = self._link, self._ordinal
        on_sent = None
        if plan.refuses:
            on_sent = lambda _delivered: link.refused.reply_left(ordinal, link.last_ordinal)  # noqa: E731
        link.answer(
            self._head, self._reply, (frame,), len(self._frame), on_sent, held_bytes=len(frame)
        )

    def _settle(self) -> None:
        """Mark the request as answered, with its acknowledgement noted: a Fetch behind it may be
        answered empty.
        """
        self._link.answered_ordinal = max(self._link.answered_ordinal, self._ordinal)

    def _forward(self, entry: Entry, plan: refusals.Plan) -> None:
        link, frame, keep = self._link, self._frame, None
        if plan.refuses or len(link.refused):
            self._apply(plan)
        if plan.refuses and not plan.must_wait:
            keep = [verdict is PASS for verdict in plan.verdicts]
            frame = b"".join(
                cut_request(frame, self._head.api_version, self._head.body_start, keep)
            )
            entry.watched = tuple(
                dict.fromkeys(t for t, kept in zip(self._topics, keep, strict=True) if kept)
            )
        stores, find = link.broker.stores_on(link.listener), link.broker.topics.find
        forwarded = self._note(keep) if stores else {}
        has_new = stores and any(find(one.topic) is None for one in self._request.partitions)
        started = link.broker.now()

        def on_answer(answer: Frame | None) -> None:
            if answer is None:
                return
            broker = link.broker
            broker.scheduler.answered(entry)
            broker.counters.produce_s.observe(broker.now() - started)
            told = answer
            if keep is not None:
                told = merge_response(answer, self._head.api_version, self._refused(plan))
            self._answer(told, plan)
            version = self._head.api_version
            # store before a later Fetch is answered, but after the client has its response
            if forwarded:
                admitting = partial(
                    store.admit_answer, broker, version, forwarded, self._frame, answer
                )
                broker.attempt(admitting, "storing from Produce")
            if has_new:
                broker.attempt(
                    partial(_want_acknowledged, link, version, answer), "asking about a new topic"
                )
            self._settle()

        link.broker.scheduler.dispatched(entry)
        link.forward(self._head, frame, on_answer)

    def _note(self, keep: Sequence[bool] | None) -> dict[Key, Forwarded]:
        """Return the state of each forwarded batch's partition. `keep` None: all partitions are
        forwarded.
        """
        forwarded: dict[Key, Forwarded] = {}
        for at, produced in enumerate(self._request.partitions):
            sent = self._scanned[at]
            if sent is None or not (keep is None or keep[at]):
                continue
            partition = _followed(self._link, produced)
            if partition is not None:
                forwarded[produced.topic, produced.partition] = store.note_forwarded(
                    partition, sent
                )
        return forwarded


def _topics(link: ClientConnection, request: ProduceRequest) -> list[str | bytes]:
    """Return each partition's topic as the scheduler's queues know it: its name, or its id while
    the name is unknown.
    """
    find = link.broker.topics.find
    return [
        topic.name if (topic := find(one.topic)) is not None else one.topic
        for one in request.partitions
    ]


def _batch_of(topic: str | bytes, partition: int, scanned: Batch | None) -> refusals.Batch:
    if scanned is None or scanned.magic < 2:
        return refusals.Batch(topic, partition)
    return refusals.Batch(
        topic,
        partition,
        scanned.producer_id,
        scanned.producer_epoch,
        scanned.base_sequence,
        scanned.record_count,
    )


def _one_batch(produced: ProducePartition, frame: Frame) -> Batch | None:
    """Return the one batch of a partition (ProduceRequest.validateRecords allows no more); None for
    anything else.
    """
    if produced.start < 0:
        return None
    try:
        batches = batch.scan_batches(frame, produced.start, produced.end)
    except BadFrame:
        return None
    return batches[0] if len(batches) == 1 else None


def _followed(link: ClientConnection, produced: ProducePartition) -> Partition | None:
    broker = link.broker
    topic = broker.topics.find(produced.topic)
    if topic is None:
        return None
    if produced.partition not in topic.leaders:
        broker.topic_lookup.ask(topic.id, link)
    return broker.partitions.follow(topic, produced.partition)


def _want_acknowledged(link: ClientConnection, version: int, answer: Frame) -> None:
    """Ask for the metadata of acknowledged topics, some of which are unknown."""
    try:
        response = produce.scan_response(answer, version)
    except BadFrame:
        return
    for acknowledged in response.partitions:
        if acknowledged.error_code == ErrorCode.NONE:
            link.broker.topic_lookup.want(acknowledged.topic, link)


def _want_those_of(link: ClientConnection, request: ProduceRequest) -> None:
    """Have the replica fetcher fetch these partitions if they have waiters: no response will show
    the offsets.
    """
    for produced in request.partitions:
        if (partition := _followed(link, produced)) is not None:
            link.broker.watch.produced(partition)
