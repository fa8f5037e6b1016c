"""Rows of collected tables stand as Spark would order them, and their files are Parquet."""

from __future__ import annotations

import io
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_audit import report_tables
from spark_audit.report_tables import (
    COLLECTED,
    TOP,
    WrittenTable,
    WrittenTables,
    sort_rows,
    split_reasons,
    write_tables,
)
from spark_audit.storage import StoreError, to_uri
from spark_audit.table_file import build_file

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_rows_are_ordered_with_null_first_by_key_and_last_by_most() -> None:
    rows: list[dict[str, object]] = [
        {"topic": "b", "bytes": 3},
        {"topic": "a", "bytes": None},
        {"topic": None, "bytes": 3},
        {"topic": "a", "bytes": 9},
    ]
    by_topic = [(row["topic"], row["bytes"]) for row in sort_rows(rows, "topic")]
    assert by_topic == [(None, 3), ("a", None), ("a", 9), ("b", 3)]
    by_bytes = [(row["topic"], row["bytes"]) for row in sort_rows(rows, "topic", most="bytes")]
    assert by_bytes == [("a", 9), (None, 3), ("b", 3), ("a", None)]


def test_the_top_of_a_collected_table_is_a_page() -> None:
    rows = [{"topic": f"t{number:02}", "bytes": number % 10} for number in range(40)]
    made: Future[WrittenTable] = Future()
    made.set_result(WrittenTable(rows, lambda: pytest.fail("it is not read back")))
    top = WrittenTables({"by_topic": made}).top("by_topic", "topic")
    assert len(top) == TOP
    assert [row["topic"] for row in top[:5]] == ["t09", "t19", "t29", "t39", "t08"]
    assert "by_partition" not in COLLECTED and "by_client" not in COLLECTED


def test_a_small_table_is_a_parquet_file() -> None:
    table = pa.table({"topic": ["a", None], "bytes": [1, 2], "ratio": [0.5, None]})
    assert pq.read_table(io.BytesIO(build_file(table))).equals(table)


def test_totals_misses_and_passes_are_of_one_table() -> None:
    names = ("topic", "result", "reason", "partitions", "bytes")
    rows = [
        ("a", "hit", "", 3, 30),
        ("b", "hit", "", 4, 40),
        ("a", "miss", "cold", 1, 5),
        ("b", "miss", "cold", 1, 6),
        ("b", "pass", "follower", 2, 7),
    ]
    table = pa.table({name: [row[place] for row in rows] for place, name in enumerate(names)})
    parts = {name: part.to_pylist() for name, part in split_reasons(table).items()}
    assert sort_rows(parts["totals"], "result") == [
        {"result": "hit", "reason": "", "partitions": 7, "bytes": 70},
        {"result": "miss", "reason": "cold", "partitions": 2, "bytes": 11},
        {"result": "pass", "reason": "follower", "partitions": 2, "bytes": 7},
    ]
    assert [row["bytes"] for row in parts["misses"]] == [5, 6]
    assert parts["passes"] == [{"topic": "b", "reason": "follower", "partitions": 2, "bytes": 7}]
    assert split_reasons(table.slice(0, 0))["totals"].num_rows == 0


def write(spark: SparkSession, directory: Path) -> WrittenTables:
    rows = [(f"client {number % 7}", 10 * (number % 3) or None) for number in range(21)]
    planned = {"by_client": spark.createDataFrame(rows, "clientId string, bytes long").distinct()}
    with ThreadPoolExecutor(1) as pool:
        return write_tables(pool, spark, planned, to_uri(directory), lambda text: None)


@pytest.mark.parametrize("collected", [1, 21])
def test_a_table_has_the_same_rows_whoever_writes_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collected: int
) -> None:
    monkeypatch.setattr(report_tables, "COLLECTED_ROWS", collected)
    for _ in range(2):  # the second replaces the first
        written = write(spark, tmp_path)
        written.wait()
    assert (written.made["by_client"].result().rows is None) == (collected == 1)
    top = written.top("by_client", "clientId", count=8)
    assert [(row["clientId"], row["bytes"]) for row in top] == [
        *((f"client {number}", 20) for number in range(7)),
        ("client 0", 10),
    ]
    read = [row.asDict() for row in written.frame("by_client").collect()]
    stored = pq.read_table(tmp_path / "by_client").to_pylist()
    assert len(read) == 21 and sort_rows(read, "clientId", "bytes") == sort_rows(
        stored, "clientId", "bytes"
    )


def test_a_table_that_cannot_be_written_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError):
        write(spark, tmp_path / "file").wait()
