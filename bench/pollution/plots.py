"""The picture of a run: p99 of each arm, the sweep, and a column for each arm with its course second by second.

Owns matplotlib. Must not know bars or how a figure was measured. Invariants: panels of a row share their axis, so
that arms can be compared; times count from the beginning of the quiet phase.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

from bench.pollution.arms import ARMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from bench.pollution.sweep import Step

    Figures = Mapping[str, Any]

PANELS = (
    ("produce_p99_ms", "produce p99, ms", "log"),
    ("end_to_end_p99_ms", "end to end p99, ms", "log"),
    ("util", "disk utilisation", "linear"),
    ("read_mb_s", "disk reads, MB/s", "linear"),
    ("laggards_mb_s", "laggards, MB/s", "linear"),
    ("budget_mb_s", "budget, MB/s", "linear"),
    ("stolen", "stolen by the host", "linear"),
)


MARKS = ("polluted_at_s", "paused_at_s", "resumed_at_s")


def plot_run(result: Figures, steps: Sequence[Step], path: Path) -> None:
    """One PNG of everything that was measured: arms and sweep above, courses below. Needs an arm or a step."""
    names = [name for name in ARMS if any(one["arm"] == name for one in result["arms"])]
    panels = [panel for panel in PANELS if any(_values(one, panel[0]) for one in result["arms"])]
    width, above = max(8.0, 2.4 * len(names)), 0.3 * len(names) + 2.2
    figure = plt.figure(figsize=(width, above + 1.3 * len(panels)), layout="constrained")
    if not names:
        draw_sweep(figure.subplots(), steps, result)
    else:
        parts: Any = figure.subfigures(2, 1, height_ratios=[above, 1.3 * len(panels)])
        upper, lower = parts
        left, *others = upper.subplots(1, 3 if steps else 2)
        draw_arms((left, others[0]), names, result["arms"])
        if steps:
            draw_sweep(others[1], steps, result)
        grid = lower.subplots(len(panels), len(names), sharex="col", sharey="row", squeeze=False)
        for name, column in zip(names, zip(*grid, strict=True), strict=True):
            rounds = [one for one in result["arms"] if one["arm"] == name]
            draw_course(column, panels, rounds, result["sizes"]["target"])
            column[0].set_title(name, fontsize=9)
        for panel, row in zip(panels, grid, strict=True):
            row[0].set_ylabel(panel[1], fontsize=7)
    figure.savefig(path, dpi=80, metadata={"Software": None})
    plt.close(figure)


def draw_course(
    column: Iterable[Any],
    panels: Iterable[tuple[str, str, str]],
    rounds: Sequence[Figures],
    target: float,
) -> None:
    """One arm over time, all its rounds on top of each other."""
    for axis, (key, _, scale) in zip(column, panels, strict=True):
        for one in rounds:
            axis.plot(one["course"][key], linewidth=0.8)
        axis.set_yscale(scale)
        axis.grid(alpha=0.3)
        axis.tick_params(labelsize=7)
        for mark in MARKS:
            axis.axvline(rounds[0]["course"][mark], color="grey", linestyle=":", linewidth=1)
        if key == "util":
            axis.axhline(target, color="black", linewidth=0.8)
            axis.set_ylim(0, 1.05)
    axis.set_xlabel("seconds", fontsize=7)


def draw_arms(axes: Sequence[Any], names: Sequence[str], rows: Sequence[Figures]) -> None:
    """Quiet and polluted p99 of each arm, every round a dot."""
    for axis, key, title in zip(
        axes, ("produce_ms", "end_to_end_ms"), ("produce", "end to end"), strict=True
    ):
        for phase, marker in (("quiet", "o"), ("polluted", "x")):
            points = [(one[phase][key].get("p99"), names.index(one["arm"])) for one in rows]
            axis.scatter(*zip(*points, strict=True), marker=marker, label=phase)
        axis.set_xscale("log")
        axis.set_xlabel(f"{title} p99, ms")
        axis.set_yticks(range(len(names)), names)
        axis.invert_yaxis()
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=7)


def draw_sweep(axis: Any, steps: Sequence[Step], result: Figures) -> None:
    """Utilisation against the rate of cold reads, and where the target lies on it."""
    axis.plot([step.rate_mb_s for step in steps], [step.util for step in steps], marker="o")
    axis.axhline(result["sizes"]["target"], color="black", linewidth=0.8)
    if result["target_rate_mb_s"] is not None:
        axis.axvline(result["target_rate_mb_s"], color="grey", linestyle=":")
    axis.set_xlabel("cold reads, MB/s")
    axis.set_ylabel("disk utilisation")
    axis.grid(alpha=0.3)


def _values(one: Figures, key: str) -> list[float]:
    return [value for value in one["course"][key] if value is not None]
