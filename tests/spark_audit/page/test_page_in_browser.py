"""The page as a browser shows it: nothing overlaps, tables sort, it is dark at night, and it prints whole."""

from pathlib import Path

import pytest
from PIL import Image

from spark_audit.page.report import build_page
from tests.kit.browser import MISSING, find_chromium, measure, print_pdf, screenshot
from tests.spark_audit.page.sample import TOPICS, build_findings

pytestmark = pytest.mark.skipif(find_chromium() is None, reason=MISSING)

OVERLAPS = """
const found = [];
for (const svg of document.querySelectorAll("svg")) {
  const frame = svg.getBoundingClientRect();
  const texts = Array.from(svg.querySelectorAll("text")).map((one) => [one.textContent, one.getBoundingClientRect()]);
  texts.forEach(([said, box], place) => {
    const outside = box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1;
    if (outside) found.push("outside: " + said);
    for (const [other, at] of texts.slice(place + 1)) {
      const across = Math.min(box.right, at.right) - Math.max(box.left, at.left);
      const down = Math.min(box.bottom, at.bottom) - Math.max(box.top, at.top);
      if (across > 0.5 && down > 2) found.push(said + " covers " + other);
    }
  });
}
for (const cell of document.querySelectorAll("th, td, .card b, .card span")) {
  if (cell.scrollWidth > cell.clientWidth + 1) found.push("cut: " + cell.textContent);
}
for (const frame of innerWidth < 1200 ? [] : document.querySelectorAll(".scroll")) {
  if (frame.scrollWidth > frame.clientWidth + 1) found.push("wider than its section: " + frame.closest("section").id);
}
if (document.documentElement.scrollWidth > innerWidth) found.push("wider than the window");
return found;
"""
SORT = """
const table = document.querySelector("#by-topic table");
const column = (place) => Array.from(table.tBodies[0].rows, (row) => row.cells[place].textContent);
const heads = Array.from(table.querySelectorAll("th"));
const place = heads.findIndex((one) => one.textContent.startsWith("handed out"));
const before = column(0);
heads[place].click(); const down = column(0);
heads[place].click(); const up = column(0);
heads[0].click(); const named = column(0);
const marks = [heads[0], heads[place]].map((one) => one.getAttribute("aria-sort"));
return {before, down, up, named, marks};
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "index.html"
    path.write_text(build_page(build_findings()), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [1400, 1000, 480])
def test_no_label_covers_another_and_nothing_is_cut(page: Path, width: int) -> None:
    assert measure(page, OVERLAPS, width) == []


def test_a_click_sorts_by_value_and_by_name(page: Path) -> None:
    shown = measure(page, SORT)
    assert sorted(shown["before"]) == sorted(TOPICS)
    assert shown["down"] == shown["before"]
    assert shown["up"] == shown["before"][::-1]
    assert shown["named"] == sorted(TOPICS)
    assert shown["marks"] == ["ascending", None]


def test_a_downtime_and_silent_minutes_are_gaps(page: Path) -> None:
    script = 'return document.querySelectorAll("#over-time polyline").length'
    assert measure(page, script) == 3
    script = 'return Array.from(document.querySelectorAll("#over-time .down title"), (one) => one.textContent)'
    first, second = measure(page, script)
    assert first == second
    assert first.startswith("no log for 15.6 min: 2025-11-21 05:49:36 UTC to")


@pytest.mark.parametrize(
    ("is_dark", "back", "hit"), [(False, "f6f8fa", "0f766e"), (True, "0f151c", "2dd4bf")]
)
def test_a_screenshot_has_the_colours_of_the_time_of_day(
    page: Path, tmp_path: Path, is_dark: bool, back: str, hit: str
) -> None:
    picture = Image.open(screenshot(page, tmp_path / "page.png", 1000, 1600, is_dark))
    assert picture.size == (1000, 1600)
    counted = {colour: count for count, colour in picture.convert("RGB").getcolors(1 << 24) or []}
    share = {
        name: counted.get((int(name[:2], 16), int(name[2:4], 16), int(name[4:], 16)), 0) / 1_600_000
        for name in (back, hit)
    }
    assert share[back] > 0.05
    assert 0.01 < share[hit] < 0.2


def test_paper_has_what_is_folded_on_the_screen(page: Path, tmp_path: Path) -> None:
    folded = 'return document.querySelectorAll("details:not([open])").length'
    assert measure(page, folded) > 0
    assert measure(page, f'dispatchEvent(new Event("beforeprint")); {folded}') == 0
    paper = print_pdf(page, tmp_path / "page.pdf").read_bytes()
    assert paper.startswith(b"%PDF") and len(paper) > 50_000
