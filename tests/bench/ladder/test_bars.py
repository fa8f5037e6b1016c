"""Ratios are taken within a round, and a round that lacks a figure says nothing."""

from bench.ladder.arms import BARE, CACHE, DIRECT, HAPROXY, TUNED
from bench.ladder.bars import FETCH, SMALL, hold_bars, measure_floor, paired
from bench.ladder.cells import Row

CPU = "cpu_us_per_request"


def rows(*rounds):
    """(haproxy's, Forebay's) CPU of each round."""
    return [
        Row(number, SMALL, arm, {CPU: value})
        for number, pair in enumerate(rounds)
        for arm, value in zip((HAPROXY, CACHE), pair, strict=True)
        if value is not None
    ]


def test_a_ratio_is_the_rounds_own_and_the_bar_looks_at_the_median():
    ratios = paired(rows((10, 20), (100, 100), (10, 15)), SMALL, CPU, CACHE, HAPROXY)

    assert ratios == [2.0, 1.0, 1.5]
    (held,) = hold_bars(rows((10, 20), (100, 100), (10, 15)))
    assert (held.median, held.low, held.high) == (1.5, 1.0, 2.0)
    assert held.holds


def test_a_bar_at_its_bound_holds_and_above_it_does_not():
    assert hold_bars(rows((10, 16)))[0].holds
    assert not hold_bars(rows((10, 17)))[0].holds


def test_a_round_without_a_figure_is_passed_over():
    assert paired(rows((10, None), (10, 30)), SMALL, CPU, CACHE, HAPROXY) == [3.0]
    assert hold_bars(rows((10, None))) == []


def test_direct_has_no_proxy_to_hold_against():
    assert paired([Row(0, SMALL, DIRECT, {CPU: 0.0})], SMALL, CPU, CACHE, DIRECT) == []


def test_the_floor_is_told_and_not_judged():
    rows = [
        Row(0, FETCH, arm, {"cpu_s_per_gb": cpu})
        for arm, cpu in ((CACHE, 0.2), (BARE, 0.1), (TUNED, 0.4), (DIRECT, 0.0))
    ]

    assert dict(measure_floor(rows)) == {
        "fetch 1 MB, cached: CPU / bare send": [2.0],
        "fetch 1 MB, bare send: CPU / tuned haproxy": [0.25],
    }
    assert [held.bar.name for held in hold_bars(rows)] == [
        "fetch 1 MB, cached: CPU / tuned haproxy"
    ]
    assert measure_floor([]) == []
