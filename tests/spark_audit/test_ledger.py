"""Loss is seen: whatever is missing, doubled, cut or without meaning has an entry that names its file."""

from typing import Any

import pytest

from spark_audit.ledger import KINDS, SegmentReport, build_ledger


def report(sequence: int | None, lines: int = 100, **changed: Any) -> SegmentReport:
    """A whole file of a boot whose files have a hundred lines each, and their two `log` lines."""
    opened = 100 * ((sequence or 1) - 1)
    values: dict[str, Any] = {
        "path": f"file:/logs/access-{sequence}.jsonl.gz",
        "ingest": "i1",
        "segment": (sequence or 0) << 20,
        "first_line": 1,
        "boot": "b1",
        "sequence": sequence,
        "broker": "1",
        "lines": lines + 2,
        "log_lines": 2,
        "good": {"fetch": lines, "log": 2},
        "bad": {},
        "samples": (),
        "opened_at": opened,
        "closed_at": opened + 100,
        "dropped_first": 0,
        "dropped_last": 0,
        "first_ms": 1,
        "last_ms": 2,
        "damage": "",
        "torn": False,
    }
    return SegmentReport(**{**values, **changed})


def test_a_whole_log_has_no_entry() -> None:
    ledger = build_ledger([report(1), report(2), report(3)])
    assert (ledger.ratio, ledger.entries, ledger.left_out) == (1.0, (), {})
    (boot,) = ledger.boots
    assert (boot.expected_lines, boot.missing_lines, boot.is_closed) == (300, 0, True)


def test_a_missing_middle_file_is_a_gap() -> None:
    ledger = build_ledger([report(1), report(3)])
    (entry,) = ledger.entries
    assert (entry.kind, entry.lines, entry.path) == ("gap", 100, report(3).path)
    assert "between file 1 and file 3" in entry.text
    assert ledger.ratio == pytest.approx(2 / 3)


def test_lines_that_are_missing_within_a_file_are_a_gap() -> None:
    ledger = build_ledger([report(1), report(2, lines=60), report(3)])
    (entry,) = ledger.entries
    assert (entry.kind, entry.lines, entry.path) == ("gap", 40, report(2).path)


def test_the_end_of_a_file_without_a_close_line_is_known_from_the_next() -> None:
    ledger = build_ledger([report(1, lines=70, closed_at=None, log_lines=1, torn=True), report(2)])
    assert [(entry.kind, entry.lines) for entry in ledger.entries] == [("gap", 29), ("cut", None)]
    assert ledger.count("gap") == 29


def test_of_two_copies_the_longer_counts() -> None:
    copy = report(1, lines=80, path="file:/old/access-1.jsonl", segment=9)
    ledger = build_ledger([copy, report(1), report(2)])
    (entry,) = ledger.entries
    assert (entry.kind, entry.path, entry.lines) == ("duplicate", copy.path, 80)
    assert ledger.left_out == {"i1": (9,)} and ledger.ratio == 1


def test_a_file_that_has_grown_or_was_compressed_since_an_ingest_is_no_duplicate() -> None:
    before = report(1, lines=30, closed_at=None, ingest="i0", segment=3)
    for path in (before.path, before.path.removesuffix(".gz")):
        ledger = build_ledger([before._replace(path=path), report(1)])
        assert ledger.entries == () and ledger.left_out == {"i0": (3,)}


def test_unreadable_lines_and_clocks_are_named_with_file_and_line() -> None:
    samples = (
        {"problem": "corrupt", "line": 7, "text": "{{"},
        {"problem": "implausible-clock", "line": 9, "text": '{"v":3'},
    )
    bad = {"corrupt": 2, "implausible-clock": 1}
    ledger = build_ledger([report(1, bad=bad, samples=samples)])
    found = [(entry.kind, entry.line, entry.lines) for entry in ledger.entries]
    assert found == [("unreadable", 7, 2), ("implausible-clock", 9, 1)]
    assert ledger.ratio == pytest.approx(97 / 100)


def test_dropped_lines_were_expected() -> None:
    ledger = build_ledger([report(1), report(2, dropped_last=50)])
    assert [(entry.kind, entry.lines) for entry in ledger.entries] == [("dropped", 50)]
    assert ledger.ratio == pytest.approx(200 / 250)


def test_files_removed_before_the_first_are_apart() -> None:
    ledger = build_ledger([report(3), report(4)])
    assert ledger.ratio == 1 and ledger.boots[0].earlier_lines == 200


def test_what_was_not_read_and_what_was_skipped_is_named() -> None:
    unnamed = report(None, boot=None, opened_at=None, closed_at=None)
    ledger = build_ledger([unnamed], {"file:/closed": "denied"}, ["file:/logs/access-1.jsonl.old"])
    assert [entry.kind for entry in ledger.entries] == ["not-read", "skipped", "unknown-file"]
    assert ledger.ratio is None
    assert {entry.kind for entry in ledger.entries} <= set(KINDS)
