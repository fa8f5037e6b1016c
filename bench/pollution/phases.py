"""One arm, run: quiet, polluted, and where wanted one tailing consumer's pause; everything it left, in files.

Owns the timetable, given to the load processes beforehand in times of the monotonic clock, so that nobody
needs to talk to them. Must not know bars. Invariants: laggards start when the polluted phase does, not
before; producer and tails run through all phases without a break.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from bench.pollution.lab import LATE_S, TOPIC, Crew, Lab, Way
from bench.pollution.sampling import Sampler
from bench.pollution.series import NS

if TYPE_CHECKING:
    from pathlib import Path

JOIN_S = 6.0  # until producers and groups stand ready
LEAD_S = 2.0  # until laggards stand ready


class Timetable(NamedTuple):
    """ns of the monotonic clock; pause and resume are equal where nobody pauses."""

    quiet: int
    polluted: int
    paused: int
    resumed: int
    end: int


class Ran(NamedTuple):
    """What is left of an arm: its files are producer, tail-<n>, laggards in `directory`."""

    times: Timetable
    directory: Path
    sampler: Sampler


def plan_times(
    start_ns: int, quiet_s: float, polluted_s: float, pause_s: float, recover_s: float
) -> Timetable:
    """`pause_s` 0: no pause, and no time to recover from it."""
    polluted = start_ns + int(quiet_s * NS)
    paused = polluted + int(polluted_s * NS)
    resumed = paused + int(pause_s * NS)
    end = resumed + (int(recover_s * NS) if pause_s else 0)
    return Timetable(start_ns, polluted, paused, resumed, end)


def run_arm(lab: Lab, way: Way, directory: Path, *, with_pause: bool) -> Ran:
    """Run the phases. LoadFailed."""
    sizes = lab.sizes
    start_ns = time.monotonic_ns() + int(JOIN_S * NS)
    times = plan_times(
        start_ns,
        sizes.quiet_s,
        sizes.polluted_s,
        sizes.paused_s if with_pause else 0.0,
        sizes.recover_s,
    )
    scrape = way.sidecar.metrics if way.sidecar else None
    sampler = Sampler(lab.disk.name, lab.group.peek_page_cache_bytes, scrape)
    with Crew(directory / "load.log") as crew, sampler:
        for number in range(1, sizes.groups + 1):
            crew.start(_tail(way, times, number, directory))
        crew.start(build_producer(lab, way, times.quiet, times.end, directory))
        sleep_until(times.polluted - int(LEAD_S * NS))
        crew.start(build_laggards(lab, way, times.polluted, times.end, directory, skip=lab.skip))
        sleep_until(times.end)
        crew.finish(LATE_S)
    return Ran(times, directory, sampler)


def _tail(way: Way, times: Timetable, number: int, directory: Path) -> list[str]:
    command = [
        "tailing",
        "--bootstrap",
        way.bootstrap,
        "--topic",
        TOPIC,
        "--client",
        f"tail-{number}",
    ]
    command += ["--start-ns", str(times.quiet), "--end-ns", str(times.end)]
    if number == 1 and times.resumed > times.paused:
        command += ["--pause-ns", str(times.paused), "--resume-ns", str(times.resumed)]
    return [*command, "--out", str(directory / f"tail-{number}")]


def build_producer(lab: Lab, way: Way, start_ns: int, end_ns: int, directory: Path) -> list[str]:
    """The command of the steady producer."""
    sizes = lab.sizes
    command = ["producing", "--bootstrap", way.bootstrap, "--topic", TOPIC, "--client", "producer"]
    command += ["--partitions", str(sizes.partitions), "--size", str(sizes.record_bytes)]
    command += ["--rate", str(sizes.rate), "--start-ns", str(start_ns), "--end-ns", str(end_ns)]
    return [*command, "--out", str(directory / "producer")]


def build_laggards(
    lab: Lab,
    way: Way,
    start_ns: int,
    end_ns: int,
    directory: Path,
    rate: float = 0.0,
    name: str = "laggards",
    skip: float = 0.0,
) -> list[str]:
    """The command of all laggards; `rate` in bytes/s of all together, 0 as fast as they are answered; `skip`:
    where in their stretches they begin, as a share.
    """
    command = ["lagging", "--bootstrap", way.laggards, "--topic", TOPIC]
    command += ["--ends", ",".join(map(str, lab.ends)), "--laggards", str(lab.sizes.laggards)]
    command += ["--start-ns", str(start_ns), "--end-ns", str(end_ns), "--rate", str(rate)]
    return [*command, "--skip", f"{skip:.3f}", "--out", str(directory / name)]


def sleep_until(at_ns: int) -> None:
    """In ns of the monotonic clock."""
    time.sleep(max(0.0, (at_ns - time.monotonic_ns()) / 1e9))
