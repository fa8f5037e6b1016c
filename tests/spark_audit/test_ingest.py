"""The table takes each file once, whatever becomes of the files while it reads them."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from spark_audit.ingest import Ingested, ingest
from spark_audit.line_table import TableError, open_table
from spark_audit.storage import Store, find_hidden, to_uri
from tests.spark_audit.traffic import write_log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession


class Logs:
    """A log of several plain files, and the table of it."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.directory = spark, directory / "logs"
        self.table = to_uri(directory / "table")
        traffic = write_log(self.directory, "b1", rounds=1200)
        self.fetch_lines = len(traffic.fetches) - len(traffic.summed)
        for path in self.directory.glob("*.gz"):
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            path.unlink()
        self.paths = sorted(self.directory.iterdir())
        assert len(self.paths) > 3

    def ingest(self, meanwhile: Callable[[], None] = lambda: None) -> Ingested:
        """`meanwhile` happens once, between the listing of the files and their reading."""
        waiting = [meanwhile]

        def say(text: str) -> None:
            if text.startswith("reading ") and waiting:
                waiting.pop()()

        return ingest(self.spark, [str(self.directory)], self.table, say=say)

    def count_fetches(self) -> int:
        lines = open_table(self.spark, Store(self.spark), [self.table]).lines
        return lines.where("type = 'fetch'").count()


def compress(path: Path) -> None:
    """As the sidecar does it: the compressed file is there before the other goes."""
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()


def test_files_that_are_compressed_or_removed_while_the_job_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    logs = Logs(spark, tmp_path)
    removed = logs.paths[-1]
    lost = removed.read_bytes().count(b'"type":"response"')
    assert lost > 0

    def change() -> None:
        for path in logs.paths[:2]:
            compress(path)
        removed.unlink()

    done = logs.ingest(change)
    assert done.files == len(logs.paths) - 1
    (entry,) = done.ledger.entries
    assert (entry.kind, entry.text) == ("not-read", "vanished while it was read")
    assert entry.path.endswith(removed.name)
    assert logs.count_fetches() == logs.fetch_lines - lost
    (boot,) = done.ledger.boots
    assert boot.missing_lines == 0, "nobody knows what the last file held"


def test_a_file_is_read_again_only_if_it_has_changed(spark: SparkSession, tmp_path: Path) -> None:
    """Of a file that has grown or was compressed since, the lines count once, and it is no duplicate."""
    logs = Logs(spark, tmp_path)
    growing = logs.paths[-1]
    whole = growing.read_bytes()
    growing.write_bytes(whole[: len(whole) // 2])
    logs.ingest()
    assert logs.ingest().files == 0
    growing.write_bytes(whole)
    compress(logs.paths[0])
    done = logs.ingest()
    assert done.files == 2
    assert logs.count_fetches() == logs.fetch_lines
    assert done.ledger.entries == () and done.ledger.ratio == 1
    with pytest.raises(TableError, match="is of format parquet, not delta"):
        ingest(spark, [str(logs.directory)], logs.table, data_format="delta")


def test_hidden_names_are_links_to_nothing_and_none_that_has_gone(tmp_path: Path) -> None:
    for name in ("seen.jsonl", "new.jsonl"):
        (tmp_path / name).touch()
    for name in ("gone.jsonl", ".hidden", "a.gz.tmp"):
        (tmp_path / name).symlink_to(tmp_path / "nothing")
    found = find_hidden(to_uri(tmp_path), [f"{to_uri(tmp_path)}/seen.jsonl"])
    assert found == {
        f"{to_uri(tmp_path)}/gone.jsonl": "it links to nothing: No such file or directory"
    }
    assert find_hidden("s3a://logs/", []) == {}
    assert find_hidden(to_uri(tmp_path / "absent"), []) == {}
