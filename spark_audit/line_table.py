"""The table of typed lines that `ingest` writes and every report reads.

Owns its layout: rows below `lines`, by date, broker, type and ingest; one commit file for each ingest below
`_forebay`. Must not know how lines are parsed. Invariants: a row counts only if its ingest is committed, so an
ingest that was killed leaves nothing that is read; rows of segments that the ledger leaves out are not read; a
table is known by its marker.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_audit.ledger import Ledger, SegmentReport, build_ledger, scan_report
from spark_audit.log_file import EXTRA_COLUMNS, REPORT, UNKNOWN_BROKER
from spark_audit.schema import build_line_struct
from spark_audit.storage import Store, StoredFile, escape_glob

DEFAULT_FORMAT: Final = "parquet"
LAYOUT_VERSION: Final = 1
_MARKER: Final = "_forebay"


class TableError(Exception):
    """The table cannot be used; the message says what to do."""


class Commit(NamedTuple):
    """One finished ingest: its id, the files that it read, and what it could not read."""

    ingest: str
    files: tuple[StoredFile, ...]
    not_read: dict[str, str]
    skipped: tuple[str, ...]


class TablePart(NamedTuple):
    """A table, and those of its ingests that are committed and have rows."""

    uri: str
    ingests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LineTable:
    """What a report reads: good lines with the columns of every type, and how complete they are. `parts`: the tables
    that last, none where lines are of a table that is removed afterwards.
    """

    lines: DataFrame
    reports: tuple[SegmentReport, ...]
    ledger: Ledger
    parts: tuple[TablePart, ...] = ()

    @property
    def counted(self) -> list[SegmentReport]:
        """Reports on the segments whose lines are among `lines`."""
        left_out = self.ledger.left_out
        return [one for one in self.reports if one.segment not in left_out.get(one.ingest, ())]

    def find_near(self, boot: str) -> DataFrame:
        """Lines among which are all of a boot and its workers: of its brokers, as far as its files say which these are.
        Files of others are not read; `lines` itself where there are none.
        """
        brokers = {one.broker for one in self.reports if one.boot == boot}
        others = {one.broker for one in self.reports} - brokers - {UNKNOWN_BROKER}
        if not brokers or UNKNOWN_BROKER in brokers or not others:
            return self.lines
        return self.lines.where(~F.col("broker").isin(sorted(others)))


def row_struct() -> StructType:
    """All columns of the table, in the order in which workers hand them over."""
    extra = [
        StructField(name, LongType() if name == "segment" else StringType())
        for name in EXTRA_COLUMNS
    ]
    return StructType([*build_line_struct(), *extra])


def lines_uri(table: str) -> str:
    """Where the rows are."""
    return f"{table}/lines"


def is_table(store: Store, uri: str) -> bool:
    """Whether `ingest` has written there."""
    return store.exists(f"{uri}/{_MARKER}")


def write_commit(store: Store, table: str, data_format: str, commit: Commit) -> None:
    """Make the rows of an ingest count."""
    text = json.dumps(
        {
            "layout": LAYOUT_VERSION,
            "format": data_format,
            "files": [list(file) for file in commit.files],
            "notRead": commit.not_read,
            "skipped": list(commit.skipped),
        }
    )
    store.write_text(f"{table}/{_MARKER}/{commit.ingest}.json", text)


def read_commits(store: Store, table: str) -> tuple[str, list[Commit]]:
    """The table's format and its finished ingests, oldest first. TableError: a later layout, or mixed formats."""
    commits, formats = [], set()
    for uri in sorted(store.list_names(f"{table}/{_MARKER}")):
        name = uri.rsplit("/", 1)[-1]
        if not name.endswith(".json"):
            continue
        try:
            said = json.loads(store.read_text(uri))
            if said["layout"] != LAYOUT_VERSION:
                raise TableError(
                    f"{table} has layout {said['layout']}, this audit reads {LAYOUT_VERSION}:"
                    " use the newer version of Forebay"
                )
            files = tuple(StoredFile(*file) for file in said["files"])
            commit = Commit(
                name.removesuffix(".json"), files, said["notRead"], tuple(said["skipped"])
            )
        except (ValueError, KeyError, TypeError) as error:
            raise TableError(f"{uri} is damaged: remove it, and ingest its files again") from error
        commits.append(commit)
        formats.add(said["format"])
    if len(formats) > 1:
        raise TableError(f"{table} has parts of several formats: {', '.join(sorted(formats))}")
    return next(iter(formats), DEFAULT_FORMAT), commits


def open_table(spark: SparkSession, store: Store, tables: Sequence[str]) -> LineTable:
    """All committed rows of the tables. TableError: as for `read_commits`."""
    frames: list[DataFrame] = []
    reports: list[SegmentReport] = []
    not_read: dict[str, str] = {}
    skipped: set[str] = set()
    parts: list[TablePart] = []
    for table in tables:
        data_format, commits = read_commits(store, table)
        committed = [commit.ingest for commit in commits if commit.files]
        if committed:
            rows = _load(spark, table, data_format).where(F.col("ingest").isin(committed))
            frames.append(rows)
            reports += read_reports(rows)
            parts.append(TablePart(table, tuple(committed)))
        read = {file.uri for commit in commits for file in commit.files}
        for commit in commits:
            not_read |= {uri: why for uri, why in commit.not_read.items() if uri not in read}
            skipped.update(commit.skipped)
    ledger = build_ledger(reports, not_read, sorted(skipped))
    if not frames:
        return empty_table(spark, ledger)
    lines = frames[0]
    for frame in frames[1:]:
        lines = lines.unionByName(frame)
    lines = lines.where(F.col("type") != REPORT)
    for ingest, segments in ledger.left_out.items():
        lines = lines.where((F.col("ingest") != ingest) | ~F.col("segment").isin(list(segments)))
    return LineTable(lines.drop("report"), tuple(reports), ledger, tuple(parts))


def empty_table(spark: SparkSession, ledger: Ledger) -> LineTable:
    """No lines; the ledger says why."""
    rows = spark.createDataFrame([], row_struct()).drop("report")
    return LineTable(rows, (), ledger)


def read_reports(rows: DataFrame) -> list[SegmentReport]:
    """What the workers said of the files of these rows."""
    found = rows.where(F.col("type") == REPORT).select("ingest", "report").collect()
    return [scan_report(json.loads(row["report"]), row["ingest"]) for row in found]


def _load(spark: SparkSession, table: str, data_format: str) -> DataFrame:
    reader = spark.read.format(data_format)
    if data_format == DEFAULT_FORMAT:
        return reader.schema(row_struct()).load(escape_glob(lines_uri(table)))
    loaded = reader.load(lines_uri(table))
    columns: list[Any] = [
        F.col(one.name)
        if one.name in loaded.columns
        else F.lit(None).cast(one.dataType).alias(one.name)
        for one in row_struct()
    ]
    return loaded.select(*columns)
