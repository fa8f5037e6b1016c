"""The audit's bench: its logs, what it measures of a command, and its page."""

from __future__ import annotations

import gzip
import json
import sys
from typing import TYPE_CHECKING

import pytest

from bench.audit import report
from bench.audit.__main__ import BROKERS, write_logs
from bench.audit.processes import CommandFailed, measure
from bench.audit.report import AGAIN, FLOOR, INGEST, Point

if TYPE_CHECKING:
    from pathlib import Path

BURN = "import time\nwhile time.process_time() < {cpu_s}: pass\n"
ORPHAN = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {BURN.format(cpu_s=0.5)!r}])
held = bytearray(64 << 20)
print("said")
"""


def test_a_descendant_that_outlives_its_parent_counts(tmp_path: Path) -> None:
    cost = measure([sys.executable, "-c", ORPHAN], tmp_path / "said")
    assert cost.cpu_s >= 0.5 and cost.wall_s > 0 and cost.said == "said\n"
    assert 0 <= cost.stolen_share <= 1


def test_memory_is_the_most_at_a_look(tmp_path: Path) -> None:
    hold = "held = bytearray(96 << 20)\n" + BURN.format(cpu_s=1.0)
    assert 96 << 20 < measure([sys.executable, "-c", hold], tmp_path / "said").peak_bytes < 1 << 30


def test_a_command_that_fails_is_an_error_with_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match=r"ended with 3: why"):
        measure([sys.executable, "-c", "print('why'); raise SystemExit(3)"], tmp_path / "said")


def test_logs_have_the_lines_that_they_say(tmp_path: Path) -> None:
    lines = write_logs(tmp_path / "logs", 4_000, compressed=True)
    texts = [gzip.decompress(path.read_bytes()) for path in (tmp_path / "logs").iterdir()]
    assert len(texts) == BROKERS
    counted = [line for text in texts for line in text.splitlines() if b'"type":"log"' not in line]
    assert len(counted) == lines == 4_000
    last = [json.loads(text.splitlines()[-1]) for text in texts]
    assert {(one["event"], one["writtenLines"]) for one in last} == {("close", 1_000)}


def points() -> list[Point]:
    """A fixed cost of 20 s, and 4 s a million."""
    return [
        Point(tool, millions * 1_000_000, 20 + 4 * millions, 3.5 * millions, 3 << 30, 0.0)
        for tool in (INGEST, AGAIN, FLOOR)
        for millions in (1, 10)
    ]


def test_what_grows_is_told_from_what_does_not() -> None:
    found = report.fit([one for one in points() if one.tool == INGEST])
    assert found == pytest.approx((20, 4))
    assert report.fit(points()[:1]) is None


def test_bars_are_of_the_most_lines(tmp_path: Path) -> None:
    rows = report.build_bars(points())
    assert [row.split(" | ")[-1] for row in rows] == [
        f"{verdict} |" for verdict in ("BROKEN", "holds", "holds", "BROKEN", "holds", "holds")
    ]
    assert "6 s" in rows[0] and "10 M lines" in rows[0]
    page = report.build_page(points(), "the command", ["a note"])
    report.write_report(tmp_path, page, points())
    assert report.read_points(tmp_path) == points()
    assert (tmp_path / "audit.png").stat().st_size > 1_000
    text = (tmp_path / "README.md").read_text()
    assert "20.0 + 4.00 for each million" in text and "* a note" in text
