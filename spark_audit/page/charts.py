"""The charts of the page: hits over time, and hit ratio by cache size.

Owns what is drawn where. Must not know Spark or the findings: plain values in, SVG out. Invariants: a line joins
neighbouring windows only, so that a time without fetches is a gap; a time of which there is no log is shaded; a
result that never happened is neither drawn nor named; no label covers another.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from spark_audit.page.svg import (
    CHAR_PX,
    Box,
    Labels,
    Scale,
    Spot,
    draw_area,
    draw_box,
    draw_dot,
    draw_line,
    draw_rule,
    draw_svg,
    draw_text,
    plan_byte_ticks,
    plan_size_ticks,
    plan_time_ticks,
    show_tick,
)
from spark_audit.units import show_bytes, show_duration, show_ratio, show_time

RESULTS: Final = ("hit", "miss", "pass")
_WIDTH: Final = 920.0
_LEFT: Final = 74.0
_RIGHT: Final = 906.0
_RATIO_FLOORS: Final = (0.95, 0.9, 0.8, 0.5)
"""Lowest values of a ratio's axis but 0: a line between 97 and 99 % would be flat at the top of a full one."""
_SEEN: Final = 0.01
"""A ratio that one sees on the chart."""
_LANE_PX: Final = 9.0
_LANES: Final = 6
_MARKED_STARTS: Final = 40


class WindowBytes(NamedTuple):
    """Record bytes handed to clients in the window that begins at `start_ms`."""

    start_ms: int
    hit: int
    miss: int
    passed: int

    @property
    def total(self) -> int:
        """All bytes of the window."""
        return self.hit + self.miss + self.passed


class Run(NamedTuple):
    """One start of Forebay: its name, and the times of the first and the last line that it wrote."""

    name: str
    first_ms: int
    last_ms: int


class Line(NamedTuple):
    """A curve: sizes ascending, the ratio at each, and where it is not exact, the highest that is possible."""

    name: str
    kind: str
    points: Sequence[tuple[int, float]]
    upper: Sequence[float] = ()


class Mark(NamedTuple):
    """A cache size to be marked by a vertical line, and what to say there."""

    size_bytes: int
    text: str
    kind: str


def find_gaps(runs: Sequence[Run], least_ms: int) -> list[tuple[int, int]]:
    """Times of at least `least_ms` within the log of which no run has a line: nobody served, or nobody logged."""
    gaps, end_ms = [], None
    for run in sorted(runs, key=lambda one: one.first_ms):
        if end_ms is not None and run.first_ms - end_ms >= least_ms:
            gaps.append((end_ms, run.first_ms))
        end_ms = max(run.last_ms, end_ms or run.last_ms)
    return gaps


def split_lines(windows: Sequence[WindowBytes], window_ms: int) -> list[list[WindowBytes]]:
    """Runs of neighbouring windows in which something was handed out."""
    lines: list[list[WindowBytes]] = []
    for window in windows:
        if not window.total:
            continue
        if lines and window.start_ms - lines[-1][-1].start_ms <= window_ms:
            lines[-1].append(window)
        else:
            lines.append([window])
    return lines


def draw_over_time(windows: Sequence[WindowBytes], window_ms: int, runs: Sequence[Run]) -> str:
    """Hit ratio above, bytes a second by result below, and a lane for each of a few runs; '' without bytes."""
    if not any(window.total for window in windows):
        return ""
    first_ms, last_ms = windows[0].start_ms, windows[-1].start_ms + window_ms
    across = Scale(first_ms, last_ms, _LEFT, _RIGHT)
    lanes = [run for run in runs if run.last_ms >= first_ms] if 1 < len(runs) <= _LANES else []
    ratio, rate, bottom = Box(_LEFT, 18, _RIGHT, 158), Box(_LEFT, 188, _RIGHT, 308), 308.0
    lane_top = bottom + (14 if lanes else 4)
    axis_y = lane_top + _LANE_PX * len(lanes)
    return draw_svg(
        _WIDTH,
        axis_y + 22,
        "hit ratio and bytes per second over time",
        _draw_gaps(find_gaps(runs, window_ms), across, ratio, rate),
        _draw_time_axis(across, ratio, rate, axis_y),
        _draw_ratio(windows, window_ms, across, ratio),
        _draw_rate(windows, window_ms, across, rate),
        _draw_starts(runs, across, ratio, rate),
        _draw_lanes(lanes, across, lane_top),
    )


def _draw_gaps(gaps: Sequence[tuple[int, int]], across: Scale, *panels: Box) -> str:
    labels, pieces = Labels(panels[0]), []
    for begin_ms, end_ms in gaps:
        if end_ms <= across.low:
            continue
        left, right = across.place(begin_ms), across.place(end_ms)
        said = f"no log for {show_duration((end_ms - begin_ms) / 1000)}"
        text = f"{said}: {show_time(begin_ms)} to {show_time(end_ms)}"
        pieces += [draw_box(Box(left, box.top, right, box.bottom), "down", text) for box in panels]
        if right - left > CHAR_PX * len(said):
            spot = Spot((left + right) / 2, panels[0].top + 16, "middle")
            pieces.append(labels.put(said, [spot], "note"))
    return "".join(pieces)


def _draw_time_axis(across: Scale, ratio: Box, rate: Box, y: float) -> str:
    pieces = []
    labels = Labels(Box(0, y, _WIDTH, y + 22))
    for time_ms, text in plan_time_ticks(across.low, across.high):
        x = across.place(time_ms)
        pieces.append(draw_rule(x, ratio.top, x, ratio.bottom))
        pieces.append(draw_rule(x, rate.top, x, rate.bottom))
        spots = [Spot(x, y + 15, "middle"), Spot(x, y + 15, "start"), Spot(x, y + 15, "end")]
        pieces.append(labels.put(text, spots))
    return "".join(pieces)


def _draw_ratio(windows: Sequence[WindowBytes], window_ms: int, across: Scale, box: Box) -> str:
    lines = split_lines(windows, window_ms)
    lowest = min(window.hit / window.total for line in lines for window in line)
    floor = next((one for one in _RATIO_FLOORS if one <= lowest), 0.0)
    up = Scale(floor, 1, box.bottom, box.top)
    pieces = [draw_text("hit ratio, % of bytes", Spot(_LEFT, box.top - 6), "axis")]
    for step in range(5):
        value = floor + (1 - floor) * step / 4
        y = up.place(value)
        pieces.append(draw_rule(_LEFT, y, _RIGHT, y))
        pieces.append(draw_text(f"{100 * value:g} %", Spot(_LEFT - 8, y + 4, "end")))
    for line in lines:
        points = [
            (across.place(window.start_ms + window_ms / 2), up.place(window.hit / window.total))
            for window in line
        ]
        pieces.append(draw_line(points, "hit"))
    return "".join(pieces)


def _draw_rate(windows: Sequence[WindowBytes], window_ms: int, across: Scale, box: Box) -> str:
    width_s = window_ms / 1000
    ticks = plan_byte_ticks(max(window.total for window in windows) / width_s)
    up = Scale(0, ticks[-1], box.bottom, box.top)
    pieces = [draw_text("handed to clients, bytes per second", Spot(_LEFT, box.top - 5), "axis")]
    for value in ticks:
        y = up.place(value)
        pieces.append(draw_rule(_LEFT, y, _RIGHT, y))
        pieces.append(draw_text(f"{show_tick(value)}/s", Spot(_LEFT - 8, y + 4, "end")))
    for window in windows:
        left, right = across.place(window.start_ms), across.place(window.start_ms + window_ms)
        space, below = min(1.0, (right - left) / 5), 0.0
        for kind, size_bytes in zip(RESULTS, window[1:], strict=True):
            above = below + size_bytes / width_s
            if size_bytes:
                bar = Box(left, up.place(above), right - space, up.place(below))
                pieces.append(draw_box(bar, kind))
            below = above
        if window.total:
            whole = Box(left, 18, right, box.bottom)
            pieces.append(draw_box(whole, "hover", _describe(window, window_ms)))
    return "".join(pieces)


def _describe(window: WindowBytes, window_ms: int) -> str:
    parts = ", ".join(
        f"{kind} {show_bytes(size_bytes)}"
        for kind, size_bytes in zip(RESULTS, window[1:], strict=True)
        if size_bytes
    )
    ratio = show_ratio(window.hit / window.total)
    rate = show_bytes(1000 * window.total / window_ms)
    return f"{show_time(window.start_ms)}: {ratio} of {show_bytes(window.total)} hit ({rate}/s): {parts}"


def _draw_starts(runs: Sequence[Run], across: Scale, *panels: Box) -> str:
    """A dashed line at each start of Forebay but the first, of the last few."""
    starts = sorted(run.first_ms for run in runs)[1:][-_MARKED_STARTS:]
    return "".join(
        draw_rule(across.place(start_ms), box.top, across.place(start_ms), box.bottom, "start")
        for start_ms in starts
        if start_ms >= across.low
        for box in panels
    )


def _draw_lanes(runs: Sequence[Run], across: Scale, top: float) -> str:
    pieces = []
    for number, run in enumerate(sorted(runs, key=lambda one: one.first_ms)):
        y = top + _LANE_PX * number
        left, right = across.place(run.first_ms), across.place(run.last_ms)
        text = f"{run.name}: {show_time(run.first_ms)} to {show_time(run.last_ms)}"
        pieces.append(draw_box(Box(left, y, max(right, left + 2), y + 5), "lane", text))
    if runs:
        pieces.append(draw_text("log of", Spot(_LEFT - 8, top + 8, "end")))
    return "".join(pieces)


def draw_curves(lines: Sequence[Line], marks: Sequence[Mark], unit: str) -> str:
    """Hit ratio by cache size on a logarithmic axis; '' where no line has a hit. `unit`: what the ratios are of."""
    lines = [line for line in lines if any(ratio for _, ratio in line.points) or any(line.upper)]
    if not lines:
        return ""
    low_bytes, high_bytes = _plan_extent(lines, marks)
    box = Box(_LEFT, 24, _RIGHT, 324)
    across = Scale(low_bytes, high_bytes, box.left, box.right, is_log=True)
    up = Scale(0, 1, box.bottom, box.top)
    labels = Labels(box)
    pieces = [draw_text(f"hit ratio, % of {unit}", Spot(_LEFT, 12), "axis")]
    pieces.append(_draw_curve_axes(across, up, box))
    marked = [mark for mark in marks if low_bytes <= mark.size_bytes <= high_bytes]
    for mark in marked:
        x = across.place(mark.size_bytes)
        labels.keep_clear(Box(x - 1.5, box.top, x + 1.5, box.bottom))
    drawn = [_draw_curve(line, across, up) for line in lines]
    for line in lines:
        for size_bytes, ratio in line.points:
            x, y = across.place(size_bytes), up.place(ratio)
            labels.keep_clear(Box(x - 4, y - 3, x + 4, y + 3))
    pieces += drawn
    pieces += [_draw_mark(mark, across, box, labels) for mark in marked]
    pieces += [_name_line(line, across, up, labels) for line in lines]
    return draw_svg(_WIDTH, 366, "hit ratio by cache size", *pieces)


def _plan_extent(lines: Sequence[Line], marks: Sequence[Mark]) -> tuple[float, float]:
    """From where the highest line leaves 0 to where the last one stops growing, and all marks, with some space."""
    begins, ends = [], []
    for line in lines:
        tops = line.upper or [ratio for _, ratio in line.points]
        last = line.points[-1][1]
        first_top = tops[0]
        begins.append(
            next(
                (
                    size_bytes
                    for (size_bytes, ratio), top in zip(line.points, tops, strict=True)
                    if ratio > _SEEN or top - first_top > _SEEN
                ),
                line.points[0][0],
            )
        )
        ends.append(next(size for size, ratio in line.points if ratio >= last))
    sizes = [*begins, *ends, *(mark.size_bytes for mark in marks)]
    return max(1.0, min(sizes) / 4), max(sizes) * 4.0


def _draw_curve_axes(across: Scale, up: Scale, box: Box) -> str:
    pieces = []
    for value in (0, 0.25, 0.5, 0.75, 1):
        y = up.place(value)
        pieces.append(draw_rule(_LEFT, y, _RIGHT, y))
        pieces.append(draw_text(f"{100 * value:g} %", Spot(_LEFT - 8, y + 4, "end")))
    for size_bytes in plan_size_ticks(across.low, across.high):
        x = across.place(size_bytes)
        pieces.append(draw_rule(x, box.top, x, box.bottom))
        pieces.append(draw_text(show_tick(size_bytes), Spot(x, box.bottom + 16, "middle")))
    pieces.append(draw_text("cache.size", Spot(_RIGHT, box.bottom + 34, "end"), "axis"))
    return "".join(pieces)


def _draw_curve(line: Line, across: Scale, up: Scale) -> str:
    """The line, the area between it and the highest possible, and a dot to rest the pointer on at each size."""
    points = [(across.place(size), up.place(ratio)) for size, ratio in line.points]
    last = points[-1]
    points.append((across.end, last[1]))
    pieces = []
    if line.upper:
        upper = [(x, up.place(top)) for (x, _), top in zip(points, line.upper, strict=False)]
        upper.append((across.end, upper[-1][1]))
        pieces.append(draw_area(upper, points, f"between {line.kind}"))
    pieces.append(draw_line(points, line.kind))
    for number, (size_bytes, ratio) in enumerate(line.points):
        if across.low <= size_bytes <= across.high:
            top = line.upper[number] if line.upper else ratio
            said = (
                show_ratio(ratio) if top == ratio else f"{show_ratio(ratio)} to {show_ratio(top)}"
            )
            text = f"{line.name}, {show_bytes(size_bytes)}: {said}"
            pieces.append(draw_dot(*points[number], "hover", text))
    return "".join(pieces)


def _draw_mark(mark: Mark, across: Scale, box: Box, labels: Labels) -> str:
    """A vertical line with its text at the foot or, where that is taken, further up."""
    x = across.place(mark.size_bytes)
    spots = [
        Spot(x + dx, box.bottom - 8 - 15 * step, anchor)
        for step in range(10)
        for dx, anchor in ((6, "start"), (-6, "end"))
    ]
    text = labels.put(mark.text, spots, f"name {mark.kind}")
    return draw_rule(x, box.top, x, box.bottom, f"mark {mark.kind}") + text


def _name_line(line: Line, across: Scale, up: Scale, labels: Labels) -> str:
    """The name beside the line's end, else beside an earlier point."""
    spots = []
    for size_bytes, ratio in reversed(line.points):
        if across.low <= size_bytes <= across.high:
            x, y = across.place(size_bytes), up.place(ratio)
            spots += [Spot(x - 6, y - 8, "end"), Spot(x + 6, y + 18), Spot(x + 6, y - 8)]
    return labels.put(line.name, spots, f"name {line.kind}")
