"""A disk to prove the controller on: a queue of work with writes, misses, and a page cache before it.

Owns: the model. A request is `REQUEST_BYTES`; work arrives as bytes over capacity, what does not fit into a
step waits. util = rho ** `steepness` (1: each byte costs the same; 3: like a limit that bursts hide until it is
near), await = service / (1 - rho) + what waits, as in M/M/1. With `slice_s` it is a fast device behind a limit on
reads, as blk-throttle and cloud volumes have: idle in each slice until the slice's bytes are used up, then full.
`burst_bytes` are a token bucket's: full at first, spent beyond the limit, earned again below it.
Must not know: the throttle. Invariants: misses
are finished in order, when their bytes have been read; counters only grow, as in /proc/diskstats.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from throttle.disks import SECTOR_BYTES, DiskCounters

REQUEST_BYTES = 128 << 10
MOST_RHO = 0.98
NATIVE = 8
"""How much faster than its limit a sliced disk is."""
NAME = "vda"


@dataclass
class ModelDisk:
    """`capacity_bytes_s`, `write_bytes_s`, `cached` (share of misses that the page cache has) and `noise` (of
    the work that arrives, relative, seeded) may be changed at any time.
    """

    capacity_bytes_s: float = 60e6
    write_bytes_s: float = 5e6
    cached: float = 0.0
    noise: float = 0.0
    steepness: float = 1.0
    slice_s: float = 0.0
    burst_bytes: float = 0.0
    seed: int = 1
    backlog_bytes: float = 0.0
    read_bytes: float = 0.0
    _pending: deque[tuple[float, object]] = field(default_factory=deque)
    _sums: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        names = (
            "reads",
            "read_sectors",
            "read_ms",
            "writes",
            "write_sectors",
            "write_ms",
            "ticks",
            "weighted",
        )
        self._sums = dict.fromkeys(names, 0.0)
        self._ahead_bytes = 0.0
        self._allowed_bytes = self.burst_bytes
        self._now_s = self._slice_end_s = 0.0

    def read(self, size_bytes: int, item: object) -> None:
        """A miss; `step` hands `item` back when it is done."""
        cold = size_bytes * (1 - self.cached)
        self._ahead_bytes += cold
        self._pending.append((cold, item))

    def step(self, step_s: float) -> list[object]:
        """Time passes. The misses that have finished."""
        writes = self.write_bytes_s * step_s * max(0.0, 1 + self._random.gauss(0, self.noise))
        room = self.capacity_bytes_s * step_s * max(0.05, 1 + self._random.gauss(0, self.noise / 3))
        self.backlog_bytes += writes
        done_writes = min(self.backlog_bytes, room * 0.98)
        self.backlog_bytes -= done_writes
        if self.slice_s:
            reads = self._read_of_slice(step_s)
        else:
            reads = min(self._ahead_bytes, room - done_writes)
            self._count(
                done_writes, reads, (done_writes + reads) / room, self.capacity_bytes_s, step_s
            )
        finished, self._ahead_bytes = [], self._ahead_bytes - reads
        while self._pending and self._pending[0][0] <= reads + 1e-6:
            size, item = self._pending.popleft()
            reads -= size
            finished.append(item)
        if self._pending:
            size, item = self._pending[0]
            self._pending[0] = (size - reads, item)
        return finished

    def counters(self) -> DiskCounters:
        """As /proc/diskstats would show them now."""
        now = {name: int(value) for name, value in self._sums.items()}
        queued = int((self._ahead_bytes + self.backlog_bytes) / REQUEST_BYTES)
        reads = (now["reads"], 0, now["read_sectors"], now["read_ms"])
        writes = (now["writes"], 0, now["write_sectors"], now["write_ms"])
        return DiskCounters(254, 0, NAME, *reads, *writes, queued, now["ticks"], now["weighted"])

    def _read_of_slice(self, step_s: float) -> float:
        """What the slice's limit allows, at the device's own speed; busy all the time while more waits."""
        self._now_s += step_s
        if self._now_s >= self._slice_end_s - 1e-9:
            self._slice_end_s += self.slice_s
            kept = min(self._allowed_bytes, self.burst_bytes)
            self._allowed_bytes = kept + self.capacity_bytes_s * self.slice_s
        native = NATIVE * self.capacity_bytes_s
        reads = min(self._ahead_bytes, self._allowed_bytes, native * step_s)
        self._allowed_bytes -= reads
        writes = self.write_bytes_s * step_s
        held = self._ahead_bytes - reads > 1
        self._count(
            writes, reads, 1.0 if held else (writes + reads) / (native * step_s), native, step_s
        )
        return reads

    def _count(
        self, writes: float, reads: float, rho: float, speed_bytes_s: float, step_s: float
    ) -> None:
        rho = min(1.0, rho)
        service_ms = REQUEST_BYTES / speed_bytes_s * 1000
        waits = (self._ahead_bytes - reads / 2 + self.backlog_bytes) / self.capacity_bytes_s * 1000
        await_ms = service_ms / (1 - min(rho, MOST_RHO)) + waits
        sums, self.read_bytes = self._sums, self.read_bytes + reads
        for kind, size in (("read", reads), ("write", writes)):
            requests = size / REQUEST_BYTES
            sums[f"{kind}s"] += requests
            sums[f"{kind}_sectors"] += size / SECTOR_BYTES
            sums[f"{kind}_ms"] += requests * await_ms
            sums["weighted"] += requests * await_ms
        sums["ticks"] += (rho**self.steepness) * step_s * 1000
