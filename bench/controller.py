"""`python -m bench.controller OUT_DIR`: the throttle's controller on the model disk, as plots for the documents.

Owns: the scenarios and how they are drawn (`throttle-model-*.svg`). Must not know: how the controller decides.
Invariants: the model is that of tests/throttle, where the bars are asserted; the same code writes the same
bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

from tests.kit.model_disk import ModelDisk
from tests.kit.throttle_simulation import Event, Run, Simulation
from throttle.throttle import ThrottleRules

if TYPE_CHECKING:
    from collections.abc import Callable

MB = 1e6
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "forebay",
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
    return Simulation(ModelDisk(), ThrottleRules(), 0).play(90, {20.0: lambda one: one.set_laggards(8)})


def play_noise() -> Run:
    return Simulation(ModelDisk(noise=1.0), ThrottleRules(), 8).play(120)


def play_slower() -> Run:
    slower_and_back = {40.0: change(capacity_bytes_s=30 * MB), 80.0: change(capacity_bytes_s=60 * MB)}
    return Simulation(ModelDisk(), ThrottleRules(), 8).play(120, slower_and_back)


def play_limited() -> Run:
    return Simulation(ModelDisk(slice_s=0.1), ThrottleRules(), 8, look_s=0.5).play(60)


def play_laggards() -> Run:
    return Simulation(ModelDisk(), ThrottleRules(), 100).play(120)


SCENARIOS: dict[str, tuple[str, Callable[[], Run]]] = {
    "step": ("eight laggards come at 20 s", play_step),
    "noise": ("eight laggards, noisy writes and disk", play_noise),
    "slower": ("the disk slows down by half at 40 s, until 80 s", play_slower),
    "limited": ("a limit in slices, eight laggards", play_limited),
    "laggards": ("a hundred laggards from the start", play_laggards),
}


def draw(name: str, title: str, run: Run, out: Path) -> Path:
    """One SVG: load and its 10 s mean over the target, rate and what the laggards got below."""
    from matplotlib import pyplot

    target = ThrottleRules().controller.target
    means = [run.mean_load(max(0.0, at_s - 10), at_s) for at_s in run.at_s]
    with pyplot.rc_context(STYLE):
        figure, (above, below) = pyplot.subplots(2, 1, figsize=(7, 4), sharex=True)
        above.axhspan(target - 0.05, target + 0.05, color="tab:green", alpha=0.15, label="target ± 0.05")
        above.plot(run.at_s, run.load, lw=0.8, color="tab:gray", label="load, each look")
        above.plot(run.at_s, means, lw=1.5, color="tab:blue", label="load, 10 s mean")
        above.set(ylim=(0, 1.05), ylabel="load", title=f"Model disk, 60 MB/s: {title}")
        below.plot(run.at_s, [one / MB for one in run.misses], lw=0.8, color="tab:gray", label="misses")
        below.plot(run.at_s, [one / MB for one in run.rate], lw=1.5, color="tab:orange", label="rate allowed")
        below.set(ylim=(0, 75), ylabel="MB/s", xlabel="s", xlim=(0, run.at_s[-1]))
        for axes in (above, below):
            axes.legend(loc="upper right", fontsize=8, ncols=3)
        path = out / f"throttle-model-{name}.svg"
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight")
        pyplot.close(figure)
    return path


def main(arguments: list[str]) -> int:
    """Exit code 2: usage."""
    if len(arguments) != 1:
        print("usage: python -m bench.controller OUT_DIR", file=sys.stderr)
        return 2
    matplotlib.use("svg")
    out = Path(arguments[0])
    out.mkdir(parents=True, exist_ok=True)
    target = ThrottleRules().controller.target
    for name, (title, play) in SCENARIOS.items():
        run = play()
        path = draw(name, title, run, out)
        from_s = {"step": 20.0, "slower": 80.0}.get(name, 0.0)
        settled_s, mean = run.settled_s(from_s, target), run.mean_load(run.at_s[-1] - 30, run.at_s[-1])
        misses = sum(run.misses[-30:]) / 30 / MB
        print(
            f"{path.name}: settled {settled_s:.0f} s after the last change; last 30 s: load {mean:.3f},",
            end=" ",
        )
        print(f"misses {misses:.1f} MB/s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
