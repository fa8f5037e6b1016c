"""The page of a run: machine, bars, a table for each load, two plots.

Owns Markdown and matplotlib. Must not know how a figure was measured. Invariants: medians with ranges; a
ratio is the median of the rounds' ratios, not the ratio of medians.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.ticker import NullFormatter

from bench.ladder import arms, bars, cells

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.ladder.cells import Row

SHOWN: Mapping[str, tuple[str, str]] = {
    "produce 1 KB": ("cpu_us_per_request", "CPU, us per request"),
    "produce 900 KB": ("cpu_s_per_gb", "CPU, s per GB"),
    "fetch 1 MB": ("cpu_s_per_gb", "CPU, s per GB"),
    "fetch 1 MB ": ("mb_per_s", "MB/s"),
}


def describe_machine() -> list[str]:
    """What it ran on, and how busy that was."""
    cpu = [
        line.split(":")[1].strip()
        for line in _lines("/proc/cpuinfo")
        if line.startswith("model name")
    ]
    memory = next(
        line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal")
    )
    return [
        f"{len(cpu)} x {cpu[0] if cpu else platform.machine()}, {int(memory) >> 20} GiB, "
        f"Linux {platform.release()}, Python {platform.python_version()} ({describe_build()}), "
        f"congestion control {_lines('/proc/sys/net/ipv4/tcp_congestion_control')[0]}",
        f"load average at the end: {', '.join(f'{one:.1f}' for one in os.getloadavg())} "
        "(the run itself makes about 2)",
    ]


def describe_build() -> str:
    """How the interpreter was compiled, which is a twentieth of a small request."""
    said = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    wanted = [name for name in ("--enable-optimizations", "--with-lto") if name in said]
    return (
        f"built with {' and '.join(wanted)}"
        if wanted
        else "built as configure does without being asked"
    )


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def spread(values: Sequence[float]) -> str:
    """Median and range."""
    if not values:
        return ""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def build_page(
    rows: Sequence[Row],
    extras: Sequence[tuple[str, str]],
    notes: Sequence[str],
    command: str,
    title: str = "The ladder",
    wanted: Sequence[bars.Bar] = bars.BARS,
    floor: bars.Floor = bars.FLOOR,
) -> str:
    """The whole page, with the wanted bars and the ratios of `floor`."""
    rounds = len({row.round for row in rows})
    parts = [
        f"# {title}",
        "",
        f"`{command}`",
        "",
        *(f"* {note}" for note in [*describe_machine(), cells.describe_stolen(rows), *notes]),
    ]
    parts += [f"* {rounds} rounds; median (smallest to largest) of the rounds", "", "## Bars", ""]
    parts += ["| bar | bound | measured | |", "| --- | --- | --- | --- |"]
    for one in bars.hold_bars(rows, wanted):
        bound = f"{'at most' if one.bar.at_most else 'at least'} {one.bar.bound:g}"
        measured = f"{one.median:.3g} ({one.low:.3g} to {one.high:.3g})"
        parts.append(
            f"| {one.bar.name} | {bound} | {measured} | {'holds' if one.holds else 'BROKEN'} |"
        )
    parts += [
        f"| {name} | none | {spread(values)} | |"
        for name, values in bars.measure_floor(rows, floor)
    ]
    for load in dict.fromkeys(row.load for row in rows):
        parts += ["", f"## {load}", "", *build_table(rows, load)]
    if extras:
        parts += ["", "## Apart", "", "| what | measured |", "| --- | --- |"]
        parts += [f"| {what} | {said} |" for what, said in extras]
    return "\n".join(parts) + "\n"


def build_table(rows: Sequence[Row], load: str) -> list[str]:
    """One load: rungs down, figures across, and the CPU as a ratio to tuned haproxy's."""
    of_load = [row for row in rows if row.load == load]
    figures = list(dict.fromkeys(name for row in of_load for name in row.figures))
    lines = [f"| rung | {' | '.join(figures)} |", f"| --- |{' --- |' * len(figures)}"]
    for name in (one for one in arms.ALL if any(row.arm == one for row in of_load)):
        mine = [row.figures for row in of_load if row.arm == name]
        cells = [spread([one[figure] for one in mine if figure in one]) for figure in figures]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    against = _against(rows, load, figures)
    return [*lines, "", f"forebay / forebay-other: {against}"] if against else lines


def _against(rows: Sequence[Row], load: str, figures: Sequence[str]) -> str:
    pairs = {one: bars.paired(rows, load, one, arms.CACHE, arms.AGAINST) for one in figures}
    return "; ".join(f"{figure} {spread(ratios)}" for figure, ratios in pairs.items() if ratios)


def plot(rows: Sequence[Row], path: Path, shown: Mapping[str, tuple[str, str]] = SHOWN) -> None:
    """The figures of `shown` (load: figure, label) of each rung, every round a dot."""
    figure, axes = plt.subplots(1, len(shown), figsize=(4 * len(shown), 3.2))
    for axis, (load, (key, label)) in zip(axes, shown.items(), strict=True):
        of_load = [row for row in rows if row.load == load.strip() and row.figures.get(key)]
        names = [one for one in arms.ALL if any(row.arm == one for row in of_load)]
        axis.scatter(
            [row.figures[key] for row in of_load],
            [names.index(row.arm) for row in of_load],
            s=12,
            alpha=0.6,
        )
        axis.set_yticks(range(len(names)), names, fontsize=7)
        axis.set_xscale("log")
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_xlabel(label, fontsize=8)
        axis.set_title(load.strip(), fontsize=9)
        axis.invert_yaxis()
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def write_report(
    directory: Path,
    page: str,
    rows: Sequence[Row],
    picture: str = "ladder.png",
    shown: Mapping[str, tuple[str, str]] = SHOWN,
) -> None:
    """README.md, rows.json and the picture."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "README.md").write_text(page + f"\n![all rounds]({picture})\n")
    write_rows(directory, rows)
    plot(rows, directory / picture, shown)


def write_rows(directory: Path, rows: Sequence[Row]) -> None:
    """rows.json, which `read_rows` reads."""
    directory.mkdir(parents=True, exist_ok=True)
    rounded: list[Any] = [
        [
            row.round,
            row.load,
            row.arm,
            {k: float(f"{v:.5g}") for k, v in row.figures.items()},
            round(row.stolen, 4),
            row.attempts,
        ]
        for row in rows
    ]
    (directory / "rows.json").write_text(
        "\n".join(["[", ",\n".join(map(json.dumps, rounded)), "]"]) + "\n"
    )


def read_rows(directory: Path) -> list[Row]:
    """The rows that `write_rows` left there, rounded; none if there is no such file."""
    path = directory / "rows.json"
    kept = json.loads(path.read_text()) if path.exists() else []
    return [cells.Row(*one) for one in kept]
