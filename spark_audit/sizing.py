"""The sizing curve: what a cache of each size would have hit, from the ages in the log.

Owns the model. A FIFO of size S hits exactly when the age in bytes of the fetch offset is below S, so the
curve is exact, not simulated. Must not know files or the report. Invariants: the population is every byte of
hits, misses and what was only observed (other passes are not for the cache to serve); bytes of unknown age
(never admitted, or older than the ghost) are misses at every size, and counted apart; the curve grows with S
and ends at the achievable bytes, those of known age.
"""

import math
from typing import NamedTuple

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_audit.tables import is_observed

SMALLEST_BYTES = 1 << 12
STEPS_PER_DOUBLING = 4
TARGETS = (0.9, 0.95, 0.99, 0.999)


class CurvePoint(NamedTuple):
    """What a cache of `size_bytes` hits: bytes, and partitions-of-fetch that carried bytes."""

    size_bytes: int
    hit_bytes: int
    hit_partitions: int


class Sizing(NamedTuple):
    """The curve at sampled sizes, ascending, and the exact smallest sizes for TARGETS of known_bytes."""

    points: tuple[CurvePoint, ...]
    needed_bytes: dict[float, int]
    known_bytes: int
    unknown_bytes: int
    known_partitions: int
    unknown_partitions: int

    @property
    def total_bytes(self) -> int:
        """Bytes of hits and misses."""
        return self.known_bytes + self.unknown_bytes

    def hit_ratio(self, hit_bytes: int) -> float | None:
        """Share of all bytes of hits and misses; None if there are none."""
        return hit_bytes / self.total_bytes if self.total_bytes else None


def plan_sizes(greatest_age: int, current_bytes: int | None) -> tuple[int, ...]:
    """Log-spaced sizes up to one that holds `greatest_age`, the current size among them."""
    sizes, step = set(), 0
    while True:
        size_bytes = round(SMALLEST_BYTES * 2 ** (step / STEPS_PER_DOUBLING))
        sizes.add(size_bytes)
        if size_bytes > greatest_age and size_bytes >= (current_bytes or 0):
            break
        step += 1
    if current_bytes:
        sizes.add(current_bytes)
    return tuple(sorted(sizes))


def build_sizing(fetches: DataFrame, current_bytes: int | None) -> Sizing:
    """A few small jobs over the fetch lines (`result`, `bytes`, `ageBytes`), which should be cached."""
    served = fetches.where(
        (F.col("result").isin("hit", "miss") | is_observed()) & (F.col("bytes") > 0)
    ).select("bytes", "ageBytes")
    known = served.where(F.col("ageBytes").isNotNull())
    overall = served.agg(
        F.max("ageBytes").alias("greatest"),
        F.sum(F.when(F.col("ageBytes").isNull(), F.col("bytes"))).alias("unknownBytes"),
        F.count(F.when(F.col("ageBytes").isNull(), 1)).alias("unknownPartitions"),
    ).first()
    assert overall is not None
    sizes = plan_sizes(overall["greatest"] or 0, current_bytes)
    points = tuple(_curve(known, sizes))
    achievable = points[-1]
    return Sizing(
        points=points,
        needed_bytes=_needed(known, points),
        known_bytes=achievable.hit_bytes,
        unknown_bytes=overall["unknownBytes"] or 0,
        known_partitions=achievable.hit_partitions,
        unknown_partitions=overall["unknownPartitions"],
    )


def _curve(known: DataFrame, sizes: tuple[int, ...]) -> list[CurvePoint]:
    """Each age falls into the interval [previous size, size) of the first size that it is below."""
    intervals = list(zip((0, *sizes), sizes, strict=False))
    bounds = known.sparkSession.createDataFrame(intervals, "lower long, size long")
    within = (F.col("ageBytes") >= F.col("lower")) & (F.col("ageBytes") < F.col("size"))
    grouped = known.join(F.broadcast(bounds), within).groupBy("size")
    sums = grouped.agg(F.sum("bytes").alias("bytes"), F.count("*").alias("partitions")).collect()
    by_size = {row["size"]: (row["bytes"], row["partitions"]) for row in sums}
    points, hit_bytes, hit_partitions = [], 0, 0
    for size_bytes in sizes:
        more_bytes, more_partitions = by_size.get(size_bytes, (0, 0))
        hit_bytes, hit_partitions = hit_bytes + more_bytes, hit_partitions + more_partitions
        points.append(CurvePoint(size_bytes, hit_bytes, hit_partitions))
    return points


def _needed(known: DataFrame, points: tuple[CurvePoint, ...]) -> dict[float, int]:
    """The age at which the running sum first reaches each target, plus one; in that interval alone."""
    achievable_bytes = points[-1].hit_bytes
    if achievable_bytes == 0:
        return {}
    wanted = []
    for target in TARGETS:
        enough_bytes = math.ceil(target * achievable_bytes)
        index = next(i for i, point in enumerate(points) if point.hit_bytes >= enough_bytes)
        below = points[index - 1] if index else CurvePoint(0, 0, 0)
        missing_bytes = enough_bytes - below.hit_bytes
        wanted.append((target, below.size_bytes, points[index].size_bytes, missing_bytes))
    targets = known.sparkSession.createDataFrame(
        wanted, "target double, lower long, upper long, missing long"
    )
    within = (F.col("ageBytes") >= F.col("lower")) & (F.col("ageBytes") < F.col("upper"))
    inside = known.join(F.broadcast(targets), within)
    ages = inside.groupBy("target", "missing", "ageBytes").agg(F.sum("bytes").alias("bytes"))
    running = F.sum("bytes").over(Window.partitionBy("target").orderBy("ageBytes"))
    reached = ages.withColumn("running", running).where(F.col("running") >= F.col("missing"))
    rows = reached.groupBy("target").agg(F.min("ageBytes").alias("age")).collect()
    return {row["target"]: row["age"] + 1 for row in sorted(rows)}
