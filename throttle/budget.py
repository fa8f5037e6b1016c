"""Who may send the next miss to a disk, and when: a token bucket fed by the controller's rate, and a deficit
round-robin between clients.

Owns: the bucket (bytes that may go now) and the order between clients. Must not know: disks, deadlines, where
the rate comes from. Invariants:
* all that is granted is paid: over any time T at most capacity + rate x T bytes are granted, plus what the
  last request was larger than the bucket: such a request passes a full bucket and leaves a debt.
* every client gets its quantum times its weight once a round, and keeps what it did not use for one round: a
  client with one request at a time has its share of bytes, not of turns.
* a grant costs O(1) turns, plus one for each quantum its request is larger than.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

T = TypeVar("T", bound="Hashable")

ROUNDING_BYTES = 1.0
"""What floating point may lose between `ready_at_s` and the refill at that moment."""
LEAST_WEIGHT, MOST_WEIGHT = 0.01, 100.0


class TokenBucket:
    """Bytes that may go now: at most `rate_bytes_s` x `burst_s`, never less than `burst_floor_bytes`."""

    __slots__ = ("_burst_s", "_floor_bytes", "_refilled_s", "_tokens", "rate_bytes_s")

    def __init__(
        self, rate_bytes_s: float, burst_s: float, burst_floor_bytes: int, now_s: float
    ) -> None:
        self.rate_bytes_s = rate_bytes_s
        self._burst_s, self._floor_bytes = burst_s, burst_floor_bytes
        self._refilled_s = now_s
        self._tokens = self.capacity_bytes

    @property
    def capacity_bytes(self) -> float:
        return max(self.rate_bytes_s * self._burst_s, float(self._floor_bytes))

    def refill(self, now_s: float) -> float:
        """What is in it now; below 0 is a debt."""
        grown = self._tokens + max(0.0, now_s - self._refilled_s) * self.rate_bytes_s
        self._tokens = min(grown, self.capacity_bytes)
        self._refilled_s = max(now_s, self._refilled_s)
        return self._tokens

    def set_burst(self, burst_s: float, burst_floor_bytes: int) -> None:
        """Hold at most so much from now on."""
        self._burst_s, self._floor_bytes = burst_s, burst_floor_bytes
        self._tokens = min(self._tokens, self.capacity_bytes)

    def set_rate(self, rate_bytes_s: float, now_s: float) -> None:
        """From now on; what was earned at the old rate stays, up to the new capacity."""
        self.refill(now_s)
        self.rate_bytes_s = rate_bytes_s
        self._tokens = min(self._tokens, self.capacity_bytes)

    def need_bytes(self, size_bytes: int) -> float:
        """What must be in it for a request of this size: the size, or a full bucket."""
        return min(float(size_bytes), self.capacity_bytes)

    def charge(self, size_bytes: float) -> None:
        """Takes it, down to a debt. A negative size gives back; at most until full."""
        self._tokens = min(self._tokens - size_bytes, self.capacity_bytes)

    def forgive(self, kept_bytes: float) -> None:
        """Of a debt no more than this remains."""
        self._tokens = max(self._tokens, -kept_bytes)

    def ready_at_s(self, size_bytes: int, allowance_bytes: float, now_s: float) -> float:
        """When a request of this size may pass; `now_s` if now. `allowance_bytes` of debt are no obstacle."""
        lacking = self.need_bytes(size_bytes) - self.refill(now_s) - allowance_bytes
        if lacking <= ROUNDING_BYTES:
            return now_s
        return now_s + lacking / self.rate_bytes_s if self.rate_bytes_s > 0 else float("inf")


@dataclass(frozen=True, slots=True)
class FairRule:
    """How bytes are shared. `weights` is a table of (client id pattern as of fnmatch, weight), the first that
    matches counts, 1 where none does; weights lie in [0.01, 100].

    `quantum_bytes`: what a client of weight 1 may send in one turn; the largest usual request. `idle_clients`
    that wait for nothing are remembered, for what they did not use or overdrew.
    """

    weights: tuple[tuple[str, float], ...] = ()
    quantum_bytes: int = 1 << 20
    idle_clients: int = 10_000

    def __post_init__(self) -> None:
        if any(not LEAST_WEIGHT <= weight <= MOST_WEIGHT for _, weight in self.weights):
            raise ValueError(f"a weight lies in [{LEAST_WEIGHT}, {MOST_WEIGHT}]")
        if self.quantum_bytes < 1 or self.idle_clients < 1:
            raise ValueError("quantum_bytes and idle_clients are at least 1")

    def weight_of(self, client_id: str) -> float:
        return next(
            (weight for pattern, weight in self.weights if fnmatchcase(client_id, pattern)), 1.0
        )


class _Client(Generic[T]):
    """A client's requests in order (`waiting`: request to bytes), and what it may still send this round."""

    __slots__ = ("allotment", "credit", "round", "waiting")

    def __init__(self, allotment: float) -> None:
        self.allotment = allotment  # bytes a round
        self.credit = 0.0
        self.round = -1  # the last in which it was given its allotment
        self.waiting: OrderedDict[T, int] = OrderedDict()

    def pay(self, request: T) -> None:
        """Its request is granted."""
        self.credit -= self.waiting.pop(request)

    def reweigh(self, allotment: float) -> None:
        """It gets another allotment from its next round on; what it saved is at most that."""
        self.allotment = allotment
        self.credit = min(self.credit, allotment)

    def correct(self, size_bytes: float) -> None:
        """It has paid `size_bytes` too little; below 0 it gets back at most one round's allotment."""
        self.credit = min(self.credit - size_bytes, max(self.allotment, self.credit))

    def allot(self, number: int) -> None:
        """Its allotment, once in the round of this number."""
        if self.round != number:
            self.round = number
            self.credit += self.allotment

    def forfeit(self, number: int) -> None:
        """It returns in the round of this number: what it had left of an earlier round than the last is gone."""
        self.credit = min(self.credit, self.allotment if self.round >= number - 1 else 0.0)


class FairShare(Generic[T]):
    """Requests (any hashable, each once) of many clients, and whose turn it is."""

    def __init__(self, rule: FairRule) -> None:
        self._rule = rule
        self._active: dict[str, _Client[T]] = {}
        self._idle: OrderedDict[str, _Client[T]] = OrderedDict()
        self._owners: dict[T, str] = {}
        self._now: deque[str] = deque()  # who still has a turn in this round
        self._next: deque[str] = deque()  # who waits for the next round
        self._round = 0
        self.turns = 0  # looks at a client, all time: the whole work

    def __len__(self) -> int:
        return len(self._owners)

    def add(self, client_id: str, request: T, size_bytes: int) -> None:
        """At the end of its client's requests. ValueError: it waits already."""
        if request in self._owners:
            raise ValueError("waits already")
        self._owners[request] = client_id
        client = self._active.get(client_id)
        if client is None:
            client = self._active[client_id] = self._recall(client_id)
            if client.credit >= size_bytes:
                self._now.appendleft(client_id)  # its turn goes on, if it was not gone for too long
            else:
                (self._next if client.round == self._round else self._now).append(client_id)
        client.waiting[request] = size_bytes

    def set_rule(self, rule: FairRule) -> None:
        """Share by other weights from now on. What waits keeps its place, and what was overdrawn is still owed."""
        self._rule = rule
        for clients in (self._active, self._idle):
            for client_id, client in clients.items():
                client.reweigh(rule.weight_of(client_id) * rule.quantum_bytes)

    def remove(self, request: T) -> bool:
        """Whether it was waiting, and is not any more. Its client's turn is taken back when that comes."""
        client_id = self._owners.pop(request, None)
        if client_id is None:
            return False
        del self._active[client_id].waiting[request]
        if not self._owners:
            for one in (*self._now, *self._next):
                self._retire(one)
            self._now.clear()
            self._next.clear()
        return True

    def peek(self) -> T | None:
        """Whose turn it is; None if nothing waits. The same until one is added, taken or removed."""
        while self._owners:
            if not self._now:
                self._now, self._next = self._next, self._now
                self._round += 1
            self.turns += 1
            client_id = self._now[0]
            client = self._active[client_id]
            if not client.waiting:
                self._now.popleft()
                self._retire(client_id)
                continue
            client.allot(self._round)
            request, size_bytes = next(iter(client.waiting.items()))
            if size_bytes <= client.credit:
                return request
            self._now.popleft()
            self._next.append(client_id)
        return None

    def take(self, request: T) -> None:
        """Grants it, in its turn or (too late for that) out of it: its client pays in either case."""
        client_id = self._owners.pop(request)
        client = self._active[client_id]
        client.pay(request)
        if not client.waiting and self._now and self._now[0] == client_id:
            self._now.popleft()
            self._retire(client_id)

    def charge(self, client_id: str, size_bytes: float) -> None:
        """Corrects what a client has paid; a negative size gives back, up to one round's allotment."""
        client = self._active.get(client_id) or self._idle.get(client_id)
        if client is None:
            client = self._recall(client_id)
            self._remember(client_id, client)
        client.correct(size_bytes)

    def _recall(self, client_id: str) -> _Client[T]:
        """A client that has waited for nothing (`_Client.forfeit`)."""
        known = self._idle.pop(client_id, None)
        if known is None:
            return _Client(self._rule.weight_of(client_id) * self._rule.quantum_bytes)
        known.forfeit(self._round)
        return known

    def _retire(self, client_id: str) -> None:
        self._remember(client_id, self._active.pop(client_id))

    def _remember(self, client_id: str, client: _Client[T]) -> None:
        self._idle[client_id] = client
        if len(self._idle) > self._rule.idle_clients:
            self._idle.popitem(last=False)
