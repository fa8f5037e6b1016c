"""`python -m bench.audit`: what the audit costs by the rows that it reads, DuckDB's sums beside it as the floor.

Owns the arguments and the order of the runs. Invariants: one run at a time, each a command of its own, as a user starts
it; logs and tables lie in a directory that is removed afterwards; tools that say how many bytes were fetched say the
same. Exit codes: 0 it ran (bars may be broken: the page says so), 1 it could not.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from bench.audit import report
from bench.audit.generate import FILE_ROWS, Load, copy_boot, write_boot
from bench.audit.processes import CommandFailed, measure
from bench.audit.report import Point
from bench.demo.progress import Progress

RESULTS = Path(__file__).parents[1] / "results" / "audit"
BROKERS = 4
AUDIT = (sys.executable, "-m", "spark_audit")
TOOLS = tuple(report.MEANING)


def build_parser() -> argparse.ArgumentParser:
    """The options; the defaults take about ten minutes."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.audit", description=str(__doc__).splitlines()[0]
    )
    parser.add_argument(
        "--millions",
        default="1,10",
        help="millions of rows of each turn, by commas (default: 1,10); 30 takes half an hour more",
    )
    parser.add_argument(
        "--tools", default=",".join(TOOLS), help="what is run, by commas (default: all)"
    )
    parser.add_argument(
        "--copies",
        type=int,
        default=0,
        help="copy each broker's logs so often as those of further brokers: 100 million rows are written in minutes",
    )
    parser.add_argument("--plain", action="store_true", help="logs that are not compressed")
    parser.add_argument("--directory", type=Path, default=RESULTS, help="where the page goes")
    parser.add_argument("--scratch", type=Path, help="where logs and tables lie for a while")
    parser.add_argument(
        "--more", action="store_true", help="keep the runs of the page there, and add to them"
    )
    return parser


def write_logs(directory: Path, rows: int, compressed: bool, copies: int = 0) -> int:
    """About so many rows of BROKERS sidecars, in whole files; how many they are. `copies`: how often each boot's files
    are copied as those of another broker, which has the same load.
    """
    directory.mkdir()
    share = rows // BROKERS // (1 + copies)
    with ProcessPoolExecutor() as pool:
        turns = [
            pool.submit(write_boot, directory, Load(broker), share, compressed)
            for broker in range(BROKERS)
        ]
        written = [turn.result() for turn in turns]
        turns += [
            pool.submit(copy_boot, written[broker], Load(broker), broker + BROKERS * copy)
            for broker in range(BROKERS)
            for copy in range(1, 1 + copies)
        ]
        files = sum(len(turn.result()) for turn in turns)
    return files * min(FILE_ROWS, share)


def plan_commands(logs: Path, scratch: Path) -> dict[str, list[str]]:
    """A command for each tool, in the order in which they run: the report of a table needs the table."""
    table, out = str(scratch / "table"), str(scratch / "out")
    return {
        report.SCAN: [sys.executable, "-m", "bench.audit.scan", str(logs)],
        report.FLOOR: [sys.executable, "-m", "bench.audit.floor", str(logs)],
        report.INGEST: [*AUDIT, "ingest", str(logs), table],
        report.FIRST: [*AUDIT, table, "--out", f"{out}-first"],
        report.AGAIN: [*AUDIT, table, "--out", out],
        report.WHOLE: [*AUDIT, str(logs), "--out", f"{out}-whole"],
    }


def read_sizes(tool: str, said: str, scratch: Path) -> set[int]:
    """The bytes of all Fetches, by a tool that says so: they are those of the same lines."""
    if tool == report.FLOOR:
        return {int(said.split()[-1])}
    folders = {report.FIRST: "out-first", report.AGAIN: "out", report.WHOLE: "out-whole"}
    if tool in folders:
        out = scratch / folders[tool]
        return {json.loads((out / "summary.json").read_text())["fetches"]["bytes"]}
    return set()


def run(options: argparse.Namespace, progress: Progress) -> str:
    """All of it; the page."""
    command = f"python -m bench.audit {shlex.join(sys.argv[1:])}".strip()
    points = report.read_points(options.directory) if options.more else []
    notes: list[str] = []
    wanted = options.tools.split(",")
    if find_spec("duckdb") is None:
        notes.append("left out: DuckDB is not installed")
        wanted = [tool for tool in wanted if tool != report.FLOOR]
    page = ""
    for millions in map(float, options.millions.split(",")):
        scratch = Path(tempfile.mkdtemp(prefix="forebay-audit-", dir=options.scratch))
        try:
            logs, sizes = scratch / "logs", set()
            progress.step(f"writing {millions:g} million rows")
            rows = round(millions * report.MILLION)
            lines = write_logs(logs, rows, not options.plain, options.copies)
            for tool, arguments in plan_commands(logs, scratch).items():
                if tool not in wanted:
                    continue
                progress.step(f"{tool}, {millions:g} million rows")
                cost = measure(arguments, scratch / "said")
                sizes |= read_sizes(tool, cost.said, scratch)
                if len(sizes) > 1:
                    raise CommandFailed(f"{tool} has not the same bytes: {sorted(sizes)}")
                points.append(Point(tool, lines, *cost[:4]))
                page = report.build_page(points, command, notes)
                report.write_report(options.directory, page, points)
        finally:
            shutil.rmtree(scratch)
    return page


def main() -> int:
    """Run; the exit code."""
    options = build_parser().parse_args()
    unknown = set(options.tools.split(",")) - set(TOOLS)
    if unknown:
        print(
            f"no such tool: {', '.join(sorted(unknown))}; there are: {', '.join(TOOLS)}",
            file=sys.stderr,
        )
        return 1
    try:
        print(run(options, Progress()))
    except CommandFailed as error:
        print(f"the audit could not be measured: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
