"""When each fetched offset was stored, by the log itself: an as-of join of fetches to the runs of stored batches.

Owns how old bytes were when they were asked for: for each fetch that carried records, the size of the smallest FIFO of
bytes that would have hit it, as two bounds. Must not know the curve or `cache.size`. Invariants: a FIFO of at least
`most` bytes hits, one below `least` misses; `most` is null where no size is known to hit; both are the same where the
log says when the batch was stored; what a fetch line says itself is not joined; no task holds one partition's fetches.

| kind | least and most |
| --- | --- |
| dated | the fetch line, or the run of batches that holds the offset, says when the batch was stored |
| never | both null: the boot's log is whole, and no batch at this offset was stored in it |
| unknown | it may have been stored before the log begins, or in missing lines: `least` is what has passed since |

A clock is that of stored bytes, all partitions, of one boot; fetches of workers have their keeper's. The size that hits
is the clock at the fetch less the clock before the batch: the batch itself is part of it.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from spark_audit.tables import clock_of, is_observed

AGES_SINCE: Final = 3
"""The version from which on hits say their age, the batch itself included."""
DATED, NEVER, UNKNOWN = "dated", "never", "unknown"
BUCKETS_A_DOUBLING: Final = 256
"""Ages are summed in buckets of 0.3 %; of each the least and the greatest age are kept, and what lies between is
taken to lie evenly (`sizing`).
"""
LEAST_BATCH_BYTES: Final = 61
"""The shortest batch: a head without records (DefaultRecordBatch.RECORD_BATCH_OVERHEAD)."""
BUCKET_PIECES: Final = 4
"""Pieces of runs in a bucket of offsets, on average: fewer would be copied into more buckets each."""
CARRIED: Final = (
    *("boot", "v", "ts", "topic", "partition", "offset", "result", "wouldHit", "bytes"),
    *("ageBytes", "admittedBytes"),
)
"""Columns of a fetch that its age is returned with."""


class LogStart(NamedTuple):
    """Of a boot's log: the clock since which no line is missing, 0 where lines are missing in between; and whether
    none is missing at all.
    """

    boot: str
    clock: int
    is_whole: bool


def find_log_starts(boots: Iterable[Mapping[str, Any]]) -> list[LogStart]:
    """One for each row of `tables.boots`. A log is whole if it begins with the boot's first file, when nothing was
    stored yet, and neither a file nor a line is missing that its `log` lines count.
    """
    return [_judge_start(row) for row in boots]


def _judge_start(row: Mapping[str, Any]) -> LogStart:
    clock, first = row["clockFirst"] or 0, row["sequenceFirst"] or 0
    files = (row["sequenceLast"] or 0) - first + 1
    is_gapless = first > 0 and row["sequences"] == files and not row["droppedLines"]
    has_all = is_gapless and first == 1 and (row["schemaVersion"] < AGES_SINCE or clock == 0)
    return LogStart(row["boot"], clock if is_gapless else 0, has_all)


def build_ages(fetches: DataFrame, segments: DataFrame, starts: list[LogStart]) -> DataFrame:
    """Fetches that carried records and were hits, misses or observed: CARRIED, `kind`, `least` and `most`. `boot` is
    whose clock they have.
    `segments`: of `build_segments`, read twice and worth caching.
    """
    return say_ages(fetches).unionByName(find_ages(fetches, segments, starts))


def say_ages(fetches: DataFrame) -> DataFrame:
    """Those of `build_ages` whose line says the age itself: hits, from version 3 on. Nothing is joined."""
    said = _served(fetches).where(_is_said())
    return said.select(
        *CARRIED,
        F.lit(DATED).alias("kind"),
        F.col("ageBytes").alias("least"),
        F.col("ageBytes").alias("most"),
    )


def find_ages(fetches: DataFrame, segments: DataFrame, starts: list[LogStart]) -> DataFrame:
    """The others: joined to what was stored, in any file of the boot's log."""
    return _date(_served(fetches).where(~_is_said()), segments, starts)


def sum_ages(ages: DataFrame) -> DataFrame:
    """Bytes and number of fetches by topic, boot, kind and buckets of both bounds, with the least and the greatest of
    each. There are some thousands of buckets, however many fetches.
    """
    buckets = {of: _bucket_of(F.col(of)).alias(f"{of}Bucket") for of in ("most", "least")}
    bucketed = ages.select("topic", "boot", "kind", "bytes", "most", "least", *buckets.values())
    return bucketed.groupBy("topic", "boot", "kind", "mostBucket", "leastBucket").agg(
        *(of(name).alias(f"{name}_{of.__name__}") for name in buckets for of in (F.min, F.max)),
        F.sum("bytes").alias("bytes"),
        F.count("*").alias("partitions"),
    )


def _bucket_of(age: Column) -> Column:
    return F.floor(F.log2(F.greatest(age, F.lit(1))) * BUCKETS_A_DOUBLING).cast("int")


def _served(fetches: DataFrame) -> DataFrame:
    return fetches.where(
        (F.col("result").isin("hit", "miss") | is_observed()) & (F.col("bytes") > 0)
    ).withColumns({"of": F.coalesce("topicId", "topic"), "boot": clock_of()})


def _is_said() -> Column:
    is_hit = (F.col("result") == "hit") | (F.coalesce("wouldHit", F.lit(0)) > 0)
    return (F.col("v") >= AGES_SINCE) & F.col("ageBytes").isNotNull() & is_hit


def build_segments(blocks: DataFrame) -> DataFrame:
    """Straight pieces of the runs: offsets [`from`, `to`) of a partition, and the clock before the batch at each end,
    as two bounds (`low`, `lowTo`, `high`, `highTo`). In version 3 they are the same. Before it a line says only when
    it was written: its batches were stored after the partition's line before it.
    """
    runs = blocks.select(
        "boot",
        F.coalesce("topicId", "topic").alias("of"),
        "partition",
        *("baseOffset", "nextOffset", "bytes", "admittedBytes", "beganBytes", "endedBytes"),
        F.coalesce("points", F.array().cast("array<bigint>")).alias("points"),
    )
    said = runs.where(F.col("beganBytes").isNotNull())
    place, clock = (
        F.expr("filter(points, (one, i) -> i % 2 = 0)"),
        F.expr("filter(points, (one, i) -> i % 2 = 1)"),
    )
    offsets = F.concat(
        F.array("baseOffset"),
        F.transform(place, lambda one: one + F.col("baseOffset")),
        F.array("nextOffset"),
    )
    clocks = F.concat(
        F.array("beganBytes"),
        F.transform(clock, lambda one: one + F.col("beganBytes")),
        F.array("endedBytes"),
    )
    ends = said.select("boot", "of", "partition", offsets.alias("offsets"), clocks.alias("clocks"))
    pieces = ends.select(
        "boot",
        "of",
        "partition",
        F.explode(
            F.transform(
                F.sequence(F.lit(1), F.size("offsets") - 1),
                lambda n: F.struct(
                    F.col("offsets")[n - 1].alias("from"),
                    F.col("offsets")[n].alias("to"),
                    F.col("clocks")[n - 1].alias("low"),
                    F.col("clocks")[n].alias("lowTo"),
                ),
            )
        ).alias("one"),
    ).select("boot", "of", "partition", "one.*")
    exact = pieces.withColumns({"high": F.col("low"), "highTo": F.col("lowTo")})
    return exact.unionByName(_estimate(runs.where(F.col("beganBytes").isNull()))).where(
        F.col("to") > F.col("from")
    )


def _estimate(runs: DataFrame) -> DataFrame:
    """Pieces of runs of versions 1 and 2. One window over a partition's block lines, which are few."""
    order = Window.partitionBy("boot", "of", "partition").orderBy("admittedBytes", "baseOffset")
    began = F.coalesce(F.lag("admittedBytes").over(order), F.lit(0))
    stored = F.col("admittedBytes") - F.col("bytes")
    return runs.select(
        "boot",
        "of",
        "partition",
        F.col("baseOffset").alias("from"),
        F.col("nextOffset").alias("to"),
        F.least(began, stored).alias("low"),
        (F.least(began, stored) + F.col("bytes")).alias("lowTo"),
        stored.alias("high"),
        F.col("admittedBytes").alias("highTo"),
    )


def _date(asked: DataFrame, segments: DataFrame, starts: list[LogStart]) -> DataFrame:
    """The join. A partition's offsets are cut into buckets that hold about BUCKET_PIECES each, whose width goes to all
    tasks: one number for each partition. Where many fetches meet in one bucket Spark divides them (`session`, skew). Of
    the pieces that hold an offset and were stored before the fetch, the latest counts.
    """
    key = ["boot", "of", "partition"]
    widths = segments.groupBy(*key).agg(
        F.greatest(
            F.lit(1), F.ceil(BUCKET_PIECES * (F.max("to") - F.min("from")) / F.count("*"))
        ).alias("width")
    )
    first, last = (
        F.floor(F.col("from") / F.col("width")),
        F.floor((F.col("to") - 1) / F.col("width")),
    )
    pieces = segments.join(F.broadcast(widths), key).select(
        _place_of().alias("place"),
        *("from", "to", "low", "lowTo", "high", "highTo"),
        F.explode(F.sequence(first, last)).alias("bucket"),
    )
    places = asked.join(F.broadcast(widths), key, "left").select(
        F.monotonically_increasing_id().alias("row"),
        F.struct(*CARRIED).alias("asked"),
        *("offset", "admittedBytes"),
        _place_of().alias("place"),
        F.floor(F.col("offset") / F.col("width")).alias("bucket"),
    )
    is_held = (F.col("from") <= F.col("offset")) & (F.col("to") > F.col("offset"))
    same = [places[name] == pieces[name] for name in ("place", "bucket")]
    is_before = _clock_at("low") < F.col("admittedBytes")
    met = places.join(pieces, [*same, is_held, is_before], "left")
    clocks = F.when(
        F.col("from").isNotNull(),
        F.struct(_clock_at("high").alias("high"), _clock_at("low").alias("low")),
    )
    found = (
        met.select("row", "asked", clocks.alias("clocks"))
        .groupBy("row")
        .agg(F.first("asked").alias("asked"), F.max("clocks").alias("piece"))
        .select("asked.*", "piece")
    )
    known = asked.sparkSession.createDataFrame(
        starts or [LogStart("", 0, False)], "boot string, startClock long, isWhole boolean"
    )
    judged = found.join(F.broadcast(known), "boot", "left").withColumns(_bounds())
    return judged.select(*CARRIED, "kind", "least", "most")


def _place_of() -> Column:
    return F.xxhash64("boot", "of", "partition")


def _clock_at(side: str) -> Column:
    """The clock at the offset: between the piece's ends, by share. What is divided is no more than a cache's
    turnover.
    """
    share = (F.col("offset") - F.col("from")) / (F.col("to") - F.col("from"))
    return F.col(side) + F.floor((F.col(f"{side}To") - F.col(side)) * share)


def _bounds() -> dict[str, Column]:
    """`kind`, `least` and `most` of a fetch that was joined. What a fetch line of version 1 or 2 says leaves its first
    batch out, which is as short as a head or as long as the fetch.
    """
    is_new, age = F.col("v") >= AGES_SINCE, F.col("ageBytes")
    has_piece = F.col("piece").isNotNull()
    is_hit = (F.col("result") == "hit") | (F.coalesce("wouldHit", F.lit(0)) > 0)
    now, least_batch = F.col("admittedBytes"), F.lit(LEAST_BATCH_BYTES)
    by_line = age.isNotNull() & (is_hit | ~has_piece)
    by_line_least = F.when(is_new, age).otherwise(age + least_batch)
    by_line_most = F.when(is_new, age).otherwise(age + F.col("bytes"))
    by_run_least = F.greatest(now - F.col("piece.high"), least_batch)
    by_run_most = F.greatest(now - F.col("piece.low"), least_batch)
    is_never = F.coalesce(F.col("isWhole"), F.lit(False))
    passed = F.when(F.col("startClock") > 0, now - F.col("startClock")).otherwise(0)
    kind = F.when(by_line | has_piece, DATED).when(is_never, NEVER).otherwise(UNKNOWN)
    return {
        "kind": kind,
        "least": F.when(by_line, by_line_least)
        .when(has_piece, by_run_least)
        .when(~is_never, F.coalesce(passed, F.lit(0))),
        "most": F.when(by_line, by_line_most).when(has_piece, by_run_most),
    }
