"""Lines of a growing log, stored once each by Structured Streaming.

Owns the folder of a followed report: checkpoints, and the table of what was read. Must not know what is computed from
the lines. Invariants: a compressed file does not change, so a stream hands it to `ingest` once, by its checkpoint; a
batch that is repeated after a kill finds its files in the table and adds nothing; files that still grow are read anew
each time, into a table beside; one process at a time follows into a folder.

    <folder>/checkpoint/    Spark's, by name of the logs: which files belong to which batch, and which batches are done
    <folder>/finished/      a table of `ingest`: lines of compressed files
    <folder>/growing/       a table of `ingest`: lines of the others, until the next look
"""

import fcntl
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from metrics.access_log_schema import SCHEMA_VERSION
from spark_audit.ingest import ingest
from spark_audit.ledger import build_ledger
from spark_audit.line_table import LineTable, empty_table, is_table, open_table
from spark_audit.storage import Store, escape_glob, to_uri

_FORM: Final = {"schemaVersion": SCHEMA_VERSION, "layout": 2}
_FORM_FILE: Final = "form.json"
_FILE_COLUMNS: Final = "path string, modificationTime timestamp, length long, content binary"
"""As Spark's binaryFile has them; the content is not read."""


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


def read_followed(
    spark: SparkSession, folder: Path, logs: Sequence[str], say: Callable[[str], None]
) -> LineTable:
    """All lines of the logs, as one `ingest` of them would have them, and those of compressed files that are gone."""
    store = Store(spark)
    listing = store.list_logs(logs)
    growing = [file.uri for file in listing.files if not file.uri.endswith(".gz")]
    finished_table, growing_table = (to_uri(folder / name) for name in ("finished", "growing"))
    for name in logs:
        if any(file.uri.endswith(".gz") for file in store.list_logs([name]).files):
            _ingest_finished(spark, store, folder, to_uri(name), finished_table, say)
    store.delete(growing_table)
    if growing:
        ingest(spark, growing, growing_table, say=say)
    tables = [uri for uri in (finished_table, growing_table) if is_table(store, uri)]
    if not tables:
        return empty_table(spark, build_ledger([], listing.unreadable, listing.skipped))
    table = open_table(spark, store, tables)
    not_read = {
        entry.path: entry.text for entry in table.ledger.entries if entry.kind == "not-read"
    }
    ledger = build_ledger(table.reports, not_read | listing.unreadable, listing.skipped)
    return replace(table, ledger=ledger, parts=()) if table.reports else empty_table(spark, ledger)


def _ingest_finished(
    spark: SparkSession,
    store: Store,
    folder: Path,
    logs: str,
    table: str,
    say: Callable[[str], None],
) -> None:
    """Compressed files below `logs` that no earlier batch had, into the table."""

    def add(batch: DataFrame, number: int) -> None:
        uris = sorted(row["path"] for row in batch.select("path").collect())
        if uris:
            ingest(spark, uris, table, say=say)

    reader = spark.readStream.format("binaryFile").schema(_FILE_COLUMNS)
    reader = reader.option("pathGlobFilter", "*.jsonl.gz").option("recursiveFileLookup", "true")
    files = reader.load(escape_glob(logs) if store.exists(logs) else logs)
    key = hashlib.sha256(logs.encode()).hexdigest()[:16]
    writer = files.writeStream.foreachBatch(add).trigger(availableNow=True)
    query = writer.option("checkpointLocation", to_uri(folder / "checkpoint" / key)).start()
    query.awaitTermination()
