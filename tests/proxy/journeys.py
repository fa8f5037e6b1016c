"""The paths of requests through the product: `python -m tests.proxy.journeys` prints a table for docs/performance.md.

Owns which requests are traced. It must not know how calls are counted (`tests.proxy.tracing`).
"""

from __future__ import annotations

import asyncio
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.proxy.cached_partition import World, build_fetch
from tests.proxy.test_dispatch_budget import MANY, WARM, wait_at_tails
from tests.proxy.test_dispatch_budget_produce import Budget
from tests.proxy.tracing import trace

if TYPE_CHECKING:
    from tests.proxy.tracing import Journey

SOME = 16


async def trace_fetches() -> dict[str, Journey]:
    """From memory, in a session, waiting and woken."""
    found = {}
    for partitions in (1, SOME, MANY):
        world = World(verify_ratio=0.0, room_bytes=1 << 20)
        world.store_others(MANY)
        for number in range(WARM):
            world.receive(build_fetch(0, partitions=partitions, correlation_id=number))
        frame = build_fetch(0, partitions=partitions, correlation_id=WARM)
        found[f"Fetch from memory, partitions: {partitions}"] = trace(partial(world.receive, frame))
        world.receive(build_fetch(0, partitions=partitions, correlation_id=0, session=(0, 0)))
        (session,) = world.broker.sessions._sessions
        for epoch in range(1, WARM):
            world.receive(
                build_fetch(
                    0, partitions=partitions, correlation_id=epoch, session=(session, epoch)
                )
            )
        frame = build_fetch(0, partitions=partitions, correlation_id=WARM, session=(session, WARM))
        found[f"the same in a session: {partitions}"] = trace(partial(world.receive, frame))
        world.end()
    for partitions in (1, SOME):
        for has_session in (False, True):
            kind = f"{partitions}{', session' if has_session else ''}"
            parked, woken = wait_at_tails(partitions, has_session, trace)
            found[f"Fetch begins to wait, partitions: {kind}"] = parked
            found[f"Fetch woken by records, partitions: {kind}"] = woken
    return found


async def trace_produces(directory: Path) -> dict[str, Journey]:
    """There and back, stored, isolation on."""
    found = {}
    for partitions, has_pipeline in ((1, True), (1, False), (8, False), (SOME, False)):
        (place := directory / f"{partitions}-{has_pipeline}").mkdir()
        budget = Budget(place, has_pipeline, trace)
        await budget.connect(partitions)
        there, back = budget.count(partitions)
        way = "pipeline" if has_pipeline else f"partitions: {partitions}"
        found[f"Produce there, {way}"], found[f"its answer, {way}"] = there, back
        budget.world.close()
    return found


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as directory:
        produces = asyncio.run(trace_produces(Path(directory)))
    print("| journey | calls | files | rooms | crossings | re-entries |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, one in (produces | asyncio.run(trace_fetches())).items():
        print(f"| {name} | {' | '.join(map(str, one))} |")


if __name__ == "__main__":
    main()
