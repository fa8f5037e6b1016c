"""Rows of collected tables stand as Spark would order them, and their files are Parquet."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from spark_audit.report_tables import COLLECTED, TOP, WrittenTables, sort_rows
from spark_audit.table_file import build_file


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
    top = WrittenTables({"by_topic": rows}, {}).top("by_topic", "topic")
    assert len(top) == TOP
    assert [row["topic"] for row in top[:5]] == ["t09", "t19", "t29", "t39", "t08"]
    assert "by_partition" not in COLLECTED and "by_client" not in COLLECTED


def test_a_small_table_is_a_parquet_file() -> None:
    table = pa.table({"topic": ["a", None], "bytes": [1, 2], "ratio": [0.5, None]})
    assert pq.read_table(io.BytesIO(build_file(table))).equals(table)
