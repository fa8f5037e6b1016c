"""How fast and how dense the block cache is: `python -m bench.micro.cache`. Ratios come first.

Owns the cases and the table. Must not know the arena's layout. Invariants: what is compared runs in turns in one
process, so that a busy machine slows both; medians of the rounds, with their range; the goals are issue 5's.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import crc32c

from bench.micro import density
from bench.micro.batches import restamp
from blockcache import _build
from blockcache.cache import BlockCache
from protocol.framing import build_buffer
from tests.kit.cache_batches import TOPIC, append, build_batch

if TYPE_CHECKING:
    from collections.abc import Callable

KIB, MIB = 1024, 1024 * 1024
HERE = Path(__file__).parent
NATIVE = Path(_build.__file__).parent / "native"
Row = tuple[str, str, str]


def spread(values: list[float], unit: str) -> str:
    """Median and range."""
    return f"{statistics.median(values):.3g} {unit} ({min(values):.3g} to {max(values):.3g})"


def time_each(function: Callable[[int], object], times: int) -> float:
    """Microseconds a call."""
    begun = time.perf_counter()
    for i in range(times):
        function(i)
    return (time.perf_counter() - begun) / times * 1e6


def measure_insert(rounds: int, size: int, arena_bytes: int = 256 * MIB) -> list[Row]:
    """Inserts of one batch against a copy into memory of the arena's size, and that copy with a CRC."""
    cache, plain = BlockCache(arena_bytes), memoryview(bytearray(arena_bytes))
    cache.prefault(0, arena_bytes)
    slot, batch = cache.open(TOPIC, 0), bytearray(build_batch(0, size=size))
    places, offsets, copied = arena_bytes // size, iter(range(10**9)), iter(range(10**9))

    def insert(_: int) -> None:
        offset = next(offsets)
        restamp(batch, offset)
        cache.eliminate()
        cache.insert(slot, batch, 0, size, offset)

    def copy(_: int) -> None:
        offset = next(copied)
        at = offset % places * size
        restamp(batch, offset)
        plain[at : at + size] = batch

    def copy_and_sum(i: int) -> None:
        copy(i)
        crc32c.crc32c(batch)

    times = 16 * MIB // size
    for warm in (insert, copy):
        time_each(warm, 2 * places)
    taken = [[time_each(one, times) for one in (insert, copy, copy_and_sum)] for _ in range(rounds)]
    ratios = [insert_us / summed for insert_us, _, summed in taken]
    alone = [insert_us / copy_us for insert_us, copy_us, _ in taken]
    name = f"{size // KIB} KiB insert"
    return [
        (
            f"{name} / (memcpy + CRC-32C)",
            spread(ratios, "times"),
            "at most 1.5" if size > KIB else "",
        ),
        (f"{name} / memcpy", spread(alone, "times"), ""),
        (name, spread([one[0] for one in taken], "us"), ""),
    ]


def measure_touch(rounds: int, size: int = 64 * KIB, arena_bytes: int = 64 * MIB) -> list[Row]:
    """Inserts into a fresh arena, and into one that was prefaulted; what the prefault itself takes."""
    batch = bytearray(build_batch(0, size=size))
    taken: list[tuple[float, float, float]] = []
    for _ in range(rounds):
        fresh, ready = BlockCache(arena_bytes), BlockCache(arena_bytes)
        begun_ns = time.perf_counter_ns()
        ready.prefault(0, arena_bytes)
        prefault_us = (time.perf_counter_ns() - begun_ns) / 1e3 * MIB / arena_bytes
        both = []
        for cache in (fresh, ready):
            slot = cache.open(TOPIC, 0)

            def insert(offset: int, cache: BlockCache = cache, slot: int = slot) -> None:
                restamp(batch, offset)
                cache.insert(slot, batch, 0, size, offset)

            both.append(time_each(insert, arena_bytes // 2 // size) * MIB / size)
        taken.append((both[0], both[1], prefault_us))
        fresh.close()
        ready.close()
    return [
        (
            "insert at first touch / prefaulted",
            spread([one / two for one, two, _ in taken], "times"),
            "",
        ),
        ("insert of 1 MiB at first touch", spread([one[0] for one in taken], "us"), ""),
        ("insert of 1 MiB, prefaulted", spread([one[1] for one in taken], "us"), ""),
        ("prefault of 1 MiB", spread([one[2] for one in taken], "us"), ""),
    ]


def measure_straight(rounds: int, size: int = 900_000, arena_bytes: int = 256 * MIB) -> list[Row]:
    """A large batch received on the heap and then stored, and one received where it is stored. What a socket would
    copy is copied from a buffer.
    """
    cache, sent = BlockCache(arena_bytes), build_batch(0, size=size)
    cache.prefault(0, arena_bytes)
    slot, offsets = cache.open(TOPIC, 0), iter(range(10**9))

    def receive(memory: memoryview | None) -> None:
        assert memory is not None
        memory[:] = sent
        cache.eliminate()
        assert append(cache, slot, memory, 0, size, next(offsets), 0) is not None

    times = 64 * MIB // size
    ways = (lambda _: receive(build_buffer(size)), lambda _: receive(cache.reserve(size)))
    for way in ways:
        time_each(way, 2 * arena_bytes // size)
    taken = [[time_each(way, times) for way in ways] for _ in range(rounds)]
    return [
        (
            "900 KB straight into the arena / by way of the heap",
            spread([b / a for a, b in taken], "times"),
            "",
        ),
        ("... straight into the arena", spread([b for _, b in taken], "us"), ""),
    ]


def measure_c(rounds: int) -> list[Row]:
    """Lookups and inserts in C, a million batches in the index."""
    with tempfile.TemporaryDirectory() as scratch:
        program = f"{scratch}/lookup"
        sources = [str(HERE / "lookup.c"), *map(str, sorted(NATIVE.glob("*.c")))]
        flags = [*_build.STRICT, "-I", str(NATIVE)]
        _build.run_compiler([*_build.find_compiler(), *flags, *sources, "-o", program])
        rows: list[Row] = []
        for partitions in (1, 1000):
            command = [program, "1000000", str(partitions), "300000"]
            said = [
                subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
                for _ in range(rounds)
            ]
            looked, inserted = ([int(words[i]) / 1000 for words in said] for i in (0, 1))
            name = f"in C, 1,000,000 batches, {partitions} partitions"
            rows.append((f"lookup {name}", spread(looked, "us"), "below 2"))
            rows.append((f"insert of 100 bytes {name}", spread(inserted, "us"), ""))
    return rows


def measure_lookup(rounds: int) -> list[Row]:
    """A lookup with its release in Python, and the objects that a hit makes, by how many batches it has."""
    cache = BlockCache(64 * MIB)
    slot, batch = cache.open(TOPIC, 0), bytearray(build_batch(0, size=KIB))
    for offset in range(4000):
        restamp(batch, offset)
        cache.insert(slot, batch, 0, KIB, offset)
    rows: list[Row] = []
    objects: list[int] = []
    for batches in (1, 1000):

        def look(i: int, size: int = batches * KIB) -> None:
            hit = cache.lookup(slot, 2500, 1 << 62, size)
            assert hit is not None
            hit.release()

        taken = [time_each(look, 2000) for _ in range(rounds)]
        rows.append((f"Python lookup and release, {batches} batches", spread(taken, "us"), ""))
        before = sys.getallocatedblocks()
        hit = cache.lookup(slot, 2500, 1 << 62, batches * KIB)
        objects.append(sys.getallocatedblocks() - before)
        assert hit is not None and hit.size_bytes == batches * KIB
        hit.release()
    grown = f"{(objects[1] - objects[0]) / 999:.3f}"
    shared = f"{count_objects_of_slow_partitions():.3f}"
    return [
        ("Python objects for each batch more in a hit", grown, "0"),
        ("... of a partition in shared blocks", shared, "0"),
        *rows,
    ]


def count_objects_of_slow_partitions(partitions: int = 200, batches: int = 60) -> float:
    """Objects for each batch more in a hit whose batches lie apart."""
    cache, batch = BlockCache(64 * MIB), bytearray(build_batch(0, size=KIB))
    slots = [cache.open(TOPIC, i) for i in range(partitions)]
    for offset in range(batches):
        restamp(batch, offset)
        for slot in slots:
            cache.insert(slot, batch, 0, KIB, offset)
    objects = []
    for most in (1, batches):
        before = sys.getallocatedblocks()
        hit = cache.lookup(slots[0], 0, 1 << 62, most * KIB)
        objects.append(sys.getallocatedblocks() - before)
        assert hit is not None and hit.size_bytes == most * KIB
        hit.release()
    return (objects[1] - objects[0]) / (batches - 1)


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=("speed", "density"))
    options = parser.parse_args()
    rows: list[Row] = []
    if options.only != "density":
        rows += measure_insert(options.rounds, 64 * KIB) + measure_insert(options.rounds, KIB)
        rows += measure_touch(options.rounds) + measure_straight(options.rounds)
        rows += measure_c(min(3, options.rounds)) + measure_lookup(options.rounds)
    if options.only != "speed":
        rows += density.measure()
    print(
        f"Python {platform.python_version()}, {platform.machine()}, medians of {options.rounds} (range)\n"
    )
    print("| what | measured | goal |\n| --- | --- | --- |")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
