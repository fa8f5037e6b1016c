"""A Fetch that memory speaks for, at least in part: answered at once, or parked until there is enough, or
forwarded.

Owns the waiting of one Fetch. It must not know how news arrives: it is woken, and looks again. Invariants
(ReplicaManager.fetchMessages, DelayedFetch; design, "Fetch"):
* it is answered when the readable bytes of all its partitions, reads beside that have arrived included, reach
  min_bytes, or at max_wait with what there is.
* it registers as a waiter before it looks for the last time; there is no moment at which news can be missed.
* a partition whose bytes are on their way, or that no lease covers, is waited for at most `cache.holeWait`;
  then it is a miss.
* a missed partition is read beside. Its Fetch waits for it for a moment where nothing delays the read
  (fetch/completion.py); then it is named empty, where its offsets are known.
* it is answered, or forwarded once: where what happens to it raises, it goes to the broker as it came.
* a lease that lapses while the broker does not answer sends nobody away: what stands at the tail leaves empty
  at max_wait.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from proxy.fetch.completion import GRACE_S, find_wait_end, is_enough, is_outdated
from proxy.fetch.evaluate import View, build_view, evaluate, find_unproven
from proxy.fetch.forward import forward_fetch
from proxy.fetch.misses.coalescing import build_question
from proxy.fetch.misses.read import Stage
from proxy.fetch.prepared import find_repeated, look_waiting
from proxy.fetch.response import build_answer, build_single
from proxy.fetch.sessions.idle_partitions import find_standing
from proxy.partitions.readable import (
    NEEDS_BROKER,
    READ_COMMITTED,
    UNCONFIRMED,
    PartitionStatus,
    ReadState,
    plan_given_up,
)
from proxy.relay import relay_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from protocol.wire import Frame
    from proxy.fetch.misses.read import Read
    from proxy.fetch.record import FetchRecord
    from proxy.partitions.table import Partition


PROOF_WAIT_S = 0.1
"""For how long a partition that nothing is known of, or of which less is known than was acknowledged, is asked about
before its disk is read for it regardless.
"""
TIMER_SLACK_S = 0.005


class DelayedFetch:
    """One Fetch that has not been answered."""

    __slots__ = (
        "_behind",
        "_deadline",
        "_frame",
        "_impatient",
        "_leaving",
        "_reads_timer",
        "_repeated",
        "_standing",
        "_timer",
        "_urgent",
        "_urgent_timer",
        "done",
        "held",
        "record",
    )

    def __init__(self, record: FetchRecord, frame: Frame) -> None:
        self.record = record
        self._frame = frame
        self._behind = record.link.last_ordinal
        self._deadline = record.received_at + max(record.request.max_wait_ms, 0) / 1000
        self._timer: asyncio.TimerHandle | None = None
        self._urgent_timer: asyncio.TimerHandle | None = None
        self._reads_timer: asyncio.TimerHandle | None = None
        self._urgent = False
        self._impatient = False
        self._leaving = False
        self._repeated = find_repeated(record)
        self._standing = find_standing(record, record.received_at)
        self.held: list[Partition] = []
        self.done = False

    def start(self) -> None:
        """Look for the first time; where a right is missing to what could be told, after the broker was asked."""
        self._fenced(self._start, self.record.received_at)

    def _start(self, now: float) -> None:
        asked = self.record.partitions if self._standing is None else self._standing.lively()
        unproven = find_unproven(self.record, asked, now)
        if unproven:
            link, version = self.record.link, self.record.head.api_version
            link.authorization.prove(unproven, version, self._proven)
        else:
            self._look(now)

    def _proven(self, answered: bool) -> None:
        if not answered:
            self.drop()
            return
        self._fenced(self._look, self._now())
        link, replies = self.record.link, self.record.link.replies
        is_called_away = replies.control and replies.oldest is self.record.reply
        if link.finishing or is_called_away:  # since it was asked: it was not among those that wait
            self.leave()

    def wake(self, _partition: Partition) -> None:
        """Something changed: look again."""
        if not self.done:
            self._fenced(self._wake, self._now())

    def _wake(self, now: float) -> None:
        record, repeated = self.record, self._repeated
        if repeated is not None:
            status = look_waiting(record, repeated, now)
            if status is not None:
                self._end()
                build_single(record, status, repeated.answer)
                return
        self._look(now)

    def look_again(self) -> None:
        """A read beside has come to an end, or something changed."""
        if not self.done:
            self._fenced(self._look, self._now())

    def leave(self) -> None:
        """Answer with what there is, now: the process is stopping, or the client has finished sending, or
        something that must not wait stands behind this Fetch.
        """
        if not self.done:
            self._leaving = True
            now = self._now()
            self._deadline = min(self._deadline, now)
            self._fenced(self._look, now)

    def drop(self) -> None:
        """The client is gone."""
        if not self.done:
            self._end()
            self.record.abandoned()

    def _fenced(self, act: Callable[[float], None], now: float) -> None:
        """All that happens to a Fetch happens in here: where it raises, the broker gets the Fetch as it came."""
        record = self.record
        link = record.link
        gone = link.gone
        try:
            act(now)
        except Exception:
            whole = partial(relay_whole, link, self._frame, record.reply)
            if not self.done:
                link.broker.attempt(self._end, "ending a Fetch")
            link.broker.fall_back(link, gone, "looking at a Fetch", whole)

    # -- deciding ------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return self.record.link.broker.now()

    def _look(self, now: float) -> None:
        statuses = self._look_at(now)
        view = self._see(statuses)
        if self.done:
            return
        if view is None:
            self._forward(statuses)
            return
        asking: Sequence[PartitionStatus] = ()
        if view.has_ask:
            asking = [
                one for one in statuses if one.state is UNCONFIRMED and not self._waits_at_tail(one, now)
            ]
        settled = not asking and not view.must_arrive
        is_late = now >= self._deadline
        outdated = is_late and is_outdated(view)
        if is_late and (asking or self._is_behind_own(view) or (outdated and self._impatient)):
            link = self.record.link
            for one in asking:  # for its next Fetch: who never waits would never be served else
                if one.partition is not None:
                    link.broker.watch.ask(one.partition, link, one.asked)
            self._forward(statuses)
            return
        may_leave = settled and not outdated and (is_late or is_enough(self.record, view, self._has_quiet))
        wait_end = float("-inf")
        if may_leave and not self._leaving:
            wait_end = find_wait_end(view, self.record.request, self._deadline)
        if may_leave and now >= wait_end:
            self._answer(view)
        elif self._hold(view, asking, now):
            self._hurry(PROOF_WAIT_S if outdated else self._patience_s(view, asking))
            self._look_at_end(wait_end, now)
        elif may_leave and view.is_here:
            self._answer(view)
        else:
            self._forward(statuses)

    @property
    def _has_quiet(self) -> bool:
        """Whether partitions of its session are not looked at, since nothing is new."""
        return self._standing is not None and self._standing.quiet > 0

    def _look_at(self, now: float) -> list[PartitionStatus]:
        """What is not known to be quiet."""
        statuses = evaluate(self.record, now) if self._standing is None else self._standing.look(now)
        return [plan_given_up(status) for status in statuses] if self._impatient else statuses

    def _see(self, statuses: list[PartitionStatus]) -> View | None:
        """Each partition with its read beside, begun where there was none. None: the broker is to answer it all."""
        for status in statuses:
            if status.state in NEEDS_BROKER:
                reads = self._find_reads(statuses)
                return None if reads is None else build_view(statuses, reads)
        beside = self.record.link.reads
        if len(beside):
            beside.drop_asked([status.asked for status in statuses])
        return build_view(statuses, (None,) * len(statuses)) if statuses or self._has_quiet else None

    def _find_reads(self, statuses: list[PartitionStatus]) -> list[Read | None] | None:
        """The reads beside of what is missed, begun where there was none. None: the broker is to answer it all."""
        reads = self.record.link.reads
        if self.record.request.rack_id:
            return None
        missed = [status for status in statuses if status.state in NEEDS_BROKER]
        kind = self.record.request.isolation_level, self.record.head.api_version
        found = {id(one): reads.find(one, *kind) for one in missed}
        if any(read is not None and read.stage is Stage.FAILED for read in found.values()):
            return None
        said = [read for read in found.values() if read is not None and read.stage is Stage.SAID]
        absent = [one for one in missed if found[id(one)] is None]
        is_all = len(absent) + len(said) == len(statuses) and not self._has_quiet
        if is_all and not self._goes_apart(missed):
            return None
        for one_said in said:
            reads.ask_again(one_said)
        if absent and not reads.begin(self.record, absent, self):
            return None
        for one in absent:
            found[id(one)] = reads.find(one, *kind)
        for read in found.values():
            if read is not None:
                read.waiter = self
        return [found.get(id(status)) for status in statuses]

    def _goes_apart(self, missed: Sequence[PartitionStatus]) -> bool:
        """Whether a request of nothing but misses is read beside all the same: it is history, and may have to
        wait for its disk or has a link of its own, or another consumer is reading the same.
        """
        link, request = self.record.link, self.record.request
        named = [one for one in missed if one.offsets_known]
        if not named or any(one.state is ReadState.MISS for one in missed if not one.offsets_known):
            return False
        if link.reads.go_apart and all(one.lagging for one in named):
            return True
        shared, version = link.broker.shared_reads, self.record.head.api_version
        questions = (build_question(one, version, request.isolation_level) for one in named)
        return any(
            shared.find(question, one.asked.max_bytes) is not None
            for question, one in zip(questions, named, strict=True)
        )

    def _waits_at_tail(self, status: PartitionStatus, now: float) -> bool:
        """No lease, but it stands at the tail: it may wait there while the watch does, and leave empty."""
        partition = status.partition
        committed = self.record.request.isolation_level == READ_COMMITTED
        if partition is None or not partition.is_at_end(status.asked.fetch_offset, committed):
            return False
        return now >= self._deadline or (partition.open_polls > 0 and not partition.leader_state.frozen)

    def _is_behind_own(self, view: View) -> bool:
        """Whether it would be answered empty before a Produce that came before it on its connection."""
        return self.record.link.answered_ordinal < self._behind and not view.is_here

    # -- waiting -------------------------------------------------------------------------------------------

    def _hold(self, view: View, asking: Sequence[PartitionStatus], now: float) -> bool:
        """Wait on every partition. False where that cannot be: nobody can ask for us, or too many wait."""
        link = self.record.link
        broker = link.broker
        if self._timer is None:
            if not broker.purgatory.park(link, self):
                return False
            self.record.parked_at = now
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(self._deadline - now, 0), self._expire)
            if self._standing is not None:
                self._standing.fetch = self
        self._register(
            [
                status.partition
                for status, read in zip(view.statuses, view.reads, strict=True)
                if read is None and status.partition is not None
            ]
        )
        for status in asking:
            assert status.partition is not None
            if not broker.watch.ask(status.partition, link, status.asked):
                return False
        return all(partition.open_polls or broker.watch.cover(partition, link) for partition in self.held)

    def _register(self, partitions: list[Partition]) -> None:
        """Wait on exactly these: one that was forgotten and is followed again is another."""
        if partitions == self.held:
            return
        for partition in self.held:
            partition.parked.pop(self, None)
        self.held = partitions
        for partition in partitions:
            partition.parked[self] = None

    def _patience_s(self, view: View, asking: Sequence[PartitionStatus]) -> float | None:
        """For how long what is on its way is waited for; None: as long as for news. What nothing is known of yet may
        be history, which goes to its disk in its turn: where that is so, and no hit waits beside it, it is
        worth knowing.
        """
        if not asking and not view.has_gap:
            return None
        link = self.record.link
        is_new = all(one.partition is not None and not one.partition.leader_state.known for one in asking)
        holds_others = view.is_here or view.has_gap
        if asking and is_new and link.reads.go_apart and not holds_others:
            return PROOF_WAIT_S
        return link.broker.config.cache.hole_wait_s

    def _hurry(self, patience_s: float | None) -> None:
        """What is on its way is given up after `patience_s`, counted from when there was such first."""
        if patience_s is not None and not self._urgent:
            self._urgent = True
            self._urgent_timer = asyncio.get_running_loop().call_later(patience_s, self._give_up)
        elif patience_s is None and self._urgent:
            self._urgent = False
            if self._urgent_timer is not None:
                self._urgent_timer.cancel()

    def _look_at_end(self, wait_end: float, now: float) -> None:
        """Look again when what is readable has waited long enough for its Fetch's reads."""
        if wait_end > now and self._reads_timer is None:
            self._reads_timer = asyncio.get_running_loop().call_later(wait_end - now, self._waited)

    def _waited(self) -> None:
        self._reads_timer = None
        self.look_again()

    def _expire(self) -> None:
        """max_wait is over, also where the timer came a moment early."""
        self._deadline = min(self._deadline, self._now())
        self.look_again()
        if not self.done:
            self._timer = asyncio.get_running_loop().call_later(GRACE_S + TIMER_SLACK_S, self._expire)

    def _give_up(self) -> None:
        """What has not come by now is a miss."""
        self._impatient = True
        self.look_again()

    def _end(self) -> None:
        self.done = True  # first: what raises here does not happen again
        link = self.record.link
        for timer in (self._timer, self._urgent_timer, self._reads_timer):
            if timer is not None:
                timer.cancel()
        for partition in self.held:
            partition.parked.pop(self, None)
        if len(link.reads):
            link.reads.leave(self)
        if self._standing is not None and self._standing.fetch is self:
            self._standing.fetch = None
        if self._timer is not None:
            self.record.waited_s = self._now() - self.record.parked_at
            link.broker.purgatory.unpark(link, self)
        self.held = []

    # -- leaving -------------------------------------------------------------------------------------------

    def _forward(self, statuses: list[PartitionStatus]) -> None:
        self._end()
        if self._standing is not None:  # all of it goes
            now = self._now()
            statuses = [plan_given_up(one) if self._impatient else one for one in evaluate(self.record, now)]
        waited = self.record.parked_at >= 0 or self._leaving
        max_wait_ms = max(0, round((self._deadline - self._now()) * 1000)) if waited else None
        forward_fetch(self.record, self._frame, statuses, max_wait_ms)

    def _answer(self, view: View) -> None:
        self._end()
        build_answer(self.record, view.statuses, view.reads, has_quiet=self._has_quiet)
