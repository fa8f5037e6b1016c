"""`python -m bench.pollution`: the lab; the table goes to stdout, progress to stderr.

Owns the arguments, signals and exit codes: 0 every bar that was measured is held, 1 it could not run, 2 the
machine lacks something, 3 a bar is broken, 4 the run is invalid, 128 + n ended by signal n.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bench.demo.progress import Progress
from bench.pollution.arms import ARMS, FOREBAY, PLAIN, SECOND, Sizes
from bench.pollution.figures import build_figures
from bench.pollution.groups import find_version, remove_left_groups
from bench.pollution.host import Unfit, find_missing, sweep_up
from bench.pollution.lab import LoadFailed, disk_bytes, open_lab
from bench.pollution.phases import run_arm
from tests.broker.jars import FetchFailed, kafka_jars
from tests.broker.java import JavaMissing
from tests.broker.kafka import BrokerFailed
from tests.e2e.sidecar import SidecarFailed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

RUNS = Path(__file__).parents[2] / ".build" / "pollution"
EXPECTED = (LoadFailed, FetchFailed, JavaMissing, BrokerFailed, SidecarFailed, TimeoutError)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WITH_PAUSE = (PLAIN, SECOND, FOREBAY)
EXIT_WELL, EXIT_FAILED, EXIT_UNFIT, EXIT_BROKEN, EXIT_INVALID = 0, 1, 2, 3, 4


class Interrupted(KeyboardInterrupt):
    """A signal asked for the end; its number."""


def build_parser() -> argparse.ArgumentParser:
    """The options; the defaults are the full form."""
    parser = argparse.ArgumentParser(prog="python -m bench.pollution", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often each arm runs (default: 5)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the polluted phase (default: 60)")
    parser.add_argument("--quiet-seconds", type=float, help="of the quiet phase (default: half of --seconds)")
    parser.add_argument("--arms", default=",".join(ARMS), help="which, by commas (default: all)")
    parser.add_argument("--no-pause", action="store_true", help="without the consumer that pauses for 25 s")
    parser.add_argument("--seed", type=int, default=1, help="of the order of arms (default: 1)")
    parser.add_argument("--image-directory", type=Path, default=RUNS, help="where the disk's file is put")
    return parser


def build_sizes(options: argparse.Namespace) -> Sizes:
    """The run's measures from its arguments."""
    sizes = Sizes(polluted_s=options.seconds, quiet_s=options.quiet_seconds or options.seconds / 2)
    return sizes._replace(paused_s=0.0, recover_s=0.0) if options.no_pause else sizes


def main(argv: Sequence[str] | None = None) -> int:
    """Run the lab; the exit code."""
    options = build_parser().parse_args(argv)
    unknown = set(options.arms.split(",")) - set(ARMS)
    if unknown:
        sys.stderr.write(f"no such arm: {', '.join(sorted(unknown))}; there are {', '.join(ARMS)}\n")
        return EXIT_FAILED
    sizes = build_sizes(options)
    options.image_directory.mkdir(parents=True, exist_ok=True)
    missing = find_missing(options.image_directory, disk_bytes(sizes))
    try:
        find_version()
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
    except EXPECTED as error:
        progress.step(f"the lab failed: {error}")
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
    arms = [ARMS[name] for name in options.arms.split(",")]
    order = random.Random(options.seed)
    results: list[dict[str, object]] = []
    progress.step("a slow disk, and a broker on it")
    with open_lab(sizes, options.image_directory) as lab:
        progress.step(f"writing a backlog of {sizes.backlog_bytes / 1e9:.1f} GB to {lab.disk.name}")
        lab.fill()
        for number in range(1, options.rounds + 1):
            for arm in order.sample(arms, len(arms)):
                progress.step(f"round {number} of {options.rounds}: {arm.meaning}")
                directory = kept / f"{number}-{arm.name}"
                directory.mkdir()
                with_pause = arm.name in WITH_PAUSE and not options.no_pause
                with lab.arm(arm) as way:
                    ran = run_arm(lab, arm, way, directory, with_pause=with_pause)
                figures = build_figures(ran, sizes, with_pause=with_pause)
                results.append({"round": number, "arm": arm.name, **figures})
                progress.step(describe_short(figures))
                (kept / "result.json").write_text(json.dumps({"sizes": sizes._asdict(), "arms": results}))
                for path in directory.iterdir():
                    if path.name != "load.log":
                        path.unlink()
    print(kept / "result.json")
    return EXIT_WELL


def describe_short(figures: dict[str, object]) -> str:
    """One line of progress."""
    quiet, polluted = figures["quiet"], figures["polluted"]
    disk = figures["disk_polluted"]
    assert isinstance(quiet, dict) and isinstance(polluted, dict) and isinstance(disk, dict)
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
