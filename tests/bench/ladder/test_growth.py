"""The line through the points: exact where they lie on one, and it says how far off they are where not. Short forms of
the series run before a real broker.
"""

import json
from contextlib import ExitStack

import pytest

from bench.ladder import arms, growth, loads, report
from bench.ladder.growth import (
    HOT,
    MOST_RATIO,
    NAMED,
    REPEATS,
    SENDERS,
    Series,
    build_bars,
    build_page,
    compare_ends,
    fit,
    median_series,
)
from bench.ladder.steps import Bench
from bench.shape import tails
from tests.kit.broker.topics import create_topic


def test_points_on_a_line():
    at_zero, slope, off = fit([(0, 5.0), (10, 25.0), (20, 45.0)])

    assert (at_zero, slope, off) == pytest.approx((5.0, 2.0, 0.0))


def test_what_grows_faster_is_off_the_line():
    assert fit([(x, float(x * x)) for x in range(5)])[2] > 0.1


def test_nothing_at_all_is_flat():
    assert fit([(0, 0.0), (1, 0.0)]) == (0.0, 0.0, 0.0)


def test_each_point_is_the_median_of_its_turns_which_go_up_and_down():
    asked = []

    def measure(one):
        asked.append(one)
        return {"cost": float(one * 10 + len(asked))}

    series = median_series("t", "x", (1, 2), measure)

    assert asked == [1, 2, 2, 1, 1, 2]
    assert len(asked) == 2 * REPEATS
    assert series.points == [(1, {"cost": 14.0}), (2, {"cost": 23.0})]


def test_the_page_has_the_points_and_the_line(monkeypatch):
    monkeypatch.setattr(report, "describe_machine", lambda: ["a machine"])
    page = build_page(
        [Series("one Produce", "bytes", [(0, {"us": 1.0}), (1000, {"us": 3.0})])], "the command"
    )

    assert "| 1,000 | 3 |" in page
    assert (
        "* us: 1 + 0.002 for each; no point is off this line by more than 0% of the largest" in page
    )


def test_files_of_a_run(tmp_path):
    growth.write_report(
        tmp_path, "page", [Series("t", "x", [(0, {"us": 1.23456}), (10, {"us": 2.0})])]
    )

    assert {path.name for path in tmp_path.iterdir()} == {"README.md", "result.json", "growth.png"}
    points = [[0, {"us": 1.235}], [10, {"us": 2.0}]]
    assert json.loads((tmp_path / "result.json").read_text()) == [
        {"title": "t", "x": "x", "points": points}
    ]


@pytest.mark.parametrize("at", [HOT, SENDERS, NAMED])
def test_the_bar_tells_a_straight_line_from_a_quadratic_one(at):
    assert compare_ends([(x, 300 + 5.0 * x) for x in at]) == pytest.approx(1)
    assert compare_ends([(x, 300 + 5.0 * x * x) for x in at]) > 2 * MOST_RATIO


def test_what_becomes_cheaper_holds_and_what_costs_nothing_at_first_does_not():
    assert compare_ends([(1, 1.0), (10, 10.0), (20, 12.0)]) < 1
    assert compare_ends([(1, 1.0), (10, 1.0), (20, 2.0)]) == float("inf")


def test_a_line_that_does_not_grow_is_flat_whatever_its_noise():
    assert compare_ends([(10, 18.4), (100, 19.2), (1_000, 12.4), (2_000, 23.7), (4_000, 18.7)]) == 0


def test_only_figures_of_forebay_have_a_bar():
    points = [(x, {"Forebay, us": 2.0 * x, "broker, us": 2.0 * x * x}) for x in (1, 10, 100, 200)]
    assert build_bars([Series("t", "x", points)]) == [
        f"| t: Forebay, us | {MOST_RATIO:g} | 1.00 | holds |"
    ]


def test_the_series_reach_the_shapes_of_real_clients():
    assert (HOT[0], HOT[-1]) == (10, 4000)
    assert (SENDERS[0], SENDERS[-1]) == (1, 2000)
    assert (NAMED[0], NAMED[-1]) == (1, 200)


@pytest.fixture(scope="module")
def bench():
    with ExitStack() as stack:
        ladder = arms.open_ladder(stack, [arms.DIRECT, arms.CACHE], None)
        bench = Bench(ladder, loads.Scale())
        create_topic(bench.direct, f"p-{arms.CACHE}")
        yield bench


MOST_TIMES = 4
"""What a busy machine may do to a few hundred requests; a quadratic line is at 20 with these points, or above."""
SHORT_FORMS = [
    (growth.measure_named, (1, 20)),
    (growth.measure_senders, (1, 50)),
    (growth.measure_hot, (10, 200)),
]


@pytest.mark.e2e
@pytest.mark.parametrize(("measure", "at"), SHORT_FORMS)
def test_a_unit_costs_about_the_same_among_many(bench, monkeypatch, measure, at):
    monkeypatch.setattr(growth, "REPEATS", 1)
    monkeypatch.setattr(growth, "HOT_S", 1.0)
    monkeypatch.setattr(growth, "SENT_CALLS", 1_500)
    monkeypatch.setattr(tails, "WARM_S", 0.5)
    series = measure(bench, bench.ladder.arms[arms.CACHE], at)
    (few, cost_of_few), (many, cost_of_many) = series.points
    assert (few, many) == at
    for name in cost_of_few:
        assert 0 < cost_of_many[name] / many < MOST_TIMES * cost_of_few[name] / few, series
