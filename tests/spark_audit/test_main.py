"""The command line: what it says and how it ends when something is wrong."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from spark_audit import __main__ as command
from spark_audit import console, session
from spark_audit.session import (
    GOOD_RELEASES,
    Java,
    NotReady,
    describe_unfit,
    find_java,
    scan_release,
)

VERSION_1 = Path(__file__).with_name("version1")


def test_an_audit_from_the_command_line(
    spark: SparkSession, tmp_path: Path, monkeypatch, capsys
) -> None:
    """Of the log of a Forebay that wrote version 1, with its last scrape."""
    monkeypatch.setattr(SparkSession, "stop", lambda self: None)  # the session of all tests goes on
    out = tmp_path / "out"
    arguments = [str(VERSION_1), "--out", str(out), "--metrics", str(VERSION_1 / "metrics.txt")]
    arguments += ["--window", "0.5", "--cache-size", "1MiB", "--master", "local[2]"]
    assert command.main(arguments) == 0
    printed = capsys.readouterr()
    assert printed.out.split() == [str(out / "index.html"), str(out / "summary.json")]
    assert "log and counters agree" in printed.err
    assert (out / "index.html").stat().st_size > 10_000
    summary = json.loads((out / "summary.json").read_text())
    assert summary["log"]["unreadableLines"] == 0
    assert summary["fetches"]["emptyPartitions"] > 50


def test_nothing_to_read_is_said(tmp_path: Path, capsys) -> None:
    assert command.main([str(tmp_path), "--out", str(tmp_path / "out")]) == console.EXIT_NOTHING
    assert "no .jsonl or .jsonl.gz file" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_missing_package_is_said_with_what_to_install(
    monkeypatch, tmp_path: Path, capsys
) -> None:
    monkeypatch.setattr(console, "find_spec", lambda name: None if name == "pyspark" else object())
    assert command.main([str(tmp_path), "--out", str(tmp_path / "out")]) == console.EXIT_NOT_READY
    assert "pyspark is not installed: pip install pyspark" in capsys.readouterr().err


def test_a_file_that_holds_no_counters_is_refused(tmp_path: Path, capsys) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    arguments = [
        str(tmp_path),
        "--out",
        str(tmp_path / "out"),
        "--metrics",
        str(tmp_path / "a.jsonl"),
    ]
    assert command.main(arguments) == console.EXIT_USAGE
    assert "a.jsonl: no forebay_fetch_partitions_total" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong", [["--cache-size", "many"], ["--cache-size", "0"], ["--window", "0"], ["--what"]]
)
def test_wrong_arguments_end_with_usage(tmp_path: Path, wrong: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main([str(tmp_path), "--out", str(tmp_path), *wrong])
    assert ended.value.code == console.EXIT_USAGE


def test_the_first_word_chooses_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []
    module = ModuleType("other")

    def run(arguments: list[str]) -> int:
        given.append(arguments)
        return 3

    monkeypatch.setattr(module, "main", run, raising=False)
    monkeypatch.setitem(sys.modules, "other", module)
    monkeypatch.setitem(command.COMMANDS, "weigh", "other")
    assert command.main(["weigh", "a", "--help"]) == 3
    monkeypatch.setattr(command, "REPORT", "other")
    assert command.main(["./weigh", "--out", "b"]) == 3
    assert given == [["a", "--help"], ["./weigh", "--out", "b"]]


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('version "21" x', 21),
        ("", 0),
    ],
)
def test_java_releases(text: str, release: int) -> None:
    assert scan_release(text) == release


def test_an_unfit_java_is_passed_over_and_named(monkeypatch) -> None:
    homes = {
        Path("/old"): Java(Path("/old"), 11, True),
        Path("/trimmed"): Java(Path("/trimmed"), 17, False),
    }
    monkeypatch.setattr(session, "_candidate_homes", lambda: [*homes, Path("/none")])
    monkeypatch.setattr(session, "probe_java", homes.get)
    with pytest.raises(
        NotReady, match=r"openjdk-17-jre-headless.*/old is Java 11.*/trimmed lacks the module"
    ):
        find_java()
    homes[Path("/none")] = Java(Path("/none"), GOOD_RELEASES[-1], True)
    assert find_java().home == Path("/none")
    assert "no Java at all" in describe_unfit([])
