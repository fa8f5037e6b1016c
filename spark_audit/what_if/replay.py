"""One trace through one cache: what another policy would have hit.

Owns the trace's events and the counting. Must not know where they come from. Invariants: every write is offered to the
cache; a read that misses is offered only where laggards are admitted; a trace that is a sample goes through a cache
that is as much smaller (SHARDS: Waldspurger et al., FAST 2015), so that sampled objects meet as they would have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from spark_audit.what_if.policies import BY_PARTITION, POLICIES, ObjectKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

EVENTS_MAX: Final = 400_000
"""Events that are replayed; of a longer trace every n-th object of each partition is (`plan_stride`): 1 % from 40
million events on. So many are within 0.25 points of all by every policy; a tenth of them still are by FIFO, LRU and
S3-FIFO, and within 1 by PLRU. Objects drawn by a hash were 1 to 2 points off: they come and go by chance.
"""
TOUCHES_MAX: Final = 1_000_000
"""Touches beside the events of a sample. PLRU lets go of the partition that was read longest ago, until it is read
again. Reads of 1 % of the objects say that a hundred times too late: it was 4 points off.
"""
HASH_RANGE: Final = 1 << 24
"""Touches are drawn by a hash below this."""
SIZE_STEPS: Final = (0.5, 1.0, 2.0)
"""Sizes of the replay, as multiples of `cache.size`."""


class TraceEvent(NamedTuple):
    """`size_bytes` of an object are stored (`read_bytes` 0), or `read_bytes` of it are read. A touch (both 0): another
    object of the partition, which is not in the sample, was stored or read.
    """

    key: ObjectKey
    size_bytes: int
    read_bytes: int


class Trace(NamedTuple):
    """Events in the order of the clock. `rate`: the share of all objects that they are of; 1: all."""

    events: Sequence[TraceEvent]
    rate: float

    @property
    def without_touches(self) -> Trace:
        """For policies that know no partitions."""
        return Trace([event for event in self.events if event.size_bytes], self.rate)


class PolicyResult(NamedTuple):
    """What a cache of `size_bytes` (a value of `cache.size`, which holds `held_bytes`) would have hit by a policy, as a
    share of the bytes that were read. `admits_laggards`: a read that missed is stored, as in a page cache; otherwise
    only what is produced is, as Forebay does.
    """

    policy: str
    admits_laggards: bool
    size_bytes: int
    held_bytes: int
    hit_ratio: float


class WhatIf(NamedTuple):
    """Replays of the boot that the sizes are calibrated by: each policy with and without admission of laggards at each
    size; FIFO without is today's. `events` of `rate` of the objects were replayed; 1: all, and the ratios are exact
    for the trace.
    """

    boot: str
    events: int
    rate: float
    results: tuple[PolicyResult, ...]

    def worth(self, result: PolicyResult) -> float:
        """The hit ratio beyond that of today's policy at the same size; negative: worse."""
        (today,) = [one for one in self.results if one[:3] == ("FIFO", False, result.size_bytes)]
        return result.hit_ratio - today.hit_ratio


def plan_stride(events: int) -> int:
    """Of how many objects of a partition one is taken, of a trace of so many events."""
    return max(1, -(-events // EVENTS_MAX))


def plan_touch_rate(events: int) -> float:
    """The share of the other events that are taken as touches."""
    return min(1.0, TOUCHES_MAX / events) if events else 1.0


def hit_ratio(trace: Trace, policy: str, held_bytes: int, admits_laggards: bool) -> float | None:
    """The share of the bytes read that hit a cache which holds `held_bytes`; None where nothing was read."""
    cache = POLICIES[policy](max(1, round(held_bytes * trace.rate)))
    hits = total = 0
    read, insert, touch = cache.read, cache.insert, cache.touch
    for key, size_bytes, read_bytes in trace.events:
        if not size_bytes:
            touch(key[0])
            continue
        if not read_bytes:
            if not read(key):
                insert(key, size_bytes)
            continue
        total += read_bytes
        if read(key):
            hits += read_bytes
        elif admits_laggards:
            insert(key, size_bytes)
    return hits / total if total else None


def replay_all(
    trace: Trace, sizes: Iterable[tuple[int, int]], fifo: Callable[[int], float | None]
) -> tuple[PolicyResult, ...]:
    """Each policy at each of `sizes` (`cache.size`, bytes that it holds). Empty where nothing was read.

    `fifo`: the exact share that a FIFO of so many bytes hits, which the ages give for any log. What a sample gets wrong
    of it, it gets wrong of the other policies, too: all are corrected by that (a control variate).
    """
    results = []
    plain = trace.without_touches
    for size_bytes, held_bytes in sizes:
        today = hit_ratio(plain, "FIFO", held_bytes, False)
        if today is None:
            return ()
        exact = fifo(held_bytes) if trace.rate < 1 else None
        error = today - exact if exact is not None else 0.0
        for policy in POLICIES:
            for admits in (False, True):
                followed = trace if policy in BY_PARTITION else plain
                ratio = hit_ratio(followed, policy, held_bytes, admits) or 0.0
                kept = min(1.0, max(0.0, ratio - error))
                results.append(PolicyResult(policy, admits, size_bytes, held_bytes, kept))
    return tuple(results)
