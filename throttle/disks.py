"""From the text of /proc/diskstats and of pressure files to how loaded a disk is, and whether it is busy.

Owns: the fields' meaning (kernel: Documentation/admin-guide/iostats.rst, Documentation/accounting/psi.rst),
differences of counters, the rule of what counts as busy. Must not know: where the text comes from, which
partition lies on which disk. Invariants:
* odd text never raises: an odd line is counted, an odd pressure file is None.
* a counter that wrapped at 32 bits is a small difference; a counter that was reset makes the look a first
  one, which says nothing about load and leaves busy as it was.
* util is the share of time with at least one request in flight: near 1 on an NVMe far from full. The load
  therefore counts it only as far as requests also wait or queue (`BusyRule`).
* util is near 0 on a volume just below its limit. Where a limit is known, the share used of it is load, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

SECTOR_BYTES = 512  # in this file, whatever the device's own
FIELDS_LEAST = 14
WRAP = 1 << 32
SLACK_MS = 1000

LimitSource = Literal["", "named", "recognised"]


class DiskCounters(NamedTuple):
    """A line of /proc/diskstats. Sectors of 512 bytes; `in_flight` is the only one that can fall."""

    major: int
    minor: int
    name: str
    reads: int
    reads_merged: int
    read_sectors: int
    read_ms: int
    writes: int
    writes_merged: int
    write_sectors: int
    write_ms: int
    in_flight: int
    io_ticks_ms: int
    weighted_ms: int


class Diskstats(NamedTuple):
    """The disks by name, and how many lines were not understood."""

    disks: dict[str, DiskCounters]
    odd_lines: int

    def find(self, major: int, minor: int) -> DiskCounters | None:
        """By device number, as `os.stat(log_dir).st_dev` has it."""
        return next((disk for disk in self.disks.values() if disk[:2] == (major, minor)), None)


class Pressure(NamedTuple):
    """/proc/pressure/io, or a cgroup's io.pressure. Shares in 0..1 over 10 s; totals in microseconds."""

    some_avg10: float
    full_avg10: float
    some_total_us: int
    full_total_us: int


def scan_diskstats(text: str) -> Diskstats:
    """Lines of 14, 18 (with discards, Linux 4.18) or 20 fields (with flushes, 5.5); further ones are ignored."""
    disks, odd = {}, 0
    for line in text.splitlines():
        fields = line.split()
        if not fields:
            continue
        try:
            numbers = [int(field) for field in (*fields[:2], *fields[3:FIELDS_LEAST])]
        except ValueError:
            numbers = []
        if len(numbers) != FIELDS_LEAST - 1 or min(numbers) < 0:
            odd += 1
            continue
        disks[fields[2]] = DiskCounters(numbers[0], numbers[1], fields[2], *numbers[2:])
    return Diskstats(disks, odd)


def scan_pressure(text: str) -> Pressure | None:
    """None if there is no line `some`, or it is not as documented. `full` may be missing."""
    found: dict[str, tuple[float, int]] = {}
    for line in text.splitlines():
        kind, *pairs = line.split() or [""]
        values = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        try:
            found[kind] = (float(values["avg10"]) / 100, int(values["total"]))
        except (KeyError, ValueError):
            continue
    if "some" not in found:
        return None
    some, full = found["some"], found.get("full", (0.0, 0))
    return Pressure(some[0], full[0], some[1], full[1])


@dataclass(frozen=True, slots=True)
class BusyRule:
    """What counts as busy. load = util x evidence, evidence = the greatest of await / `await_ms`, requests in
    flight / `in_flight` and pressure / `pressure`, at most 1.

    Defaults: a disk on which requests take 2 ms or queue eight deep is as loaded as its util says; an NVMe
    that answers in 0.1 ms with two in flight is at a quarter of that. `await_ms` 0: util alone counts.
    `pressure` (share of time in which some task waits for I/O) is off (0) by default: like util, it is high
    wherever anybody reads all the time. Busy from `enter` on, and until it was below `leave` for `leave_s`:
    enter lies below the controller's target, or nothing would hold a load between the two.
    """

    await_ms: float = 2.0
    in_flight: float = 8.0
    pressure: float = 0.0
    enter: float = 0.5
    leave: float = 0.3
    leave_s: float = 3.0

    def __post_init__(self) -> None:
        if not 0 <= self.leave < self.enter <= 1 or self.leave_s < 0:
            raise ValueError("0 <= leave < enter <= 1, leave_s not negative")
        if min(self.await_ms, self.pressure) < 0 or self.in_flight <= 0:
            raise ValueError("await_ms and pressure are not negative, in_flight is above 0")

    def load_of(self, util: float, await_ms: float, in_flight: float, pressure: float) -> float:
        """0..1."""
        if not self.await_ms:
            return util
        evidence = max(await_ms / self.await_ms, in_flight / self.in_flight)
        if self.pressure:
            evidence = max(evidence, pressure / self.pressure)
        return util * min(1.0, evidence)


@dataclass(frozen=True, slots=True)
class DiskLimit:
    """The most that a volume gives: bytes and requests per second, reads and writes together; 0: not known.

    `source`: the configuration named it, the throttle recognised it, or no limit is known ("").
    """

    bytes_s: float = 0.0
    requests_s: float = 0.0
    source: LimitSource = ""

    def share_of(self, bytes_s: float, requests_s: float) -> float:
        """The greater share used of the two, 0..1; 0 where no limit is known."""
        bytes_share = bytes_s / self.bytes_s if self.bytes_s else 0.0
        requests_share = requests_s / self.requests_s if self.requests_s else 0.0
        return min(1.0, max(bytes_share, requests_share))


NO_LIMIT = DiskLimit()


@dataclass(frozen=True, slots=True)
class DiskSample:
    """A disk over the interval that ended at `at_s`. `interval_s` is 0 where there was none: a first look.

    `await_ms`: mean time of a request that completed, queue included; at least the interval where requests
    were in flight all along and none completed. `in_flight`: at the end; `depth`: on average. `load`: the greater
    of `busy_load` (`BusyRule.load_of`) and `limit_share` (`DiskLimit.share_of`).
    """

    at_s: float
    interval_s: float = 0.0
    util: float = 0.0
    await_ms: float = 0.0
    read_await_ms: float = 0.0
    in_flight: int = 0
    depth: float = 0.0
    read_bytes_s: float = 0.0
    write_bytes_s: float = 0.0
    requests_s: float = 0.0
    pressure_some: float = 0.0
    busy_load: float = 0.0
    limit_share: float = 0.0
    load: float = 0.0
    busy: bool = False


def _grown(before: int, after: int) -> int:
    """By how much a counter has grown; -1 if it was reset."""
    if after >= before:
        return after - before
    around = after + WRAP - before
    return around if 0 <= around < WRAP // 2 else -1


class DiskGauge:
    """One disk: looks at it in, samples out."""

    def __init__(self, rule: BusyRule) -> None:
        self._rule = rule
        self._limit = NO_LIMIT
        self._counters: DiskCounters | None = None
        self._pressure: Pressure | None = None
        self._last: DiskSample | None = None
        self._quiet_s = 0.0
        self.resets = 0

    @property
    def last(self) -> DiskSample | None:
        return self._last

    def set_rule(self, rule: BusyRule) -> None:
        """What counts as busy from the next look on."""
        self._rule = rule

    def set_limit(self, limit: DiskLimit) -> None:
        """The limit whose share is load from the next look on."""
        self._limit = limit

    def forget(self) -> None:
        """The disk has vanished, or its counters cannot be read: the next look is a first one, not busy."""
        self._counters = self._pressure = self._last = None
        self._quiet_s = 0.0

    def observe(
        self, counters: DiskCounters, pressure: Pressure | None, now_s: float
    ) -> DiskSample:
        """A look. Without time since the last one (or a clock that went back) it is that one's sample again."""
        last, before = self._last, self._counters
        if last is not None and now_s <= last.at_s:
            return last
        if last is None or before is None:
            sample = DiskSample(now_s, in_flight=counters.in_flight)
        elif (grown := self._differences(before, counters, now_s - last.at_s)) is None:
            self.resets += 1
            sample = DiskSample(now_s, in_flight=counters.in_flight, busy=last.busy)
        else:
            some = self._pressure_since(pressure, now_s - last.at_s)
            sample = self._measure(
                last, grown, min(before.in_flight, counters.in_flight), some, now_s
            )
        self._counters, self._pressure, self._last = counters, pressure, sample
        return sample

    def _differences(
        self, before: DiskCounters, after: DiskCounters, interval_s: float
    ) -> DiskCounters | None:
        """What has grown, with `in_flight` as it is; None if the counters were reset or are another disk's."""
        grown = [_grown(old, new) for old, new in zip(before[3:], after[3:], strict=True)]
        grown[8] = after.in_flight
        if before[:3] != after[:3] or min(grown) < 0:
            return None
        found = DiskCounters(after.major, after.minor, after.name, *grown)
        return found if found.io_ticks_ms <= interval_s * 1500 + SLACK_MS else None

    def _pressure_since(self, pressure: Pressure | None, interval_s: float) -> float:
        if pressure is None:
            return 0.0
        if self._pressure is None or pressure.some_total_us < self._pressure.some_total_us:
            return pressure.some_avg10
        return min(
            1.0, (pressure.some_total_us - self._pressure.some_total_us) / (interval_s * 1e6)
        )

    def _measure(
        self, last: DiskSample, grown: DiskCounters, stood: int, pressure_some: float, now_s: float
    ) -> DiskSample:
        """`stood`: requests in flight at both ends of the interval."""
        interval_s = now_s - last.at_s
        interval_ms, completed = interval_s * 1000, grown.reads + grown.writes
        hangs = stood > 0 and not completed
        util = 1.0 if hangs else min(1.0, grown.io_ticks_ms / interval_ms)
        await_ms = interval_ms if hangs else (grown.read_ms + grown.write_ms) / max(1, completed)
        depth = max(grown.weighted_ms / interval_ms, float(stood) if hangs else 0.0)
        read_bytes_s = grown.read_sectors * SECTOR_BYTES / interval_s
        write_bytes_s = grown.write_sectors * SECTOR_BYTES / interval_s
        busy_load = self._rule.load_of(util, await_ms, depth, pressure_some)
        limit_share = self._limit.share_of(read_bytes_s + write_bytes_s, completed / interval_s)
        load = max(busy_load, limit_share)
        return DiskSample(
            at_s=now_s,
            interval_s=interval_s,
            util=util,
            await_ms=await_ms,
            read_await_ms=interval_ms if hangs else grown.read_ms / max(1, grown.reads),
            in_flight=grown.in_flight,
            depth=depth,
            read_bytes_s=read_bytes_s,
            write_bytes_s=write_bytes_s,
            requests_s=completed / interval_s,
            pressure_some=pressure_some,
            busy_load=busy_load,
            limit_share=limit_share,
            load=load,
            busy=self._is_busy(last.busy, load, interval_s),
        )

    def _is_busy(self, was: bool, load: float, interval_s: float) -> bool:
        self._quiet_s = self._quiet_s + interval_s if load < self._rule.leave else 0.0
        return load >= self._rule.enter or (was and self._quiet_s < self._rule.leave_s)
