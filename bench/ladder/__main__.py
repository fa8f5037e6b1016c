"""`python -m bench.ladder`: peers and Forebay before one broker, in turns; progress to stderr, table to stdout.

Owns the arguments and the order of a run: start everything, warm up, rounds, what is measured apart, report.
Exit codes: 0 it ran (bars may be broken: the page says so), 1 it could not.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from bench.demo.progress import Progress
from bench.ladder import arms, extras, placing, report, steps
from bench.ladder.loads import Scale

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.ladder.cells import Row

RESULTS = Path(__file__).parents[1] / "results" / "ladder"
LOADS = [load for load, _, _ in steps.STEPS]
JVM_WARM_UPS = 2


def build_parser() -> argparse.ArgumentParser:
    """The options; the defaults are the full form."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.ladder", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--rounds", type=int, default=7, help="how often each step runs (default: 7)"
    )
    parser.add_argument(
        "--arms", default=",".join(arms.ALL), help="which rungs, by commas (default: all)"
    )
    parser.add_argument(
        "--loads", default=";".join(LOADS), help="which loads, by semicolons (default: all)"
    )
    parser.add_argument(
        "--against", type=Path, help="another tree of Forebay: a rung of its own, for paired ratios"
    )
    parser.add_argument(
        "--extras",
        default=",".join(extras.EXTRAS),
        help="what to measure apart, by commas; '': nothing",
    )
    parser.add_argument(
        "--clients",
        choices=placing.PLACES,
        default=placing.ANYWHERE,
        help="on the proxies' one processor, on another, or where the scheduler puts them (default)",
    )
    parser.add_argument("--directory", type=Path, default=RESULTS, help="where the page goes")
    return parser


class Unknown(ValueError):
    """An option names what there is not; the message lists what there is."""


def refuse_unknown(option: str, named: Sequence[str], known: Sequence[str]) -> None:
    """Raise Unknown where `named` has what `known` has not."""
    others = [one for one in named if one not in known]
    if others:
        raise Unknown(f"{option} has no {', '.join(others)}; there is: {', '.join(known)}")


def run(options: argparse.Namespace, progress: Progress) -> str:
    """All of it; the page."""
    wanted = [name for name in options.arms.split(",") if name != arms.AGAINST or options.against]
    chosen = options.loads.split(";")
    refuse_unknown("--arms", wanted, arms.ALL)
    refuse_unknown("--loads", chosen, LOADS)
    rows: list[Row] = []
    with ExitStack() as stack:
        progress.step("starting the broker and the rungs")
        ladder = arms.open_ladder(stack, wanted, options.against)
        for name, why in ladder.left_out.items():
            progress.step(f"left out: {name}: {why}")
        bench = steps.Bench(ladder, Scale())
        bench.prepare()
        placing.put(options.clients, [arm.pid for arm in ladder.arms.values()])
        for number in range(JVM_WARM_UPS):
            progress.step("warming up the JVMs")
            steps.run_round(bench, -1 - number, LOADS[:3], (arms.KROXYLICIOUS, arms.DIRECT))
        for number in range(options.rounds):
            progress.step(f"round {number + 1} of {options.rounds}")
            rows += steps.run_round(bench, number, chosen)
        apart = []
        for name in filter(None, options.extras.split(",")):
            progress.step(f"apart: {name}")
            apart += extras.run_extra(name, bench)
    notes = [f"left out: {name}: {why}" for name, why in ladder.left_out.items()]
    notes += [f"failed: {one}" for one in bench.failures]
    page = report.build_page(
        rows, apart, notes, f"python -m bench.ladder {shlex.join(sys.argv[1:])}".strip()
    )
    report.write_report(options.directory, page, rows)
    return page


def main() -> int:
    """Run; the exit code."""
    options = build_parser().parse_args()
    try:
        print(run(options, Progress()))
    except (*arms.CANNOT_RUN, placing.TooFew, Unknown) as error:
        print(f"the ladder could not run: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
