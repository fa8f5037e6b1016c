"""Misses that wait for their disk: one ticket each, kept by connection, partition and offset.

Owns: tickets (throttle/tickets.py) from `submit` until they are granted or cancelled, and the bounds on them.
Must not know: how busy a disk is or why (`set_disk` says), what is done with a grant. Invariants:
* a ticket is granted exactly once, or cancelled: in its turn within the disk's rate, or past `max_delay_s`
  (overdue); both are charged in full, and corrected by `done`.
* a disk that is not busy grants at once, up to `surge_s` of its rate between two looks at it: more than that
  and it counts as busy until it is looked at again. A disk that is not known never delays (fail open).
* what is on its way from a disk at once is bounded, whether it is busy or not; overdue tickets go regardless.
* waiting requests and bytes are bounded per disk: one disk's laggards leave the others their room.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from throttle.budget import FairShare, TokenBucket
from throttle.tickets import (
    DelayRefused,
    DelayRule,
    DelayStatistics,
    DelayTicket,
    DiskQueueStatistics,
    TicketKey,
)
from throttle.timing_wheel import Timer, TimingWheel

if TYPE_CHECKING:
    from collections.abc import Hashable


class _DiskQueue:
    """One disk's waiting tickets, its budget, and what was said last about it."""

    __slots__ = (
        "allowance_bytes",
        "bucket",
        "counts",
        "known",
        "reading",
        "reading_bytes",
        "share",
        "waited",
    )

    def __init__(self, rule: DelayRule, rate_bytes_s: float, now_s: float) -> None:
        self.bucket = TokenBucket(rate_bytes_s, rule.burst_s, rule.burst_floor_bytes, now_s)
        self.share: FairShare[DelayTicket] = FairShare(rule.fair)
        self.counts = DiskQueueStatistics()
        self.reading: OrderedDict[DelayTicket, None] = (
            OrderedDict()
        )  # on their way, the oldest first
        self.reading_bytes = 0
        self.allowance_bytes = 0.0
        self.known = True
        self.waited = False  # somebody did, since the last look at the disk

    def look(self, busy: bool, rate_bytes_s: float, surge_s: float, now_s: float) -> None:
        """The disk was looked at. `surge_s` of the rate may go at once while it is idle."""
        self.known = True
        self.bucket.set_rate(rate_bytes_s, now_s)
        if not busy:
            self.bucket.forgive(0)  # what was overdrawn has done no harm
        elif not self.counts.busy:
            self.bucket.forgive(
                self.counts.in_flight_bytes
            )  # only what is still to be read can do more
        self.allowance_bytes = 0.0 if busy else rate_bytes_s * surge_s
        self.counts.look(busy, rate_bytes_s)
        self.waited = False

    def set_rule(self, rule: DelayRule) -> None:
        """Other bounds of the budget, and other weights."""
        self.bucket.set_burst(rule.burst_s, rule.burst_floor_bytes)
        self.share.set_rule(rule.fair)

    def set_rate(self, rate_bytes_s: float, now_s: float) -> None:
        """Another rate between two looks at the disk."""
        self.bucket.set_rate(rate_bytes_s, now_s)
        self.counts.look(self.counts.busy, rate_bytes_s)

    def close(self) -> None:
        """The disk is not known any more: nothing is delayed for it."""
        self.known = False
        self.counts.look(False, self.counts.rate_bytes_s)

    def delay(self) -> None:
        """A ticket has to wait."""
        self.waited = True

    def grant(self, ticket: DelayTicket) -> None:
        """It is on its way, and charged."""
        self.bucket.charge(ticket.size_bytes)
        self.reading[ticket] = None
        self.reading_bytes += ticket.size_bytes
        self.counts.grant(ticket.size_bytes, ticket.delay_s)

    def arrived(self, ticket: DelayTicket) -> None:
        """It is no longer on its way."""
        del self.reading[ticket]
        self.reading_bytes -= ticket.size_bytes

    def free_at_s(self, ticket: DelayTicket, rule: DelayRule, now_s: float) -> float:
        """When there is room for one more on its way, if none of them arrives before."""
        while self.reading:
            oldest = next(iter(self.reading))
            if oldest.granted_s + rule.late_s > now_s:
                room_bytes = self.bucket.rate_bytes_s * rule.in_flight_s
                full = self.reading_bytes + ticket.size_bytes > room_bytes
                return oldest.granted_s + rule.late_s if full else now_s
            self.arrived(oldest)
        return now_s


class DelayedQueue:
    """The tickets of all disks. Call `advance` at `next_due_s`, and after `set_disk`, `drop_disk` and `done`."""

    def __init__(self, rule: DelayRule, now_s: float) -> None:
        self._rule = rule
        self._queues: dict[str, _DiskQueue] = {}
        self._wheel: TimingWheel[DelayTicket] = TimingWheel(now_s, rule.tick_s)
        self._timers: dict[DelayTicket, Timer[DelayTicket]] = {}
        self._waiting: dict[TicketKey, DelayTicket] = {}
        self._by_connection: dict[Hashable, dict[TicketKey, DelayTicket]] = {}
        self._ungated = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def set_rule(self, rule: DelayRule) -> None:
        """Take other bounds and weights. What waits beyond a new bound keeps waiting, until the deadline that it
        was given; only further misses are refused. `tick_s` stays as it was at construction.
        """
        self._rule = rule
        for queue in self._queues.values():
            queue.set_rule(rule)

    def set_rate(self, disk: str, rate_bytes_s: float, now_s: float) -> None:
        """Another rate of a disk, though nothing was shown of it; no effect on one that is not known."""
        queue = self._queues.get(disk)
        if queue is not None:
            queue.set_rate(rate_bytes_s, now_s)

    def has_waited(self, disk: str) -> bool:
        """Whether a miss has waited for the disk since `set_disk` was called last."""
        queue = self._queues.get(disk)
        return queue is not None and (queue.waited or len(queue.share) > 0)

    def set_disk(self, disk: str, busy: bool, rate_bytes_s: float, now_s: float) -> None:
        """What a look at the disk has shown."""
        queue = self._queues.get(disk)
        if queue is None:
            queue = self._queues[disk] = _DiskQueue(self._rule, rate_bytes_s, now_s)
        queue.look(busy, rate_bytes_s, self._rule.surge_s, now_s)

    def drop_disk(self, disk: str) -> None:
        """It is not known any more: nothing is delayed for it, and `advance` grants what waits."""
        queue = self._queues.get(disk)
        if queue is not None:
            queue.close()

    def submit(
        self, key: TicketKey, client_id: str, disk: str | None, size_bytes: int, now_s: float
    ) -> DelayTicket | DelayRefused:
        """A miss of about `size_bytes`: a ticket, granted already or waiting; the one that waits by this key
        if there is one. ValueError: a negative size.
        """
        if size_bytes < 0:
            raise ValueError("a size is not negative")
        known = self._waiting.get(key)
        if known is not None:
            return known
        queue = self._queues.get(disk) if disk is not None else None
        if queue is None or not queue.known:
            self._ungated += 1
            return DelayTicket.build_free(key, client_id, size_bytes, now_s)
        bound = queue.counts.find_bound(size_bytes, self._rule)
        if bound is not None:
            return DelayRefused(bound)
        ticket = DelayTicket(key, client_id, disk, size_bytes, now_s)
        self._enter(queue, ticket)
        if self._grant_turns(queue, now_s, only=ticket):
            return ticket
        self._timers[ticket] = self._wheel.schedule(now_s + self._rule.max_delay_s, ticket)
        queue.delay()
        return ticket

    def find(self, key: TicketKey) -> DelayTicket | None:
        """The ticket that waits by this key."""
        return self._waiting.get(key)

    def of_connection(self, connection: Hashable) -> tuple[DelayTicket, ...]:
        """What waits of a connection."""
        return tuple(self._by_connection.get(connection, {}).values())

    def cancel(self, ticket: DelayTicket) -> bool:
        """Nobody wants it any more. Whether it was waiting; one that was granted is done, with 0 bytes."""
        if self._waiting.get(ticket.key) is not ticket:
            self.done(ticket, 0)
            return False
        queue = self._queues[ticket.disk or ""]
        queue.share.remove(ticket)
        self._leave(queue, ticket)
        ticket.cancel()
        queue.counts.cancel()
        return True

    def cancel_connection(self, connection: Hashable) -> int:
        """It has closed. How many were waiting."""
        return sum(self.cancel(ticket) for ticket in self.of_connection(connection))

    def done(self, ticket: DelayTicket, actual_bytes: int) -> None:
        """A granted miss was answered with so many bytes: the charge is corrected. The second time, nothing."""
        if not ticket.granted or ticket.finished:
            return
        ticket.finish()
        queue = self._queues.get(ticket.disk or "")
        if queue is not None:
            if ticket in queue.reading:
                queue.arrived(ticket)
            queue.bucket.charge(actual_bytes - ticket.size_bytes)
            queue.share.charge(ticket.client_id, actual_bytes - ticket.size_bytes)
            queue.counts.finish(ticket.size_bytes, actual_bytes)

    def advance(self, now_s: float) -> list[DelayTicket]:
        """What may go now: first what is overdue, then each disk's in their turns."""
        found = []
        for ticket in self._wheel.advance(now_s):
            ticket.expire()
            queue = self._queues[ticket.disk or ""]
            queue.counts.expire()
            found.append(self._grant(queue, ticket, now_s))
        for queue in self._queues.values():
            found += self._grant_turns(queue, now_s)
        return found

    def next_due_s(self, now_s: float) -> float | None:
        """When `advance` will have something to do (a far deadline may wake it for nothing); None: nothing
        waits.
        """
        moments = (
            [] if (deadline_s := self._wheel.next_due_s()) is None else [max(now_s, deadline_s)]
        )
        for queue in self._queues.values():
            ticket = queue.share.peek()
            if ticket is not None:
                moments.append(self._ready_at_s(queue, ticket, now_s))
        return min(moments, default=None)

    def done_bytes(self, disk: str) -> int:
        """Bytes of misses that were answered, all time."""
        queue = self._queues.get(disk)
        return queue.counts.done_bytes if queue is not None else 0

    def statistics(self) -> DelayStatistics:
        queues = {disk: replace(queue.counts) for disk, queue in self._queues.items()}
        return DelayStatistics(queues, self._ungated, len(self._wheel))

    def _ready_at_s(self, queue: _DiskQueue, ticket: DelayTicket, now_s: float) -> float:
        if not queue.known:
            return now_s
        free_at_s = queue.free_at_s(ticket, self._rule, now_s)
        return max(
            free_at_s, queue.bucket.ready_at_s(ticket.size_bytes, queue.allowance_bytes, now_s)
        )

    def _grant_turns(
        self, queue: _DiskQueue, now_s: float, only: DelayTicket | None = None
    ) -> list[DelayTicket]:
        """Grants in turn while the budget lasts. With `only`, nothing before or behind that ticket."""
        found = []
        while (ticket := queue.share.peek()) is not None and (only is None or ticket is only):
            if self._ready_at_s(queue, ticket, now_s) > now_s:
                break
            found.append(self._grant(queue, ticket, now_s))
        return found

    def _grant(self, queue: _DiskQueue, ticket: DelayTicket, now_s: float) -> DelayTicket:
        queue.share.take(ticket)
        self._leave(queue, ticket)
        ticket.grant(now_s)
        queue.grant(ticket)
        return ticket

    def _enter(self, queue: _DiskQueue, ticket: DelayTicket) -> None:
        queue.share.add(ticket.client_id, ticket, ticket.size_bytes)
        queue.counts.enter(ticket.size_bytes)
        self._waiting[ticket.key] = ticket
        self._by_connection.setdefault(ticket.key.connection, {})[ticket.key] = ticket

    def _leave(self, queue: _DiskQueue, ticket: DelayTicket) -> None:
        queue.counts.leave(ticket.size_bytes)
        del self._waiting[ticket.key]
        kept = self._by_connection[ticket.key.connection]
        del kept[ticket.key]
        if not kept:
            del self._by_connection[ticket.key.connection]
        timer = self._timers.pop(ticket, None)
        if timer is not None:
            self._wheel.cancel(timer)
