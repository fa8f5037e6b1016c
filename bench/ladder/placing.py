"""On which processors the ladder's clients and proxies run, where that is not left to the scheduler.

Owns the affinities of processes that are already there; threads and processes that they start later inherit them. Must
not know rungs. Invariants: the broker goes where it is put by the scheduler; who is placed has one processor, the first
or the second of those that this process may use.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from bench.ladder.cpu import list_tree

if TYPE_CHECKING:
    from collections.abc import Iterable

ANYWHERE, BESIDE, APART = "anywhere", "beside", "apart"
PLACES = (ANYWHERE, BESIDE, APART)


class TooFew(RuntimeError):
    """This machine has not the processors; the message says so."""


def plan_places(place: str, processors: Iterable[int]) -> tuple[int, int] | None:
    """The processor of the clients and that of the proxies; None: any. TooFew."""
    if place == ANYWHERE:
        return None
    usable = sorted(processors)
    if len(usable) < 2:
        raise TooFew(
            f"clients and proxies can be {place} on two processors, and there is {len(usable)}"
        )
    return (usable[1] if place == BESIDE else usable[0]), usable[1]


def put(place: str, pids: Iterable[int]) -> None:
    """This process, which is the clients', and all threads of the proxies. TooFew."""
    planned = plan_places(place, os.sched_getaffinity(0))
    if planned is None:
        return
    clients, proxies = planned
    for pid in filter(None, pids):
        for one in list_tree(pid):
            for thread in Path("/proc", str(one), "task").iterdir():
                os.sched_setaffinity(int(thread.name), {proxies})
    os.sched_setaffinity(0, {clients})
