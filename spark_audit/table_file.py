"""Batches of rows as what Spark writes: whole Parquet files, or rows with the columns of every type.

Owns the encoding of Parquet files and their closing bytes. Must not know logs, Spark or where files go: Spark's workers
run it. Invariants: a task makes one file for each of the values that the table is partitioned by; memory is bounded by
ROW_GROUP_ROWS rows of each and by the files themselves, which are as small as the task's stored files.

Arrow encodes a row in a tenth of the time that it takes Spark to take it over, turn it into one of its own, and encode
it. Spark stores the bytes wherever it can: as lines of text whose separator is what ends every Parquet file.
"""

import io
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from spark_audit.log_file import table_schema

MAGIC: Final = "PAR1"
"""The first and last bytes of a Parquet file (apache/parquet-format, README, "File format")."""
PARTITIONED_BY: Final = ("date", "broker", "type", "ingest")
CONTENT: Final = "content"
ROW_GROUP_ROWS: Final = 200_000
_COMPRESSION: Final = "snappy"
_PLAIN: Final = frozenset(
    {
        *("offset", "bytes", "lag", "ageBytes", "waitMs", "totalMs", "delayMs", "baseOffset"),
        *("nextOffset", "beganBytes", "endedBytes", "report"),
    }
)
"""Columns of which hardly two values are equal: a dictionary would be made and thrown away."""

FilePlace = tuple[str, ...]
"""Values of PARTITIONED_BY."""


def pack_files(batches: Iterable[Any]) -> Iterator[Any]:
    """One row for each file: what it is partitioned by, and its bytes without the closing MAGIC."""
    files: dict[FilePlace, _File] = {}
    for batch in batches:
        key = tuple(batch.column(name)[0].as_py() for name in PARTITIONED_BY)
        rows = batch.drop_columns(list(PARTITIONED_BY))
        if key not in files:
            files[key] = _File(rows.schema)
        files[key].add(rows)
    while files:
        key, file = files.popitem()
        yield _row_of(key, file.close())


def build_file(table: Any) -> bytes:
    """A small Arrow table as one Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression=_COMPRESSION)
    return sink.getvalue()


def widen(batch: Any) -> Any:
    """The batch with the columns of every type."""
    count, present = batch.num_rows, set(batch.schema.names)
    columns = [
        batch.column(one.name) if one.name in present else pa.nulls(count, one.type)
        for one in table_schema()
    ]
    return pa.record_batch(columns, schema=table_schema())


class _File:
    """A Parquet file in memory."""

    def __init__(self, schema: Any) -> None:
        self._sink = io.BytesIO()
        names = [one.name for one in schema if one.name not in _PLAIN]
        flat = [name for name in names if not pa.types.is_nested(schema.field(name).type)]
        self._writer = pq.ParquetWriter(
            self._sink, schema, compression=_COMPRESSION, use_dictionary=flat
        )
        self._held: list[Any] = []
        self._rows = 0

    def add(self, rows: Any) -> None:
        """Batches wait until they are a row group."""
        self._held.append(rows)
        self._rows += rows.num_rows
        if self._rows >= ROW_GROUP_ROWS:
            self._flush()

    def close(self) -> memoryview:
        """The bytes without the last four."""
        self._flush()
        self._writer.close()
        data = self._sink.getbuffer()
        end = len(data) - len(MAGIC)
        if bytes(data[end:]) != MAGIC.encode():
            raise ValueError("the file does not end as Parquet files do")
        return data[:end]

    def _flush(self) -> None:
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held))
        self._held, self._rows = [], 0


def _row_of(key: FilePlace, content: memoryview) -> Any:
    """Bytes that are no UTF-8, in a column of strings: Spark's text writer takes no other, and copies them as they
    are (TextOutputWriter.write).
    """
    offsets = pa.array([0, len(content)], pa.int32()).buffers()[1]
    text = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(content)])
    arrays = [*(pa.array([value], pa.string()) for value in key), text]
    return pa.record_batch(arrays, names=[*PARTITIONED_BY, CONTENT])
