"""How much of the arena is live record bytes once it has turned over: ten thousand slow partitions, and other loads.

Owns the loads. Must not know the arena's layout. Invariants: seeded; what counts as 100 % is the whole arena, tables
and index included; it is looked at after each eliminator's step for a whole turn, and the least is reported too.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.micro.batches import restamp
from blockcache.cache import BlockCache
from tests.kit.cache_batches import TOPIC, build_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 1024 * 1024
LARGEST = 256 * 1024


@dataclass(frozen=True, slots=True)
class Load:
    """`partitions` that receive batches of `size(random)` bytes; one whole round is a second's batches."""

    name: str
    goal: str
    partitions: int
    size: Callable[[random.Random], int]
    pick: Callable[[random.Random, int], Iterator[int]]


def in_turn(_: random.Random, partitions: int) -> Iterator[int]:
    """Each partition once a round."""
    return iter(range(partitions))


def skewed(source: random.Random, partitions: int) -> Iterator[int]:
    """As many picks as partitions, a few of which get most (Pareto)."""
    return (min(int(source.paretovariate(0.6)) - 1, partitions - 1) for _ in range(partitions))


LOADS = (
    Load(
        "10,000 partitions, a batch of 1 KiB each in turn",
        "at least 80 %",
        10_000,
        lambda _: 1024,
        in_turn,
    ),
    Load(
        "10,000 partitions in turn, 200 to 1,848 bytes",
        "",
        10_000,
        lambda r: r.randrange(200, 1849),
        in_turn,
    ),
    Load("2,000 partitions, skewed, 1 KiB", "", 2_000, lambda _: 1024, skewed),
    Load(
        "200 partitions, skewed, 100 bytes to 64 KiB",
        "",
        200,
        lambda r: int(64 * 2 ** (10 * r.random())),
        skewed,
    ),
    Load("20 partitions in turn, 64 KiB", "", 20, lambda _: 65536, in_turn),
    Load("10,000 partitions, 200 bytes", "", 10_000, lambda _: 200, in_turn),
)


def find_horizon(cache: BlockCache, slots: list[int], source: random.Random) -> Iterator[float]:
    """Of some partitions, the age of the newest evicted batch, in arenas: as it went, or older by now."""
    arena_bytes = cache.statistics().arena_bytes
    for slot in source.sample(slots, min(len(slots), 100)):
        sent_count = cache.edges(slot, 0).evicted_end - 1
        age = cache.age_bytes(slot, sent_count) if sent_count >= 0 else None
        tail = cache.tail(slot)
        if age is not None and tail[0] != tail[1]:
            yield age / arena_bytes


def fill(cache: BlockCache, load: Load, turns: float) -> tuple[list[float], list[float]]:
    """Runs a load until so many arenas of bytes were admitted; live shares and horizons over the last turn."""
    source = random.Random(1)
    slots = [cache.open(TOPIC, i) for i in range(load.partitions)]
    ends = [0] * load.partitions
    batch = bytearray(build_batch(0, size=LARGEST))
    arena_bytes = cache.statistics().arena_bytes
    shares: list[float] = []
    horizons: list[float] = []
    while cache.peek_admitted_bytes() < turns * arena_bytes:
        for i in load.pick(source, load.partitions):
            size = load.size(source)
            restamp(batch, ends[i], size)
            cache.eliminate()
            cache.insert(slots[i], batch, 0, size, ends[i])
            ends[i] += 1
        if cache.peek_admitted_bytes() > (turns - 1) * arena_bytes:
            shares.append(cache.statistics().live_record_bytes / arena_bytes)
            horizons += find_horizon(cache, slots, source)
    return shares, horizons


def measure(arena_bytes: int = 256 * MIB) -> list[tuple[str, str, str]]:
    """Rows for each load: median and least of the live share, where the rest is, and how exact the FIFO is."""
    rows = []
    for load in LOADS:
        cache = BlockCache(arena_bytes)
        shares, horizons = fill(cache, load, 3)
        now = cache.statistics()
        parts = {
            "tables": arena_bytes - now.block_bytes - now.index_bytes,
            "index": now.index_bytes,
            "free": now.block_bytes_free,
            "in blocks": now.block_bytes_used - now.live_record_bytes,
        }
        told = ", ".join(f"{name} {size / arena_bytes:.1%}" for name, size in parts.items())
        live = f"{statistics.median(shares):.1%} live (least {min(shares):.1%}; {told})"
        rows.append((load.name, live, load.goal))
        if horizons:
            youngest = statistics.quantiles(horizons, n=100)[0]
            rows.append(
                ("... evicted at an age of", f"{youngest:.0%} of the arena or more (p1)", "")
            )
        cache.close()
        observing = BlockCache(arena_bytes, observe=True)
        fill(observing, load, 1.5)
        share = observing.resident_bytes / arena_bytes
        rows.append(("... an observing cache takes", f"{share:.1%} of the arena", ""))
        observing.close()
    return rows
