"""Requests' ways through the product, counted: `python -m tests.proxy.journeys` prints a table for docs/performance.md.

Owns the count of calls, files, rooms and crossings of each journey. It must not know how long a call takes. Invariant:
only Python functions of the product count; a crossing is a call into another file, a re-entry one into a file that was
entered before.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.proxy.hitting import END, World, build_fetch
from tests.proxy.test_dispatch_budget import PRODUCT, ROOT, WARM, build, store_many
from tests.proxy.test_dispatch_budget_produce import Budget

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


class Journey(NamedTuple):
    """What one request called: functions, files, rooms (folders), calls into another file, and into one again."""

    calls: int
    files: int
    rooms: int
    crossings: int
    re_entries: int


def trace(action: Callable[[], object]) -> Journey:
    """The journey of what `action` does."""
    entered: list[str] = []
    stack: list[str] = []
    calls = 0

    def note(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        name = frame.f_code.co_filename
        if not name.startswith(PRODUCT):
            return
        if event == "call":
            calls += 1
            if not stack or stack[-1] != name:
                entered.append(name)
            stack.append(name)
        elif event == "return" and stack:
            stack.pop()

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    files = {Path(name).relative_to(ROOT) for name in entered}
    return Journey(
        calls,
        len(files),
        len({one.parent for one in files}),
        len(entered),
        len(entered) - len(files),
    )


async def trace_fetches() -> dict[str, Journey]:
    """From memory, in a session, waiting and woken."""
    found = {}
    for partitions in (1, 16):
        world = World(verify_ratio=0.0, room_bytes=1 << 20)
        store_many(world)
        for number in range(WARM):
            world.receive(build(0, partitions, number))
        frame = build(0, partitions, WARM)
        found[f"Fetch from memory, partitions: {partitions}"] = trace(partial(world.receive, frame))
        world.receive(build(0, partitions, 0, (0, 0)))
        (session,) = world.broker.sessions._sessions
        for epoch in range(1, WARM):
            world.receive(build(0, partitions, epoch, (session, epoch)))
        frame = build(0, partitions, WARM, (session, WARM))
        found[f"the same in a session: {partitions}"] = trace(partial(world.receive, frame))
        world.end()
    world = World(verify_ratio=0.0, room_bytes=1 << 20)
    for number in range(WARM):
        world.receive(build_fetch(END + number, correlation_id=number))
        world.arrive(1000)
    frame = build_fetch(END + WARM, correlation_id=WARM)
    found["Fetch begins to wait"] = trace(lambda: world.receive(frame))
    found["Fetch woken by records"] = trace(lambda: world.arrive(1000))
    world.end()
    return found


async def trace_produces(directory: Path) -> dict[str, Journey]:
    """There and back, stored, isolation on."""
    found = {}
    for partitions, has_pipeline in ((1, True), (1, False), (8, False), (16, False)):
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
