"""What changed between two reports, and that the topics' parts add up to it."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_audit.commands import diff
from spark_audit.difference import (
    Report,
    UnfitReport,
    build_changes,
    build_topics,
    describe,
    load_report,
    measure_union,
    open_report,
)
from spark_audit.page.difference import build_page
from spark_audit.summary import build_summary
from spark_audit.units import show_bytes, show_ratio
from tests.spark_audit.page.sample import MINUTE_MS, START_MS, build_findings, build_windows

MIB = 1 << 20
Topics = dict[str, dict[tuple[str, str], int]]


def build_report(name: str, topics: Topics, seconds: int = 100, missing: int = 0) -> Report:
    """A report of these bytes by topic, result and reason."""
    rows: list[dict[str, Any]] = [
        {"topic": topic, "result": result, "reason": reason, "bytes": size_bytes}
        for topic, reasons in topics.items()
        for (result, reason), size_bytes in reasons.items()
    ]
    sums = {
        kind: sum(row["bytes"] for row in rows if row["result"] == kind)
        for kind in ("hit", "miss", "pass")
    }
    total = sum(sums.values())
    summary = {
        "fetches": {
            "bytes": total,
            "hitRatioBytes": sums["hit"] / total if total else None,
            **{f"{kind}Bytes": size_bytes for kind, size_bytes in sums.items()},
        },
        "log": {
            "boots": [{"firstMs": 0, "lastMs": 1000 * seconds}],
            "firstMs": 0,
            "lastMs": 1000 * seconds,
            "droppedLines": missing,
            "unreadableLines": 0,
            "lines": 10,
        },
        "results": [],
        "clients": [],
        "latency": [],
        "sizing": {"points": [], "cacheSizeBytes": None},
    }
    return Report(name, summary, build_topics(rows))


def test_times_that_overlap_count_once() -> None:
    boots = [(0, 10), (5, 20), (6, 7), (30, 40)]
    assert measure_union({"firstMs": first, "lastMs": last} for first, last in boots) == 30
    assert measure_union([]) == 0


def test_the_topic_whose_ratio_fell_accounts_for_the_fall() -> None:
    before = build_report("a", {"calm": {("hit", ""): 500 * MIB}, "sick": {("hit", ""): 500 * MIB}})
    fallen = {("hit", ""): 300 * MIB, ("miss", "evicted"): 180 * MIB, ("miss", "cold"): 20 * MIB}
    after = build_report("b", {"calm": {("hit", ""): 500 * MIB}, "sick": fallen}, missing=7)
    changes = build_changes(before, after)
    assert [change.topic for change in changes] == ["sick", "calm"]
    assert changes[0].by_ratio == pytest.approx(-0.2) and changes[0].by_share == pytest.approx(0)
    assert changes[1].points == pytest.approx(0)
    assert describe(before, after, changes) == [
        "The hit ratio fell by 20.0 points, from 100 % to 80.0 % of bytes.",
        "sick accounts for -20.0 points: its hit ratio went from 100 % to 60.0 % (miss evicted: 1.80 MiB/s more).",
        "Clients got 10.0 MiB/s after 10.0 MiB/s; of these the broker sent 2.00 MiB/s after 0 B/s.",
        "7 lines are missing in b: its numbers are too small by them.",
    ]


def test_a_new_topic_and_one_that_ended_are_named_as_such() -> None:
    before = build_report("a", {"old": {("hit", ""): 500 * MIB}, "calm": {("hit", ""): 500 * MIB}})
    after = build_report(
        "b", {"calm": {("hit", ""): 500 * MIB}, "new": {("miss", "cold"): 500 * MIB}}
    )
    changes = build_changes(before, after)
    assert all(change.by_ratio == 0 for change in changes)
    said = describe(before, after, changes)
    assert (
        "new accounts for -37.5 points: it is new, with 0 % hits (miss cold: 5.00 MiB/s more)."
        in said
    )
    assert "old accounts for -12.5 points: it is no longer read; it had 100 % hits." in said


def test_rates_are_of_the_time_with_a_log() -> None:
    topics: Topics = {"calm": {("hit", ""): 100 * MIB, ("miss", "cold"): 100 * MIB}}
    before, after = build_report("a", topics, seconds=100), build_report("b", topics, seconds=10)
    assert describe(before, after, build_changes(before, after)) == [
        "The hit ratio is the same: 50.0 % of bytes.",
        "Clients got 20.0 MiB/s after 2.00 MiB/s; of these the broker sent 10.0 MiB/s after 1.00 MiB/s.",
    ]


def test_a_report_without_bytes_is_compared_with_nothing() -> None:
    before, after = build_report("a", {}), build_report("b", {"t": {("hit", ""): 5}})
    assert build_changes(before, after) == []
    assert describe(before, after, []) == ["Nothing can be compared: in a no client got a byte."]
    assert "Nothing can be compared" in build_page(before, after, [])


SIZES = st.dictionaries(
    st.sampled_from([("hit", ""), ("miss", "cold"), ("pass", "follower")]), st.integers(0, 1 << 40)
)


@given(*(st.dictionaries(st.sampled_from("abcdef"), SIZES) for _ in range(2)))
def test_the_parts_of_all_topics_add_up_to_the_change(first: Topics, second: Topics) -> None:
    before, after = build_report("a", first), build_report("b", second)
    changes = build_changes(before, after)
    if before.ratio is None or after.ratio is None:
        assert changes == []
    else:
        total = sum(change.points for change in changes)
        assert total == pytest.approx(after.ratio - before.ratio, abs=1e-9)


def write_report(directory: Path, **changes: Any) -> Path:
    """The sample's report, with other topics."""
    findings = build_findings()
    directory.mkdir()
    summary = build_summary(findings)
    (directory / "summary.json").write_text(json.dumps(summary))
    rows = [{**row, **changes} for row in findings.topic_reasons]
    (directory / "topics.json").write_text(json.dumps(rows))
    (directory / "periods.json").write_text(json.dumps(findings.periods._asdict()))
    return directory


def test_two_reports_from_the_command_line(tmp_path: Path, capsys) -> None:
    sides = [str(write_report(tmp_path / name)) for name in ("monday", "tuesday")]
    assert diff.main(sides) == 0
    assert capsys.readouterr().out.startswith(
        "The hit ratio is the same: 93.6 % of bytes.\nClients got"
    )
    assert diff.main([*sides, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out.split()
    assert printed[-2:] == [str(tmp_path / "out" / name) for name in ("index.html", "diff.json")]
    page = (tmp_path / "out" / "index.html").read_text()
    assert "Which topics account" not in page and page.count("<svg") == 1
    assert page.count("<script>") == 1 and "audit&lt;script&gt;" not in page
    document = json.loads((tmp_path / "out" / "diff.json").read_text())
    assert [row["points"] for row in document["topics"]] == [0.0] * 6


def test_two_periods_of_one_report(tmp_path: Path, capsys) -> None:
    report = write_report(tmp_path / "logs@home")
    calm, after = (
        f"{report}@2025-11-21T{hours}"
        for hours in ("04:40/2025-11-21T05:40", "06:05/2025-11-21T06:12Z")
    )
    assert diff.main([calm, after, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    hours = [
        [
            row
            for row in build_windows()
            if first <= (row["windowMs"] - START_MS) // MINUTE_MS < last
        ]
        for first, last in ((0, 60), (85, 92))
    ]
    hit, miss = (
        [sum(row[name] for row in rows) for rows in hours] for name in ("hitBytes", "missBytes")
    )
    ratios = [show_ratio(hit[side] / (hit[side] + miss[side])) for side in (0, 1)]
    assert f"points, from {ratios[0]} to {ratios[1]} of bytes." in said.splitlines()[0]
    assert "orders accounts for -" in said and "ledger.tx accounts for +" in said
    # Forebay ran for 6.8 of these 7 minutes
    assert f"the broker sent {show_bytes(miss[1] / 408)}/s after" in said
    page = (tmp_path / "out" / "index.html").read_text()
    assert "Latency" not in page and "<svg" not in page


@pytest.mark.parametrize(
    ("period", "said"),
    [
        (
            "2030-01-01/2031-01-01",
            "no client got a byte in .*covers 2025-11-21 04:40:00 UTC to .*windows of 60 s",
        ),
        ("soon/2031-01-01", "'soon' is no time such as 2026-11-24"),
    ],
)
def test_a_period_without_bytes_is_said(tmp_path: Path, period: str, said: str) -> None:
    report = write_report(tmp_path / "report")
    with pytest.raises(UnfitReport, match=said):
        open_report(f"{report}@{period}")


def test_what_is_no_report_is_said_with_what_to_do(tmp_path: Path, capsys) -> None:
    good, bad = write_report(tmp_path / "good"), tmp_path / "bad"
    assert diff.main([str(good), str(bad)]) == 3
    assert f"{bad} holds no report: No such file" in capsys.readouterr().err
    bad.mkdir()
    (bad / "summary.json").write_text('{"log": {}}')
    (bad / "topics.json").write_text("[]")
    with pytest.raises(
        UnfitReport, match=r"another version \(KeyError: 'fetches'\); run forebay audit again"
    ):
        load_report(bad, "bad")
    (bad / "summary.json").write_text("{")
    assert diff.main([str(bad), str(good)]) == 3
