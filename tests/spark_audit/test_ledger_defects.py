"""A directory with the defects that logs have in the field, audited by the command.

Each defect has a boot of its own, derived from one whole log, so that no entry of the ledger explains two of them. What
must be found is counted here from the lines themselves.
"""

from __future__ import annotations

import gzip
import html
import json
import zlib
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_audit.commands import report
from spark_audit.console import EXIT_DONE, EXIT_FAILED, EXIT_NOTHING
from spark_audit.ledger import KINDS
from tests.kit.log_lines import unfold
from tests.spark_audit.modes import heed_modes
from tests.spark_audit.traffic import write_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CUT_LINES = 500
YEAR_10000_MS = 253_402_300_800_000
WHOLE = "whole"

Files = dict[str, list[bytes]]
"""A boot's files, by name as they were written: their lines."""


class Planted(NamedTuple):
    """An entry that the ledger must have: `lines` and `line` as there."""

    kind: str
    path: str
    line: int | None
    lines: int | None
    words: str = ""


def split(directory: Path) -> Files:
    """The lines of all files of a boot, by the name that each had before it was compressed."""
    found = {}
    for path in sorted(directory.iterdir()):
        read = gzip.decompress if path.suffix == ".gz" else bytes
        found[path.name.removesuffix(".gz")] = read(path.read_bytes()).splitlines(keepends=True)
    return found


def rename(files: Files, boot: str) -> Files:
    """The same lines of another boot."""
    old, new = WHOLE.encode(), boot.encode()
    return {
        name.replace(f"-{WHOLE}-", f"-{boot}-"): [
            line.replace(b'"boot":"%s"' % old, b'"boot":"%s"' % new) for line in lines
        ]
        for name, lines in files.items()
    }


def store(directory: Path, files: Files) -> None:
    """All but the last file compressed, as the sidecar has them."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        if name == max(files):
            (directory / name).write_bytes(b"".join(lines))
        else:
            (directory / f"{name}.gz").write_bytes(gzip.compress(b"".join(lines), 1))


def count(lines: list[bytes]) -> int:
    """Lines that the writer's numbers count: all but those about the log itself."""
    return sum(b'"type":"log"' not in line for line in lines)


def lose_a_middle_file(directory: Path, files: Files) -> list[Planted]:
    names = sorted(files)
    lost = files.pop(names[1])
    store(directory, files)
    return [Planted("gap", f"{names[2]}.gz", 1, count(lost), "between file 1 and file 3")]


def cut_the_end_of_a_file(directory: Path, files: Files) -> list[Planted]:
    name = sorted(files)[1]
    lost, files[name] = files[name][-CUT_LINES:], files[name][:-CUT_LINES]
    store(directory, files)
    assert count(lost) == CUT_LINES - 1, "its `close` line is among them"
    return [Planted("gap", f"{name}.gz", 1, CUT_LINES - 1, "lines into this file")]


def cut_the_middle_of_a_file(directory: Path, files: Files) -> list[Planted]:
    name = sorted(files)[0]
    del files[name][100 : 100 + CUT_LINES]
    store(directory, files)
    return [Planted("gap", f"{name}.gz", 1, CUT_LINES, "lines into this file")]


def cut_the_bytes_of_a_compressed_file(directory: Path, files: Files) -> list[Planted]:
    """All that is whole of it is read; its last line is torn."""
    store(directory, files)
    name = sorted(files)[0]
    path = directory / f"{name}.gz"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    text = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(path.read_bytes())
    written, files[name] = files[name], text.splitlines(keepends=True)
    last, lost = len(files[name]), count(written) - count(files[name])
    assert 0 < lost < count(written) and not text.endswith(b"\n")
    return [
        Planted("cut", path.name, last, None, "its compressed end is missing"),
        Planted("unreadable", path.name, last, 1, "corrupt: {"),
        Planted("gap", path.name, 1, lost, "lines into this file"),
    ]


def give_a_file_twice(directory: Path, files: Files) -> list[Planted]:
    store(directory, files)
    name = sorted(files)[0]
    copy = directory / "saved" / "first.jsonl"
    copy.parent.mkdir()
    copy.write_bytes(b"".join(files[name]))
    return [Planted("duplicate", "saved/first.jsonl", 1, count(files[name]), "as file:")]


def put_two_objects_on_a_line(directory: Path, files: Files) -> list[Planted]:
    name = sorted(files)[0]
    files[name][10:12] = [files[name][10].rstrip(b"\n") + files[name][11]]
    store(directory, files)
    return [
        Planted("unreadable", f"{name}.gz", 11, 1, "corrupt: {"),
        Planted("gap", f"{name}.gz", 1, 1),
    ]


def set_a_clock_to_the_year_10000(directory: Path, files: Files) -> list[Planted]:
    name = sorted(files)[0]
    line = json.loads(files[name][20])
    line["ts"] = YEAR_10000_MS
    files[name][20] = json.dumps(line, separators=(",", ":")).encode() + b"\n"
    store(directory, files)
    return [Planted("implausible-clock", f"{name}.gz", 21, 1, str(YEAR_10000_MS))]


def rotate_and_compress_otherwise(directory: Path, files: Files) -> list[Planted]:
    """logrotate's names, and other compressions, are read; what nobody here can read is named."""
    directory.mkdir()
    for name, ending in zip_longest(sorted(files), (".1", ".zst", ".bz2"), fillvalue=""):
        data = b"".join(files[name])
        if ending in (".zst", ".bz2"):
            codec = "zstd" if ending == ".zst" else "bz2"
            with pa.CompressedOutputStream(str(directory / f"{name}{ending}"), codec) as stream:
                stream.write(data)
        else:
            (directory / f"{name}{ending}").write_bytes(data)
    (directory / "access-other.jsonl.xz").write_bytes(b"what xz made of it")
    return [Planted("skipped", "access-other.jsonl.xz", None, None, "not a name of a log file")]


def close_a_file(directory: Path, files: Files) -> list[Planted]:
    store(directory, files)
    names = sorted(files)
    lost = files.pop(names[1])
    (directory / f"{names[1]}.gz").chmod(0)
    return [
        Planted("not-read", f"{names[1]}.gz", None, None, "ermission denied"),
        Planted("gap", f"{names[2]}.gz", 1, count(lost), "between file 1 and file 3"),
    ]


def close_a_directory(directory: Path, files: Files) -> list[Planted]:
    store(directory / "inside", files)
    (directory / "inside").chmod(0)
    files.clear()
    return [Planted("not-read", directory.name + "/inside", None, None, "ermission denied")]


def hide_what_a_directory_names(directory: Path, files: Files) -> list[Planted]:
    """A directory that may be listed and not entered."""
    store(directory / "inside", files)
    names = [f"{name}.gz" if name != max(files) else name for name in files]
    (directory / "inside").chmod(0o444)
    files.clear()
    return [Planted("not-read", f"inside/{name}", None, None, "ermission denied") for name in names]


def link_to_nothing(directory: Path, files: Files) -> list[Planted]:
    names = sorted(files)
    lost = files.pop(names[1])
    store(directory, files)
    (directory / names[1]).symlink_to(directory / "gone.jsonl")
    return [
        Planted("not-read", names[1], None, None, "o such file"),
        Planted("gap", f"{names[2]}.gz", 1, count(lost), "between file 1 and file 3"),
    ]


def empty_a_file(directory: Path, files: Files) -> list[Planted]:
    names = sorted(files)
    lost = files.pop(names[1])
    store(directory, files)
    (directory / names[1]).touch()
    return [
        Planted("not-read", names[1], None, None, "it is empty"),
        Planted("gap", f"{names[2]}.gz", 1, count(lost), "between file 1 and file 3"),
    ]


def harm_nothing(directory: Path, files: Files) -> list[Planted]:
    store(directory, files)
    return []


DEFECTS: tuple[Callable[[Path, Files], list[Planted]], ...] = (
    harm_nothing,
    lose_a_middle_file,
    cut_the_end_of_a_file,
    cut_the_middle_of_a_file,
    cut_the_bytes_of_a_compressed_file,
    give_a_file_twice,
    put_two_objects_on_a_line,
    set_a_clock_to_the_year_10000,
    rotate_and_compress_otherwise,
    close_a_file,
    close_a_directory,
    hide_what_a_directory_names,
    link_to_nothing,
    empty_a_file,
)


def boot_of(defect: Callable[..., Any]) -> str:
    return defect.__name__.replace("_", "-")


class Found(NamedTuple):
    """A run of the command: what it said and wrote; and what was planted, by boot."""

    said: str
    out: Path
    completeness: dict[str, Any]
    planted: dict[str, list[Planted]]
    left: dict[str, Files]
    """Lines of files that are there, as they were written."""

    def entries(self, boot: str) -> list[dict[str, Any]]:
        """Of the ledger, those of files below the boot's directory."""
        return [one for one in self.completeness["entries"] if f"/{boot}/" in one["path"]]


class Ended(NamedTuple):
    """How a run of the command ended: its exit code, and what it said to stderr."""

    exit_code: int
    said: str


def run_command(logs: Path, out: Path) -> Ended:
    """The session of all tests goes on."""
    said = StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()), redirect_stderr(said):
        patch.setattr(SparkSession, "stop", lambda self: None)
        code = heed_modes(lambda: report.main([str(logs), "--out", str(out)]))
    return Ended(code, said.getvalue())


@pytest.fixture(scope="module")
def found(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    root = tmp_path_factory.mktemp("defects")
    write_log(root / WHOLE, WHOLE, rounds=1000)
    whole = split(root / WHOLE)
    assert len(whole) >= 4 and min(map(len, whole.values())) > 0
    planted, left = {}, {}
    for defect in DEFECTS:
        boot = boot_of(defect)
        left[boot] = rename(whole, boot)
        planted[boot] = defect(root / "logs" / boot, left[boot])
    ended = run_command(root / "logs", root / "out")
    assert ended.exit_code == EXIT_DONE, ended.said
    said = json.loads((root / "out" / "completeness.json").read_text())
    yield Found(ended.said, root / "out", said, planted, left)
    for path in (root / "logs").rglob("inside"):
        path.chmod(0o755)


def test_the_report_is_made_without_a_trace(found: Found) -> None:
    assert "Traceback" not in found.said and "Exception" not in found.said, found.said
    assert "% of" in found.said and "lines are there and readable" in found.said


@pytest.mark.parametrize("boot", [boot_of(defect) for defect in DEFECTS])
def test_a_defect_is_named_with_file_and_line(found: Found, boot: str) -> None:
    entries, planted = found.entries(boot), found.planted[boot]
    assert Counter(one["kind"] for one in entries) == Counter(one.kind for one in planted), entries
    for one in planted:
        (entry,) = [
            entry
            for entry in entries
            if entry["kind"] == one.kind and entry["path"].endswith(f"/{one.path}")
        ]
        assert one.words in entry["text"]
        assert (entry["line"], entry["lines"]) == (one.line, one.lines)


def test_every_entry_was_planted(found: Found) -> None:
    count = sum(map(len, found.planted.values()))
    assert len(found.completeness["entries"]) == count
    assert {one["kind"] for one in found.completeness["entries"]} == set(KINDS) - {
        "dropped",
        "unknown-file",
    }


def test_all_that_was_written_is_there_or_missing(found: Found) -> None:
    """Of each boot of which a file could be read."""
    whole = count([line for lines in found.left[boot_of(harm_nothing)].values() for line in lines])
    boots = {one["boot"]: one for one in found.completeness["boots"]}
    assert set(boots) == {boot for boot, files in found.left.items() if files}
    for boot, one in boots.items():
        assert one["expected_lines"] == whole, boot
        assert one["present_lines"] + one["missing_lines"] == whole, boot
    lost = sum(one["missing_lines"] + one["unreadable_lines"] for one in boots.values())
    assert found.completeness["readableLines"] == len(boots) * whole - lost


def test_the_report_has_the_bytes_of_every_line_that_is_left(found: Found) -> None:
    lines = [line for files in found.left.values() for one in files.values() for line in one]
    said = [json.loads(line) for line in lines if line.endswith(b"}\n") and b"}{" not in line]
    fetches = [one for one in unfold(said) if one["type"] == "fetch"]
    sizes = [one["bytes"] for one in fetches if one["ts"] < YEAR_10000_MS]
    summary = json.loads((found.out / "summary.json").read_text())
    assert summary["fetches"]["bytes"] == sum(sizes) > 0
    assert summary["log"]["unreadableLines"] == 3


def test_the_page_names_every_kind_and_its_first_file(found: Found) -> None:
    page = (found.out / "index.html").read_text()
    for one in found.completeness["entries"]:
        assert html.escape(one["path"]) in page, one


def test_where_nothing_can_be_read_the_reason_is_said(spark: SparkSession, tmp_path: Path) -> None:
    write_log(tmp_path / WHOLE, WHOLE, rounds=5)
    for path in (tmp_path / WHOLE).iterdir():
        path.chmod(0)
    ended = run_command(tmp_path / WHOLE, tmp_path / "out")
    assert ended.exit_code == EXIT_NOTHING and "Traceback" not in ended.said, ended.said
    assert "could not be read" in ended.said and "Permission denied" in ended.said


def test_a_failed_job_is_said_in_one_line(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is wrong with a file, but the workers' code fails."""
    write_log(tmp_path / WHOLE, WHOLE, rounds=5)
    monkeypatch.setattr("spark_audit.ingest._PACKED", "date string")
    ended = run_command(tmp_path / WHOLE, tmp_path / "out")
    assert ended.exit_code == EXIT_FAILED and "Traceback" not in ended.said, ended.said
    assert len(ended.said.splitlines()[-1]) > len("forebay audit: ")
