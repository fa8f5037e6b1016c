"""The line through the points: exact where they lie on one, and it says how far off they are where not."""

import json

import pytest

from bench.ladder import growth, report
from bench.ladder.growth import REPEATS, Series, build_page, fit, median_series


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
