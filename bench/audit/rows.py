"""`python -m bench.audit.rows --millions N`: how even the tasks of a report are, over synthetic rows of a table.

Owns the invented rows, which Spark writes without any log, the report over them as a command of its own, and the times
of its tasks. Must not know how the report computes. Invariants: topics and partitions are as unequal as a power of a
uniform number makes them; what a row says fits the others (clocks, offsets, sizes of the cache), so that the report
joins and sums as it does for real rows; the table and the report lie in a directory that is removed afterwards.
Exit codes: 0 the bar holds, 1 it is broken or nothing could be measured.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import functions as F

from bench.audit.generate import START_MS
from bench.audit.processes import CommandFailed, measure
from metrics.access_log_schema import SCHEMA_VERSION
from spark_audit.line_table import Commit, lines_uri, write_commit
from spark_audit.log_file import REPORT, UNKNOWN_BROKER
from spark_audit.session import open_session
from spark_audit.storage import Store, StoredFile, to_uri

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

BROKERS: Final = 4
TOPICS, PARTITIONS, CLIENTS = 200, 48, 600
TASK_ROWS: Final = 4_000_000
"""Rows that one task writes: a file of about 128 MB."""
BLOCK_BYTES: Final = 70_000
CACHE_BYTES: Final = 8 << 30
BLOCKS_A_STEP, FETCHES_A_STEP, STEP_MS = 3, 17, 20
INGEST: Final = "rows"
MOST_TIMES_MEDIAN: Final = 3.0
LEAST_TASKS, LEAST_MS, LONG_MS = 8, 1000, 3000
"""Stages with fewer tasks have no median. One whose median is below LEAST_MS says nothing of data, unless its longest
task takes LONG_MS: most of its tasks may have nothing to do.
"""


class StageTimes(NamedTuple):
    """The times of one stage's tasks, in ms, ascending."""

    stage: int
    name: str
    times_ms: list[int]

    @property
    def median_ms(self) -> float:
        return statistics.median(self.times_ms)

    @property
    def times_median(self) -> float:
        """The longest task's time as a multiple of the median."""
        return self.times_ms[-1] / max(1.0, self.median_ms)

    @property
    def is_judged(self) -> bool:
        """Whether it has tasks enough, and long ones."""
        is_long = self.median_ms >= LEAST_MS or self.times_ms[-1] >= LONG_MS
        return len(self.times_ms) >= LEAST_TASKS and is_long


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.audit.rows", description=str(__doc__).splitlines()[0]
    )
    parser.add_argument(
        "--millions", type=float, default=30, help="rows, in millions (default: 30)"
    )
    parser.add_argument("--scratch", type=Path, help="where the table lies for a while")
    parser.add_argument(
        "--events",
        type=Path,
        metavar="FILE",
        help="write and report nothing: judge this event log of Spark, of a report of any rows",
    )
    return parser


def write_table(spark: SparkSession, table: str, rows: int) -> None:
    """A table as `ingest` leaves it: rows of each broker's only boot, its report, and the commit."""
    share = rows // BROKERS
    steps = share // (BLOCKS_A_STEP + FETCHES_A_STEP)
    reports = []
    for broker in range(BROKERS):
        boot = f"{broker:016x}"
        _write(_fetches(spark, boot, steps), table, broker, "fetch")
        _write(_blocks(spark, boot, steps), table, broker, "block")
        _write(_log(spark, boot), table, broker, "log")
        lines = {"fetch": steps * FETCHES_A_STEP, "block": steps * BLOCKS_A_STEP, "log": 1}
        reports.append(_report(broker, boot, lines, steps))
    said = spark.createDataFrame(
        [(REPORT, json.dumps(one)) for one in reports], "of string, report string"
    )
    said = said.select(F.lit(None).cast("long").alias("segment"), "report").coalesce(1)
    _write(said, table, UNKNOWN_BROKER, REPORT)
    files = tuple(StoredFile(f"file:/{one['path']}", 1, 1) for one in reports)
    write_commit(Store(spark), table, "parquet", Commit(INGEST, files, {}, ()))


def _write(rows: DataFrame, table: str, broker: int | str, of: str) -> None:
    place = f"{lines_uri(table)}/date=2025-11-21/broker={broker}/type={of}/ingest={INGEST}"
    rows.write.mode("overwrite").parquet(place)


def _uneven(count: int, *seeds: Column) -> Column:
    """A number below `count`, by a power of a uniform one: the first is the most frequent."""
    uniform = F.pmod(F.xxhash64(*seeds), F.lit(1 << 30)) / (1 << 30)
    return F.floor(F.pow(uniform, F.lit(3)) * count).cast("long")


def _numbered(spark: SparkSession, boot: str, steps: int, a_step: int) -> DataFrame:
    """Rows with what all types share, and a number for each step."""
    count = steps * a_step
    rows = spark.range(0, count, 1, max(1, -(-count // TASK_ROWS)))
    step, salt = F.floor(F.col("id") / a_step), F.lit(f"{boot}{a_step}")
    topic = _uneven(TOPICS, F.col("id"), salt, F.lit("topic"))
    return rows.select(
        "id",
        step.alias("step"),
        F.lit(SCHEMA_VERSION).cast("long").alias("v"),
        F.lit(boot).alias("boot"),
        (F.lit(START_MS) + step * STEP_MS).alias("ts"),
        F.lit(0).cast("long").alias("section"),
        F.lit("main").alias("listener"),
        F.concat(F.lit("topic-"), topic).alias("topic"),
        F.concat(F.lit("id-of-topic-"), topic).alias("topicId"),
        _uneven(PARTITIONS, F.col("id"), salt, F.lit("partition")).alias("partition"),
        F.lit(0).cast("long").alias("segment"),
    )


def _blocks(spark: SparkSession, boot: str, steps: int) -> DataFrame:
    began = F.col("id") * BLOCK_BYTES
    return _numbered(spark, boot, steps, BLOCKS_A_STEP).select(
        *("v", "boot", "ts", "section", "listener", "topic", "topicId", "partition", "segment"),
        (F.col("step") * 50).alias("baseOffset"),
        (F.col("step") * 50 + 40).alias("nextOffset"),
        F.lit(BLOCK_BYTES).cast("long").alias("bytes"),
        F.lit("produce").alias("source"),
        (began + BLOCK_BYTES).alias("admittedBytes"),
        F.lit(4).cast("long").alias("batches"),
        began.alias("beganBytes"),
        (began + BLOCK_BYTES).alias("endedBytes"),
        F.least(began + BLOCK_BYTES, F.lit(CACHE_BYTES)).alias("heldBytes"),
    )


def _fetches(spark: SparkSession, boot: str, steps: int) -> DataFrame:
    """One client in twenty lags, as in `generate`."""
    rows = _numbered(spark, boot, steps, FETCHES_A_STEP)
    drawn = rows.withColumns(
        {
            "client": F.pmod(F.xxhash64("step", F.pmod("id", F.lit(4))), F.lit(CLIENTS)),
            "uniform": F.greatest(F.rand(7), F.lit(1e-9)),
            "highWatermark": F.col("step") * 50 + 40,
        }
    )
    spread = F.when(F.pmod("client", F.lit(20)) == 0, float(30 << 30)).otherwise(float(50 << 20))
    aged = drawn.withColumn("ageBytes", F.floor(-F.log("uniform") * spread).cast("long"))
    is_hit = F.col("ageBytes") < CACHE_BYTES
    lag = F.least(F.floor(F.col("ageBytes") / 500), F.col("highWatermark"))
    return aged.select(
        *("v", "boot", "ts", "section", "listener", "topic", "topicId", "partition", "segment"),
        F.col("client").alias("connection"),
        F.concat(F.lit("consumer-"), "client").alias("clientId"),
        F.concat(F.lit("group-"), F.pmod("client", F.lit(17))).alias("group"),
        F.lit(17).cast("long").alias("apiVersion"),
        (F.col("highWatermark") - lag).alias("offset"),
        F.lit(0).cast("long").alias("isolation"),
        F.when(is_hit, "hit").otherwise("miss").alias("result"),
        F.when(is_hit, "").otherwise("evicted").alias("reason"),
        (2_000 + F.pmod(F.xxhash64("id"), F.lit(198_000))).alias("bytes"),
        "highWatermark",
        lag.alias("lag"),
        "ageBytes",
        F.round(F.rand(8) * 400, 3).alias("waitMs"),
        F.round(F.rand(9) * 500, 3).alias("totalMs"),
        ((F.col("step") + 1) * (BLOCKS_A_STEP * BLOCK_BYTES)).alias("admittedBytes"),
        F.when(~is_hit, F.round(F.rand(10) * 200, 3)).alias("delayMs"),
    )


def _log(spark: SparkSession, boot: str) -> DataFrame:
    columns = (
        "v long, boot string, ts long, section long, event string, sequence long, cacheSizeBytes long,"
        " writtenLines long, droppedLines long, nodeId long, segment long"
    )
    row = (SCHEMA_VERSION, boot, START_MS, 0, "open", 1, CACHE_BYTES, 0, 0, int(boot, 16), 0)
    return spark.createDataFrame([row], columns).coalesce(1)


def _report(broker: int, boot: str, good: dict[str, int], steps: int) -> dict[str, object]:
    """What a worker would have said of the one file; see `log_file`."""
    counted = good["fetch"] + good["block"]
    return {
        "path": f"access-{boot}-000001.jsonl.gz",
        "storedBytes": 1,
        "segment": 0,
        "firstLine": 1,
        "boot": boot,
        "sequence": 1,
        "broker": str(broker),
        "lines": counted + 1,
        "logLines": 1,
        "good": good,
        "bad": {},
        "samples": [],
        "openedAt": 0,
        "closedAt": counted,
        **{"dropped" + side: 0 for side in ("First", "Last")},
        "firstMs": START_MS,
        "lastMs": START_MS + steps * STEP_MS,
        "damage": "",
        "torn": False,
    }


def read_stages(events: Iterable[str]) -> list[StageTimes]:
    """The stages of an event log of Spark, in order, with the times of tasks that succeeded."""
    names: dict[int, str] = {}
    times: dict[int, list[int]] = defaultdict(list)
    for line in events:
        event = json.loads(line)
        if event["Event"] == "SparkListenerStageCompleted":
            info = event["Stage Info"]
            names[info["Stage ID"]] = info["Stage Name"]
        elif event["Event"] == "SparkListenerTaskEnd" and not event["Task Info"]["Failed"]:
            task = event["Task Info"]
            times[event["Stage ID"]].append(task["Finish Time"] - task["Launch Time"])
    return [
        StageTimes(stage, names.get(stage, ""), sorted(times[stage])) for stage in sorted(times)
    ]


def build_page(stages: list[StageTimes]) -> tuple[str, bool]:
    """The distribution of each stage that has one, and whether the bar holds for all."""
    judged = [one for one in stages if one.is_judged]
    rows = [
        "| stage | tasks | least, s | median, s | longest, s | times the median |",
        "| --- " * 6 + "|",
    ]
    for one in judged:
        least, most = one.times_ms[0] / 1000, one.times_ms[-1] / 1000
        rows.append(
            f"| {one.stage} {one.name} | {len(one.times_ms)} | {least:.2f} | {one.median_ms / 1000:.2f}"
            f" | {most:.2f} | {one.times_median:.2f} |"
        )
    worst = max((one.times_median for one in judged), default=0.0)
    holds = bool(judged) and worst <= MOST_TIMES_MEDIAN
    said = f"longest task: {worst:.2f} times its stage's median, at most {MOST_TIMES_MEDIAN:g}"
    verdict = "holds" if holds else "BROKEN"
    return "\n".join([*rows, "", f"{said}: {verdict}"]) + "\n", holds


def judge(log: Path) -> tuple[str, bool]:
    """`build_page` of an event log."""
    with log.open(encoding="utf-8") as lines:
        return build_page(read_stages(lines))


def main(arguments: Sequence[str] | None = None) -> int:
    """Write, report, judge; the exit code. `arguments`: None: the process's."""
    options = build_parser().parse_args(arguments)
    if options.events is not None:
        page, holds = judge(options.events)
        print(page)
        return 0 if holds else 1
    scratch = Path(tempfile.mkdtemp(prefix="forebay-rows-", dir=options.scratch))
    try:
        table, events = scratch / "table", scratch / "events"
        events.mkdir()
        rows = round(options.millions * 1_000_000)
        spark = open_session(None, rows * 30)
        write_table(spark, to_uri(table), rows)
        spark.stop()
        logged = {
            "enabled": "true",
            "dir": events.as_uri(),
            "rolling.enabled": "false",
            "compress": "false",
        }
        settings = [f"--conf=spark.eventLog.{key}={value}" for key, value in logged.items()]
        command = [sys.executable, "-m", "spark_audit", str(table), "--out", str(scratch / "out")]
        cost = measure([*command, *settings], scratch / "said")
        (log,) = events.iterdir()
        page, holds = judge(log)
        print(
            f"{rows / 1e6:g} million rows: report in {cost.wall_s:.0f} s, {cost.cpu_s:.0f} CPU s,",
            end=" ",
        )
        print(f"{cost.peak_bytes / (1 << 30):.2f} GiB\n\n{page}")
    except CommandFailed as error:
        print(f"the report failed: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(scratch)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
