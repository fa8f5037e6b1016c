"""`forebay audit diff BEFORE AFTER [--out DIR]`: two reports, or periods of them, in; what changed out.

Owns the command's arguments, messages and files. Must not know how a change is computed. Invariants: the sentences go
to stdout, so that a terminal is enough; nothing but the two reports' files is read, so that neither Spark nor Java is
needed.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from spark_audit.console import EXIT_CODES, EXIT_DONE, EXIT_NOTHING, EXIT_USAGE, fail
from spark_audit.difference import UnfitReport, build_changes, build_document, describe, open_report
from spark_audit.page.difference import build_page


def main(argv: Sequence[str]) -> int:
    """Compare two reports; returns the exit code."""
    arguments = _build_parser().parse_args(argv)
    try:
        before, after = open_report(arguments.before), open_report(arguments.after)
    except UnfitReport as error:
        return fail(EXIT_NOTHING, str(error))
    changes = build_changes(before, after)
    sys.stdout.write("".join(f"{line}\n" for line in describe(before, after, changes)))
    if arguments.out is None:
        return EXIT_DONE
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        document = json.dumps(build_document(before, after, changes), indent=2)
        (arguments.out / "diff.json").write_text(document + "\n", encoding="utf-8")
        page = arguments.out / "index.html"
        page.write_text(build_page(before, after, changes), encoding="utf-8")
    except OSError as error:
        return fail(EXIT_USAGE, str(error))
    sys.stdout.write(f"{page}\n{arguments.out / 'diff.json'}\n")
    return EXIT_DONE


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="forebay audit diff",
        description="What changed between two reports or periods, and which topics account for it.",
        epilog=EXIT_CODES,
    )
    for name in ("before", "after"):
        parser.add_argument(
            name,
            metavar=name.upper(),
            help="the directory of a report (its --out), or DIR@FROM/TO for a period of it, such as"
            " report@2026-11-24T12:00/2026-11-24T13:00 (UTC)",
        )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="also write index.html and diff.json there"
    )
    return parser
