"""The completeness of the log on the page: how many of its lines are there, and what is not.

Owns words and tables of this section. Must not know how lines are counted. Invariants: a share is never shown as all
while a line is missing; every entry names its file and, where one is known, its line.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from spark_audit.page.html import (
    BAR,
    COUNT,
    BarPart,
    Card,
    Column,
    draw_folded,
    draw_section,
    draw_table,
)
from spark_audit.units import show_count, show_share_of_all

_SHOWN: Final = 200


def build_card(ratio: float | None, expected_lines: int) -> Card:
    """The share of the lines that are there and can be read."""
    if ratio is None:
        return Card("–", "of the log's lines present: the log does not say how many were written")
    kind = "" if ratio == 1 else "warn"
    return Card(show_share_of_all(ratio), f"of {show_count(expected_lines)} lines present", kind)


def draw_ledger(
    ratio: float | None,
    expected_lines: int,
    readable_lines: int,
    boots: Sequence[Any],
    entries: Sequence[Any],
    kinds: Mapping[str, str],
) -> str:
    """The section. `boots`: one for each start, with boot, broker, files and its lines (expected_lines, present_lines,
    missing_lines, dropped_lines, unreadable_lines); `entries`: what is wrong, with kind, boot, path, line, lines and
    text; `kinds`: a kind -> its meaning, in the order of the page.
    """
    if ratio is None:
        text = (
            "The log does not say how many lines were written, so that missing ones cannot be told."
        )
    else:
        missing = expected_lines - readable_lines
        text = (
            f"{show_share_of_all(ratio)} of {show_count(expected_lines)} lines are present and can be read"
            + (f"; {show_count(missing)} are not." if missing else ".")
        )
    counted = {kind: [entry for entry in entries if entry.kind == kind] for kind in kinds}
    kind_rows = [
        (
            kind,
            len(found),
            sum(entry.lines or 0 for entry in found) or None,
            kinds[kind],
            _name(found[0]),
        )
        for kind, found in counted.items()
        if found
    ]
    columns = (
        Column("found"),
        Column("times", COUNT),
        Column("lines", COUNT, "concerned"),
        Column("meaning"),
        Column("first", unit="file:line"),
    )
    return draw_section(
        "Completeness",
        text,
        draw_table(columns, kind_rows),
        draw_folded("by start of Forebay", _draw_boots(boots)),
        draw_folded(f"all {show_count(len(entries))} entries", _draw_entries(entries)),
    )


def _draw_boots(boots: Sequence[Any]) -> str:
    rows = [
        (
            one.boot,
            one.broker,
            [
                BarPart(
                    (one.present_lines - one.unreadable_lines) / (one.expected_lines or 1),
                    "hit",
                    f"{show_count(one.present_lines - one.unreadable_lines)} lines can be read",
                )
            ],
            one.files,
            one.expected_lines,
            one.missing_lines,
            one.dropped_lines,
            one.unreadable_lines,
        )
        for one in boots
    ]
    columns = (
        Column("boot"),
        Column("broker"),
        Column("readable", BAR),
        Column("files", COUNT),
        Column("written", COUNT, "lines, dropped included"),
        Column("missing", COUNT, "lines"),
        Column("dropped", COUNT, "lines"),
        Column("unreadable", COUNT, "lines"),
    )
    return draw_table(columns, rows)


def _draw_entries(entries: Sequence[Any]) -> str:
    rows = [(one.kind, one.boot or "", _name(one), one.lines, one.text) for one in entries]
    columns = (
        Column("found"),
        Column("boot"),
        Column("where", unit="file:line"),
        Column("lines", COUNT),
        Column("what"),
    )
    return draw_table(columns, rows[:_SHOWN])


def _name(entry: Any) -> str:
    return entry.path if entry.line is None else f"{entry.path}:{entry.line}"
