"""The sizing curve, against an explicit FIFO and the real block cache."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import pytest

from spark_audit import tables
from spark_audit.ages import (
    DATED,
    NEVER,
    UNKNOWN,
    build_ages,
    build_segments,
    find_log_starts,
    sum_ages,
)
from spark_audit.calibration import LEAST_SIZE_BYTES, Calibration, calibrate
from spark_audit.profile import build_load as profile_load
from spark_audit.profile import sum_boots, sum_partitions
from spark_audit.reading import find_inputs, good_lines, read_lines
from spark_audit.sizing import TARGETS, Ages, Bucket, Sizing, build_curves, plan_sizes
from spark_audit.summary import build_outlook
from spark_audit.sums import sum_boot_lines
from tests.spark_audit.replay import (
    Replayed,
    Shape,
    Step,
    build_load,
    fifo_ratio,
    replay,
    write_load,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark_audit.conftest import Audited

MIB = 1 << 20
EXACT_FIFO = Calibration(())
SHAPES = {
    "many partitions of small batches": (
        Shape([1] * 300, 1_000, 4_000, 30 * MIB, {0.6: 5e4, 0.3: 4e6, 0.1: 12e6}),
        8 * MIB,
    ),
    "few partitions of large batches": (
        Shape([5, 3, 2, 1], 20_000, 90_000, 100 * MIB, {0.6: 2e5, 0.3: 8e6, 0.1: 3e7}, 200_000),
        12 * MIB,
    ),
    "unequal partitions in bursts": (
        Shape(
            [1 / (1 + i) for i in range(60)],
            300,
            16_000,
            40 * MIB,
            {0.5: 5e4, 0.4: 8e6, 0.1: 15e6},
            burst=4,
        ),
        10 * MIB,
    ),
}


class Audit(NamedTuple):
    steps: list[Step]
    size_bytes: int
    replayed: Replayed
    sizing: Sizing


@pytest.fixture(scope="module", params=SHAPES)
def audit(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Audit:
    shape, size_bytes = SHAPES[request.param]
    steps = build_load(shape, seed=1)
    directory: Path = tmp_path_factory.mktemp("load")
    replayed = write_load(steps, size_bytes, directory)
    lines = read_lines(
        spark, find_inputs([str(directory)]), directory.with_name(f"{directory.name}-table")
    ).lines.persist()
    blocks = good_lines(lines, "block")
    load = profile_load(sum_boots(blocks), sum_partitions(blocks))
    assert load.has_batches and load.held_bytes == pytest.approx(replayed.held_bytes, rel=0.02)
    calibration = calibrate(load.classes, size_bytes, load.held_bytes)
    segments = build_segments(blocks).persist()
    starts = find_log_starts(
        row.asDict() for row in tables.boots(sum_boot_lines(lines), lines).collect()
    )
    ages = build_ages(good_lines(lines, "fetch"), segments, starts)
    sizing = build_curves(sum_ages(ages), calibration, size_bytes).whole
    lines.unpersist()
    segments.unpersist()
    return Audit(steps, size_bytes, replayed, sizing)


def test_at_every_size_the_curve_is_an_explicit_fifo(audit: Audit) -> None:
    sizing = audit.sizing
    assert (sizing.never_bytes, sizing.unknown_bytes) == (0, 0)
    assert sizing.hit_ratio(sizing.points[-1].hit_bytes) == 1
    for point in sizing.points:
        truth = fifo_ratio(audit.steps, point.held_bytes)
        assert sizing.hit_ratio(point.hit_bytes) == pytest.approx(truth, abs=0.001)
        assert point.possible_bytes == point.hit_bytes


def test_at_the_cache_s_size_the_curve_is_what_the_real_cache_hit(audit: Audit) -> None:
    point = audit.sizing.point_at(audit.size_bytes)
    assert audit.sizing.hit_ratio(point.hit_bytes) == pytest.approx(
        audit.replayed.hit_ratio, abs=0.01
    )


@pytest.mark.parametrize("target", [0.8, 0.9, 0.95, 0.99])
def test_the_recommended_size_gives_the_promised_ratio_in_the_real_cache(
    audit: Audit, target: float
) -> None:
    """And a size that gives it is within a tenth: real caches of 0.9 and 1.1 times the size lie on either side."""
    size_bytes = audit.sizing.find_size(target)
    assert size_bytes is not None
    point = audit.sizing.point_at(size_bytes)
    promised = audit.sizing.hit_ratio(point.hit_bytes)
    assert promised is not None and point.hit_bytes == point.possible_bytes
    assert target <= promised < target + 0.005
    real = replay(audit.steps, size_bytes).hit_ratio
    assert real == pytest.approx(promised, abs=0.01)
    smaller, larger = (
        replay(audit.steps, int(size_bytes * share)).hit_ratio for share in (0.9, 1.1)
    )
    assert smaller < promised < larger


def test_sizes_of_targets_are_those_that_are_found(audit: Audit) -> None:
    for one in audit.sizing.needed:
        assert one.size_bytes == audit.sizing.find_size(one.target)
        assert one.hit_ratio == one.possible_ratio >= one.target


COLUMNS = "boot string, topic string, bytes long, kind string, least long, most long"


def test_an_age_equal_to_the_held_bytes_is_a_hit_and_one_byte_more_a_miss(
    spark: SparkSession,
) -> None:
    held = EXACT_FIFO.held_bytes(MIB)
    for age, hits in ((held, 1), (held + 1, 0)):
        rows = [("x", "t", 10, DATED, age, age), ("x", "t", 5, DATED, 2 * held, 2 * held)]
        sizing = build_curves(sum_ages(spark.createDataFrame(rows, COLUMNS)), EXACT_FIFO, MIB).whole
        (point,) = [one for one in sizing.points if one.size_bytes == MIB]
        assert point[1:4] == (10 * hits, hits, held)
        assert sizing.hit_ratio(point.hit_bytes) == pytest.approx(hits * 2 / 3)


def test_nothing_is_called_a_hit_that_is_not_known_to_be(spark: SparkSession) -> None:
    rows = [
        ("x", "a", 100, DATED, 1_000, 1_000),
        ("y", "a", 10, DATED, 1_000, 10**9),
        ("x", "b", 7, NEVER, None, None),
        ("y", "b", 3, UNKNOWN, 500_000, None),
    ]
    ages = sum_ages(spark.createDataFrame(rows, COLUMNS))
    sizing, topics, of_boot = build_curves(ages, EXACT_FIFO, MIB, ["a", "b"], "y")
    assert (sizing.known_bytes, sizing.never_bytes, sizing.unknown_bytes) == (110, 7, 3)
    assert sizing.total_bytes == 120
    smallest, largest = sizing.points[0], sizing.points[-1]
    assert (smallest.hit_bytes, smallest.possible_bytes) == (100, 110)
    assert (largest.hit_bytes, largest.possible_bytes) == (110, 113)
    assert sizing.find_size(0.9) is not None and sizing.find_size(0.95) is None
    assert topics["a"].total_bytes == 110 and topics["b"].known_bytes == 0
    assert (of_boot.known_bytes, of_boot.never_bytes, of_boot.unknown_bytes) == (10, 0, 3)
    assert topics["b"].needed == () and topics["b"].hit_ratio(0) == 0


def test_the_curve_of_a_log_without_fetches_is_empty(spark: SparkSession) -> None:
    sizing = build_curves(sum_ages(spark.createDataFrame([], COLUMNS)), EXACT_FIFO, None).whole
    assert sizing.needed_bytes == {} and sizing.hit_ratio(0) is None
    assert {point.hit_bytes for point in sizing.points} == {0}


def test_sums_by_age_are_even_between_the_least_and_the_greatest_of_a_bucket() -> None:
    ages = Ages([Bucket(100, 199, 1000, 10), Bucket(50, 50, 7, 1)])
    assert [ages.within(size) for size in (49, 50, 99, 100, 149, 199, 500)] == [
        (0, 0),
        (7, 1),
        (7, 1),
        (17, 1),
        (507, 6),
        (1007, 11),
        (1007, 11),
    ]
    assert ages.find_age(7) == 50 and ages.find_age(1007) == 199
    assert ages.within(ages.find_age(500))[0] == pytest.approx(500, abs=10)


def test_the_needed_sizes_reach_their_targets(audited: Audited) -> None:
    sizing = audited.findings.sizing
    assert [one.target for one in sizing.needed] == list(TARGETS)
    for one in sizing.needed:
        enough = math.ceil(one.target * sizing.known_bytes)
        assert sizing.point_at(one.size_bytes).hit_bytes >= enough - 1
    assert list(sizing.needed_bytes.values()) == sorted(sizing.needed_bytes.values())


def test_curves_of_topics_add_up(audited: Audited) -> None:
    findings = audited.findings
    assert set(findings.topic_sizing) == {row["topic"] for row in findings.topics}
    for name in ("total_bytes", "known_bytes", "never_bytes", "unknown_bytes"):
        parts = [getattr(one, name) for one in findings.topic_sizing.values()]
        assert sum(parts) == getattr(findings.sizing, name)


def test_the_population_is_hits_misses_and_what_was_observed(audited: Audited) -> None:
    served = [line for line in audited.traffic.fetches if line.result != "pass" and line.bytes]
    assert audited.findings.sizing.total_bytes == sum(line.bytes for line in served)
    assert build_outlook(audited.findings).observed_ratio is not None


def test_sizes_reach_beyond_the_greatest_age_and_hold_the_current_one() -> None:
    sizes = plan_sizes(1 << 30, 3_000_000, EXACT_FIFO)
    assert sizes == tuple(sorted(sizes)) and 3_000_000 in sizes
    assert EXACT_FIFO.held_bytes(sizes[-1]) >= 1 << 30 > EXACT_FIFO.held_bytes(sizes[-2])
    assert plan_sizes(0, None, EXACT_FIFO) == (LEAST_SIZE_BYTES,)
