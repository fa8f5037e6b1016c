"""What one small request costs in Forebay's own code, without sockets: `python -m bench.micro.requests`.

Owns the measurement and its report; the played client, Forebay and broker are `tests.kit.played`. Must not know a real
broker. Invariants: process time only, the smallest of several
runs, since what a busy machine adds is not the code's; the same frames as the ladder's. Beside it the time of a
request after a pause, with cold caches: what a real process pays (docs/performance.md); and of one in a crowd, where
most wait for a slot (docs/decisions/0025).
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.kit.played import ISOLATED, OFF, ON, Played, feed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxy.net.client_connection import AnyLink

COLD_TIMES, SPOILED_BYTES, PAUSE_S = 800, 1 << 20, 0.0002
CROWD, DEEP = 8, 5
"""Connections, and requests in flight on each: as in the ladder's small requests per second."""


async def time_crowd(played: Played, times: int) -> float:
    """Microseconds of process time for a request among CROWD x DEEP: who is answered asks again at once."""
    clients: list[tuple[AnyLink, list[bytes], list[bytes]]] = []
    for _ in range(CROWD):
        sent: list[bytes] = []
        answered: list[bytes] = []
        clients.append((played.open_link(sent, answered), sent, answered))
        await played.open_upstream(clients[-1][0])
        sent.clear()
        answered[:] = [b""] * DEEP
    begun, first = time.process_time_ns(), played.offset
    while played.offset - first < times:
        for link, _, answered in clients:
            asks, answered[:] = len(answered), []
            for _ in range(asks):
                feed(link.framed, played.frame)
        answer_all(played, clients)
    taken_us = (time.process_time_ns() - begun) / (played.offset - first) / 1e3
    while any(sent for _, sent, _ in clients):  # nobody of the next crowd waits for this one
        answer_all(played, clients)
    return taken_us


def answer_all(played: Played, clients: Sequence[tuple[AnyLink, list[bytes], list[bytes]]]) -> None:
    """Acknowledge what was sent of each client, and what its answers let go."""
    for link, sent, _ in clients:
        while sent:
            owed, sent[:] = len(sent), []
            for _ in range(owed):
                played.acknowledge(link)


def time_cold(played: Played, times: int) -> float:
    """Median microseconds of a request that comes when the processor has done other things, as in a real process: its
    caches were filled with what is not ours, and it has slept.
    """
    theirs, other = memoryview(bytearray(SPOILED_BYTES)), bytearray(SPOILED_BYTES)
    taken = []
    for _ in range(times):
        other[:] = theirs
        time.sleep(PAUSE_S)
        begun = time.perf_counter_ns()
        played.produce()
        taken.append((time.perf_counter_ns() - begun) / 1e3)
    return statistics.median(taken)


async def measure(
    name: str, settings: dict[str, Any], times: int, runs: int, profile: bool
) -> None:
    """Microseconds a request; with `profile`, where they go."""
    with tempfile.TemporaryDirectory() as scratch:
        played = Played(settings, Path(scratch))
        await played.connect()
        taken = []
        for _ in range(runs):
            begun = time.process_time_ns()
            for _ in range(times):
                played.produce()
            taken.append((time.process_time_ns() - begun) / times / 1e3)
            await asyncio.sleep(0)
        cold_us = time_cold(played, COLD_TIMES)
        crowd_us = min([await time_crowd(played, times) for _ in range(3)])
        print(
            f"{name}: {min(taken):.1f} us a request, {cold_us:.0f} us after a pause, {crowd_us:.1f} us in a crowd"
        )
        if profile:
            profiler = cProfile.Profile()
            profiler.enable()
            for _ in range(times):
                played.produce()
            profiler.disable()
            pstats.Stats(profiler).sort_stats("tottime").print_stats(28)
        stored = played.forebay.broker.counters.produce.batches
        print(f"  {dict(stored)}")


def main() -> None:
    """The three forms."""
    parser = argparse.ArgumentParser(prog="python -m bench.micro.requests")
    parser.add_argument("--times", type=int, default=3000, help="requests a run")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--profile", action="store_true", help="where it goes, by function")
    options = parser.parse_args()
    for name, settings in (("pass", OFF), ("isolation", ISOLATED), ("isolation and admission", ON)):
        asyncio.run(measure(name, settings, options.times, options.runs, options.profile))


if __name__ == "__main__":
    main()
