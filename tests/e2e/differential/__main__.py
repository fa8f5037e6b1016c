"""`python -m tests.e2e.differential --seed N --rounds M`: a long run, its progress, and every difference it found.

Owns the command line. Must not know what a run does.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from tests.e2e.differential.drawing import LEFT_OUT
from tests.e2e.differential.run import LEAST_HITS, Difference, run
from tests.e2e.differential.stage import OVERRIDES
from tests.kit.sidecar import PATIENT_CACHE, Pair


def main() -> int:
    """The exit code: 1 where the answers differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.differential")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=300, help="of each round")
    parser.add_argument(
        "--without", default="", help="names of odd fields that are not drawn, comma separated"
    )
    given = parser.parse_args()
    seed = random.randrange(1 << 31) if given.seed is None else given.seed
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {what}", flush=True)

    say(f"seed {seed}")
    left_out = (*LEFT_OUT, *filter(None, given.without.split(",")))
    overrides = {name: value for name, value in OVERRIDES.items() if name not in left_out}
    found: list[Difference] = []
    try:
        with Pair({"overrides": overrides}, {"cache": PATIENT_CACHE}) as pair:
            hits = run(pair, seed, given.rounds, given.requests, found, say, left_out)
    finally:
        for one in found:
            print(f"\n{one}", flush=True)
    say(f"{len(found)} differences, {hits:.0%} of the bytes from memory")
    return 1 if found or hits < LEAST_HITS else 0


if __name__ == "__main__":
    sys.exit(main())
