"""The policies against libcachesim: what it counted on the same traces, and itself where it is installed."""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest

from spark_audit.what_if.policies import POLICIES, ObjectKey
from spark_audit.what_if.replay import (
    EVENTS_MAX,
    HASH_RANGE,
    Trace,
    TraceEvent,
    WhatIf,
    hit_ratio,
    plan_stride,
    plan_touch_rate,
    replay_all,
)

MASK = (1 << 64) - 1
SAMPLED_WITHIN = 0.005

SIZES = (100_000, 1_000_000, 5_000_000)
LIBCACHESIM = {"FIFO": "FIFO", "LRU": "LRU", "S3-FIFO": "S3FIFO"}


class Counted(NamedTuple):
    """Bytes that libcachesim 0.3.5 hit of `build_trace(seed)`, at each of SIZES."""

    seed: int
    policy: str
    admits_laggards: bool
    hit_bytes: tuple[int, ...]


COUNTED: tuple[Counted, ...] = (
    Counted(1, "FIFO", False, (2242611, 4879331, 8347656)),
    Counted(1, "FIFO", True, (4155708, 6766239, 8347656)),
    Counted(1, "LRU", False, (4103764, 6820359, 8347656)),
    Counted(1, "LRU", True, (4607327, 6873549, 8347656)),
    Counted(1, "S3-FIFO", False, (4064627, 6749240, 8347656)),
    Counted(1, "S3-FIFO", True, (3926948, 6772647, 8347656)),
    Counted(2, "FIFO", False, (2227797, 4796149, 8297313)),
    Counted(2, "FIFO", True, (4268104, 6783606, 8297313)),
    Counted(2, "LRU", False, (4453833, 6830732, 8297313)),
    Counted(2, "LRU", True, (4744070, 6892066, 8297313)),
    Counted(2, "S3-FIFO", False, (4133677, 6787260, 8297313)),
    Counted(2, "S3-FIFO", True, (4044202, 6794632, 8297313)),
)


def build_trace(seed: int, partitions: int = 20, writes: int = 8_000) -> list[TraceEvent]:
    """Objects of unequal sizes, written in order of their partitions. Tails, laggards and old favourites are read."""
    rng = random.Random(seed)
    events: list[TraceEvent] = []
    sizes: list[list[int]] = [[] for _ in range(partitions)]
    for _ in range(writes):
        partition = rng.randrange(partitions)
        size_bytes = rng.randint(100, 900)
        events.append(TraceEvent((partition, len(sizes[partition])), size_bytes, 0))
        sizes[partition].append(size_bytes)
        for _ in range(2):
            partition = rng.randrange(partitions)
            written = sizes[partition]
            if not written:
                continue
            if rng.random() < 0.7:
                back = int(rng.expovariate(1 / rng.choice((2, 100, 800))))
                number = max(0, len(written) - 1 - back)
            else:
                number = int(len(written) * rng.random() ** 4)
            events.append(TraceEvent((partition, number), written[number], written[number]))
    return events


def count_read(events: list[TraceEvent]) -> int:
    return sum(event.read_bytes for event in events)


def run_libcachesim(
    kind: Any, events: list[TraceEvent], size_bytes: int, admits_laggards: bool, make: Any
) -> int:
    """A write is a `get`; so is a read where laggards are admitted, else a `find`."""
    cache, hits = kind(cache_size=size_bytes), 0
    for (partition, number), object_bytes, read_bytes in events:
        request = make()
        request.obj_id, request.obj_size = partition * 1_000_003 + number + 1, object_bytes
        if not read_bytes or admits_laggards:
            is_hit = cache.get(request)
        else:
            is_hit = cache.find(request, True) is not None
        hits += read_bytes if is_hit else 0
    return hits


@pytest.mark.parametrize(
    "counted", COUNTED, ids=lambda one: f"{one.policy}-{one.admits_laggards}-{one.seed}"
)
def test_hits_are_what_libcachesim_counted(counted: Counted) -> None:
    events = build_trace(counted.seed)
    for size_bytes, hit_bytes in zip(SIZES, counted.hit_bytes, strict=True):
        ratio = hit_ratio(Trace(events, 1.0), counted.policy, size_bytes, counted.admits_laggards)
        assert ratio is not None
        assert round(ratio * count_read(events)) == hit_bytes


@pytest.mark.parametrize("policy", LIBCACHESIM)
@pytest.mark.parametrize("admits_laggards", [False, True])
def test_hits_are_those_of_libcachesim_itself(policy: str, admits_laggards: bool) -> None:
    other = pytest.importorskip(
        "libcachesim", reason="libcachesim is not installed: pip install libcachesim"
    )
    events = build_trace(7)
    for size_bytes in (50_000, 700_000):
        theirs = run_libcachesim(
            getattr(other, LIBCACHESIM[policy]), events, size_bytes, admits_laggards, other.Request
        )
        ratio = hit_ratio(Trace(events, 1.0), policy, size_bytes, admits_laggards)
        assert ratio is not None and round(ratio * count_read(events)) == theirs


class SlowPlru:
    """Partitions in a list, the one read longest ago first."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.order: list[int] = []
        self.held: dict[int, OrderedDict[int, int]] = {}

    def read(self, key: ObjectKey) -> bool:
        if key[0] in self.order:
            self.order.remove(key[0])
            self.order.append(key[0])
        return key[1] in self.held.get(key[0], {})

    def insert(self, key: ObjectKey, size_bytes: int) -> None:
        while sum(sum(one.values()) for one in self.held.values()) + size_bytes > self.size_bytes:
            oldest = self.held[self.order[0]]
            del oldest[next(iter(oldest))]
            if not oldest:
                del self.held[self.order.pop(0)]
        if key[0] not in self.held:
            self.held[key[0]] = OrderedDict()
            self.order.append(key[0])
        self.held[key[0]][key[1]] = size_bytes


@pytest.mark.parametrize("admits_laggards", [False, True])
def test_plru_is_its_sentence(admits_laggards: bool) -> None:
    events = build_trace(3, partitions=6, writes=600)
    for size_bytes in (5_000, 60_000):
        slow, hits = SlowPlru(size_bytes), 0
        for key, object_bytes, read_bytes in events:
            is_hit = slow.read(key)
            hits += read_bytes if is_hit else 0
            if not is_hit and (not read_bytes or admits_laggards):
                slow.insert(key, object_bytes)
        ratio = hit_ratio(Trace(events, 1.0), "PLRU", size_bytes, admits_laggards)
        assert ratio is not None and round(ratio * count_read(events)) == hits


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_larger_than_the_cache_stays_out(policy: str) -> None:
    cache = POLICIES[policy](1000)
    cache.insert((0, 0), 1001)
    assert not cache.read((0, 0))
    cache.insert((0, 1), 50)
    cache.insert((0, 1), 50)
    assert cache.read((0, 1))


def build_consumers(seed: int, partitions: int = 50, writes: int = 250_000) -> list[TraceEvent]:
    """What consumers do: each object is read at the tail, by one that lags, and now and then by a replay in order."""
    rng = random.Random(seed)
    events: list[TraceEvent] = []
    sizes: list[list[int]] = [[] for _ in range(partitions)]
    weights = [(1 + number) ** -0.5 for number in range(partitions)]
    replays = [[rng.randrange(partitions), 0] for _ in range(4)]
    for partition in rng.choices(range(partitions), weights, k=writes):
        written, size_bytes = sizes[partition], rng.randint(100, 900)
        number = len(written)
        written.append(size_bytes)
        events.append(TraceEvent((partition, number), size_bytes, 0))
        events.append(TraceEvent((partition, number), size_bytes, size_bytes))
        lagging = number - int(rng.expovariate(1 / rng.choice((50, 1000, 3000))))
        if lagging >= 0:
            events.append(TraceEvent((partition, lagging), written[lagging], written[lagging]))
        replay = rng.choice(replays)
        old = sizes[replay[0]]
        if replay[1] < len(old):
            events.append(TraceEvent((replay[0], replay[1]), old[replay[1]], old[replay[1]]))
            replay[1] += 1
        else:
            replay[0] = rng.randrange(partitions)
            replay[1] = int(len(sizes[replay[0]]) * rng.random() / 2)
    return events


def hash_of(key: ObjectKey) -> int:
    """splitmix64 of partition and number."""
    mixed = (key[0] * 0x9E3779B97F4A7C15 + key[1] * 0xD1B54A32D192ED03) & MASK
    mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & MASK
    mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & MASK
    return (mixed ^ mixed >> 31) % HASH_RANGE


def sample(large: list[TraceEvent], stride: int) -> Trace:
    """As `trace.build_sample` draws: every n-th object of each partition, and touches by the others."""
    touch_place = plan_touch_rate(len(large)) * HASH_RANGE
    kept = []
    for at, event in enumerate(large):
        partition, number = event.key
        if (number + hash_of((partition, 1 << 50))) % stride == 0:
            kept.append(event)
        elif hash_of((at, 1 << 40)) < touch_place:
            kept.append(TraceEvent((partition, 0), 0, 0))
    return Trace(kept, 1 / stride)


@pytest.mark.parametrize(
    ("writes", "strides"),
    [
        (100_000, [5]),
        pytest.param(1_000_000, [10, 100], marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    ],
    ids=["a small log", "a large log"],
)
def test_a_sample_of_objects_is_near_the_whole(writes: int, strides: list[int]) -> None:
    """By the large log's own rate, one in ten, as by one in five of the small one. One in a hundred leaves PLRU two
    dozen objects of a partition, of which it asks more: a log of which the replay takes so few has ten times as many.
    """
    large, sizes = build_consumers(11, writes=writes), [(0, 60 * writes), (1, 240 * writes)]
    whole = replay_all(Trace(large, 1.0), sizes, lambda held_bytes: None)
    fifo = {one.held_bytes: one.hit_ratio for one in whole if one[:2] == ("FIFO", False)}
    for stride in strides:
        sampled = sample(large, stride)
        events = len(sampled.without_touches.events)
        assert events == pytest.approx(len(large) / stride, rel=0.02) and events <= EVENTS_MAX
        found = replay_all(sampled, sizes, fifo.get)
        for exact, one in zip(whole, found, strict=True):
            assert exact[:4] == one[:4]
            within = 2 * SAMPLED_WITHIN if (stride, one.policy) == (100, "PLRU") else SAMPLED_WITHIN
            assert one.hit_ratio == pytest.approx(exact.hit_ratio, abs=within), exact
        report = WhatIf("b", events, sampled.rate, found)
        assert report.worth(found[0]) == 0
        assert report.worth(found[2]) == found[2].hit_ratio - found[0].hit_ratio


def test_a_touch_keeps_a_partition_and_is_nothing_to_the_other_policies() -> None:
    events = [
        TraceEvent((0, 0), 60, 0),
        TraceEvent((1, 0), 40, 0),
        TraceEvent((0, 9), 0, 0),
        TraceEvent((7, 9), 0, 0),
        TraceEvent((2, 0), 10, 0),
        TraceEvent((0, 0), 60, 60),
    ]
    for policy, ratio in (("PLRU", 1.0), ("LRU", 0.0), ("FIFO", 0.0), ("S3-FIFO", 0.0)):
        assert hit_ratio(Trace(events, 0.5), policy, 200, False) == ratio
    assert len(Trace(events, 0.5).without_touches.events) == 4
    results = replay_all(Trace(events, 0.5), [(0, 200)], lambda held_bytes: None)
    assert [one.hit_ratio for one in results if one.policy == "PLRU"] == [1.0, 1.0]


def test_a_trace_is_sampled_beyond_what_is_replayed() -> None:
    counts = (0, 100_000, 400_000, 400_001, 40_000_000)
    assert [plan_stride(events) for events in counts] == [1, 1, 1, 2, 100]
    assert [plan_touch_rate(events) for events in (0, 500_000, 4_000_000)] == [1, 1, 0.25]


def test_nothing_read_has_no_ratio() -> None:
    assert hit_ratio(Trace([TraceEvent((0, 0), 5, 0)], 1.0), "LRU", 100, True) is None
