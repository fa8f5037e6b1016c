"""Lines of a growing log, stored once each by Structured Streaming.

Owns the folder of a followed report: spool, checkpoint and stored lines. Must not know what is computed from the lines.
Invariants: a stream's batch writes one partition of the stored lines and replaces it if it is repeated, so that each
line is stored once, whenever the process is killed; chunks are removed only when the stream has committed them; one
process at a time follows into a folder.

    <folder>/spool/         new lines as files that never change (spool.py)
    <folder>/checkpoint/    Spark's: which chunks belong to which batch, and which batches are done
    <folder>/lines/         Parquet, parsed, by batch
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from metrics.access_log_schema import SCHEMA_VERSION
from spark_audit.spool import Spool, build_key, name_uncompressed
from spark_audit.storage import escape_glob
from spark_audit.text_lines import FollowedFiles, locate, parse_lines

TAKE_BYTES: Final = 1 << 30
"""Of the logs at a time: the spool needs so much space, and a chunk."""
_FORM: Final = {"schemaVersion": SCHEMA_VERSION, "layout": 1}
_FORM_FILE: Final = "form.json"
_TEXT: Final = StructType([StructField("value", StringType())])
_PART_BYTES: Final = 128 << 20


class CannotFollow(Exception):
    """The folder belongs to another process or another version; the message says what to do."""


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Keep other processes from following into `folder`. CannotFollow: one does, or another version did."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CannotFollow(f"another forebay audit --follow writes to {folder}") from error
        form = folder / _FORM_FILE
        if not form.exists():
            form.write_text(json.dumps(_FORM), encoding="utf-8")
        elif json.loads(form.read_text(encoding="utf-8")) != _FORM:
            raise CannotFollow(
                f"{folder} is of another version of the audit: remove it to begin anew"
            )
        yield


def store_new_lines(spark: SparkSession, folder: Path, inputs: FollowedFiles) -> int:
    """Store all whole lines that the inputs' files have more than before; returns their bytes. A batch that an earlier
    process left unfinished is finished first.
    """
    spool, stored_bytes = Spool(folder / "spool"), 0
    _run_stream(spark, folder, spool)
    while taken_bytes := spool.take(inputs.files, TAKE_BYTES):
        stored_bytes += taken_bytes
        _run_stream(spark, folder, spool)
    return stored_bytes


def read_stored(spark: SparkSession, folder: Path, inputs: FollowedFiles) -> DataFrame:
    """The stored lines, as `reading.read_lines` has them: with the name that each file has among the inputs now, and
    with its name before compression if it is no longer there.
    """
    lines = escape_glob(locate(folder / "lines"))
    stored = spark.read.schema(_stored_struct(spark)).parquet(lines).drop("batch")
    positions = Spool(folder / "spool").positions()
    names = {key: position.path for key, position in positions.items()}
    names |= {build_key(name_uncompressed(path)): str(path) for path in inputs.files}
    rows = [(key, Path(name).as_uri()) for key, name in names.items()]
    files = spark.createDataFrame(rows, "key string, file string")
    return stored.join(F.broadcast(files), "key", "left").drop("key")


def _run_stream(spark: SparkSession, folder: Path, spool: Spool) -> None:
    """All chunks of the spool into the stored lines, then none is left in the spool."""

    def store(batch: DataFrame, number: int) -> None:
        parsed = parse_lines(batch)
        key = F.element_at(F.split("file", "/"), -2)
        lines = parsed.withColumn("key", key).drop("file")
        path = locate(folder / "lines" / f"batch={number}")
        size_bytes = sum(chunk.stat().st_size for chunk in (folder / "spool").glob("*/*.jsonl"))
        lines.coalesce(1 + size_bytes // _PART_BYTES).write.mode("overwrite").parquet(path)

    chunks = f"{escape_glob(locate(folder / 'spool'))}/*/*.jsonl"
    reader = spark.readStream.schema(_TEXT).option("lineSep", "\n").option("latestFirst", "false")
    writer = reader.text(chunks).writeStream.foreachBatch(store).trigger(availableNow=True)
    query = writer.option("checkpointLocation", locate(folder / "checkpoint")).start()
    query.awaitTermination()
    spool.clear()


def _stored_struct(spark: SparkSession) -> StructType:
    """The columns of the stored lines: those of parsed ones, with a key instead of a file."""
    parsed = parse_lines(spark.createDataFrame([], _TEXT)).drop("file").schema
    return StructType([*parsed.fields, StructField("key", StringType())])
