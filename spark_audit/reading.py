"""From the names on the command line to the lines that a report reads.

Owns the difference between logs, which are ingested into a table beside the report first, and tables of `ingest`,
which are read as they are. Must not know what the lines are used for. Invariants: a report reads typed columns from
a table, never text, so that its memory does not grow with the log; no line and no torn, unreadable or vanished file
is an error: all are counted.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_audit.ingest import ingest
from spark_audit.kept_sums import plan_read_bytes
from spark_audit.ledger import Ledger
from spark_audit.line_table import LineTable, is_table, open_table
from spark_audit.storage import Store, plain_path, to_uri


class Inputs(NamedTuple):
    """What is to be read: names of files, directories, patterns or tables of `ingest`; paths or URIs."""

    names: tuple[str, ...]

    @property
    def is_absent(self) -> bool:
        """Whether all are paths of this machine, and none of them has a file that may be a log."""
        return not any(_may_exist(name) for name in self.names)

    @property
    def urls(self) -> list[str]:
        """The names that are URIs."""
        return [name for name in self.names if ":/" in name]

    @property
    def size_bytes(self) -> int | None:
        """Stored bytes of this machine's files that are read, as far as they can be seen; None: some are of another
        store, so that nobody knows before Spark runs.
        """
        names = [plain_path(name) for name in self.names]
        return None if any(":/" in name for name in names) else sum(map(_size_bytes, names))


class FileCount(NamedTuple):
    """Lines of one file. `incomplete`: it is cut short or damaged, or could not be read at all."""

    path: str
    lines: int
    unreadable_lines: int
    incomplete: bool


def find_inputs(names: Sequence[str | Path]) -> Inputs:
    """The names as they are given: what they mean is found out where Spark reads them."""
    return Inputs(tuple(str(name) for name in names))


def read_lines(
    spark: SparkSession,
    inputs: Inputs,
    scratch: str | Path,
    say: Callable[[str], None] = lambda text: None,
) -> LineTable:
    """All lines. `scratch`: where the table of those that are not in a table yet is written; the caller removes it."""
    store = Store(spark)
    uris = [to_uri(name) for name in inputs.names]
    tables = [uri for uri in uris if is_table(store, uri)]
    logs = [uri for uri in uris if uri not in tables]
    if logs:
        target = to_uri(scratch)
        ingest(spark, logs, target, say=say)
        tables.append(target)
    table = open_table(spark, store, tables)
    return replace(table, parts=()) if logs else table


def good_lines(lines: DataFrame, line_type: str) -> DataFrame:
    """The lines of one type."""
    return lines.where(F.col("type") == line_type)


def count_problems(table: LineTable) -> dict[str, int]:
    """Unreadable lines by problem, of the files that count."""
    problems: Counter[str] = Counter()
    for report in table.counted:
        problems.update(report.bad)
    return dict(sorted(problems.items()))


def count_files(table: LineTable) -> list[FileCount]:
    """One FileCount per file, files of which nothing could be read included."""
    found: dict[str, FileCount] = {}
    for report in table.counted:
        path = plain_path(report.path)
        before = found.get(path, FileCount(path, 0, 0, False))
        found[path] = FileCount(
            path,
            before.lines + report.lines,
            before.unreadable_lines + sum(report.bad.values()),
            before.incomplete or bool(report.damage),
        )
    for entry in table.ledger.entries:
        path = plain_path(entry.path)
        if entry.kind == "not-read" and path not in found:
            found[path] = FileCount(path, 0, 0, True)
    return [found[path] for path in sorted(found)]


def show_ledger(ledger: Ledger) -> str:
    """The ledger in one sentence."""
    ratio = ledger.ratio
    if ratio is None:
        return "how many lines there should be is not known"
    share = "100" if ratio == 1 else f"{min(99.99, 100 * ratio):.2f}"
    return f"{share} % of {ledger.expected_lines:,} lines are there and readable"


def _size_bytes(name: str) -> int:
    """Of a file, of all files below a directory, or of all that a pattern matches; of a table what has to be read; 0 of
    what may not be looked at.
    """
    size_bytes = 0
    with suppress(OSError):
        kept_bytes = plan_read_bytes(Path(name))
        if kept_bytes is not None:
            return kept_bytes
    for top in _match(Path(name)):
        below = [Path(at, one) for at, _, files in os.walk(top) for one in files]
        for path in below or [top]:
            with suppress(OSError):
                size_bytes += path.stat().st_size
    return size_bytes


def _match(path: Path) -> list[Path]:
    """The file or directory of this very name, else all that the pattern matches."""
    with suppress(OSError):
        if not path.exists():
            return list(Path(path.anchor or ".").glob(str(path.relative_to(path.anchor))))
    return [path]


def _may_exist(name: str) -> bool:
    """Whether there is something to read, or something that may not be looked at: the reading says why."""
    if ":/" in name:
        return True
    path = Path(name)
    try:
        if path.exists():
            return not path.is_dir() or any(path.iterdir())
        pattern = path.relative_to(path.anchor)
        return any(Path(path.anchor or ".").glob(str(pattern)))
    except OSError:
        return True
