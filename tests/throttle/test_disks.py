"""Texts of diskstats and pressure files, differences of counters, and the rule of a busy disk."""

from typing import Any

import pytest

from throttle.disks import (
    BusyRule,
    DiskCounters,
    DiskGauge,
    DiskLimit,
    DiskSample,
    Pressure,
    scan_diskstats,
    scan_pressure,
)

FIELDS_14 = "   8       0 sda 100 1 2000 300 400 5 6000 700 8 900 1000"
FIELDS_18 = " 259       0 nvme0n1 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15"
FIELDS_20 = " 254      16 vdb 1 2 3 4 5 6 7 8 9 10 11 0 0 0 0 7 8"
PRESSURE = "some avg10=12.50 avg60=1.00 avg300=0.10 total=5000000\nfull avg10=2.00 avg60=0 avg300=0 total=70\n"


def test_lines_of_every_kernel() -> None:
    found = scan_diskstats("\n".join([FIELDS_14, FIELDS_18, "", FIELDS_20 + " 99 100"]))
    assert found.odd_lines == 0
    assert found.disks["sda"] == DiskCounters(
        8, 0, "sda", 100, 1, 2000, 300, 400, 5, 6000, 700, 8, 900, 1000
    )
    assert found.disks["nvme0n1"].weighted_ms == 11
    assert found.disks["vdb"].in_flight == 9
    assert found.find(254, 16) == found.disks["vdb"]
    assert found.find(254, 17) is None


@pytest.mark.parametrize(
    "line",
    [
        "8 0 sda 1 2 3",
        "8 x sda" + " 1" * 11,
        "8 0 sda" + " -1" * 11,
        "8 0 sda" + " 1.5" * 11,
        "garbage",
    ],
)
def test_odd_lines_are_counted(line: str) -> None:
    found = scan_diskstats(f"{FIELDS_14}\n{line}\n")
    assert (list(found.disks), found.odd_lines) == (["sda"], 1)


def test_pressure() -> None:
    assert scan_pressure(PRESSURE) == Pressure(0.125, 0.02, 5_000_000, 70)
    assert scan_pressure(PRESSURE.splitlines()[0]) == Pressure(0.125, 0.0, 5_000_000, 0)


@pytest.mark.parametrize(
    "text", ["", "full avg10=1 total=2", "some avg10=x total=1", "some avg10=1", "some"]
)
def test_odd_pressure_is_none(text: str) -> None:
    assert scan_pressure(text) is None


def counters(**changed: Any) -> DiskCounters:
    return DiskCounters(8, 0, "sda", *[0] * 11)._replace(**changed)


def look_twice(
    rule: BusyRule, before: DiskCounters, after: DiskCounters, interval_s: float = 1.0
) -> DiskSample:
    gauge = DiskGauge(rule)
    gauge.observe(before, None, 100.0)
    return gauge.observe(after, None, 100.0 + interval_s)


def test_first_look_says_nothing() -> None:
    assert DiskGauge(BusyRule()).observe(
        counters(io_ticks_ms=9, in_flight=3), None, 5.0
    ) == DiskSample(5.0, in_flight=3)


def test_measures() -> None:
    after = counters(
        reads=80, read_sectors=4096, read_ms=1600, writes=20, write_sectors=1024, write_ms=100
    )
    after = after._replace(in_flight=2, io_ticks_ms=1200, weighted_ms=1700)
    sample = look_twice(BusyRule(), counters(), after, interval_s=2.0)
    assert (sample.util, sample.await_ms, sample.read_await_ms) == pytest.approx((0.6, 17.0, 20.0))
    assert (sample.depth, sample.in_flight) == (pytest.approx(0.85), 2)
    assert (sample.read_bytes_s, sample.write_bytes_s) == (4096 * 256, 1024 * 256)
    assert sample.load == pytest.approx(0.6)
    assert sample.busy


def test_util_is_at_most_one() -> None:
    assert look_twice(BusyRule(await_ms=0), counters(), counters(io_ticks_ms=1100)).util == 1.0


def test_no_elapsed_time_gives_the_same_sample() -> None:
    gauge = DiskGauge(BusyRule())
    gauge.observe(counters(), None, 1.0)
    sample = gauge.observe(counters(io_ticks_ms=500), None, 2.0)
    assert gauge.observe(counters(io_ticks_ms=900), None, 2.0) is sample
    assert gauge.observe(counters(io_ticks_ms=900), None, 1.5) is sample
    assert gauge.observe(counters(io_ticks_ms=900), None, 3.0).util == pytest.approx(0.4)


def test_counters_wrap_at_32_bits() -> None:
    before = counters(io_ticks_ms=(1 << 32) - 100, read_ms=(1 << 32) - 7, reads=5)
    sample = look_twice(BusyRule(), before, counters(io_ticks_ms=400, read_ms=13, reads=10))
    assert (sample.util, sample.await_ms) == pytest.approx((0.5, 4.0))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (counters(reads=1000), counters(reads=3)),
        (counters(), counters(io_ticks_ms=9_000_000)),
        (counters(), counters()._replace(minor=1)),
    ],
    ids=["fell", "leapt", "another disk"],
)
def test_reset_is_a_first_look_and_keeps_busy(before: DiskCounters, after: DiskCounters) -> None:
    gauge = DiskGauge(BusyRule(await_ms=0))
    gauge.observe(before._replace(io_ticks_ms=0), None, 9.0)
    assert gauge.observe(before._replace(io_ticks_ms=1000), None, 10.0).busy
    sample = gauge.observe(after._replace(io_ticks_ms=after.io_ticks_ms or 1000), None, 11.0)
    assert (sample.interval_s, sample.busy, gauge.resets) == (0.0, True, 1)


def test_vanished_disk_comes_back_not_busy() -> None:
    gauge = DiskGauge(BusyRule(await_ms=0))
    gauge.observe(counters(), None, 1.0)
    assert gauge.observe(counters(io_ticks_ms=1000), None, 2.0).busy
    gauge.forget()
    assert gauge.last is None
    assert not gauge.observe(counters(io_ticks_ms=9000), None, 9.0).busy


def test_disk_that_hangs_is_full() -> None:
    """Newer kernels count ticks when a request ends: without one they show an idle disk."""
    sample = look_twice(BusyRule(), counters(in_flight=4), counters(in_flight=3))
    assert (sample.util, sample.await_ms, sample.depth, sample.load) == (1.0, 1000.0, 3.0, 1.0)


@pytest.mark.parametrize(
    ("what", "await_ms", "in_flight", "load"),
    [
        ("nvme, two streams", 0.1, 2.0, 0.25),
        ("nvme, full", 1.0, 32.0, 1.0),
        ("slow disk, one stream", 6.0, 1.0, 1.0),
        ("idle cache of a controller", 0.05, 0.1, 0.025),
    ],
)
def test_util_counts_as_far_as_requests_wait(
    what: str, await_ms: float, in_flight: float, load: float
) -> None:
    assert BusyRule().load_of(1.0, await_ms, in_flight, 1.0) == pytest.approx(load), what


@pytest.mark.parametrize(
    ("limit", "share"),
    [
        (DiskLimit(), 0.0),
        (DiskLimit(bytes_s=60e6, source="named"), 0.5),
        (DiskLimit(requests_s=1000, source="named"), 0.4),
        (DiskLimit(60e6, 1000, "named"), 0.5),
        (DiskLimit(60e6, 500, "named"), 0.8),
        (DiskLimit(20e6, 0.0, "named"), 1.0),
    ],
)
def test_share_used_of_a_limit_is_load(limit: DiskLimit, share: float) -> None:
    """30 MB/s in 400 requests, reads and writes together, on a device that is busy for a tenth of the time."""
    gauge = DiskGauge(BusyRule())
    gauge.set_limit(limit)
    gauge.observe(counters(), None, 1.0)
    after = counters(reads=600, read_sectors=80_000_000 // 1024, writes=200, read_ms=1600)
    after = after._replace(write_sectors=40_000_000 // 1024, io_ticks_ms=200, weighted_ms=1600)
    sample = gauge.observe(after, None, 3.0)
    assert (sample.requests_s, sample.busy_load) == (400.0, pytest.approx(0.1))
    assert sample.limit_share == pytest.approx(share, rel=1e-4)
    assert sample.load == pytest.approx(max(0.1, share), rel=1e-4)
    assert sample.busy == (sample.load >= BusyRule().enter)


def test_measured_load_above_the_share_of_a_limit_counts() -> None:
    gauge = DiskGauge(BusyRule(await_ms=0))
    gauge.set_limit(DiskLimit(bytes_s=60e6, source="named"))
    gauge.observe(counters(), None, 1.0)
    sample = gauge.observe(counters(read_sectors=2000, io_ticks_ms=900), None, 2.0)
    assert sample.load == pytest.approx(0.9)


def test_pressure_counts_where_asked_for() -> None:
    assert BusyRule(pressure=0.5).load_of(0.8, 0.0, 0.0, 0.25) == pytest.approx(0.4)
    assert BusyRule().load_of(0.8, 0.0, 0.0, 1.0) == 0.0


def test_pressure_over_the_interval() -> None:
    gauge = DiskGauge(BusyRule())
    gauge.observe(counters(), Pressure(0.5, 0.0, 1_000_000, 0), 1.0)
    assert gauge.observe(
        counters(), Pressure(0.5, 0.0, 1_200_000, 0), 2.0
    ).pressure_some == pytest.approx(0.2)
    assert (
        gauge.observe(counters(), Pressure(0.5, 0.0, 0, 0), 3.0).pressure_some == 0.5
    )  # total was reset
    assert gauge.observe(counters(), None, 4.0).pressure_some == 0.0


def test_busy_has_hysteresis() -> None:
    gauge = DiskGauge(BusyRule(await_ms=0, enter=0.5, leave=0.3, leave_s=2.0))
    ticks, seen = 0, []
    for second, util in enumerate([0, 490, 500, 400, 290, 310, 290, 290, 400, 499, 500]):
        ticks += util
        seen.append(gauge.observe(counters(io_ticks_ms=ticks), None, float(second)).busy)
    assert seen == [False, False, True, True, True, True, True, False, False, False, True]


@pytest.mark.parametrize(
    "wrong",
    [{"enter": 0.3}, {"leave": -0.1}, {"leave_s": -1.0}, {"in_flight": 0}, {"await_ms": -1}],
)
def test_rules_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"enter|await"):
        BusyRule(**wrong)
