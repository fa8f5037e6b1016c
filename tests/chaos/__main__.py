"""`python -m tests.chaos --seed N --minutes M`: one run, its progress, and how to repeat it.

Owns the command line and where logs stay. Must not know what a run does.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos import standstill
from tests.chaos.faults import BRISK, USUAL
from tests.chaos.run import Run


def main() -> int:
    """The exit code: 1 where a promise was broken."""
    parser = argparse.ArgumentParser(prog="make chaos")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument(
        "--brisk", action="store_true", help="with shorter pauses and stalls, as the short run has"
    )
    parser.add_argument(
        "--bypass", action="store_true", help="the same without Forebay, for comparison"
    )
    parser.add_argument(
        "--workers", type=int, help="of each Forebay; without it 1, or 2 where the seed is even"
    )
    parser.add_argument(
        "--directory", type=Path, help="a new one, for all logs; removed where all is well"
    )
    given = parser.parse_args()
    if given.directory is not None:
        try:
            given.directory.mkdir(parents=True)
        except OSError as failed:
            parser.error(f"--directory cannot be made: {failed}")
    seed = random.randrange(1 << 31) if given.seed is None else given.seed
    directory = given.directory or Path(tempfile.mkdtemp(prefix="forebay-chaos-"))
    again = (
        f"logs: {directory}\nagain: python -m tests.chaos --seed {seed} --minutes {given.minutes:g}"
    )
    workers = given.workers or (1 if seed % 2 else 2)
    again += f" --workers {workers}" + " --brisk" * given.brisk
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {what}", flush=True)

    say(again)
    standstill.guard()
    problems = ["the run did not come to its end"]
    try:
        problems = Run(
            seed,
            given.minutes,
            directory,
            say,
            bypass=given.bypass,
            pace=BRISK if given.brisk else USUAL,
            workers=workers,
        ).run()
    finally:
        if problems:
            print("\n".join((*problems, again)), flush=True)
    if problems:
        return 1
    shutil.rmtree(directory)
    say(f"seed {seed}: every promise was kept")
    return 0


if __name__ == "__main__":
    sys.exit(main())
