"""Counts of a canary as a scrape shows them, and its verdict."""

import pytest

from metrics.catalog import CATALOG, GROUPS
from metrics.collector import Exposition
from proxy.canary.outcome import Latency, Round, StepFailed
from proxy.canary.plan import LatencyBar
from proxy.canary.tally import Tally, judge
from tests.kit.scrape import read_samples

BAR = LatencyBar(2.0, 0.01)
QUICK = Latency(0.001, 0.002)


def scrape(tally: Tally) -> dict[tuple[str, ...], float]:
    return read_samples(Exposition(tally.collect, strict=True).render().decode())


def test_every_series_exists_from_the_start() -> None:
    seen = scrape(Tally(BAR))
    for metric in GROUPS["Canary"]:
        suffix = "_count" if metric.kind == "histogram" else ""
        series = [key for key in seen if key[0] == metric.name + suffix]
        wanted = {(): 1, ("path",): 2, ("path", "step"): 6}[CATALOG[metric.name].labels]
        assert len(series) == wanted, metric.name
        assert {seen[key] for key in series} == {0}


def test_rounds_are_counted() -> None:
    tally = Tally(BAR)
    tally.add(Round(QUICK, QUICK), 1000.0)
    tally.add(Round(Latency(0.001, 0.1), QUICK), 1005.0)
    tally.add(Round(StepFailed("consume", "gone"), QUICK), 1010.0)
    seen = scrape(tally)
    assert seen["forebay_canary_end_to_end_seconds_count", "through"] == 2
    assert seen["forebay_canary_end_to_end_seconds_count", "direct"] == 3
    assert seen["forebay_canary_end_to_end_seconds_sum", "through"] == pytest.approx(0.102)
    assert seen["forebay_canary_acknowledgement_seconds_sum", "direct"] == pytest.approx(0.003)
    assert seen["forebay_canary_failures_total", "through", "consume"] == 1
    assert sum(tally.failures.values()) == 1
    assert seen["forebay_canary_rounds_total",] == 3
    assert seen["forebay_canary_slow_rounds_total",] == 1
    assert seen["forebay_canary_last_round_timestamp_seconds",] == 1010


def test_the_medians_are_judged() -> None:
    one_slow = [Round(QUICK, QUICK), Round(Latency(1.0, 1.0), QUICK), Round(QUICK, QUICK)]
    verdict = judge(one_slow, BAR)
    assert verdict.holds
    through = next(line for line in verdict.table.splitlines() if line.startswith("through"))
    assert through.split() == ["through", "3", "0", "1.00", "1000.00", "2.00", "1000.00"]
    two_slow = judge([*one_slow, *[Round(Latency(0.001, 0.1), QUICK)] * 3], BAR)
    assert not two_slow.holds and "broken" in two_slow.table


def test_a_failure_on_either_side_breaks_the_bar_and_is_told_once() -> None:
    for failed in (
        (Round(StepFailed("produce", "no leader"), QUICK),) * 2,
        (Round(QUICK, StepFailed("produce", "no leader")),),
    ):
        verdict = judge([Round(QUICK, QUICK), *failed], BAR)
        assert not verdict.holds
        assert verdict.table.count("failed: produce: no leader") == 1


def test_nothing_measured_is_no_success() -> None:
    assert not judge([], BAR).holds
    assert not judge([Round(StepFailed("connect", "a"), StepFailed("connect", "b"))], BAR).holds
