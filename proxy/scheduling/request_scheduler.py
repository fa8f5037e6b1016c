"""Request scheduler: admits, delays or refuses each client's request on its way to the broker.

Owns the queues and their timer, the slots that requests hold, and which topics hang. Must not know
the contents of a request. Invariants (design, "Isolation"):
* `dispatch` runs exactly once, or `refuse` does, or the client is gone. If a slot is free,
  `dispatch` runs within `enter`.
* a dispatched request returns its slot once: answered, or withdrawn when its connection is lost.
* ordered requests (a Produce, and all that must not overtake one) leave in the order of their
  arrival on their connection. Admitted requests are dispatched one after the other, never nested.
* bytes reserved under quotas are released with the request, however it ends.
* service time begins when everything before the request on its connection is answered: a broker
  works on one request of a connection. Health learns of unanswered requests at a check
  (`_check_health`), not of each request.
* a request whose answer Forebay does not read, since clients do not take theirs, holds no slot and
  says nothing of the broker (`_release_unread`): no client can keep slots or condemn a topic so.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from functools import partial
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, cast

from isolation.classify import CONTROL, classify, queue_name, queue_of_topic
from isolation.health import LOOK_EVERY_S, Health, HealthRule, Sent, Verdict
from isolation.limits import FixedLimit
from isolation.peers import Peers
from isolation.queues import QueueRule, Queues
from isolation.tickets import ADMITTED, DONE, REFUSED, WAITING, Waits
from proxy.config.isolation import build_limit
from proxy.scheduling.processor_wait import ProcessorWait
from proxy.scheduling.queued_request import Entry
from proxy.scheduling.quotas import QuotaTable
from proxy.scheduling.unread_answers import UnreadAnswers

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from isolation.limits import Limit
    from isolation.queues import Queue
    from isolation.tickets import Turn
    from proxy.config.isolation import Isolation
    from proxy.net.client_connection import AnyLink
    from proxy.net.services import PipelinedRequests
    from proxy.scheduling.queued_request import QueuedRequest
    from proxy.scheduling.services import SchedulingServices

log = logging.getLogger("forebay.request_scheduler")

LIFTED, LIFTED_FIRST = 1, 2
"""Results of `RequestScheduler.lift`."""
LANDED, LANDED_FOR_WAITING = 1, 2
"""Results of `RequestScheduler.land`."""
OPEN_SLOTS = 1_000_000
"""Slots of a queue whose requests go to the broker at once: more than `limits.maxConnections` allows."""


class RequestScheduler:
    """Schedules the requests of all clients toward one broker."""

    def __init__(self, broker: SchedulingServices) -> None:
        config = broker.config.isolation
        self._broker = broker
        self.enabled = config.enabled
        self.is_open = not config.enabled
        """Whether each request goes to the broker at once: without queues (`enabled`), or while they are off."""
        self._peers, self.processor_wait = Peers(), ProcessorWait()
        self.queues: Queues[QueuedRequest] = Queues(
            build_queue_rule(config),
            build_limit(config.control_slots),
            partial(build_limit, config.data_slots, self._peers),
            self._materialize,
        )
        self._due_after_s, self.release_after_s = self.queues.due_after_s, config.release_after_s
        self._health = Health(HealthRule(hang_after_s=config.hang_after_s))
        self.hang_after_s = config.hang_after_s
        self.watched, self.last_timely = self._health.keys, self._health.last_timely
        self.quotas = QuotaTable(config)
        self.data_queues = config.data_queues
        # unanswered requests on a client's first broker connection, oldest first
        self.lines: dict[AnyLink, list[QueuedRequest]] = {}
        # all other requests of a client: waiting, or sent on another broker connection
        self._of_connection: defaultdict[AnyLink, dict[QueuedRequest, None]] = defaultdict(dict)
        # pipelines whose requests are counted, but not listed here
        self.pipelines: dict[PipelinedRequests, None] = {}
        self._admitted: deque[QueuedRequest] = deque()
        self._unread = UnreadAnswers()
        self.is_dispatching = False
        self._timer: asyncio.TimerHandle | None = None
        self.due_at = float("inf")
        self.next_health_check_at = self._health_at = float("-inf")

    def set_rules(self, config: Isolation) -> None:
        """Take other bounds, slots and quotas. Requests in service keep their slots, those that wait keep their
        places; what the new slots have room for is dispatched now. `dataQueues` stays as it is, and so does `enabled`:
        where `config.enabled` is false, slots have no end and no topic hangs, so that nothing waits and all is
        still accounted for when it becomes true.
        """
        self._materialize()
        now = self._broker.now()
        self.hang_after_s = config.hang_after_s if config.enabled else inf
        control = build_limit(config.control_slots) if config.enabled else FixedLimit(OPEN_SLOTS)
        data: Callable[[], Limit] = partial(build_limit, config.data_slots, self._peers)
        self.queues.set_rules(
            build_queue_rule(config), control, data if config.enabled else _open_limit
        )
        self._due_after_s, self.release_after_s = self.queues.due_after_s, config.release_after_s
        self._health.set_rule(HealthRule(hang_after_s=self.hang_after_s))
        if not config.enabled:
            self._health.forgive()
        self.is_open = not config.enabled
        self.next_health_check_at = float("-inf")
        self.quotas.set_quotas(config, now)
        self._end_turn(self.queues.turn(now))
        self._schedule(now)

    # -- requests ----------------------------------------------------------------------------------

    def submit(
        self,
        link: AnyLink,
        begin: Callable[[Entry], None],
        refuse: Callable[[], None] | None = None,
        *,
        is_control: bool = False,
        topics: Sequence[str | bytes] = (),
        size_bytes: int = 0,
        waits: Waits = Waits.NOTHING,
        is_ordered: bool = False,
        watched: Sequence[str | bytes] = (),
        whole: Callable[[], object] | None = None,
    ) -> None:
        """Submit a request that is not measured: `begin` runs now or later, or `refuse` runs.

        `refuse` None: the request must not be refused, and waits. `whole`: what `Broker.fall_back`
        calls if `begin` or `refuse` raises.
        """
        queue = classify(is_control, topics, self.data_queues, self.queues.load_of)
        entry = Entry(link, begin, refuse, whole, queue, size_bytes, waits, watched)
        self.enter(entry, link if is_ordered else None)

    def enter(self, item: QueuedRequest, order_key: AnyLink | None) -> None:
        """Submit a request that is its own ticket: its `dispatch` runs now or later, or its `refuse`
        does. `order_key`: its link if it is ordered, else None. What it has reserved is released
        when it is answered, refused or withdrawn.
        """
        if not self.enabled:
            self._run_guarded(item, item.dispatch)
            return
        now = self._broker.now()
        state = self.queues.offer(item, now, order_key)
        if state is REFUSED:
            _refuse_one(item)
            return
        self._of_connection[item.link][item] = None
        if state is ADMITTED:
            self._admitted.append(item)
            self._dispatch_admitted()
        if self.due_at > now + self._due_after_s:
            self._schedule(now, item.queue)

    def try_dispatch(self, item: QueuedRequest) -> bool:
        """Do `enter`, `dispatch` and `dispatched` in one step, at `item.since_s`; return True if the
        caller is to send it. On False the request waits, was refused, or `item.state` is DONE.

        DONE: nothing has changed, since one of its topics may hang, or another is being dispatched.
        """
        now, link = item.since_s, item.link
        if now >= self.next_health_check_at:
            self._check_health(now)
        if self.is_dispatching:
            return False
        if self.watched:
            for topic in item.watched:
                if topic in self.watched and self._health.plan(topic, now) is not Verdict.PASS:
                    return False
        state = self.queues.offer(item, now, link)
        if state is REFUSED:
            _refuse_one(item)
            return False
        if state is WAITING:
            self._of_connection[link][item] = None
        elif link in self.lines:
            self.lines[link].append(item)
        else:
            self.lines[link] = [item]
            item.started_at = now
        if self.due_at > now + self._due_after_s:
            self._schedule(now, item.queue)
        return state is ADMITTED

    # -- the pipeline: requests that are counted, and listed only once they are materialized ---------

    def lift(self, queue: Queue[QueuedRequest], link: AnyLink, waits: Waits, now: float) -> int:
        """Take a slot of `queue` for a pipelined Produce. Return LIFTED, or LIFTED_FIRST if the
        broker has no other request of the client's first connection. Return 0 if the request has
        to be submitted: a check of health is due, a topic is watched, or no slot is free. Nothing
        has changed then.
        """
        if (
            now >= self.next_health_check_at
            or self.watched
            or self.is_dispatching
            or (self.due_at > now + self.release_after_s and waits is Waits.ACKS)
            or not self.queues.lift(queue, link, now)
        ):
            return 0
        return LIFTED if link in self.lines else LIFTED_FIRST

    def land(
        self, queue: Queue[QueuedRequest], topic: str | bytes, started_at: float, now: float
    ) -> int:
        """Return the slot of a pipelined Produce that is answered at `now` (seconds); the broker
        began with it at `started_at`. Return LANDED, or LANDED_FOR_WAITING if `admit_waiting` has to
        follow. Return 0, and change nothing, if more follows from the answer: it is late, or its
        topic is watched or not known as healthy.
        """
        last_timely = self.last_timely
        if (
            self.watched
            or topic not in last_timely
            or started_at < 0
            or now - started_at >= self.hang_after_s
            or now >= queue.ages_at_s
        ):
            return 0
        self.queues.land(queue, now, now - started_at)
        if last_timely[topic] < started_at:
            last_timely[topic] = started_at
        return LANDED_FOR_WAITING if queue.waiting else LANDED

    def admit_waiting(self, queue: Queue[QueuedRequest], now: float) -> None:
        """Dispatch the requests that wait for the slots which `land` has returned."""
        self._dispatch_admitted(self.queues.admit_waiting(queue, now))

    def _dispatch_admitted(self, items: Sequence[QueuedRequest] = ()) -> None:
        """Dispatch admitted requests in their order. Requests admitted during a dispatch are
        dispatched after it, not within it. Each calls `dispatched` or `withdraw`.
        """
        self._admitted.extend(items)
        if self.is_dispatching:
            return
        self.is_dispatching = True
        try:
            while self._admitted:
                item = self._admitted.popleft()
                if item.state is not ADMITTED:
                    continue  # its client is gone: `drop_link` withdrew the request
                self._run_guarded(item, item.dispatch)
                if item.link.upstream.closed:
                    self.withdraw(item)
        finally:
            self.is_dispatching = False

    def _run_guarded(self, item: QueuedRequest, action: Callable[[], None]) -> None:
        sent_count = item.link.sent_count
        try:
            action()
        except Exception:
            self.withdraw(item)
            self._broker.fall_back(
                item.link, sent_count, "sending or refusing a request", item.whole
            )

    def dispatched(self, item: QueuedRequest) -> None:
        """Note that the request was sent to the broker, on its client's first broker connection."""
        if item.state is not ADMITTED:
            return
        link = item.link
        if link.pipeline is not None:
            link.pipeline.materialize()
        now = self._broker.now()
        self._forget_queued(item)
        watched, is_first = item.watched, link not in self.lines
        if watched and not self._health.hung.isdisjoint(watched):  # a probe of a hanging topic
            self._check_health(now)
            item.report(self._health.sent(watched, now, is_first=is_first))
        if is_first:
            self.lines[link] = [item]
            item.started_at = now
        else:
            self.lines[link].append(item)
        if item.waits is Waits.POLL and item.queue != CONTROL:
            self._dispatch_admitted(self.queues.release_early(item, now))
        if self._unread.holds(link.upstream):
            self._dispatch_admitted(self.queues.release_unread(item, now))

    def _check_health(self, now: float) -> None:
        """Report to Health the oldest unanswered request of each connection that it has not seen."""
        self.next_health_check_at = now + self._health.look_every_s
        self._materialize()
        unreported = [
            line[0] for line in self.lines.values() if line[0].sent is None and line[0].watched
        ]
        unreported.sort(key=attrgetter("started_at"))
        reported = self._health.look([(entry.watched, entry.started_at) for entry in unreported])
        for entry, sent in zip(unreported, reported, strict=True):
            entry.report(sent)

    def _release_unread(self, now: float) -> None:
        """Return the slots of requests whose answers Forebay does not read. The time of the oldest
        one on such a connection begins anew: it is not the broker that lets it wait.
        """
        for pipeline in list(self.pipelines):
            if pipeline.framed.reading_held:
                pipeline.materialize()
        for link, line in self.lines.items():
            if link.upstream.reading_held:
                line[0].start(now)
                if line[0].sent is not None:
                    self._health.started(line[0].sent, now)
        for item in self._unread.look(self.lines, self._of_connection, now):
            self._dispatch_admitted(self.queues.release_unread(item, now))

    def _materialize(self) -> None:
        for pipeline in list(self.pipelines):
            pipeline.materialize()

    def materialize(self, link: AnyLink, in_flight: Sequence[QueuedRequest]) -> None:
        """Take over the requests of a pipeline, which are behind all others of their connection. If
        the broker has begun with the first, its `started_at` says when.
        """
        self.lines.setdefault(link, []).extend(in_flight)
        self.queues.note(in_flight)

    def in_order(self, link: AnyLink) -> bool:
        """True if no request of the connection waits. Then the order demands nothing more of a new
        request.
        """
        return not self.queues.order_key_waits(link) and all(
            entry.link is not link for entry in self._admitted
        )

    def hanging(self, topics: Iterable[str | bytes]) -> dict[str | bytes, Verdict]:
        """Return those of `topics` that hang, with the verdict: no request, or one probe, may be
        sent now. The result is empty in good times.
        """
        found: dict[str | bytes, Verdict] = {}
        if self.enabled:
            now = self._broker.now()
            if now >= self.next_health_check_at:
                self._check_health(now)
            for topic in topics if self.watched else ():
                verdict = self._health.plan(topic, now)
                if verdict is not Verdict.PASS:
                    found[topic] = verdict
        return found

    # -- responses ---------------------------------------------------------------------------------

    def answered(self, item: QueuedRequest, now: float | None = None) -> None:
        """Note that the broker answered the request at `now` (seconds; None: the present time)."""
        if item.state is not ADMITTED:
            return
        if now is None:
            now = self._broker.now()
        started_at, last_timely = item.started_at, self.last_timely
        latency_s = now - started_at if item.is_measured and started_at >= 0 else None
        if (
            latency_s is not None
            and latency_s < self.hang_after_s
            and (topic := item.topic) in last_timely
            and topic not in self.watched
            and item.sent is None
        ):
            if last_timely[topic] < started_at:
                last_timely[topic] = started_at
        elif item.watched:
            self._report_answer(item, now)
        self._finish(item, now, latency_s)

    def _report_answer(self, item: QueuedRequest, now: float) -> None:
        """Report to Health what the answer shows for the request's topics."""
        if len(self.last_timely) >= self._health.rule.max_keys:
            self._check_health(now)
        sent = item.sent
        if sent is None:
            started_at = item.started_at if item.started_at >= 0 else item.since_s
            sent = Sent(tuple(item.watched), started_at)
            item.report(sent)
        for topic in self._health.answered(sent, now):
            log.info("a topic answers again", extra={"topic": _printed(topic)})

    def withdraw(self, item: QueuedRequest) -> None:
        """Remove a request without a latency sample: it needs no answer, was not sent, or its
        connection is lost.
        """
        if item.state is DONE:
            return
        now = self._broker.now()
        if item.sent is not None:
            self._health.forgotten(item.sent)
        self._finish(item, now, None)

    def _finish(self, item: QueuedRequest, now: float, latency_s: float | None) -> None:
        line = self.lines.get(item.link)
        if line is not None and line[0] is item:
            del line[0]
            if line:  # the broker works on one request of a connection
                line[0].start(now)
                if line[0].sent is not None:
                    self._check_health(now)
                    self._health.started(line[0].sent, now)
            else:
                del self.lines[item.link]
                if item.link.pipeline is not None:
                    item.link.pipeline.begin(now)
        elif line is not None and item in line:
            line.remove(item)
        else:
            self._forget_queued(item)
        for reservation in item.reserved:
            reservation.release()
        lingered = not item.holds_slot  # its end may make lingering requests due now
        if item.state is ADMITTED:
            admitted = self.queues.finished(item, now, latency_s)
        else:
            admitted = self.queues.cancel(item, now)
        if admitted:
            self._dispatch_admitted(admitted)
        if lingered or self.due_at > now + self._due_after_s:
            self._schedule(now, item.queue)

    def _forget_queued(self, item: QueuedRequest) -> None:
        queued = self._of_connection.get(item.link)
        if queued is not None:
            queued.pop(item, None)
            if not queued:
                del self._of_connection[item.link]

    def drop_link(self, link: AnyLink) -> None:
        """Withdraw all requests of a client that is gone, and of its broker connection."""
        for entry in [*self.lines.get(link, ()), *self._of_connection.get(link, ())]:
            self.withdraw(entry)
        self.lines.pop(link, None)
        if link.pipeline is not None:
            self.pipelines.pop(link.pipeline, None)

    # -- time --------------------------------------------------------------------------------------

    def _schedule(self, now: float, queue: int | None = None) -> None:
        """Set the timer for the next due time. `queue`: number of the only queue that has changed;
        None: any.
        """
        due_at = self.queues.next_due_s(now, queue)
        if due_at is None or due_at >= self.due_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.due_at = due_at
        self._timer = asyncio.get_running_loop().call_later(max(due_at - now, 0.001), self._turn)

    def _turn(self) -> None:
        self.due_at = float("inf")
        now = self._broker.now()
        self._end_turn(self.queues.turn(now))
        self._schedule(now)

    def _end_turn(self, turn: Turn[QueuedRequest]) -> None:
        """Refuse the expired requests first, then dispatch the admitted ones. Expired ones came
        before them, or are of other connections. Requests that arrive meanwhile are dispatched
        behind both.
        """
        self._admitted.extend(turn.admitted)
        was_dispatching, self.is_dispatching = self.is_dispatching, True
        try:
            self._refuse(turn.expired)
        finally:
            self.is_dispatching = was_dispatching
        self._dispatch_admitted()

    def _refuse(self, items: Sequence[QueuedRequest]) -> None:
        for item in items:
            if item.state is DONE:
                continue  # its client is gone, because another request was refused
            self._forget_queued(item)
            self._run_guarded(item, partial(_refuse_one, item))

    def tick(self, now: float) -> None:
        """Return the slots of unread answers. Measure how busy the processors are. Check the topics'
        health, and refuse the waiting requests of a topic that now hangs. Called periodically.
        """
        is_due = now - self._health_at >= LOOK_EVERY_S
        if self.enabled and (is_due or self.queues.has_waiting):
            self._release_unread(now)
        if not is_due:
            return
        self._health_at = now
        self._peers.note_machine(self.processor_wait.measure(), now)
        if not self.enabled:
            return
        self._check_health(now)
        for topic in cast("list[str | bytes]", self._health.turn(now)):
            log.warning(
                "a topic hangs: its requests are refused until a probe is answered",
                extra={"topic": _printed(topic)},
            )
            queue = queue_of_topic(topic, self.data_queues)
            self._end_turn(self.queues.refuse_waiting(queue, partial(_is_of, topic), now))

    def stop(self) -> None:
        """Cancel the timer: no request is admitted or refused by time any more."""
        if self._timer is not None:
            self._timer.cancel()

    def report(self) -> dict[str, object]:
        """Return the state for an operator: queues by name, hanging topics, quotas."""
        queues, health = self.statistics()
        hanging = [_printed(topic) for topic in self._health.hanging()]
        return {
            "enabled": not self.is_open,
            "queues": {queue_name(number): state for number, state in queues.items()},
            "topics": {**health, "names": sorted(hanging)},
            "quotas": {
                "topics": self.quotas.topics.statistics(),
                "clients": self.quotas.clients.statistics(),
            },
        }

    def statistics(self) -> tuple[dict[int, dict[str, float]], dict[str, int]]:
        """Return the state of the queues by number (-1: control), and the health counts of topics."""
        now = self._broker.now()
        self._check_health(now)
        return self.queues.statistics(now), self._health.statistics()


def _open_limit() -> Limit:
    return FixedLimit(OPEN_SLOTS)


def build_queue_rule(config: Isolation) -> QueueRule:
    """Return the bounds of the queues, from their configuration."""
    return QueueRule(
        config.data_queues,
        config.queue_requests,
        config.queue_size_bytes,
        config.max_queue_wait_s,
        config.release_after_s,
    )


def _is_of(topic: str | bytes, item: QueuedRequest) -> bool:
    return topic in item.watched


def _refuse_one(item: QueuedRequest) -> None:
    for reservation in item.reserved:
        reservation.release()
    if item.refuse is not None:
        item.refuse()


def _printed(topic: Hashable) -> str:
    """Return a topic's name, or its id in hexadecimal."""
    return topic.hex() if isinstance(topic, bytes) else str(topic)
