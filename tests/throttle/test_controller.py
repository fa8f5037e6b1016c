"""The controller on a model disk in simulated time: it settles, does not swing, shares, and recovers.

Bars: 10 s means within 5 points of the target within 20 s of any change; no swing of more than 5 points to
and fro on a steady disk; laggards get what the target leaves.
"""

from dataclasses import replace

import pytest

from tests.kit.model_disk import ModelDisk
from tests.kit.throttle_simulation import MISS_BYTES, STEP_S, Event, Run, Simulation
from throttle.controller import STEP_LEAST, STEP_MOST, Controller, ControllerRule
from throttle.disks import DiskLimit, DiskSample
from throttle.throttle import ThrottleRules

TARGET = ControllerRule().target
MB = 1e6
SETTLES_S = 20.0
NOT_PROBED = DiskLimit(1e12, 0.0, "named")
"""A limit out of reach: with none, three seconds now and then are a probe's (test_limit_recognition)."""


def change(**changes: float) -> Event:
    def apply(simulation: Simulation) -> None:
        for name, value in changes.items():
            setattr(simulation.disk, name, value)

    return apply


def play(
    disk: ModelDisk, until_s: float, laggards: int = 8, events: dict[float, Event] | None = None
) -> Run:
    return Simulation(disk, ThrottleRules(), laggards, limit=NOT_PROBED).play(until_s, events)


def sweep(steepness: float) -> float:
    """The rate of misses, bytes/s, at which the disk shows the target's load in an open loop: by bisection."""
    low, high = 0.0, 60 * MB
    for _ in range(9):
        rate, owed, disk = (low + high) / 2, 0.0, ModelDisk(steepness=steepness)
        for _ in range(int(20 / STEP_S)):
            owed += rate * STEP_S
            disk.step(STEP_S)
            while owed >= MISS_BYTES:
                owed -= MISS_BYTES
                disk.read(MISS_BYTES, None)
        low, high = (rate, high) if disk.counters().io_ticks_ms / 20_000 < TARGET else (low, rate)
    return low


@pytest.mark.parametrize("steepness", [1.0, 3.0, 6.0])
def test_step_settles_without_a_swing(steepness: float) -> None:
    """20 s of nobody, then eight laggards; also on disks whose load rises steeply near their limit."""
    disk = ModelDisk(steepness=steepness)
    run = play(disk, 90, 0, {20.0: lambda simulation: simulation.set_laggards(8)})
    assert run.settled_s(20, TARGET) <= 5
    assert run.swings(25, TARGET) == 0
    assert max(run.load[25:]) < TARGET + 0.08
    possible = sweep(steepness)
    assert sum(run.misses[30:]) / len(run.misses[30:]) == pytest.approx(possible, rel=0.05)


@pytest.mark.parametrize("look_s", [0.25, 0.5])
@pytest.mark.parametrize("laggards", [8, 100])
def test_cliff_is_held_at_its_edge(look_s: float, laggards: int) -> None:
    """A limit in slices is idle at 58 MB/s and full at 62: the loop must damp what waits in the disk, too."""
    disk = ModelDisk(slice_s=0.1)
    run = Simulation(disk, ThrottleRules(), laggards, look_s=look_s, limit=NOT_PROBED).play(120)
    assert run.settled_s(0, TARGET) <= SETTLES_S
    assert sum(run.misses[-100:]) / 100 >= 0.95 * 60 * MB
    assert run.swings(90, TARGET, beyond=0.2) <= 2


@pytest.mark.parametrize("look_s", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("burst_bytes", [0.0, 1e9])
def test_named_limit_is_held_at_its_share(look_s: float, burst_bytes: float) -> None:
    """Utilisation is near 0 below the limit; the target is a share of what was provisioned, also during a burst."""
    disk = ModelDisk(slice_s=0.1, burst_bytes=burst_bytes)
    limit = DiskLimit(bytes_s=60 * MB, source="named")
    run = Simulation(disk, ThrottleRules(), 8, look_s=look_s, limit=limit).play(60)
    assert run.settled_s(0, TARGET) <= SETTLES_S
    looks = round(30 / look_s)
    assert sum(run.misses[-looks:]) / looks == pytest.approx((TARGET * 60 - 5) * MB, rel=0.05)


def test_ramp_of_writes_is_followed() -> None:
    ramp: dict[float, Event] = {
        30.0 + second: change(write_bytes_s=(5 + second / 2) * MB) for second in range(41)
    }
    run = play(ModelDisk(), 120, 8, ramp)
    for second in range(20, 110, 10):
        assert run.mean_load(second, second + 10) == pytest.approx(TARGET, abs=0.05)
    assert run.misses[-1] == pytest.approx(11 * MB, rel=0.15)


def test_noise_leaves_the_mean_at_the_target() -> None:
    for seed in range(3):
        run = play(ModelDisk(noise=1.0, seed=seed), 120)
        assert run.settled_s(0, TARGET) <= SETTLES_S
        for second in range(20, 110, 10):
            assert run.mean_load(second, second + 10) == pytest.approx(TARGET, abs=0.04)


@pytest.mark.parametrize("period_s", [1.0, 2.0])
def test_flushes_every_look_do_not_lame_it(period_s: float) -> None:
    """A producer's pages go out in bursts as long as a look: the load jumps to and fro, and yet the rate climbs."""
    flushes: dict[float, Event] = {}
    for number in range(int(90 / period_s)):
        flushes[number * period_s] = change(write_bytes_s=24 * MB)
        flushes[(number + 0.5) * period_s] = change(write_bytes_s=0.0)
    run = play(ModelDisk(noise=0.3), 90, 8, flushes)
    assert run.settled_s(0, TARGET) <= SETTLES_S
    assert sum(run.misses[30:]) / len(run.misses[30:]) >= 0.85 * (0.6 * 60 - 12) * MB


def test_periodic_write_back_keeps_the_rate_steady() -> None:
    """Bursts to full load for a second: 10 s means hold, and the rate does not follow each."""
    bursts: dict[float, Event] = {}
    for second in range(5, 120, 5):
        bursts[float(second)] = change(write_bytes_s=30 * MB)
        bursts[second + 1.0] = change(write_bytes_s=3 * MB)
    run = play(ModelDisk(), 120, 8, bursts)
    for second in range(20, 110, 10):
        assert run.mean_load(second, second + 10) == pytest.approx(TARGET, abs=0.05)
    assert max(run.rate[60:]) < 1.3 * min(run.rate[60:])


@pytest.mark.parametrize("factor", [0.5, 0.25, 4.0])
def test_disk_that_changes_its_speed(factor: float) -> None:
    run = play(ModelDisk(), 100, 8, {40.0: change(capacity_bytes_s=60 * MB * factor)})
    assert run.settled_s(40, TARGET) <= SETTLES_S
    assert run.swings(60, TARGET) <= 2 * (factor < 0.5)  # one miss is 7 points of a look there
    left = (TARGET * 60 * factor - 5) * MB
    assert sum(run.misses[-20:]) / 20 == pytest.approx(left, rel=0.1)


def test_hundred_laggards_share_it() -> None:
    run = play(ModelDisk(), 120, 100)
    assert run.settled_s(0, TARGET) <= SETTLES_S
    assert max(run.load[20:]) < TARGET + 0.05
    got = [run.served[client] - run.served_at[59][client] for client in run.served]
    assert len(got) == 100
    assert max(got) - min(got) <= 2 << 20  # two misses, of about 18
    assert sum(run.misses[-60:]) / 60 >= 0.95 * 31 * MB


@pytest.mark.parametrize("look_s", [0.06, 0.1, 0.26, 0.5, 2.0])
@pytest.mark.parametrize("laggards", [8, 100])
def test_however_often_it_is_looked_at(look_s: float, laggards: int) -> None:
    disk = ModelDisk(steepness=2.0)
    events = {40.0: change(capacity_bytes_s=30 * MB)}
    run = Simulation(disk, ThrottleRules(), laggards, look_s=look_s).play(80, events)
    assert run.settled_s(40, TARGET) <= SETTLES_S
    for second in range(10, 30, 10):
        assert run.mean_load(second, second + 10) == pytest.approx(TARGET, abs=0.05)


def test_equal_clients_within_five_percent_over_a_minute() -> None:
    run = play(ModelDisk(), 90, 8)
    got = [run.served[client] - run.served_at[29][client] for client in run.served]
    assert max(got) <= 1.05 * min(got)


def test_lone_laggard_gets_all() -> None:
    run = Simulation(ModelDisk(), ThrottleRules(), 1, think_s=0.0).play(60)
    assert sum(run.misses[-30:]) / 30 >= 0.9 * 31 * MB


def test_page_cached_misses_pass_cold_ones_wait() -> None:
    run = play(ModelDisk(), 90, 8, {20.0: change(cached=1.0), 45.0: change(cached=0.0)})
    assert max(run.misses[25:45]) > 6 * 31 * MB
    assert run.settled_s(46, TARGET) <= SETTLES_S


def test_no_demand_does_not_wind_up() -> None:
    """Nobody for 40 s: the rate neither grows beyond what the disk has carried, nor is lost."""
    absent: dict[float, Event] = {
        20.0: lambda simulation: simulation.set_laggards(0),
        60.0: lambda simulation: simulation.set_laggards(8),
    }
    run = play(ModelDisk(), 100, 8, absent)
    assert max(run.rate[20:60]) < 1.1 * 31 * MB
    assert min(run.rate[20:60]) > 0.8 * 31 * MB
    assert run.settled_s(60, TARGET) <= 5


def test_recovers_when_others_leave_the_disk_idle() -> None:
    """Writes alone hold the disk above the target for a minute: the floor; then they end."""
    run = play(
        ModelDisk(),
        130,
        8,
        {20.0: change(write_bytes_s=50 * MB), 80.0: change(write_bytes_s=2 * MB)},
    )
    assert run.rate[75] < 2.5 * ControllerRule().floor_bytes_s
    at_floor = run.rate[40:80].count(ControllerRule().floor_bytes_s)
    assert at_floor > 20, "the alert ForebayThrottleAtFloor looks for a rate of exactly the floor"
    assert run.settled_s(80, TARGET) <= SETTLES_S


@pytest.mark.parametrize("target", [0.3, 0.8])
def test_other_targets(target: float) -> None:
    rules = ThrottleRules(controller=ControllerRule(target=target))
    rules = replace(rules, busy=replace(rules.busy, enter=target - 0.1, leave=0.15))
    run = Simulation(ModelDisk(), rules, 8).play(60)
    assert run.settled_s(0, target) <= SETTLES_S


def look(load: float, at_s: float) -> DiskSample:
    return DiskSample(at_s, interval_s=1.0, util=load, load=load, busy=True)


def test_floor_and_ceiling_hold() -> None:
    rule = ControllerRule(floor_bytes_s=1000, start_bytes_s=2000, ceiling_bytes_s=3000)
    controller = Controller(rule, 0.0)
    for second in range(1, 20):
        assert 1000 <= controller.observe(look(1.0, second), 2000, True, float(second)) <= 2000
    assert controller.rate_bytes_s == 1000
    for second in range(20, 60):
        assert 1000 <= controller.observe(look(0.0, second), 10**6, True, float(second)) <= 3000
    assert controller.rate_bytes_s == 3000
    assert controller.statistics().at_floor > 10


def test_look_without_an_interval_changes_nothing() -> None:
    controller = Controller(ControllerRule(), 0.0)
    before = controller.statistics()
    assert (
        controller.observe(DiskSample(1.0, busy=True), 10**9, True, 1.0)
        == ControllerRule().start_bytes_s
    )
    assert controller.observe(look(1.0, 1.0), 10**9, True, 1.0) == ControllerRule().start_bytes_s
    assert controller.statistics() == before


def test_step_shrinks_on_swings_and_grows_back() -> None:
    controller = Controller(ControllerRule(), 0.0)
    for second in range(1, 20):
        controller.observe(look(0.9 if second % 2 else 0.3, second), 10**7, True, float(second))
    assert controller.statistics().step == STEP_LEAST
    assert controller.statistics().swings == 18
    for second in range(20, 40):
        controller.observe(look(0.3, second), 10**7, True, float(second))
    assert controller.statistics().step == STEP_MOST


@pytest.mark.parametrize(
    "wrong", [{"target": 0.0}, {"target": 1.0}, {"floor_bytes_s": 0}, {"start_bytes_s": 1.0}]
)
def test_rules_that_make_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"target|floor"):
        ControllerRule(**wrong)


def test_another_target_is_reached_without_a_restart() -> None:
    rules = ThrottleRules()
    lower = replace(rules, controller=replace(rules.controller, target=0.3))
    run = play(
        ModelDisk(), 120, events={60.0: lambda one: one.throttle.set_rules(lower, one.now_s)}
    )
    assert run.mean_load(40, 60) == pytest.approx(TARGET, abs=0.05)
    assert run.mean_load(60 + SETTLES_S, 120) == pytest.approx(0.3, abs=0.05)
