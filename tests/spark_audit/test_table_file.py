"""Files of the table as workers make them: what was packed is read back, by Arrow and by Spark's own writer's rules."""

from __future__ import annotations

import io
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metrics.access_log_schema import READ_VERSIONS
from spark_audit import table_file
from spark_audit.line_table import lines_uri, row_struct
from spark_audit.log_file import read_file, table_schema
from spark_audit.reading import find_inputs, read_lines
from spark_audit.table_file import CONTENT, MAGIC, PARTITIONED_BY, pack_files, widen
from tests.spark_audit.traffic import write_log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("packed") / "logs"
    for version in READ_VERSIONS:
        write_log(directory, f"v{version}", rounds=300, version=version)
    return directory


def read(logs: Path) -> Iterator[Any]:
    for number, path in enumerate(sorted(logs.rglob("*.jsonl*"))):
        yield from read_file(number, str(path), path.read_bytes(), "now")


def unpack(packed: Any) -> dict[tuple[str, ...], Any]:
    """By what the files are partitioned by: the table in each. What follows the bytes is the writer's separator."""
    found = {}
    for row in packed:
        assert row.num_rows == 1
        key = tuple(row.column(name)[0].as_py() for name in PARTITIONED_BY)
        assert key not in found, "one file for each task and key"
        offsets, data = row.column(CONTENT).buffers()[1:]
        begin, end = pa.Array.from_buffers(pa.int32(), 2, [None, offsets]).to_pylist()
        found[key] = pq.read_table(io.BytesIO(data.to_pybytes()[begin:end] + MAGIC.encode()))
    return found


@pytest.mark.parametrize("group_rows", [7, 200_000])
def test_files_hold_the_rows_that_were_read_with_the_columns_of_their_type(
    logs: Path, monkeypatch: pytest.MonkeyPatch, group_rows: int
) -> None:
    monkeypatch.setattr(table_file, "ROW_GROUP_ROWS", group_rows)
    files = unpack(pack_files(read(logs)))
    assert {key[2] for key in files} >= {"fetch", "empty", "block", "log", "report"}
    expected: dict[tuple[str, ...], list[Any]] = {}
    for batch in read(logs):
        key = tuple(batch.column(name)[0].as_py() for name in PARTITIONED_BY)
        expected.setdefault(key, []).append(batch.drop_columns(list(PARTITIONED_BY)))
    assert files.keys() == expected.keys()
    for key, batches in expected.items():
        assert len({str(batch.schema) for batch in batches}) == 1, "of all versions"
        assert files[key].equals(pa.Table.from_batches(batches)), key
        assert len(files[key].column_names) < len(table_schema().names) / 2


def test_a_wide_batch_has_every_column_and_the_same_rows(logs: Path) -> None:
    for batch in read(logs):
        wide = widen(batch)
        assert wide.schema == table_schema()
        assert wide.select(batch.schema.names).equals(batch)
        others = [name for name in wide.schema.names if name not in batch.schema.names]
        assert all(wide.column(name).null_count == batch.num_rows for name in others)


def test_spark_stores_every_byte_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    """Bytes that are no UTF-8, line ends and the separator itself among them."""
    draw = random.Random(5)
    data = draw.randbytes(300_000) + b"\r\n\0PAR1\n\xff\xfe" + draw.randbytes(10)
    row = table_file._row_of(("d", "b", "t", "i"), memoryview(data))
    schema = ", ".join(f"{name} string" for name in row.schema.names)
    rows = spark.range(1).mapInArrow(lambda batches: (row for _ in batches), schema)
    writer = rows.write.format("text").option("lineSep", MAGIC).option("compression", "none")
    writer.partitionBy(*PARTITIONED_BY).save(str(tmp_path / "stored"))
    (stored,) = (tmp_path / "stored").rglob("part-*")
    assert stored.read_bytes() == data + MAGIC.encode()


def test_one_task_s_files_and_many_tasks_files_are_one_table(
    spark: SparkSession, logs: Path, tmp_path: Path
) -> None:
    table = read_lines(spark, find_inputs([str(logs)]), tmp_path / "table")
    rows = spark.read.schema(row_struct()).parquet(lines_uri(str(tmp_path / "table")))
    counted = {row["type"]: row["count"] for row in rows.groupBy("type").count().collect()}
    packed = unpack(pack_files(read(logs)))
    expected: dict[str, int] = {}
    for key, held in packed.items():
        expected[key[2]] = expected.get(key[2], 0) + held.num_rows
    assert counted == expected
    assert table.lines.count() == sum(expected.values()) - expected["report"]
