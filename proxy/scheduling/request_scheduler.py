"""Whose turn it is toward the broker: every client's request enters here and is let through, held or refused.

Owns the queues at work: their timer, the slots that requests hold, and which topics hang. It must not know
what a request says. Invariants (design, "Isolation"):
* `go` runs exactly once, or `refuse` does, or the client is gone; at once, within `enter`, where there is a
  slot.
* an entry that went is given back once: answered, or left when its link is lost.
* what is ordered (a Produce, and what must not overtake one) leaves in the order of its arrival on its
  connection; what has been let in goes one after the other, never from within another's going.
* bytes reserved under quotas are given back with the entry, however it ends.
* a request counts as being served from when everything before it on its link is answered: a broker works on
  one request of a connection. Health is told of what is unanswered at a look (`_look`), not of each request.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, cast

from isolation.classify import CONTROL, classify, queue_name, queue_of_topic
from isolation.health import LOOK_EVERY_S, Health, HealthRule, Sent, Verdict
from isolation.queues import QueueRule, Queues
from isolation.tickets import ADMITTED, State, Ticket, Turn, Waits
from proxy.config.isolation import build_limit
from proxy.scheduling.queued_request import Entry
from proxy.scheduling.quotas import QuotaTable

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from isolation.quotas import Reservation
    from proxy.broker import Broker
    from proxy.net.client_connection import ClientConnection
    from proxy.produce.pipeline import Pipeline
    from proxy.produce.single_batch import SingleBatchProduce

log = logging.getLogger("forebay.gate")


class RequestScheduler:
    """All requests of all clients toward one broker."""

    def __init__(self, broker: Broker) -> None:
        config = broker.config.isolation
        self._broker = broker
        self.enabled = config.enabled
        rule = QueueRule(
            config.data_queues,
            config.queue_requests,
            config.queue_size_bytes,
            config.max_queue_wait_s,
            config.release_after_s,
        )
        control = build_limit(config.control_slots)
        self.queues = Queues(rule, control, lambda: build_limit(config.data_slots), self._materialize)
        self._due_after_s, self.release_after_s = self.queues.due_after_s, config.release_after_s
        self._health = Health(HealthRule(hang_after_s=config.hang_after_s))
        self.hang_after_s = config.hang_after_s
        self.watched, self.last_timely = self._health.keys, self._health.last_timely
        self.quotas = QuotaTable(config)
        self.data_queues = config.data_queues
        # sent on a client's first link and unanswered; its others
        self.lines: dict[ClientConnection, list[Entry | SingleBatchProduce]] = {}
        self._of_connection: defaultdict[ClientConnection, dict[Entry, None]] = defaultdict(dict)
        self.pipelines: dict[Pipeline, None] = {}  # what is only counted
        self._admitted: deque[Entry] = deque()
        self.is_dispatching = False
        self._timer: asyncio.TimerHandle | None = None
        self.due_at = float("inf")
        self.next_health_check_at = self._health_at = float("-inf")

    # -- in ------------------------------------------------------------------------------------------------

    def submit(
        self,
        link: ClientConnection,
        dispatch: Callable[[Entry], None],
        refuse: Callable[[], None] | None = None,
        *,
        is_control: bool = False,
        topics: Sequence[str | bytes] = (),
        size_bytes: int = 0,
        waits: Waits = Waits.NOTHING,
        is_ordered: bool = False,
        watched: Sequence[str | bytes] = (),
        reserved: Sequence[Reservation] = (),
        whole: Callable[[], object] | None = None,
    ) -> None:
        """A request arrives. `refuse` None: it may not be refused, and waits. `reserved` is released when the
        request is answered, refused or gone. `whole`: what `Broker.fall_back` does where `go` or `refuse` raises.
        """
        entry = Entry(link, dispatch, refuse, watched, reserved, is_ordered and not is_control, whole)
        if not self.enabled:
            self._run_guarded(entry, dispatch, entry)
            return
        now = self._broker.now()
        ticket = entry.ticket = self.queues.offer(
            entry,
            queue=classify(is_control, topics, self.data_queues, self.queues.load_of),
            size_bytes=size_bytes,
            now_s=now,
            lane=link if is_ordered else None,
            waits=waits,
            never_refused=refuse is None,
            is_measured=entry.is_measured,
        )
        if ticket.state is State.REFUSED:
            assert refuse is not None
            entry.ticket = None
            entry.release()
            refuse()
            return
        self._of_connection[link][entry] = None
        if ticket.state is State.ADMITTED:
            self._admitted.append(entry)
            self._dispatch_admitted()
        if self.due_at > now + self._due_after_s:
            self._schedule(now, ticket.queue)

    def try_dispatch(self, entry: SingleBatchProduce) -> bool:
        """`enter`, `go` and `sent` in one, at `entry.since_s`, for a Produce of one topic that does not hang, where
        nothing waits on its connection and a slot of its queue is free. False otherwise, and nothing has changed.
        """
        now, link = entry.since_s, entry.link
        if now >= self.next_health_check_at:
            self._check_health(now)
        if self.is_dispatching or (
            entry.topic in self.watched and self._health.plan(entry.topic, now) is not Verdict.PASS
        ):
            return False
        if not self.queues.take(entry, link, now):
            return False
        entry.ticket = entry
        if link in self.lines:
            self.lines[link].append(entry)
        else:
            self.lines[link] = [entry]
            entry.started_at = now
        if self.due_at > now + self._due_after_s:
            self._schedule(now, entry.queue)
        return True

    def _dispatch_admitted(self, tickets: Sequence[Ticket] = ()) -> None:
        """One after the other, in their order: what one's going lets in goes after it, not within it."""
        for ticket in tickets:
            self._admitted.append(ticket.item)
        if self.is_dispatching:
            return
        self.is_dispatching = True
        try:
            while self._admitted:
                self._dispatch(self._admitted.popleft())
        finally:
            self.is_dispatching = False

    def _dispatch(self, entry: Entry) -> None:
        """It may go. Whether it does is `go`'s to say: it calls `sent`, or `leave`."""
        if entry.ticket is None:
            return  # its client is gone
        assert entry.dispatch is not None
        self._run_guarded(entry, entry.dispatch, entry)
        if entry.ticket is not None and entry.link.upstream.closed:
            self.withdraw(entry)

    def _run_guarded(self, entry: Entry, action: Callable[..., None], *args: Entry) -> None:
        gone = entry.link.gone
        try:
            action(*args)
        except Exception:
            self.withdraw(entry)
            self._broker.fall_back(entry.link, gone, "sending or refusing a request", entry.whole)

    def dispatched(self, entry: Entry) -> None:
        """The request is on its way to the broker, on its client's first link."""
        if entry.ticket is None:
            return
        if entry.link.pipeline is not None:
            entry.link.pipeline.materialize()
        now = self._broker.now()
        self._forget_queued(entry)
        watched, is_first = entry.watched, entry.link not in self.lines
        if watched:
            entry.topic = watched[0] if len(watched) == 1 else None
            if not self._health.hung.isdisjoint(watched):  # it is a probe
                self._check_health(now)
                entry.sent = self._health.sent(watched, now, is_first=is_first)
        if is_first:
            self.lines[entry.link] = [entry]
            entry.started_at = now
        else:
            self.lines[entry.link].append(entry)
        if entry.ticket.waits is Waits.POLL and entry.ticket.queue != CONTROL:
            self._dispatch_admitted(self.queues.release_early(entry.ticket, now))

    def _check_health(self, now: float) -> None:
        """Health is told of what it does not know yet: of each link, what the broker has come to work on."""
        self.next_health_check_at = now + self._health.look_every_s
        self._materialize()
        unreported = [line[0] for line in self.lines.values() if line[0].sent is None and line[0].watched]
        unreported.sort(key=attrgetter("started_at"))
        reported = self._health.look([(entry.watched, entry.started_at) for entry in unreported])
        for entry, sent in zip(unreported, reported, strict=True):
            entry.sent = sent

    def _materialize(self) -> None:
        for pipeline in list(self.pipelines):
            pipeline.materialize()

    def materialize(self, link: ClientConnection, in_flight: Sequence[SingleBatchProduce]) -> None:
        """What flew, behind all else of its link, is noted from now on; if the first has begun, it says when."""
        for entry in in_flight:
            entry.ticket = entry
        self.lines.setdefault(link, []).extend(in_flight)
        self.queues.note(in_flight)

    def in_order(self, link: ClientConnection) -> bool:
        """Whether nothing of the connection waits, so that what order demands of a newcomer is known now."""
        return not self.queues.lane_waits(link) and all(entry.link is not link for entry in self._admitted)

    def hanging(self, topics: Iterable[str | bytes]) -> dict[str | bytes, Verdict]:
        """Those topics of which no request, or one probe, may be sent now; none in good times."""
        found: dict[str | bytes, Verdict] = {}
        if self.enabled:
            now = self._broker.now()
            if now >= self.next_health_check_at:
                self._check_health(now)
            for topic in topics:
                verdict = self._health.plan(topic, now)
                if verdict is not Verdict.PASS:
                    found[topic] = verdict
        return found

    # -- out -----------------------------------------------------------------------------------------------

    def answered(self, entry: Entry | SingleBatchProduce, now: float | None = None) -> None:
        """The broker has answered it, at `now`."""
        if entry.ticket is None:
            return
        if now is None:
            now = self._broker.now()
        started_at, topic, last_timely = entry.started_at, entry.topic, self.last_timely
        latency_s = now - started_at if entry.is_measured and started_at >= 0 else None
        if (
            topic in last_timely
            and latency_s is not None
            and latency_s < self.hang_after_s
            and topic not in self.watched
            and entry.sent is None
        ):
            if last_timely[topic] < started_at:
                last_timely[topic] = started_at
        elif entry.watched:
            self._report_answer(entry, now)
        self._finish(entry, now, latency_s)

    def _report_answer(self, entry: Entry | SingleBatchProduce, now: float) -> None:
        """What its answer says for its topics."""
        if len(self.last_timely) >= self._health.rule.max_keys:
            self._check_health(now)
        if entry.sent is None:
            assert entry.ticket is not None
            started_at = entry.started_at if entry.started_at >= 0 else entry.ticket.since_s
            entry.sent = Sent(tuple(entry.watched), started_at)
        for topic in self._health.answered(entry.sent, now):
            log.info("a topic answers again", extra={"topic": _printed(topic)})

    def _start_serving(self, entry: Entry | SingleBatchProduce, now: float) -> None:
        """Everything before it on its link is answered: the broker works on it from now on."""
        entry.started_at = now
        if entry.sent is not None:
            self._check_health(now)
            self._health.started(entry.sent, now)

    def withdraw(self, entry: Entry | SingleBatchProduce) -> None:
        """It went and needs no answer, or did not go after all, or its link is lost: no sample of the broker."""
        if entry.ticket is None:
            return
        now = self._broker.now()
        if entry.sent is not None:
            self._health.forgotten(entry.sent)
        self._finish(entry, now, None)

    def _finish(self, entry: Entry | SingleBatchProduce, now: float, latency_s: float | None) -> None:
        ticket, entry.ticket = entry.ticket, None
        assert ticket is not None
        line = self.lines.get(entry.link)
        if line is not None and line[0] is entry:
            del line[0]
            if line:
                self._start_serving(line[0], now)
            else:
                del self.lines[entry.link]
                if entry.link.pipeline is not None:
                    entry.link.pipeline.begin(now)
        elif line is not None and entry in line:
            line.remove(entry)
        else:
            self._forget_queued(entry)
        if isinstance(entry, Entry):  # an ordinary Produce is under no quota
            entry.release()
        lingered = not ticket.holds_slot  # its end lets others linger, who may be due by now
        if ticket.state is ADMITTED:
            admitted = self.queues.finished(ticket, now, latency_s)
        else:
            admitted = self.queues.cancel(ticket, now)
        if admitted:
            self._dispatch_admitted(admitted)
        if lingered or self.due_at > now + self._due_after_s:
            self._schedule(now, ticket.queue)

    def _forget_queued(self, entry: Entry | SingleBatchProduce) -> None:
        entries = self._of_connection.get(entry.link)
        if entries is not None:
            entries.pop(cast("Entry", entry), None)
            if not entries:
                del self._of_connection[entry.link]

    def drop_link(self, link: ClientConnection) -> None:
        """The client is gone, and its link to the broker with it."""
        for entry in [*self.lines.get(link, ()), *self._of_connection.get(link, ())]:
            self.withdraw(entry)
        self.lines.pop(link, None)
        if link.pipeline is not None:
            self.pipelines.pop(link.pipeline, None)

    # -- time ----------------------------------------------------------------------------------------------

    def _schedule(self, now: float, queue: int | None = None) -> None:
        """`queue`: the only one that has changed."""
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

    def _end_turn(self, turn: Turn) -> None:
        """What is refused was before what is admitted, or is of other connections: it is refused first. What
        comes in meanwhile goes behind both.
        """
        self._admitted.extend(ticket.item for ticket in turn.admitted)
        was_dispatching, self.is_dispatching = self.is_dispatching, True
        try:
            self._refuse(turn.expired)
        finally:
            self.is_dispatching = was_dispatching
        self._dispatch_admitted(())

    def _refuse(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            entry: Entry = ticket.item
            if entry.ticket is None:
                continue  # its client is gone, by the refusal of another
            entry.ticket = None
            self._forget_queued(entry)
            entry.release()
            if entry.refuse is not None:
                self._run_guarded(entry, entry.refuse)

    def tick(self, now: float) -> None:
        """Timed: what waits for a topic that has come to hang is refused."""
        if not self.enabled or now - self._health_at < LOOK_EVERY_S:
            return
        self._health_at = now
        self._check_health(now)
        for topic in cast("list[str | bytes]", self._health.turn(now)):
            log.warning(
                "a topic hangs: its requests are refused until a probe is answered",
                extra={"topic": _printed(topic)},
            )
            queue = queue_of_topic(topic, self.data_queues)
            self._end_turn(self.queues.refuse_waiting(queue, partial(_is_of, topic), now))

    def stop(self) -> None:
        """No more turns."""
        if self._timer is not None:
            self._timer.cancel()

    def report(self) -> dict[str, object]:
        """For an operator: queues by name, topics that hang, quotas."""
        queues, health = self.statistics()
        hanging = [_printed(topic) for topic in self._health.hanging()]
        return {
            "enabled": self.enabled,
            "queues": {queue_name(number): state for number, state in queues.items()},
            "topics": {**health, "names": sorted(hanging)},
            "quotas": {
                "topics": self.quotas.topics.statistics(),
                "clients": self.quotas.clients.statistics(),
            },
        }

    def statistics(self) -> tuple[dict[int, dict[str, float]], dict[str, int]]:
        """Queues by number (-1: control), and the health of topics."""
        now = self._broker.now()
        self._check_health(now)
        return self.queues.statistics(now), self._health.statistics()


def _is_of(topic: str | bytes, entry: Entry) -> bool:
    return topic in entry.watched


def _printed(topic: Hashable) -> str:
    """A topic's name, or its id in hexadecimal."""
    return topic.hex() if isinstance(topic, bytes) else str(topic)
