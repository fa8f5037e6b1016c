"""The throttle as the proxy sees it: looks at disks in, misses in, grants out.

Owns: per disk, one gauge, one recognition of a limit and one controller; the delayed queue; which disks are
known. Must not know: files, clocks, who sends what. Invariants:
* fails open: a disk that is not sampled, has vanished, or was not looked at for `stale_s` delays nothing, and
  `statistics` says so.
* the order of a look: gauge, recognition of a limit, controller (unless a probe is on), queue; then the caller calls
  `advance`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from throttle.controller import Controller, ControllerRule, ControllerStatistics
from throttle.delayed_queue import DelayedQueue
from throttle.disks import (
    NO_LIMIT,
    BusyRule,
    DiskCounters,
    DiskGauge,
    DiskLimit,
    DiskSample,
    Pressure,
)
from throttle.limit_recognition import LimitRecognition, ProbeResult
from throttle.tickets import DelayRefused, DelayRule, DelayTicket, DiskQueueStatistics, TicketKey

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping


@dataclass(frozen=True, slots=True)
class ThrottleRules:
    """All of it. `stale_s`: a disk that was not looked at for so long is not known any more."""

    busy: BusyRule = field(default_factory=BusyRule)
    controller: ControllerRule = field(default_factory=ControllerRule)
    queue: DelayRule = field(default_factory=DelayRule)
    stale_s: float = 10.0


@dataclass(frozen=True, slots=True)
class DiskStatistics:
    """`sampled`: misses of this disk can be delayed. `missed_looks`: looks that found no such disk. `target` and
    `floor_bytes_s` are the rule's (`ControllerRule`). `limit`: in use now. `probes`: for a limit, by result.
    """

    sampled: bool
    target: float
    floor_bytes_s: float
    limit: DiskLimit
    probes: Mapping[ProbeResult, int]
    looks: int
    missed_looks: int
    stale: int
    resets: int
    sample: DiskSample | None
    controller: ControllerStatistics
    queue: DiskQueueStatistics


@dataclass(frozen=True, slots=True)
class ThrottleStatistics:
    """`ungated`: misses that were granted at once because their disk is not known, or is not sampled."""

    disks: dict[str, DiskStatistics]
    waiting_requests: int
    waiting_bytes: int
    ungated: int
    deadlines: int


class _SampledDisk:
    __slots__ = (
        "controller",
        "done_bytes",
        "gauge",
        "looked_s",
        "looks",
        "missed_looks",
        "named",
        "recognition",
        "sampled",
        "stale",
    )

    def __init__(self, rules: ThrottleRules, limit: DiskLimit, now_s: float) -> None:
        self.gauge = DiskGauge(rules.busy)
        self.gauge.set_limit(limit)
        self.named = limit
        self.recognition = LimitRecognition(rules.controller.target)
        self.controller = Controller(rules.controller, now_s)
        self.sampled = False
        self.looked_s = now_s
        self.looks = self.missed_looks = self.stale = self.done_bytes = 0

    @property
    def limit(self) -> DiskLimit:
        """The limit in use."""
        return self.named if self.named.source else self.recognition.limit

    def set_rules(self, rules: ThrottleRules) -> None:
        """Judge the disk, and steer its rate, by other rules."""
        self.gauge.set_rule(rules.busy)
        self.recognition.set_target(rules.controller.target)
        self.controller.set_rule(rules.controller)

    def steer(self, sample: DiskSample, miss_bytes: int, waited: bool, now_s: float) -> float:
        """What misses are allowed from now on, in bytes/s: the controller's rate, or that of a probe for the limit of a
        disk for which none is named.
        """
        if not self.named.source:
            self.recognition.observe(sample, miss_bytes, waited, now_s)
            self.gauge.set_limit(self.recognition.limit)
            if self.recognition.probe_bytes_s:
                self.controller.skip(now_s)
                return self.recognition.probe_bytes_s
        return self.controller.observe(sample, miss_bytes, waited, now_s)

    def note_sample(self, done_bytes: int, now_s: float) -> None:
        """It was looked at. `done_bytes` of misses were answered by then, all time."""
        self.sampled, self.looked_s, self.done_bytes = True, now_s, done_bytes
        self.looks += 1

    def close(self, is_missing: bool) -> None:
        """Its sample is void: the disk was not found (`is_missing`), or is too old."""
        if is_missing:
            self.missed_looks += 1
        else:
            self.stale += 1
        self.sampled = False
        self.gauge.forget()
        self.recognition.forget()
        self.gauge.set_limit(self.limit)


class Throttle:
    """`disks` are the names that misses may be of, beside those of `add_disk`; others are never delayed. `limits`: what
    the configuration names of them, by disk.
    """

    def __init__(
        self,
        rules: ThrottleRules,
        disks: Iterable[str],
        now_s: float,
        limits: Mapping[str, DiskLimit] = MappingProxyType({}),
    ) -> None:
        self._rules = rules
        self._disks = {
            name: _SampledDisk(rules, limits.get(name, NO_LIMIT), now_s) for name in disks
        }
        self._queue = DelayedQueue(rules.queue, now_s)

    def add_disk(self, name: str, limit: DiskLimit, now_s: float) -> None:
        """One more disk that misses may be of; one that is there already stays as it is."""
        if name not in self._disks:
            self._disks[name] = _SampledDisk(self._rules, limit, now_s)

    def observe(
        self, name: str, counters: DiskCounters | None, pressure: Pressure | None, now_s: float
    ) -> DiskSample | None:
        """A look at a disk; `counters` None if it was not found. Call `advance` after it. KeyError: no such
        disk was named.
        """
        disk = self._disks[name]
        if counters is None:
            self._forget_sample(name, is_missing=True)
            return None
        done_bytes = self._queue.done_bytes(name)
        sample = disk.gauge.observe(counters, pressure, now_s)
        miss_bytes, waited = done_bytes - disk.done_bytes, self._queue.has_waited(name)
        rate = disk.steer(sample, miss_bytes, waited, now_s)
        self._queue.set_disk(name, sample.busy, rate, now_s)
        disk.note_sample(done_bytes, now_s)
        return sample

    def set_rules(self, rules: ThrottleRules, now_s: float) -> None:
        """Take other rules; call `advance` next. What was learnt of the disks stays, and what waits keeps its place."""
        self._rules = rules
        self._queue.set_rule(rules.queue)
        for name, disk in self._disks.items():
            disk.set_rules(rules)
            self._queue.set_rate(name, disk.controller.rate_bytes_s, now_s)

    def forget_samples(self) -> None:
        """The disks are looked at no more: nothing is delayed, and `advance` grants what waits."""
        for name, disk in self._disks.items():
            if disk.sampled:
                self._forget_sample(name, is_missing=False)

    def submit(
        self, key: TicketKey, client_id: str, disk: str | None, size_bytes: int, now_s: float
    ) -> DelayTicket | DelayRefused:
        """A miss of at most `size_bytes` (`DelayedQueue.submit`). `Ticket.granted`: it may go now."""
        return self._queue.submit(key, client_id, disk, size_bytes, now_s)

    def find(self, key: TicketKey) -> DelayTicket | None:
        """The ticket that waits by this key."""
        return self._queue.find(key)

    def of_connection(self, connection: Hashable) -> tuple[DelayTicket, ...]:
        """What waits of a connection."""
        return self._queue.of_connection(connection)

    def cancel(self, ticket: DelayTicket) -> bool:
        """Nobody wants it any more. Whether it was waiting."""
        return self._queue.cancel(ticket)

    def cancel_connection(self, connection: Hashable) -> int:
        """It has closed. How many were waiting."""
        return self._queue.cancel_connection(connection)

    def done(self, ticket: DelayTicket, actual_bytes: int) -> None:
        """A granted miss was answered with so many bytes of records (0 if it failed). Once for each grant."""
        self._queue.done(ticket, actual_bytes)

    def advance(self, now_s: float) -> list[DelayTicket]:
        """What may go now: at `next_due_s`, and after `observe`."""
        for name, disk in self._disks.items():
            if disk.sampled and now_s - disk.looked_s >= self._rules.stale_s:
                self._forget_sample(name, is_missing=False)
        return self._queue.advance(now_s)

    def next_due_s(self, now_s: float) -> float | None:
        """When `advance` will have something to do, if nothing else happens; None: nothing waits."""
        due_s = self._queue.next_due_s(now_s)
        if due_s is None:
            return None
        stale_s = [
            disk.looked_s + self._rules.stale_s for disk in self._disks.values() if disk.sampled
        ]
        return max(now_s, min([due_s, *stale_s]))

    def statistics(self) -> ThrottleStatistics:
        """Counts and states of every disk that was named; copies."""
        queue = self._queue.statistics()
        disks = {
            name: DiskStatistics(
                sampled=disk.sampled,
                target=self._rules.controller.target,
                floor_bytes_s=self._rules.controller.floor_bytes_s,
                limit=disk.limit,
                probes={one: disk.recognition.probes[one] for one in ProbeResult},
                looks=disk.looks,
                missed_looks=disk.missed_looks,
                stale=disk.stale,
                resets=disk.gauge.resets,
                sample=disk.gauge.last,
                controller=disk.controller.statistics(),
                queue=queue.by_disk.get(name, DiskQueueStatistics()),
            )
            for name, disk in self._disks.items()
        }
        waiting = [disk.queue for disk in disks.values()]
        return ThrottleStatistics(
            disks,
            sum(counts.waiting_requests for counts in waiting),
            sum(counts.waiting_bytes for counts in waiting),
            queue.ungated,
            queue.deadlines,
        )

    def _forget_sample(self, name: str, is_missing: bool) -> None:
        self._disks[name].close(is_missing)
        self._queue.drop_disk(name)
