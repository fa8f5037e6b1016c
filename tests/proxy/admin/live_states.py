"""States of a process for tests of the live view.

Owns a state in which each kind of row is there. Must not know what is shown of it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from proxy.admin.live_state import LiveState, MemoryState, QueueState, Reader, ReaderBehind
from proxy.admin.log_queue import RecentLine
from proxy.fetch.readers import ReadSums

if TYPE_CHECKING:
    from throttle.throttle import Throttle

AT_S = 1_763_683_200.0
MEMORY = MemoryState(
    capacity_bytes=1000,
    pool_bytes=800,
    live_bytes=600,
    clock=5000,
    edge=4000,
    reach_s=90.0,
    is_full=True,
)


def build_behind(**changed: Any) -> ReaderBehind:
    """A reader in memory that is slower than writers, and than time."""
    plain = ReaderBehind(
        reader=Reader("batch", "nightly", "orders"),
        partition=3,
        offset=70,
        high_watermark=100,
        log_start=10,
        behind_s=40.0,
        admitted_at=4500,
        bytes_pace=50.0,
        time_pace=0.5,
        retention_ms=100_000,
        record_age_s=40.0,
    )
    return dataclasses.replace(plain, **changed)


def build_state(throttle: Throttle | None = None, **changed: Any) -> LiveState:
    """Two readers, one of them behind; ten seconds in which 1,000 bytes were read and 1,000 came."""
    plain = LiveState(
        at_s=AT_S,
        version="1.0",
        commit="0123abc",
        boot="b1",
        cache_mode="serve",
        is_ready=True,
        reasons=(),
        node_id=7,
        listeners=[("clients", "127.0.0.1:19092", 3)],
        window_s=10.0,
        record_bytes={("hit", ""): 750, ("miss", "cold"): 250, ("pass", "mixed"): 0},
        total_bytes={("hit", ""): 1500, ("miss", "cold"): 500},
        admitted_bytes=1000,
        lease_lapses=0,
        memory=MEMORY,
        followed=5,
        watched=4,
        leases=3,
        delayed_fetches=2,
        disks={} if throttle is None else throttle.statistics().disks,
        queues=[QueueState("control", 10, 0, 0, 0), QueueState("data-1", 4, 2, 1, 9)],
        readers={
            Reader("web", "live", "orders"): ReadSums(30, 0, 750, 0, 0, 0.0),
            Reader("batch", "nightly", "orders"): ReadSums(5, 5, 0, 250, 0, 1.5),
        },
        others=ReadSums(),
        behind=[build_behind()],
        warnings=[RecentLine(AT_S, "WARNING", "forebay.x", "the disk is slow")],
    )
    return dataclasses.replace(plain, **changed)
