"""`forebay audit ingest LOGS TABLE`: adds what is new of the logs to a table of typed lines.

Owns the command's arguments and messages. Must not know how lines are read. Invariants: what is lost is said, and is no
failure; the table's name is the only line on stdout.
"""

import argparse
import sys
from collections.abc import Sequence

from spark_audit.console import (
    EXIT_CODES,
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_NOT_READY,
    EXIT_NOTHING,
    EXIT_USAGE,
    add_spark_arguments,
    describe_missing,
    fail,
    say,
)
from spark_audit.units import show_bytes

NEEDED_MODULES = ("pyspark", "pyarrow", "pandas", "numpy")
SHOWN_ENTRIES = 20


def main(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    arguments = _build_parser().parse_args(argv)
    missing = describe_missing(NEEDED_MODULES)
    if missing:
        return fail(EXIT_NOT_READY, missing)
    from spark_audit.reading import find_inputs
    from spark_audit.session import NotReady, open_session

    *logs, table = arguments.names
    inputs = find_inputs(logs)
    if not logs or inputs.is_absent:
        return fail(
            EXIT_NOTHING, f"no log file in {' '.join(logs) or '(nothing)'}: name LOGS, then TABLE"
        )
    try:
        spark = open_session(arguments.master, inputs.size_bytes, dict(arguments.conf))
    except NotReady as error:
        return fail(EXIT_NOT_READY, str(error))
    try:
        return _ingest(spark, logs, table, arguments.format)
    finally:
        spark.stop()


def _ingest(spark: object, logs: Sequence[str], table: str, data_format: str | None) -> int:
    from spark_audit.ingest import WorkersUnready, ingest
    from spark_audit.line_table import TableError
    from spark_audit.reading import show_ledger
    from spark_audit.session import SPARK_ERRORS, describe_spark_error
    from spark_audit.storage import StoreError, to_uri

    try:
        done = ingest(spark, logs, to_uri(table.rstrip("/")), data_format=data_format, say=say)  # type: ignore[arg-type]
    except WorkersUnready as error:
        return fail(EXIT_NOT_READY, str(error))
    except (TableError, StoreError) as error:
        return fail(EXIT_USAGE, str(error))
    except SPARK_ERRORS as error:
        return fail(EXIT_FAILED, describe_spark_error(error))
    say(f"{done.files} new files, {show_bytes(done.stored_bytes)}; {show_ledger(done.ledger)}")
    for entry in done.ledger.entries[:SHOWN_ENTRIES]:
        place = entry.path + (f":{entry.line}" if entry.line else "")
        say(f"{entry.kind}: {place}: {entry.text}")
    if len(done.ledger.entries) > SHOWN_ENTRIES:
        say(f"and {len(done.ledger.entries) - SHOWN_ENTRIES} more, in every report of the table")
    sys.stdout.write(f"{table}\n")
    return EXIT_DONE


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="forebay audit ingest",
        description="Typed lines of access logs in a table, which `forebay audit TABLE --out DIR` reads.",
        epilog=EXIT_CODES,
    )
    parser.add_argument(
        "names",
        nargs="+",
        metavar="LOGS ... TABLE",
        help="directories, files or patterns of logs, then the table; paths or URIs such as s3a://bucket/table",
    )
    parser.add_argument(
        "--format",
        metavar="NAME",
        help="Spark's name of the table's format: parquet (default), delta, iceberg; its jars by --conf",
    )
    add_spark_arguments(parser)
    return parser
