"""Lines that cannot be read are counted by problem; whatever the directory holds, the audit goes on."""

import gzip
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from metrics.access_log_schema import SCHEMA_VERSION
from spark_audit.job import NothingToRead, Request, run
from spark_audit.reading import find_inputs
from spark_audit.storage import Store
from tests.spark_audit.conftest import BAD_LINES, Audited


def test_bad_lines_are_counted_by_problem(audited: Audited) -> None:
    problems = audited.findings.problems
    torn = problems["corrupt"] - len(BAD_LINES["corrupt"])
    assert torn in (0, 1)  # the cut .gz may end within a line
    assert {name: count for name, count in problems.items() if name != "corrupt"} == {
        name: len(lines) for name, lines in BAD_LINES.items() if name != "corrupt"
    }
    bad = next(file for file in audited.findings.files if file.path.endswith("access-bad.jsonl"))
    assert bad.lines == bad.unreadable_lines == sum(map(len, BAD_LINES.values()))


def test_a_compressed_file_that_was_cut_is_named_and_the_rest_is_read(audited: Audited) -> None:
    assert [Path(file.path).name for file in audited.findings.files if file.incomplete] == [
        "access-cut.jsonl.gz"
    ]
    assert audited.truncated_lines < 20_000


def test_every_good_line_is_read_once(audited: Audited) -> None:
    counted = {boot["boot"]: boot for boot in audited.findings.boots}
    traffic = audited.traffic
    assert [counted[boot]["schemaVersion"] for boot in ("b1", "bb2")] == [1, SCHEMA_VERSION]
    assert counted["b1"]["fetchLines"] + counted["bb2"]["fetchLines"] == len(traffic.fetches) - len(
        traffic.summed
    )
    assert counted["b1"]["emptyLines"] == 0
    assert counted["bb2"]["emptyLines"] == len(traffic.empties) < len(traffic.summed)
    assert counted["b1"]["blockLines"] + counted["bb2"]["blockLines"] == len(audited.traffic.blocks)
    for boot in ("b1", "bb2"):
        assert counted[boot]["filesOpened"] == counted[boot]["filesClosed"] > 0
        assert counted[boot]["droppedLines"] == 0


def test_of_a_file_and_its_compressed_form_only_the_latter_is_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name in ("a.jsonl", "a.jsonl.gz", "b.jsonl", "c.jsonl.gz.tmp", "notes.txt"):
        (tmp_path / name).write_bytes(gzip.compress(b""))
    found = Store(spark).list_logs([tmp_path, tmp_path / "b*"])
    assert [file.uri.rsplit("/")[-1] for file in found.files] == ["a.jsonl.gz", "b.jsonl"]


@pytest.mark.parametrize("content", [b"", b"\n", b"nonsense\n"])
def test_a_log_without_a_fetch_says_what_it_holds(
    spark: SparkSession, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(NothingToRead, match=r"1 files with|a.jsonl could not be read .it is empty"):
        run(spark, Request(find_inputs([path]), tmp_path / "out"), lambda text: None)
