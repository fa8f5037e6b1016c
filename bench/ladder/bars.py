"""What the ladder demands, as ratios within one round.

Owns the bars and the pairing: a figure of one rung is held against the same round's figure of another. Must
not know how they were measured. Invariants: a bar's value is the median over the rounds that have both.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from bench.ladder.arms import (
    BARE,
    CACHE,
    DIRECT,
    HAPROXY,
    KROXYLICIOUS,
    NO_LOG,
    PASS,
    RELAY,
    STORE,
    TUNED,
)

if TYPE_CHECKING:
    from bench.ladder.cells import Row

Round = Mapping[tuple[str, str, str], float]
"""(load, rung, figure) -> value."""
Floor = Sequence[tuple[str, Callable[[Round], float]]]
"""Ratios without a bound, by name."""
SMALL, LARGE, FETCH, TAIL = "produce 1 KB", "produce 900 KB", "fetch 1 MB", "tail, 4 groups"


class Bar(NamedTuple):
    """`measure` raises KeyError where a round lacks a figure."""

    name: str
    bound: float
    at_most: bool
    measure: Callable[[Round], float]


class Held(NamedTuple):
    """A bar as measured: median, smallest and largest."""

    bar: Bar
    median: float
    low: float
    high: float

    @property
    def holds(self) -> bool:
        """Whether the median is on the right side."""
        return self.median <= self.bar.bound if self.bar.at_most else self.median >= self.bar.bound


def _ratio(load: str, figure: str, ours: str, theirs: str) -> Callable[[Round], float]:
    return lambda one: one[load, ours, figure] / one[load, theirs, figure]


def _added(one: Round) -> float:
    direct = one[SMALL, DIRECT, "p50_us"]
    return (one[SMALL, CACHE, "p50_us"] - direct) / max(
        one[SMALL, KROXYLICIOUS, "p50_us"] - direct, 1.0
    )


def _later(one: Round) -> float:
    return one[TAIL, CACHE, "end_to_end_p50_ms"] - one[TAIL, DIRECT, "end_to_end_p50_ms"]


def _share(load: str) -> Callable[[Round], float]:
    return lambda one: one[load, CACHE, "upstream_byte_share"]


def _log_cost(load: str, figure: str) -> Callable[[Round], float]:
    return lambda one: 1 - one[load, NO_LOG, figure] / one[load, CACHE, figure]


REQUEST, GB_CPU, GB_BROKER = "cpu_us_per_request", "cpu_s_per_gb", "broker_s_per_gb"
BARS = (
    Bar(
        "produce 1 KB, admission: CPU / haproxy", 1.6, True, _ratio(SMALL, REQUEST, CACHE, HAPROXY)
    ),
    Bar("produce 1 KB, admission: added p50 / Kroxylicious", 1.6, True, _added),
    Bar(
        "produce 900 KB, admission: CPU / Kroxylicious",
        1.3,
        True,
        _ratio(LARGE, GB_CPU, CACHE, KROXYLICIOUS),
    ),
    Bar(
        "produce 900 KB, admission: CPU / tuned haproxy",
        1.9,
        True,
        _ratio(LARGE, GB_CPU, CACHE, TUNED),
    ),
    Bar("fetch 1 MB, relayed: CPU / tuned haproxy", 1.1, True, _ratio(FETCH, GB_CPU, PASS, TUNED)),
    Bar(
        "fetch 1 MB, relayed: CPU / Kroxylicious",
        0.7,
        True,
        _ratio(FETCH, GB_CPU, PASS, KROXYLICIOUS),
    ),
    Bar("fetch 1 MB, cached: MB/s / direct", 1.8, False, _ratio(FETCH, "mb_per_s", CACHE, DIRECT)),
    Bar("fetch 1 MB, cached: CPU / tuned haproxy", 0.5, True, _ratio(FETCH, GB_CPU, CACHE, TUNED)),
    Bar(
        "fetch 1 MB, cached: CPU / Kroxylicious",
        0.3,
        True,
        _ratio(FETCH, GB_CPU, CACHE, KROXYLICIOUS),
    ),
    Bar(
        "4 groups: broker CPU per GB / direct",
        0.1,
        True,
        _ratio(f"{FETCH}, 4 groups", GB_BROKER, CACHE, DIRECT),
    ),
    Bar("tail, 4 groups: end-to-end p50 - direct, ms", 0.4, True, _later),
    Bar("tail, 4 groups: upstream / delivered record bytes", 0.26, True, _share(TAIL)),
    Bar(
        "tail, 16 groups: upstream / delivered record bytes", 0.07, True, _share("tail, 16 groups")
    ),
    Bar("access log: share of CPU, 1 KB produce", 0.05, True, _log_cost(SMALL, REQUEST)),
    Bar("access log: share of CPU, 1 MB fetch", 0.05, True, _log_cost(FETCH, GB_CPU)),
    Bar("access log: share of CPU, tail of 4 groups", 0.05, True, _log_cost(TAIL, "cpu_ms_per_s")),
)

FLOOR: Floor = (
    ("produce 1 KB, admission: CPU / bare relay", _ratio(SMALL, REQUEST, CACHE, RELAY)),
    ("produce 1 KB, bare relay: CPU / haproxy", _ratio(SMALL, REQUEST, RELAY, HAPROXY)),
    ("produce 1 KB, admission: CPU / bare store", _ratio(SMALL, REQUEST, CACHE, STORE)),
    ("produce 1 KB, bare store: CPU / haproxy", _ratio(SMALL, REQUEST, STORE, HAPROXY)),
    ("produce 900 KB, admission: CPU / bare store", _ratio(LARGE, GB_CPU, CACHE, STORE)),
    ("produce 900 KB, bare store: CPU / tuned haproxy", _ratio(LARGE, GB_CPU, STORE, TUNED)),
    ("fetch 1 MB, cached: CPU / bare send", _ratio(FETCH, GB_CPU, CACHE, BARE)),
    ("fetch 1 MB, bare send: CPU / tuned haproxy", _ratio(FETCH, GB_CPU, BARE, TUNED)),
    ("fetch 1 MB, bare send: CPU / Kroxylicious", _ratio(FETCH, GB_CPU, BARE, KROXYLICIOUS)),
    ("fetch 1 MB, bare send: MB/s / direct", _ratio(FETCH, "mb_per_s", BARE, DIRECT)),
)
"""What nobody demands, and what tells where the price of the kernel, and of this language and loop, puts the bars."""


def by_round(rows: Sequence[Row]) -> list[dict[tuple[str, str, str], float]]:
    """The figures of each round."""
    rounds: dict[int, dict[tuple[str, str, str], float]] = {}
    for row in rows:
        for figure, value in row.figures.items():
            rounds.setdefault(row.round, {})[row.load, row.arm, figure] = value
    return [rounds[number] for number in sorted(rounds)]


def hold_bars(rows: Sequence[Row], wanted: Sequence[Bar] = BARS) -> list[Held]:
    """Every wanted bar that at least one round can say something of."""
    held = []
    for bar in wanted:
        values = list(_values(bar.measure, by_round(rows)))
        if values:
            held.append(Held(bar, statistics.median(values), min(values), max(values)))
    return held


def measure_floor(rows: Sequence[Row], floor: Floor = FLOOR) -> list[tuple[str, list[float]]]:
    """What of `floor` at least one round can say, with the rounds' values."""
    rounds = by_round(rows)
    said = [(name, list(_values(measure, rounds))) for name, measure in floor]
    return [(name, values) for name, values in said if values]


def paired(rows: Sequence[Row], load: str, figure: str, ours: str, theirs: str) -> list[float]:
    """The ratio of two rungs in each round that has both."""
    return list(_values(_ratio(load, figure, ours, theirs), by_round(rows)))


def _values(measure: Callable[[Round], float], rounds: Sequence[Round]) -> list[float]:
    values = []
    for one in rounds:
        try:
            values.append(measure(one))
        except (KeyError, ZeroDivisionError):
            continue
    return values
