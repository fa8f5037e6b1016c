"""One producer at a steady rate, and groups at the tail of a topic of many partitions: one turn of it, and its figures.

Owns the turn, and the busy loops beside it. Must not know whose clients these are, or rungs by name. Invariants: every
record is acknowledged and read by each group, or the turn is void; Forebay's counts are of the same time as the CPU.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bench.ladder.loads import Figures, Meter, Wrong
from bench.shape.access import count_lines
from tests.kit.broker.process import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.ladder.arms import Arm

RECORD_BYTES = 1000
WARM_S, WARMS, STEADY = 1.0, 3, 0.999
"""Nothing of the first seconds is counted: positions, leases and rights are being got. At least one second, at most
three, until memory serves this share of a second's bytes, where it may serve.
"""
SETTLE_S, PATIENCE_S = 180.0, 60.0
"""Until groups stand at every tail, of thousands of partitions on a busy machine; until all has been read."""
DROPPED = ("forebay_access_log_dropped_lines_total",)
BUSY = "while True: pass"


class Clients(Protocol):
    """A producer with acks=all and groups of consumers, on all partitions of one topic."""

    def settle(self, patience_s: float) -> None:
        """Write until each group has read from every partition; before anything else, once. Wrong."""

    def produce(self, rate: float, seconds: float) -> int:
        """Send on schedule, until all is acknowledged. Return the number sent. Wrong."""

    def drain(self, patience_s: float) -> list[int]:
        """Wait until every group has what was produced last. Return each record's lateness in each group, in ns."""

    def close(self) -> None:
        """End all of them."""


class Counts(NamedTuple):
    """Forebay's own: lines of the access log that were dropped; record bytes from memory, and in all."""

    dropped: float
    hit_bytes: float
    fetched_bytes: float

    def since(self, before: Counts) -> Counts:
        """What came after `before`."""
        return Counts(*(b - a for a, b in zip(before, self, strict=True)))

    @property
    def hit_share(self) -> float:
        """Of the bytes, 0 to 1."""
        return self.hit_bytes / max(self.fetched_bytes, 1.0)


@contextlib.contextmanager
def busy_processors() -> Iterator[None]:
    """A loop at nice 19 on each processor that this process may use, for as long as the block lasts."""
    loops = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"import os; os.nice(19); os.sched_setaffinity(0, {{{cpu}}})\n{BUSY}",
            ],
            preexec_fn=die_with_parent,
        )
        for cpu in sorted(os.sched_getaffinity(0))
    ]
    try:
        yield
    finally:
        for one in loops:
            one.kill()
            one.wait()


def tail_many(
    arm: Arm, broker_pid: int, clients: Clients, groups: int, rate: float, seconds: float
) -> Figures:
    """`rate` records of 1 KB a second over all partitions; `groups`, which have settled, at the tail. Wrong."""
    warm_up(arm, clients, rate)
    before, begun_s, meter = _count(arm), time.time(), Meter(arm.pid, broker_pid)
    count = clients.produce(rate, seconds)
    spent, ended_s, after = meter.stop(), time.time(), _count(arm)
    late = sorted(clients.drain(PATIENCE_S))
    if len(late) < groups * count:
        raise Wrong(f"{arm.name}: {len(late)} of {groups * count} came")
    figures = {
        "end_to_end_p50_ms": late[len(late) // 2] / 1e6,
        "end_to_end_p99_ms": late[len(late) * 99 // 100] / 1e6,
        "cpu_ms_per_s": spent.cpu_s * 1e3 / spent.elapsed_s,
        "broker_ms_per_s": spent.broker_s * 1e3 / spent.elapsed_s,
    }
    if before is not None and after is not None:
        assert arm.sidecar is not None
        grown = after.since(before)
        figures["log_lines_dropped"] = grown.dropped
        figures["hit_share"] = grown.hit_share
        log = count_lines(arm.sidecar.log_directory, begun_s, ended_s)
        figures["log_lines_per_s"] = log.lines / spent.elapsed_s
        figures["log_lines_per_answer"] = log.per_answer(groups, spent.elapsed_s)
    return figures


def warm_up(arm: Arm, clients: Clients, rate: float) -> None:
    """Produce a second at a time until memory serves a whole second, or WARMS times."""
    for _ in range(WARMS):
        before = _count(arm)
        clients.produce(rate, WARM_S)
        after = _count(arm)
        if before is None or after is None or after.since(before).hit_share >= STEADY:
            return


def _count(arm: Arm) -> Counts | None:
    if arm.sidecar is None or not arm.serves:
        return None
    metrics, fetched = arm.sidecar.metrics(), arm.sidecar.fetch_counts()
    hit_bytes = sum(size for key, size in fetched.items() if key[0] == "hit")
    return Counts(metrics.get(DROPPED, 0.0), hit_bytes, sum(fetched.values()))
