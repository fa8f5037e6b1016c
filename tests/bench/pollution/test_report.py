"""The page says every figure's arm, every bar and every reason for which the run proves nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.pollution.arms import PLAIN, Sizes
from bench.pollution.report import PICTURE, build_page, build_result, write_report
from bench.pollution.sweep import Step
from tests.bench.pollution.test_verdict import build_figures, build_isolation, build_plain

STEPS = [Step(12.0, 12.0, 0.2, 20.0), Step(36.0, 36.0, 0.6, 60.0), Step(60.0, 58.0, 1.0, 400.0)]
KEYS = (
    "produce_p99_ms",
    "end_to_end_p99_ms",
    "util",
    "read_mb_s",
    "laggards_mb_s",
    "stolen",
    "budget_mb_s",
)
MARKS = {"polluted_at_s": 1.0, "paused_at_s": 2.0, "resumed_at_s": 3.0}


def build_arms() -> list[dict[str, Any]]:
    course: dict[str, Any] = {key: [1.0, None, 2.0] for key in KEYS[:-1]}
    course |= {"budget_mb_s": [None, None, None], **MARKS}
    return [{**one, "course": course} for one in (build_plain(200.0), build_figures())]


def test_page_has_table_bars_and_isolation() -> None:
    isolation = [build_isolation(900.0, arm=PLAIN), build_isolation(12.0)]
    page = build_page(build_result(Sizes(), build_arms(), STEPS, isolation))
    assert [
        line.split(" | ")[0]
        for line in page.splitlines()
        if line.startswith("| ") and "---" not in line
    ] == [
        "| arm",
        "| plain",
        "| forebay",
        "| arm",
        "| plain",
        "| forebay",
    ]
    assert page.count("**held**") == 10
    assert "share of the target's rate (36.0 MB/s): 89%" in page


def test_page_says_what_makes_a_run_invalid() -> None:
    result = build_result(Sizes(), [build_plain(50.0)], [])
    assert "**INVALID**: round 1, plain" in build_page(result)
    assert build_page(result).count("not measured") == 10


def test_page_says_what_was_run_again() -> None:
    stolen = {"quiet": 0.0, "polluted": 0.25, "pause": 0.0}
    aside = [build_figures(stolen=stolen), build_isolation(12.0)]
    page = build_page(build_result(Sizes(), build_arms(), STEPS, (), aside))
    assert "* set aside and run again: round 1, forebay" in page
    assert "25.0% (polluted), 0.0% (pause); produce p99 20.0 -> 30.0 ms" in page
    assert "produce p99 10.0 -> 12.0 ms" in page


def test_page_says_which_other_arms_were_disturbed() -> None:
    stolen = {"quiet": 0.0, "polluted": 0.25, "pause": 0.0}
    page = build_page(build_result(Sizes(), [build_plain(100.0) | {"stolen": stolen}], []))
    assert "* disturbed, and no bar is about it: round 1, plain" in page
    assert "INVALID" not in page


def test_page_of_isolation_alone_has_no_table_of_arms() -> None:
    page = build_page(build_result(Sizes(), [], [], [build_isolation(12.0)]))
    assert "end to end" not in page.split("* **")[0]
    assert "Rounds: 1" in page


def test_files_of_a_run(tmp_path: Path) -> None:
    result = build_result(Sizes(), build_arms(), STEPS)
    write_report(tmp_path, result, STEPS)
    assert json.loads((tmp_path / "result.json").read_text())["bars"] == json.loads(
        json.dumps(result["bars"])
    )
    assert {path.name for path in tmp_path.iterdir()} == {PICTURE, "result.json", "README.md"}
    assert f"({PICTURE})" in (tmp_path / "README.md").read_text()
    assert (tmp_path / PICTURE).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("arms", "steps"), [(True, False), (False, True), (False, False)])
def test_picture_shows_what_was_run(tmp_path: Path, *, arms: bool, steps: bool) -> None:
    swept = STEPS if steps else []
    result = build_result(Sizes(), build_arms() if arms else [], swept, [build_isolation(12.0)])
    write_report(tmp_path, result, swept)
    assert (tmp_path / PICTURE).exists() == (arms or steps)
    assert (PICTURE in (tmp_path / "README.md").read_text()) == (arms or steps)
