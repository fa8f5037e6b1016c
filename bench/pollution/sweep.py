"""How busy the disk is at each rate of cold reads: laggards on a schedule, the producer as ever.

Owns the steps and their length. Must not know Forebay: the laggards come by the second listener, as the
catch-up lane does. Invariant: open loop below saturation, so that what comes out is the disk's property and
not of whoever steers it; the first two seconds of a step are not counted.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from bench.pollution.figures import disk_between, laggards_between
from bench.pollution.lab import LATE_S, Crew, Lab, Way
from bench.pollution.phases import build_laggards, build_producer, sleep_until
from bench.pollution.sampling import Sampler
from bench.pollution.series import NS, read_rows

if TYPE_CHECKING:
    from pathlib import Path

SHARES = (0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1)  # of the read limit
STEP_S = 8.0
UNCOUNTED_S = 2.0
LEAD_S = 2.0


class Step(NamedTuple):
    """What was asked for and what came of it; the rate is what laggards got."""

    asked_mb_s: float
    rate_mb_s: float
    util: float
    await_ms: float


def run_sweep(lab: Lab, way: Way, directory: Path) -> list[Step]:
    """One step after the other, beside a producer that runs through. LoadFailed."""
    sizes = lab.sizes
    start_ns = time.monotonic_ns() + int(2 * LEAD_S * NS)
    step_ns = int((STEP_S + LEAD_S) * NS)
    end_ns = start_ns + step_ns * len(SHARES)
    sampler = Sampler(lab.disk.name, lab.group.peek_page_cache_bytes, None)
    with Crew(directory / "load.log") as crew, sampler:
        crew.start(build_producer(lab, way, start_ns, end_ns, directory))
        for number, share in enumerate(SHARES):
            begin = start_ns + number * step_ns + int(LEAD_S * NS)
            name, rate = f"step-{number}", share * sizes.read_limit
            step_end, skip = begin + int(STEP_S * NS), number / len(SHARES)
            sleep_until(begin - int(LEAD_S * NS))
            crew.start(build_laggards(lab, way, begin, step_end, directory, rate, name, skip))
        sleep_until(end_ns)
        crew.finish(LATE_S)
    steps = []
    for number, share in enumerate(SHARES):
        begin = start_ns + number * step_ns + int((LEAD_S + UNCOUNTED_S) * NS)
        end = begin + int((STEP_S - UNCOUNTED_S) * NS)
        disk = disk_between(sampler.disk, begin, end)
        rates = laggards_between(
            read_rows(directory / f"step-{number}", 4), sizes.laggards, begin, end
        )
        asked = share * sizes.read_limit / 1e6
        steps.append(Step(round(asked, 1), round(sum(rates), 2), disk["util"], disk["await_ms"]))
    return steps
