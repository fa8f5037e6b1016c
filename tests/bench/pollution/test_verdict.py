"""The bars at their bounds: what is just held, what is just broken, what proves nothing."""

from typing import Any

import pytest

from bench.pollution.arms import FOREBAY, NO_LANE, PLAIN
from bench.pollution.verdict import (
    describe_stolen,
    find_harmless,
    find_invalid,
    is_disturbed,
    is_fair,
    is_steady,
    is_stolen,
    judge,
    judge_isolation,
    rate_at,
)

SWEEP = [(12.0, 0.2), (24.0, 0.4), (36.0, 0.6), (48.0, 0.8), (60.0, 1.0)]
PRODUCE, TAIL, MISSES, SETTLED, SHARE, FAIR, CAUGHT_UP, PAUSED = range(8)


def build_figures(**changed: Any) -> dict[str, Any]:
    """A round of Forebay's in which every bar is held."""
    figures: dict[str, Any] = {
        "round": 1,
        "arm": FOREBAY,
        "quiet": {"produce_ms": {"p99": 20.0}, "end_to_end_ms": {"p99": 50.0}},
        "polluted": {"produce_ms": {"p99": 30.0}, "end_to_end_ms": {"p99": 65.0}},
        "disk_polluted": {"read_mb_s": 36.0},
        "laggards_mb_s": 36.0,
        "laggards_settled_mb_s": [4.0] * 8,
        "settled_s": 40.0,
        "settled_utils": [0.55, 0.65],
        "tail_miss_bytes": 0,
        "stolen": {"quiet": 0.0, "polluted": 0.005, "pause": 0.0},
        "pause": {"caught_up_s": 1.0, "produce_ms": {"p99": 30.0}},
    }
    return figures | changed


def held(**changed: Any) -> list[bool | None]:
    return [bar.held for bar in judge([build_figures(**changed)], SWEEP, 0.6)]


@pytest.mark.parametrize(
    ("quiet_ms", "polluted_ms", "expected"),
    [(20, 30, True), (20, 30.1, False), (100, 130, True), (100, 130.1, False)],
)
def test_steady_is_a_factor_or_ten_milliseconds(
    quiet_ms: float, polluted_ms: float, expected: bool
) -> None:
    assert is_steady(quiet_ms, polluted_ms) is expected


def test_every_bar_is_held_at_its_bound() -> None:
    assert held() == [True] * 8


@pytest.mark.parametrize(
    ("bar", "changed"),
    [
        (PRODUCE, {"polluted": {"produce_ms": {"p99": 30.1}, "end_to_end_ms": {"p99": 65.0}}}),
        (TAIL, {"polluted": {"produce_ms": {"p99": 30.0}, "end_to_end_ms": {"p99": 65.1}}}),
        (MISSES, {"tail_miss_bytes": 1}),
        (SETTLED, {"settled_utils": [0.6, 0.651]}),
        (SHARE, {"laggards_settled_mb_s": [3.8] * 8}),
        (FAIR, {"laggards_settled_mb_s": [5.0] * 7 + [3.9]}),
        (CAUGHT_UP, {"pause": {"caught_up_s": None, "produce_ms": {"p99": 30.0}}}),
        (PAUSED, {"pause": {"caught_up_s": 0.2, "produce_ms": {"p99": 30.1}}}),
    ],
)
def test_each_bar_breaks_alone(bar: int, changed: dict[str, Any]) -> None:
    assert held(**changed) == [number != bar for number in range(8)]


LIMIT, CARRIED, LIMITED_FAIR, LIMITED_CAUGHT_UP, LIMITED_PAUSED = range(3, 8)


def build_limited(**changed: Any) -> dict[str, Any]:
    """A round on a volume of 60 MB/s in which every bar is held; its utilisation is of no account."""
    limit = {"mb_s": 71.5, "source": "recognised", "known_s": 40.0, "read_limit_mb_s": 60.0}
    figures: dict[str, Any] = {
        "disk_polluted": {"read_mb_s": 36.0, "write_mb_s": 5.0},
        "limit": {**limit, "shares": [0.55, 0.65], **changed.pop("limit", {})},
        "settled_utils": [0.1, 0.9],
        "pause": {"caught_up_s": 1.0, "produce_ms": {"p99": 40.0}},
    }
    return build_figures(**figures) | changed


def test_limited_disk_has_bars_of_its_own() -> None:
    assert [bar.held for bar in judge([build_limited()], SWEEP, 0.6)] == [True] * 8


@pytest.mark.parametrize(
    ("bar", "changed"),
    [
        (PRODUCE, {"polluted": {"produce_ms": {"p99": 30.1}, "end_to_end_ms": {"p99": 65.0}}}),
        (LIMIT, {"limit": {"mb_s": None}}),
        (LIMIT, {"limit": {"known_s": 40.1}}),
        (LIMIT, {"limit": {"mb_s": 71.6}}),
        (LIMIT, {"limit": {"mb_s": 58.4}}),
        (LIMIT, {"limit": {"mb_s": 66.1, "source": "named"}}),
        (CARRIED, {"limit": {"shares": [0.6, 0.651]}}),
        (LIMITED_FAIR, {"laggards_settled_mb_s": [5.0] * 7 + [3.9]}),
        (LIMITED_CAUGHT_UP, {"pause": {"caught_up_s": 1.1, "produce_ms": {"p99": 30.0}}}),
        (LIMITED_PAUSED, {"pause": {"caught_up_s": 0.2, "produce_ms": {"p99": 40.1}}}),
    ],
)
def test_each_bar_of_a_limited_disk_breaks_alone(bar: int, changed: dict[str, Any]) -> None:
    bars = judge([build_limited(**changed)], SWEEP, 0.6)
    assert [one.held for one in bars] == [number != bar for number in range(8)]


def test_share_carried_of_a_limit_is_not_judged_before_there_is_one() -> None:
    bars = judge([build_limited(limit={"mb_s": None, "shares": []})], [], 0.6)
    assert (bars[LIMIT].held, bars[LIMIT].said, bars[CARRIED].held) == (False, "never", None)


def test_one_bad_round_breaks_a_bar() -> None:
    rounds = [build_figures(), build_figures(round=2, settled_utils=[0.9])]
    assert judge(rounds, SWEEP, 0.6)[SETTLED].held is False


def test_what_was_not_measured_is_neither_held_nor_broken() -> None:
    figures = build_figures(settled_utils=[], settled_s=39.0, tail_miss_bytes=None)
    del figures["pause"]
    bars = judge([figures], [], 0.6)
    assert [bars[number].held for number in (MISSES, SETTLED, SHARE, FAIR, CAUGHT_UP, PAUSED)] == [
        None
    ] * 6
    assert [bar.held for bar in judge([], SWEEP, 0.6)] == [None] * 8


def test_fair_is_a_fifth_of_the_larger() -> None:
    assert is_fair([5.0, 4.0])
    assert not is_fair([5.0, 3.99])


@pytest.mark.parametrize(("target", "rate"), [(0.6, 36.0), (0.5, 30.0), (0.1, 6.0), (1.0, 60.0)])
def test_rate_at_a_target_lies_on_the_line(target: float, rate: float) -> None:
    assert rate_at(SWEEP, target) == pytest.approx(rate)


def test_rate_at_ignores_a_dip_and_says_when_the_target_was_never_reached() -> None:
    assert rate_at([(10.0, 0.2), (20.0, 0.1), (30.0, 0.4)], 0.3) == pytest.approx(25.0)
    assert rate_at(SWEEP[:2], 0.6) is None


def build_plain(factor: float) -> dict[str, Any]:
    quiet = {"produce_ms": {"p99": 10.0}, "end_to_end_ms": {"p99": 20.0}}
    polluted = {"produce_ms": {"p99": 10.0 * factor}, "end_to_end_ms": {"p99": 20.0 * factor}}
    return build_figures(arm=PLAIN, quiet=quiet, polluted=polluted)


def test_a_plain_broker_that_hardly_suffers_proves_nothing() -> None:
    assert find_invalid([build_plain(100.0)]) == []
    assert "hundredfold" in find_invalid([build_plain(99.9)])[0]


def test_what_a_hypervisor_disturbed_proves_nothing() -> None:
    stolen = build_figures(stolen={"quiet": 0.0, "polluted": 0.0051, "pause": 0.0})
    assert not is_stolen(build_figures())
    assert is_stolen(stolen)
    assert find_invalid([build_figures(), stolen]) == [describe_stolen(stolen)]
    assert "0.5% (polluted)" in describe_stolen(stolen)
    sick = build_isolation(12.0) | {"stolen": {"quiet": 0.02, "sick": 0.0}}
    assert find_harmless([sick]) == [describe_stolen(sick)]


def test_no_bar_is_about_other_arms_and_what_disturbed_them_is_told_only() -> None:
    plain = build_plain(100.0) | {"stolen": {"quiet": 0.02, "polluted": 0.0, "pause": 0.0}}
    sick = build_isolation(151.0, arm=PLAIN) | {"stolen": {"quiet": 0.02, "sick": 0.0}}
    assert is_stolen(plain) and is_stolen(sick)
    assert not (is_disturbed(plain) or is_disturbed(sick))
    assert find_invalid([plain]) == find_harmless([sick]) == []


def test_laggards_served_from_a_cache_prove_nothing() -> None:
    served = build_figures(arm=NO_LANE, laggards_mb_s=39.7)
    assert find_invalid([build_figures(laggards_mb_s=39.6)]) == []
    assert find_invalid([served]) == [
        "round 1, no-lane: laggards got 39.7 MB/s from a disk that read 36.0"
    ]


def build_isolation(sick_ms: float, late: int = 0, arm: str = FOREBAY) -> dict[str, Any]:
    quiet, sick = {"p99": 10.0}, {"p99": sick_ms}
    return {
        "round": 1,
        "arm": arm,
        "healthy_quiet_ms": quiet,
        "healthy_sick_ms": sick,
        "heartbeats_late": late,
        "stolen": {"quiet": 0.0, "sick": 0.005},
    }


def test_isolation_allows_half_as_much_again_and_no_late_heartbeat() -> None:
    assert [bar.held for bar in judge_isolation([build_isolation(15.0)])] == [True, True]
    assert [bar.held for bar in judge_isolation([build_isolation(15.1)])] == [False, True]
    assert [bar.held for bar in judge_isolation([build_isolation(10.0, late=1)])] == [True, False]
    assert [bar.held for bar in judge_isolation([])] == [None, None]


def test_isolation_proves_nothing_where_the_plain_broker_does_not_hang() -> None:
    assert find_harmless([build_isolation(150.1, arm=PLAIN)]) == []
    assert "did not hang" in find_harmless([build_isolation(150.0, arm=PLAIN)])[0]
