"""The page of a difference: two reports side by side.

Owns words, tables and their order. Must not know Spark, HTML or geometry. Invariants: the left value is always the
earlier named side; changes of ratios are in percentage points, of bytes per second of time with a log.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from spark_audit.difference import Report, TopicChange, describe
from spark_audit.page.charts import Line, Mark, draw_curves
from spark_audit.page.document import build_document
from spark_audit.page.html import (
    BAR,
    BYTES,
    MS,
    POINTS,
    RATIO,
    TEXT,
    BarPart,
    Card,
    Column,
    draw_cards,
    draw_folded,
    draw_key,
    draw_section,
    draw_sentences,
    draw_table,
)
from spark_audit.units import show_bytes, show_duration, show_points, show_ratio, show_time

_SHOWN: Final = 15


def build_page(before: Report, after: Report, changes: Sequence[TopicChange]) -> str:
    """The whole text of index.html."""
    sections = [
        draw_section("What changed", "", draw_sentences(describe(before, after, changes))),
        _topics(changes),
        _reasons(before, after),
        _clients(before, after),
        _sizes(before, after),
        _latency(before, after),
        _sides(before, after),
    ]
    subtitle = f"{before.name} before, {after.name} after"
    return build_document("Forebay audit: difference", subtitle, _cards(before, after), sections)


def _cards(before: Report, after: Report) -> str:
    cards = []
    if before.ratio is not None and after.ratio is not None:
        change = show_points(after.ratio - before.ratio, is_signed=True)
        said = f"of bytes came from memory, {show_ratio(before.ratio)} before"
        kind = "warn" if after.ratio < before.ratio else ""
        cards += [
            Card(change, "change of the hit ratio", kind),
            Card(show_ratio(after.ratio), said, kind),
        ]
    got = [side.rate(side.summary["fetches"]["bytes"]) for side in (before, after)]
    sent = [_sent_by_broker(side) for side in (before, after)]
    cards.append(
        Card(f"{show_bytes(got[1])}/s", f"handed to clients, {show_bytes(got[0])}/s before")
    )
    cards.append(
        Card(
            f"{show_bytes(sent[1])}/s", f"of it sent by the broker, {show_bytes(sent[0])}/s before"
        )
    )
    return draw_cards(cards)


def _sent_by_broker(side: Report) -> float:
    fetches = side.summary["fetches"]
    return side.rate(fetches["missBytes"] + fetches["passBytes"])


def _topics(changes: Sequence[TopicChange]) -> str:
    most = max((abs(one.points) for one in changes), default=0)
    if not changes or not most:
        return ""
    rows = [
        (
            one.topic,
            [
                BarPart(
                    abs(one.points) / most,
                    "hit" if one.points > 0 else "slow",
                    show_points(one.points, is_signed=True),
                )
            ],
            one.points,
            one.by_ratio,
            one.by_share,
            one.before.ratio,
            one.after.ratio,
            one.before.bytes,
            one.after.bytes,
            "" if one.reason is None else f"{one.reason[0]} {one.reason[1]}",
            None if one.reason is None else one.reason[2],
        )
        for one in changes
    ]
    columns = (
        Column("topic"),
        Column("accounts for", BAR),
        Column("in all", POINTS, "points"),
        Column("by ratio", POINTS, "points"),
        Column("by share", POINTS, "points"),
        Column("hit ratio", RATIO, "before"),
        Column("hit ratio", RATIO, "after"),
        Column("bytes", BYTES, "before"),
        Column("bytes", BYTES, "after"),
        Column("grew most", TEXT),
        Column("by", BYTES, "per second"),
    )
    return draw_section(
        "Which topics account for it",
        "The points of all topics add up to the change of the hit ratio. A topic counts by a change of its own hit"
        " ratio, and by a change of its share of all bytes.",
        draw_key([("hit", "raises the hit ratio"), ("slow", "lowers it")]),
        draw_table(columns, rows[:_SHOWN]),
        draw_folded(f"{len(rows) - _SHOWN} more topics", draw_table(columns, rows[_SHOWN:500])),
    )


def _reasons(before: Report, after: Report) -> str:
    sides = [
        {(row["result"], row["reason"]): row["bytes"] for row in side.summary["results"]}
        for side in (before, after)
    ]
    rows = []
    for pair in sorted(sides[0].keys() | sides[1].keys()):
        rates = [
            side.rate(sizes.get(pair, 0))
            for side, sizes in zip((before, after), sides, strict=True)
        ]
        shares = [
            sizes.get(pair, 0) / total if (total := side.summary["fetches"]["bytes"]) else None
            for side, sizes in zip((before, after), sides, strict=True)
        ]
        change = None if None in shares else (shares[1] or 0) - (shares[0] or 0)
        rows.append((*pair, *shares, change, *rates))
    columns = (
        Column("result"),
        Column("reason"),
        Column("share", RATIO, "of bytes, before"),
        Column("share", RATIO, "of bytes, after"),
        Column("change", POINTS, "points"),
        Column("per second", BYTES, "before"),
        Column("per second", BYTES, "after"),
    )
    return draw_section("Results and reasons", "", draw_table(columns, rows))


def _clients(before: Report, after: Report) -> str:
    """Of the clients that both reports list: a report lists the largest."""
    sides = [{row["clientId"]: row for row in side.summary["clients"]} for side in (before, after)]
    rows = [
        (
            client,
            sides[0][client]["hitRatioBytes"],
            row["hitRatioBytes"],
            _subtract(row["hitRatioBytes"], sides[0][client]["hitRatioBytes"]),
            before.rate(sides[0][client]["bytes"]),
            after.rate(row["bytes"]),
        )
        for client, row in sides[1].items()
        if client in sides[0]
    ]
    columns = (
        Column("client id"),
        Column("hit ratio", RATIO, "before"),
        Column("hit ratio", RATIO, "after"),
        Column("change", POINTS, "points"),
        Column("handed out per s", BYTES, "before"),
        Column("handed out per s", BYTES, "after"),
    )
    only = [
        f"Only {when}, or small on the other side: {', '.join(sorted(names))}."
        for when, names in (
            ("after", sides[1].keys() - sides[0].keys()),
            ("before", sides[0].keys() - sides[1].keys()),
        )
        if names
    ]
    return (
        draw_section("By client id", " ".join(only), draw_table(columns, rows))
        if rows or only
        else ""
    )


def _subtract(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before


def _sizes(before: Report, after: Report) -> str:
    lines, marks = [], []
    for side, name, kind in ((before, "before", "other"), (after, "after", "hit")):
        sizing = side.summary["sizing"]
        points = [(one["sizeBytes"], one["hitRatioBytes"] or 0.0) for one in sizing["points"]]
        upper = [one["possibleHitRatioBytes"] or 0.0 for one in sizing["points"]]
        is_exact = all(ratio == top for (_, ratio), top in zip(points, upper, strict=True))
        lines.append(Line(name, kind, points, () if is_exact else upper))
        size_bytes = sizing["cacheSizeBytes"]
        if size_bytes:
            marks.append(
                Mark(
                    size_bytes,
                    f"{name}: {show_bytes(size_bytes)}",
                    "now" if side is after else "want",
                )
            )
    chart = draw_curves(lines, marks, "hits and misses, by bytes")
    text = "The hit ratio that each cache size would have had. Vertical lines are the sizes that were configured."
    return draw_section("Cache size", text, chart) if chart else ""


def _latency(before: Report, after: Report) -> str:
    sides = [{row["result"]: row for row in side.summary["latency"]} for side in (before, after)]
    rows = [
        (
            result,
            *(
                sides[number][result][f"totalMs_{rank}"]
                for rank in ("p50", "p99")
                for number in (0, 1)
            ),
        )
        for result in sides[0]
        if result in sides[1]
    ]
    columns = (
        Column("result"),
        *(Column(rank, MS, when) for rank in ("p50", "p99") for when in ("before", "after")),
    )
    text = "From the request's last byte until its response has left, of partitions that carried records."
    return draw_section("Latency", text, draw_table(columns, rows)) if rows else ""


def _sides(before: Report, after: Report) -> str:
    rows: list[Sequence[Any]] = []
    for when, side in (("before", before), ("after", after)):
        log: Mapping[str, Any] = side.summary["log"]
        period = f"{show_time(log['firstMs'])} to {show_time(log['lastMs'])}"
        missing = log["droppedLines"] + log["unreadableLines"]
        rows.append(
            (
                when,
                side.name,
                period,
                show_duration(side.logged_s),
                f"{log['lines']:,}",
                f"{missing:,}",
            )
        )
    heads = ("side", "report", "period", "time with a log", "lines", "lines missing")
    return draw_section("The two sides", "", draw_table([Column(head) for head in heads], rows))
