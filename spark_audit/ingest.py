"""From log files to rows of the table: what is new, read once by Spark's workers.

Owns the choice of files, the job that reads them, and the order of its steps: rows and reports are written, then
committed. Must not know the command line. Invariants: a file whose path, size and time are those of an ingested one
is not read again; a file that vanishes while the job runs is looked for under its compressed name; what could not
be read is in the commit, with the reason.
"""

import hashlib
import secrets
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_audit import log_file, table_file
from spark_audit.ledger import Ledger, build_ledger
from spark_audit.line_table import (
    DEFAULT_FORMAT,
    Commit,
    TableError,
    is_table,
    lines_uri,
    open_table,
    read_commits,
    read_reports,
    row_struct,
    write_commit,
)
from spark_audit.session import (
    SPARK_ERRORS,
    describe_spark_error,
    is_local,
    plan_partition_bytes,
)
from spark_audit.storage import Listing, Store, StoredFile, escape_glob
from spark_audit.units import show_bytes

MAX_FILE_BYTES: Final = 1 << 30
"""A worker holds a stored file in memory; the sidecar's have 64 MiB before they are compressed."""
OPEN_COST_BYTES: Final = 64 << 10
"""What opening a file counts for in a task's share. Spark's own 4 MiB would make each small file a task, and each
task's rows files of their own.
"""
PASSES: Final = 3
"""Jobs that read files, at most: a file that vanished is looked for under its compressed name."""
ICEBERG: Final = "iceberg"
_PACKED: Final = ", ".join(
    f"{name} string" for name in (*table_file.PARTITIONED_BY, table_file.CONTENT)
)
_VANISHED: Final = "vanished while it was read"


class WorkersUnready(Exception):
    """Spark's workers cannot run the reading; the message says what they need."""


class Ingested(NamedTuple):
    """What an ingest did: files and stored bytes read, and the ledger of the whole table."""

    files: int
    stored_bytes: int
    ledger: Ledger


def ingest(
    spark: SparkSession,
    logs: Sequence[str | Path],
    table: str,
    *,
    data_format: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Ingested:
    """Add what is new of `logs` to the table at the URI `table`. TableError: it is no table of this format."""
    store = Store(spark)
    known: list[Commit] = []
    if is_table(store, table):
        found, known = read_commits(store, table)
        if data_format not in (None, found) and known:
            raise TableError(f"{table} is of format {found}, not {data_format}")
        data_format = found if known else data_format
    listing = store.list_logs(logs)
    done = _read_new(spark, store, table, data_format or DEFAULT_FORMAT, listing, known, say)
    if not any(one.files for one in (*known, *done)):
        return Ingested(0, 0, build_ledger([], _not_read(done), listing.skipped))
    ledger = open_table(spark, store, [table]).ledger
    files = [file for commit in done for file in commit.files]
    return Ingested(len(files), sum(file.size_bytes for file in files), ledger)


def _not_read(commits: Sequence[Commit]) -> dict[str, str]:
    return {uri: why for commit in commits for uri, why in commit.not_read.items()}


def plan_new(listing: Listing, known: Sequence[Commit]) -> tuple[list[StoredFile], dict[str, str]]:
    """The files to read, and those that are empty or too large, with the reason."""
    seen = {tuple(file) for commit in known for file in commit.files}
    wanted, refused = [], {}
    for file in listing.files:
        if tuple(file) in seen:
            continue
        if not file.size_bytes:
            refused[file.uri] = "it is empty"
        elif file.size_bytes > MAX_FILE_BYTES:
            refused[file.uri] = f"larger than {MAX_FILE_BYTES >> 20} MiB: split it, or compress it"
        else:
            wanted.append(file)
    return wanted, refused


def _read_new(
    spark: SparkSession,
    store: Store,
    table: str,
    data_format: str,
    listing: Listing,
    known: Sequence[Commit],
    say: Callable[[str], None],
) -> list[Commit]:
    """Read and commit in as many passes as vanishing and unreadable files ask for, at most PASSES with rows. A job that
    a file has failed is repeated without it.
    """
    wanted, not_read = plan_new(listing, known)
    not_read |= listing.unreadable
    commits: list[Commit] = []
    while wanted and len(commits) < PASSES:
        say(f"reading {len(wanted)} files, {show_bytes(sum(one.size_bytes for one in wanted))}")
        name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"
        numbers = {file.uri: place for place, file in enumerate(wanted)}
        try:
            _append(spark, table, data_format, name, wanted, numbers)
        except SPARK_ERRORS as error:
            _raise_unready(error)
            closed = [one for one in wanted if store.find_fault(one.uri)]
            if not closed:
                raise
            found = _find_again(store, closed, not_read)
            wanted = [one for one in wanted if one not in closed] + found
            continue
        read = _reported(spark, store, table, data_format, name)
        commit = Commit(name, tuple(one for one in wanted if one.uri in read), {}, ())
        write_commit(store, table, data_format, commit)
        commits.append(commit)
        wanted = _find_again(store, [one for one in wanted if one.uri not in read], not_read)
    not_read |= {one.uri: _VANISHED for one in wanted}
    if not_read or listing.skipped or not (commits or known):
        name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"
        rest = Commit(name, (), not_read, listing.skipped)
        write_commit(store, table, data_format, rest)
        commits.append(rest)
    return commits


def _append(
    spark: SparkSession,
    table: str,
    data_format: str,
    name: str,
    files: Sequence[StoredFile],
    numbers: dict[str, int],
) -> None:
    """One job: stored files in, rows and reports out. Of the default format, workers make whole files."""
    _ship_code(spark)
    total = sum(file.size_bytes for file in files)
    session: Any = spark.newSession()
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    session.conf.set("spark.sql.files.maxPartitionBytes", str(plan_partition_bytes(spark, total)))
    session.conf.set("spark.sql.files.openCostInBytes", str(OPEN_COST_BYTES))
    session.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    session.conf.set("spark.sql.sources.parallelPartitionDiscovery.threshold", "100000")
    session.conf.set("spark.sql.maxConcurrentOutputFileWriters", "64")

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            paths = batch.column(0).to_pylist()
            for place, path in enumerate(paths):
                data = batch.column(1)[place].as_buffer()
                yield from log_file.read_file(numbers[path], path, data, name)

    def read_wide(batches: Iterator[Any]) -> Iterator[Any]:
        return map(table_file.widen, read(batches))

    def read_packed(batches: Iterator[Any]) -> Iterator[Any]:
        return table_file.pack_files(read(batches))

    stored = session.read.format("binaryFile").load([escape_glob(file.uri) for file in files])
    named = stored.select("path", "content")
    if data_format == DEFAULT_FORMAT:
        packed: DataFrame = named.mapInArrow(read_packed, _PACKED)
        writer = packed.write.format("text").option("lineSep", table_file.MAGIC)
        writer = writer.option("compression", "none")
    else:
        rows: DataFrame = named.mapInArrow(read_wide, row_struct())
        if data_format == ICEBERG and not Store(spark).exists(lines_uri(table)):
            _make_iceberg(spark, rows, lines_uri(table))
        writer = rows.write.format(data_format)
        if data_format != ICEBERG:
            writer = writer.option("mergeSchema", "true")
    writer.mode("append").partitionBy(*table_file.PARTITIONED_BY).save(lines_uri(table))


def _make_iceberg(spark: SparkSession, rows: DataFrame, uri: str) -> None:
    """An empty table for these rows: Spark's writer makes tables of a catalog alone, and none at a path. TableError:
    Iceberg's classes are not there.
    """
    context: Any = spark.sparkContext
    iceberg = context._jvm.org.apache.iceberg
    try:
        schema = iceberg.spark.SparkSchemaUtil.convert(cast("Any", rows)._jdf.schema())
    except TypeError as error:  # the name of a class that is not there is a package to Py4J
        raise TableError(
            "Iceberg is not among Spark's jars: name its runtime for this Spark by --conf spark.jars=FILE"
        ) from error
    spec = iceberg.PartitionSpec.builderFor(schema)
    for name in table_file.PARTITIONED_BY:
        spec = spec.identity(name)
    iceberg.hadoop.HadoopTables(context._jsc.hadoopConfiguration()).create(
        schema, spec.build(), uri
    )


def _raise_unready(error: Exception) -> None:
    """WorkersUnready, if that is why the job failed."""
    text = str(error)
    for sign in ("ModuleNotFoundError", "PACKAGE_NOT_INSTALLED", "PYTHON_VERSION_MISMATCH"):
        if sign in text:
            line = next((one for one in text.splitlines() if sign in one), sign).strip()
            raise WorkersUnready(
                "Spark's workers need the driver's version of Python with pyarrow, pandas and numpy: install them"
                f" there, or ship them with --conf spark.archives=... ({line})"
            ) from error


def _reported(
    spark: SparkSession, store: Store, table: str, data_format: str, name: str
) -> set[str]:
    """The files that the ingest has read. TableError: workers have written where the driver sees nothing."""
    try:
        reader = spark.read.format(data_format)
        reader = reader.schema(row_struct()) if data_format == DEFAULT_FORMAT else reader
        uri = lines_uri(table)
        place = escape_glob(uri) if data_format == DEFAULT_FORMAT else uri
        rows = reader.load(place).where(F.col("ingest") == name)
        found = {report.path for report in read_reports(rows)}
    except SPARK_ERRORS as error:
        raise TableError(f"{table} cannot be read back: {describe_spark_error(error)}") from error
    if not found and table.startswith("file:") and not is_local(spark):
        raise TableError(
            f"Spark's workers share no {table} with this machine: name a place that all of them reach,"
            " such as s3a://bucket/table or hdfs://host/table, for logs, table and report"
        )
    return found


def _find_again(
    store: Store, missing: Sequence[StoredFile], not_read: dict[str, str]
) -> list[StoredFile]:
    """Files that were not read: under their compressed name where it exists now; others with the reason."""
    found: list[StoredFile] = []
    for file in missing:
        compressed = f"{file.uri}.gz"
        if store.exists(compressed):
            found += store.list_logs([compressed]).files
        elif store.exists(file.uri):
            not_read[file.uri] = store.find_fault(file.uri) or "its store gave nothing"
        else:
            not_read[file.uri] = _VANISHED
    return found


def _ship_code(spark: SparkSession) -> None:
    """Hand the workers this very code: they need Python, numpy and Arrow, and no Forebay."""
    root = Path(__file__).parents[1]
    names = [
        *sorted((root / "spark_audit").glob("*.py")),
        root / "metrics" / "__init__.py",
        root / "metrics" / "access_log_schema.py",
    ]
    text = b"".join(one.read_bytes() for one in names)
    target = (
        Path(tempfile.gettempdir()) / f"forebay-audit-{hashlib.sha256(text).hexdigest()[:16]}.zip"
    )
    if not target.exists():
        beside = target.with_suffix(f".{secrets.token_hex(4)}")
        with zipfile.ZipFile(beside, "w") as archive:
            for one in names:
                archive.write(one, one.relative_to(root))
        beside.rename(target)
    spark.sparkContext.addPyFile(str(target))
