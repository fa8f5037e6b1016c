"""The plots of the page, each an SVG in a data URI.

Owns colours, axes and the drawing. Must not know Spark, HTML or files: findings in, text out. Invariants: one
colour means one result on every plot; no plot refers to anything outside itself; text stays text; times are
UTC.
"""

import base64
import io
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MultipleLocator

from spark_audit.job import Findings, TableRow
from spark_audit.summary import Outlook
from spark_audit.units import show_bytes, show_count, show_duration, show_ratio

HIT, MISS, PASS = "#0f766e", "#d97706", "#94a3b8"
INK, QUIET, GRID, ACCENT = "#1e293b", "#64748b", "#e2e8f0", "#be123c"
RESULT_COLOURS: Final = {"hit": HIT, "miss": MISS, "pass": PASS}
_BARS: Final = 10
_BYTES: Final = FuncFormatter(lambda value, _: show_bytes(value))
_STYLE: Final[Any] = {
    "svg.fonttype": "none",
    "timezone": "UTC",
    "date.converter": "concise",
    "font.family": "sans-serif",
    "font.sans-serif": ["Inter", "Segoe UI", "Helvetica Neue", "DejaVu Sans", "Arial"],
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": QUIET,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "legend.frameon": False,
}


def draw(height_in: float, rows: int, paint: Callable[[list[Axes]], None]) -> str:
    """A figure of `rows` axes one above the other, as a data URI."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(8.6, height_in), layout="constrained")
        axes = figure.subplots(rows, 1, squeeze=False, sharex=rows > 1)
        paint([row[0] for row in axes])
        text = io.StringIO()
        figure.savefig(
            text,
            format="svg",
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    svg = text.getvalue()
    encoded = base64.b64encode(svg[svg.index("<svg") :].encode()).decode()
    return f"data:image/svg+xml;base64,{encoded}"


def draw_over_time(findings: Findings) -> str:
    """Hit ratio above, bytes per second by result below."""
    windows, width_s = findings.windows, findings.window_ms / 1000
    days = [row["windowMs"] / 86_400_000 for row in windows]

    def paint(axes: list[Axes]) -> None:
        ratio, rate = axes
        busy = [(day, row) for day, row in zip(days, windows, strict=True) if row["bytes"]]
        shares = [100 * row["hitRatioBytes"] for _, row in busy]
        ratio.plot(
            [day for day, _ in busy], shares, color=HIT, marker="." if len(busy) < 60 else None
        )
        ratio.set(ylim=(0, 104), ylabel="hit ratio of bytes, %")
        bottom = [0.0] * len(windows)
        for result, colour in RESULT_COLOURS.items():
            heights = [row[f"{result}Bytes"] / width_s for row in windows]
            rate.bar(
                days, heights, bottom=bottom, width=width_s / 86_400, color=colour, label=result
            )
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
        rate.set(ylabel="handed to clients, per second")
        _bytes_axis(rate.yaxis, max(bottom, default=0))
        rate.xaxis_date()
        _legend(ratio, rate)

    return draw(5.0, 2, paint)


def draw_shares(rows: Sequence[TableRow], key: str) -> str:
    """Horizontal bars of bytes by result, the largest first, each with its hit ratio."""
    shown = list(rows[:_BARS])[::-1]

    def paint(axes: list[Axes]) -> None:
        (bars,) = axes
        names = [_short(str(row[key])) for row in shown]
        left = [0.0] * len(shown)
        for result, colour in RESULT_COLOURS.items():
            widths = [row[f"{result}Bytes"] for row in shown]
            bars.barh(range(len(shown)), widths, left=left, color=colour, label=result, height=0.66)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        for place, row in enumerate(shown):
            _note(
                bars,
                row["bytes"],
                place,
                f"{show_ratio(row['hitRatioBytes'])} of {show_bytes(row['bytes'])}",
            )
        _horizontal(bars, names, max(left, default=0))
        _legend(bars, bars)

    return draw(1.1 + 0.34 * len(shown), 1, paint)


def draw_reasons(rows: Sequence[TableRow], result: str) -> str | None:
    """Bytes of one result by reason; None if it never happened."""
    shown = [row for row in rows if row["result"] == result][::-1]
    if not shown:
        return None

    def paint(axes: list[Axes]) -> None:
        (bars,) = axes
        bars.barh(
            range(len(shown)),
            [row["bytes"] for row in shown],
            color=RESULT_COLOURS[result],
            height=0.6,
        )
        for place, row in enumerate(shown):
            _note(
                bars,
                row["bytes"],
                place,
                f"{show_bytes(row['bytes'])} in {show_count(row['partitions'])} partitions",
            )
        _horizontal(bars, [row["reason"] for row in shown], max(row["bytes"] for row in shown))

    return draw(0.9 + 0.34 * len(shown), 1, paint)


def draw_sizing(findings: Findings, outlook: Outlook) -> str:
    """The curve, its ceiling, the cache's own size and the sizes for the targets."""
    sizing = findings.sizing

    def paint(axes: list[Axes]) -> None:
        (curve,) = axes
        sizes = [point.size_bytes for point in sizing.points]
        ratios = [100 * (sizing.hit_ratio(point.hit_bytes) or 0) for point in sizing.points]
        curve.plot(sizes, ratios, color=HIT, linewidth=2)
        curve.fill_between(sizes, ratios, color=HIT, alpha=0.08, linewidth=0)
        ceiling = 100 * (sizing.hit_ratio(sizing.known_bytes) or 0)
        curve.axhline(ceiling, color=QUIET, linestyle=":", linewidth=1)
        curve.text(sizes[0], ceiling + 1.5, f"achievable {ceiling:.1f} %", color=QUIET, fontsize=9)
        for target, size_bytes in sizing.needed_bytes.items():
            share = ceiling * target
            curve.plot([size_bytes], [share], "o", color=HIT, markersize=5)
            curve.annotate(
                f"{100 * target:g}%",
                (size_bytes, share),
                (6, -11),
                textcoords="offset points",
                fontsize=8,
                color=QUIET,
            )
        if findings.cache_size_bytes:
            curve.axvline(findings.cache_size_bytes, color=ACCENT, linewidth=1.4)
            held = show_duration(outlook.residence_s(findings.cache_size_bytes))
            label = f"this cache: {show_bytes(findings.cache_size_bytes)}, {held} of production"
            left = findings.cache_size_bytes <= (sizes[0] * sizes[-1]) ** 0.5
            place: Any = {"xytext": (6 if left else -6, 4), "ha": "left" if left else "right"}
            corner = (findings.cache_size_bytes, 0)
            curve.annotate(
                label, corner, textcoords="offset points", color=ACCENT, fontsize=9, **place
            )
        curve.set_xscale("log", base=2)
        curve.set(
            ylim=(0, max(104.0, ceiling + 8)),
            xlabel="cache size",
            ylabel="hits of hits and misses, % of bytes",
        )
        curve.xaxis.set_major_formatter(_BYTES)

    return draw(4.2, 1, paint)


def draw_lag_bands(rows: Sequence[TableRow]) -> str:
    """Share of bytes by result in each band of lag."""
    shown = [row for row in rows if row["bytes"]]

    def paint(axes: list[Axes]) -> None:
        (bars,) = axes
        bottom = [0.0] * len(shown)
        for result, colour in RESULT_COLOURS.items():
            heights = [100 * row[f"{result}Bytes"] / row["bytes"] for row in shown]
            bars.bar(
                range(len(shown)), heights, bottom=bottom, color=colour, label=result, width=0.7
            )
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
        for place, row in enumerate(shown):
            bars.text(place, 102, show_bytes(row["bytes"]), ha="center", fontsize=8, color=QUIET)
        bars.set_xticks(range(len(shown)), [row["band"] for row in shown])
        bars.set(ylim=(0, 112), xlabel="lag of the fetch, records", ylabel="% of the band's bytes")
        bars.grid(visible=False, axis="x")
        _legend(bars, bars)

    return draw(3.6, 1, paint)


def draw_delays(rows: Sequence[TableRow], key: str) -> str:
    """Where half of the delayed misses waited at most so long, 95 % of them, and the longest."""
    shown = list(rows[:_BARS])[::-1]

    def paint(axes: list[Axes]) -> None:
        (bars,) = axes
        names = [_short(str(row[key])) for row in shown]
        for rank, colour, height in (
            ("max", GRID, 0.66),
            ("p95", "#fbbf24", 0.5),
            ("p50", MISS, 0.34),
        ):
            widths = [row[f"delayMs_{rank}"] / 1000 for row in shown]
            bars.barh(range(len(shown)), widths, color=colour, label=rank, height=height)
        bars.set_yticks(range(len(names)), names, color=INK)
        bars.set(xlabel="waited for the disk, seconds")
        bars.grid(visible=False, axis="y")
        _legend(bars, bars)

    return draw(1.3 + 0.34 * len(shown), 1, paint)


def draw_spared(findings: Findings) -> str:
    """What clients got, by result, above what the broker sent, by purpose."""
    assert findings.counters is not None
    total, upstream = findings.total, findings.counters.upstream_bytes
    got = [(f"{result}Bytes", RESULT_COLOURS[result], result) for result in RESULT_COLOURS]

    def paint(axes: list[Axes]) -> None:
        (bars,) = axes
        left = 0.0
        for name, colour, label in got:
            bars.barh([1], [total[name]], left=[left], color=colour, label=label, height=0.6)
            left += total[name]
        sent, own = upstream.get("client", 0), sum(upstream.values()) - upstream.get("client", 0)
        bars.barh([0], [sent], color=PASS, height=0.6)
        bars.barh([0], [own], left=[sent], color=ACCENT, label="Forebay's own", height=0.6)
        _note(bars, left, 1, show_bytes(left))
        _note(bars, sent + own, 0, show_bytes(sent + own))
        _horizontal(bars, ["the broker sent", "clients got"], max(left, sent + own))
        handles, labels = bars.get_legend_handles_labels()
        bars.legend(
            handles, labels, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, fontsize=9
        )

    return draw(1.9, 1, paint)


def _horizontal(axes: Axes, names: Sequence[str], longest: float) -> None:
    axes.set_yticks(range(len(names)), names, color=INK)
    _bytes_axis(axes.xaxis, longest)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.3)


def _note(axes: Axes, x: float, y: float, text: str) -> None:
    axes.annotate(
        text, (x, y), (5, 0), textcoords="offset points", va="center", fontsize=8.5, color=QUIET
    )


def _legend(above: Axes, labelled: Axes) -> None:
    handles, labels = labelled.get_legend_handles_labels()
    above.legend(handles, labels, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, fontsize=9)


def _bytes_axis(axis: Axis, top_bytes: float) -> None:
    """About five ticks at a power of two and its multiples."""
    axis.set_major_locator(MultipleLocator(2 ** math.ceil(math.log2(max(top_bytes, 8) / 5))))
    axis.set_major_formatter(_BYTES)


def _short(name: str, chars: int = 32) -> str:
    """Fits beside a bar; `$` would start a formula."""
    plain = " ".join(name.split()).replace("$", r"\$")
    return plain if len(plain) <= chars else plain[: chars - 1] + "…"
