"""The page of a run of the audit's bench: tables, bars and a picture.

Owns the words and numbers of the page. Must not know how anything was measured. Invariants: a figure has its unit; a
bar names its bound and says whether it holds; what grows with the lines and what does not is told apart only where
there are two points or more.
"""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, NamedTuple

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

from bench.ladder.report import describe_machine

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MILLION = 1_000_000
INGEST, FIRST, AGAIN, WHOLE, SCAN, FLOOR = (
    "ingest",
    "first report of the table",
    "second report of the table",
    "report of the logs",
    "scan",
    "DuckDB",
)
MEANING = {
    INGEST: "`forebay audit ingest LOGS TABLE`, into an empty table",
    FIRST: "`forebay audit TABLE --out DIR`, which keeps its sums beside the table",
    AGAIN: "the same command once more",
    WHOLE: "`forebay audit LOGS --out DIR`, with no settings",
    SCAN: "the audit's reading of lines alone, in one process without Spark (`bench.audit.scan`)",
    FLOOR: "main sums of the same files by DuckDB, two threads (`bench.audit.floor`)",
}
MOST_CPU_S_A_MILLION = 5.0
MOST_BYTES = 4 << 30
MOST_AGAIN_S = 30.0
LEAST_LINES_A_S = 100 * MILLION / 360


class Point(NamedTuple):
    """One run: `lines` is the rows that the logs hold (up to version 3 each is a line), `tool` one of MEANING."""

    tool: str
    lines: int
    cpu_s: float
    wall_s: float
    peak_bytes: int
    stolen_share: float

    @property
    def cpu_s_a_million(self) -> float:
        return self.cpu_s / self.lines * MILLION


def fit(points: Sequence[Point]) -> tuple[float, float] | None:
    """CPU seconds at the start, and for each million lines more; None with fewer than two amounts of lines."""
    if len({one.lines for one in points}) < 2:
        return None
    slope, start = statistics.linear_regression(
        [one.lines / MILLION for one in points], [one.cpu_s for one in points]
    )
    return start, slope


def build_bars(points: Sequence[Point]) -> list[str]:
    """Of the run with the most lines: what was asked for, and whether it holds."""
    rows = []

    def add(what: str, unit: str, bound: float, value: float, most: bool = True) -> None:
        holds = value <= bound if most else value >= bound
        side = "at most" if most else "at least"
        verdict = "holds" if holds else "BROKEN"
        rows.append(f"| {what} | {side} {bound:,.4g} {unit} | {value:,.3g} {unit} | {verdict} |")

    largest = {one.tool: one for one in sorted(points, key=lambda one: one.lines)}
    read = largest.get(INGEST)
    if read is not None:
        at = f"{read.lines / MILLION:g} M rows"
        add(f"ingest, {at}: CPU a million", "s", MOST_CPU_S_A_MILLION, read.cpu_s_a_million)
        slope = fit([one for one in points if one.tool == INGEST])
        if slope is not None:
            add("ingest: CPU of a further million", "s", MOST_CPU_S_A_MILLION, slope[1])
        speed = read.lines / read.wall_s
        add(f"ingest, {at}: 100 M in six minutes", "lines/s", LEAST_LINES_A_S, speed, most=False)
    again = largest.get(AGAIN)
    if again is not None:
        add(
            f"{AGAIN}, {again.lines / MILLION:g} M rows",
            "s",
            MOST_AGAIN_S,
            again.wall_s,
        )
    for tool in (INGEST, FIRST, AGAIN, WHOLE):
        if tool in largest:
            peak = max(one.peak_bytes for one in points if one.tool == tool)
            add(f"{tool}: memory", "GiB", MOST_BYTES / (1 << 30), peak / (1 << 30))
    return rows


def build_page(points: Sequence[Point], command: str, notes: Sequence[str]) -> str:
    """The page, without the picture."""
    parts = [
        "# The audit's speed",
        "",
        f"`{command}`",
        "",
        *(f"* {one}" for one in describe_machine()),
        "",
        "## Bars",
        "",
        "| figure | bound | measured | |",
        "| --- | --- | --- | --- |",
        *build_bars(points),
        "",
        "## Runs",
        "",
        "CPU is that of all processes; memory is the most that they had together, shared pages counted once.",
        "",
        "| run | M rows | CPU, s | CPU a million, s | time, s | memory, GiB | stolen |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    parts += [
        f"| {one.tool} | {one.lines / MILLION:.2f} | {one.cpu_s:.1f} | {one.cpu_s_a_million:.2f} | {one.wall_s:.1f}"
        f" | {one.peak_bytes / (1 << 30):.2f} | {one.stolen_share:.1%} |"
        for one in points
    ]
    parts += [
        "",
        "| run | what it is | CPU, s, by the line through its points |",
        "| --- | --- | --- |",
    ]
    for tool, meaning in MEANING.items():
        line = fit([one for one in points if one.tool == tool])
        grows = f"{line[0]:.1f} + {line[1]:.2f} for each million" if line else "one point"
        if any(one.tool == tool for one in points):
            parts.append(f"| {tool} | {meaning} | {grows} |")
    parts += ["", *(f"* {note}" for note in notes)] if notes else []
    return "\n".join(parts) + "\n"


def plot(points: Sequence[Point], path: Path) -> None:
    """CPU by lines, and CPU a million, of each tool."""
    figure, (whole, each) = plt.subplots(1, 2, figsize=(9, 3.4))
    for tool in MEANING:
        found = sorted((one for one in points if one.tool == tool), key=lambda one: one.lines)
        xs = [one.lines / MILLION for one in found]
        whole.plot(xs, [one.cpu_s for one in found], "o-", markersize=4, label=tool)
        each.plot(xs, [one.cpu_s_a_million for one in found], "o-", markersize=4, label=tool)
    each.axhline(MOST_CPU_S_A_MILLION, color="grey", linewidth=0.8, linestyle="--")
    for axis, title in ((whole, "CPU, s"), (each, "CPU, s for each million lines")):
        axis.set_xscale("log")
        axis.set_ylim(bottom=0)
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("million lines", fontsize=8)
        axis.grid(alpha=0.3)
    whole.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def write_report(directory: Path, page: str, points: Sequence[Point]) -> None:
    """README.md, result.json and audit.png."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "README.md").write_text(page + "\n![CPU by lines](audit.png)\n")
    rounded = [
        {
            name: float(f"{value:.4g}") if isinstance(value, float) else value
            for name, value in one._asdict().items()
        }
        for one in points
    ]
    (directory / "result.json").write_text(json.dumps(rounded, indent=1) + "\n")
    plot(points, directory / "audit.png")


def read_points(directory: Path) -> list[Point]:
    """What an earlier run has written there; none without one."""
    path = directory / "result.json"
    return [Point(**one) for one in json.loads(path.read_text())] if path.exists() else []
