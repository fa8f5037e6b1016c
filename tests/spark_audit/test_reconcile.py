"""Counters in Prometheus' text against the log's totals."""

import pytest

from metrics.collector import Exposition, Sample
from spark_audit.reconcile import Comparison, compare, scan_counters
from tests.spark_audit.conftest import Audited


def test_the_sidecar_s_own_text_is_understood() -> None:
    samples = [
        Sample("forebay_fetch_partitions_total", ("hit", ""), 3),
        Sample("forebay_fetch_partitions_total", ("miss", "unauthorized-yet"), 1),
        Sample("forebay_fetch_bytes_total", ("hit", ""), 12_345_678_901),
        Sample("forebay_cache_capacity_bytes", (), 1 << 30),
        Sample("forebay_access_log_dropped_lines_total", (), 7),
        Sample("forebay_upstream_fetch_bytes_total", ("watch",), 99),
    ]
    counters = scan_counters(Exposition(lambda: samples, strict=True).render().decode())
    assert counters.totals == {
        ("hit", ""): (3, 12_345_678_901),
        ("miss", "unauthorized-yet"): (1, 0),
    }
    assert (counters.cache_size_bytes, counters.dropped_lines) == (1 << 30, 7)
    assert counters.upstream_bytes == {"watch": 99}


@pytest.mark.parametrize("text", ["", "# HELP x y\n", "up 1\n", "<html></html>"])
def test_another_file_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="forebay_fetch_partitions_total"):
        scan_counters(text)


def test_differences_show_whichever_side_they_are_on() -> None:
    rows = compare(
        {("hit", ""): (3, 10), ("miss", "cold"): (1, 5), ("miss", "hole"): (0, 0)},
        {("hit", ""): (3, 10), ("pass", "session"): (2, 0)},
    )
    assert rows == [
        Comparison("hit", "", 3, 3, 10, 10),
        Comparison("miss", "cold", 1, 0, 5, 0),
        Comparison("pass", "session", 0, 2, 0, 0),
    ]
    assert [row.agrees for row in rows] == [True, False, False]


def test_counters_are_compared_with_the_boot_that_was_scraped(audited: Audited) -> None:
    # Both boots of the fixture's log start at one time; b1 runs longer, so its log ends last.
    assert audited.findings.compared_boot == "b1"
    assert not all(row.agrees for row in audited.findings.comparison)
