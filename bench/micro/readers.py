"""What the live view's tables cost on the data path: `python -m bench.micro.readers`.

Owns two shapes: a record on its way to four groups at the tail, and a cached Fetch of 1 MiB by a reader that is behind.
Must not know the tables' inside. Invariants: one process, whose tables are on and off in turns of a few milliseconds,
so that a busy machine slows both alike; CPU time of the process; the ratio is that of neighbouring turns, with the
quartiles of all pairs.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.micro.hits import BATCHES, Hits
from bench.micro.tail import Tail

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from proxy.fetch.readers import Readers

LIMIT = 2048  # of limits.readers, by default
GROUPS = 4
TURN = 20
"""Records, or Fetches, of a turn."""


async def compare(
    name: str, readers: Readers, turn: Callable[[], Awaitable[float]], pairs: int
) -> None:
    """Print the microseconds of one record or Fetch with and without the tables, and the ratio."""
    ratios, with_us, without_us = [], [], []
    for number in range(-5, pairs):
        taken = {}
        for limit in (0, LIMIT) if number % 2 else (LIMIT, 0):
            readers.set_limit(limit)
            taken[limit] = await turn() / TURN
        if number >= 0:
            ratios.append(taken[LIMIT] / taken[0])
            with_us.append(taken[LIMIT])
            without_us.append(taken[0])
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"{name:36} {statistics.median(without_us):7.1f} us without, {statistics.median(with_us):7.1f} us with:"
        f" ratio {middle:.3f} ({low:.3f} to {high:.3f})",
        flush=True,
    )


async def compare_tail(directory: Path, pairs: int, log: bool) -> None:
    """A record, produced and read by GROUPS."""
    tail = Tail(directory, GROUPS, in_session=True, log=log)
    await tail.start()

    async def turn() -> float:
        taken_us = 0.0

        def timed(_number: int, part: Callable[[], None]) -> None:
            nonlocal taken_us
            begun = time.process_time_ns()
            part()
            taken_us += (time.process_time_ns() - begun) / 1e3

        for _ in range(TURN):
            await tail.record(timed)
        return taken_us

    name = f"a record to {GROUPS} groups{', logged' if log else ''}"
    await compare(name, tail.broker.readers, turn, pairs)


async def compare_hits(directory: Path, pairs: int) -> None:
    """A Fetch of 1 MiB of what entered memory long ago."""
    hits = Hits(directory, BATCHES["large"], in_session=True, log=False)
    readers = hits.link.broker.readers
    for _ in range(10):
        readers.tick(hits.link.broker.now())

    async def turn() -> float:
        taken_us = 0.0
        for _ in range(TURN):
            hits.prepare()
            begun = time.process_time_ns()
            hits.hit()
            taken_us += (time.process_time_ns() - begun) / 1e3
            hits.take()
        return taken_us

    await compare("a Fetch of 1 MiB from memory", readers, turn, pairs)


async def measure(pairs: int) -> None:
    """All shapes."""
    for log in (False, True):
        with tempfile.TemporaryDirectory() as scratch:
            await compare_tail(Path(scratch), pairs, log)
    with tempfile.TemporaryDirectory() as scratch:
        await compare_hits(Path(scratch), pairs)


def main() -> None:
    """By the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.micro.readers")
    parser.add_argument("--pairs", type=int, default=200, help="of turns, for each shape")
    asyncio.run(measure(parser.parse_args().pairs))


if __name__ == "__main__":
    main()
