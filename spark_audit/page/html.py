"""Pieces of the page: sections, cards, lists and tables of plain values, as HTML.

Owns how a value of each kind is written and sorted, and the only places where text becomes HTML. Must not know the
findings. Invariants: every text is escaped here; a number is shown by its column's kind and sorted by its value; None
is a dash and sorts last.
"""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, Final, NamedTuple

from spark_audit.units import (
    show_bytes,
    show_count,
    show_duration,
    show_ms,
    show_points,
    show_ratio,
    show_time,
)


class BarPart(NamedTuple):
    """One piece of a bar: its share of the full width (0 to 1), its class in the style sheet, its description."""

    share: float
    kind: str
    text: str


Bar = Sequence[BarPart]
_BAD: Final = ' class="bad"'
_SHORT: Final = 16
_NARROW: Final = 3
"""A table of so many columns is as wide as they need, not as the page."""


class ColumnKind(NamedTuple):
    """How values of a column are written. `is_text`: set left, sorted as text."""

    show: Callable[[Any], str]
    is_text: bool = False


TEXT: Final = ColumnKind(str, is_text=True)
BYTES: Final = ColumnKind(show_bytes)
COUNT: Final = ColumnKind(show_count)
RATIO: Final = ColumnKind(show_ratio)
POINTS: Final = ColumnKind(
    lambda share: (
        "–" if share is None else show_points(share, is_signed=True).removesuffix(" points")
    )
)
"""A difference of two ratios; the heading has the unit."""
MS: Final = ColumnKind(show_ms)
SECONDS: Final = ColumnKind(show_duration)
TIME: Final = ColumnKind(
    lambda time_ms: "–" if time_ms is None else show_time(time_ms).removesuffix(" UTC")
)
"""The column's unit is UTC."""
BAR: Final = ColumnKind(str)
"""Values are a Bar; the column is not sorted by."""


class Column(NamedTuple):
    """A column: what it holds and of what, and the kind of its values. `unit`: a second line of the heading, with the
    unit or the denominator.
    """

    title: str
    kind: ColumnKind = TEXT
    unit: str = ""


class Card(NamedTuple):
    """A number and what it is of. `kind`: a class of the style sheet, `warn` or none."""

    value: str
    text: str
    kind: str = ""


def draw_table(
    columns: Sequence[Column], rows: Sequence[Sequence[Any]], bad: Iterable[int] = ()
) -> str:
    """A table that sorts by click; '' without rows. `bad`: numbers of the rows that are marked."""
    if not rows:
        return ""
    marked = set(bad)
    sides = [_side_of(column, [row[place] for row in rows]) for place, column in enumerate(columns)]
    head = "".join(_heading(column) for column in columns)
    body = "".join(
        f"<tr{_BAD if number in marked else ''}>"
        + "".join(map(_cell, columns, sides, row))
        + "</tr>"
        for number, row in enumerate(rows)
    )
    width = ' class="narrow"' if len(columns) <= _NARROW else ""
    return f'<div class="scroll"><table{width}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _heading(column: Column) -> str:
    unit = f"<small>{escape(column.unit)}</small>" if column.unit else ""
    if column.kind is BAR:
        return f'<th class="bar" data-fixed>{escape(column.title)}{unit}</th>'
    side = ' class="left"' if column.kind.is_text else ""
    return f"<th{side}>{escape(column.title)}{unit}</th>"


def _side_of(column: Column, values: Sequence[Any]) -> str:
    """The class of a column's cells. Words of at most _SHORT characters are never broken."""
    if not column.kind.is_text:
        return ""
    is_short = all(len(column.kind.show(value)) <= _SHORT for value in values)
    return "left short" if is_short else "left"


def _cell(column: Column, side: str, value: Any) -> str:
    if column.kind is BAR:
        return f'<td class="bar">{draw_bar(value)}</td>'
    if column.kind.is_text:
        return f'<td class="{side}">{escape(column.kind.show(value))}</td>'
    key = "" if value is None else f' data-v="{value}"'
    return f"<td{key}>{escape(column.kind.show(value))}</td>"


def draw_bar(parts: Bar) -> str:
    """A horizontal bar; parts without a share are left out."""
    pieces = "".join(
        f'<i class="{part.kind}" style="width:{100 * part.share:.3f}%" title="{escape(part.text)}"></i>'
        for part in parts
        if part.share > 0
    )
    return f'<div class="track">{pieces}</div>'


def draw_cards(cards: Iterable[Card]) -> str:
    """Numbers side by side."""
    pieces = "".join(
        f'<div class="card {card.kind}"><b>{escape(card.value)}</b><span>{escape(card.text)}</span></div>'
        for card in cards
    )
    return f'<div class="cards">{pieces}</div>'


def draw_key(kinds: Iterable[tuple[str, str]]) -> str:
    """The legend of bars: pairs of class and name."""
    pieces = "".join(f'<span><i class="{kind}"></i>{escape(name)}</span>' for kind, name in kinds)
    return f'<p class="key">{pieces}</p>'


def draw_text(text: str, kind: str = "quiet") -> str:
    """A paragraph; '' without text."""
    return f'<p class="{kind}">{escape(text)}</p>' if text else ""


def draw_sentences(sentences: Iterable[str]) -> str:
    """A list of sentences in the order of their weight."""
    return draw_list(f"<li>{escape(sentence)}</li>" for sentence in sentences)


def draw_advice(cause: str, key: str, value: str, effect: str) -> str:
    """One item of a list of findings: the cause, the setting that changes it, and what that leads to."""
    return (
        f'<li><p class="cause">{escape(cause)}.</p><p>Set <code>{escape(key)}</code> to <code>{escape(value)}</code>:'
        f" {escape(effect)}.</p></li>"
    )


def draw_list(items: Iterable[str]) -> str:
    """A numbered list of items that are HTML; '' without items."""
    pieces = "".join(items)
    return f'<ol class="findings">{pieces}</ol>' if pieces else ""


def draw_section(title: str, text: str, *parts: str) -> str:
    """A section with an anchor; '' if all `parts` and the text are empty."""
    if not text and not any(parts):
        return ""
    anchor = build_anchor(title)
    return f'<section id="{anchor}"><h2>{escape(title)}</h2>{draw_text(text)}{"".join(parts)}</section>'


def build_anchor(title: str) -> str:
    """The id of the section with this title: letters, digits and hyphens."""
    return "".join(char if char.isalnum() else "-" for char in title.lower())


def draw_folded(title: str, content: str) -> str:
    """Content behind a line that opens it; '' without content."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>" if content else ""
