"""Laggards on a model disk behind a real `Throttle`: what the controller's tests and plots run.

Owns: the clients' behaviour and the clock. Each laggard has one miss at a time and asks again when it was
answered. Must not know: how the throttle decides. Invariant: time is simulated; the same arguments give the
same run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from tests.kit.model_disk import NAME, ModelDisk
from throttle.disks import NO_LIMIT, DiskLimit
from throttle.throttle import Throttle, ThrottleRules
from throttle.tickets import DelayRefused, DelayTicket, TicketKey

STEP_S = 0.02
LOOK_S = 1.0
MISS_BYTES = 1 << 20


@dataclass
class Run:
    """Look by look: time, load, rate, miss bytes/s, limit in use (bytes/s; 0: none). `served`: bytes by client."""

    at_s: list[float] = field(default_factory=list)
    load: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    misses: list[float] = field(default_factory=list)
    limit: list[float] = field(default_factory=list)
    served: Counter[str] = field(default_factory=Counter)
    served_at: list[Counter[str]] = field(default_factory=list)

    def mean_load(self, from_s: float, until_s: float) -> float:
        found = [
            load
            for at_s, load in zip(self.at_s, self.load, strict=True)
            if from_s < at_s <= until_s
        ]
        return sum(found) / len(found)

    def settled_s(
        self, from_s: float, target: float, within: float = 0.05, window_s: float = 10.0
    ) -> float:
        """How long after `from_s` the first window begins from which on every 10 s mean is within 5 points."""
        starts = [at_s for at_s in self.at_s if from_s <= at_s <= self.at_s[-1] - window_s]
        settled = starts[-1] + window_s
        for at_s in reversed(starts):
            if abs(self.mean_load(at_s, at_s + window_s) - target) > within:
                break
            settled = at_s
        return settled - from_s

    def swings(self, from_s: float, target: float, beyond: float = 0.05) -> int:
        """How often the load went from one side of the target to the other, further than `beyond`."""
        sides = [
            1 if load > target else -1
            for at_s, load in zip(self.at_s, self.load, strict=True)
            if at_s > from_s and abs(load - target) > beyond
        ]
        return sum(one != other for one, other in pairwise(sides))


Event = Callable[["Simulation"], None]


class Simulation:
    """`laggards` clients named laggard-0 ...; `think_s` between an answer and the next request; `limit`: the
    disk's, as the configuration names it.
    """

    def __init__(
        self,
        disk: ModelDisk,
        rules: ThrottleRules,
        laggards: int = 8,
        think_s: float = 0.02,
        look_s: float = LOOK_S,
        limit: DiskLimit = NO_LIMIT,
    ) -> None:
        self.disk, self.rules, self.think_s, self.look_s = disk, rules, think_s, look_s
        self.throttle = Throttle(rules, [NAME], 0.0, {NAME: limit})
        self.laggards = laggards
        self.now_s = 0.0
        self.run = Run()
        self._asks: list[tuple[float, int]] = [(0.0, client) for client in range(laggards)]
        self._clients = laggards
        self._offset = 0
        self._read_before = 0.0
        self._next_look_s = look_s
        self.throttle.observe(NAME, disk.counters(), None, 0.0)

    def set_laggards(self, laggards: int) -> None:
        """More of them ask from now on; fewer: the others stop after the answer that they wait for."""
        self._asks += [(self.now_s, client) for client in range(self._clients, laggards)]
        self.laggards, self._clients = laggards, max(self._clients, laggards)

    def play(self, until_s: float, events: dict[float, Event] | None = None) -> Run:
        events = dict(events or {})
        while self.now_s < until_s:
            for at_s in [at_s for at_s in events if at_s <= self.now_s]:
                events.pop(at_s)(self)
            self._step()
        return self.run

    def _step(self) -> None:
        self.now_s = round(self.now_s + STEP_S, 6)
        for item in self.disk.step(STEP_S):
            assert isinstance(item, DelayTicket)
            self._answered(item)
        due, self._asks = (
            [a for a in self._asks if a[0] <= self.now_s],
            [a for a in self._asks if a[0] > self.now_s],
        )
        for _, client in due:
            if client < self.laggards:
                self._ask(client)
            else:
                self._clients = min(self._clients, client)
        if self.now_s >= self._next_look_s:
            self._next_look_s += self.look_s
            self._look()
        for ticket in self.throttle.advance(self.now_s):
            self.disk.read(ticket.size_bytes, ticket)

    def _ask(self, client: int) -> None:
        self._offset += 1
        key = TicketKey(client, "topic-0", self._offset)
        ticket = self.throttle.submit(key, f"laggard-{client}", NAME, MISS_BYTES, self.now_s)
        assert not isinstance(ticket, DelayRefused)
        if ticket.granted:
            self.disk.read(ticket.size_bytes, ticket)

    def _answered(self, ticket: DelayTicket) -> None:
        self.throttle.done(ticket, ticket.size_bytes)
        self.run.served[ticket.client_id] += ticket.size_bytes
        self._asks.append((self.now_s + self.think_s, int(ticket.client_id.split("-")[1])))

    def _look(self) -> None:
        sample = self.throttle.observe(NAME, self.disk.counters(), None, self.now_s)
        assert sample is not None
        run, served = self.run, sum(self.run.served.values())
        run.at_s.append(self.now_s)
        run.load.append(sample.load)
        state = self.throttle.statistics().disks[NAME]
        run.rate.append(state.controller.rate_bytes_s)
        run.limit.append(state.limit.bytes_s)
        run.misses.append((served - self._read_before) / self.look_s)
        run.served_at.append(Counter(run.served))
        self._read_before = served
