"""`python -m bench.shape`: the shapes that real clients have, on a broker, tuned haproxy and Forebay in turns.

Owns the arguments and what a run leaves behind. Exit codes: 0 it ran (bars may be broken: the page says
so), 1 it could not.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.demo.progress import Progress
from bench.ladder import arms, report
from bench.shape import bars
from bench.shape.blocks import ARMS, FAILED, FLOORS, LOADS, Round, warm_up

if TYPE_CHECKING:
    from bench.ladder.cells import Row

RESULTS = Path(__file__).parents[1] / "results" / "shape"
AGAIN = 8
DEFAULT_ARMS = (*(name for name in ARMS if name != arms.WORKERS), *FLOORS, arms.BARE)


def build_parser() -> argparse.ArgumentParser:
    """The options; the defaults are the full form."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.shape", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--rounds", type=int, default=4, help="how often each load runs (default: 4)"
    )
    parser.add_argument(
        "--arms",
        default=",".join(DEFAULT_ARMS),
        help=f"which rungs, by commas (default: all but {arms.WORKERS})",
    )
    parser.add_argument(
        "--loads", default=";".join(LOADS), help="which loads, by semicolons (default: all)"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="how much of each load (default: 1)"
    )
    parser.add_argument(
        "--again",
        type=int,
        default=AGAIN,
        help="how many turns of a round may be repeated in all, where processors were stolen "
        f"(default: {AGAIN})",
    )
    parser.add_argument("--against", type=Path, help="another tree of Forebay: a rung of its own")
    parser.add_argument("--directory", type=Path, default=RESULTS, help="where the page goes")
    parser.add_argument(
        "--more", action="store_true", help="keep the rounds of the page there, and add to them"
    )
    return parser


def run(options: argparse.Namespace, progress: Progress) -> str:
    """All of it; the page."""
    wanted = [name for name in options.arms.split(",") if name != arms.AGAINST or options.against]
    rows = report.read_rows(options.directory) if options.more else []
    first = max((row.round + 1 for row in rows), default=0)
    notes: list[str] = []
    page = ""
    with ExitStack() as stack:
        progress.step("starting the broker and the rungs")
        ladder = arms.open_ladder(
            stack, [name for name in wanted if name != arms.BARE], options.against
        )
        if arms.BARE in wanted:
            ladder.arms[arms.BARE] = arms.Arm(arms.BARE, "")  # each of its loads starts its own
        notes += [f"left out: {name}: {why}" for name, why in ladder.left_out.items()]
        progress.step("warming up the broker")
        warm_up(ladder)
        for number in range(first, first + options.rounds):
            say = partial(_say, progress, f"round {number + 1} of {first + options.rounds}")
            one = Round(ladder, number, options.scale, options.again, say)
            try:
                for row in one.run(options.loads.split(";")):
                    rows.append(row)
                    report.write_rows(options.directory, rows)
            finally:
                notes += one.failures
                page = write_page(options, rows, notes)
    return page


def _say(progress: Progress, at: str, what: str) -> None:
    progress.step(f"{at}: {what}")


def write_page(options: argparse.Namespace, rows: list[Row], notes: list[str]) -> str:
    """Write what was measured so far: a run that is interrupted keeps that. Return the page."""
    command = f"python -m bench.shape {shlex.join(sys.argv[1:])}".strip()
    page = report.build_page(
        rows, [], notes, command, "Shapes of real clients", bars.build_bars(), bars.FLOOR
    )
    report.write_report(options.directory, page, rows, "shape.png", SHOWN)
    return page


SHOWN = {
    bars.name_produce(8, 1): ("cpu_us_per_request", "CPU, us per request"),
    bars.name_fetch(8, 64): ("cpu_us_per_request", "CPU, us per request"),
    bars.name_crowd(bars.CROWD): ("requests_per_s", "requests/s"),
    bars.name_tail(48, 1000, 4, is_busy=False): ("cpu_ms_per_s", "CPU, ms per s"),
}


def main() -> int:
    """Run; the exit code."""
    options = build_parser().parse_args()
    unknown = set(options.loads.split(";")) - set(LOADS)
    if unknown:
        print(
            f"no such load: {', '.join(sorted(unknown))}; there are: {'; '.join(LOADS)}",
            file=sys.stderr,
        )
        return 1
    try:
        print(run(options, Progress()))
    except (*arms.CANNOT_RUN, *FAILED) as error:
        print(f"the shapes could not be measured: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
