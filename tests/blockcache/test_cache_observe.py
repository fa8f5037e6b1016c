"""An observing cache: the ages, the evictions and the spans of a real one, in a fraction of its memory."""

import dataclasses
import random

import pytest

from blockcache.cache import BlockCache
from blockcache.results import Span
from tests.kit.cache_batches import FOREVER, HEADER_BYTES, TOPIC, build_batch, build_run, insert

KIB, MIB = 1024, 1024 * 1024
PARTITIONS = 12
OWN = ("lookups", "copied_lookups", "gathered_lookups")


def counted(cache: BlockCache) -> dict[str, int]:
    """All statistics that do not count lookups."""
    numbers = dataclasses.asdict(cache.statistics())
    return {name: value for name, value in numbers.items() if name not in OWN}


def step(source: random.Random, caches: tuple[BlockCache, BlockCache], ends: list[int]) -> None:
    """One random operation on both; what each says of it is the same."""
    i = min(int(source.paretovariate(0.5)) - 1, PARTITIONS - 1)
    slots = [cache.open(TOPIC, i) for cache in caches]
    what = source.random()
    both = list(zip(caches, slots, strict=True))
    if what < 0.01:
        from_offset = max(0, ends[i] - source.randrange(40))
        for cache, slot in both:
            cache.truncate(slot, from_offset)
        ends[i] = from_offset
    elif what < 0.02:
        for cache, slot in both:
            cache.advance_start(slot, max(0, ends[i] - 30))
    elif what < 0.025:
        for cache, slot in both:
            cache.drop(slot)
    else:
        batches, size, first = (
            source.randrange(1, 5),
            source.randrange(61, 6000),
            ends[i] + source.randrange(2),
        )
        run = build_run(first, batches, count=2, size=size)
        inserted = [insert(cache, slot, run) for cache, slot in both]
        assert inserted[0] == inserted[1]
        ends[i] = max(ends[i], inserted[0].next_offset)
    assert caches[0].eliminate() == caches[1].eliminate()


def test_ages_evictions_and_spans_are_those_of_a_real_cache() -> None:
    source = random.Random(5)
    real, observing = caches = BlockCache(MIB), BlockCache(MIB, observe=True)
    ends = [0] * PARTITIONS
    for number in range(4000):
        step(source, caches, ends)
        i = source.randrange(PARTITIONS)
        offset = max(0, ends[i] - source.randrange(400))
        slot, other = (cache.open(TOPIC, i) for cache in caches)
        assert real.age_bytes(slot, offset) == observing.age_bytes(other, offset)
        assert real.edges(slot, offset) == observing.edges(other, offset)
        asked = (
            offset,
            offset + source.randrange(400),
            source.randrange(50_000),
            source.random() < 0.5,
        )
        span, hit = observing.span(other, *asked), real.lookup(slot, *asked)
        assert real.span(slot, *asked) == span
        assert (hit is None) == (span is None)
        if hit is not None:
            assert span is not None
            assert (span.next_offset, span.size_bytes) == (hit.next_offset, hit.size_bytes)
            follows = observing.contiguous_end(other, hit.next_offset) > hit.next_offset
            assert span.is_cut == (follows and hit.next_offset < asked[1])
            hit.release()
        assert real.peek_head(slot, offset) == observing.peek_head(other, offset)
        if number % 100 == 0:
            assert counted(real) == counted(observing)
            observing.check()
    assert real.statistics().evicted_bytes > 5 * MIB
    assert real.statistics().start_moved_bytes > 0 < real.statistics().truncated_bytes


def test_nothing_can_be_looked_up_and_the_head_can_be_read() -> None:
    cache = BlockCache(MIB, observe=True)
    slot = cache.open(TOPIC, 0)
    insert(cache, slot, build_run(0, 3))
    assert cache.observes and cache.path is None
    assert cache.lookup(slot, 0, FOREVER, FOREVER) is None
    assert cache.span(slot, 0, FOREVER, FOREVER) == Span(3, 600, False)
    assert cache.span(slot, 1, 2, 1) == Span(2, 200, False)
    assert cache.span(slot, 1, 2, 1, False) == Span(1, 0, True)
    assert cache.span(slot, 9, FOREVER, FOREVER) is None
    assert (
        cache.peek_head(slot, 1) == build_batch(1)[:HEADER_BYTES]
        and cache.peek_head(slot, 3) is None
    )
    cache.close()


@pytest.mark.parametrize(("size", "share"), [(KIB, 0.27), (16 * KIB, 0.25), (256 * KIB, 0.03)])
def test_it_takes_a_fraction_of_the_memory(size: int, share: float) -> None:
    """Filled four times over: what eviction frees goes back to the system."""
    cache = BlockCache(32 * MIB, observe=True)
    slots = [cache.open(TOPIC, i) for i in range(100)]
    batches = [build_batch(offset, size=size) for offset in range(4 * 32 * MIB // size // 100 + 1)]
    for batch in batches:
        for slot in slots:
            cache.eliminate()
            insert(cache, slot, batch)
    assert cache.statistics().evicted_bytes > 90 * MIB
    assert cache.resident_bytes < share * 32 * MIB
    cache.check()


def test_prefault_touches_all_of_a_real_arena_and_nothing_of_an_observing_one() -> None:
    real, observing = BlockCache(4 * MIB), BlockCache(4 * MIB, observe=True)
    before = observing.resident_bytes
    for cache in (real, observing):
        slot = cache.open(TOPIC, 0)
        insert(cache, slot, build_run(0, 3))
        for at in range(0, 5 * MIB, 999_999):
            cache.prefault(at, 999_999)
        cache.prefault(64 * MIB, MIB)
        cache.check()
    assert real.resident_bytes == 4 * MIB
    assert observing.resident_bytes - before < 128 * KIB
    real.close()
    real.prefault(0, MIB)
    assert real.resident_bytes == 0
