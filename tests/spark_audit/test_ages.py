"""Ages by the as-of join, against what was stored when: small logs, line by line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import pytest

from spark_audit.ages import (
    DATED,
    NEVER,
    SALTED_ROWS,
    SALTS_MAX,
    UNKNOWN,
    build_ages,
    build_segments,
    find_log_starts,
    plan_salts,
)
from spark_audit.reading import find_inputs, good_lines, read_lines
from tests.spark_audit.replay import Fetch, Produce, Shape, Step, build_load, write_load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIB = 1 << 20
SHAPE = Shape([3, 2, 1, 1], 500, 3_000, 3 * MIB, {0.5: 5e3, 0.5001: 1.5e6}, burst=3)
CACHE_BYTES = 512 * 1024


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


def judge(spark: SparkSession, directory: Path, salts: int = 1) -> list[dict[str, Any]]:
    """The fetches of a log, in its order, with `kind`, `least` and `most`."""
    table = Path(mkdtemp(dir=directory.parent))  # a table takes each file once
    lines = read_lines(spark, find_inputs([str(directory)]), table).lines.persist()
    starts = find_log_starts(lines)
    fetches, blocks = good_lines(lines, "fetch"), good_lines(lines, "block")
    ages = build_ages(fetches, build_segments(blocks), starts, salts)
    kept = ("v", "ts", "partition", "offset", "result", "kind", "least", "most", "admittedBytes")
    rows = [row.asDict() for row in ages.select(*kept).collect()]
    lines.unpersist()
    return sorted(rows, key=lambda row: (row["admittedBytes"], row["ts"]))


def rewrite(directory: Path, change: Any) -> None:
    """Give each line of a log to `change`, which returns it, or None to leave it out."""
    for path in directory.iterdir():
        read, pack = (gzip.decompress, gzip.compress) if path.suffix == ".gz" else (bytes, bytes)
        found = [json.loads(line) for line in read(path.read_bytes()).splitlines()]
        kept = [json.dumps(line) for line in map(change, found) if line is not None]
        path.write_bytes(pack("".join(f"{line}\n" for line in kept).encode()))


@pytest.fixture(scope="module")
def steps() -> list[Step]:
    return build_load(SHAPE, seed=5)


def test_a_forgetful_ghost_leaves_no_age_unknown(
    spark: SparkSession, tmp_path: Path, steps: list[Step]
) -> None:
    """The ghost holds eight runs: most misses have no age in their line. The block lines have all; salts change
    nothing.
    """
    write_load(steps, CACHE_BYTES, tmp_path / "logs", ghosts=8)
    rows = judge(spark, tmp_path / "logs")
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
    salted = judge(spark, tmp_path / "logs", salts=5)
    assert sorted(map(str, salted)) == sorted(map(str, rows))


def test_versions_before_3_give_bounds_that_hold_the_truth(
    spark: SparkSession, tmp_path: Path, steps: list[Step]
) -> None:
    write_load(steps, CACHE_BYTES, tmp_path / "logs", tick_steps=7, ghosts=8)

    def age_of_version_2(line: dict[str, Any]) -> dict[str, Any]:
        line["v"] = 2
        for name in ("batches", "beganBytes", "endedBytes", "points", "heldBytes"):
            line.pop(name, None)
        if line["type"] == "fetch" and line["ageBytes"] is not None:
            line["ageBytes"] -= 500 if line["result"] == "hit" else 0  # at least its own batch
        return line

    rewrite(tmp_path / "logs", age_of_version_2)
    rows, ages = judge(spark, tmp_path / "logs"), true_ages(steps)
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


def test_what_was_never_stored_is_apart_from_what_is_not_known(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Offsets below the first block line were written before Forebay began; in a log whose beginning is gone, nobody
    knows.
    """
    steps: list[Step] = [Produce(0, 1000) for _ in range(20)]
    steps += [Fetch(0, 2, 1), Fetch(0, 15, 1), Produce(1, 500), Fetch(1, 0, 1)]
    write_load(steps, CACHE_BYTES, tmp_path / "logs")

    def begin_later(line: dict[str, Any]) -> dict[str, Any]:
        """The run of partition 0 begins at its tenth batch; what lies before misses."""
        if line["type"] == "block" and line["partition"] == 0:
            line |= {"baseOffset": 100, "batches": 10, "bytes": 10_000}
            line["points"] = [90, 19_000 - line["beganBytes"]]
            line["endedBytes"] = 20_000
        if line["type"] == "fetch" and line["offset"] == 20:
            line |= {"result": "miss", "reason": "cold", "ageBytes": None}
        return line

    rewrite(tmp_path / "logs", begin_later)
    rows = {row["offset"]: row for row in judge(spark, tmp_path / "logs")}
    assert [(rows[20][name]) for name in ("kind", "least", "most")] == [NEVER, None, None]
    assert rows[150]["kind"] == DATED

    def lose_beginning(line: dict[str, Any]) -> dict[str, Any]:
        if line["type"] == "log":
            line["sequence"] += 1
        for name in ("admittedBytes", "beganBytes", "endedBytes"):
            if name in line:
                line[name] += 7_000
        return line

    rewrite(tmp_path / "logs", lose_beginning)
    rows = {row["offset"]: row for row in judge(spark, tmp_path / "logs")}
    assert (rows[20]["kind"], rows[20]["most"]) == (UNKNOWN, None)
    assert rows[20]["least"] == 20_000, "at least all that was stored since the log begins"

    def drop(line: dict[str, Any]) -> dict[str, Any]:
        return line | {"droppedLines": 3} if line["type"] == "log" else line

    rewrite(tmp_path / "logs", drop)
    rows = {row["offset"]: row for row in judge(spark, tmp_path / "logs")}
    assert (rows[20]["kind"], rows[20]["least"], rows[20]["most"]) == (UNKNOWN, 0, None)


def test_what_is_stored_again_has_the_age_of_its_last_time_before_the_fetch(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A truncation: the same offsets are stored twice, and a fetch between sees the first."""
    steps: list[Step] = [Produce(0, 1000), Fetch(0, 0, 1), Produce(1, 5000), Fetch(0, 0, 1)]
    write_load(steps, CACHE_BYTES, tmp_path / "logs", tick_steps=1)

    def store_again(line: dict[str, Any]) -> dict[str, Any]:
        if line["type"] == "block" and line["partition"] == 1:
            line |= {"partition": 0, "topicId": "A" * 22}
        if line["type"] in ("block", "fetch"):
            line["topicId"] = "A" * 22
        if line["type"] == "fetch":
            line |= {"result": "miss", "reason": "evicted", "ageBytes": None}
        return line

    rewrite(tmp_path / "logs", store_again)
    rows = judge(spark, tmp_path / "logs")
    assert [(row["admittedBytes"], row["most"]) for row in rows] == [(1000, 1000), (6000, 5000)]


@pytest.mark.parametrize(
    ("lines", "salts"), [(0, 1), (SALTED_ROWS, 1), (SALTED_ROWS + 1, 2), (10**12, SALTS_MAX)]
)
def test_salts_follow_the_fetches(lines: int, salts: int) -> None:
    assert plan_salts(lines) == salts
