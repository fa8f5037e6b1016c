"""The limit of a volume that nobody named: probes that meet it, probes that do not, and volumes of the model.

The model of a token bucket carries 200 MB/s until its burst is spent, and 60 MB/s from then on.
"""

import random
from dataclasses import dataclass
from itertools import pairwise

import pytest

from tests.kit.examples import examples
from tests.kit.model_disk import ModelDisk
from tests.kit.throttle_simulation import Event, Run, Simulation
from throttle.disks import NO_LIMIT, DiskLimit, DiskSample
from throttle.limit_recognition import (
    ASKED_MORE,
    BEYOND_LOOKS,
    EXPIRES_S,
    LOOKS_BEFORE,
    PAUSE_FIRST_S,
    PAUSE_MOST_S,
    PROBE_S,
    LimitRecognition,
    ProbeResult,
)
from throttle.throttle import ThrottleRules

MB = 1e6
TARGET = 0.6
WRITES = 5 * MB
PROBE_LOOKS = round(PROBE_S)
REFUSED, FOLLOWED, UNCLEAR = ProbeResult.REFUSED, ProbeResult.FOLLOWED, ProbeResult.UNCLEAR
KNOWN_AFTER = 2 * (LOOKS_BEFORE + PROBE_LOOKS)
"""Looks at a limit until it is known."""


@dataclass
class Volume:
    """What a look at it shows while `asked` times what came before is asked for; by default it is at its limit."""

    came_bytes_s: float = 60 * MB
    load: float = 0.6
    await_ms: float = 4.0
    probed_bytes_s: float = 60 * MB
    probed_load: float = 0.9
    probed_await_ms: float = 8.0
    waited: bool = True
    interval_s: float = 1.0

    def show(self, is_probed: bool) -> tuple[DiskSample, float]:
        """The sample, and what misses got in bytes/s."""
        came, load, await_ms = (
            (self.probed_bytes_s, self.probed_load, self.probed_await_ms)
            if is_probed
            else (self.came_bytes_s, self.load, self.await_ms)
        )
        sample = DiskSample(
            0.0,
            interval_s=self.interval_s,
            read_bytes_s=came,
            write_bytes_s=WRITES,
            busy_load=load,
            await_ms=await_ms,
        )
        return sample, came


class Watched:
    """A recognition that is shown a volume, look by look."""

    def __init__(self) -> None:
        self.recognition = LimitRecognition(TARGET)
        self.now_s = 0.0

    @property
    def limit(self) -> DiskLimit:
        return self.recognition.limit

    def show(self, volume: Volume, looks: int = 1) -> DiskLimit:
        for _ in range(looks):
            sample, came = volume.show(self.recognition.probe_bytes_s > 0)
            self.now_s += sample.interval_s
            miss_bytes = round(came * sample.interval_s)
            self.recognition.observe(sample, miss_bytes, volume.waited, self.now_s)
        return self.limit

    def count(self, result: ProbeResult) -> int:
        return self.recognition.probes[result]


def test_level_that_two_probes_meet_is_a_limit() -> None:
    watched, volume = Watched(), Volume()
    for _ in range(2):
        watched.show(volume, LOOKS_BEFORE - 1)
        assert watched.recognition.probe_bytes_s == 0
        watched.show(volume)
        assert watched.recognition.probe_bytes_s == pytest.approx(ASKED_MORE * 60 * MB)
        assert watched.show(volume, PROBE_LOOKS - 1) == NO_LIMIT
        watched.show(volume)
        assert watched.recognition.probe_bytes_s == 0
    assert (watched.limit.requests_s, watched.limit.source) == (0.0, "recognised")
    assert watched.limit.bytes_s == pytest.approx(65 * MB)
    assert watched.count(REFUSED) == 2


@pytest.mark.parametrize("interval_s", [0.05, 0.25, 0.5])
def test_short_looks_are_put_together(interval_s: float) -> None:
    watched, volume = Watched(), Volume(interval_s=interval_s)
    assert watched.show(volume, round((KNOWN_AFTER - 1) / interval_s)) == NO_LIMIT
    watched.show(volume, round(1 / interval_s) + 1)
    assert watched.limit.bytes_s == pytest.approx(65 * MB)


@pytest.mark.parametrize(
    ("volume", "result"),
    [
        (Volume(probed_bytes_s=72 * MB), FOLLOWED),
        (Volume(probed_bytes_s=67.5 * MB), FOLLOWED),
        (Volume(probed_bytes_s=66 * MB), UNCLEAR),
        (Volume(probed_bytes_s=64 * MB), UNCLEAR),
        (Volume(probed_bytes_s=50 * MB), UNCLEAR),
        (Volume(probed_load=0.65), UNCLEAR),
        (Volume(probed_await_ms=4.5), UNCLEAR),
    ],
    ids=[
        "what is allowed comes",
        "most of it comes",
        "half of it comes",
        "a third of it comes",
        "less comes",
        "the disk is not busier",
        "requests wait no longer",
    ],
)
def test_each_of_these_shows_no_limit(volume: Volume, result: ProbeResult) -> None:
    watched = Watched()
    assert watched.show(volume, 20 * LOOKS_BEFORE) == NO_LIMIT
    assert watched.count(result) == watched.recognition.probes.total() > 0


@pytest.mark.parametrize(
    "volume",
    [Volume(waited=False), Volume(load=0.5), Volume(load=0.1), Volume(came_bytes_s=0.0)],
    ids=[
        "nothing waits",
        "the load is below the target",
        "the page cache answers",
        "the disk hangs",
    ],
)
def test_each_of_these_is_not_probed(volume: Volume) -> None:
    watched = Watched()
    watched.show(volume, 20 * LOOKS_BEFORE)
    assert watched.recognition.probes.total() == 0 == watched.recognition.probe_bytes_s


@pytest.mark.parametrize(
    "pause",
    [Volume(waited=False), Volume(interval_s=5.0)],
    ids=["nothing waits", "a look took long"],
)
@pytest.mark.parametrize("before", [1, LOOKS_BEFORE - 1, LOOKS_BEFORE, LOOKS_BEFORE + 1])
def test_looks_start_anew_after(pause: Volume, before: int) -> None:
    watched = Watched()
    for _ in range(10):
        watched.show(Volume(), before)
        watched.show(pause)
        assert watched.recognition.probe_bytes_s == 0
    assert watched.recognition.probes.total() == 0
    assert watched.show(Volume(), KNOWN_AFTER - 1) == NO_LIMIT
    assert watched.show(Volume()) != NO_LIMIT


def test_two_probes_that_meet_other_levels_show_none() -> None:
    watched = Watched()
    for number in range(10):
        level = (60 if number % 2 else 50) * MB
        volume = Volume(came_bytes_s=level, probed_bytes_s=level)
        assert watched.show(volume, LOOKS_BEFORE + PROBE_LOOKS) == NO_LIMIT
    assert watched.count(REFUSED) == 10


@pytest.mark.parametrize("scattered", [2, 3])
def test_looks_between_two_probes_must_be_level(scattered: int) -> None:
    watched = Watched()
    for _ in range(2):
        watched.show(Volume(came_bytes_s=50 * MB), scattered)
        watched.show(Volume(), LOOKS_BEFORE - scattered + PROBE_LOOKS)
    assert watched.count(REFUSED) == 2
    assert (watched.limit != NO_LIMIT) == (scattered == 2)


@pytest.mark.parametrize("probed_mb", [72, 66], ids=["follows", "unclear"])
def test_disk_that_shows_none_is_probed_ever_more_seldom(probed_mb: int) -> None:
    watched, volume = Watched(), Volume(probed_bytes_s=probed_mb * MB)
    ends: list[float] = []
    while watched.now_s < 6 * PAUSE_MOST_S:
        before = watched.recognition.probes.total()
        watched.show(volume)
        ends += [watched.now_s] * (watched.recognition.probes.total() - before)
    pauses = [later - one - PROBE_LOOKS for one, later in pairwise(ends)]
    assert pauses[:6] == [PAUSE_FIRST_S * 2**n for n in range(6)]
    assert set(pauses[6:]) == {PAUSE_MOST_S}


def test_pause_is_over_when_less_comes() -> None:
    """A burst is followed for an hour, and its end makes a probe unclear. The limit is known soon all the same."""
    watched = Watched()
    burst = Volume(came_bytes_s=200 * MB, probed_bytes_s=240 * MB)
    assert watched.show(burst, 3600) == NO_LIMIT
    watched.show(Volume(), LOOKS_BEFORE + PROBE_LOOKS + round(PAUSE_FIRST_S) + KNOWN_AFTER)
    assert watched.limit.bytes_s == pytest.approx(65 * MB)


def test_limit_ends_when_it_expires_and_when_more_is_carried() -> None:
    watched = Watched()
    limit = watched.show(Volume(), KNOWN_AFTER)
    calm = Volume(came_bytes_s=34 * MB, load=0.05)
    assert watched.show(calm, round(EXPIRES_S) - 1) == limit != NO_LIMIT
    assert watched.show(calm) == NO_LIMIT
    assert watched.show(Volume(), KNOWN_AFTER) == limit
    assert watched.show(Volume(came_bytes_s=66 * MB, load=0.05)) == limit
    beyond = Volume(came_bytes_s=67 * MB, load=0.05)
    assert watched.show(beyond, BEYOND_LOOKS - 1) == limit
    assert watched.show(calm) == limit
    assert watched.show(beyond, BEYOND_LOOKS - 1) == limit
    assert watched.show(beyond) == NO_LIMIT


def test_lower_limit_takes_the_place_of_a_higher_one() -> None:
    watched = Watched()
    watched.show(Volume(), KNOWN_AFTER)
    watched.show(Volume(came_bytes_s=25 * MB, probed_bytes_s=25 * MB), KNOWN_AFTER)
    assert watched.limit.bytes_s == pytest.approx(30 * MB)


def test_other_target_starts_anew() -> None:
    watched = Watched()
    watched.show(Volume(), LOOKS_BEFORE)
    assert watched.recognition.probe_bytes_s > 0
    watched.recognition.set_target(0.7)
    assert watched.recognition.probe_bytes_s == 0
    watched.show(Volume(load=0.6), KNOWN_AFTER)
    assert watched.limit != NO_LIMIT


# -- volumes of the model --------------------------------------------------------------------------


def change(**changes: float) -> Event:
    def apply(simulation: Simulation) -> None:
        for name, value in changes.items():
            setattr(simulation.disk, name, value)

    return apply


def play(disk: ModelDisk, until_s: float, events: dict[float, Event] | None = None) -> Run:
    return Simulation(disk, ThrottleRules(), 8, look_s=0.5).play(until_s, events)


@pytest.mark.parametrize("look_s", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("laggards", [8, 100])
def test_spent_burst_shows_the_limit(look_s: float, laggards: int) -> None:
    """The burst is spent after 10 s. The target is a share of the limit from 45 s later on, in spite of probes that the
    end of the burst made unclear.
    """
    disk = ModelDisk(slice_s=0.1, burst_bytes=1e9)
    run = Simulation(disk, ThrottleRules(), laggards, look_s=look_s).play(90)
    spent_s = next(
        at_s
        for at_s, came in zip(run.at_s, run.misses, strict=True)
        if at_s > 5 and came < 0.5 * max(run.misses)
    )
    known_s = next(at_s for at_s, limit in zip(run.at_s, run.limit, strict=True) if limit)
    assert known_s - spent_s <= 45
    assert run.limit[-1] == pytest.approx(65 * MB, rel=0.02), "60 of reads; writes are not limited"
    assert run.settled_s(known_s, TARGET) <= 10
    looks = round(30 / look_s)
    assert sum(run.misses[-looks:]) / looks == pytest.approx((TARGET * 65 - 5) * MB, rel=0.05)


@pytest.mark.parametrize("look_s", [0.5, 1.0])
def test_limit_from_the_start_is_known_soon(look_s: float) -> None:
    run = Simulation(ModelDisk(slice_s=0.1), ThrottleRules(), 8, look_s=look_s).play(30)
    known_s = next(at_s for at_s, limit in zip(run.at_s, run.limit, strict=True) if limit)
    assert known_s <= 25


def test_probes_leave_the_mean_at_the_target() -> None:
    run = play(ModelDisk(), 120)
    probes = [at_s for at_s, load in zip(run.at_s, run.load, strict=True) if load > TARGET + 0.08]
    assert len(probes) >= 2 * PROBE_LOOKS, "three or more, their first looks not counted"
    for second in range(20, 110):
        assert run.mean_load(second, second + 10) == pytest.approx(TARGET, abs=0.05)


def build_wander(seed: int, least: float, most: float, every_s: int) -> dict[float, Event]:
    """A capacity between `least` and `most` MB/s, another one every few seconds."""
    drawn = random.Random(seed)
    return {
        float(at_s): change(capacity_bytes_s=drawn.uniform(least, most) * MB)
        for at_s in range(0, 120, every_s)
    }


def build_flushes(period_s: float) -> dict[float, Event]:
    """The writes of each period within its first half."""
    starts = [number * period_s for number in range(int(110 / period_s))]
    on = {start: change(write_bytes_s=24 * MB) for start in starts}
    return on | {start + period_s / 2: change(write_bytes_s=0.0) for start in starts}


@pytest.mark.parametrize("seed", range(examples(2)))
@pytest.mark.parametrize("noise", [1.0, 4.0])
@pytest.mark.parametrize("steepness", [1.0, 6.0])
def test_noisy_disk_shows_none(seed: int, noise: float, steepness: float) -> None:
    disk = ModelDisk(noise=noise, seed=seed, steepness=steepness)
    assert set(play(disk, 110).limit) == {0.0}


@pytest.mark.parametrize("seed", range(examples(2)))
@pytest.mark.parametrize("every_s", [1, 3, 7])
@pytest.mark.parametrize("least", [15, 30])
def test_slow_disk_that_is_slower_at_times_shows_none(seed: int, every_s: int, least: int) -> None:
    events = build_wander(seed, least, 60, every_s)
    assert set(play(ModelDisk(noise=0.5), 115, events).limit) == {0.0}


@pytest.mark.parametrize(
    "events",
    [
        {20.0: change(cached=1.0), 60.0: change(cached=0.0)},
        {10.0 * number: change(cached=0.9 * (number % 2)) for number in range(11)},
        {0.0: change(cached=0.7)},
        {40.0: change(capacity_bytes_s=30 * MB), 80.0: change(capacity_bytes_s=60 * MB)},
        {40.0: change(capacity_bytes_s=15 * MB)},
        {20.0: change(write_bytes_s=50 * MB), 80.0: change(write_bytes_s=2 * MB)},
        build_flushes(1.0),
        build_flushes(10.0),
        {
            20.0: lambda simulation: simulation.set_laggards(0),
            60.0: lambda simulation: simulation.set_laggards(8),
        },
        {0.0: lambda simulation: simulation.set_laggards(0)},
    ],
    ids=[
        "page cache",
        "page cache at times",
        "page cache for some",
        "half as fast for a while",
        "a quarter as fast",
        "writes fill it",
        "flushes",
        "long flushes",
        "idle tail",
        "writes alone",
    ],
)
def test_disk_whose_load_follows_its_bytes_shows_none(events: dict[float, Event]) -> None:
    assert set(play(ModelDisk(noise=0.5), 110, events).limit) == {0.0}
