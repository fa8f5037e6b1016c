"""What it costs to show a partition to other processes, and to look at it there: `python -m bench.micro.shown_rows`.

Prints nanoseconds of the processor for each, as the least of several rounds.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from proxy.partitions._rows import lib

from proxy.keeper.seen import SeenPartition
from proxy.keeper.segment import attach_segment, open_segment
from proxy.keeper.shown import ShownPartitions
from proxy.partitions.table import Partition
from proxy.partitions.topics import Topic

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS, TIMES, ROWS = 7, 20_000, 1000


def measure(action: Callable[[], object], times: int = TIMES) -> float:
    """Nanoseconds of `action`, the least of ROUNDS rounds."""
    least = float("inf")
    for _ in range(ROUNDS):
        begun = time.process_time_ns()
        for _ in range(times):
            action()
        least = min(least, (time.process_time_ns() - begun) / times)
    return least


def main() -> None:
    """Print what each costs."""
    shown = ShownPartitions(open_segment(ROWS), lambda: None)
    topic = Topic(b"t" * 16, "t")
    partition = Partition(topic, 0, 3, 100)
    partition.leader_state.learn(1, 0, 0, 0, 1e9)
    seen = SeenPartition(attach_segment(os.dup(shown.segment.fd)), topic, 0, 3, 3)

    def grow() -> None:
        partition.row.high_watermark += 1

    def grow_and_show() -> None:
        partition.row.high_watermark += 1
        shown.show(partition)

    def grow_show_and_look() -> None:
        grow_and_show()
        lib.pt_look(seen.row)

    growing = measure(grow)
    shows = measure(grow_and_show)
    looks = measure(grow_show_and_look)
    print(f"show a row that has changed    {shows - growing:6.0f} ns")
    print(f"show one that has not          {measure(lambda: shown.show(partition)):6.0f} ns")
    print(f"look at a row that has changed {looks - shows:6.0f} ns")
    print(f"look at one that has not       {measure(lambda: lib.pt_look(seen.row)):6.0f} ns")


if __name__ == "__main__":
    main()
