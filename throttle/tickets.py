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


@dataclass(frozen=True, slots=True)
class DelayStatistics:
    """`by_disk` are copies. `ungated`: granted because their disk is not known."""

    by_disk: dict[str, DiskQueueStatistics]
    ungated: int
    deadlines: int
