"""`python -m bench.pollution`: the lab; the table goes to stdout, progress to stderr.

Owns the arguments, signals and exit codes: 0 every bar that was measured is held, 1 it could not run, 2 the
machine lacks something, 3 a bar is broken, 4 the run is invalid, 128 + n ended by signal n.
"""

from __future__ import annotations

import argparse
import logging
import random
import signal
import sys
import tempfile
from datetime import datetime
from functools import partial
from pathlib import Path
from subprocess import CalledProcessError
from typing import TYPE_CHECKING, Any

from bench.demo.progress import Progress
from bench.pollution.again import Again
from bench.pollution.arms import ARMS, FOREBAY, PLAIN, SECOND, Sizes
from bench.pollution.figures import build_figures
from bench.pollution.groups import find_version, remove_left_groups
from bench.pollution.host import LIMITED, PACED, Unfit, find_missing, sweep_up
from bench.pollution.isolating import run_rounds
from bench.pollution.lab import LoadFailed, disk_bytes, open_lab, wanted_controllers
from bench.pollution.phases import run_arm
from bench.pollution.report import build_page, build_result, write_report
from bench.pollution.sweep import run_sweep
from tests.kit.broker.jars import FetchFailed, kafka_jars
from tests.kit.broker.java import JavaMissing
from tests.kit.broker.kafka import BrokerFailed
from tests.kit.sidecar import SidecarFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

    from bench.pollution.arms import Arm
    from bench.pollution.lab import Lab
    from bench.pollution.sweep import Step

RUNS = Path(__file__).parents[2] / ".build" / "pollution"
EXPECTED = (
    LoadFailed,
    FetchFailed,
    JavaMissing,
    BrokerFailed,
    SidecarFailed,
    CalledProcessError,
    TimeoutError,
)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WITH_PAUSE = (PLAIN, SECOND, FOREBAY)
EXIT_WELL, EXIT_FAILED, EXIT_UNFIT, EXIT_BROKEN, EXIT_INVALID = 0, 1, 2, 3, 4


class Interrupted(KeyboardInterrupt):
    """A signal asked for the end; its number."""


def build_parser() -> argparse.ArgumentParser:
    """The options; the defaults are the full form."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.pollution", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="how often each arm runs (default: 5)"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="of the polluted phase (default: 60)"
    )
    parser.add_argument(
        "--other-seconds",
        type=float,
        help="the same in arms that no bar judges (default: as --seconds)",
    )
    parser.add_argument(
        "--quiet-seconds", type=float, help="of the quiet phase (default: half of --seconds)"
    )
    parser.add_argument("--arms", default=",".join(ARMS), help="which, by commas (default: all)")
    parser.add_argument(
        "--part", choices=("all", "pollution", "isolation"), default="all", help="(default: all)"
    )
    parser.add_argument(
        "--no-pause", action="store_true", help="without the consumer that pauses for 25 s"
    )
    parser.add_argument(
        "--no-sweep",
        action="store_true",
        help="without the sweep; the target's rate is then unknown",
    )
    parser.add_argument(
        "--disk",
        choices=(PACED, LIMITED),
        default=PACED,
        help="one arm that serves 60 MB/s, or the kernel's read limit, a bucket (default: paced)",
    )
    parser.add_argument(
        "--name-limit",
        action="store_true",
        help="tell Forebay the limit of `--disk limited` (throttle.disks[].throughput), or it recognises the limit",
    )
    parser.add_argument(
        "--again",
        type=int,
        default=6,
        help="how often Forebay's arm may run again, in all, because a hypervisor took processors away (default: 6)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the order of arms (default: 1)")
    parser.add_argument(
        "--image-directory", type=Path, default=RUNS, help="where the disk's file is put"
    )
    return parser


def build_sizes(options: argparse.Namespace) -> Sizes:
    """The run's measures from its arguments."""
    limited = options.disk == LIMITED
    sizes = Sizes(
        polluted_s=options.seconds,
        quiet_s=options.quiet_seconds or options.seconds / 2,
        limited=limited,
        limit_named=limited and options.name_limit,
    )
    return sizes._replace(paused_s=0.0, recover_s=0.0) if options.no_pause else sizes


def sizes_of(arm: Arm, options: argparse.Namespace, sizes: Sizes) -> Sizes:
    """The run's measures in one arm: those that no bar judges may be shorter."""
    is_judged = arm.name in (PLAIN, FOREBAY) or options.other_seconds is None
    return (
        sizes
        if is_judged
        else sizes._replace(polluted_s=min(options.other_seconds, sizes.polluted_s))
    )


def count_produced_s(options: argparse.Namespace, sizes: Sizes) -> float:
    """For how long the producer is at work in all arms, those included that run again."""
    lasts_s = []
    for name in options.arms.split(","):
        one = sizes_of(ARMS[name], options, sizes)
        pause_s = one.paused_s + one.recover_s if name in WITH_PAUSE else 0.0
        lasts_s.append(one.quiet_s + one.polluted_s + pause_s)
    return float(options.rounds * sum(lasts_s) + options.again * max(lasts_s))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the lab; the exit code."""
    options = build_parser().parse_args(argv)
    unknown = set(options.arms.split(",")) - set(ARMS)
    if unknown:
        sys.stderr.write(
            f"no such arm: {', '.join(sorted(unknown))}; there are {', '.join(ARMS)}\n"
        )
        return EXIT_FAILED
    sizes = build_sizes(options)
    options.image_directory.mkdir(parents=True, exist_ok=True)
    missing = find_missing(
        options.disk, options.image_directory, disk_bytes(sizes, count_produced_s(options, sizes))
    )
    try:
        find_version(wanted_controllers(options.disk))
    except Unfit as error:
        missing.append(str(error))
    if missing:
        sys.stderr.write(
            "".join(f"{line}\n" for line in ("the lab needs", *(f"  * {one}" for one in missing)))
        )
        return EXIT_UNFIT
    for number in SIGNALS:
        signal.signal(number, _interrupt)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    progress = Progress()
    try:
        return run(options, sizes, progress)
    except Interrupted as ended:
        progress.step("interrupted; everything is cleaned up")
        return 128 + int(ended.args[0])
    except Unfit as error:
        progress.step(f"the lab needs {error}")
        return EXIT_UNFIT
    except EXPECTED as error:
        progress.step(f"the lab failed: {error}")
        sys.stderr.write(getattr(error, "stderr", None) or "")  # of a command
        for note in getattr(error, "__notes__", ()):
            sys.stderr.write(f"{note}\n")
        return EXIT_FAILED


def run(options: argparse.Namespace, sizes: Sizes, progress: Progress) -> int:
    """All rounds, then the report."""
    kafka_jars()
    for one in (*sweep_up(options.image_directory), *remove_left_groups()):
        progress.step(f"removed {one}, left by a run that was killed")
    kept = RUNS / f"{datetime.now():%Y%m%d-%H%M%S}"
    kept.mkdir(parents=True)
    results: list[dict[str, Any]] = []
    steps: list[Step] = []
    isolation: list[dict[str, Any]] = []
    again = Again(options.again, progress.step)
    if options.part != "isolation":
        steps = pollute(options, sizes, kept, results, again, progress)
    if options.part != "pollution":
        isolation = run_rounds(options.rounds, again, progress)
    result = build_result(sizes, results, steps, isolation, again.set_aside)
    write_report(kept, result, steps)
    print(f"\n{build_page(result)}\nThe report: {kept / 'README.md'}", flush=True)
    if result["invalid"]:
        return EXIT_INVALID
    return EXIT_BROKEN if any(bar["held"] is False for bar in result["bars"]) else EXIT_WELL


def pollute(
    options: argparse.Namespace,
    sizes: Sizes,
    kept: Path,
    results: list[dict[str, Any]],
    again: Again,
    progress: Progress,
) -> list[Step]:
    """All rounds of the arms, appended to `results`; the sweep's steps."""
    arms = [ARMS[name] for name in options.arms.split(",")]
    order = random.Random(options.seed)
    steps: list[Step] = []
    progress.step("a slow disk, and a broker on it")
    with open_lab(
        sizes, count_produced_s(options, sizes), options.disk, options.image_directory
    ) as lab:
        progress.step(f"writing a backlog of {sizes.backlog_bytes / 1e9:.1f} GB to {lab.disk.name}")
        lab.fill()
        if not options.no_sweep:
            progress.step("open-loop sweep: how busy the disk is at each rate of cold reads")
            steps = sweep(lab, kept, progress)
        for number in range(1, options.rounds + 1):
            for arm in order.sample(arms, len(arms)):
                progress.step(f"round {number} of {options.rounds}: {arm.meaning}")
                lab.sizes = sizes_of(arm, options, sizes)
                with_pause = arm.name in WITH_PAUSE and sizes.paused_s > 0
                marks = {"round": number, "arm": arm.name}
                run_once = partial(measure, lab, arm, kept, marks, with_pause=with_pause)
                results.append(again.run(run_once))
                progress.step(describe_short(results[-1]))
                write_report(kept, build_result(sizes, results, steps, (), again.set_aside), steps)
    return steps


def sweep(lab: Lab, kept: Path, progress: Progress) -> list[Step]:
    """The sweep, in a folder of its own, which is removed."""
    with tempfile.TemporaryDirectory(dir=kept) as folder, lab.arm(ARMS[SECOND]) as way:
        steps = run_sweep(lab, way, Path(folder))
    for step in steps:
        progress.step(f"  {step.rate_mb_s} MB/s: util {step.util}, await {step.await_ms} ms")
    return steps


def measure(
    lab: Lab, arm: Arm, kept: Path, marks: Mapping[str, Any], *, with_pause: bool
) -> dict[str, Any]:
    """One arm once, `marks` and figures; the raw rows are removed."""
    with tempfile.TemporaryDirectory(dir=kept) as folder:
        with lab.arm(arm) as way:
            ran = run_arm(lab, way, Path(folder), with_pause=with_pause)
        return {**marks, **build_figures(ran, lab.sizes, with_pause=with_pause)}


def describe_short(figures: Mapping[str, Any]) -> str:
    """One line of progress."""
    quiet, polluted = figures["quiet"], figures["polluted"]
    disk = figures["disk_polluted"]
    said = [
        f"{what} p99 {quiet[key].get('p99')} -> {polluted[key].get('p99')} ms"
        for what, key in (("produce", "produce_ms"), ("end to end", "end_to_end_ms"))
    ]
    said.append(f"laggards {figures['laggards_mb_s']} MB/s, disk {disk.get('read_mb_s')} MB/s")
    said.append(f"util {disk.get('util')}, await {disk.get('await_ms')} ms")
    return "; ".join(said)


def _interrupt(number: int, frame: FrameType | None) -> None:
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise Interrupted(number)


if __name__ == "__main__":
    sys.exit(main())
