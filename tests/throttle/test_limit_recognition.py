"""The limit of a volume that nobody named: looks that show it, looks that do not, and volumes of the model.

The model of a token bucket carries 200 MB/s until its burst is spent, and 60 MB/s from then on.
"""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.kit.examples import examples
from tests.kit.model_disk import ModelDisk
from tests.kit.throttle_simulation import Event, Run, Simulation
from throttle.disks import NO_LIMIT, DiskLimit, DiskSample
from throttle.limit_recognition import EXPIRES_S, LOOKS, LimitRecognition
from throttle.throttle import ThrottleRules

MB = 1e6
TARGET = 0.6
AT_LIMIT = DiskSample(0.0, interval_s=1.0, read_bytes_s=60 * MB, write_bytes_s=5 * MB)


class Watched:
    """A recognition that is shown one look after the other, by default a second each."""

    def __init__(self) -> None:
        self.recognition = LimitRecognition(TARGET)
        self.now_s = 0.0

    def show(
        self,
        sample: DiskSample,
        allowed_bytes_s: float,
        miss_bytes_s: float = 60 * MB,
        waited: bool = True,
    ) -> DiskLimit:
        self.now_s += sample.interval_s
        miss_bytes = round(miss_bytes_s * sample.interval_s)
        self.recognition.observe(sample, allowed_bytes_s, miss_bytes, waited, self.now_s)
        return self.recognition.limit

    def show_limit(self, looks: int = LOOKS) -> DiskLimit:
        """Looks at the edge of a limit of 65 MB/s."""
        for number in range(looks):
            self.show(*build_look(number))
        return self.recognition.limit


def build_look(number: int) -> tuple[DiskSample, float]:
    """Of a volume at its limit: the rate goes to and fro between 60 and 78 MB/s, and 60 come; the waits follow."""
    high = number % 2 == 0
    load, await_ms = (0.9, 8.0) if high else (0.3, 2.0)
    return replace(AT_LIMIT, busy_load=load, await_ms=await_ms), (78 if high else 60) * MB


def test_level_at_which_more_is_asked_and_none_comes_is_a_limit() -> None:
    watched = Watched()
    assert watched.show_limit(LOOKS - 1) == NO_LIMIT
    found = watched.show(*build_look(LOOKS - 1))
    assert (found.requests_s, found.source) == (0.0, "recognised")
    assert found.bytes_s == pytest.approx(65 * MB)


@pytest.mark.parametrize("interval_s", [0.05, 0.25, 0.5])
def test_short_looks_are_put_together(interval_s: float) -> None:
    watched = Watched()
    for number in range(round(LOOKS / interval_s)):
        sample, allowed = build_look(int(number * interval_s))
        watched.show(replace(sample, interval_s=interval_s), allowed)
    assert watched.recognition.limit.bytes_s == pytest.approx(65 * MB)


Shown = tuple[DiskSample, float, float, bool]


def vary_edge() -> Iterator[tuple[str, list[Shown]]]:
    """What differs in one thing from a volume at its limit."""
    edge: list[Shown] = [(*build_look(number), 60 * MB, True) for number in range(2 * LOOKS)]
    yield "nothing waits", [(one, rate, came, False) for one, rate, came, _ in edge]
    yield (
        "now and then nothing waits",
        [(one, rate, came, n % LOOKS != 7) for n, (one, rate, came, _) in enumerate(edge)],
    )
    yield (
        "the page cache answers",
        [(replace(one, busy_load=0.1), rate, came, True) for one, rate, came, _ in edge],
    )
    yield (
        "the load is below the target",
        [
            (replace(one, busy_load=one.busy_load / 2), rate, came, True)
            for one, rate, came, _ in edge
        ],
    )
    yield "what is allowed comes", [(one, rate, rate, True) for one, rate, _, _ in edge]
    yield (
        "half of what is allowed more comes",
        [(one, rate, 30 * MB + rate / 2, True) for one, rate, _, _ in edge],
    )
    yield "most of it comes", [(one, rate, 66 * MB, True) for one, rate, _, _ in edge]
    yield "the disk hangs: nothing comes", [(one, rate, 0.0, True) for one, rate, _, _ in edge]
    yield (
        "the disk hangs where little is allowed",
        [
            (one, 55 * MB, 0.0, True)
            if n % LOOKS in (1, 3, 7, 9, 11, 13)
            else (one, rate, came, True)
            for n, (one, rate, came, _) in enumerate(edge)
        ],
    )
    yield "no more is allowed", [(one, 70 * MB, came, True) for one, _, came, _ in edge]
    yield (
        "waits do not rise",
        [(replace(one, await_ms=5.0), rate, came, True) for one, rate, came, _ in edge],
    )
    yield (
        "no level: it falls",
        [(one, rate, (60 - n / 2) * MB, True) for n, (one, rate, _, _) in enumerate(edge)],
    )
    yield (
        "no level: it scatters",
        [
            (one, rate, (80 if n % 4 < 2 else 40) * MB, True)
            for n, (one, rate, _, _) in enumerate(edge)
        ],
    )
    yield (
        "a look took long",
        [
            (replace(one, interval_s=5.0 if n % LOOKS == 7 else 1.0), rate, came, True)
            for n, (one, rate, came, _) in enumerate(edge)
        ],
    )


@pytest.mark.parametrize(
    "looks", [looks for _, looks in vary_edge()], ids=[name for name, _ in vary_edge()]
)
def test_each_of_these_shows_no_limit(looks: list[Shown]) -> None:
    watched = Watched()
    assert {watched.show(*look) for look in looks} == {NO_LIMIT}


def test_limit_ends_when_it_expires_and_when_more_is_carried() -> None:
    watched = Watched()
    limit = watched.show_limit()
    calm = replace(AT_LIMIT, read_bytes_s=34 * MB, busy_load=0.05)
    for _ in range(round(EXPIRES_S) - 1):
        assert watched.show(calm, 34 * MB, 34 * MB) == limit
    assert watched.show(calm, 34 * MB, 34 * MB) == NO_LIMIT
    assert watched.show_limit() == limit
    assert watched.show(replace(calm, read_bytes_s=66 * MB), 34 * MB) == limit
    assert watched.show(replace(calm, read_bytes_s=67 * MB), 34 * MB) == NO_LIMIT


def test_lower_limit_takes_the_place_of_a_higher_one() -> None:
    watched = Watched()
    watched.show_limit()
    for number in range(LOOKS):
        sample, allowed = build_look(number)
        watched.show(replace(sample, read_bytes_s=25 * MB), allowed / 2, 30 * MB)
    assert watched.recognition.limit.bytes_s == pytest.approx(30 * MB)


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
    """The burst is spent after 10 s. The target is a share of the limit from 25 s later on."""
    disk = ModelDisk(slice_s=0.1, burst_bytes=1e9)
    run = Simulation(disk, ThrottleRules(), laggards, look_s=look_s).play(90)
    spent_s = next(
        at_s
        for at_s, came in zip(run.at_s, run.misses, strict=True)
        if at_s > 5 and came < 0.5 * max(run.misses)
    )
    known_s = next(at_s for at_s, limit in zip(run.at_s, run.limit, strict=True) if limit)
    assert known_s - spent_s <= 25
    assert run.limit[-1] == pytest.approx(65 * MB, rel=0.02), "60 of reads; writes are not limited"
    assert run.settled_s(known_s, TARGET) <= 10
    looks = round(30 / look_s)
    assert sum(run.misses[-looks:]) / looks == pytest.approx((TARGET * 65 - 5) * MB, rel=0.05)


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
