"""What the access log's thread costs for each partition answered with records: `python -m bench.micro.logged`.

Owns responses of a few shapes, put as the event loop puts them, and the thread's own CPU clock. Must not know sockets
or Fetches. Invariants: every line is written and every finished file compressed before the clock is read; the queue
never fills, so that no line is dropped.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from metrics.access_log import AccessLog, LogLimits

SHAPES = (1, 3, 8, 32, 128)
"""Partitions of a response."""
CHUNK = 16_384
"""Partitions that are put before the thread has written them."""
LIMITS = LogLimits(queue_lines=1 << 20, rotate_bytes=4 << 20, flush_interval_s=0.001)
START_MS = 1_763_683_200_000


def build_responses(partitions: int, count: int) -> list[Any]:
    """So many responses to four clients, each `partitions` wide, a few batches of 1 KB each."""
    draw = random.Random(partitions)
    offsets = [draw.randrange(1 << 33) for _ in range(partitions)]
    responses = []
    for number in range(count):
        ts, client = START_MS + 7 * number, number % 4
        answers = []
        for index in range(partitions):
            records = draw.randrange(1, 5)
            end = offsets[index] + records
            size_bytes = 1000 * records
            age = size_bytes + draw.randrange(100_000)
            who = "shape.events", b"t" * 16, "hit", "", index
            stamp = ts - draw.randrange(9)
            answers.append((*who, offsets[index], size_bytes, end, age, stamp, None, None))
            offsets[index] = end
        head = ts, "main", client + 1, f"consumer-{client}", f"group-{client}", 17, 0
        responses.append((*head, 12.5 * draw.random(), 14 * draw.random(), number << 14, answers))
    return responses


def measure(partitions: int, total: int) -> tuple[float, float]:
    """The thread's CPU in microseconds, and the text's bytes, of each partition."""
    responses = build_responses(partitions, total // partitions)
    with tempfile.TemporaryDirectory() as scratch:
        log = AccessLog(Path(scratch), "b1", now_ms=lambda: START_MS, limits=LIMITS)
        (thread,) = (one for one in threading.enumerate() if one.name == "access-log")
        assert thread.ident is not None
        clock = time.pthread_getcpuclockid(thread.ident)
        begun_ns = time.clock_gettime_ns(clock)
        step = max(1, CHUNK // partitions)
        for at in range(0, len(responses), step):
            for line in responses[at : at + step]:
                log.put(line, partitions)
            while log.statistics().written_lines < at + len(responses[at : at + step]):
                time.sleep(0.001)
        while log.statistics().pending_files:
            time.sleep(0.001)
        taken_ns = time.clock_gettime_ns(clock) - begun_ns
        said = log.statistics()
        assert log.close(timeout_s=30)
    assert said.dropped_lines == 0
    put = len(responses) * partitions
    return taken_ns / put / 1e3, said.written_bytes / put


def main() -> None:
    """One line for each shape: the least of several runs."""
    parser = argparse.ArgumentParser(prog="python -m bench.micro.logged")
    parser.add_argument("--partitions", type=int, default=200_000, help="put in a run")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    for partitions in SHAPES:
        runs = [measure(partitions, options.partitions) for _ in range(options.runs)]
        print(f"{partitions:4} partitions {min(runs)[0]:5.2f} us each, {runs[0][1]:4.0f} bytes")


if __name__ == "__main__":
    main()
