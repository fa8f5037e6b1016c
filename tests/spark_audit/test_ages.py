"""Ages by the as-of join, against what was stored when: small logs, line by line."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from pyspark.sql import functions as F

from spark_audit import tables
from spark_audit.ages import (
    DATED,
    NEVER,
    UNKNOWN,
    build_ages,
    build_segments,
    find_log_starts,
)
from spark_audit.reading import find_inputs, good_lines, read_lines
from spark_audit.sums import sum_boot_lines
from tests.kit.log_lines import unfold
from tests.spark_audit.replay import Fetch, Produce, Shape, Step, build_load, write_load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

MIB = 1 << 20
SHAPE = Shape([3, 2, 1, 1], 500, 3_000, 3 * MIB, {0.5: 5e3, 0.5001: 1.5e6}, burst=3)
CACHE_BYTES = 512 * 1024
CROWD = 4000
SKEW = {
    "spark.sql.maxPlanStringLength": "1000000",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "4k",
    "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "8k",
}
"""What a session has for large input, at the size of a test."""


def true_ages(steps: list[Step]) -> list[int]:
    """Of each fetch, in order: bytes stored since its first batch was, that one included."""
    clocks: dict[int, list[int]] = {}
    clock, ages = 0, []
    for step in steps:
        if isinstance(step, Produce):
            clocks.setdefault(step.partition, []).append(clock)
            clock += step.size_bytes
        else:
            ages.append(clock - clocks[step.partition][step.number])
    return ages


Line = dict[str, Any]
Rows = list[Line]


@contextmanager
def settings(spark: SparkSession, wanted: dict[str, str]) -> Iterator[None]:
    """The session with `wanted`, and afterwards with what it had."""
    had = {key: str(spark.conf.get(key)) for key in wanted}
    for key, value in wanted.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, value in had.items():
            spark.conf.set(key, value)


def rewrite(
    source: Path, target: Path, change: Callable[[Line], Line | None] = lambda line: line
) -> None:
    """Give each line of a log to `change` (None: it goes); the log of `target` is of a boot of that name."""
    target.mkdir(parents=True)
    for path in source.iterdir():
        read = gzip.decompress if path.suffix == ".gz" else bytes
        said = unfold(map(json.loads, read(path.read_bytes()).splitlines()))
        lines = filter(None, (change(line | {"v": 3}) for line in said))
        text = "".join(f"{json.dumps(line | {'boot': target.name})}\n" for line in lines)
        (target / path.name.removesuffix(".gz").replace("-b1-", f"-{target.name}-")).write_text(
            text
        )


def age_of_version_2(line: Line) -> Line:
    line["v"] = 2
    for name in ("batches", "beganBytes", "endedBytes", "points", "heldBytes"):
        line.pop(name, None)
    if line["type"] == "fetch" and line["ageBytes"] is not None:
        line["ageBytes"] -= 500 if line["result"] == "hit" else 0  # at least its own batch
    return line


def begin_later(line: Line) -> Line:
    """The run of partition 0 begins at its tenth batch; what lies before misses."""
    if line["type"] == "block" and line["partition"] == 0:
        line |= {"baseOffset": 100, "batches": 10, "bytes": 10_000}
        line["points"] = [90, 19_000 - line["beganBytes"]]
        line["endedBytes"] = 20_000
    if line["type"] == "fetch" and line["offset"] == 20:
        line |= {"result": "miss", "reason": "cold", "ageBytes": None}
    return line


def lose_beginning(line: Line) -> Line:
    line = begin_later(line)
    if line["type"] == "log":
        line["sequence"] += 1
    for name in ("admittedBytes", "beganBytes", "endedBytes"):
        if name in line:
            line[name] += 7_000
    return line


def drop(line: Line) -> Line:
    line = lose_beginning(line)
    return line | {"droppedLines": 3} if line["type"] == "log" else line


def store_again(line: Line) -> Line:
    if line["type"] == "block" and line["partition"] == 1:
        line |= {"partition": 0}
    if line["type"] in ("block", "fetch"):
        line["topicId"] = "A" * 22
    if line["type"] == "fetch":
        line |= {"result": "miss", "reason": "evicted", "ageBytes": None}
    return line


def keep_blocks(line: Line) -> Line | None:
    return None if line["type"] == "fetch" else line | {"v": 5, "keeper": None}


def keep_fetches(line: Line) -> Line | None:
    return None if line["type"] == "block" else line | {"v": 5, "keeper": KEEPER}


def know_no_keeper(line: Line) -> Line | None:
    line = begin_later(line)
    return None if line["type"] == "block" else line | {"v": 5, "keeper": ""}


KEEPER, WORKER, ALONE = "keeper", "worker", "alone"
FORGETFUL, VERSION_2, LATER, LOST, DROPPED, AGAIN = (
    "forgetful",
    "v2",
    "later",
    "lost",
    "drop",
    "again",
)
EARLY: list[Step] = [
    *(Produce(0, 1000) for _ in range(20)),
    *(Fetch(0, 2, 1), Fetch(0, 15, 1), Produce(1, 500), Fetch(1, 0, 1)),
]
TRUNCATED: list[Step] = [Produce(0, 1000), Fetch(0, 0, 1), Produce(1, 5000), Fetch(0, 0, 1)]


class Judged(NamedTuple):
    """The fetches of each boot, in the order of its log, with `kind`, `least` and `most`. `crowd`: those of FORGETFUL,
    of which one is there CROWD times, as `crowd_plan` has found them.
    """

    rows: dict[str, Rows]
    crowd: Rows
    crowd_plan: str


@pytest.fixture(scope="module")
def steps() -> list[Step]:
    return build_load(SHAPE, seed=5)


@pytest.fixture(scope="module")
def judged(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, steps: list[Step]
) -> Judged:
    """All logs are one for Spark."""
    root = tmp_path_factory.mktemp("ages")
    logs = root / "logs"
    write_load(steps, CACHE_BYTES, root / "plain", ghosts=8)
    write_load(steps, CACHE_BYTES, root / "ticking", tick_steps=7, ghosts=8)
    write_load(EARLY, CACHE_BYTES, root / "early")
    write_load(TRUNCATED, CACHE_BYTES, root / "truncated", tick_steps=1)
    rewrite(root / "plain", logs / FORGETFUL)
    rewrite(root / "plain", logs / KEEPER, keep_blocks)
    rewrite(root / "plain", logs / WORKER, keep_fetches)
    rewrite(root / "early", logs / ALONE, know_no_keeper)
    rewrite(root / "ticking", logs / VERSION_2, age_of_version_2)
    rewrite(root / "early", logs / LATER, begin_later)
    rewrite(root / "early", logs / LOST, lose_beginning)
    rewrite(root / "early", logs / DROPPED, drop)
    rewrite(root / "truncated", logs / AGAIN, store_again)
    lines = read_lines(spark, find_inputs([str(logs)]), root / "table").lines.persist()
    starts = find_log_starts(
        row.asDict() for row in tables.boots(sum_boot_lines(lines), lines).collect()
    )
    fetches, segments = good_lines(lines, "fetch"), build_segments(good_lines(lines, "block"))
    names = ("boot", "v", "ts", "partition", "offset", "result", "kind", "least", "most")

    def judge(asked: DataFrame) -> tuple[Rows, str]:
        ages = build_ages(asked, segments, starts).select(*names, "admittedBytes")
        rows = [row.asDict() for row in ages.collect()]
        plan = ages._jdf.queryExecution().executedPlan().toString()
        return sorted(rows, key=lambda row: (row["admittedBytes"], row["ts"])), plan

    rows, _ = judge(fetches)
    boots = {
        boot: [row for row in rows if row["boot"] == boot] for boot in {r["boot"] for r in rows}
    }
    asked = fetches.where(F.col("boot") == FORGETFUL)
    one = asked.where(F.col("result") == "miss").orderBy("admittedBytes").limit(1)
    copies = spark.range(CROWD - 1).drop("id").crossJoin(one)
    with settings(spark, SKEW):
        crowd, plan = judge(asked.unionByName(copies).repartition(8))
    lines.unpersist()
    return Judged(boots, crowd, plan)


def test_a_forgetful_ghost_leaves_no_age_unknown(judged: Judged, steps: list[Step]) -> None:
    """The ghost holds eight runs: most misses have no age in their line. The block lines have all."""
    rows = judged.rows[FORGETFUL]
    assert {row["result"] for row in rows} == {"hit", "miss"}
    ages = sorted(true_ages(steps))
    assert len(rows) == len(ages) and {row["kind"] for row in rows} == {DATED}
    assert all(row["least"] == row["most"] for row in rows)
    found = sorted(row["most"] for row in rows)
    errors = [abs(one - true) for one, true in zip(found, ages, strict=True)]
    assert max(errors) <= 2 * 65_536 and sorted(errors)[len(errors) // 2] < 4096
    hits = [row["most"] for row in rows if row["result"] == "hit"]
    assert max(hits) <= CACHE_BYTES, (
        "an age holds the batch, so that no hit is older than the cache"
    )


def test_a_place_that_many_ask_for_is_no_task_s_alone(judged: Judged) -> None:
    """Readers that begin at the same offset. Spark divides them, and each has the age that one alone has."""
    assert "SortMergeJoin(skew=true)" in judged.crowd_plan
    alone = Counter(map(str, judged.rows[FORGETFUL]))
    crowd = Counter(map(str, judged.crowd))
    (one,) = (row for row in crowd if crowd[row] != alone[row])
    assert crowd - alone == {one: CROWD - 1} and not alone - crowd


def test_versions_before_3_give_bounds_that_hold_the_truth(
    judged: Judged, steps: list[Step]
) -> None:
    rows, ages = judged.rows[VERSION_2], true_ages(steps)
    assert {row["kind"] for row in rows} == {DATED}
    wide = 0
    by_place: dict[tuple[int, int, int], list[int]] = {}
    fetches = [step for step in steps if isinstance(step, Fetch)]
    clock = -1
    clocks = []
    for step in steps:
        if isinstance(step, Produce):
            clock = max(clock, 0) + step.size_bytes
        else:
            clocks.append(clock)
    for step, true, now in zip(fetches, ages, clocks, strict=True):
        by_place.setdefault((step.partition, 10 * step.number, now), []).append(true)
    for row in rows:
        true = by_place[row["partition"], row["offset"], row["admittedBytes"]][0]
        slack = 0 if row["result"] == "hit" else 4096
        assert row["least"] - slack <= true <= row["most"] + slack
        wide += row["most"] > row["least"]
    assert wide > len(rows) / 2


def test_what_was_never_stored_is_apart_from_what_is_not_known(judged: Judged) -> None:
    """Offsets below the first block line were written before Forebay began; in a log whose beginning is gone, nobody
    knows.
    """

    def find(boot: str, offset: int) -> tuple[str, int | None, int | None]:
        (row,) = [row for row in judged.rows[boot] if row["offset"] == offset]
        return row["kind"], row["least"], row["most"]

    assert find(LATER, 20) == (NEVER, None, None)
    assert find(LATER, 150)[0] == DATED
    assert find(LOST, 20) == (UNKNOWN, 20_000, None), "at least all that the log has of it"
    assert find(DROPPED, 20) == (UNKNOWN, 0, None)


def test_what_is_stored_again_has_the_age_of_its_last_time_before_the_fetch(judged: Judged) -> None:
    """A truncation: the same offsets are stored twice, and a fetch between sees the first."""
    rows = judged.rows[AGAIN]
    assert [(row["admittedBytes"], row["most"]) for row in rows] == [(1000, 1000), (6000, 5000)]


def test_a_worker_s_fetches_are_dated_by_what_its_keeper_stored(judged: Judged) -> None:
    """As if one process had done both. Without a keeper nothing is known."""
    names = ("partition", "offset", "result", "kind", "least", "most", "admittedBytes")
    found, alone = (
        sorted(str([row[name] for name in names]) for row in judged.rows[boot])
        for boot in (KEEPER, FORGETFUL)
    )
    assert found == alone and WORKER not in judged.rows
    missed = [row for row in judged.rows[""] if row["result"] == "miss"]
    assert missed and {(row["kind"], row["least"]) for row in missed} == {(UNKNOWN, 0)}
