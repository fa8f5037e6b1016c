"""Lines of files that grow, as text that Spark's JSON functions parse: what `--follow` stores.

Owns the local files of a follow, the parsing of a stream's lines and the counts over stored ones. Must not know
tables of `ingest`. Invariants: of `X.jsonl` and `X.jsonl.gz` only the compressed one is read (the other is about to
be removed); no line and no torn or vanished file is an error: all are counted.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_audit.reading import FileCount
from spark_audit.schema import CORRUPT, build_problem, build_text_struct

_GZIP_MODULUS = 1 << 32


class FollowedFiles(NamedTuple):
    """What is to be read: files of this machine, and URLs left to Spark."""

    files: tuple[Path, ...]
    urls: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the local files, as stored."""
        return sum(path.stat().st_size for path in self.files if path.exists())


def find_followed(logs: Sequence[str]) -> FollowedFiles:
    """Files below directories, of glob patterns, or named; anything with `://` is a URL for Spark."""
    urls = tuple(name for name in logs if "://" in name)
    found: set[Path] = set()
    for name in logs:
        if name in urls:
            continue
        path = Path(name)
        matches = [path] if path.exists() else _glob(name)
        for match in matches:
            found.update(match.rglob("*.jsonl*") if match.is_dir() else [match])
    files = {path.resolve() for path in found if path.name.endswith((".jsonl", ".jsonl.gz"))}
    return FollowedFiles(
        tuple(sorted(path for path in files if Path(f"{path}.gz") not in files)), urls
    )


def parse_lines(text: DataFrame) -> DataFrame:
    """Lines of files, of a batch or of a stream: `value` in; the schema's fields, `file` and `problem` out."""
    parsed = text.select(
        F.from_json("value", build_text_struct(), {"columnNameOfCorruptRecord": CORRUPT}).alias(
            "line"
        ),
        F.input_file_name().alias("file"),
        (F.octet_length("value") + 1).alias("lineBytes"),
    )
    lines = parsed.select("line.*", "file", "lineBytes")
    return lines.withColumn("problem", build_problem())


def keep_good(lines: DataFrame) -> DataFrame:
    """The good lines, without the columns of the reading."""
    kept = lines.where(F.col("problem").isNull())
    return kept.drop("problem", "file", "lineBytes", CORRUPT)


def locate(path: Path) -> str:
    """A file or folder of this machine as Spark writes to it, whatever its default file system is."""
    return f"file://{path.resolve()}"


def count_stored_problems(lines: DataFrame) -> dict[str, int]:
    """Unreadable lines by problem."""
    rows = lines.where(F.col("problem").isNotNull()).groupBy("problem").count().collect()
    return {row["problem"]: row["count"] for row in sorted(rows)}


def count_stored_files(lines: DataFrame, inputs: FollowedFiles) -> list[FileCount]:
    """One FileCount per file, files of which nothing could be read included."""
    grouped = lines.groupBy("file").agg(
        F.count("*").alias("lines"),
        F.count("problem").alias("unreadable"),
        F.sum("lineBytes").alias("bytes"),
    )
    rows = {_plain(row["file"]): row for row in grouped.collect()}
    counts = []
    for name in sorted({str(path) for path in inputs.files} | set(rows)):
        row = rows.get(name)
        lines_read, unreadable, read_bytes = (
            (row["lines"], row["unreadable"], row["bytes"]) if row else (0, 0, 0)
        )
        counts.append(
            FileCount(name, lines_read, unreadable, _is_incomplete(Path(name), read_bytes))
        )
    return counts


def _is_incomplete(path: Path, read_bytes: int) -> bool:
    """Whether a gzip's last four bytes (its size modulo 2^32, RFC 1952) differ from what was read.

    The last line may lack its newline.
    """
    if path.suffix != ".gz" or not path.is_file():
        return False
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4))
        stated = int.from_bytes(file.read(4), "little")
    return stated not in (read_bytes % _GZIP_MODULUS, (read_bytes - 1) % _GZIP_MODULUS)


def _glob(pattern: str) -> list[Path]:
    path = Path(pattern)
    return list(Path(path.anchor or ".").glob(str(path.relative_to(path.anchor))))


def _plain(uri: str) -> str:
    """A file of this machine as its path, other URLs as they are. Spark percent-encodes the former."""
    return unquote(urlsplit(uri).path) if uri.startswith("file:") else uri
