"""What a chart draws: gaps, ticks, and labels that keep clear of each other."""

import re

from spark_audit.page.charts import (
    Line,
    Mark,
    Run,
    WindowBytes,
    draw_curves,
    draw_over_time,
    find_gaps,
    split_lines,
)

MINUTE_MS = 60_000


def build_windows(*minutes: int) -> list[WindowBytes]:
    return [WindowBytes(minute * MINUTE_MS, 900, 100, 0) for minute in minutes]


def test_a_gap_is_where_no_run_has_lines() -> None:
    runs = [
        Run("a", 0, 100),
        Run("b", 50, 300),
        Run("c", 60, 70),
        Run("d", 500, 600),
        Run("e", 610, 700),
    ]
    assert find_gaps(runs, 50) == [(300, 500)]
    assert find_gaps(runs, 10) == [(300, 500), (600, 610)]
    assert find_gaps(runs[:2], 10) == []


def test_a_line_joins_neighbours_alone() -> None:
    windows = build_windows(1, 2, 5, 7, 8)
    windows[3] = windows[3]._replace(hit=0, miss=0)
    assert [
        [one.start_ms // MINUTE_MS for one in line] for line in split_lines(windows, MINUTE_MS)
    ] == [*([1, 2], [5], [8])]


def test_over_time_draws_a_line_for_each_stretch_and_a_hatch_for_each_downtime() -> None:
    runs = [Run("a", MINUTE_MS, 3 * MINUTE_MS), Run("b", 8 * MINUTE_MS, 9 * MINUTE_MS)]
    chart = draw_over_time(build_windows(1, 2, 8), MINUTE_MS, runs)
    assert chart.count("<polyline") == 1 and chart.count('class="dot hit"') == 1
    assert chart.count('class="down"') == 2 and "no log for 5 min" in chart
    assert chart.count('class="start"') == 2
    assert (
        "1970-01-01 00:01:00 UTC: 90.0 % of 0.98 KiB hit (17 B/s): hit 900 B, miss 100 B" in chart
    )
    assert 'class="pass"' not in chart


def test_nothing_over_time_is_drawn_of_no_bytes() -> None:
    assert draw_over_time([], MINUTE_MS, []) == ""
    assert draw_over_time([WindowBytes(0, 0, 0, 0)], MINUTE_MS, []) == ""


def test_a_ratio_near_the_top_has_an_axis_near_the_top() -> None:
    chart = draw_over_time(
        [WindowBytes(0, 970, 30, 0), WindowBytes(MINUTE_MS, 99, 1, 0)], MINUTE_MS, []
    )
    assert "95 %</text>" in chart and "0 %</text>" in chart and ">50 %" not in chart


def test_curves_have_names_marks_and_the_range_that_is_not_known() -> None:
    points = [(1 << power, min(1.0, power / 40)) for power in range(20, 41)]
    upper = [min(1.0, ratio + 0.1) for _, ratio in points]
    lines = [Line("FIFO", "hit", points, upper), Line("LRU", "policy", points)]
    chart = draw_curves(
        lines, [Mark(1 << 30, "now: 1.00 GiB", "now"), Mark(1 << 31, "wanted", "want")], "bytes"
    )
    assert chart.count("<polygon") == 1 and chart.count("<polyline") == 2
    for text in ("FIFO", "LRU", "now: 1.00 GiB", "wanted"):
        assert chart.count(f">{text}</text>") == 1
    assert "FIFO, 1.00 GiB: 75.0 % to 85.0 %" in chart
    assert "LRU, 1.00 GiB: 75.0 %<" in chart


def test_a_curve_without_hits_is_not_drawn() -> None:
    assert draw_curves([Line("FIFO", "hit", [(4096, 0.0)])], [], "bytes") == ""
    assert draw_curves([], [], "bytes") == ""


def test_a_flat_curve_is_drawn_around_its_marks() -> None:
    chart = draw_curves([Line("FIFO", "hit", [(4096, 1.0), (1 << 40, 1.0)])], [], "bytes")
    widths = [float(x) for x in re.findall(r'x="([\d.]+)"', chart)]
    assert max(widths) <= 920
