"""The sizing curve is the definition, computed the slow way."""

import math

import pytest
from pyspark.sql import SparkSession

from spark_audit.sizing import SMALLEST_BYTES, TARGETS, build_sizing, plan_sizes
from spark_audit.summary import build_outlook
from tests.spark_audit.conftest import CACHE_SIZE_BYTES, Audited

COLUMNS = "result string, reason string, bytes long, ageBytes long"


def test_each_size_hits_what_is_younger_than_it(audited: Audited) -> None:
    served = [line for line in audited.traffic.fetches if line.result != "pass" and line.bytes]
    sizing = audited.findings.sizing
    for point in sizing.points:
        younger = [
            line
            for line in served
            if line.age_bytes is not None and line.age_bytes < point.size_bytes
        ]
        assert point.hit_bytes == sum(line.bytes for line in younger)
        assert point.hit_partitions == len(younger)
    unknown = [line for line in served if line.age_bytes is None]
    assert (sizing.unknown_bytes, sizing.unknown_partitions) == (
        sum(line.bytes for line in unknown),
        len(unknown),
    )
    assert sizing.total_bytes == sum(line.bytes for line in served)


def test_the_needed_sizes_are_the_smallest(audited: Audited) -> None:
    served = [
        line
        for line in audited.traffic.fetches
        if line.result != "pass" and line.age_bytes is not None
    ]
    sizing = audited.findings.sizing
    for target in TARGETS:
        enough = math.ceil(target * sizing.known_bytes)
        size = sizing.needed_bytes[target]
        assert sum(line.bytes for line in served if (line.age_bytes or 0) < size) >= enough
        assert sum(line.bytes for line in served if (line.age_bytes or 0) < size - 1) < enough


def test_at_the_cache_s_size_the_curve_is_what_was_observed_but_for_other_reasons(
    audited: Audited,
) -> None:
    findings = audited.findings
    assert findings.cache_size_bytes == CACHE_SIZE_BYTES
    outlook = build_outlook(findings)
    (unproven,) = [row["bytes"] for row in findings.totals if row["reason"] == "unproven"]
    assert outlook.predicted_ratio is not None and outlook.observed_ratio is not None
    difference = (outlook.predicted_ratio - outlook.observed_ratio) * findings.sizing.total_bytes
    assert round(difference) == unproven > 0


def test_an_age_equal_to_the_size_is_a_miss(spark: SparkSession) -> None:
    fetches = spark.createDataFrame(
        [
            ("hit", "", 10, SMALLEST_BYTES - 1),
            ("miss", "evicted", 5, SMALLEST_BYTES),
            ("pass", "follower", 99, 0),
            ("pass", "observe", 3, SMALLEST_BYTES),
        ],
        COLUMNS,
    )
    sizing = build_sizing(fetches, None)
    assert [point.hit_bytes for point in sizing.points] == [10, 18]
    assert sizing.needed_bytes == dict.fromkeys(TARGETS, SMALLEST_BYTES + 1)


@pytest.mark.parametrize(
    "rows",
    [[("pass", "mixed", 10, 5)], [("miss", "cold", 10, None)], [("hit", "", 0, 0)]],
    ids=["passes", "unknown", "empty"],
)
def test_without_known_ages_there_is_a_flat_curve_and_no_needed_size(
    spark: SparkSession, rows: list
) -> None:
    sizing = build_sizing(spark.createDataFrame(rows, COLUMNS), 1 << 20)
    assert sizing.needed_bytes == {}
    assert {point.hit_bytes for point in sizing.points} == {0}


def test_sizes_reach_beyond_the_greatest_age_and_hold_the_current_one() -> None:
    sizes = plan_sizes(1 << 30, 3_000_000)
    assert sizes == tuple(sorted(sizes)) and 3_000_000 in sizes
    assert sizes[-1] > 1 << 30 >= sizes[-2]
    assert plan_sizes(0, None) == (SMALLEST_BYTES,)
