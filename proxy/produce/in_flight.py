"""A Produce that gets a response: on its way to the broker, at the broker, or waiting for its turn.

Owns the forwarding of a request, and what follows from the broker's response: the client gets it,
then the acknowledged batches are stored. Must not know how a request is refused or cut
(`proxy.produce.refusal`). Invariants:
* the client has its response before anything is stored, and a later Fetch of the connection is
  answered after that.
* the object is its own place in the response order, and its own ticket in the scheduler's queue,
  whether it waits there or not.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from isolation.classify import classify
from isolation.tickets import ADMITTED, DONE, Waits
from protocol import api, produce
from protocol.errors import BadFrame
from protocol.produce_rows import scan_produced, scan_response
from proxy.partitions.forwarded import forward_batches
from proxy.produce import refusal
from proxy.relay import relay_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isolation.health import Sent
    from isolation.quotas import Reservation
    from isolation.refusals import Plan
    from isolation.tickets import State
    from protocol.primitives import Frame
    from protocol.produce_rows import ProduceHead, ProduceRows
    from proxy.partitions.forwarded import ForwardedBatches
    from proxy.produce.services import ProduceLink
    from proxy.produce.targets import Target

ACKS_ALL: Final = -1
TOPIC, IS_KNOWN = attrgetter("topic"), attrgetter("is_known")
NOT_BEGUN: Final = -1.0
"""`started_at` of a request behind another: the broker does not work on it yet."""


class InFlightProduce:
    """A Produce with its rows, one for each partition, and their targets.

    `topic`: the only topic; None if there are several. `watched`: the topics whose health depends
    on the request. `forwarded`: the batches that may be stored. `has_new`: another is of a topic that
    is unknown, and would be stored. `cut`: the plan by which partitions were cut out, or would be
    now; None if none were. `reserved`: bytes under quotas.
    """

    __slots__ = (
        "cut",
        "forwarded",
        "frame",
        "has_new",
        "head",
        "holds_slot",
        "link",
        "ordinal",
        "queue",
        "reserved",
        "rows",
        "sent",
        "since_s",
        "size_bytes",
        "started_at",
        "state",
        "targets",
        "topic",
        "waits",
        "watched",
    )

    is_control = False
    is_measured = True

    link: ProduceLink
    frame: Frame
    head: ProduceHead
    rows: ProduceRows
    targets: Sequence[Target]
    topic: str | bytes | None
    watched: Sequence[str | bytes]
    waits: Waits
    state: State
    holds_slot: bool
    sent: Sent | None
    reserved: Sequence[Reservation]
    forwarded: ForwardedBatches | None
    cut: Plan | None
    ordinal: int

    def __init__(
        self,
        link: ProduceLink,
        frame: Frame,
        size_bytes: int,
        head: ProduceHead,
        rows: ProduceRows,
        targets: Sequence[Target],
        since_s: float,
    ) -> None:
        """The request arrived at `since_s` (seconds, monotonic). The object is in no queue yet, and
        nothing of its partitions is noted.
        """
        self.link, self.frame, self.size_bytes = link, frame, size_bytes
        self.head, self.rows, self.targets = head, rows, targets
        self.since_s, self.started_at = since_s, NOT_BEGUN
        self.waits = Waits.ACKS if head.acks == ACKS_ALL else Waits.NOTHING
        self.state, self.holds_slot = DONE, False
        self.sent = self.cut = self.forwarded = None
        self.reserved = ()
        if len(targets) == 1:
            (target,) = targets
            self.topic, self.queue = target.topic, target.queue
            self.watched, self.has_new = (target.topic,), link.stores and not target.is_known
        else:
            self._set_topics(targets)
            self.queue = self._find_queue() if self.topic is None else targets[0].queue

    def _set_topics(self, targets: Sequence[Target]) -> None:
        self.has_new = self.link.stores and not all(map(IS_KNOWN, targets))
        self.watched = tuple(dict.fromkeys(map(TOPIC, targets)))
        self.topic = self.watched[0] if len(self.watched) == 1 else None

    def _find_queue(self) -> int:
        scheduler = self.link.broker.scheduler
        return classify(False, self.watched, scheduler.data_queues, scheduler.queues.load_of)

    def watch(self, topics: Sequence[str | bytes]) -> None:
        """Let the health of these topics alone depend on the request: the others are cut out."""
        self.watched = topics
        self.topic = topics[0] if len(topics) == 1 else None

    def plan_cut(self, plan: Plan, topics: Sequence[str | bytes]) -> None:
        """Wait for `topics` alone until the request is dispatched: `plan` cuts out the others now."""
        self.cut = plan
        self.watch(topics)
        self.queue = self._find_queue()

    def reserve(self, reserved: Sequence[Reservation]) -> None:
        """Note bytes under quotas, which the scheduler releases."""
        self.reserved = reserved

    @property
    def never_refused(self) -> bool:
        """Whether refusals of all of the request's batches cannot be remembered: then it waits."""
        refused = self.link.refused
        return len(refused.entries) + self.rows.count > refused.limit and not refusal.has_room(self)

    def adopt(self, ordinal: int, forwarded: ForwardedBatches | None, started_at: float) -> None:
        """Take the next place in the response order for a request that was sent by a pipeline, as
        number `ordinal` of the connection, with the batches that may be stored. The broker began
        with it at `started_at` (seconds; NOT_BEGUN: not yet).
        """
        self.ordinal, self.forwarded, self.started_at = ordinal, forwarded, started_at
        self.link.replies.places.append(self)
        self.link.upstream.expect(self.head.correlation_id, self.on_answer)

    def start(self, now: float) -> None:
        """Note that the broker works on it from `now` on (seconds)."""
        self.started_at = now

    def report(self, sent: Sent) -> None:
        """Note that the health check knows the request, as `sent`."""
        self.sent = sent

    # -- to the broker -----------------------------------------------------------------------------

    def forward(
        self, frame: Frame, size_bytes: int, cut: tuple[Plan, Sequence[bool]] | None = None
    ) -> None:
        """Send the request to the broker, and note the present state of its partitions. `frame`:
        the request, or if it was `cut`, the partitions to keep (one flag each) by a plan.
        """
        link, rows, targets = self.link, self.rows, self.targets
        if cut is not None:
            self.cut, keep = cut
            rows = rows.select(keep)
            targets = [one for one, is_kept in zip(targets, keep, strict=True) if is_kept]
        if link.stores:
            self.forwarded = forward_batches(rows.native, targets)
        traffic = link.broker.counters.traffic.requests_out[api.PRODUCE]
        traffic.frames += 1
        traffic.size_bytes += size_bytes
        waits = link.upstream.send(frame, self.head.correlation_id, self.on_answer)
        link.sent_count += 1
        if waits:
            link.hold_for_broker()

    def dispatch(self) -> None:
        """Forward the request now that its turn has come, or have it refused. Its partitions may
        have been forgotten, its topics may hang, and requests before it may have been refused.
        """
        link, scheduler = self.link, self.link.broker.scheduler
        targets = link.broker.routes.find(link, self.frame, self.head.version, self.rows)
        if self.cut is not None or targets != self.targets:
            self.targets, self.cut = targets, None
            self._set_topics(targets)
        if link.refused.entries or scheduler.hanging(self.watched):
            refusal.dispatch(self)
        else:
            scheduler.dispatched(self)
            self.forward(self.frame, self.size_bytes)

    def refuse(self) -> None:
        """Refuse all of the request: no slot became free in time, or there is no room to wait."""
        refusal.refuse_late(self)

    def whole(self) -> None:
        """Let the broker answer the request after an error in handling it."""
        relay_whole(self.link, self.frame, self)

    # -- back to the client ------------------------------------------------------------------------

    def on_answer(self, answer: Frame | None) -> None:
        """Handle the broker's response; None: the broker connection is lost, and the client's with
        it.
        """
        if answer is None:
            return
        link, broker = self.link, self.link.broker
        now, size_bytes, counters = broker.now(), len(answer), broker.counters
        traffic = counters.traffic.responses_in[api.PRODUCE]
        traffic.frames += 1
        traffic.size_bytes += size_bytes
        if self.state is ADMITTED:
            broker.scheduler.answered(self, now)
        counters.produce.took_s.observe(now - self.since_s)
        if self.cut is None:
            link.answer_whole(api.PRODUCE, self, answer, size_bytes, self.size_bytes)
        else:
            refusal.answer_merged(self, self.cut, answer)
        # store before a later Fetch is answered, but after the client has its response
        if self.forwarded is not None and (produced := scan_produced(answer, self.head.version)):
            try:
                broker.admit_produced(self.frame, self.forwarded, answer, produced, now)
            except Exception:
                broker.failed("storing from Produce")
        if self.has_new:
            asking = partial(self._want_acknowledged, answer)
            broker.attempt(asking, "asking about a new topic")
        if link.answered_ordinal < self.ordinal:
            link.answered_ordinal = self.ordinal

    def _want_acknowledged(self, answer: Frame) -> None:
        """Ask for the metadata of acknowledged topics, some of which are unknown. Count the errors of
        others, unless `store` has read the response.
        """
        link, version = self.link, self.head.version
        for one in scan_response(answer, version) or ():
            if one.error_code:
                if self.forwarded is None:
                    link.broker.counters.apis.fail(api.PRODUCE, one.error_code)
            else:
                try:
                    topic = produce.peek_topic(answer, version, one.topic_start)
                except BadFrame:
                    return
                link.broker.topic_lookup.want(topic, link)
