"""The report's page: which section shows which finding, in which words.

Owns words, tables and their order. Must not know Spark, HTML or geometry. Invariants: each number has its unit and,
where it is a share, what it is a share of; each number is also in summary.json or in the Parquet tables; a section of
which there is nothing to say is left out.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from metrics.access_log_schema import REASON_MEANING
from spark_audit.diagnosis import LEAST_SHARE
from spark_audit.job import Findings
from spark_audit.ledger import KINDS
from spark_audit.page.charts import Line, Mark, Run, WindowBytes, draw_curves, draw_over_time
from spark_audit.page.document import build_document
from spark_audit.page.html import (
    BAR,
    BYTES,
    COUNT,
    MS,
    POINTS,
    RATIO,
    SECONDS,
    TIME,
    Bar,
    BarPart,
    Card,
    Column,
    draw_advice,
    draw_cards,
    draw_folded,
    draw_key,
    draw_list,
    draw_section,
    draw_table,
    draw_text,
)
from spark_audit.page.ledger import build_card, draw_ledger
from spark_audit.problems import PROBLEMS
from spark_audit.report_tables import TableRow
from spark_audit.summary import Outlook, build_outlook, build_spared
from spark_audit.tables import NO_GROUP
from spark_audit.units import show_bytes, show_count, show_duration, show_ms, show_ratio, show_time

if TYPE_CHECKING:
    from spark_audit.what_if.replay import PolicyResult

RESULTS: Final = ("hit", "miss", "pass")
_FIRST_WORDS: Final = frozenset({"the", "leases", "client"})
_RESULT_TEXT: Final = {
    "hit": "hit: from memory",
    "miss": "miss: from the broker, memory lacked it",
    "pass": "pass: not for the cache",
}


def build_page(findings: Findings) -> str:
    """The whole text of index.html."""
    outlook = build_outlook(findings)
    first_ms = min(boot["firstMs"] for boot in findings.boots)
    last_ms = max(boot["lastMs"] for boot in findings.boots)
    span = show_duration((last_ms - first_ms) / 1000)
    starts = sum(boot["keeper"] is None for boot in findings.boots) or 1
    subtitle = f"{show_time(first_ms)} to {show_time(last_ms)} ({span}); {starts} " + (
        "start of Forebay" if starts == 1 else "starts of Forebay"
    )
    sections = [
        _diagnoses(findings),
        _ledger(findings),
        _over_time(findings),
        _sizing(findings, outlook),
        _policies(findings),
        _topics(findings),
        _needs(findings),
        _misses(findings),
        _clients(findings),
        _groups(findings),
        _brokers(findings),
        _lag(findings),
        _delays(findings),
        _latency(findings),
        _spared(findings),
        _reconciliation(findings),
        _log(findings),
        "<footer>Sizes in binary units, times in UTC. Tables are in <code>tables/</code> (Parquet), the same"
        " numbers in <code>summary.json</code> and <code>completeness.json</code>.</footer>",
    ]
    return build_document("Forebay audit", subtitle, _cards(findings, outlook), sections)


def _cards(findings: Findings, outlook: Outlook) -> str:
    total, sizing = findings.total, findings.sizing
    enough = sizing.needed_bytes.get(0.99)
    handed_out = f"of {show_bytes(total['bytes'])} handed to clients came from memory"
    cards = [Card(show_ratio(total["hitRatioBytes"]), handed_out)]
    if total["observedBytes"]:
        text = f"of what memory may serve would have hit; {show_bytes(total['observedBytes'])} were observed"
        cards.append(Card(show_ratio(outlook.observed_ratio), text))
    else:
        cards.append(
            Card(show_bytes(total["hitBytes"]), "were neither read nor sent by the broker")
        )
    if findings.cache_size_bytes:
        cards.append(
            Card(
                show_bytes(findings.cache_size_bytes),
                f"of cache; holds {_show_held(findings, outlook)} of production",
            )
        )
    if enough is not None:
        cards.append(Card(show_bytes(enough), "would hit 99 % of what any size can hit"))
    if findings.ledger is not None:
        cards.append(build_card(findings.ledger.ratio, findings.ledger.expected_lines))
    return draw_cards(cards)


def _ledger(findings: Findings) -> str:
    ledger = findings.ledger
    if ledger is None:
        return ""
    numbers = ledger.ratio, ledger.expected_lines, ledger.readable_lines
    return draw_ledger(*numbers, ledger.boots, ledger.entries, KINDS)


def _diagnoses(findings: Findings) -> str:
    """What to change, the most bytes first."""
    if not findings.diagnoses:
        text = (
            f"No fault concerns {show_ratio(LEAST_SHARE)} or more of the bytes handed to clients."
        )
        return draw_section("What to change", text)
    items = [
        draw_advice(
            _capitalise(one.cause),
            one.key,
            one.value,
            f"{one.effect} ({one.price})" if one.price else one.effect,
        )
        for one in findings.diagnoses
    ]
    return draw_section("What to change", "", draw_list(items))


def _capitalise(text: str) -> str:
    """A topic's name stays as it is."""
    first = text.split(" ", 1)[0]
    return text[0].upper() + text[1:] if first in _FIRST_WORDS else text


def _over_time(findings: Findings) -> str:
    windows = [
        WindowBytes(row["windowMs"], row["hitBytes"], row["missBytes"], row["passBytes"])
        for row in findings.windows
    ]
    runs = [Run(boot["boot"], boot["firstMs"], boot["lastMs"]) for boot in findings.boots]
    chart = draw_over_time(windows, findings.window_ms, runs)
    if not chart:
        return ""
    width = show_duration(findings.window_ms / 1000)
    text = f"Averages over windows of {width}. Bytes are record bytes of responses to clients."
    if len(runs) > 1:
        text += " Dashed lines are starts of Forebay; shaded times have no log."
    return draw_section("Over time", text, _key(findings.total), chart)


def _topics(findings: Findings) -> str:
    if not findings.topics:
        return ""
    return draw_section(
        "By topic",
        "The hit ratio is hits of all bytes handed to clients: misses and passes count against it."
        " Bars are relative to the largest topic.",
        _key(findings.total),
        _ratio_table(findings.topics, {"topic": "topic"}, _most_bytes(findings.topics)),
        draw_folded(
            "by partition, the largest first",
            _ratio_table(
                findings.partitions,
                {"topic": "topic", "partition": "partition"},
                _most_bytes(findings.partitions),
            ),
        ),
    )


def _misses(findings: Findings) -> str:
    total = findings.total
    others = [row for row in findings.totals if row["result"] != "hit"]
    if not others:
        return draw_section(
            "Misses and passes", "There were none: memory answered every partition."
        )
    most = max(row["bytes"] for row in others)
    rows = [
        (
            row["result"],
            row["reason"],
            [BarPart(row["bytes"] / most, row["result"], show_bytes(row["bytes"]))] if most else [],
            row["bytes"],
            row["bytes"] / total["bytes"] if total["bytes"] else None,
            row["partitions"],
            row["emptyPartitions"],
            REASON_MEANING[row["result"], row["reason"]],
        )
        for row in others
    ]
    columns = (
        Column("result"),
        Column("reason"),
        Column("bytes", BAR),
        Column("bytes", BYTES),
        Column("share", RATIO, "% of all bytes"),
        Column("partitions", COUNT, "in responses"),
        Column("without records", COUNT, "of these"),
        Column("meaning"),
    )
    said = [
        f"{show_bytes(total[f'{kind}Bytes'])} were {name}"
        for kind, name in (("miss", "misses"), ("pass", "passes, which are not for the cache"))
        if total[f"{kind}Bytes"]
    ]
    text = f"Of {show_bytes(total['bytes'])} handed to clients, {' and '.join(said) or 'all were hits'}."
    return draw_section("Misses and passes", text, draw_table(columns, rows))


def _sizing(findings: Findings, outlook: Outlook) -> str:
    sizing = findings.sizing
    if not sizing.known_bytes and not sizing.unknown_bytes:
        said = (
            "no byte was stored while this log was written"
            if sizing.never_bytes
            else "there are none"
        )
        text = f"No size can be recommended: of {show_bytes(sizing.total_bytes)} of hits and misses, {said}."
        return draw_section("Cache size", text)
    points = [
        (point.size_bytes, sizing.hit_ratio(point.hit_bytes) or 0.0) for point in sizing.points
    ]
    upper = [sizing.hit_ratio(point.possible_bytes) or 0.0 for point in sizing.points]
    is_exact = all(ratio == top for (_, ratio), top in zip(points, upper, strict=True))
    columns = (
        Column("hits", RATIO, "% of achievable"),
        Column("cache.size", BYTES, "at least"),
        Column("hit ratio", RATIO, "% of hits and misses"),
        *(() if is_exact else (Column("at most", RATIO, "% of hits and misses"),)),
        Column("holds", SECONDS, "time of production"),
    )
    rows = [
        (
            one.target,
            one.size_bytes,
            one.hit_ratio,
            *(() if is_exact else (one.possible_ratio,)),
            outlook.residence_s(one.held_bytes),
        )
        for one in sizing.needed
    ]
    return draw_section(
        "Cache size",
        _describe_population(findings, is_exact),
        draw_curves(
            [Line("FIFO", "hit", points, () if is_exact else upper)],
            _size_marks(findings, outlook),
            "hits and misses, by bytes",
        ),
        draw_text(_describe_prediction(findings, outlook), ""),
        draw_table(columns, rows),
    )


def _show_held(findings: Findings, outlook: Outlook) -> str:
    """For how long the cache holds what is admitted, at today's size."""
    point = findings.sizing.point_at(findings.cache_size_bytes or 0)
    return show_duration(outlook.residence_s(point.held_bytes))


def _size_marks(findings: Findings, outlook: Outlook) -> list[Mark]:
    marks, now_bytes = [], findings.cache_size_bytes
    if now_bytes:
        held = _show_held(findings, outlook)
        marks.append(Mark(now_bytes, f"now: {show_bytes(now_bytes)}, {held}", "now"))
    enough = findings.sizing.needed_bytes.get(0.99)
    if enough is not None:
        marks.append(Mark(enough, f"99 %: {show_bytes(enough)}", "want"))
    return marks


def _describe_population(findings: Findings, is_exact: bool) -> str:
    """What the ratios are of, and what is not known."""
    sizing = findings.sizing
    text = (
        f"The hit ratio that each value of cache.size would have had, of {show_bytes(sizing.total_bytes)} of hits and"
        " misses."
    )
    if sizing.never_bytes:
        text += f" {show_bytes(sizing.never_bytes)} were never stored while this log was written: no size hits them."
    if sizing.unknown_bytes:
        text += f" Of {show_bytes(sizing.unknown_bytes)} the log does not tell the age."
    if not is_exact:
        text += " The curve is what is known; the shaded area above it is what may be."
    return text


def _describe_prediction(findings: Findings, outlook: Outlook) -> str:
    if outlook.predicted_ratio is None:
        return ""
    return (
        f"At {show_bytes(findings.cache_size_bytes)} the curve says {show_ratio(outlook.predicted_ratio)};"
        f" {show_ratio(outlook.observed_ratio)} were measured."
    )


def _policies(findings: Findings) -> str:
    """What other eviction policies would have hit, beside today's."""
    what_if = findings.what_if
    if what_if is None:
        return ""
    sizes = sorted({one.size_bytes for one in what_if.results})
    by_policy: dict[tuple[str, bool], dict[int, PolicyResult]] = {}
    for one in what_if.results:
        by_policy.setdefault((one.policy, one.admits_laggards), {})[one.size_bytes] = one
    rows = [
        (
            policy,
            "yes" if admits_laggards else "no",
            *(found[size].hit_ratio if size in found else None for size in sizes),
            *(what_if.worth(found[size]) if size in found else None for size in sizes),
        )
        for (policy, admits_laggards), found in by_policy.items()
    ]
    columns = (
        Column("policy"),
        Column("stores misses"),
        *(Column(f"at {show_bytes(size)}", RATIO, "hit ratio") for size in sizes),
        *(Column(f"at {show_bytes(size)}", POINTS, "points more") for size in sizes),
    )
    text = (
        f"Boot {what_if.boot} replayed with other policies, {show_count(what_if.events)} events of"
        f" {show_ratio(what_if.rate)} of its objects. FIFO that stores no misses is what Forebay does; no other policy"
        " can be configured yet. Hit ratios are of the bytes that were read; points are compared with it."
    )
    return draw_section("Other policies", text, draw_table(columns, rows))


def _needs(findings: Findings) -> str:
    """The marginal worth of memory, by topic."""
    rows = [
        (
            need.topic,
            need.bytes,
            need.hit_bytes / need.bytes if need.bytes else None,
            need.needed_bytes,
            need.next_gib_bytes,
        )
        for need in findings.topic_needs
    ]
    columns = (
        Column("topic"),
        Column("hits and misses", BYTES),
        Column("hit ratio", RATIO, "at today's size"),
        Column("cache.size for 99 %", BYTES, "of what any size hits"),
        Column("one GiB more", BYTES, "hits beside"),
    )
    text = "What a larger cache is worth to each topic. All topics share the cache: sizes are of the whole cache."
    return draw_section("Worth of a GiB", text, draw_table(columns, rows)) if rows else ""


def _lag(findings: Findings) -> str:
    times = [row for row in findings.lag_times if row["partitions"]]
    rows = [row for row in findings.lag_bands if row["partitions"]]
    if not rows and not times:
        return ""
    by_time = ""
    if times:
        text = "By time: the time of the response less the time stamp of the batch with the first record handed out."
        by_time = draw_text(text) + _ratio_table(times, {"band": "lag, time"})
    text = (
        "By records: the response's high watermark minus the fetch offset. Each bar is all bytes of its band;"
        " consumers at the tail stand at the top."
    )
    by_records = draw_text(text) + _ratio_table(rows, {"band": "lag, records"}) if rows else ""
    return draw_section("By lag", "", _key(findings.total), by_time, by_records)


def _latency(findings: Findings) -> str:
    ranks = ("p50", "p90", "p99", "p999", "max")
    rows = [
        (row["result"], said, row["partitions"], *(row[f"{name}_{rank}"] for rank in ranks))
        for row in findings.latency
        for said, name in (("in all", "totalMs"), ("of it waiting for records", "waitMs"))
    ]
    names = ("p50", "p90", "p99", "p99.9", "longest")
    columns = (
        Column("result"),
        Column("time"),
        Column("partitions", COUNT, "with records"),
        *(Column(name, MS) for name in names),
    )
    return draw_section(
        "Latency",
        "From the request's last byte until its response has left, of partitions that carried records."
        if rows
        else "",
        draw_table(columns, rows),
    )


def _spared(findings: Findings) -> str:
    spared, total = build_spared(findings), findings.total
    text = (
        f"{show_bytes(spared.hit_bytes)} in {show_count(spared.hit_partitions)} partitions of responses came from"
        " memory: the broker neither read nor sent them. The log does not know how much of it the broker's page cache"
        " would have held."
    )
    if spared.own_bytes is not None:
        text += (
            f" Forebay itself asked for {show_bytes(spared.own_bytes)} (watch, proofs, verifier): the net is"
            f" {show_bytes(spared.net_bytes)}."
        )
    table = ""
    if findings.counters is not None and findings.counters.upstream_bytes:
        upstream = findings.counters.upstream_bytes
        sent = sum(upstream.values())
        own = sent - upstream.get("client", 0)
        most = max(total["bytes"], sent) or 1
        rows = [
            ("clients got", _share_bar(total, most), total["bytes"]),
            (
                "the broker sent",
                [
                    BarPart((sent - own) / most, "pass", f"for clients: {show_bytes(sent - own)}"),
                    BarPart(own / most, "own", f"Forebay's own: {show_bytes(own)}"),
                ],
                sent,
            ),
        ]
        columns = (Column(""), Column("bytes", BAR), Column("record bytes", BYTES))
        key = [("hit", "hit"), ("miss", "miss"), ("pass", "pass, or for clients")]
        table = draw_key([*key, ("own", "Forebay's own")]) + draw_table(columns, rows)
    return draw_section("Reads spared", text, table)


def _delays(findings: Findings) -> str:
    if not findings.delays_by_client:
        return draw_section("Delays", "No miss had to wait for its disk.")

    def table(rows: Sequence[TableRow], key: str) -> str:
        longest = max(row["delayMs_max"] for row in rows)
        cells = [
            (
                row[key],
                [
                    BarPart(
                        row["delayMs_p50"] / longest,
                        "miss",
                        f"half waited {show_ms(row['delayMs_p50'])} at most",
                    ),
                    BarPart(
                        (row["delayMs_p95"] - row["delayMs_p50"]) / longest,
                        "slow",
                        f"95 % waited {show_ms(row['delayMs_p95'])} at most",
                    ),
                ],
                row["partitions"],
                row["bytes"],
                *(row[f"delayMs_{rank}"] for rank in ("p50", "p95", "max")),
                row["delayMs_sum"] / 1000,
            )
            for row in rows
        ]
        columns = (
            Column({"clientId": "client id"}.get(key, key)),
            Column("p50 and p95", BAR),
            Column("delayed", COUNT, "partitions"),
            Column("bytes", BYTES),
            Column("p50", MS),
            Column("p95", MS),
            Column("longest", MS),
            Column("in all", SECONDS),
        )
        return draw_table(columns, cells)

    return draw_section(
        "Delays",
        "Misses that waited until their disk could bear them (the throttle), and for how long.",
        draw_key([("miss", "half of them"), ("slow", "95 % of them")]),
        table(findings.delays_by_client, "clientId"),
        draw_folded("by topic", table(findings.delays_by_topic, "topic")),
    )


def _clients(findings: Findings) -> str:
    if not findings.clients:
        return ""
    return draw_section(
        "By client id",
        "Bars are relative to the largest client.",
        _key(findings.total),
        _ratio_table(findings.clients, {"clientId": "client id"}, _most_bytes(findings.clients)),
    )


def _groups(findings: Findings) -> str:
    if all(row["group"] == NO_GROUP for row in findings.groups):
        return ""
    return draw_section(
        "By consumer group",
        "A connection's group is known from its own JoinGroup, ConsumerGroupHeartbeat or OffsetCommit requests."
        f" {NO_GROUP} has none, or has its coordinator behind another Forebay.",
        _key(findings.total),
        _ratio_table(findings.groups, {"group": "group"}, _most_bytes(findings.groups)),
    )


def _brokers(findings: Findings) -> str:
    if len(findings.brokers) < 2:
        return ""
    heads = {"broker": "broker", "listeners": "listeners", "boots": "starts"}
    return draw_section(
        "By broker",
        "",
        _key(findings.total),
        _ratio_table(findings.brokers, heads, _most_bytes(findings.brokers)),
    )


def _reconciliation(findings: Findings) -> str:
    """Each boot against its own counters, and against scrapes; then what differs."""
    rows = [
        (
            one.boot,
            {"log": "its counters in the log"}.get(one.source, one.source),
            {True: "yes", False: "no", None: "not comparable"}[one.agrees],
            one.first_ms,
            one.until_ms,
            one.text,
        )
        for one in findings.reconciliations
    ]
    if not rows:
        return ""
    columns = (
        Column("boot"),
        Column("against"),
        Column("agrees"),
        Column("from", TIME, "UTC"),
        Column("until", TIME, "UTC"),
        Column("what was found"),
    )
    marked = [number for number, one in enumerate(findings.reconciliations) if one.agrees is False]
    compared = [one for one in findings.reconciliations if one.agrees is not None]
    agreeing = sum(one.agrees is True for one in compared)
    text = (
        f"{agreeing} of {len(compared)} comparisons agree exactly: partitions and bytes by result and reason."
        if compared
        else "Nothing could be compared."
    )
    return draw_section(
        "Log against counters", text, draw_table(columns, rows, marked), _differences(findings)
    )


def _differences(findings: Findings) -> str:
    rows = [
        (
            one.boot,
            one.first_ms,
            one.last_ms,
            one.row.result,
            one.row.reason,
            one.row.log_partitions - one.row.counter_partitions,
            one.row.log_bytes - one.row.counter_bytes,
            one.cause,
        )
        for reconciliation in findings.reconciliations
        for one in reconciliation.differences
    ]
    columns = (
        Column("boot"),
        Column("from", TIME, "UTC"),
        Column("until", TIME, "UTC"),
        Column("result"),
        Column("reason"),
        Column("partitions", COUNT, "log less counters"),
        Column("bytes", COUNT, "log less counters"),
        Column("cause"),
    )
    return draw_folded(f"differences by interval: {len(rows)}", draw_table(columns, rows[:200]))


def _log(findings: Findings) -> str:
    lines = sum(file.lines for file in findings.files)
    incomplete = [file.path for file in findings.files if file.incomplete]
    count = len(findings.files)
    text = f"{show_count(lines)} lines in {show_count(count)} {'file' if count == 1 else 'files'}."
    if incomplete:
        text += f" Cut short: {', '.join(incomplete)}."
    boots = [
        tuple(
            boot[name]
            for name in (
                *("boot", "firstMs", "lastMs", "schemaVersion", "fetchLines", "emptyLines"),
                *("blockLines", "countersLines", "droppedLines", "cacheSizeBytes"),
            )
        )
        for boot in findings.boots
    ]
    columns = (
        Column("boot"),
        Column("first line", TIME, "UTC"),
        Column("last line", TIME, "UTC"),
        Column("schema", COUNT, "version"),
        Column("fetch", COUNT, "lines"),
        Column("empty", COUNT, "lines"),
        Column("block", COUNT, "lines"),
        Column("counters", COUNT, "lines"),
        Column("dropped", COUNT, "lines"),
        Column("cache", BYTES),
    )
    problems = [(name, count, PROBLEMS[name]) for name, count in findings.problems.items()]
    unreadable = draw_table(
        (Column("unreadable"), Column("lines", COUNT), Column("meaning")), problems
    )
    return draw_section("The log itself", text, draw_table(columns, boots), unreadable)


_RATIO_COLUMNS: Final = {
    "hitRatioBytes": Column("hit ratio", RATIO, "% of bytes"),
    "bytes": Column("handed out", BYTES),
    "hitBytes": Column("hit", BYTES),
    "missBytes": Column("miss", BYTES),
    "passBytes": Column("pass", BYTES),
    "partitions": Column("partitions", COUNT, "in responses"),
    "emptyPartitions": Column("no records", COUNT, "of these"),
}


def _ratio_table(
    rows: Sequence[TableRow], heads: Mapping[str, str], whole_bytes: int | None = None
) -> str:
    """Hit ratios by the columns `heads` (field -> heading). Bars are of `whole_bytes`; None: of the row's own bytes.
    Columns that are 0 in all rows are left out.
    """
    shown = [name for name in _RATIO_COLUMNS if any(row[name] for row in rows)]
    cells = [
        (
            *(str(row[key]) for key in heads),
            _share_bar(row, row["bytes"] if whole_bytes is None else whole_bytes),
            *(row[name] for name in shown),
        )
        for row in rows
    ]
    columns = [Column(head) for head in heads.values()]
    columns += [Column("bytes by result", BAR), *(_RATIO_COLUMNS[name] for name in shown)]
    return draw_table(columns, cells)


def _most_bytes(rows: Sequence[TableRow]) -> int:
    return max((row["bytes"] for row in rows), default=0)


def _share_bar(row: TableRow, whole_bytes: int) -> Bar:
    """Hits, misses and passes of a row as shares of `whole_bytes`."""
    if not whole_bytes:
        return []
    return [
        BarPart(
            row[f"{kind}Bytes"] / whole_bytes, kind, f"{kind}: {show_bytes(row[f'{kind}Bytes'])}"
        )
        for kind in RESULTS
    ]


def _key(total: TableRow) -> str:
    """The legend of results, without those that never carried a byte."""
    return draw_key((kind, _RESULT_TEXT[kind]) for kind in RESULTS if total[f"{kind}Bytes"])
