"""What a canary has seen: histograms of both sides, failures, rounds, as samples of the metric catalog.

Owns the counts. Must not know a socket or a clock. Invariant: every series exists from the start.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from metrics.collector import Sample
from metrics.histogram import Histogram
from proxy.build_info import find_commit, find_version
from proxy.canary.outcome import STEPS, Latency, StepFailed
from proxy.canary.plan import SIDES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from proxy.canary.outcome import Round
    from proxy.canary.plan import LatencyBar

BOUNDS_S = (
    *(0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.006, 0.008),
    *(0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0),
)


class Tally:
    """All rounds so far."""

    def __init__(self, bar: LatencyBar) -> None:
        self._bar = bar
        self._acknowledged = {side: Histogram(BOUNDS_S) for side in SIDES}
        self._received = {side: Histogram(BOUNDS_S) for side in SIDES}
        self.failures = {(side, step): 0 for side in SIDES for step in STEPS}
        """By side and step."""
        self.rounds = 0
        self.slow_rounds = 0
        self.last_round_at = 0.0
        """Unix time of the last round's end; 0: there was none."""

    def add(self, round_: Round, now: float) -> None:
        """Count one round, which ended at `now` (Unix time)."""
        self.rounds += 1
        self.slow_rounds += round_.is_slow(self._bar)
        self.last_round_at = now
        for side, outcome in zip(SIDES, round_, strict=True):
            if isinstance(outcome, StepFailed):
                self.failures[side, outcome.step] += 1
            else:
                self._acknowledged[side].observe(outcome.acknowledged_s)
                self._received[side].observe(outcome.received_s)

    def collect(self) -> Iterator[Sample]:
        """All samples of this moment."""
        yield Sample("forebay_build_info", (find_version(), find_commit()), 1)
        for side in SIDES:
            yield Sample(
                "forebay_canary_acknowledgement_seconds", (side,), self._acknowledged[side]
            )
            yield Sample("forebay_canary_end_to_end_seconds", (side,), self._received[side])
        for (side, step), count in self.failures.items():
            yield Sample("forebay_canary_failures_total", (side, step), count)
        yield Sample("forebay_canary_rounds_total", (), self.rounds)
        yield Sample("forebay_canary_slow_rounds_total", (), self.slow_rounds)
        yield Sample("forebay_canary_last_round_timestamp_seconds", (), self.last_round_at)


class BarVerdict(NamedTuple):
    """Whether the bar holds, and the table that shows why."""

    holds: bool
    table: str


def judge(rounds: Sequence[Round], bar: LatencyBar) -> BarVerdict:
    """The medians of all rounds against the bar, in words and columns. A failure on either side breaks it."""
    lines = [
        "side      records  failed  acknowledged, ms: median  longest  received, ms: median  longest"
    ]
    medians: list[tuple[float, float]] = []
    failed: list[StepFailed] = []
    for index, side in enumerate(SIDES):
        outcomes = [one[index] for one in rounds]
        good = [one for one in outcomes if isinstance(one, Latency)]
        failed += [one for one in outcomes if isinstance(one, StepFailed)]
        columns = [*zip(*good, strict=True)] if good else []
        shown = [f"{value * 1000:.2f}" for one in columns for value in (median(one), max(one))]
        medians += [(median(columns[0]), median(columns[1]))] if good else []
        ack, ack_max, got, got_max = shown or ["-"] * 4
        lines.append(
            f"{side:<8} {len(outcomes):>8} {len(outcomes) - len(good):>7}"
            f" {ack:>25} {ack_max:>8} {got:>21} {got_max:>8}"
        )
    for reason in dict.fromkeys(f"{one.step}: {one}" for one in failed):
        lines.append(f"failed: {reason}")
    holds = not failed and len(medians) == 2 and all(map(bar.holds, *medians))
    lines.append(
        f"bar: medians through Forebay at most {bar.factor:g} times direct plus {bar.plus_s * 1000:g} ms,"
        f" nothing failed: {'holds' if holds else 'broken'}"
    )
    return BarVerdict(holds, "\n".join(lines) + "\n")
