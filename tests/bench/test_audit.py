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
from bench.audit.rows import LEAST_MS, LEAST_TASKS, LONG_MS, build_page, main, read_stages

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


IGNORED = f"""
import os, signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = os.posix_spawn(sys.executable, [sys.executable, "-c", {BURN.format(cpu_s=1.5)!r}], os.environ)
try:
    os.waitpid(child, 0)  # returns once no child is left, with an error: the kernel has reaped it
except ChildProcessError:
    pass
"""


def test_a_child_whose_parent_ignores_its_end_counts(tmp_path: Path) -> None:
    """As Spark's workers are: the kernel adds their time to nobody's. A part of a look's interval may be missing."""
    cost = measure([sys.executable, "-c", IGNORED], tmp_path / "said")
    assert cost.cpu_s >= 0.5


def test_memory_is_the_most_at_a_look(tmp_path: Path) -> None:
    hold = "held = bytearray(96 << 20)\n" + BURN.format(cpu_s=1.0)
    assert 96 << 20 < measure([sys.executable, "-c", hold], tmp_path / "said").peak_bytes < 1 << 30


def test_a_command_that_fails_is_an_error_with_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match=r"ended with 3: why"):
        measure([sys.executable, "-c", "print('why'); raise SystemExit(3)"], tmp_path / "said")


def test_logs_have_the_rows_that_they_say(tmp_path: Path) -> None:
    """A response is a row for each of its partitions."""
    rows = write_logs(tmp_path / "logs", 4_000, compressed=True)
    texts = [gzip.decompress(path.read_bytes()) for path in (tmp_path / "logs").iterdir()]
    assert len(texts) == BROKERS
    read = [[json.loads(line) for line in text.splitlines()] for text in texts]
    counted = [line for lines in read for line in lines if line["type"] != "log"]
    answers = [answer for line in counted for answer in line.get("answers", ())]
    others = sum("answers" not in line for line in counted)
    assert others + sum(len(answer["partitions"]) for answer in answers) == rows == 4_000
    closed = [(lines[-1]["event"], lines[-1]["writtenLines"]) for lines in read]
    assert closed == [("close", len(lines) - 2) for lines in read]


def test_copies_are_of_other_brokers_and_else_the_same(tmp_path: Path) -> None:
    assert write_logs(tmp_path / "logs", 4_000, compressed=True, copies=1) == 4_000
    texts = {path.name: path for path in (tmp_path / "logs").iterdir()}
    boots = {name.split("-")[2]: path for name, path in texts.items()}
    assert len(texts) == len(boots) == 2 * BROKERS
    for broker in range(BROKERS):
        first, other = (f"{one:016x}" for one in (broker, broker + BROKERS))
        text, copy = (gzip.decompress(boots[boot].read_bytes()).decode() for boot in (first, other))
        assert text != copy == text.replace(f'"boot":"{first}"', f'"boot":"{other}"')


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
    assert "6 s" in rows[0] and "10 M rows" in rows[0]
    page = report.build_page(points(), "the command", ["a note"])
    report.write_report(tmp_path, page, points())
    assert report.read_points(tmp_path) == points()
    assert (tmp_path / "audit.png").stat().st_size > 1_000
    text = (tmp_path / "README.md").read_text()
    assert "20.0 + 4.00 for each million" in text and "* a note" in text


def test_the_longest_task_is_held_against_its_stage_s_median(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stages with few tasks, or tasks of no time, are not judged; failed tasks do not count."""
    events = []

    def add(stage: int, times_ms: list[int], failed: bool = False) -> None:
        for time_ms in times_ms:
            task = {"Launch Time": 5, "Finish Time": 5 + time_ms, "Failed": failed}
            events.append({"Event": "SparkListenerTaskEnd", "Stage ID": stage, "Task Info": task})
        info = {"Stage ID": stage, "Stage Name": f"name {stage}"}
        events.append({"Event": "SparkListenerStageCompleted", "Stage Info": info})

    add(1, [LEAST_MS] * LEAST_TASKS + [3 * LEAST_MS])
    add(2, [LEAST_MS, 100 * LEAST_MS])
    add(3, [LEAST_MS // 100] * LEAST_TASKS + [LEAST_MS // 2])
    add(1, [90 * LEAST_MS], failed=True)
    page, holds = build_page(read_stages(map(json.dumps, events)))
    assert holds and "3.00 times its stage's median" in page and "name 2" not in page
    log = tmp_path / "events"
    log.write_text("\n".join(map(json.dumps, events)))
    assert main(["--events", str(log)]) == 0
    assert capsys.readouterr().out.strip() == page.strip()
    add(4, [LEAST_MS] * LEAST_TASKS + [4 * LEAST_MS])
    page, holds = build_page(read_stages(map(json.dumps, events)))
    assert not holds and "| 4 name 4 | 9 |" in page
    log.write_text("\n".join(map(json.dumps, events)))
    assert main(["--events", str(log)]) == 1
    events[:] = [event for event in events if event.get("Stage ID") != 4]
    add(5, [30] * 3 * LEAST_TASKS + [LONG_MS])
    page, holds = build_page(read_stages(map(json.dumps, events)))
    assert not holds and "100.00 times" in page, "most of its tasks had nothing to do"
    assert not build_page([])[1], "nothing measured is nothing held"
