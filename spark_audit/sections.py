"""What the log adds up to between `counters` lines, beside what they say.

Owns the sums by section and their comparison, line by line of counters. Must not know scrapes or words. Invariants: a
line belongs to the section that it names, whatever its time and file are; a `counters` line that is missing makes one
longer interval of two; what stands before the first one of a boot in this log is not compared.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from metrics.access_log_schema import RESULT_REASONS
from spark_audit.reconcile import (
    BootLog,
    Comparison,
    CountersMark,
    IntervalDifference,
    ResultReason,
)

DIFFERENCES: Final = 100
"""Rows of intervals that differ which are shown, over all boots."""
NEAR: Final = 30
_MEASURES: Final = ("Partitions", "Bytes")
_KEYS: Final = ("boot", "result", "reason")


def build_sections(answered: DataFrame) -> DataFrame:
    """Partitions and bytes by boot, section, result and reason. Lines before version 3 have no section."""
    return (
        answered.where(F.col("section").isNotNull())
        .groupBy("boot", "section", "result", "reason")
        .agg(F.sum("partitions").alias("partitions"), F.sum("bytes").alias("bytes"))
    )


def merge_sections(sections: DataFrame) -> DataFrame:
    """One row for each key, of rows of `build_sections` of several sets."""
    return sections.groupBy("boot", "section", "result", "reason").agg(
        F.sum("partitions").alias("partitions"), F.sum("bytes").alias("bytes")
    )


def build_marks(sections: DataFrame, counters: DataFrame) -> DataFrame:
    """A row for each `counters` line and each result and reason: `counted*` is what it says, `expected*` what has come
    since the boot's first such line, `found*` what the sections since then add up to; `before*`: of the row of the line
    before it. One window for each boot, result and reason.
    """
    marks = counters.select(
        "boot", "number", "ts", "event", "droppedLines", F.explode(_by_verdict()).alias("one")
    ).select(
        "boot",
        (2 * F.col("number")).alias("place"),
        *("number", "ts", "event", "droppedLines"),
        F.col("one.result").alias("result"),
        F.col("one.reason").alias("reason"),
        (F.col("one.partitions") - F.col("one.unwritten")).alias("writtenPartitions"),
        F.col("one.bytes").alias("writtenBytes"),
        F.col("one.partitions").alias("countedPartitions"),
        F.col("one.bytes").alias("countedBytes"),
    )
    first = counters.groupBy("boot").agg(F.min("number").alias("first"))
    lines = (
        sections.join(F.broadcast(first), "boot")
        .where(F.col("section") >= F.col("first"))
        .select(
            *_KEYS,
            (2 * F.col("section") + 1).alias("place"),
            F.col("partitions").alias("linePartitions"),
            F.col("bytes").alias("lineBytes"),
        )
    )
    both = marks.unionByName(lines, allowMissingColumns=True)
    so_far = Window.partitionBy(*_KEYS).orderBy("place").rowsBetween(Window.unboundedPreceding, 0)
    for measure in _MEASURES:
        written = f"written{measure}"
        begun = F.first(written, ignorenulls=True).over(so_far)
        found = F.coalesce(F.sum(f"line{measure}").over(so_far), F.lit(0))
        both = both.withColumns(
            {f"expected{measure}": F.col(written) - begun, f"found{measure}": found}
        )
    order = Window.partitionBy(*_KEYS).orderBy("place")
    kept = both.where(F.col("number").isNotNull())
    names = [f"{side}{measure}" for side in ("expected", "found") for measure in _MEASURES]
    return kept.withColumns(
        {
            f"before{name[0].upper()}{name[1:]}": F.lag(name).over(order)
            for name in (*names, "ts", "droppedLines")
        }
    )


def read_boot_logs(marks: DataFrame, asked: Iterable[tuple[str, int]]) -> dict[str, BootLog]:
    """By boot, from `build_marks`: three small results. `asked`: boot and number of scrapes, 0 where a scrape names
    none; the NEAR marks before each are read, and the last NEAR of its boot.
    """
    wanted = list(asked)
    order = Window.partitionBy("boot").orderBy(F.desc("number"))
    ranked = marks.withColumn("rank", F.dense_rank().over(order)).withColumn(
        "isFirst", F.col("beforeTs").isNull()
    )
    is_wanted = (F.col("rank") == 1) | F.col("isFirst")
    for boot, number in wanted:
        near = F.col("rank") <= NEAR
        if number:
            near |= F.col("number").between(number - NEAR, number)
        is_wanted |= (F.col("boot") == boot) & near
    by_boot: dict[str, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in ranked.where(is_wanted).collect():
        by_boot[row["boot"]][row["number"]].append(row)
    changed = [_interval(side, measure) for side in ("expected", "found") for measure in _MEASURES]
    named = marks.where(F.col("beforeTs").isNotNull()).select(
        "*",
        *(
            column.alias(f"{side}{measure}Here")
            for column, (side, measure) in zip(
                changed,
                [(side, measure) for side in ("expected", "found") for measure in _MEASURES],
                strict=True,
            )
        ),
    )
    differs = (F.col("expectedPartitionsHere") != F.col("foundPartitionsHere")) | (
        F.col("expectedBytesHere") != F.col("foundBytesHere")
    )
    counts = {
        row["boot"]: (row["intervals"], row["differing"])
        for row in named.groupBy("boot")
        .agg(
            F.count_distinct("number").alias("intervals"),
            F.count_distinct(F.when(differs, F.col("number"))).alias("differing"),
        )
        .collect()
    }
    differences: dict[str, list[IntervalDifference]] = defaultdict(list)
    for row in named.where(differs).orderBy("ts", *_KEYS).limit(DIFFERENCES).collect():
        differences[row["boot"]].append(_difference(row))
    found = {}
    for boot, by_number in by_boot.items():
        read = {number: _mark(rows) for number, rows in sorted(by_number.items())}
        intervals, differing = counts.get(boot, (0, 0))
        found[boot] = BootLog(
            boot,
            read[min(read)],
            read[max(read)],
            read,
            intervals,
            differing,
            differences[boot],
        )
    return found


def _by_verdict() -> Column:
    """The results of a `counters` line, those of 0 added."""
    named = [
        F.struct(F.lit(result).alias("result"), F.lit(reason).alias("reason"))
        for result, reason in RESULT_REASONS
    ]

    def find(verdict: Column) -> Column:
        same = F.filter(
            "results",
            lambda one: (one["result"] == verdict["result"]) & (one["reason"] == verdict["reason"]),
        )
        one = F.try_element_at(same, F.lit(1))
        names = ("partitions", "bytes", "unwritten")
        return F.struct(
            verdict["result"].alias("result"),
            verdict["reason"].alias("reason"),
            *(F.coalesce(one[name], F.lit(0).cast("long")).alias(name) for name in names),
        )

    return F.transform(F.array(*named), find)


def _interval(side: str, measure: str) -> Column:
    name = f"{side}{measure}"
    return F.col(name) - F.col(f"before{name[0].upper()}{name[1:]}")


def _difference(row: Row) -> IntervalDifference:
    numbers = (
        row["foundPartitionsHere"],
        row["expectedPartitionsHere"],
        row["foundBytesHere"],
        row["expectedBytesHere"],
    )
    compared = Comparison(row["result"], row["reason"], *numbers)
    dropped_lines = row["droppedLines"] - row["beforeDroppedLines"]
    return IntervalDifference(row["boot"], row["beforeTs"], row["ts"], compared, dropped_lines)


def _mark(rows: list[Row]) -> CountersMark:
    def totals(side: str) -> dict[ResultReason, tuple[int, int]]:
        return {
            (row["result"], row["reason"]): (row[f"{side}Partitions"], row[f"{side}Bytes"])
            for row in rows
        }

    return CountersMark(
        rows[0]["number"],
        rows[0]["ts"],
        totals("counted"),
        totals("expected"),
        totals("found"),
        rows[0]["event"],
    )
