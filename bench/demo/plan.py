"""What the demo does and when: sizes, rates, and the slices of time in which either way is measured.

Owns the plan as plain values. Must not know clients, processes or clocks. Invariants: both ways get the same
time, in an order (A B B A A B B A) in which a drift of the machine hits both alike; the first slice of each
way, the one with the backlog's reader and the one with loaders are not part of the comparison; the loaders lie less
and more than the cache behind, so that the audit's curve has something to say.
"""

from typing import NamedTuple

KIB, MIB = 1 << 10, 1 << 20
DIRECT, THROUGH = "without Forebay", "with Forebay"
WARM_UP, REPLAY = "warm-up", "with Forebay, a backlog being read"
LOADERS = "with Forebay, four times the load, in batches"
ORDER = (DIRECT, THROUGH, THROUGH, DIRECT, DIRECT, THROUGH, THROUGH, DIRECT)
WARM_UP_S, REPLAY_S = 2.0, 6.0
LOADERS_SHARE = 0.8
"""Time with loaders, as a share of the measured time."""
LOADER_PERIODS = (0.05, 0.15, 0.5)
"""How long each loader rests between two batches, as a share of the time with loaders."""


class Sizes(NamedTuple):
    """Loads and limits. Rates are in records a second, over all partitions; `load_rate` and `load_record_bytes` are of
    the time with loaders. `replay_bytes`: the most that the backlog's reader asks of a partition at a time, so that it
    takes several Fetches.
    """

    rate: int = 200
    record_bytes: int = 4 * KIB
    load_rate: int = 200
    load_record_bytes: int = 16 * KIB
    partitions: int = 48
    groups: int = 4
    cache_bytes: int = 24 * MIB
    backlog_bytes: int = 48 * MIB
    replay_bytes: int = 128 * KIB


class Slice(NamedTuple):
    """From `start_s` to `end_s` after the load's begin, records go one `way`, counted under `label`."""

    label: str
    way: str
    start_s: float
    end_s: float


def plan_slices(measured_s: float) -> list[Slice]:
    """Warm-up, `measured_s` seconds in which both ways take turns, the backlog's reader, and the loaders."""
    turn_s = measured_s / len(ORDER)
    parts = [(WARM_UP, DIRECT, WARM_UP_S), (WARM_UP, THROUGH, WARM_UP_S)]
    parts += [(way, way, turn_s) for way in ORDER]
    parts += [(REPLAY, THROUGH, REPLAY_S), (LOADERS, THROUGH, LOADERS_SHARE * measured_s)]
    slices, start_s = [], 0.0
    for label, way, length_s in parts:
        slices.append(Slice(label, way, start_s, start_s + length_s))
        start_s += length_s
    return slices


def plan_periods_s(slices: list[Slice]) -> list[float]:
    """For each loader, the seconds between two batches."""
    part = next(part for part in slices if part.label == LOADERS)
    return [share * (part.end_s - part.start_s) for share in LOADER_PERIODS]
