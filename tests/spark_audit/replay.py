"""A load through the real block cache, logged by the product's own runs and writer; and truths beside it.

Owns invented loads as plain lists of steps, what an explicit FIFO of bytes hits of them, and what the real cache hits.
Must not know the audit. Invariants: a load is the same for every cache; a fetch names whole batches and is a hit where
the cache holds its first one; nothing here is shared with what the audit computes.
"""

from __future__ import annotations

import math
import random
import struct
from bisect import bisect_right
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from blockcache.cache import BlockCache
from metrics.access_log import AccessLog, LogLimits
from proxy.accounting.stored_runs import StoredRuns
from proxy.partitions.partition_row import RUN_ROWS, open_row
from tests.kit.log_lines import LoggedFetch, LoggedResponse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

HEADER = struct.Struct(">qiibIhiqqqhii")
FOREVER = 1 << 62
START_MS = 1_763_700_000_000
RECORDS = 10
LARGEST_BYTES = 1 << 20


class Produce(NamedTuple):
    """A batch of RECORDS records at the end of a partition."""

    partition: int
    size_bytes: int


class Fetch(NamedTuple):
    """So many whole batches of a partition, from the batch of this number on."""

    partition: int
    number: int
    batches: int


Step = Produce | Fetch


class Shape(NamedTuple):
    """How a load is: partitions with their weights, lengths of batches, and readers. `lags`: weight -> mean bytes
    that such a reader is behind, over all partitions.
    """

    weights: Sequence[float]
    least_bytes: int
    most_bytes: int
    total_bytes: int
    lags: dict[float, float]
    fetched_bytes: int = 20_000
    burst: int = 1


def build_load(shape: Shape, seed: int) -> list[Step]:
    """A stationary load: each batch is followed by readers, one of each kind of lag by chance."""
    rng = random.Random(seed)
    sizes: list[list[int]] = [[] for _ in shape.weights]
    clocks: list[list[int]] = [[] for _ in shape.weights]
    steps: list[Step] = []
    clock, left, partition = 0, 0, 0
    weights = list(shape.lags)
    while clock < shape.total_bytes:
        if left == 0:
            (partition,) = rng.choices(range(len(shape.weights)), shape.weights)
            left = rng.randint(1, shape.burst)
        left -= 1
        size_bytes = rng.randint(shape.least_bytes, shape.most_bytes)
        steps.append(Produce(partition, size_bytes))
        sizes[partition].append(size_bytes)
        clocks[partition].append(clock)
        clock += size_bytes
        (kind,) = rng.choices(weights, weights)
        back = rng.expovariate(1 / shape.lags[kind])
        (asked,) = rng.choices(range(len(shape.weights)), shape.weights)
        steps += _read(sizes[asked], clocks[asked], asked, clock - back, shape.fetched_bytes)
    return steps


def _read(
    sizes: list[int], clocks: list[int], partition: int, since: float, fetched_bytes: int
) -> list[Step]:
    if not sizes:
        return []
    number = max(0, bisect_right(clocks, since) - 1)
    count, size_bytes = 1, sizes[number]
    while number + count < len(sizes) and size_bytes + sizes[number + count] <= fetched_bytes:
        size_bytes += sizes[number + count]
        count += 1
    return [Fetch(partition, number, count)]


def fifo_ratio(steps: Iterable[Step], size_bytes: int, skip: int = 0) -> float:
    """The byte hit ratio of a FIFO of batches whose lengths add up to at most `size_bytes`, after `skip` steps."""
    queue: deque[tuple[int, int, int]] = deque()
    held: set[tuple[int, int]] = set()
    sizes: dict[int, list[int]] = {}
    used = hits = total = 0
    for at, step in enumerate(steps):
        if isinstance(step, Produce):
            numbers = sizes.setdefault(step.partition, [])
            queue.append((step.partition, len(numbers), step.size_bytes))
            held.add((step.partition, len(numbers)))
            numbers.append(step.size_bytes)
            used += step.size_bytes
            while used > size_bytes:
                partition, number, gone = queue.popleft()
                held.discard((partition, number))
                used -= gone
        elif at >= skip:
            asked = sum(sizes[step.partition][step.number : step.number + step.batches])
            total += asked
            hits += asked if (step.partition, step.number) in held else 0
    return hits / total


class Replayed(NamedTuple):
    """What the real cache hit, of all bytes that were fetched, and the mean of the bytes of batches it held once
    full.
    """

    hit_ratio: float
    held_bytes: float


def replay(
    steps: Sequence[Step],
    size_bytes: int,
    log: AccessLog | None = None,
    tick_steps: int = 50,
    ghosts: int | None = None,
    skip: int = 0,
) -> Replayed:
    """Run a load through `BlockCache(size_bytes)`; with a log, write what Forebay writes. `ghosts`: as `max_ghosts`."""
    cache = BlockCache(size_bytes, max_ghosts=ghosts)
    writer = _Writer(cache, log) if log is not None else None
    buffer = bytearray(LARGEST_BYTES)
    slots: dict[int, int] = {}
    sizes: dict[int, list[int]] = {}
    hits = total = 0
    held: list[int] = []
    for at, step in enumerate(steps):
        partition = step.partition
        slot = slots.setdefault(partition, cache.open(partition.to_bytes(16, "big"), partition))
        numbers = sizes.setdefault(partition, [])
        if isinstance(step, Produce):
            base = RECORDS * len(numbers)
            fields = base, step.size_bytes - 12, 0, 2, 0, 0, RECORDS - 1, 0, 0, -1, 0, -1, RECORDS
            HEADER.pack_into(buffer, 0, *fields)
            cache.eliminate()
            inserted = cache.insert(slot, buffer, 0, step.size_bytes, base)
            assert inserted.stored_bytes == step.size_bytes
            numbers.append(step.size_bytes)
            if writer is not None:
                writer.stored(partition, base, step.size_bytes)
        else:
            asked = sum(numbers[step.number : step.number + step.batches])
            hit = cache.lookup(slot, RECORDS * step.number, FOREVER, asked)
            age = cache.age_bytes(slot, RECORDS * step.number)
            if at >= skip:
                total += asked
                hits += asked if hit is not None else 0
            if hit is not None:
                hit.release()
            if writer is not None:
                writer.fetched(partition, step, asked, hit is not None, age, len(numbers))
        if cache.held_bytes is not None:
            held.append(cache.held_bytes)
        if writer is not None and at % tick_steps == 0:
            writer.runs.tick(0.0)
    if writer is not None:
        writer.runs.close()
    cache.close()
    return Replayed(hits / total, sum(held) / len(held) if held else math.nan)


class _Stored:
    """A partition as `StoredRuns` knows it, compared by identity."""

    def __init__(self, index: int) -> None:
        self.topic = SimpleNamespace(name="t", id=index.to_bytes(16, "big"))
        self.index, self.row = index, open_row()


class _Writer:
    """The lines of a load: the product's runs, its writer, and one line for each fetch."""

    def __init__(self, cache: BlockCache, log: AccessLog) -> None:
        self.cache, self.log = cache, log
        self.runs = StoredRuns(log, cache, 65_536, RUN_ROWS)
        self.partitions: dict[int, Any] = {}
        self.now_ms = START_MS

    def stored(self, partition: int, base: int, size_bytes: int) -> None:
        self.now_ms += 1
        if partition not in self.partitions:
            self.partitions[partition] = _Stored(partition)
        clock = self.cache.peek_admitted_bytes() - size_bytes
        one = self.partitions[partition]
        self.runs.add(one, base, base + RECORDS, size_bytes, 1, "produce", clock)

    def fetched(
        self, partition: int, step: Fetch, asked: int, is_hit: bool, age: int | None, count: int
    ) -> None:
        response = LoggedResponse(
            ts=self.now_ms,
            listener="main",
            connection=1,
            client_id="c",
            group=None,
            api_version=17,
            wait_ms=0.0,
            total_ms=1.0,
            admitted_bytes=self.cache.peek_admitted_bytes(),
        )
        result = "hit" if is_hit else "miss"
        reason = "" if is_hit else "cold" if age is None else "evicted"
        line = LoggedFetch(
            response,
            topic="t",
            topic_id=partition.to_bytes(16, "big"),
            partition=partition,
            offset=RECORDS * step.number,
            isolation=0,
            result=result,
            reason=reason,
            bytes=asked,
            high_watermark=RECORDS * count,
            age_bytes=age,
        )
        self.log.put(line.line)


def write_load(
    steps: Sequence[Step],
    size_bytes: int,
    directory: Path,
    tick_steps: int = 50,
    ghosts: int | None = None,
) -> Replayed:
    """`replay`, with its log in `directory`."""
    log = AccessLog(
        directory,
        "b1",
        now_ms=lambda: START_MS,
        cache_size_bytes=size_bytes,
        limits=LogLimits(queue_lines=1 << 20),
    )
    replayed = replay(steps, size_bytes, log, tick_steps, ghosts)
    assert log.close(timeout_s=60)
    assert log.statistics().dropped_lines == 0
    return replayed
