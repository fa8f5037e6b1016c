"""Delayed Fetch: answer a Fetch at once, let it wait until there is enough, or forward it whole.

Owns the waiting of one Fetch. Must not know how changes are detected: it is woken and evaluates
again. Invariants (ReplicaManager.fetchMessages, DelayedFetch):
* A Fetch is answered when the readable bytes of its partitions, with miss fetches that have
  arrived, reach min_bytes; or at max_wait.
* The Fetch registers as a waiter before its last evaluation, so that it misses no change.
* A partition in transit, or without a lease, is waited for `cache.holeWait` at most, and until the
  sockets have been read once more; then it is a miss.
* A missed partition gets a miss fetch. The Fetch waits shortly for one that nothing delays
  (fetch/completion.py); then the partition is named empty, if its offsets are known.
* A Fetch is answered once, or forwarded once. After an exception the broker gets it as it came.
* Once memory does not serve its connection any more, a Fetch is forwarded at its next event.
* A lease that lapses while the broker hangs forwards nothing: a Fetch at the log's end leaves empty
  at max_wait.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from proxy.fetch.completion import (
    GRACE_S,
    find_wait_end,
    is_complete,
    is_enough,
    is_outdated,
)
from proxy.fetch.evaluate import (
    DISABLED,
    UNAUTHORIZED,
    View,
    build_view,
    evaluate_fetch,
    find_unproven,
    skip_memory,
)
from proxy.fetch.forward import forward_fetch
from proxy.fetch.misses.coalescing import build_coalescing_key
from proxy.fetch.misses.read import Asker, Stage
from proxy.fetch.response import build_answer
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

    from protocol.primitives import Frame
    from proxy.fetch.misses.read import Read
    from proxy.fetch.record import FetchRecord
    from proxy.fetch.sessions.idle_partitions import IdlePartitions
    from proxy.net.response_order import Place
    from proxy.partitions.table import Partition


PROOF_WAIT_S = 0.1
"""Seconds to wait for the broker's confirmation of a partition before its disk is read regardless.

Applies to a partition of which nothing is known, or less than was acknowledged.
"""
LAST_TURN_S = 0.001
"""Seconds between the end of a patience and giving up. uvloop runs timers before it reads sockets
that became readable during a long callback; a second timer runs after these reads.
"""
TIMER_SLACK_S = 0.005
"""Seconds added to a repeated deadline timer: the event loop may run a timer a moment early."""


class DelayedFetch:
    """A Fetch that has not been answered yet.

    `done`: it was answered, forwarded or dropped. `held`: the partitions that it waits on.
    """

    __slots__ = (
        "_behind",
        "_deadline",
        "_frame",
        "_idle_partitions",
        "_impatient",
        "_leaving",
        "_parked_at",
        "_reads_timer",
        "_timer",
        "_urgent_timer",
        "done",
        "held",
        "record",
    )

    def __init__(
        self, record: FetchRecord, frame: Frame, idle_partitions: IdlePartitions | None
    ) -> None:
        """`idle_partitions` None: nothing is remembered of its partitions."""
        self.record = record
        self._frame = frame
        self._behind = record.link.last_ordinal
        self._deadline = record.fetch.received_at + max(record.request.max_wait_ms, 0) / 1000
        self._timer: asyncio.TimerHandle | None = None
        self._urgent_timer: asyncio.TimerHandle | None = None
        self._reads_timer: asyncio.TimerHandle | None = None
        self._impatient = False
        self._leaving = False
        self._idle_partitions = idle_partitions
        self._parked_at = -1.0  # when it entered the purgatory; -1.0 if it never did
        self.held: list[Partition] = []
        self.done = False

    @property
    def place(self) -> Place:
        """Its place in the response order."""
        return self.record.reply

    def start(self, statuses: list[PartitionStatus]) -> None:
        """Go on after the first evaluation, which gave `statuses`. If a right is missing for bytes
        that memory has, ask the broker first.
        """
        self._fenced(partial(self._start, statuses), self.record.fetch.received_at)

    def _start(self, statuses: list[PartitionStatus], now: float) -> None:
        fetch = self.record.fetch
        asked = [one.asked for one in statuses if one.reason == UNAUTHORIZED]
        unproven = find_unproven(fetch, asked, now) if asked else None
        if unproven:
            link, version = fetch.link, fetch.head.api_version
            link.handlers.authorization.prove(unproven, version, self._proven)
        else:
            self._go_on(statuses, now)

    def _proven(self, answered: bool) -> None:
        """Continue after the broker's answer about rights; `answered` is False if the connection
        was lost.
        """
        if not answered:
            self.drop()
            return
        self._fenced(self._evaluate, self._now())
        link, replies = self.record.link, self.record.link.replies
        is_called_away = replies.control and replies.oldest is self.record.reply
        if link.finishing or is_called_away:  # meanwhile; the Fetch was not in the purgatory yet
            self.leave()

    def wake(self, *_partitions: Partition) -> None:
        """Evaluate again, because partitions that this Fetch waits on have changed."""
        if not self.done:
            self._fenced(self._evaluate, self._now())

    def note_acknowledged(self, _partition: Partition) -> None:
        """Nothing: each evaluation asks for records that were acknowledged."""

    def evaluate_again(self) -> None:
        """Evaluate again: a miss fetch has ended or a partition has changed. No effect once done."""
        if not self.done:
            self._fenced(self._evaluate, self._now())

    def leave(self) -> None:
        """Answer now, with the bytes that are readable.

        Used when the process stops, when the client has finished sending, or when a request that
        must not wait stands behind this Fetch.
        """
        if not self.done:
            self._leaving = True
            now = self._now()
            self._deadline = min(self._deadline, now)
            self._fenced(self._evaluate, now)

    def drop(self) -> None:
        """End without an answer: the client has disconnected."""
        if not self.done:
            self._end()
            self.record.abandoned()

    def _fenced(self, act: Callable[[float], None], now: float) -> None:
        """Run `act(now)`. After an exception the broker gets the Fetch as it came, if nothing was
        sent for it yet.

        Every event of a Fetch goes through this function.
        """
        record = self.record
        link = record.link
        sent_count = link.sent_count
        try:
            act(now)
        except Exception:
            whole = partial(relay_whole, link, self._frame, record.reply)
            if not self.done:
                link.broker.attempt(self._end, "ending a Fetch")
            if record.fetch.repeated is not None:
                link.handlers.repeated.close()  # the response may have left it half changed
            link.broker.fall_back(link, sent_count, "looking at a Fetch", whole)

    # -- deciding ------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return self.record.link.broker.now()

    def _evaluate(self, now: float) -> None:
        """Evaluate all partitions, then answer, wait or forward."""
        self._go_on(self._evaluate_partitions(now), now)

    def _go_on(self, statuses: list[PartitionStatus], now: float) -> None:
        """Answer, wait or forward, as the statuses say."""
        if is_complete(self.record.fetch, statuses):
            self._drop_reads(statuses)
            self._answer(statuses, None)
            return
        view = self._build_view(statuses)
        if self.done:
            return
        if view is None:
            self._forward(statuses)
            return
        asking: Sequence[PartitionStatus] = ()
        if view.has_unconfirmed:
            asking = [
                one
                for one in statuses
                if one.state is UNCONFIRMED and not self._waits_at_tail(one, now)
            ]
        settled = not asking and not view.must_arrive
        is_late = now >= self._deadline
        outdated = is_late and is_outdated(view)
        if is_late and (asking or self._is_behind_own(view) or (outdated and self._impatient)):
            link = self.record.link
            # Confirm for the next Fetch: otherwise a client that never waits is never served.
            for one in asking:
                if one.partition is not None:
                    link.broker.replica_fetcher.ask(one.partition, link, one.asked)
            self._forward(statuses)
            return
        is_enough_here = is_late or is_enough(self.record.fetch, view, self._has_clean)
        may_leave = settled and not outdated and is_enough_here
        wait_end = float("-inf")
        if may_leave and not self._leaving:
            wait_end = find_wait_end(view, self.record.request, self._deadline)
        if may_leave and now >= wait_end:
            self._answer(view.statuses, view.reads)
        elif self._hold(view, asking, now):
            self._hurry(PROOF_WAIT_S if outdated else self._patience_s(view, asking))
            self._evaluate_at(wait_end, now)
        elif may_leave and view.is_here:
            self._answer(view.statuses, view.reads)
        else:
            self._forward(statuses)

    @property
    def _has_clean(self) -> bool:
        """True if it asks for partitions that are not evaluated, because nothing changed."""
        return self._idle_partitions is not None and self._idle_partitions.clean_count > 0

    def _evaluate_partitions(self, now: float) -> list[PartitionStatus]:
        """Return the status of each partition that is not known to be clean. Where memory does not serve the
        connection any more, the broker is to answer all of them.
        """
        if not self.record.link.use.serves:
            return skip_memory(self.record.fetch, ReadState.PASS, DISABLED)
        if self._idle_partitions is not None:
            statuses = self._idle_partitions.evaluate(now)
        else:
            statuses = evaluate_fetch(self.record.fetch, now)
        return [plan_given_up(status) for status in statuses] if self._impatient else statuses

    def _build_view(self, statuses: list[PartitionStatus]) -> View | None:
        """Return the view, with miss fetches begun where they were missing. None: forward the whole
        request.
        """
        for status in statuses:
            if status.state in NEEDS_BROKER:
                reads = self._find_reads(statuses)
                return None if reads is None else build_view(statuses, reads)
        self._drop_reads(statuses)
        return (
            build_view(statuses, (None,) * len(statuses)) if statuses or self._has_clean else None
        )

    def _drop_reads(self, statuses: Sequence[PartitionStatus]) -> None:
        """Drop the miss fetches of partitions that need none any more."""
        if self.record.link.handlers.reads.by_key:
            self.record.link.handlers.reads.drop_asked([status.asked for status in statuses], self)

    def _find_reads(self, statuses: list[PartitionStatus]) -> list[Read | None] | None:
        """Return the miss fetch of each status, begun where it was missing, or None for a status
        without one.

        None instead of a list: forward the whole request.
        """
        reads = self.record.link.handlers.reads
        if self.record.request.rack_id:
            return None
        missed = [status for status in statuses if status.state in NEEDS_BROKER]
        if any(reads.is_awaited(one.asked, self) for one in missed):
            return None
        kind = self.record.request.isolation_level, self.record.head.api_version
        found = {id(one): reads.find(one, *kind) for one in missed}
        if any(read is not None and read.stage is Stage.FAILED for read in found.values()):
            return None
        said = [read for read in found.values() if read is not None and read.stage is Stage.SAID]
        absent = [one for one in missed if found[id(one)] is None]
        is_all = len(absent) + len(said) == len(statuses) and not self._has_clean
        if is_all and not self._fetches_separately(missed):
            return None
        for one_said in said:
            reads.ask_again(one_said)
        if absent and not reads.begin(self._build_asker(), absent, self):
            return None
        for one in absent:
            found[id(one)] = reads.find(one, *kind)
        for read in found.values():
            if read is not None:
                read.attach(self)
        return [found.get(id(status)) for status in statuses]

    def _build_asker(self) -> Asker:
        head, request = self.record.head, self.record.request
        return Asker(head.api_version, head.client_id, request.max_bytes, request.isolation_level)

    def _fetches_separately(self, missed: Sequence[PartitionStatus]) -> bool:
        """Return True if a request of misses only is to use miss fetches, not to be forwarded
        whole.

        * All of it is history, and history may have to wait for its disk or has a catch-up
          connection.
        * Or another consumer is reading the same range.
        """
        link, request = self.record.link, self.record.request
        named = [one for one in missed if one.offsets_known]
        if not named or any(one.state is ReadState.MISS for one in missed if not one.offsets_known):
            return False
        if link.handlers.reads.fetches_separately and all(one.lagging for one in named):
            return True
        shared, version = link.broker.shared_reads, self.record.head.api_version
        keys = (build_coalescing_key(one, version, request.isolation_level) for one in named)
        return any(
            shared.find(key, one.asked.max_bytes) is not None
            for key, one in zip(keys, named, strict=True)
        )

    def _waits_at_tail(self, status: PartitionStatus, now: float) -> bool:
        """Return True if an unconfirmed partition may wait at the end of the log, and be named
        empty at max_wait.

        Such a partition waits while a Fetch of the replica fetcher that names it is open.
        """
        partition = status.partition
        committed = self.record.request.isolation_level == READ_COMMITTED
        if partition is None or not partition.is_at_end(status.asked.fetch_offset, committed):
            return False
        return now >= self._deadline or (
            partition.open_polls > 0 and not partition.leader_state.frozen
        )

    def _is_behind_own(self, view: View) -> bool:
        """Return True if the response would be empty although an earlier Produce of this connection
        is unanswered.
        """
        return self.record.link.answered_ordinal < self._behind and not view.is_here

    # -- waiting -------------------------------------------------------------------------------------------

    def _hold(self, view: View, asking: Sequence[PartitionStatus], now: float) -> bool:
        """Wait on every partition. Return False if that is impossible: Forebay cannot ask the
        broker, or too many Fetches wait.
        """
        link = self.record.link
        broker = link.broker
        if self._timer is None:
            if not broker.purgatory.park(link, self):
                return False
            self._parked_at = now
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(self._deadline - now, 0), self._expire)
            if self._idle_partitions is not None:
                self._idle_partitions.hold(self)
        self._register(
            [
                status.partition
                for status, read in zip(view.statuses, view.reads, strict=True)
                if read is None and status.partition is not None
            ]
        )
        for status in asking:
            assert status.partition is not None
            if not broker.replica_fetcher.ask(status.partition, link, status.asked):
                return False
        for partition in self.held:  # no generator: it would be entered for each
            if partition.open_polls:
                continue
            if not broker.replica_fetcher.cover(partition, link):
                return False
        return True

    def _register(self, partitions: list[Partition]) -> None:
        """Wait on exactly these partitions. A partition that was forgotten and is followed again is
        a new object.
        """
        if partitions == self.held:
            return
        for partition in self.held:
            partition.parked.pop(self, None)
        self.held = partitions
        for partition in partitions:
            partition.parked[self] = None

    def _patience_s(self, view: View, asking: Sequence[PartitionStatus]) -> float | None:
        """Return for how many seconds to wait for partitions in transit or unconfirmed; None: until
        max_wait.

        A partition of which nothing is known may be history, which the disk throttle delays in its
        turn. If that is possible and no hit waits for it, the broker's confirmation is worth the
        longer PROOF_WAIT_S.
        """
        if not asking and not view.has_in_transit:
            return None
        link = self.record.link
        is_new = all(
            one.partition is not None and not one.partition.leader_state.known for one in asking
        )
        holds_others = view.is_here or view.has_in_transit
        if asking and is_new and link.handlers.reads.fetches_separately and not holds_others:
            return PROOF_WAIT_S
        return link.broker.config.cache.hole_wait_s

    def _hurry(self, patience_s: float | None) -> None:
        """Treat partitions in transit as misses after `patience_s`, counted from the first such
        evaluation; None: cancel.
        """
        if patience_s is not None and self._urgent_timer is None:
            self._urgent_timer = asyncio.get_running_loop().call_later(
                patience_s, self._await_last_turn
            )
        elif patience_s is None and self._urgent_timer is not None:
            self._urgent_timer.cancel()
            self._urgent_timer = None

    def _evaluate_at(self, wait_end: float, now: float) -> None:
        """Evaluate again at `wait_end`, when readable bytes have waited long enough for miss
        fetches.
        """
        if wait_end > now and self._reads_timer is None:
            self._reads_timer = asyncio.get_running_loop().call_later(wait_end - now, self._waited)

    def _waited(self) -> None:
        self._reads_timer = None
        self.evaluate_again()

    def _expire(self) -> None:
        """Handle the end of max_wait, also if the timer ran a moment early."""
        self._deadline = min(self._deadline, self._now())
        self.evaluate_again()
        if not self.done:
            self._timer = asyncio.get_running_loop().call_later(
                GRACE_S + TIMER_SLACK_S, self._expire
            )

    def _await_last_turn(self) -> None:
        """Give up after the event loop has read its sockets once more."""
        self._urgent_timer = asyncio.get_running_loop().call_later(LAST_TURN_S, self._give_up)

    def _give_up(self) -> None:
        """Treat what has not arrived by now as a miss."""
        self._impatient = True
        self.evaluate_again()

    def _end(self) -> None:
        """Release all timers, waiters and miss fetches of this Fetch."""
        self.done = True  # first: after an exception below, this must not run again
        link = self.record.link
        for timer in (self._timer, self._urgent_timer, self._reads_timer):
            if timer is not None:
                timer.cancel()
        for partition in self.held:
            partition.parked.pop(self, None)
        if len(link.handlers.reads):
            link.handlers.reads.leave(self)
        if self._idle_partitions is not None and self._idle_partitions.fetch is self:
            self._idle_partitions.release()
        if self._timer is not None:
            self.record.waited_s = self._now() - self._parked_at
            link.broker.purgatory.unpark(link, self)
        self.held = []

    # -- leaving -------------------------------------------------------------------------------------------

    def _forward(self, statuses: list[PartitionStatus]) -> None:
        self._end()
        if self._idle_partitions is not None and self.record.link.use.serves:
            # forward all partitions, clean ones included
            now = self._now()
            statuses = [
                plan_given_up(one) if self._impatient else one
                for one in evaluate_fetch(self.record.fetch, now)
            ]
        waited = self._parked_at >= 0 or self._leaving
        max_wait_ms = max(0, round((self._deadline - self._now()) * 1000)) if waited else None
        forward_fetch(self.record, self._frame, statuses, max_wait_ms)

    def _answer(
        self, statuses: Sequence[PartitionStatus], reads: Sequence[Read | None] | None
    ) -> None:
        self._end()
        build_answer(self.record.fetch, statuses, reads, self.record, self._has_clean)
