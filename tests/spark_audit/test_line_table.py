"""Of a table only what a question needs is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark_audit.line_table import LineTable
from spark_audit.log_file import UNKNOWN_BROKER
from tests.spark_audit.test_ledger import report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = [("1", "a"), ("1", "worker of a"), ("2", "b"), (UNKNOWN_BROKER, "another worker of a")]


@pytest.mark.parametrize(
    ("brokers", "seen"),
    [
        ({"a": "1", "b": "2"}, {"a", "worker of a", "another worker of a"}),
        ({"a": UNKNOWN_BROKER, "b": "2"}, {boot for _, boot in ROWS}),
        ({"b": "2"}, {boot for _, boot in ROWS}),
        ({"a": "1", "b": "1"}, {boot for _, boot in ROWS}),
    ],
    ids=[
        "its broker's and those of nobody",
        "all: it may be anybody's",
        "all: nobody names it",
        "all: there is no other broker",
    ],
)
def test_lines_near_a_boot(spark: SparkSession, brokers: dict[str, str], seen: set[str]) -> None:
    lines = spark.createDataFrame(ROWS, "broker string, boot string")
    reports = tuple(report(1, boot=boot, broker=broker) for boot, broker in brokers.items())
    near = LineTable(lines, reports, None).find_near("a")  # type: ignore[arg-type]
    assert {row["boot"] for row in near.collect()} == seen
    assert (near is lines) is (len(seen) == len(ROWS)), "what is cached of all serves"
