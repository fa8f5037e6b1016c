"""`python -m bench.controller OUT_DIR`: the throttle's controller on the model disk, as one picture for the documents.

Owns: the scenarios and how they are drawn (`throttle-model.png`). Must not know: how the controller decides.
Invariants: the model is that of tests/throttle, where the bars are asserted; the same code writes the same
bytes; a line has a point for each `BUCKET_S`, so that the picture stays small.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import matplotlib

from tests.kit.model_disk import ModelDisk
from tests.kit.throttle_simulation import Event, Run, Simulation
from throttle.throttle import ThrottleRules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MB = 1e6
BUCKET_S = 5.0
PICTURE = "throttle-model.png"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
}


def change(**changes: float) -> Event:
    def apply(simulation: Simulation) -> None:
        for name, value in changes.items():
            setattr(simulation.disk, name, value)

    return apply


def play_step() -> Run:
    return Simulation(ModelDisk(), ThrottleRules(), 0).play(
        90, {20.0: lambda one: one.set_laggards(8)}
    )


def play_noise() -> Run:
    return Simulation(ModelDisk(noise=1.0), ThrottleRules(), 8).play(120)


def play_slower() -> Run:
    slower_and_back = {
        40.0: change(capacity_bytes_s=30 * MB),
        80.0: change(capacity_bytes_s=60 * MB),
    }
    return Simulation(ModelDisk(), ThrottleRules(), 8).play(120, slower_and_back)


def play_limited() -> Run:
    return Simulation(ModelDisk(slice_s=0.1), ThrottleRules(), 8, look_s=0.5).play(60)


def play_burst() -> Run:
    return Simulation(ModelDisk(slice_s=0.1, burst_bytes=1e9), ThrottleRules(), 8, look_s=0.5).play(
        60
    )


def play_laggards() -> Run:
    return Simulation(ModelDisk(), ThrottleRules(), 100).play(120)


SCENARIOS: dict[str, tuple[str, Callable[[], Run]]] = {
    "step": ("eight laggards come at 20 s", play_step),
    "noise": ("eight laggards, noisy writes and disk", play_noise),
    "slower": ("the disk slows down by half at 40 s, until 80 s", play_slower),
    "limited": ("a limit in slices, eight laggards", play_limited),
    "burst": ("a burst of 1 GB, then a limit of 60 MB/s, which is recognised", play_burst),
    "laggards": ("a hundred laggards from the start", play_laggards),
}


def split(run: Run, values: Sequence[float]) -> list[Sequence[float]]:
    """The values of each `BUCKET_S`, in order of time."""
    size = round(BUCKET_S * len(run.at_s) / run.at_s[-1])
    return [values[at : at + size] for at in range(0, len(values), size)]


def average(run: Run, values: Sequence[float]) -> list[float]:
    """The mean of each `BUCKET_S`."""
    return [fmean(one) for one in split(run, values)]


def draw_load(axes: Any, title: str, run: Run, at_s: Sequence[float]) -> None:
    """The load: its range in each `BUCKET_S`, and the mean of the last 10 s, beside the target."""
    target = ThrottleRules().controller.target
    looks = split(run, run.load)
    means = [run.mean_load(max(0.0, one - 10), one) for one in at_s]
    axes.axhspan(target - 0.05, target + 0.05, color="tab:green", alpha=0.15, label="target ± 0.05")
    lowest, highest = [min(one) for one in looks], [max(one) for one in looks]
    axes.fill_between(
        at_s, lowest, highest, color="tab:gray", alpha=0.3, lw=0, label="range in 5 s"
    )
    axes.plot(at_s, means, lw=1.5, color="tab:blue", label="10 s mean")
    axes.set(ylim=(0, 1.05), ylabel="load", xlim=(0, at_s[-1]))
    axes.set_title(title, fontsize=9, loc="left")


def draw_rate(axes: Any, run: Run, at_s: Sequence[float]) -> None:
    """Bytes a second that laggards got and that they were allowed, means of each `BUCKET_S`."""
    axes.plot(
        at_s, [one / MB for one in average(run, run.misses)], lw=1, color="tab:gray", label="misses"
    )
    allowed = [one / MB for one in average(run, run.rate)]
    axes.plot(at_s, allowed, lw=1.5, color="tab:orange", label="rate allowed")
    axes.set(ylim=(0, 75), ylabel="MB/s", xlim=(0, at_s[-1]))


def draw(runs: Mapping[str, Run], path: Path) -> None:
    """One picture, a row for each scenario: load on the left, rates on the right."""
    from matplotlib import pyplot

    with pyplot.rc_context(STYLE):
        figure, rows = pyplot.subplots(len(runs), 2, figsize=(9, 1.6 * len(runs)), squeeze=False)
        for (name, run), (left, right) in zip(runs.items(), rows, strict=True):
            at_s = [one[-1] for one in split(run, run.at_s)]
            draw_load(left, SCENARIOS[name][0], run, at_s)
            draw_rate(right, run, at_s)
        for axes in rows[-1]:
            axes.legend(loc="lower right", fontsize=7, ncols=3)
            axes.set_xlabel("s")
        figure.tight_layout()
        figure.savefig(path, dpi=80, metadata={"Software": None})
        pyplot.close(figure)


def main(arguments: list[str]) -> int:
    """Exit code 2: usage."""
    if len(arguments) != 1:
        print("usage: python -m bench.controller OUT_DIR", file=sys.stderr)
        return 2
    matplotlib.use("Agg")
    out = Path(arguments[0])
    out.mkdir(parents=True, exist_ok=True)
    target = ThrottleRules().controller.target
    runs = {name: play() for name, (_, play) in SCENARIOS.items()}
    draw(runs, out / PICTURE)
    for name, run in runs.items():
        from_s = {"step": 20.0, "slower": 80.0, "burst": 30.0}.get(name, 0.0)
        settled_s, mean = (
            run.settled_s(from_s, target),
            run.mean_load(run.at_s[-1] - 30, run.at_s[-1]),
        )
        misses = sum(run.misses[-30:]) / 30 / MB
        print(
            f"{name}: settled {settled_s:.0f} s after the last change; last 30 s: load {mean:.3f},",
            end=" ",
        )
        print(f"misses {misses:.1f} MB/s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
