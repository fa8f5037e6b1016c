"""The section on completeness says what is missing, where, and never that all is there while it is not."""

from typing import NamedTuple

from spark_audit.page.ledger import build_card, draw_ledger

KINDS = {"gap": "lines that no file holds", "cut": "files that end too early"}


class Entry(NamedTuple):
    kind: str
    path: str
    line: int | None = None
    lines: int | None = None
    boot: str | None = "b1"
    text: str = "said <here>"


class BootLines(NamedTuple):
    boot: str = "b1"
    broker: str = "3"
    files: int = 2
    expected_lines: int = 1_000_000
    present_lines: int = 999_990
    missing_lines: int = 10
    dropped_lines: int = 0
    unreadable_lines: int = 3


def test_the_share_is_rounded_down_and_warns() -> None:
    assert build_card(1.0, 10) == ("100 %", "of 10 lines present", "")
    assert build_card(0.999_999, 5_000_000) == ("99.99 %", "of 5,000,000 lines present", "warn")
    assert build_card(None, 0).value == "–"


def test_each_kind_has_a_sample_with_file_and_line() -> None:
    entries = [
        Entry("gap", "/logs/a", None, 10),
        Entry("cut", "/logs/b.gz", 512),
        Entry("gap", "/logs/c", 1, 5),
    ]
    section = draw_ledger(0.999_987, 1_000_000, 999_987, [BootLines()], entries, KINDS)
    assert "99.99 % of 1,000,000 lines are present and can be read; 13 are not." in section
    assert section.count("<details>") == 2 and "all 3 entries" in section
    assert '<td data-v="2">2</td><td data-v="15">15</td>' in section
    assert "/logs/b.gz:512" in section and "said &lt;here&gt;" in section


def test_a_whole_log_has_no_entries() -> None:
    section = draw_ledger(1.0, 7, 7, [BootLines()], [], KINDS)
    assert "100 % of 7 lines are present and can be read." in section
    assert "entries" not in section
    assert "does not say how many" in draw_ledger(None, 0, 0, [], [], KINDS)
