"""How many bytes/s of misses a disk gets: a closed loop that settles its load at the target.

Owns: the rate, its bounds, the step by which it moves. Must not know: how load is measured, who waits.
Invariants:
* floor <= rate <= ceiling, always; a look that says nothing (no interval) changes nothing.
* the rate moves by step x (target - load) x (bytes/s per unit of load, as lately measured): an integral, so
  the mean error goes to 0 whatever else uses the disk. The step shrinks when the error swings from side to
  side and grows while it stays on one; a proportion of the error damps what waits in the disk. So it settles
  also where load is a cliff (a volume with a limit), and does not crawl.
* a rate that does not bind is not wound up: above what was sent it falls from what was sent; while nobody
  waits it rises only to what the disk has carried before at its target.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from throttle.disks import DiskSample

STEP_LEAST, STEP_MOST, STEP_FIRST = 0.02, 0.5, 0.4
"""Share of the error that a second corrects, on a disk whose load is proportional to its bytes."""
GROW, SHRINK = 1.4, 0.6
SWING = 0.12
"""An error beyond this on one side and then on the other is a swing: noise is smaller."""
TREND_S = 1.5
"""Time constant of the error that swings are looked for in: a flush of the page cache is not one."""
PATIENCE = 5  # looks on the same side, before the step grows: a swing to and fro takes less
SMOOTHING_S = 3.0
"""Time constant of what the measured bytes per load, and the bytes sent, are averaged over."""
LEAST_LOAD = 0.2
"""Below it, bytes per load are not believed: reads from the page cache cost the disk nothing."""
MOST_FACTOR = 2.0  # by which one look may change the rate
BINDS = 0.7  # sent less than this share of the rate: the disk, not the rate, was the limit
PROPORTION = 0.15
"""Share of the rate that an error of 1 takes or gives at once, besides what it moves for good: what waits at a
full disk is an integral too, and two of them without this swing for ever.
"""
FULL = 1.05  # of what a full disk carried is the most that it may be asked for next
SATURATED = 0.95
ROUNDING = 0.02
"""Share of `decide_s` that a look may be early: samplers do not sleep exactly."""


@dataclass(frozen=True, slots=True)
class ControllerRule:
    """`target`: the load at which the disk settles. The rate starts at `start_bytes_s`, and stays in between.

    The start is what a slow disk bears: a fast one is found out within seconds, the rate may double at each look.
    `deadband`: an error that does not count as a swing. `decide_s`: shorter looks are put together, so that one
    miss is not taken for a load.
    """

    target: float = 0.6
    floor_bytes_s: float = float(1 << 20)
    ceiling_bytes_s: float = float(16 << 30)
    start_bytes_s: float = float(16 << 20)
    deadband: float = 0.04
    decide_s: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.target < 1:
            raise ValueError("the target lies between 0 and 1")
        if not 0 < self.floor_bytes_s <= self.start_bytes_s <= self.ceiling_bytes_s:
            raise ValueError("0 < floor <= start <= ceiling")


@dataclass(frozen=True, slots=True)
class ControllerStatistics:
    """The loop's state at its last look. `miss_bytes_s` is smoothed, `load` is not."""

    rate_bytes_s: float
    proven_bytes_s: float  # carried at the target, lately
    miss_bytes_s: float
    load: float
    step: float
    looks: int = 0  # that were decided on
    swings: int = 0  # looks at which the error had changed sides
    saturated: int = 0  # looks at which the disk had nothing left
    at_floor: int = 0


class Controller:
    """The loop of one disk."""

    def __init__(self, rule: ControllerRule, now_s: float) -> None:
        self._rule = rule
        self._rate = self._proven = rule.start_bytes_s
        self._base = rule.start_bytes_s  # the integral; the rate is it and the proportion
        self._load_mean = rule.target
        self._miss_mean = 0.0
        self._error_mean = 0.0
        self._error = 0.0  # the last one outside the deadband
        self._swung = 0.0  # the last one beyond SWING
        self._stayed = 0  # looks since it was on the other side, or in the deadband
        self._state = ControllerStatistics(self._rate, self._proven, 0.0, 0.0, STEP_FIRST)
        self._since_s = now_s
        self._interval_s = self._load_s = (
            0.0  # looks not yet decided on: their time, and load x time
        )
        self._sent_bytes = 0
        self._backlog = False

    def set_rule(self, rule: ControllerRule) -> None:
        """Settle at another target, within other bounds, from the next decision on. What was learnt of the disk
        stays; the rate is within the new bounds at once.
        """
        self._rule = rule
        self._base, self._proven = self._bound(self._base), self._bound(self._proven)
        self._rate = self._bound(self._rate)
        self._state = replace(self._state, rate_bytes_s=self._rate, proven_bytes_s=self._proven)

    @property
    def rate_bytes_s(self) -> float:
        return self._rate

    def observe(self, sample: DiskSample, miss_bytes: int, backlog: bool, now_s: float) -> float:
        """A look at the disk, after `miss_bytes` of misses since the last one. `backlog`: some miss waited.

        `now_s` is the moment of the look. Returns the rate from then on.
        """
        interval_s, self._since_s = now_s - self._since_s, now_s
        if sample.interval_s <= 0 or interval_s <= 0:
            return self._rate
        self._interval_s += interval_s
        self._load_s += sample.load * interval_s
        self._sent_bytes += miss_bytes
        self._backlog = self._backlog or backlog
        if self._interval_s >= self._rule.decide_s * (1 - ROUNDING):
            self._decide(
                self._load_s / self._interval_s,
                self._sent_bytes / self._interval_s,
                self._interval_s,
            )
            self._interval_s, self._load_s, self._sent_bytes, self._backlog = 0.0, 0.0, 0, False
        return self._rate

    def skip(self, now_s: float) -> None:
        """A look at `now_s` at a disk that misses read at another rate than the controller's: it decides nothing."""
        self._since_s = now_s
        self._interval_s, self._load_s, self._sent_bytes, self._backlog = 0.0, 0.0, 0, False

    def statistics(self) -> ControllerStatistics:
        return self._state

    def _decide(self, load: float, sent: float, interval_s: float) -> None:
        """`sent`: bytes/s of misses over the interval."""
        weight = min(1.0, interval_s / SMOOTHING_S)
        self._load_mean += weight * (load - self._load_mean)
        self._miss_mean += weight * (sent - self._miss_mean)
        error = self._rule.target - load
        self._error_mean += min(1.0, interval_s / TREND_S) * (error - self._error_mean)
        step = self._adapt(self._error_mean)
        self._base = self._bound(self._plan_base(load, error, sent, min(1.0, step * interval_s)))
        self._rate = (
            self._bound(self._base * (1 + PROPORTION * error)) if self._backlog else self._base
        )
        if self._backlog and abs(error) <= 2 * self._rule.deadband:
            self._proven += weight * (self._base - self._proven)
        self._note(load, step)

    def _bound(self, rate: float) -> float:
        return min(max(rate, self._rule.floor_bytes_s), self._rule.ceiling_bytes_s)

    def _adapt(self, error: float) -> float:
        """The step: less when the error swings, more while it stays on one side, outside the deadband."""
        step = self._state.step
        if abs(error) <= self._rule.deadband:
            self._stayed = 0
            return step
        self._stayed = self._stayed + 1 if error * self._error > 0 else 1
        self._error = error
        if abs(error) > SWING:
            swung, self._swung = error * self._swung < 0, error
            if swung:
                self._state = replace(self._state, swings=self._state.swings + 1)
                return max(STEP_LEAST, step * SHRINK)
        return min(STEP_MOST, step * GROW) if self._stayed > PATIENCE else step

    def _plan_base(self, load: float, error: float, sent: float, step: float) -> float:
        rate = self._base
        if error < 0:
            carried = max(sent, self._miss_mean)
            if carried < BINDS * rate:
                rate = max(carried, self._rule.floor_bytes_s)
            elif load >= SATURATED:
                rate = min(rate, carried * FULL)
        change = step * error * rate / max(self._load_mean, LEAST_LOAD)
        moved = min(max(rate + change, rate / MOST_FACTOR), rate * MOST_FACTOR)
        if error > 0 and not self._backlog:
            return max(self._base, min(moved, self._proven))
        return moved

    def _note(self, load: float, step: float) -> None:
        state, rate = self._state, self._rate
        self._state = replace(
            state,
            rate_bytes_s=rate,
            proven_bytes_s=self._proven,
            miss_bytes_s=self._miss_mean,
            load=load,
            step=step,
            looks=state.looks + 1,
            saturated=state.saturated + (load >= SATURATED),
            at_floor=state.at_floor + (rate <= self._rule.floor_bytes_s),
        )
