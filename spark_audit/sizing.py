"""The sizing curve: what a cache of each size would have hit.

Owns the curve, from the ages of what was fetched (`ages`) and the sizes that hold them (`calibration`). Must not know
files or the report. Invariants: the population is every byte of hits, misses and what was only observed (other passes
are not for the cache to serve); nothing is called a hit of which that is not known: between `hit_bytes` and
`possible_bytes` lies what is unknown; both grow with the size; bytes that were never stored are misses at every size.

A FIFO of S bytes hits exactly when the batch and all that was stored behind it are at most S bytes, so the curve is
exact, not simulated. A size is a value of `cache.size`; a cache of that size is like a FIFO of its `held_bytes`.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_audit.ages import DATED, NEVER, UNKNOWN
from spark_audit.calibration import LEAST_SIZE_BYTES, Calibration

STEPS_PER_DOUBLING: Final = 4
TARGETS: Final = (0.9, 0.95, 0.99, 0.999)
_MOST, _LEAST = "most", "least"
_MERGED: Final = {
    **{f"{side}_{of}": of for side in (_MOST, _LEAST) for of in ("min", "max")},
    "bytes": "sum",
    "partitions": "sum",
}
"""What is known of a bucket, and how that of two is one."""
_SPARK: Final = {"min": F.min, "max": F.max, "sum": F.sum}


class CurvePoint(NamedTuple):
    """What a cache of `size_bytes` (a value of `cache.size`, like a FIFO of `held_bytes`) hits: bytes, partitions of
    fetches that carried bytes, and the bytes that it may hit beside, which nothing dates.
    """

    size_bytes: int
    hit_bytes: int
    hit_partitions: int
    held_bytes: int
    possible_bytes: int


class NeededSize(NamedTuple):
    """The least `cache.size` that hits `target` of what is known to be hit by some size, and the share of all bytes
    of hits and misses that this is: at least `hit_ratio`, at most `possible_ratio`.
    """

    target: float
    size_bytes: int
    held_bytes: int
    hit_ratio: float
    possible_ratio: float


class Bucket(NamedTuple):
    """Fetches whose ages lie between two: their bytes and number."""

    least: int
    most: int
    bytes: int
    partitions: int


class Ages:
    """Sums by age, ascending, to be asked for every size."""

    def __init__(self, buckets: Iterable[Bucket]) -> None:
        self._buckets = sorted(buckets)
        self._most = [bucket.most for bucket in self._buckets]
        self._bytes = [0, *accumulate(bucket.bytes for bucket in self._buckets)]
        self._partitions = [0, *accumulate(bucket.partitions for bucket in self._buckets)]

    @property
    def total_bytes(self) -> int:
        """Of all ages."""
        return self._bytes[-1]

    @property
    def greatest(self) -> int:
        """The greatest age, 0 where there is none."""
        return self._most[-1] if self._most else 0

    def within(self, size_bytes: int) -> tuple[int, int]:
        """Bytes and number of what is at most so old."""
        whole = bisect_left(self._most, size_bytes + 1)
        found = self._bytes[whole], self._partitions[whole]
        if whole == len(self._buckets) or self._buckets[whole].least > size_bytes:
            return found
        bucket = self._buckets[whole]
        share = (size_bytes - bucket.least + 1) / (bucket.most - bucket.least + 1)
        return found[0] + int(bucket.bytes * share), found[1] + int(bucket.partitions * share)

    def find_age(self, enough_bytes: int) -> int:
        """The least size within which so many bytes lie; there must be as many."""
        number = max(1, bisect_left(self._bytes, enough_bytes))
        bucket = self._buckets[number - 1]
        missing = (enough_bytes - self._bytes[number - 1]) / max(1, bucket.bytes)
        return bucket.least + math.ceil((bucket.most - bucket.least) * min(1.0, max(0.0, missing)))


class Sizing(NamedTuple):
    """The curve at sampled sizes, ascending, and the least sizes for TARGETS.

    All bytes of hits and misses are `known_bytes` (the log dates them: some size hits them), `never_bytes` (never
    stored while the log was written: no size hits them) and `unknown_bytes` (of which the log cannot say).
    `calibration` says which `cache.size` holds how much of this load.
    """

    points: tuple[CurvePoint, ...]
    needed: tuple[NeededSize, ...]
    known_bytes: int
    never_bytes: int
    unknown_bytes: int
    known_partitions: int
    never_partitions: int
    unknown_partitions: int
    calibration: Calibration
    ages: Ages
    possible: Ages

    @property
    def total_bytes(self) -> int:
        """Bytes of hits and misses."""
        return self.known_bytes + self.never_bytes + self.unknown_bytes

    @property
    def needed_bytes(self) -> dict[float, int]:
        """The least `cache.size` for each target."""
        return {one.target: one.size_bytes for one in self.needed}

    def hit_ratio(self, hit_bytes: int) -> float | None:
        """Share of all bytes of hits and misses; None if there are none."""
        return hit_bytes / self.total_bytes if self.total_bytes else None

    def point_at(self, size_bytes: int) -> CurvePoint:
        """The curve at any `cache.size`."""
        return _point(size_bytes, self.calibration, self.ages, self.possible)

    def find_size(self, hit_ratio: float) -> int | None:
        """The least `cache.size` that hits this share of all bytes of hits and misses; None where it is not known
        that any does.
        """
        enough_bytes = math.ceil(hit_ratio * self.total_bytes)
        if not 0 < enough_bytes <= self.known_bytes:
            return None
        return self.calibration.find_size(self.ages.find_age(enough_bytes))


def plan_sizes(
    greatest_age: int, current_bytes: int | None, calibration: Calibration
) -> tuple[int, ...]:
    """Log-spaced sizes up to one that holds `greatest_age`, the current size among them."""
    sizes, step = set(), 0
    while True:
        size_bytes = round(LEAST_SIZE_BYTES * 2 ** (step / STEPS_PER_DOUBLING))
        sizes.add(size_bytes)
        is_enough = calibration.held_bytes(size_bytes) >= greatest_age
        if is_enough and size_bytes >= (current_bytes or 0):
            break
        step += 1
    if current_bytes:
        sizes.add(current_bytes)
    return tuple(sorted(sizes))


class Curves(NamedTuple):
    """The curve of all that was fetched; of each topic that was asked for, by name: what a cache that all share would
    hit of it; and of one boot.
    """

    whole: Sizing
    topics: dict[str, Sizing]
    boot: Sizing


def build_curves(
    ages: DataFrame,
    calibration: Calibration,
    current_bytes: int | None,
    topics: Sequence[str] = (),
    boot: str | None = None,
) -> Curves:
    """One job over `ages`, of `ages.sum_ages`. `topics`: at most a page of them; `boot` None: the curve of the boot is
    of nothing.
    """
    topic = F.when(F.col("topic").isin(*topics), F.col("topic")) if topics else F.lit(None)
    marked = ages.withColumns(
        {"topic": topic.cast("string"), "isAsked": F.col("boot").eqNullSafe(F.lit(boot))}
    )
    sums = marked.groupBy("topic", "isAsked", "kind", "mostBucket", "leastBucket")
    rows = sums.agg(*(_SPARK[of](name).alias(name) for name, of in _MERGED.items())).toArrow()
    return Curves(
        _fit(rows, calibration, current_bytes),
        {
            name: _fit(rows.filter(pc.equal(rows["topic"], name)), calibration, current_bytes)
            for name in topics
        },
        _fit(rows.filter(rows["isAsked"]), calibration, None),
    )


def _fit(rows: Any, calibration: Calibration, current_bytes: int | None) -> Sizing:
    """`rows`: an Arrow table of sums by buckets, of any topics and boots."""
    most, possible = (Ages(_list_buckets(rows, side)) for side in (_MOST, _LEAST))
    totals = {}
    for kind in (DATED, NEVER, UNKNOWN):
        of_kind = rows.filter(pc.equal(rows["kind"], kind))
        totals[kind] = [pc.sum(of_kind[name]).as_py() or 0 for name in ("bytes", "partitions")]
    sizes = plan_sizes(most.greatest, current_bytes, calibration)
    total_bytes = sum(total[0] for total in totals.values())
    return Sizing(
        points=tuple(_point(size_bytes, calibration, most, possible) for size_bytes in sizes),
        needed=_needed(most, possible, calibration, total_bytes),
        known_bytes=totals[DATED][0],
        never_bytes=totals[NEVER][0],
        unknown_bytes=totals[UNKNOWN][0],
        known_partitions=totals[DATED][1],
        never_partitions=totals[NEVER][1],
        unknown_partitions=totals[UNKNOWN][1],
        calibration=calibration,
        ages=most,
        possible=possible,
    )


def _list_buckets(rows: Any, side: str) -> list[Bucket]:
    """One for each bucket of `side` that has an age."""
    names = (f"{side}_min", f"{side}_max", "bytes", "partitions")
    dated = rows.filter(pc.is_valid(rows[names[0]]))
    merged = dated.group_by(f"{side}Bucket").aggregate([(name, _MERGED[name]) for name in names])
    columns = [merged[f"{name}_{_MERGED[name]}"].to_pylist() for name in names]
    return [Bucket(*values) for values in zip(*columns, strict=True)]


def _point(size_bytes: int, calibration: Calibration, most: Ages, possible: Ages) -> CurvePoint:
    held_bytes = calibration.held_bytes(size_bytes)
    hit_bytes, partitions = most.within(held_bytes)
    beside = possible.within(held_bytes)[0]
    return CurvePoint(size_bytes, hit_bytes, partitions, held_bytes, max(hit_bytes, beside))


def _needed(
    most: Ages, possible: Ages, calibration: Calibration, total_bytes: int
) -> tuple[NeededSize, ...]:
    if not most.total_bytes:
        return ()
    needed = []
    for target in TARGETS:
        age = most.find_age(math.ceil(target * most.total_bytes))
        size_bytes = calibration.find_size(age)
        point = _point(size_bytes, calibration, most, possible)
        ratios = point.hit_bytes / total_bytes, point.possible_bytes / total_bytes
        needed.append(NeededSize(target, size_bytes, point.held_bytes, *ratios))
    return tuple(needed)
