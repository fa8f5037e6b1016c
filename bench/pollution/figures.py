"""From what an arm left to its figures: percentiles by phase, the disk, the laggards, and their course in time.

Owns the arithmetic between raw rows and the report; every figure has its unit in its name. Must not know bars.
Invariants: a record belongs to the phase in which it was *due*; latencies that no answer ended count with the
time waited; the laggards' rate and the disk's are over the same seconds.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.pollution.series import NS, read_rows
from bench.stolen import share

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from bench.pollution.arms import Sizes
    from bench.pollution.phases import Ran
    from bench.pollution.sampling import DiskSample, Scrape
    from bench.stolen import Ticks

CAUGHT_UP_MS = 100.0
FETCH_BYTES = "forebay_fetch_bytes_total"
BUDGET = "forebay_throttle_rate_bytes_per_second"
LIMIT = "forebay_throttle_disk_limit_bytes_per_second"
WINDOW_S = 10.0
SETTLE_S = 20.0
LOOK_S = 0.5
"""`throttle.sampleEvery`."""


def percentiles(values: NDArray[np.float64]) -> dict[str, float]:
    """p50, p99, p99.9 and the largest, in the values' unit; empty for no values."""
    if not len(values):
        return {}
    marks = np.percentile(values, [50, 99, 99.9, 100])
    return {
        name: round(float(mark), 2)
        for name, mark in zip(("p50", "p99", "p999", "max"), marks, strict=True)
    }


def latency_between(rows: NDArray[np.int64], start_ns: int, end_ns: int) -> NDArray[np.float64]:
    """ms of the records due from start to end; columns 0 and 1 are due and latency in ns."""
    due = rows[:, 0]
    found: NDArray[np.float64] = rows[(due >= start_ns) & (due < end_ns), 1] / 1e6
    return found


def by_second(rows: NDArray[np.int64], start_ns: int, end_ns: int) -> list[float | None]:
    """The 99th percentile in ms of each second's records."""
    second = (rows[:, 0] - start_ns) // NS
    found: list[float | None] = []
    for number in range((end_ns - start_ns) // NS):
        values = rows[second == number, 1]
        found.append(round(float(np.percentile(values, 99)) / 1e6, 2) if len(values) else None)
    return found


def disk_between(samples: Sequence[DiskSample], start_ns: int, end_ns: int) -> dict[str, float]:
    """Utilisation (0 to 1), read and written MB/s and await in ms between two times."""
    chosen = [one for one in samples if start_ns <= one.at_ns <= end_ns]
    if len(chosen) < 2:
        return {}
    first, last = chosen[0], chosen[-1]
    seconds = (last.at_ns - first.at_ns) / NS
    reads = max(last.reads - first.reads, 1)
    return {
        "util": round((last.busy_ms - first.busy_ms) / 1000 / seconds, 3),
        "read_mb_s": round((last.read_bytes - first.read_bytes) / 1e6 / seconds, 2),
        "write_mb_s": round((last.write_bytes - first.write_bytes) / 1e6 / seconds, 2),
        "await_ms": round((last.read_ms - first.read_ms) / reads, 2),
    }


def stolen_between(ticks: Sequence[tuple[int, Ticks]], start_ns: int, end_ns: int) -> float:
    """The share of the processors' time, 0 to 1, that a hypervisor took away between two times."""
    chosen = [one for at_ns, one in ticks if start_ns <= at_ns <= end_ns]
    return round(share(chosen[0], chosen[-1]), 4) if chosen else 0.0


def laggards_between(
    rows: NDArray[np.int64], count: int, start_ns: int, end_ns: int
) -> list[float]:
    """MB/s of each laggard by the time its answers came."""
    done = rows[:, 1] + rows[:, 2]
    seconds = (end_ns - start_ns) / NS
    inside = rows[(done >= start_ns) & (done < end_ns)]
    return [
        round(float(inside[inside[:, 0] == n, 3].sum()) / 1e6 / seconds, 3) for n in range(count)
    ]


def settled_utils(samples: Sequence[DiskSample], start_ns: int, end_ns: int) -> list[float]:
    """Means of the utilisation over consecutive 10 s, from 20 s after the laggards' start."""
    found = []
    at = start_ns + int(SETTLE_S * NS)
    while at + int(WINDOW_S * NS) <= end_ns:
        one = disk_between(samples, at, at + int(WINDOW_S * NS))
        found += [one["util"]] if one else []
        at += int(WINDOW_S * NS)
    return found


def limit_figures(
    scrapes: Sequence[Scrape], samples: Sequence[DiskSample], start_ns: int, end_ns: int
) -> dict[str, Any]:
    """The limit that Forebay's throttle used at `end_ns`, by its scrape, in MB/s (None: none), its source, and since
    when, in s from `start_ns`. `shares`: of the limit, what the disk carried, means over consecutive 10 s, from 10 s
    after it was known. A look's time in which it carried more counts as 1, as the throttle counts it: the lab's limit
    is on reads, and a flush of writes may exceed it.
    """
    said = [
        (one.at_ns, key[-1], value / 1e6)
        for one in scrapes
        if one.at_ns < end_ns
        for key, value in one.samples.items()
        if key[0] == LIMIT
    ]
    last_scrape_ns = max((one.at_ns for one in scrapes if one.at_ns < end_ns), default=0)
    if not said or said[-1][0] < last_scrape_ns:
        return {"mb_s": None, "source": "", "known_s": None, "shares": []}
    mb_s = said[-1][2]
    known_ns = max(start_ns, min(at_ns for at_ns, _, value in said if value == mb_s))
    shares = []
    at = known_ns + int(WINDOW_S * NS)
    while at + int(WINDOW_S * NS) <= end_ns:
        end = at + int(WINDOW_S * NS)
        carried = list(carried_mb_s(samples, at, end))
        shares += [round(fmean(min(1.0, one / mb_s) for one in carried), 3)] if carried else []
        at = end
    known_s = round((known_ns - start_ns) / NS, 1)
    return {"mb_s": round(mb_s, 2), "source": said[-1][1], "known_s": known_s, "shares": shares}


def carried_mb_s(samples: Sequence[DiskSample], start_ns: int, end_ns: int) -> Iterator[float]:
    """MB/s read and written in each LOOK_S between two times, by the last sample before each of its ends."""
    ends = range(start_ns, end_ns + 1, int(LOOK_S * NS))
    found = [max((one for one in samples if one.at_ns <= at), default=None) for at in ends]
    for first, last in pairwise(one for one in found if one is not None):
        seconds = (last.at_ns - first.at_ns) / NS
        grown = last.read_bytes - first.read_bytes + last.write_bytes - first.write_bytes
        if seconds > 0:
            yield grown / 1e6 / seconds


def catch_up_s(rows: NDArray[np.int64], resumed_ns: int) -> float | None:
    """Seconds from the end of a consumer's pause until it reads records at most 100 ms old; None: never."""
    arrived = rows[:, 0] + rows[:, 1]
    fresh = rows[(arrived >= resumed_ns) & (rows[:, 1] <= CAUGHT_UP_MS * 1e6)]
    if not len(fresh):
        return None
    return round(float((fresh[:, 0] + fresh[:, 1]).min() - resumed_ns) / NS, 3)


def read_bytes_by_reason(scrapes: Sequence[Scrape], start_ns: int) -> dict[str, int]:
    """Record bytes handed to clients since the last scrape before `start_ns`: "result reason" -> bytes above 0."""
    before = [one.samples for one in scrapes if one.at_ns < start_ns]
    if not before:
        return {}
    first, last = before[-1], scrapes[-1].samples
    found: dict[str, int] = {}
    for key, value in last.items():
        grown = round(value - first.get(key, 0.0)) if key[0] == FETCH_BYTES else 0
        if grown:
            found[f"{key[2]} {key[1]}".strip()] = grown
    return found


def tail_miss_bytes(by_reason: Mapping[str, int], laggards: NDArray[np.int64]) -> int:
    """What Forebay handed out and memory did not serve, beyond what the laggards got: the tails' share.

    Below 0: memory served laggards. Exact where no laggard's last Fetch was left unanswered.
    """
    return sum(size for reason, size in by_reason.items() if reason != "hit") - int(
        laggards[:, 3].sum()
    )


def phase_figures(
    producer: NDArray[np.int64], tails: NDArray[np.int64], start: int, end: int
) -> dict[str, Any]:
    """Latencies of one phase, and how much of what was due was acknowledged in it."""
    acked = producer[producer[:, 2] == 1]
    done = acked[:, 0] + acked[:, 1]
    held = ((done >= start) & (done < end)).sum() / ((end - start) / NS)
    return {
        "produce_ms": percentiles(latency_between(producer, start, end)),
        "end_to_end_ms": percentiles(latency_between(tails, start, end)),
        "acknowledged_per_s": round(float(held), 1),
    }


def build_figures(ran: Ran, sizes: Sizes, *, with_pause: bool) -> dict[str, Any]:
    """Everything of one arm in one round, as plain values for JSON."""
    times, disk = ran.times, ran.sampler.disk
    producer = read_rows(ran.directory / "producer", 3)
    each = [read_rows(ran.directory / f"tail-{n}", 2) for n in range(1, sizes.groups + 1)]
    tails = np.concatenate(each)
    lag = read_rows(ran.directory / "laggards", 4)
    polluted_end = times.paused
    lag_rates = laggards_between(lag, sizes.laggards, times.polluted, polluted_end)
    settled_from = min(times.polluted + int(SETTLE_S * NS), (times.polluted + polluted_end) // 2)
    figures: dict[str, Any] = {
        "quiet": phase_figures(producer, tails, times.quiet, times.polluted),
        "polluted": phase_figures(producer, tails, times.polluted, polluted_end),
        "disk_quiet": disk_between(disk, times.quiet, times.polluted),
        "disk_polluted": disk_between(disk, times.polluted, polluted_end),
        "laggards_mb_s": round(sum(lag_rates), 2),
        "laggards_settled_mb_s": laggards_between(lag, sizes.laggards, settled_from, polluted_end),
        "settled_s": (polluted_end - settled_from) / NS,
        "settled_utils": settled_utils(disk, times.polluted, polluted_end),
        "page_cache_mb": round(
            max((size for _, size in ran.sampler.page_cache), default=0) / 1e6, 1
        ),
        "stolen": {
            phase: stolen_between(ran.sampler.ticks, start, end)
            for phase, start, end in (
                ("quiet", times.quiet, times.polluted),
                ("polluted", times.polluted, polluted_end),
                ("pause", times.paused, times.end),
            )
        },
        "course": build_course(
            ran, producer, np.concatenate(each[1:]) if with_pause else tails, lag
        ),
    }
    if ran.sampler.scrapes:
        by_reason = read_bytes_by_reason(ran.sampler.scrapes, times.polluted)
        figures |= {
            "bytes_by_reason": by_reason,
            "tail_miss_bytes": tail_miss_bytes(by_reason, lag),
        }
    if sizes.limited:
        used = limit_figures(ran.sampler.scrapes, disk, times.polluted, polluted_end)
        figures["limit"] = {**used, "read_limit_mb_s": sizes.read_limit / 1e6}
    if with_pause:
        figures["pause"] = {
            "caught_up_s": catch_up_s(each[0], times.resumed),
            **phase_figures(producer, np.concatenate(each[1:]), times.paused, times.end),
        }
    return figures


def build_course(
    ran: Ran, producer: NDArray[np.int64], tails: NDArray[np.int64], lag: NDArray[np.int64]
) -> dict[str, Any]:
    """The run second by second, for the plots; `tails` without the one that pauses."""
    times = ran.times
    seconds = range((times.end - times.quiet) // NS)
    bounds = [(times.quiet + n * NS, times.quiet + (n + 1) * NS) for n in seconds]
    done = lag[:, 1] + lag[:, 2]
    disk = [disk_between(ran.sampler.disk, start - NS // 4, end) for start, end in bounds]
    return {
        "polluted_at_s": (times.polluted - times.quiet) / NS,
        "paused_at_s": (times.paused - times.quiet) / NS,
        "resumed_at_s": (times.resumed - times.quiet) / NS,
        "produce_p99_ms": by_second(producer, times.quiet, times.end),
        "end_to_end_p99_ms": by_second(tails, times.quiet, times.end),
        "util": [one.get("util") for one in disk],
        "stolen": [
            stolen_between(ran.sampler.ticks, start - NS // 4, end) for start, end in bounds
        ],
        "read_mb_s": [one.get("read_mb_s") for one in disk],
        "laggards_mb_s": [
            round(float(lag[(done >= start) & (done < end), 3].sum()) / 1e6, 2)
            for start, end in bounds
        ],
        "budget_mb_s": _budget(ran, bounds),
    }


def _budget(ran: Ran, bounds: Sequence[tuple[int, int]]) -> list[float | None]:
    """What Forebay's controller allowed, by its scrape; None where it said nothing."""
    found: list[float | None] = []
    for start, end in bounds:
        said = [
            value
            for scrape in ran.sampler.scrapes
            if start <= scrape.at_ns < end
            for key, value in scrape.samples.items()
            if key[0] == BUDGET
        ]
        found.append(round(said[-1] / 1e6, 2) if said else None)
    return found
