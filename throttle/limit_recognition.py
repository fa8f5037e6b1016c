"""Recognises the limit of a volume that nobody named: the misses are allowed more, and no more comes.

Owns the last looks at one disk, the limit in use and its end. Must not know where samples come from, nor how the
controller moves its rate. Invariants:
* a limit is recognised only from looks in which misses waited all along, and only at or above the load at which the
  controller settles. Misses that the page cache answers, and disks without misses, thus show none.
* on a disk whose load follows its bytes, misses get what they are allowed until the disk is full, and a full disk
  lowers the rate at once. The rate then never differs between looks while the bytes do not.
* a limit in use ends when the volume carries more, and after `EXPIRES_S`: a volume may be enlarged, a burst earned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

from throttle.disks import NO_LIMIT, DiskLimit

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from throttle.disks import DiskSample

LOOK_S = 1.0
"""Shorter looks are put together: of a miss of 1 MiB, half a second sees too much or too little."""
GAP_S = 3.0  # a look that took longer, for example of a process that stood still, says nothing
LOOKS = 20
ALLOWED_MORE = 1.15  # of a third of the looks to another: how far the rate must have moved
FOLLOWED = (
    0.4  # share of that move that the bytes of misses may have made, too; without a limit all of it
)
LEVEL = 0.04  # how far the median of a quarter of the looks may lie from that of all, in bytes of misses
CLOSE, MOST = 0.07, 0.65
"""Share of the looks that lie close to the median, and how close. Processors that others use lower single looks."""
REFUSED = 1.05  # the rate in units of what came, over all looks
WAITS_MORE = 1.5  # await of the third with the highest load, in units of that with the lowest
LEAST_LOAD = 0.85  # mean load, in units of the target
BEYOND = 1.1  # in units of the limit: the volume gives more than that
ROUNDING = 0.02  # of `LOOK_S`: samplers do not sleep exactly
EXPIRES_S = 600.0


class _Look(NamedTuple):
    """Means over `LOOK_S`: the rate allowed to misses, what they got, what the disk carried, all in bytes/s."""

    allowed_bytes_s: float
    miss_bytes_s: float
    disk_bytes_s: float
    load: float
    await_ms: float


_Value = Callable[[_Look], float]
ALLOWED, CAME = attrgetter("allowed_bytes_s"), attrgetter("miss_bytes_s")
LOAD, WAITS = attrgetter("load"), attrgetter("await_ms")


@dataclass(slots=True)
class _Sums:
    """Samples not yet put together; each value times the seconds it stood for."""

    interval_s: float = 0.0
    allowed_bytes: float = 0.0
    miss_bytes: float = 0.0
    disk_bytes: float = 0.0
    load_s: float = 0.0
    await_ms_s: float = 0.0

    def add(self, sample: DiskSample, allowed_bytes_s: float, miss_bytes: int) -> None:
        interval_s = sample.interval_s
        self.interval_s += interval_s
        self.allowed_bytes += allowed_bytes_s * interval_s
        self.miss_bytes += miss_bytes
        self.disk_bytes += (sample.read_bytes_s + sample.write_bytes_s) * interval_s
        self.load_s += sample.busy_load * interval_s
        self.await_ms_s += sample.await_ms * interval_s

    def build_look(self) -> _Look:
        sums = self.allowed_bytes, self.miss_bytes, self.disk_bytes, self.load_s, self.await_ms_s
        return _Look(*(value / self.interval_s for value in sums))


class LimitRecognition:
    """One disk. `target`: the load at which its controller settles."""

    def __init__(self, target: float) -> None:
        self._target = target
        self._sums = _Sums()
        self._looks: deque[_Look] = deque(maxlen=LOOKS)
        self._expires_s = 0.0
        self.limit = NO_LIMIT

    def observe(
        self,
        sample: DiskSample,
        allowed_bytes_s: float,
        miss_bytes: int,
        waited: bool,
        now_s: float,
    ) -> None:
        """A sample during which misses were allowed `allowed_bytes_s` and got `miss_bytes`. `waited`: some miss did."""
        if self.limit.bytes_s and now_s >= self._expires_s:
            self.forget()
        if not 0 < sample.interval_s <= GAP_S:
            self._start_anew()
            return
        self._sums.add(sample, allowed_bytes_s, miss_bytes)
        if not waited:
            self._looks.clear()
        if self._sums.interval_s < LOOK_S * (1 - ROUNDING):
            return
        look, self._sums = self._sums.build_look(), _Sums()
        if self.limit.bytes_s and look.disk_bytes_s > BEYOND * self.limit.bytes_s:
            self.forget()
        if waited:
            self._looks.append(look)
        if len(self._looks) == LOOKS and is_at_limit(self._looks, self._target):
            self._adopt(median(one.disk_bytes_s for one in self._looks), now_s)

    def set_target(self, target: float) -> None:
        """The controller settles at another load: earlier looks do not count. A limit that is known stays."""
        if target != self._target:
            self._target = target
            self._start_anew()

    def forget(self) -> None:
        """No limit is known from now on, and no look counts."""
        self.limit = NO_LIMIT
        self._start_anew()

    def _start_anew(self) -> None:
        self._sums = _Sums()
        self._looks.clear()

    def _adopt(self, bytes_s: float, now_s: float) -> None:
        self.limit = DiskLimit(bytes_s, 0.0, "recognised")
        self._expires_s = now_s + EXPIRES_S
        self._start_anew()


def is_at_limit(looks: Collection[_Look], target: float) -> bool:
    """True if more was allowed and no more came, while waits rose, at a load of about `target` or more."""
    if _mean(looks, LOAD) < LEAST_LOAD * target:
        return False
    if _mean(looks, ALLOWED) < REFUSED * _mean(looks, CAME):
        return False
    if not _is_level([one.miss_bytes_s for one in looks]):
        return False
    least, most = _split(looks, ALLOWED)
    allowed_more = _mean(most, ALLOWED) / _mean(least, ALLOWED)
    came, came_most = _mean(least, CAME), _mean(most, CAME)
    if allowed_more < ALLOWED_MORE or abs(came_most - came) > FOLLOWED * (allowed_more - 1) * came:
        return False
    calm, full = _split(looks, LOAD)
    return _mean(full, WAITS) >= WAITS_MORE * _mean(calm, WAITS)


def _is_level(values: Sequence[float]) -> bool:
    """True if the medians of all four quarters are close to the median of all, and most values are, too."""
    level, size = median(values), len(values) // 4
    quarters = [median(values[at : at + size]) for at in range(0, 4 * size, size)]
    close = sum(abs(one - level) <= CLOSE * level for one in values)
    return (
        level > 0  # else the disk hangs
        and max(abs(one - level) for one in quarters) <= LEVEL * level
        and close >= MOST * len(values)
    )


def _split(looks: Collection[_Look], key: _Value) -> tuple[Sequence[_Look], Sequence[_Look]]:
    """The third of the looks with the least of a value, and the third with the most."""
    ordered = sorted(looks, key=key)
    size = len(ordered) // 3
    return ordered[:size], ordered[-size:]


def _mean(looks: Collection[_Look], key: _Value) -> float:
    return fmean(map(key, looks))
