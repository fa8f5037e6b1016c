"""The values of the delayed queue: a ticket and what it is found by, the bounds, a refusal, the counts.

Owns no behaviour. Must not know: disks, budgets, deadlines. Invariant: units are in the names; a ticket is one
miss of one partition, and is changed by `DelayedQueue` only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from throttle.budget import FairRule

if TYPE_CHECKING:
    from collections.abc import Hashable


class TicketKey(NamedTuple):
    """By what a later Fetch finds the miss of an earlier one."""

    connection: Hashable
    partition: Hashable
    offset: int


@dataclass(frozen=True, slots=True)
class DelayRule:
    """The bounds, per disk, and how long a miss may wait at most (`throttle.maxDelay`).

    A request larger than `waiting_bytes` may wait alone. `burst_s` of the rate may go at once, and never less
    than `burst_floor_bytes`. `in_flight_s` of the rate may be on its way from the disk at once, and always one
    request: what a producer's write finds before it there. One that takes longer than `late_s` (its client is slow,
    not the disk) does not count. `tick_s`: how exact `max_delay_s` is.
    """

    max_delay_s: float = 30.0
    waiting_requests: int = 10_000
    waiting_bytes: int = 8 << 30
    burst_s: float = 0.1
    burst_floor_bytes: int = 64 << 10
    surge_s: float = 0.5
    in_flight_s: float = 0.05
    late_s: float = 1.0
    tick_s: float = 0.01
    fair: FairRule = field(default_factory=FairRule)


@dataclass(slots=True, eq=False)
class DelayTicket:
    """A miss that waits, or was granted: `granted`, then `delay_s`. `overdue`: because it had waited too long.

    `disk` is the one that it waits for; None if it waits for none, and was granted at once.
    """

    key: TicketKey
    client_id: str
    disk: str | None
    size_bytes: int
    submitted_s: float
    granted_s: float = -1.0
    overdue: bool = False
    cancelled: bool = False
    finished: bool = False

    @classmethod
    def build_free(
        cls, key: TicketKey, client_id: str, size_bytes: int, now_s: float
    ) -> DelayTicket:
        """One that waits for no disk: it was granted as it came."""
        return cls(key, client_id, None, size_bytes, now_s, granted_s=now_s)

    @property
    def granted(self) -> bool:
        return self.granted_s >= 0

    @property
    def delay_s(self) -> float:
        """How long it waited; 0 while it waits."""
        return max(0.0, self.granted_s - self.submitted_s) if self.granted else 0.0

    def grant(self, now_s: float) -> None:
        """It may go."""
        self.granted_s = now_s

    def expire(self) -> None:
        """It has waited for as long as it may, and is granted next."""
        self.overdue = True

    def cancel(self) -> None:
        """Nobody wants it any more."""
        self.cancelled = True

    def finish(self) -> None:
        """It was granted and answered."""
        self.finished = True


@dataclass(frozen=True, slots=True)
class DelayRefused:
    """At a bound: `requests` or `bytes`. Answer empty; the client asks again."""

    bound: str


@dataclass(slots=True)
class DiskQueueStatistics:
    """A disk's counts: what waits now and is under way, then sums of all time."""

    busy: bool = False
    rate_bytes_s: float = 0.0
    waiting_requests: int = 0
    waiting_bytes: int = 0
    in_flight_requests: int = 0  # granted, not done
    in_flight_bytes: int = 0  # as expected
    granted: int = 0
    granted_bytes: int = 0  # as expected when granted
    done_bytes: int = 0  # as it turned out
    delayed: int = 0  # granted later than submitted
    overdue: int = 0
    cancelled: int = 0
    refused_requests: int = 0
    refused_bytes: int = 0
    delay_sum_s: float = 0.0
    delay_max_s: float = 0.0

    def look(self, busy: bool, rate_bytes_s: float) -> None:
        """Note the result of a look at the disk."""
        self.busy, self.rate_bytes_s = busy, rate_bytes_s

    def enter(self, size_bytes: int) -> None:
        """Count a request that waits from now on."""
        self.waiting_requests += 1
        self.waiting_bytes += size_bytes

    def leave(self, size_bytes: int) -> None:
        """Count a request that waits no more."""
        self.waiting_requests -= 1
        self.waiting_bytes -= size_bytes

    def grant(self, size_bytes: int, delay_s: float) -> None:
        """Count a granted request that had waited for `delay_s`; `leave` counts its leaving."""
        self.in_flight_requests += 1
        self.in_flight_bytes += size_bytes
        self.granted += 1
        self.granted_bytes += size_bytes
        self.delayed += delay_s > 0
        self.delay_sum_s += delay_s
        self.delay_max_s = max(self.delay_max_s, delay_s)

    def finish(self, size_bytes: int, actual_bytes: int) -> None:
        """Count a granted request of `size_bytes` that was answered with `actual_bytes`."""
        self.in_flight_requests -= 1
        self.in_flight_bytes -= size_bytes
        self.done_bytes += actual_bytes

    def expire(self) -> None:
        """Count a request that has waited for as long as it may."""
        self.overdue += 1

    def cancel(self) -> None:
        """Count a waiting request that nobody wants any more."""
        self.cancelled += 1

    def find_bound(self, size_bytes: int, rule: DelayRule) -> str | None:
        """The bound that a further request of `size_bytes` would exceed, and count it; None: it may wait."""
        if not self.waiting_requests:
            return None
        if self.waiting_requests >= rule.waiting_requests:
            self.refused_requests += 1
            return "requests"
        if self.waiting_bytes + size_bytes > rule.waiting_bytes:
            self.refused_bytes += 1
            return "bytes"
        return None


@dataclass(frozen=True, slots=True)
class DelayStatistics:
    """`by_disk` are copies. `ungated`: granted because their disk is not known."""

    by_disk: dict[str, DiskQueueStatistics]
    ungated: int
    deadlines: int
