"""The pictures: what happened second by second in an arm, and all arms side by side.

Owns matplotlib. Must not know bars or how a figure was measured. Invariant: the same arm has the same colour
in every picture; times count from the beginning of the quiet phase.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

from bench.pollution.arms import ARMS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bench.pollution.sweep import Step

PANELS = (
    ("produce_p99_ms", "produce p99, ms", "log"),
    ("end_to_end_p99_ms", "end to end p99, ms", "log"),
    ("util", "disk utilisation", "linear"),
    ("read_mb_s", "disk reads, MB/s", "linear"),
    ("laggards_mb_s", "laggards, MB/s", "linear"),
    ("budget_mb_s", "budget, MB/s", "linear"),
    ("stolen", "stolen by the host", "linear"),
)


def plot_course(arms: Sequence[Mapping[str, Any]], title: str, target: float, path: Path) -> None:
    """One arm over time, all its rounds on top of each other."""
    shown = [panel for panel in PANELS if any(_values(one, panel[0]) for one in arms)]
    figure, axes = plt.subplots(len(shown), 1, figsize=(9, 1.7 * len(shown)), sharex=True, squeeze=False)
    for (key, label, scale), (axis,) in zip(shown, axes, strict=True):
        for one in arms:
            values = one["course"][key]
            axis.plot(range(len(values)), values, linewidth=1, label=f"round {one['round']}")
        axis.set_yscale(scale)
        axis.set_ylabel(label, fontsize=7)
        axis.grid(alpha=0.3)
        for mark in ("polluted_at_s", "paused_at_s", "resumed_at_s"):
            axis.axvline(arms[0]["course"][mark], color="grey", linestyle=":", linewidth=1)
        if key == "util":
            axis.axhline(target, color="black", linewidth=0.8)
            axis.set_ylim(0, 1.05)
    axes[0][0].set_title(title, fontsize=9)
    axes[0][0].legend(fontsize=6, ncols=5)
    axes[-1][0].set_xlabel("seconds")
    _save(figure, path)


def plot_arms(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Quiet and polluted p99 of each arm, every round a dot."""
    present = {one["arm"] for one in rows}
    names = [name for name in ARMS if name in present]
    figure, axes = plt.subplots(1, 2, figsize=(10, 0.45 * len(names) + 1.2), sharey=True)
    for axis, key, title in zip(
        axes, ("produce_ms", "end_to_end_ms"), ("produce", "end to end"), strict=True
    ):
        for phase, marker in (("quiet", "o"), ("polluted", "x")):
            points = [(one[phase][key].get("p99"), names.index(one["arm"])) for one in rows]
            axis.scatter(*zip(*points, strict=True), marker=marker, label=phase)
        axis.set_xscale("log")
        axis.set_xlabel(f"{title} p99, ms")
        axis.set_yticks(range(len(names)), names)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=7)
    axes[0].invert_yaxis()
    _save(figure, path)


def plot_sweep(steps: Sequence[Step], target: float, wanted: float | None, path: Path) -> None:
    """Utilisation against the rate of cold reads, and where the target lies on it."""
    figure, axis = plt.subplots(figsize=(5, 3))
    axis.plot([step.rate_mb_s for step in steps], [step.util for step in steps], marker="o")
    axis.axhline(target, color="black", linewidth=0.8)
    if wanted is not None:
        axis.axvline(wanted, color="grey", linestyle=":")
    axis.set_xlabel("cold reads, MB/s")
    axis.set_ylabel("disk utilisation")
    axis.grid(alpha=0.3)
    _save(figure, path)


def _values(one: Mapping[str, Any], key: str) -> list[float]:
    return [value for value in one["course"][key] if value is not None]


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
