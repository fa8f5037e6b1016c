"""Sums of a table's rows, kept beside them, so that a second report reads no row again.

Owns the layout below `_forebay/sums`, what of it counts, and when it is made. Must not know what is summed. Invariants:
an entry counts only if its marker, which is written last, names this code's version, ingests that are all in the table,
and the segments of them that the ledger leaves out now; no ingest is in two entries that count; whatever does not count
is made anew from the rows; a table that cannot be written to is reported all the same.

    <table>/_forebay/sums/<id>.json       marker: version, ingests with what is left out of them, window
    <table>/_forebay/sums/<id>/<name>     Parquet: the sum of this name

An entry of `sums.SUMS` is of some ingests; one of a whole table has what joins across them: ages of fetches that do not
say it, the sample of the what-if replay, and its results.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_audit.session import SPARK_ERRORS, describe_spark_error
from spark_audit.storage import Store, StoreError, escape_glob, plain_path
from spark_audit.sums import SUMS, WINDOWED, SummedRows, build_sums

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from spark_audit.line_table import LineTable, TablePart

KEPT_FROM_LINES: Final = 500_000
"""Sums of fewer lines are made anew for each report: it takes no longer than reading them."""
WRITERS: Final = 3
"""Sums that are computed at a time: the driver plans one while workers compute another."""
KEPT_WINDOWS: Final[dict[int, int]] = {2_000: 1_000, 120_000: 60_000}
"""A report's window -> one that divides it and all larger ones (`job.plan_window_ms`), where it is not the same."""
LEFTOVER_S: Final = 86_400
_FOLDER: Final = "_forebay/sums"
_WHOLE: Final = "whole-"
_AGES, _EVENTS, _ORDER = "ages", "events", "place"
_MADE_BY: Final = (
    *("sums.py", "tables.py", "ages.py", "profile.py", "sections.py", "kept_sums.py", "sizing.py"),
    *(
        "what_if/trace.py",
        "what_if/replay.py",
        "what_if/policies.py",
        "curves.py",
        "calibration.py",
    ),
)
"""Code whose change makes an entry outdated."""

LeftOut = dict[str, list[int]]
"""Ingest -> segments whose rows are not among those summed."""


@cache
def code_version() -> str:
    """What entries of this very code are marked with."""
    folder = Path(__file__).parent
    text = b"".join((folder / name).read_bytes() for name in _MADE_BY)
    return hashlib.sha256(text).hexdigest()[:16]


class SumsEntry(NamedTuple):
    """A marker. `schemas`: of each sum, by name, as Spark writes it in JSON: no file is opened to find it out. `extra`:
    what the entry of a whole table says beside its sums.
    """

    uri: str
    ingests: LeftOut
    window_ms: int
    schemas: dict[str, Any]
    extra: dict[str, Any]

    @property
    def name(self) -> str:
        """Below the folder; it begins with the time at which it was begun, that of a whole table with _WHOLE."""
        return self.uri.rsplit("/", 1)[-1]

    @property
    def is_whole(self) -> bool:
        """Whether it is of a whole table."""
        return self.name.startswith(_WHOLE)


class ReportSums(NamedTuple):
    """The sums by name, as `sums.build_sums` has them; `windows`: the lengths by which WINDOWED ones are, none where
    they are not made yet.
    """

    frames: dict[str, DataFrame]
    windows: frozenset[int]

    def fits(self, window_ms: int) -> bool:
        """Whether a report by this window can be made of the WINDOWED ones."""
        return bool(self.windows) and all(window_ms % one == 0 for one in self.windows)


class Whole(NamedTuple):
    """What is kept of a whole table: `ages`, of `ages.sum_ages`; how the Arrow table of events is read, which is needed
    only for sizes that were not replayed; and plain values.
    """

    ages: DataFrame
    read_events: Callable[[], Any]
    extra: dict[str, Any]


def read_sums(
    spark: SparkSession,
    table: LineTable,
    plan_window: Callable[[int, int], int],
    say: Callable[[str], None],
) -> ReportSums:
    """The sums of all rows: kept ones, and of ingests that have none new ones, which are kept where the table is large
    enough. `plan_window`: the report's, by the times of the first and last line.
    """
    if not is_kept(table):
        names = [name for name in SUMS if name not in WINDOWED]
        return ReportSums(build_sums(SummedRows(table.lines, 1), names), frozenset())
    found: list[tuple[dict[str, DataFrame], int]] = []
    for part in table.parts:
        left_out = _left_out_of(table, part)
        entries = choose_entries(list_entries(Store(spark), part.uri), left_out)
        known = {ingest for entry in entries for ingest in entry.ingests}
        new = {one: segments for one, segments in left_out.items() if one not in known}
        found += [(_open(spark, entry), entry.window_ms) for entry in entries]
        if new:
            found.append(_make(spark, table, part, new, plan_window, say))
    frames = {name: reduce(DataFrame.unionByName, [one[name] for one, _ in found]) for name in SUMS}
    return ReportSums(frames, frozenset(window for _, window in found))


def is_kept(table: LineTable) -> bool:
    """Whether sums of this table are worth keeping."""
    lines = sum(report.lines for report in table.counted)
    return bool(table.parts) and lines >= KEPT_FROM_LINES


def choose_entries(entries: Sequence[SumsEntry], left_out: LeftOut) -> list[SumsEntry]:
    """Those whose ingests are all among `left_out`, with the same segments, and in no other that was chosen: the ones
    with most ingests first.
    """
    chosen: list[SumsEntry] = []
    taken: set[str] = set()
    for entry in sorted(entries, key=lambda one: (-len(one.ingests), one.uri)):
        is_of_now = all(
            left_out.get(ingest) == segments for ingest, segments in entry.ingests.items()
        )
        if is_of_now and not taken & entry.ingests.keys() and not entry.is_whole:
            chosen.append(entry)
            taken |= entry.ingests.keys()
    return chosen


def read_whole(spark: SparkSession, table: LineTable) -> Whole | None:
    """What is kept of exactly these rows; None: nothing."""
    place = _place_whole(table)
    if place is None:
        return None
    part, left_out = place
    for entry in list_entries(Store(spark), part.uri):
        if entry.is_whole and entry.ingests == left_out:
            return _open_whole(spark, entry)
    return None


def keep_whole(
    spark: SparkSession, table: LineTable, whole: Whole, say: Callable[[str], None]
) -> None:
    """Write it beside the table, where it is worth it."""
    place = _place_whole(table)
    if place is None:
        return
    part, left_out = place
    entry = _new_entry(part, left_out, 0, whole.extra, _WHOLE)
    events = whole.read_events()
    numbered = events.append_column(_ORDER, _count_up(events.num_rows))
    frames = {_AGES: whole.ages, _EVENTS: spark.createDataFrame(numbered).coalesce(1)}
    try:
        for name, frame in frames.items():
            frame.write.parquet(_at(entry, name))
        _mark(spark, part, entry._replace(schemas=_describe_schemas(frames)))
    except (*SPARK_ERRORS, StoreError) as error:
        say(f"nothing is kept beside {plain_path(part.uri)}: {describe_spark_error(error)}")


def _open_whole(spark: SparkSession, entry: SumsEntry) -> Whole:
    def read_events() -> Any:
        listed = _read(spark, entry, _EVENTS).toArrow()
        return listed.sort_by(_ORDER).drop_columns([_ORDER])

    return Whole(_read(spark, entry, _AGES), read_events, entry.extra)


def _place_whole(table: LineTable) -> tuple[TablePart, LeftOut] | None:
    """Only a single table can keep what joins across its ingests."""
    if len(table.parts) != 1 or not is_kept(table):
        return None
    (part,) = table.parts
    return part, _left_out_of(table, part)


def _count_up(rows: int) -> Any:
    import pyarrow as pa

    return pa.array(range(rows), pa.int64())


def _left_out_of(table: LineTable, part: TablePart) -> LeftOut:
    return {one: sorted(table.ledger.left_out.get(one, ())) for one in part.ingests}


def list_entries(store: Store, table: str) -> list[SumsEntry]:
    """The entries of this code's version that are complete."""
    entries = []
    for uri in store.list_names(f"{table}/{_FOLDER}"):
        entry = _read_marker(store, uri) if uri.endswith(".json") else None
        if entry is not None:
            entries.append(entry)
    return entries


def _read_marker(store: Store, uri: str) -> SumsEntry | None:
    """None: of another version, or damaged."""
    try:
        return scan_marker(uri.removesuffix(".json"), store.read_text(uri))
    except StoreError:
        return None


def scan_marker(uri: str, text: str) -> SumsEntry | None:
    """The entry that a marker's text tells of; None: it is of another version, or damaged."""
    try:
        said = json.loads(text)
        if said["version"] != code_version():
            return None
        return SumsEntry(uri, said["ingests"], said["windowMs"], said["schemas"], said["extra"])
    except (ValueError, KeyError, TypeError):
        return None


def _new_entry(
    part: TablePart, ingests: LeftOut, window_ms: int, extra: Mapping[str, Any], prefix: str = ""
) -> SumsEntry:
    name = f"{prefix}{_stamp(time.time())}-{secrets.token_hex(4)}"
    return SumsEntry(f"{part.uri}/{_FOLDER}/{name}", ingests, window_ms, {}, dict(extra))


def _at(entry: SumsEntry, name: str) -> str:
    return f"{entry.uri}/{name}"


def _open(spark: SparkSession, entry: SumsEntry) -> dict[str, DataFrame]:
    return {name: _read(spark, entry, name) for name in SUMS}


def _read(spark: SparkSession, entry: SumsEntry, name: str) -> DataFrame:
    schema = StructType.fromJson(entry.schemas[name])
    return spark.read.schema(schema).parquet(escape_glob(_at(entry, name)))


def _describe_schemas(frames: Mapping[str, DataFrame]) -> dict[str, Any]:
    return {name: frame.schema.jsonValue() for name, frame in frames.items()}


def _make(
    spark: SparkSession,
    table: LineTable,
    part: TablePart,
    ingests: LeftOut,
    plan_window: Callable[[int, int], int],
    say: Callable[[str], None],
) -> tuple[dict[str, DataFrame], int]:
    """Sum the rows of these ingests, and keep that; as it is computed, where it cannot be kept."""
    reports = [one for one in table.counted if one.ingest in ingests]
    first = min((one.first_ms for one in reports if one.first_ms), default=0)
    last = max((one.last_ms for one in reports if one.last_ms), default=first)
    window_ms = plan_window(first, last)
    window_ms = KEPT_WINDOWS.get(window_ms, window_ms)
    rows = SummedRows(table.lines.where(F.col("ingest").isin(list(ingests))), window_ms)
    planned = build_sums(rows)
    entry = _new_entry(part, ingests, window_ms, {})
    entry = entry._replace(schemas=_describe_schemas(planned))
    say(f"summing {sum(one.lines for one in reports):,} lines of {len(ingests)} ingests")

    def write(name: str) -> None:
        planned[name].write.parquet(_at(entry, name))

    try:
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(write, planned))
        _mark(spark, part, entry)
    except (*SPARK_ERRORS, StoreError) as error:
        say(f"nothing is kept beside {plain_path(part.uri)}: {describe_spark_error(error)}")
        return planned, window_ms
    return _open(spark, entry), window_ms


def _mark(spark: SparkSession, part: TablePart, entry: SumsEntry) -> None:
    """Make an entry count, and remove those that it replaces, those of other versions, and what a killed report has
    left.
    """
    store = Store(spark)
    kept = {one.name for one in list_entries(store, part.uri) if not _replaces(entry, one)}
    said = {
        "version": code_version(),
        "ingests": entry.ingests,
        "windowMs": entry.window_ms,
        "schemas": entry.schemas,
        "extra": entry.extra,
    }
    store.write_text(f"{entry.uri}.json", json.dumps(said))
    names = {uri.rsplit("/", 1)[-1] for uri in store.list_names(f"{part.uri}/{_FOLDER}")}
    for name in find_leftovers(names, kept | {entry.name}, time.time()):
        store.delete(f"{part.uri}/{_FOLDER}/{name}.json")
        store.delete(f"{part.uri}/{_FOLDER}/{name}")


def find_leftovers(names: Collection[str], kept: Collection[str], now_s: float) -> list[str]:
    """Of the names in the folder, the entries that are not `kept`: those with a marker, and those that have had none
    for LEFTOVER_S, so that nobody is making them.
    """
    marked = {name.removesuffix(".json") for name in names if name.endswith(".json")}
    since = _stamp(now_s - LEFTOVER_S)
    unmarked = {
        name
        for name in names
        if "." not in name and name not in marked and name.removeprefix(_WHOLE) < since
    }
    return sorted((marked | unmarked) - set(kept))


def _stamp(now_s: float) -> str:
    return time.strftime("%Y%m%dT%H%M%S", time.gmtime(now_s))


def _replaces(entry: SumsEntry, other: SumsEntry) -> bool:
    if entry.is_whole or other.is_whole:
        return entry.is_whole and other.is_whole
    return bool(entry.ingests.keys() & other.ingests.keys())


def plan_read_bytes(table: Path) -> int | None:
    """Stored bytes that a report of this machine's table reads: of sums alone, where all of it is kept; None: rows too,
    or it is no table.
    """
    folder = table / _FOLDER
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.json"))}
    entries = [scan_marker(str(path.with_suffix("")), text) for path, text in texts.items()]
    kept = [entry for entry in entries if entry is not None]
    commits = {path.stem for path in table.glob("_forebay/*.json") if _has_files(path)}
    summed = {ingest for entry in kept if not entry.is_whole for ingest in entry.ingests}
    is_whole = any(entry.ingests.keys() == commits for entry in kept if entry.is_whole)
    if not commits or not is_whole or not commits <= summed:
        return None
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _has_files(commit: Path) -> bool:
    try:
        return bool(json.loads(commit.read_text(encoding="utf-8"))["files"])
    except (ValueError, KeyError, TypeError):
        return False
