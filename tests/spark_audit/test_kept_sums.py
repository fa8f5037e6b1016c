"""Kept sums say what the rows say, and are made anew when they do not."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, NamedTuple

import pytest

from spark_audit import curves, kept_sums
from spark_audit.commands.report import write_report
from spark_audit.ingest import ingest
from spark_audit.job import Request, plan_window_ms, run
from spark_audit.kept_sums import (
    KEPT_WINDOWS,
    LEFTOVER_S,
    SumsEntry,
    choose_entries,
    code_version,
    find_leftovers,
    plan_read_bytes,
    scan_marker,
)
from spark_audit.reading import find_inputs
from spark_audit.storage import Store, to_uri
from tests.spark_audit.traffic import write_log

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

FILES = ("summary.json", "index.html", "periods.json", "topics.json", "completeness.json")
NEVER = 1 << 40


class Made(NamedTuple):
    """A report's files, its tables, and what was said meanwhile."""

    texts: dict[str, str]
    tables: dict[str, list[str]]
    said: list[str]

    @property
    def summed(self) -> list[str]:
        return [text for text in self.said if text.startswith("summing")]


class Place:
    """A table of two ingests, one of which has a file that the other has too."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.root = spark, root
        self.table = root / "table"
        for name, boot in (("first", "b1"), ("second", "b22")):
            write_log(root / name, boot, rounds=500)
        again = sorted((root / "first").iterdir())[0]
        shutil.copy(again, root / "second" / again.name)
        for name in ("first", "second"):
            self.ingest(name)

    def ingest(self, name: str) -> None:
        ingest(self.spark, [str(self.root / name)], to_uri(self.table))

    def report(self, window_ms: int | None = None) -> Made:
        said: list[str] = []
        out = self.root / "out"
        shutil.rmtree(out, ignore_errors=True)
        request = Request(find_inputs([str(self.table)]), out, window_ms=window_ms)
        write_report(run(self.spark, request, said.append), Store(self.spark), str(out))
        texts = {name: (out / name).read_text(encoding="utf-8") for name in FILES}
        tables = {
            path.name: sorted(map(str, self.spark.read.parquet(path.as_uri()).collect()))
            for path in (out / "tables").iterdir()
        }
        return Made(texts, tables, said)

    @property
    def markers(self) -> list[Path]:
        return sorted((self.table / "_forebay" / "sums").glob("*.json"))


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(kept_sums, "KEPT_FROM_LINES", 0)
    return Place(spark, tmp_path)


def fail(*_: object, **__: object) -> None:
    raise AssertionError("rows are read")


def test_a_report_of_kept_sums_is_that_of_rows(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(kept_sums, "KEPT_FROM_LINES", NEVER)
        expected, odd = place.report(), place.report(window_ms=7_000)
    assert place.markers == [] and "duplicate" in expected.texts["completeness.json"]
    made = place.report()
    assert made[:2] == expected[:2] and len(made.summed) == 1
    assert [path.stem.startswith("whole-") for path in place.markers] == [False, True]
    assert plan_read_bytes(place.table) is not None
    with monkeypatch.context() as patch:
        for module, name in ((kept_sums, "_make"), (curves, "build_segments")):
            patch.setattr(module, name, fail)
        kept = place.report()
        assert kept[:2] == expected[:2] and kept.summed == []
        assert place.report(window_ms=7_000)[:2] == odd[:2]


def test_only_what_is_new_is_summed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.report()
    write_log(place.root / "third", "b333", rounds=300)
    place.ingest("third")
    assert plan_read_bytes(place.table) is None, "rows have to be read"
    made = place.report()
    assert made.summed == [text for text in made.summed if text.endswith("of 1 ingests")] != []
    assert len(place.markers) == 3, "what joined the smaller table is gone"
    monkeypatch.setattr(kept_sums, "KEPT_FROM_LINES", NEVER)
    assert place.report()[:2] == made[:2]


def test_sums_of_other_code_are_made_anew_and_replaced(place: Place) -> None:
    expected = place.report()
    before = place.markers
    for path in before:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"version": "older"}))
    made = place.report()
    assert made[:2] == expected[:2] and len(made.summed) == 1
    assert len(place.markers) == 2 and not set(place.markers) & set(before)
    left = {path.name for path in (place.table / "_forebay" / "sums").iterdir()}
    assert len({name for name in left if not name.startswith(".")}) == 4


def test_a_table_that_cannot_be_written_to_is_reported_all_the_same(place: Place) -> None:
    (place.table / "_forebay" / "sums").write_text("a file where a directory would be")
    made = place.report()
    assert sum(text.startswith("nothing is kept beside") for text in made.said) == 2
    (place.table / "_forebay" / "sums").unlink()
    assert place.report()[:2] == made[:2]


def entry_of(name: str, **ingests: list[int]) -> SumsEntry:
    return SumsEntry(f"file:/t/_forebay/sums/{name}", ingests, 1000, {}, {})


def test_an_entry_counts_for_ingests_of_which_the_same_is_left_out_and_only_once() -> None:
    entries = [
        entry_of("1", a=[], b=[3]),
        entry_of("2", b=[3]),
        entry_of("3", c=[]),
        entry_of("4", gone=[]),
        entry_of("whole-5", a=[], b=[3], c=[1]),
    ]
    now = {"a": [], "b": [3], "c": [1]}
    assert [one.name for one in choose_entries(entries, now)] == ["1"]
    assert [one.name for one in choose_entries(entries, now | {"b": [], "c": []})] == ["3"]


def test_what_others_are_making_now_is_no_leftover() -> None:
    now_s = 1_800_000_000.0
    old, new = (kept_sums._stamp(now_s - age_s) for age_s in (LEFTOVER_S + 2, LEFTOVER_S - 2))
    names = {f"{old}-a", f"whole-{old}-b", f"{new}-c", f"{new}-d", f"{new}-d.json", f"{old}-e"}
    assert find_leftovers(names | {f"{old}-e.json"}, {f"{old}-e"}, now_s) == [
        f"{old}-a",
        f"{new}-d",
        f"whole-{old}-b",
    ]


@pytest.mark.parametrize("text", ["", "[]", '{"version": "x"}', '{"version": 1, "ingests": {}}'])
def test_a_damaged_marker_does_not_count(text: str) -> None:
    assert scan_marker("file:/a", text) is None
    said = {"version": code_version(), "ingests": {"a": []}, "windowMs": 5, "extra": {}}
    assert scan_marker("file:/a", json.dumps(said)) is None
    entry = SumsEntry("file:/a", {"a": []}, 5, {}, {})
    assert scan_marker("file:/a", json.dumps(said | {"schemas": {}})) == entry


def test_what_is_no_table_has_to_be_read(tmp_path: Path) -> None:
    assert plan_read_bytes(tmp_path) is None and plan_read_bytes(tmp_path / "absent") is None


def test_a_kept_window_divides_every_window_that_a_longer_log_has() -> None:
    windows = sorted({plan_window_ms(0, span_ms) for span_ms in range(1, 1 << 33, 40_000_000)})
    windows = sorted({*windows, *(plan_window_ms(0, 100_000 * n) for n in range(1, 500))})
    assert len(windows) >= 10
    for number, window_ms in enumerate(windows):
        kept = KEPT_WINDOWS.get(window_ms, window_ms)
        assert all(longer % kept == 0 for longer in windows[number:]), window_ms
