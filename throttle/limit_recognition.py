"""Recognises the limit of a volume that nobody named: misses are allowed more for a moment, and no more comes.

Owns the last looks at one disk, its probes, the limit in use and its end. Must not know where samples come from, nor
how the controller moves its rate. Invariants:
* a probe begins only after looks in which misses waited all along, at about the load at which the controller settles
  or above. Misses that the page cache answers, and disks without misses, are thus never probed.
* a limit is recognised only where two probes in a row met the same level, and most looks between them: asked for more,
  the disk gave no more, was busier, and requests waited longer. A disk whose load follows its bytes gives more; a disk
  that became slower for a moment does not meet the same level twice.
* a limit in use ends when the volume carries more, and after `EXPIRES_S`: a volume may be enlarged, a burst earned.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

from throttle.disks import NO_LIMIT, DiskLimit

if TYPE_CHECKING:
    from collections.abc import Collection

    from throttle.disks import DiskSample

LOOK_S = 1.0
"""Shorter looks are put together: of a miss of 1 MiB, half a second sees too much or too little."""
GAP_S = 3.0  # a look that took longer, for example of a process that stood still, says nothing
LOOKS_BEFORE = 8
"""A probe is compared with so many looks."""
PROBE_S = 3.0
"""A probe takes so long, and at least two looks. The first does not count: what was asked for before is under way."""
ASKED_MORE = 1.2
"""The rate of a probe, in units of what came before it."""
REFUSED, FOLLOWED = 0.3, 0.6
"""Shares of what is asked for beyond: a disk at its limit gives at most the first, one without at least the second."""
BUSIER, WAITS_MORE = 1.15, 1.2
"""Load and await of a probe at a limit, in units of those before it."""
FULL = 0.95  # a load that cannot become much greater
SAME_LEVEL = 0.05  # how far what came in two probes may differ
CLOSE, MOST = 0.07, 0.7
"""Share of the looks between two probes that lie close to their median, and how close."""
LEAST_LOAD = 0.85  # mean load before a probe, in units of the target
PAUSE_FIRST_S, PAUSE_MOST_S = 15.0, 600.0
"""After a probe that showed no limit; doubled each time."""
FALLEN = 0.8
"""Of what came in that probe: if less comes now, a burst may be spent, and the pause is over."""
BEYOND, BEYOND_LOOKS = 1.1, 3
"""In units of the limit, and looks in a row: the volume gives more. A flush that another limit governs is shorter."""
ROUNDING = 0.02  # in s: samplers do not sleep exactly
EXPIRES_S = 600.0


class _Look(NamedTuple):
    """Means over `LOOK_S`: what misses got and what the disk carried, in bytes/s."""

    miss_bytes_s: float
    disk_bytes_s: float
    load: float
    await_ms: float


@dataclass(slots=True)
class _Sums:
    """Samples not yet put together; each value times the seconds it stood for."""

    interval_s: float = 0.0
    miss_bytes: float = 0.0
    disk_bytes: float = 0.0
    load_s: float = 0.0
    await_ms_s: float = 0.0

    def add(self, sample: DiskSample, miss_bytes: int) -> None:
        interval_s = sample.interval_s
        self.interval_s += interval_s
        self.miss_bytes += miss_bytes
        self.disk_bytes += (sample.read_bytes_s + sample.write_bytes_s) * interval_s
        self.load_s += sample.busy_load * interval_s
        self.await_ms_s += sample.await_ms * interval_s

    def build_look(self) -> _Look:
        sums = self.miss_bytes, self.disk_bytes, self.load_s, self.await_ms_s
        return _Look(*(value / self.interval_s for value in sums))


class ProbeResult(StrEnum):
    """Whether a disk gave more to those who asked for more."""

    REFUSED = "refused"
    FOLLOWED = "followed"
    UNCLEAR = "unclear"


class LimitRecognition:
    """One disk. `target`: the load at which its controller settles. `probes`: their number, by result."""

    def __init__(self, target: float) -> None:
        self._target = target
        self._sums = _Sums()
        self._looks: deque[_Look] = deque(maxlen=LOOKS_BEFORE)
        self._probed: list[_Look] = []
        self._probe_began_s = 0.0
        self._level_bytes_s = 0.0  # at which the last probe was refused; 0: it was not
        self._quiet_until_s = self._given_bytes_s = 0.0
        self._pause_s = PAUSE_FIRST_S
        self._expires_s = 0.0
        self._beyond = 0  # looks in a row beyond the limit in use
        self.probe_bytes_s = 0.0
        """Misses are to be allowed this in place of the controller's rate; 0: no probe is on."""
        self.limit = NO_LIMIT
        self.probes = Counter[ProbeResult]()

    def observe(self, sample: DiskSample, miss_bytes: int, waited: bool, now_s: float) -> None:
        """A sample during which misses got `miss_bytes`. `waited`: some miss did."""
        if self.limit.bytes_s and now_s >= self._expires_s:
            self.forget()
        if not 0 < sample.interval_s <= GAP_S:
            self._start_anew()
            return
        if not waited:
            self._start_anew()
        self._sums.add(sample, miss_bytes)
        if self._sums.interval_s < LOOK_S - ROUNDING:
            return
        look, self._sums = self._sums.build_look(), _Sums()
        self._beyond = self._beyond + 1 if look.disk_bytes_s > BEYOND * self.limit.bytes_s else 0
        if self.limit.bytes_s and self._beyond >= BEYOND_LOOKS:
            self.forget()
        if not waited:
            return
        if self.probe_bytes_s:
            self._probe(look, now_s)
        else:
            self._looks.append(look)
            if self._is_due(now_s):
                self.probe_bytes_s, self._probe_began_s = ASKED_MORE * self._level(), now_s

    def _is_due(self, now_s: float) -> bool:
        if len(self._looks) < LOOKS_BEFORE:
            return False
        if fmean(one.load for one in self._looks) < LEAST_LOAD * self._target:
            return False
        level = self._level()
        if level < FALLEN * self._given_bytes_s:
            self._end_pauses()
        return level > 0 and now_s >= self._quiet_until_s

    def _level(self) -> float:
        """Bytes/s of misses before the probe."""
        return median(one.miss_bytes_s for one in self._looks)

    def _is_level(self) -> bool:
        level = self._level()
        close = sum(abs(one.miss_bytes_s - level) <= CLOSE * level for one in self._looks)
        return close >= MOST * len(self._looks)

    def _probe(self, look: _Look, now_s: float) -> None:
        self._probed.append(look)
        if len(self._probed) < 2 or now_s - self._probe_began_s < PROBE_S - ROUNDING:
            return
        result = judge(self._looks, self._probed[1:])
        self.probes[result] += 1
        level, came = self._level_bytes_s, fmean(one.miss_bytes_s for one in self._probed[1:])
        carried = median(one.disk_bytes_s for one in (*self._looks, *self._probed))
        is_level = self._is_level()
        self._start_anew()
        if result is ProbeResult.REFUSED:
            if is_level and abs(came - level) <= SAME_LEVEL * level:
                self._adopt(carried, now_s)
            else:
                self._level_bytes_s = came
        else:
            self._quiet_until_s, self._given_bytes_s = now_s + self._pause_s, came
            self._pause_s = min(2 * self._pause_s, PAUSE_MOST_S)

    def set_target(self, target: float) -> None:
        """The controller settles at another load: earlier looks do not count. A limit that is known stays."""
        if target != self._target:
            self._target = target
            self._start_anew()

    def forget(self) -> None:
        """No limit is known from now on, and no look counts."""
        self.limit = NO_LIMIT
        self._end_pauses()
        self._start_anew()

    def _end_pauses(self) -> None:
        self._quiet_until_s = self._given_bytes_s = 0.0
        self._pause_s = PAUSE_FIRST_S

    def _start_anew(self) -> None:
        self._sums = _Sums()
        self._looks.clear()
        self._probed.clear()
        self.probe_bytes_s = self._level_bytes_s = 0.0

    def _adopt(self, bytes_s: float, now_s: float) -> None:
        self.limit, self._beyond = DiskLimit(bytes_s, 0.0, "recognised"), 0
        self._expires_s = now_s + EXPIRES_S


def judge(before: Collection[_Look], probed: Collection[_Look]) -> ProbeResult:
    """REFUSED: no more came, the disk was busier, and its requests waited longer."""
    level = median(one.miss_bytes_s for one in before)
    more = fmean(one.miss_bytes_s for one in probed) - level
    asked = (ASKED_MORE - 1) * level
    load, load_before = (fmean(one.load for one in looks) for looks in (probed, before))
    waits, waits_before = (fmean(one.await_ms for one in looks) for looks in (probed, before))
    if more >= FOLLOWED * asked:
        return ProbeResult.FOLLOWED
    is_busier = load >= min(BUSIER * load_before, FULL)
    if abs(more) <= REFUSED * asked and is_busier and waits >= WAITS_MORE * waits_before:
        return ProbeResult.REFUSED
    return ProbeResult.UNCLEAR
