"""Raw rows and counters become figures: what counts, in which phase, and what a hang does to them."""

import numpy as np
import pytest

from bench.pollution.figures import (
    by_second,
    catch_up_s,
    disk_between,
    laggards_between,
    latency_between,
    limit_figures,
    percentiles,
    phase_figures,
    read_bytes_by_reason,
    settled_utils,
    stolen_between,
    tail_miss_bytes,
)
from bench.pollution.sampling import DiskSample, Scrape, scan_diskstats
from bench.pollution.series import NS
from bench.stolen import Ticks

MS = NS // 1000


def build_samples(util: float, seconds: int) -> list[DiskSample]:
    """One a second, at 30 MB/s."""
    return [
        DiskSample(n * NS, n * 60, n * 30_000_000, n * 600, 0, 0, 0, round(n * util * 1000))
        for n in range(seconds + 1)
    ]


def test_a_record_belongs_to_the_phase_in_which_it_was_due() -> None:
    rows = np.array([[0, 5 * MS, 1], [NS, 7 * MS, 1], [2 * NS, 9 * MS, 1]])
    assert list(latency_between(rows, NS, 2 * NS)) == [7.0]
    assert by_second(rows, 0, 4 * NS) == [5.0, 7.0, 9.0, None]


def test_a_record_never_acknowledged_counts_with_the_time_it_waited() -> None:
    rows = np.array([[0, 5 * MS, 1]] * 50 + [[0, 8 * NS, 0]] * 50)
    figures = phase_figures(rows, rows[:, :2], 0, NS)
    assert figures["produce_ms"]["p99"] == 8000.0
    assert figures["acknowledged_per_s"] == 50.0


def test_percentiles_of_nothing_are_nothing() -> None:
    assert percentiles(np.array([])) == {}
    assert percentiles(np.arange(1001.0))["p99"] == 990.0


def test_disk_between_two_times() -> None:
    figures = disk_between(build_samples(0.6, 30), 10 * NS, 20 * NS)
    assert figures == {"util": 0.6, "read_mb_s": 30.0, "write_mb_s": 0.0, "await_ms": 10.0}
    assert disk_between(build_samples(0.6, 30), 0, NS // 2) == {}


def test_stolen_between_two_times() -> None:
    ticks = [(n * NS, Ticks(200 * n, 10 * max(n - 5, 0))) for n in range(11)]
    assert stolen_between(ticks, 0, 5 * NS) == 0.0
    assert stolen_between(ticks, 5 * NS, 10 * NS) == 0.05
    assert stolen_between(ticks, 11 * NS, 12 * NS) == stolen_between([], 0, NS) == 0.0


@pytest.mark.parametrize(("seconds", "means"), [(29, []), (30, [0.6]), (60, [0.6] * 4)])
def test_settled_means_begin_after_twenty_seconds(seconds: int, means: list[float]) -> None:
    assert settled_utils(build_samples(0.6, 60), 0, seconds * NS) == means


def test_laggards_count_what_was_answered_meanwhile() -> None:
    rows = np.array(
        [[0, 0, NS, 10**6], [1, 0, 3 * NS, 10**6], [0, NS, NS, 2 * 10**6], [1, 3 * NS, NS, 0]]
    )
    assert laggards_between(rows, 2, 0, 2 * NS + 1) == [1.5, 0.0]


def test_caught_up_is_the_first_fresh_record_after_the_pause() -> None:
    rows = np.array([[0, 10 * MS], [9 * NS, 2 * NS], [11 * NS, 900 * MS], [12 * NS, 100 * MS]])
    assert catch_up_s(rows, 10 * NS) == 2.1
    assert catch_up_s(rows[:3], 10 * NS) is None


def test_bytes_by_reason_are_what_was_added_from_the_phase_on() -> None:
    name = "forebay_fetch_bytes_total"
    early = Scrape(0, {(name, "", "hit"): 1.0})
    before = Scrape(NS, {(name, "", "hit"): 5.0, (name, "cold", "miss"): 1.0, ("other",): 1.0})
    last = Scrape(
        3 * NS, {(name, "", "hit"): 9.0, (name, "cold", "miss"): 1.0, (name, "hole", "miss"): 2.0}
    )
    assert read_bytes_by_reason([early, before, last], 2 * NS) == {"hit": 4, "miss hole": 2}
    assert read_bytes_by_reason([], 0) == {}


@pytest.mark.parametrize(("missed", "tails"), [(30, 0), (31, 1), (20, -10)])
def test_what_laggards_did_not_get_is_the_tails_share(missed: int, tails: int) -> None:
    laggards = np.array([[0, 0, 0, 10], [1, 0, 0, 20]])
    assert tail_miss_bytes({"hit": 99, "miss cold": missed - 1, "pass mixed": 1}, laggards) == tails


def test_diskstats_of_one_device() -> None:
    text = "   7       1 loop1 9 9 9 9 9 9 9 9 9 9 9\n   7       0 loop0 1 0 8 30 4 0 16 50 2 70 80 0 0 0 0 0 0\n"
    assert scan_diskstats(text, "loop0", 5) == DiskSample(5, 1, 4096, 30, 4, 8192, 2, 70)
    assert scan_diskstats(text, "loop", 5) is None


def build_scrapes(*limits_mb_s: float | None) -> list[Scrape]:
    """One a second; None: no limit is in use."""
    name = "forebay_throttle_disk_limit_bytes_per_second"
    return [
        Scrape(n * NS, {} if one is None else {(name, "loop0", "recognised"): one * 1e6})
        for n, one in enumerate(limits_mb_s)
    ]


def test_limit_counts_from_when_it_was_known() -> None:
    scrapes = build_scrapes(*[None] * 12, *[50.0] * 40)
    found = limit_figures(scrapes, build_samples(0.3, 60), 2 * NS, 50 * NS)
    assert found == {"mb_s": 50.0, "source": "recognised", "known_s": 10.0, "shares": [0.6, 0.6]}


def test_flush_counts_as_a_full_look_not_as_more() -> None:
    """25 MB within 0.4 s of each 5 s, beside 30 MB/s of reads, at a limit of 60 MB/s: one look in ten is full."""
    samples = [
        DiskSample(round(n * 0.2 * NS), n, n * 6_000_000, n, 0, (n + 20) // 25 * 25_000_000, 0, n)
        for n in range(200)
    ]
    found = limit_figures(build_scrapes(*[60.0] * 40), samples, 0, 40 * NS)
    assert found["shares"] == pytest.approx([0.55] * 3, abs=0.01)


def test_limit_of_the_configuration_is_known_from_the_start() -> None:
    found = limit_figures(build_scrapes(*[60.0] * 40), build_samples(0.3, 60), 5 * NS, 30 * NS)
    assert (found["known_s"], found["shares"]) == (0.0, [0.5])


def test_limit_that_has_ended_is_none() -> None:
    for scrapes in ([], build_scrapes(None, None), build_scrapes(50.0, 50.0, None)):
        found = limit_figures(scrapes, build_samples(0.3, 60), 0, 30 * NS)
        assert found == {"mb_s": None, "source": "", "known_s": None, "shares": []}
