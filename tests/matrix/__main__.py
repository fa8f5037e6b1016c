"""`python -m tests.matrix`: the matrix, and its table for the documents."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.kit.broker.jars import VERSIONS
from tests.matrix.clients import CLIENTS
from tests.matrix.run import run_broker
from tests.matrix.table import build_page


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    """0 where every client that could be run saw the same on both ways, and its tail reads were hits."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument(
        "--client", action="append", default=[], help="only clients whose name has this in it"
    )
    parser.add_argument("--broker", action="append", default=[], choices=VERSIONS)
    parser.add_argument("--step", action="append", default=[], help="only this step")
    parser.add_argument("--write", type=Path, help="write the page there")
    given = parser.parse_args()
    wanted = [
        one
        for one in CLIENTS
        if not given.client or any(part.lower() in one.name.lower() for part in given.client)
    ]
    brokers = given.broker or sorted(VERSIONS)
    outcomes = [one for broker in brokers for one in run_broker(broker, wanted, given.step, say)]
    page = build_page(outcomes)
    if given.write:
        given.write.write_text(page)
    say(page)
    failures = [failure for outcome in outcomes for failure in outcome.failures()]
    say("\n".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
