"""Every bar is about a load that exists, and fails where its figure is too large."""

import pytest

from bench.ladder.arms import BARE, CACHE, DIRECT, RELAY, STORE, TUNED
from bench.ladder.bars import hold_bars, measure_floor
from bench.ladder.cells import Row
from bench.shape.bars import (
    CROWD,
    FLOOR,
    JAVA,
    build_bars,
    name_crowd,
    name_fetch,
    name_produce,
    name_tail,
)
from bench.shape.blocks import LOADS

TAIL = name_tail(48, 1000, 4, is_busy=False)


def test_every_bar_is_about_a_load() -> None:
    for bar in build_bars():
        assert bar.name.partition(": ")[0] in LOADS, bar.name


@pytest.mark.parametrize(("cpu_us", "holds"), [(80, True), (81, False)])
def test_a_wide_produce_is_held_against_haproxy(cpu_us: float, holds: bool) -> None:
    load = name_produce(8, 1)
    rows = [
        Row(0, load, TUNED, {"cpu_us_per_request": 40}),
        Row(0, load, CACHE, {"cpu_us_per_request": cpu_us}),
    ]
    (held,) = hold_bars(rows, build_bars())
    assert held.holds is holds


@pytest.mark.parametrize(("dropped", "holds"), [(0, True), (1, False)])
def test_no_line_may_be_dropped(dropped: float, holds: bool) -> None:
    rows = [Row(0, TAIL, CACHE, {"log_lines_dropped": dropped})]
    (held,) = hold_bars(rows, build_bars())
    assert held.holds is holds


def test_a_tail_is_held_against_direct() -> None:
    rows = [
        Row(0, TAIL, DIRECT, {"broker_ms_per_s": 100}),
        Row(0, TAIL, CACHE, {"broker_ms_per_s": 101, "cpu_ms_per_s": 300}),
    ]
    held = {one.bar.name: one.holds for one in hold_bars(rows, build_bars())}
    assert held == {
        f"{TAIL}: CPU, ms a second": True,
        f"{TAIL}: broker's CPU / direct": False,
    }


@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize(("lines", "holds"), [(1.2, True), (1.21, False)])
def test_lines_of_the_log_follow_answers(lines: float, is_busy: bool, holds: bool) -> None:
    load = name_tail(48, 1000, 4, is_busy=is_busy, clients=JAVA)
    (held,) = hold_bars([Row(0, load, CACHE, {"log_lines_per_answer": lines})], build_bars())
    assert held.holds is holds


def test_a_cached_fetch_stands_beside_the_floor() -> None:
    load = name_fetch(8, 64)
    rows = [
        Row(0, load, name, {"cpu_us_per_request": cpu_us})
        for name, cpu_us in ((BARE, 50.0), (CACHE, 75.0), (TUNED, 200.0))
    ]
    assert LOADS[load][-1] == BARE
    assert dict(measure_floor(rows, FLOOR)) == {
        f"{load}: CPU / bare send": [1.5],
        f"{load}, bare send: CPU / tuned haproxy": [0.25],
    }


@pytest.mark.parametrize("load", [name_produce(1, 1), name_crowd(CROWD)])
def test_a_produce_stands_beside_its_floors(load: str) -> None:
    rows = [
        Row(0, load, name, {"cpu_us_per_request": cpu_us})
        for name, cpu_us in ((STORE, 20.0), (RELAY, 40.0), (CACHE, 60.0), (TUNED, 50.0))
    ]
    assert {STORE, RELAY} <= set(LOADS[load])
    assert dict(measure_floor(rows, FLOOR)) == {
        f"{load}: CPU / bare store": [3.0],
        f"{load}, bare store: CPU / tuned haproxy": [0.4],
        f"{load}: CPU / bare relay": [1.5],
        f"{load}, bare relay: CPU / tuned haproxy": [0.8],
    }
