"""`forebay top`: arguments, the loop, output and exit code.

Owns the command. Must not know the document's meaning (`screen.py`). Invariants: one question at a time, each with a
limit; without an answer the screen says so and goes on asking. Exit codes: 0 done, 1 no answer to the only question,
2 wrong arguments or configuration.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxy.admin.access import TOP
from proxy.admin_client import ask
from proxy.broker_client import find_local
from proxy.build_info import find_packages
from proxy.config.load import load
from proxy.config.units import parse_duration
from proxy.config.yaml_file import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxy.config.admin import Admin
    from proxy.top.screen import Order

OK, FAILED, USAGE = 0, 1, 2
ORDERS = ("bytes", "misses", "delay")
ANSWER_TIMEOUT_S = 5.0
_HELP = """\
Asks the admin port of a Forebay that runs by CONFIG (its address, TLS and token) every two seconds. Sums are of the
last 10 to 20 seconds. Ctrl-C ends it. Where the output is no terminal, one view is printed. The page at `/` of the
admin port shows the same.

examples:
  forebay top forebay.yaml
  forebay top forebay.yaml --once --by misses
  forebay top forebay.yaml --json | jq .readersBehind

exit codes: 0 done, 1 no answer to the only question, 2 wrong command line or configuration
"""


class NoAnswer(Exception):
    """There is no document; the message says why."""


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    parser = argparse.ArgumentParser(
        prog="forebay top",
        description="Show hit ratio, memory, leases, disks, top clients and who is behind.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("config", type=Path, metavar="CONFIG", help="the configuration of `forebay serve`")
    add("--by", choices=ORDERS, default="bytes", help="the order of topics, clients and groups")
    add("--every", type=_parse_time, default=2.0, metavar="TIME", help="between questions (2s)")
    add("--rows", type=_parse_rows, default=5, metavar="N", help="of a table, 1 to 20 (5)")
    add("--once", action="store_true", help="print one view")
    add("--json", action="store_true", help="print one view as JSON")
    return parser


def _parse_time(text: str) -> float:
    try:
        time_s = parse_duration(text)
    except ValueError as refusal:
        raise argparse.ArgumentTypeError(f"{text!r} {refusal}") from None
    if not 0.5 <= time_s <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} must be between 500ms and 1h")
    return time_s


def _parse_rows(text: str) -> int:
    if not text.isdecimal() or len(text) > 2 or not 1 <= int(text) <= 20:
        raise argparse.ArgumentTypeError(f"{text!r} must be 1 to 20")
    return int(text)


def main(arguments: Sequence[str]) -> int:
    """Run `forebay top ...` and return its exit code. Wrong arguments raise SystemExit(2)."""
    options = build_parser().parse_args(arguments)
    if not options.json and importlib.util.find_spec("rich") is None:
        packages = shlex.join(find_packages("top"))
        print(f"forebay top: install {packages} first, or use --json", file=sys.stderr)
        return USAGE
    try:
        admin = load(options.config, dict(os.environ), checks=False).config.admin
    except ConfigError as refusal:
        for problem in refusal.problems:
            print(f"forebay top: {problem}", file=sys.stderr)
        return USAGE
    if sys.stdout.isatty() and not (options.once or options.json):
        return watch(admin, options.by, options.every, options.rows)
    try:
        said = read_document(admin)
    except NoAnswer as reason:
        print(f"forebay top: {reason}", file=sys.stderr)
        return FAILED
    if options.json:
        print(json.dumps(said, indent=2))
    else:
        from rich.console import Console

        from proxy.top.screen import build_screen

        Console().print(build_screen(said, options.by, options.rows))
    return OK


def read_document(admin: Admin) -> dict[str, Any]:
    """The document of `/top`. Raises NoAnswer."""
    answer = ask(admin, TOP, ANSWER_TIMEOUT_S)
    place = f"{find_local(admin.listen)}{TOP}"
    if answer.status == 0:
        raise NoAnswer(f"{place}: {answer.body}")
    if answer.status != 200:
        raise NoAnswer(f"{place} answers {answer.status}: {answer.body.strip()[:200]}")
    try:
        said = json.loads(answer.body)
    except ValueError as error:
        raise NoAnswer(f"{place}: no JSON: {error}") from error
    if not isinstance(said, dict):
        raise NoAnswer(f"{place}: no document")
    return said


def watch(admin: Admin, order: Order, every_s: float, rows: int) -> int:
    """Show the view until the user interrupts it."""
    from rich.live import Live
    from rich.text import Text

    from proxy.top.screen import build_screen
    from proxy.top.words import line

    with Live(Text("asking"), screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        try:
            while True:
                try:
                    live.update(build_screen(read_document(admin), order, rows), refresh=True)
                except NoAnswer as reason:
                    live.update(Text(line(reason), "red"), refresh=True)
                time.sleep(every_s)
        except KeyboardInterrupt:
            return OK
