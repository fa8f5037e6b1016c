"""What a report needs of the many rows, summed once: pure functions from DataFrame to DataFrame.

Owns the sums of rows of BULK_TYPES, by keys fine enough for every report of them. Must not know files, tables of lines
or the report. Invariants: the sums of two sets of rows, put one below the other, say of both what the rows say (counts,
sums, least and greatest values), so that rows that do not change are summed once; whole numbers alone are added up, so
that the order of rows does not matter; windows are of a length that divides the report's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_audit import profile
from spark_audit.ages import say_ages, sum_ages
from spark_audit.sections import build_sections
from spark_audit.tables import (
    BULK_TYPES,
    CLOCK_SKEW_MS,
    LAG_BANDS,
    LAG_TIMES,
    LAGGARD_MS,
    NO_CLIENT_ID,
    UNKNOWN_LAG,
    build_answered,
    build_places,
    floor_to,
    is_observed,
    micros_of,
    name_topics,
    step_of,
    sum_answered,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MEASURES: Final = ("bytes", "partitions", "emptyPartitions", "observedBytes", "wouldHitBytes")
_BOOT_KEYS: Final = ("boot", "connection", "clientId", "group", "result", "reason")


class SummedRows(NamedTuple):
    """Good rows, and the window by which some are summed."""

    lines: DataFrame
    window_ms: int

    def of(self, line_type: str) -> DataFrame:
        """The rows of one type."""
        return self.lines.where(F.col("type") == line_type)

    @property
    def answered(self) -> DataFrame:
        """Of all that was answered; see `tables.build_answered`."""
        return build_answered(self.of("fetch"), self.of("empty"))

    @property
    def places(self) -> DataFrame:
        """The same by partition and lag."""
        return build_places(self.of("fetch"), self.of("empty"))


def sum_boot_lines(lines: DataFrame) -> DataFrame:
    """By boot and type of BULK_TYPES, what `tables.boots` adds up."""
    began = F.when(F.col("type") == "block", F.coalesce("beganBytes", F.col("admittedBytes")))
    bulk = lines.where(F.col("type").isin(*BULK_TYPES))
    return bulk.groupBy("boot", "type").agg(
        F.max("v").alias("v"),
        F.min(F.coalesce("firstMs", "ts")).alias("firstMs"),
        F.max("ts").alias("ts"),
        F.min("admittedBytes").alias("admittedBytes"),
        F.max("admittedBytes").alias("admittedBytesLast"),
        F.min(F.least(began, F.col("admittedBytes"))).alias("clock"),
        F.count("*").alias("lines"),
    )


def sum_lags(places: DataFrame) -> DataFrame:
    """By how far behind the high watermark the fetch began. `places`: of `tables.build_places`."""
    index = F.when(F.col("lag").isNull(), len(LAG_BANDS))
    name = F.when(F.col("lag").isNull(), UNKNOWN_LAG)
    for number, (below, label) in enumerate(LAG_BANDS):
        index = index.when(F.col("lag") < below, number)
        name = name.when(F.col("lag") < below, label)
    return _sum_bands(places, index, name)


def sum_lag_times(fetches: DataFrame) -> DataFrame:
    """By the age of the first record handed out: the time of the response less the largest time stamp of its batch.
    Fetches that carried records, of version 3 on.
    """
    lag_ms = F.col("ts") - F.col("timestamp")
    is_known = F.coalesce(lag_ms >= -CLOCK_SKEW_MS, F.lit(False))
    index, name = F.when(~is_known, len(LAG_TIMES)), F.when(~is_known, UNKNOWN_LAG)
    for number, (below_ms, label) in enumerate(LAG_TIMES):
        index = index.when(lag_ms < below_ms, number)
        name = name.when(lag_ms < below_ms, label)
    carried = fetches.where(F.col("bytes") > 0).withColumns(
        {
            "partitions": F.lit(1).cast("long"),
            "emptyPartitions": F.lit(0).cast("long"),
        }
    )
    return _sum_bands(carried, index, name)


def _sum_bands(rows: DataFrame, index: Column, name: Column) -> DataFrame:
    banded = rows.withColumns(
        {
            "bandIndex": index,
            "band": name,
            "observedBytes": F.when(is_observed(), F.col("bytes")).otherwise(0),
            "wouldHitBytes": F.coalesce("wouldHit", F.lit(0)),
        }
    )
    sums = (F.sum(measure).alias(measure) for measure in _MEASURES)
    return banded.groupBy("bandIndex", "band", "result").agg(*sums)


def sum_behind(fetches: DataFrame) -> DataFrame:
    """Bytes read further behind than LAGGARD_MS from the broker, by connection, topic, client id and group."""
    lag_ms = F.col("ts") - F.col("timestamp")
    behind = _name(fetches.where((lag_ms >= LAGGARD_MS) & (F.col("result") != "hit")))
    return behind.groupBy("boot", "connection", "topic", "clientId", "group").agg(
        F.sum("bytes").alias("bytes"),
        F.count("*").alias("partitions"),
        F.max(lag_ms).alias("lagMs_max"),
    )


def sum_fresh(fetches: DataFrame) -> DataFrame:
    """Bytes of misses at most LAGGARD_MS behind, by topic."""
    lag_ms = F.col("ts") - F.col("timestamp")
    fresh = name_topics(fetches.where((lag_ms < LAGGARD_MS) & (F.col("result") == "miss")))
    return fresh.groupBy("topic").agg(F.sum("bytes").alias("bytes"))


def sum_stored(blocks: DataFrame) -> DataFrame:
    """Bytes stored by topic and source."""
    return name_topics(blocks).groupBy("topic", "source").agg(F.sum("bytes").alias("bytes"))


def count_times(fetches: DataFrame, time: str) -> DataFrame:
    """Fetches that carried bytes, by result and `time` in steps: there are some thousands, however many rows."""
    return (
        fetches.where(F.col("bytes") > 0)
        .groupBy("result", step_of(time).alias("micros"))
        .agg(F.count("*").alias("partitions"), F.max(time).alias("most"))
    )


def count_delays(fetches: DataFrame, key: str) -> DataFrame:
    """Misses that waited for their disk, by `key` and delay in steps."""
    delayed = _name(fetches.where(F.col("delayMs") > 0))
    return delayed.groupBy(key, step_of("delayMs").alias("micros")).agg(
        F.count("*").alias("partitions"),
        F.sum("bytes").alias("bytes"),
        F.sum(micros_of("delayMs")).alias("delayMicros"),
        F.max("delayMs").alias("most"),
    )


def sum_admissions(blocks: DataFrame, window_ms: int) -> DataFrame:
    """Runs and bytes admitted by window and source."""
    windowed = blocks.withColumn("windowMs", floor_to(F.col("ts"), window_ms))
    return windowed.groupBy("windowMs", "source").agg(
        F.count("*").alias("runs"), F.sum("bytes").alias("bytes")
    )


def _name(fetches: DataFrame) -> DataFrame:
    named = name_topics(fetches)
    return named.withColumn("clientId", F.coalesce("clientId", F.lit(NO_CLIENT_ID)))


BY_TIME, ADMISSIONS = "by_time", "admissions"
SUMS: Final[dict[str, Callable[[SummedRows], DataFrame]]] = {
    "boot_lines": lambda rows: sum_boot_lines(rows.lines),
    BY_TIME: lambda rows: sum_answered(
        rows.answered, rows.window_ms, "windowMs", "topic", "result", "reason"
    ),
    "by_partition": lambda rows: sum_answered(
        rows.places, rows.window_ms, "topic", "partition", "result"
    ),
    "by_client": lambda rows: sum_answered(rows.answered, rows.window_ms, *_BOOT_KEYS),
    "by_section": lambda rows: build_sections(rows.answered),
    "lags": lambda rows: sum_lags(rows.places),
    "lag_times": lambda rows: sum_lag_times(rows.of("fetch")),
    "behind": lambda rows: sum_behind(rows.of("fetch")),
    "fresh": lambda rows: sum_fresh(rows.of("fetch")),
    "stored": lambda rows: sum_stored(rows.of("block")),
    "total_times": lambda rows: count_times(rows.of("fetch"), "totalMs"),
    "wait_times": lambda rows: count_times(rows.of("fetch"), "waitMs"),
    "delays_by_client": lambda rows: count_delays(rows.of("fetch"), "clientId"),
    "delays_by_topic": lambda rows: count_delays(rows.of("fetch"), "topic"),
    ADMISSIONS: lambda rows: sum_admissions(rows.of("block"), rows.window_ms),
    "load_boots": lambda rows: profile.sum_boots(rows.of("block")),
    "load_partitions": lambda rows: profile.sum_partitions(rows.of("block")),
    "ages": lambda rows: sum_ages(say_ages(name_topics(rows.of("fetch")))),
}
"""By name: every sum that a report is made of, but for what the joins of a whole log say."""
WINDOWED: Final = (BY_TIME, ADMISSIONS)
"""Those that are by window."""


def build_sums(rows: SummedRows, names: Sequence[str] = tuple(SUMS)) -> dict[str, DataFrame]:
    """The sums of `names`, not computed yet."""
    return {name: SUMS[name](rows) for name in names}
