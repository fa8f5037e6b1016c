"""`forebay audit LOGS --out DIR`: arguments in, tables, summary.json and index.html out.

Owns the report's arguments, its messages and what it writes. Must not know what is computed. Invariants: pyspark is
imported only once arguments are good, so that its absence is a message; progress and errors go to
stderr, the paths written to stdout; differences and unreadable lines are no failure.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spark_audit.console import (
    EXIT_CODES,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_NOT_READY,
    EXIT_NOTHING,
    EXIT_USAGE,
    add_spark_arguments,
    amount_argument,
    describe_missing,
    fail,
    say,
    seconds_argument,
    size_argument,
)
from spark_audit.units import show_bytes, show_ratio

if TYPE_CHECKING:
    from spark_audit.job import Findings, Request
    from spark_audit.reconcile import ScrapedCounters
    from spark_audit.storage import Store

NEEDED_MODULES = ("pyspark", "pyarrow", "pandas", "numpy")
OTHERS = ("diff", "ingest")


def main(argv: Sequence[str]) -> int:
    """Run the audit; returns the exit code."""
    arguments = _build_parser().parse_args(argv)
    missing = describe_missing(NEEDED_MODULES)
    if missing:
        return fail(EXIT_NOT_READY, missing)
    from spark_audit.reading import find_inputs

    inputs = find_inputs(arguments.logs)
    if inputs.is_absent:
        return fail(EXIT_NOTHING, f"no .jsonl or .jsonl.gz file in {' '.join(arguments.logs)}")
    if arguments.follow and inputs.urls:
        return fail(EXIT_USAGE, f"--follow reads files of this machine, not {inputs.urls[0]}")
    try:
        counters = tuple(_read_counters(path) for path in arguments.metrics)
    except (OSError, ValueError) as error:
        return fail(EXIT_USAGE, str(error))
    from spark_audit.diagnosis import Prices
    from spark_audit.job import Request

    window_ms = round(1000 * arguments.window) if arguments.window else None
    prices = Prices(arguments.gib_month, arguments.read_cost)
    request = Request(inputs, arguments.out, counters, arguments.cache_size, window_ms, prices)
    if arguments.follow:
        from spark_audit.commands.follow import follow

        settings = dict(arguments.conf)
        return follow(request, arguments.logs, arguments.master, settings, arguments.every)
    return _audit(request, arguments.master, dict(arguments.conf))


def _audit(request: "Request", master: str | None, settings: dict[str, str]) -> int:
    from spark_audit.ingest import WorkersUnready
    from spark_audit.job import NothingToRead, run
    from spark_audit.line_table import TableError
    from spark_audit.session import SPARK_ERRORS, NotReady, describe_spark_error, open_session
    from spark_audit.storage import Store, StoreError

    size_bytes = request.inputs.size_bytes
    amount = "logs of another store" if size_bytes is None else f"{show_bytes(size_bytes)} of logs"
    say(f"starting Spark for {amount}")
    try:
        spark = open_session(master, size_bytes, settings)
    except NotReady as error:
        return fail(EXIT_NOT_READY, str(error))
    try:
        findings = run(spark, request, say)
        write_report(findings, Store(spark), str(request.out))
    except NothingToRead as error:
        return fail(EXIT_NOTHING, str(error))
    except WorkersUnready as error:
        return fail(EXIT_NOT_READY, str(error))
    except (TableError, StoreError) as error:
        return fail(EXIT_USAGE, str(error))
    except SPARK_ERRORS as error:
        return fail(EXIT_FAILED, describe_spark_error(error))
    finally:
        spark.stop()
    out = str(request.out).rstrip("/")
    sys.stdout.write(f"{out}/index.html\n{out}/summary.json\n")
    return EXIT_DONE


def write_report(findings: "Findings", store: "Store", out: str) -> None:
    """Write index.html and the JSON files, each replaced at once: a reader never sees half of one."""
    from spark_audit.ledger import describe_ledger
    from spark_audit.page.report import build_page
    from spark_audit.storage import to_uri
    from spark_audit.summary import build_summary

    say("drawing the page")
    texts = {
        "topics.json": json.dumps(findings.topic_reasons, indent=0) + "\n",
        "periods.json": json.dumps(findings.periods._asdict(), separators=(",", ":")) + "\n",
        "summary.json": json.dumps(build_summary(findings), indent=2) + "\n",
        "index.html": build_page(findings),
    }
    if findings.ledger is not None:
        texts["completeness.json"] = json.dumps(describe_ledger(findings.ledger), indent=2) + "\n"
    for name, text in texts.items():
        store.write_text(to_uri(f"{out.rstrip('/')}/{name}"), text)
    say(_describe(findings))


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="forebay audit",
        description="Hit ratios, misses by reason and the sizing curve from Forebay's access logs.",
        epilog=f"Other commands: forebay audit {' | '.join(OTHERS)} --help. {EXIT_CODES}",
    )
    parser.add_argument(
        "logs",
        nargs="+",
        metavar="LOGS",
        help="directory, file or pattern of .jsonl[.gz], or a table of `forebay audit ingest`; paths or URIs",
    )
    parser.add_argument(
        "--out",
        required=True,
        metavar="DIR",
        help="where tables and the page are written; a path, or a URI such as s3a://bucket/report",
    )
    add_spark_arguments(parser)
    parser.add_argument(
        "--metrics",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a saved answer of /metrics to compare with; once for each Forebay",
    )
    parser.add_argument(
        "--gib-month",
        type=amount_argument,
        metavar="PRICE",
        help="price of a GiB of memory for a month, for the findings",
    )
    parser.add_argument(
        "--read-cost",
        type=amount_argument,
        metavar="PRICE",
        help="price of a GiB that the broker reads and sends, for the findings",
    )
    parser.add_argument(
        "--cache-size",
        type=size_argument,
        metavar="SIZE",
        help="cache size to mark, such as 512MiB",
    )
    parser.add_argument(
        "--window",
        type=seconds_argument,
        metavar="SECONDS",
        help="time window (default: by the log's span)",
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help="go on as the logs grow, until SIGTERM or Ctrl-C; DIR/follow keeps what was read, also after a crash",
    )
    parser.add_argument(
        "--every",
        type=seconds_argument,
        metavar="SECONDS",
        default=60.0,
        help="with --follow: time between two looks at the logs (default: 60)",
    )
    return parser


def _read_counters(path: Path) -> "ScrapedCounters":
    from spark_audit.reconcile import scan_counters

    try:
        return scan_counters(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _describe(findings: "Findings") -> str:
    total = findings.total
    text = f"{show_ratio(total['hitRatioBytes'])} of {show_bytes(total['bytes'])} came from memory"
    for one in findings.reconciliations:
        if one.source == "scrape" or one.agrees is False:
            text += f"; {one.text}"
    return text
