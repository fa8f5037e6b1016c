"""The page: one HTML file that needs nothing beside it.

Owns the words, the tables and their order; `page.css` the looks, `plots` the pictures. Must not know Spark.
Invariants: everything that came from a log is escaped; no script, no link to anything outside the file; each
number is also in summary.json or the Parquet tables.
"""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Final

from metrics.access_log_schema import REASON_MEANING
from spark_audit import plots
from spark_audit.job import Findings, TableRow
from spark_audit.schema import PROBLEMS
from spark_audit.summary import Outlook, build_outlook, build_spared
from spark_audit.units import show_bytes, show_count, show_duration, show_ms, show_ratio, show_time

BAD: Final = ' class="bad"'
_CSS: Final = Path(__file__).with_name("page.css")


def build_page(findings: Findings) -> str:
    """The whole text of index.html."""
    outlook = build_outlook(findings)
    first_ms = min(boot["firstMs"] for boot in findings.boots)
    last_ms = max(boot["lastMs"] for boot in findings.boots)
    span = show_duration((last_ms - first_ms) / 1000)
    parts = [
        "<h1>Forebay audit</h1>",
        f'<p class="quiet">{show_time(first_ms)} to {show_time(last_ms)} ({span}),'
        f" starts of Forebay: {len(findings.boots)}</p>",
        _cards(findings, outlook),
        _over_time(findings),
        _topics(findings),
        _misses(findings),
        _sizing(findings, outlook),
        _lag(findings),
        _spared(findings),
        _latency(findings),
        _delays(findings),
        _clients(findings),
        _reconciliation(findings),
        _log(findings),
        "<footer>Sizes in binary units. All times UTC. Tables in <code>tables/</code> (Parquet), the same"
        " numbers in <code>summary.json</code>.</footer>",
    ]
    css = _CSS.read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Forebay audit</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>\n{css}</style></head><body><main>\n"
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )


def _cards(findings: Findings, outlook: Outlook) -> str:
    total, sizing = findings.total, findings.sizing
    enough = sizing.needed_bytes.get(0.99)
    unreadable = sum(findings.problems.values())
    dropped = sum(boot["droppedLines"] or 0 for boot in findings.boots)
    cards = [
        (
            show_ratio(total["hitRatioBytes"]),
            f"of {show_bytes(total['bytes'])} handed to clients came from memory",
            "",
        ),
        _observed_card(findings, outlook)
        or (show_bytes(total["hitBytes"]), "of fetches never left the broker", ""),
        (
            show_bytes(findings.cache_size_bytes),
            f"of cache, {show_duration(outlook.residence_s(findings.cache_size_bytes))} of production",
            "",
        ),
        (show_bytes(enough), "would hit 99 % of what any size can hit", ""),
    ]
    if unreadable or dropped:
        lines = f"lines missing: {show_count(unreadable)} unreadable, {show_count(dropped)} dropped when written"
        cards.append((show_count(unreadable + dropped), lines, " warn"))
    return (
        '<div class="cards">'
        + "".join(
            f'<div class="card{kind}"><b>{value}</b><span>{text}</span></div>'
            for value, text, kind in cards
        )
        + "</div>"
    )


def _observed_card(findings: Findings, outlook: Outlook) -> tuple[str, str, str] | None:
    observed_bytes = findings.total["observedBytes"]
    if not observed_bytes:
        return None
    text = (
        f"of what memory may serve would have hit; {show_bytes(observed_bytes)} were only observed"
    )
    return show_ratio(outlook.observed_ratio), text, ""


def _over_time(findings: Findings) -> str:
    window = show_duration(findings.window_ms / 1000)
    return _section(
        "Over time",
        f"Windows of {window}. Bytes are record bytes of answers; misses and passes came from the broker.",
        _image(plots.draw_over_time(findings), "hit ratio and bytes per second over time"),
    )


def _topics(findings: Findings) -> str:
    return _section(
        "By topic",
        "The hit ratio is hits of all bytes handed out: misses and passes count against it.",
        _image(plots.draw_shares(findings.topics, "topic"), "bytes by topic and result"),
        _ratio_table(findings.topics, "topic"),
        _folded("by partition", _ratio_table(findings.partitions, "topic", "partition")),
    )


def _misses(findings: Findings) -> str:
    drawn = [plots.draw_reasons(findings.totals, result) for result in ("miss", "pass")]
    images = [_image(image, "bytes by reason") for image in drawn if image]
    rows = [
        (
            row["result"],
            row["reason"],
            show_bytes(row["bytes"]),
            show_count(row["partitions"]),
            show_count(row["emptyPartitions"]),
            REASON_MEANING[row["result"], row["reason"]],
        )
        for row in findings.totals
    ]
    head = ("result", "reason", "bytes", "partitions", "of them empty", "meaning")
    total = findings.total
    text = (
        f"Misses: {show_bytes(total['missBytes'])} in {show_count(total['missPartitions'])} partitions;"
        f" passes, which are not for the cache: {show_bytes(total['passBytes'])} in"
        f" {show_count(total['passPartitions'])} partitions."
    )
    return _section("Misses and passes by reason", text, *images, _table(head, rows, (0, 1, 5)))


def _sizing(findings: Findings, outlook: Outlook) -> str:
    sizing = findings.sizing
    text = [
        "A FIFO of size S hits exactly when fewer than S bytes were admitted since the fetched offset was."
        f" This is what each size would have hit of {show_bytes(sizing.total_bytes)} of hits and misses."
        f" {show_bytes(sizing.unknown_bytes)} have no known age (never admitted, forgotten): always misses.",
    ]
    if outlook.predicted_ratio is not None:
        text.append(
            f" At {show_bytes(findings.cache_size_bytes)} the curve has {show_ratio(outlook.predicted_ratio)}"
            f", {show_ratio(outlook.observed_ratio)} were seen to hit, or would have; between them are misses"
            " for other reasons than size, and blocks that are freed whole."
        )
    rows = [
        (
            f"{100 * target:g} %",
            show_bytes(size_bytes),
            show_duration(outlook.residence_s(size_bytes)),
        )
        for target, size_bytes in sizing.needed_bytes.items()
    ]
    head = ("of achievable hits", "smallest cache", "holds production of")
    return _section(
        "Sizing",
        "".join(text),
        _image(plots.draw_sizing(findings, outlook), "sizing curve"),
        _table(head, rows),
    )


def _lag(findings: Findings) -> str:
    return _section(
        "By lag",
        "Lag is the answer's high watermark minus the fetch offset: tailing consumers stand on the left.",
        _image(plots.draw_lag_bands(findings.lag_bands), "results by band of lag"),
        _ratio_table(findings.lag_bands, "band"),
    )


def _latency(findings: Findings) -> str:
    ranks = ("p50", "p90", "p99", "p999", "max")
    rows = [
        (
            row["result"],
            field,
            show_count(row["partitions"]),
            *(show_ms(row[f"{name}_{rank}"]) for rank in ranks),
        )
        for row in findings.latency
        for field, name in (("total", "totalMs"), ("of it waiting", "waitMs"))
    ]
    return _section(
        "Latency",
        "Partitions of fetches that carried bytes; from the request's last byte to the answer's hand-over.",
        _table(("result", "time", "partitions", *ranks), rows, (0, 1)),
    )


def _spared(findings: Findings) -> str:
    spared = build_spared(findings)
    text = (
        f"{show_bytes(spared.hit_bytes)} in {show_count(spared.hit_partitions)} partitions of fetches came from memory:"
        " so much the broker neither read nor sent. How much of it its page cache would have held, the log does"
        " not know; hits far behind, in the bands of lag above, would have been reads of its disk."
    )
    if spared.own_bytes is not None:
        text += (
            f" Forebay itself asked for {show_bytes(spared.own_bytes)} (watch, proofs, verifier): the net is"
            f" {show_bytes(spared.net_bytes)}."
        )
    drawn = (
        plots.draw_spared(findings)
        if findings.counters and findings.counters.upstream_bytes
        else None
    )
    images = [_image(drawn, "bytes to clients beside bytes from the broker")] if drawn else []
    return _section("Reads spared", text, *images)


def _delays(findings: Findings) -> str:
    if not findings.delays_by_client:
        return _section("Delays", "No miss had to wait for its disk.")
    ranks = ("p50", "p95", "max", "sum")

    def table(rows: Sequence[TableRow], key: str) -> str:
        cells = [
            (
                str(row[key]),
                show_count(row["partitions"]),
                show_bytes(row["bytes"]),
                *(show_ms(row[f"delayMs_{rank}"]) for rank in ranks),
            )
            for row in rows
        ]
        return _table((key, "delayed", "bytes", *ranks), cells)

    return _section(
        "Delays",
        "Misses that waited until their disk could bear them (the throttle), and for how long.",
        _image(plots.draw_delays(findings.delays_by_client, "clientId"), "delays by client"),
        table(findings.delays_by_client, "clientId"),
        _folded("by topic", table(findings.delays_by_topic, "topic")),
    )


def _clients(findings: Findings) -> str:
    return _section("By client id", "", _ratio_table(findings.clients, "clientId"))


def _reconciliation(findings: Findings) -> str:
    if findings.counters is None:
        return ""
    agrees = all(row.agrees for row in findings.comparison)
    dropped = findings.counters.dropped_lines
    text = f"Boot {findings.compared_boot}: log and counters " + (
        "agree exactly." if agrees else "differ."
    )
    if not agrees and dropped:
        text += (
            f" The sidecar dropped {show_count(dropped)} lines: they are missing in the log. An empty line stands for"
            " several partitions."
        )
    upstream = sum(findings.counters.upstream_bytes.values())
    if upstream:
        text += (
            f" The broker sent {show_bytes(upstream)} of records in all, watch and proofs included."
        )
    rows = [
        (
            row.result,
            row.reason,
            *map(
                show_count,
                (row.log_partitions, row.counter_partitions, row.log_bytes, row.counter_bytes),
            ),
        )
        for row in findings.comparison
    ]
    marked = [number for number, row in enumerate(findings.comparison) if not row.agrees]
    head = ("result", "reason", "partitions in the log", "counted", "bytes in the log", "counted")
    return _section("Log against counters", text, _table(head, rows, (0, 1), marked))


def _log(findings: Findings) -> str:
    lines = sum(file.lines for file in findings.files)
    incomplete = [file.path for file in findings.files if file.incomplete]
    text = f"{show_count(lines)} lines in {len(findings.files)} files."
    if incomplete:
        text += f" Cut short: {', '.join(incomplete)}."
    boots = [
        (
            boot["boot"],
            show_time(boot["firstMs"]),
            show_time(boot["lastMs"]),
            show_count(boot["schemaVersion"]),
            show_count(boot["fetchLines"]),
            show_count(boot["emptyLines"]),
            show_count(boot["blockLines"]),
            show_count(boot["droppedLines"]),
            show_bytes(boot["cacheSizeBytes"]),
        )
        for boot in findings.boots
    ]
    kinds = ("fetch lines", "empty lines", "block lines")
    head = ("boot", "first line", "last line", "version", *kinds, "dropped", "cache")
    problems = [
        (name, show_count(count), PROBLEMS[name]) for name, count in findings.problems.items()
    ]
    unreadable = _table(("unreadable", "lines", "meaning"), problems, (0, 2)) if problems else ""
    return _section("The log itself", text, _table(head, boots, (0,)), unreadable)


def _ratio_table(rows: Sequence[TableRow], *keys: str) -> str:
    head = (*keys, "hit ratio", "bytes", "hit", "miss", "pass", "partitions", "of them empty")
    names = ("bytes", "hitBytes", "missBytes", "passBytes")
    cells = [
        (
            *(str(row[key]) for key in keys),
            show_ratio(row["hitRatioBytes"]),
            *(show_bytes(row[name]) for name in names),
            show_count(row["partitions"]),
            show_count(row["emptyPartitions"]),
        )
        for row in rows
    ]
    return _table(head, cells, range(len(keys)))


def _table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: Iterable[int] = (0,),
    bad: Sequence[int] = (),
) -> str:
    """Cells are text and escaped here; `left` are the columns set left, `bad` the rows marked."""
    aligned = set(left)

    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = [' class="left"' if place in aligned else "" for place in range(len(row))]
        return "".join(
            f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, row, strict=True)
        )

    body = "".join(
        f"<tr{BAD if number in bad else ''}>{cells('td', row)}</tr>"
        for number, row in enumerate(rows)
    )
    return f'<div class="scroll"><table><tr>{cells("th", head)}</tr>{body}</table></div>'


def _section(title: str, text: str, *parts: str) -> str:
    said = f'<p class="quiet">{escape(text)}</p>' if text else ""
    return f"<section><h2>{escape(title)}</h2>{said}{''.join(parts)}</section>"


def _image(uri: str, alt: str) -> str:
    return f'<img src="{uri}" alt="{escape(alt)}">'


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"
