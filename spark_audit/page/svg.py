"""SVG of charts: scales with round ticks, and labels that do not overlap.

Owns geometry and the text of SVG elements; colours are classes of the style sheet, so that a chart follows the page's
light or dark colours and prints. Must not know the findings. Invariants: every text is escaped; no element refers to
anything outside the page; the same values give the same bytes.
"""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final, NamedTuple

from spark_audit.units import show_bytes

CHAR_PX: Final = 6.4
"""Width of a character of a label at most, on average."""
LINE_PX: Final = 14.0
_TIME_STEPS_S: Final = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60 * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(3600 * hours for hours in (1, 2, 3, 6, 12)),
    *(86_400 * days for days in (1, 2, 7, 14, 30, 90, 365)),
)


class Scale(NamedTuple):
    """Values from `low` to `high` onto pixels from `start` to `end`. `is_log`: by logarithm; `low` is above 0 then."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """The pixel of a value; values outside are put to the nearer end."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.is_log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return self.start + (self.end - self.start) * (at - low) / (high - low or 1)


class Box(NamedTuple):
    """A rectangle in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: "Box") -> bool:
        """Whether both have a point in common."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


class Spot(NamedTuple):
    """Where a label may stand: the baseline's point, and which end of the text is there (start, middle or end)."""

    x: float
    y: float
    anchor: str = "start"


class Labels:
    """Labels within `bounds`, each at the first of its spots where it meets no earlier one."""

    def __init__(self, bounds: Box) -> None:
        self._bounds = bounds
        self._taken: list[Box] = []

    def keep_clear(self, box: Box) -> None:
        """No later label will stand in `box`."""
        self._taken.append(box)

    def put(self, text: str, spots: Sequence[Spot], kind: str = "") -> str:
        """The label as SVG; '' where none of the spots is free."""
        for spot in spots:
            box = _box_of(text, spot)
            inside = (
                box.left >= self._bounds.left
                and box.right <= self._bounds.right
                and box.top >= self._bounds.top
                and box.bottom <= self._bounds.bottom
            )
            if inside and not any(box.overlaps(other) for other in self._taken):
                self._taken.append(box)
                return draw_text(text, spot, kind)
        return ""


def _box_of(text: str, spot: Spot) -> Box:
    width = CHAR_PX * len(text)
    left = spot.x - {"start": 0.0, "middle": width / 2, "end": width}[spot.anchor]
    return Box(left, spot.y - LINE_PX + 3, left + width, spot.y + 3)


def draw_svg(width: float, height: float, label: str, *parts: str) -> str:
    """A chart; `label` is read to those who cannot see it."""
    return (
        f'<div class="scroll"><svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg></div>"
    )


def draw_text(text: str, spot: Spot, kind: str = "") -> str:
    """A text at its spot."""
    return (
        f'<text x="{spot.x:.1f}" y="{spot.y:.1f}" text-anchor="{spot.anchor}"{_class(kind)}>'
        f"{escape(text)}</text>"
    )


def draw_line(points: Sequence[tuple[float, float]], kind: str) -> str:
    """A line through points; a dot where there is one point only."""
    if len(points) == 1:
        return draw_dot(*points[0], kind)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}"{_class(f"line {kind}")}/>'


def draw_area(
    upper: Sequence[tuple[float, float]], lower: Sequence[tuple[float, float]], kind: str
) -> str:
    """The area between two lines with the same direction."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (*upper, *reversed(lower)))
    return f'<polygon points="{path}"{_class(kind)}/>'


def draw_dot(x: float, y: float, kind: str, text: str = "") -> str:
    """A dot; `text` is shown when the pointer rests on it."""
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2"{_class(f"dot {kind}")}>{_title(text)}</circle>'
    )


def draw_box(box: Box, kind: str, text: str = "") -> str:
    """A filled rectangle; `text` is shown when the pointer rests on it."""
    return (
        f'<rect x="{box.left:.2f}" y="{box.top:.2f}" width="{max(0.0, box.right - box.left):.2f}"'
        f' height="{max(0.0, box.bottom - box.top):.2f}"{_class(kind)}>{_title(text)}</rect>'
    )


def draw_rule(x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> str:
    """A straight line between two points."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"{_class(kind)}/>'


def show_tick(size_bytes: float) -> str:
    """A round size without zeros behind the point: `16 MiB`."""
    number, unit = show_bytes(size_bytes).split(" ")
    return f"{float(number):g} {unit}"


def plan_byte_ticks(top_bytes: float, wanted: int = 4) -> list[float]:
    """About `wanted` steps from 0 to the first at or above `top_bytes`: a power of two and its multiples."""
    step = 2.0 ** math.ceil(math.log2(max(top_bytes, 8) / wanted))
    return [step * number for number in range(math.ceil(top_bytes / step) + 1 if top_bytes else 2)]


def plan_size_ticks(low_bytes: float, high_bytes: float, most: int = 9) -> list[float]:
    """Powers of two (or of 4, 16, ...) from `low_bytes` to `high_bytes`, `most` at most."""
    first, last = math.ceil(math.log2(low_bytes)), math.floor(math.log2(high_bytes))
    stride = 1
    while (last - first) // stride + 1 > most:
        stride *= 2
    return [2.0**power for power in range(first, last + 1) if power % stride == 0]


def plan_time_ticks(first_ms: float, last_ms: float, most: int = 8) -> list[tuple[float, str]]:
    """Round times in UTC within the span, `most` at most, with their labels. A day's first has its date."""
    span_s = max(last_ms - first_ms, 1) / 1000
    step_s = next((step for step in _TIME_STEPS_S if span_s / step <= most), span_s)
    step_ms = step_s * 1000
    ticks, day = [], ""
    for number in range(math.ceil(first_ms / step_ms), math.floor(last_ms / step_ms) + 1):
        moment = datetime.fromtimestamp(number * step_s, UTC)
        date = moment.strftime("%Y-%m-%d")
        clock = moment.strftime("%H:%M" if step_s >= 60 else "%H:%M:%S")
        if step_s < 1:
            clock += f".{moment.microsecond // 100_000}"
        if step_s >= 86_400:
            ticks.append((number * step_ms, date))
        else:
            ticks.append((number * step_ms, clock if date == day else f"{date[5:]} {clock}"))
        day = date
    return ticks


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""
