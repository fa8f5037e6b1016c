"""The audit from paths to findings.

Owns the order of the work and what the findings are made of. Must not know HTML. Invariants: rows are read by what
sums and joins them alone (`kept_sums`, `curves`), all else is made of sums; what is collected to the driver is bounded
by a page of rows, WINDOWS windows, topics or a closed set; the findings hold plain values only.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from metrics.access_log_schema import EMPTY_INTERVAL_MS
from spark_audit import tables
from spark_audit.brokers import join_brokers
from spark_audit.curves import read_curves
from spark_audit.diagnosis import (
    NO_PRICES,
    Diagnosis,
    Evidence,
    Prices,
    TopicNeed,
    diagnose,
    plan_topic_needs,
)
from spark_audit.kept_sums import read_sums
from spark_audit.ledger import Ledger
from spark_audit.line_table import LineTable
from spark_audit.reading import (
    FileCount,
    Inputs,
    count_files,
    count_problems,
    good_lines,
    read_lines,
    show_ledger,
)
from spark_audit.reconcile import (
    Comparison,
    Reconciliation,
    ScrapedCounters,
    Totals,
    reconcile_boot,
    reconcile_group,
    reconcile_old,
    reconcile_scrape,
)
from spark_audit.report_tables import (
    TableRow,
    WrittenTables,
    build_facts,
    list_rows,
    plan_tables,
    sort_rows,
    split_reasons,
    write_file,
    write_tables,
)
from spark_audit.sections import build_marks, read_boot_logs
from spark_audit.sizing import Curves, Sizing
from spark_audit.storage import Store, to_uri
from spark_audit.sums import WINDOWED, SummedRows, build_sums
from spark_audit.what_if.replay import WhatIf

SCRATCH: Final = "lines-in-progress"
"""Table of the lines while the report is made; removed afterwards."""
WINDOWS: Final = 240
TOPIC_ROWS: Final = 20_000
PERIOD_TOPICS: Final = 200
OTHER_TOPICS: Final = "(other topics)"
"""Stands for the topics beyond TOPIC_ROWS or PERIOD_TOPICS; no topic of Kafka can have this name."""
QUERIES: Final = 3
"""Queries at a time, beside those of the curves: the driver plans one while workers compute another."""
_WINDOW_SECONDS: Final = (1, 2, 5, 10, 30, 60, 120, 300, 900, 3600, 6 * 3600, 24 * 3600)


class NothingToRead(Exception):
    """No good line about a Fetch in the input; the message says what there was instead."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for. `cache_size_bytes` and `window_ms` are None to be taken from the log."""

    inputs: Inputs
    out: Path | str
    counters: tuple[ScrapedCounters, ...] = ()
    cache_size_bytes: int | None = None
    window_ms: int | None = None
    prices: Prices = NO_PRICES


class TopicPeriods(NamedTuple):
    """Bytes over time: rows of (start in ms, topic, result, reason, bytes), each of `window_ms`, sorted."""

    window_ms: int
    rows: list[tuple[int, str, str, str, int]]


@dataclass(frozen=True, slots=True)
class Source:
    """Good lines, and what is known of the files that they are from."""

    table: LineTable
    files: list[FileCount]
    problems: dict[str, int]

    @property
    def lines(self) -> DataFrame:
        return self.table.lines

    @property
    def ledger(self) -> Ledger:
        return self.table.ledger


@dataclass(frozen=True, slots=True)
class Findings:
    """What the audit found: rows of the tables as plain dictionaries, in the order they are shown.

    `sizing`: `points` (by `cache.size`: `size_bytes`, `hit_bytes` known to hit, `possible_bytes` above it where ages
    are unknown: draw the band between), `needed` (targets with the ratio they promise), and `known_bytes`,
    `never_bytes`, `unknown_bytes`, whose sum is the denominator. `topic_sizing`: the same for each of `topics`, by
    name. `what_if`: other policies at half, once and twice the size; `worth` is the gain over today's. None: nothing
    stored or read.
    """

    files: list[FileCount]
    problems: dict[str, int]
    boots: list[TableRow]
    window_ms: int
    total: TableRow
    totals: list[TableRow]
    topics: list[TableRow]
    clients: list[TableRow]
    partitions: list[TableRow]
    topic_reasons: list[TableRow]
    periods: TopicPeriods
    windows: list[TableRow]
    lag_bands: list[TableRow]
    latency: list[TableRow]
    delays_by_client: list[TableRow]
    delays_by_topic: list[TableRow]
    admissions: list[TableRow]
    sizing: Sizing
    topic_sizing: dict[str, Sizing]
    what_if: WhatIf | None
    cache_size_bytes: int | None
    compared_boot: str | None
    comparison: list[Comparison]
    counters: ScrapedCounters | None
    reconciliations: list[Reconciliation] = field(default_factory=list)
    groups: list[TableRow] = field(default_factory=list)
    brokers: list[TableRow] = field(default_factory=list)
    lag_times: list[TableRow] = field(default_factory=list)
    topic_needs: list[TopicNeed] = field(default_factory=list)
    diagnoses: list[Diagnosis] = field(default_factory=list)
    ledger: Ledger | None = None


def run(
    spark: SparkSession,
    request: Request,
    say: Callable[[str], None],
    table: LineTable | None = None,
) -> Findings:
    """Read, compute, write the tables. `table`: the lines, if they were read before. NothingToRead: no fetch line could
    be read.
    """
    if table is not None:
        return _compute(spark, request, _source_of(table), say)
    scratch = f"{to_uri(request.out)}/{SCRATCH}"
    try:
        table = read_lines(spark, request.inputs, scratch, say)
        return _compute(spark, request, _source_of(table), say)
    finally:
        Store(spark).delete(scratch)


def _source_of(table: LineTable) -> Source:
    return Source(table, count_files(table), count_problems(table))


def _compute(
    spark: SparkSession, request: Request, source: Source, say: Callable[[str], None]
) -> Findings:
    lines, files, problems = source.lines, source.files, source.problems
    sums = read_sums(spark, source.table, plan_window_ms, say)
    boots = sort_rows(list_rows(tables.boots(sums.frames["boot_lines"], lines)), "firstMs", "boot")
    if not any(boot["fetchLines"] or boot["emptyLines"] for boot in boots):
        raise NothingToRead(_describe_nothing(files, problems, source.ledger))
    say(
        f"{sum(file.lines for file in files):,} lines, {sum(problems.values()):,} of them unreadable"
        f"; {show_ledger(source.ledger)}"
    )
    window_ms = request.window_ms or plan_window_ms(
        boots[0]["firstMs"],
        max(boot["lastMs"] for boot in boots),
        EMPTY_INTERVAL_MS if any(boot["emptyLines"] for boot in boots) else 0,
    )
    cache_size_bytes = _current_size(request, boots)
    frames = dict(sums.frames)
    if not sums.fits(window_ms):
        frames |= build_sums(SummedRows(lines, window_ms), WINDOWED)
    made = _query(spark, request, source, frames, boots, window_ms, cache_size_bytes, say)
    written = made.written
    (sizing, topic_sizing, _), what_if = made.curves
    scraped = next((one for one in made.reconciliations if one.source == "scrape"), None)
    evidence = Evidence(
        boots=boots,
        total=made.total,
        topic_reasons=made.topic_reasons,
        stored=written.rows("stored"),
        fresh_misses=written.top("fresh_misses", "topic"),
        laggards=written.top("laggards", "topic", "clientId", "group"),
        sizing=sizing,
        topic_sizing=topic_sizing,
        cache_size_bytes=cache_size_bytes,
    )
    return Findings(
        files=files,
        problems=problems,
        boots=boots,
        window_ms=window_ms,
        total=made.total,
        totals=made.totals,
        topics=written.top("by_topic", "topic"),
        clients=written.top("by_client", "clientId"),
        partitions=written.top("by_partition", "topic", "partition"),
        topic_reasons=made.topic_reasons,
        periods=made.periods,
        windows=written.top("by_window", by="windowMs", count=WINDOWS)[::-1],
        lag_bands=sort_rows(written.rows("lag_bands"), "bandIndex"),
        latency=sort_rows(written.rows("latency"), "result"),
        delays_by_client=written.top("delays_by_client", "clientId", by="delayMs_sum"),
        delays_by_topic=written.top("delays_by_topic", "topic", by="delayMs_sum"),
        admissions=made.admissions,
        sizing=sizing,
        topic_sizing=topic_sizing,
        what_if=what_if,
        cache_size_bytes=cache_size_bytes,
        compared_boot=scraped.boot if scraped else None,
        comparison=list(scraped.rows) if scraped else [],
        counters=request.counters[0] if request.counters else None,
        reconciliations=made.reconciliations,
        groups=written.top("by_group", "group"),
        brokers=join_brokers(boots, written.rows("by_boot")),
        lag_times=sort_rows(written.rows("lag_times"), "bandIndex"),
        topic_needs=plan_topic_needs(topic_sizing, cache_size_bytes),
        diagnoses=diagnose(evidence, request.prices),
        ledger=source.ledger,
    )


class Queried(NamedTuple):
    """What Spark has been asked for: the tables, the curves and what-ifs, and what no table has."""

    written: WrittenTables
    totals: list[TableRow]
    curves: tuple[Curves, WhatIf | None]
    reconciliations: list[Reconciliation]
    topic_reasons: list[TableRow]
    periods: TopicPeriods
    total: TableRow
    admissions: list[TableRow]


def _query(
    spark: SparkSession,
    request: Request,
    source: Source,
    frames: dict[str, DataFrame],
    boots: list[TableRow],
    window_ms: int,
    cache_size_bytes: int | None,
    say: Callable[[str], None],
) -> Queried:
    """QUERIES at a time. A query that waits for a table waits for one that was begun before it."""
    facts = build_facts(frames, window_ms)
    directory = f"{to_uri(request.out)}/tables"
    with ThreadPoolExecutor(QUERIES) as pool, ThreadPoolExecutor(1) as beside:
        by_reason = pool.submit(tables.totals(facts.by_time, "topic").toArrow)
        written = write_tables(pool, spark, plan_tables(facts, frames, window_ms), directory, say)

        def query_curves() -> tuple[Curves, WhatIf | None]:
            topics = written.top("by_topic", "topic")
            say("computing the sizing curve")
            found = read_curves(spark, source.table, frames, boots, cache_size_bytes, topics, say)
            write_file(Store(spark), f"{directory}/sizing_curve", _list_curve(found[0].whole))
            return found

        def query_counters() -> list[Reconciliation]:
            sections = written.frame("by_section")
            return _reconcile(request.counters, boots, facts.by_client, sections, source.lines)

        curves = beside.submit(query_curves)
        counters = pool.submit(query_counters)
        periods = pool.submit(
            lambda: _list_periods(facts.by_time, written.rows("by_topic"), window_ms, boots)
        )
        total = pool.submit(list_rows, tables.hit_ratio(facts.by_time))
        admissions = pool.submit(lambda: _sum_admissions(written.frame("admissions")))
    written.wait()
    split = split_reasons(by_reason.result())
    for name, table in split.items():
        write_file(Store(spark), f"{directory}/{name}", table)
    totals = split["totals"].to_pylist()
    return Queried(
        written,
        _sort_totals(totals),
        curves.result(),
        counters.result(),
        _list_topic_reasons(by_reason.result().to_pylist(), totals),
        periods.result(),
        total.result()[0],
        admissions.result(),
    )


def plan_window_ms(first_ms: int, last_ms: int, least_ms: int = 0) -> int:
    """The finest of the usual windows, of at least `least_ms`, of which at most half of WINDOWS cover the log, else the
    coarsest.
    """
    for seconds in _WINDOW_SECONDS:
        if seconds * 1000 >= least_ms and (last_ms - first_ms) // (seconds * 1000) < WINDOWS // 2:
            return seconds * 1000
    return _WINDOW_SECONDS[-1] * 1000


def _sort_totals(totals: list[TableRow]) -> list[TableRow]:
    return sorted(totals, key=lambda row: (row["result"], -row["bytes"], row["reason"]))


def _sum_admissions(admissions: DataFrame) -> list[TableRow]:
    by_source = admissions.groupBy("source").agg(F.sum("bytes").alias("bytes"))
    return sort_rows(list_rows(by_source), "source")


def _list_curve(sizing: Sizing) -> Any:
    """The curve's points as an Arrow table."""
    import pyarrow as pa

    rows = [(*point, sizing.hit_ratio(point.hit_bytes)) for point in sizing.points]
    names = ("sizeBytes", "hitBytes", "hitPartitions", "heldBytes", "possibleBytes")
    fields = [*((name, pa.int64()) for name in names), ("hitRatioBytes", pa.float64())]
    columns = [
        pa.array([row[place] for row in rows], kind) for place, (_, kind) in enumerate(fields)
    ]
    return pa.table(columns, schema=pa.schema(fields))


def _reconcile(
    scrapes: tuple[ScrapedCounters, ...],
    boots: list[TableRow],
    facts: DataFrame,
    sections: DataFrame,
    lines: DataFrame,
) -> list[Reconciliation]:
    """Scrapes first, then the log of each boot that has counters of its own."""
    marks = build_marks(sections, good_lines(lines, "counters"))
    has_marks = any(boot["countersLines"] for boot in boots)
    logs = (
        read_boot_logs(marks, [mark for one in scrapes for mark in one.asked]) if has_marks else {}
    )
    found = []
    for scrape in scrapes:
        if scrape.lines:
            found.append(reconcile_group(scrape, logs))
            continue
        if scrape.boot:
            found.append(reconcile_scrape(scrape, logs.get(scrape.boot)))
            continue
        boot: str = max(boots, key=lambda row: (row["lastMs"], row["boot"]))["boot"]
        rows = list_rows(tables.totals(facts.where(F.col("boot") == boot)))
        log: Totals = {
            (row["result"], row["reason"]): (row["partitions"], row["bytes"]) for row in rows
        }
        found.append(reconcile_old(boot, log, scrape))
    return found + [reconcile_boot(logs[boot["boot"]]) for boot in boots if boot["boot"] in logs]


def _current_size(request: Request, boots: list[TableRow]) -> int | None:
    """As the user says, else as the latest boot's files say, else as the counters say."""
    latest = max(boots, key=lambda row: row["lastMs"])
    counted = [one.cache_size_bytes for one in request.counters if one.cache_size_bytes]
    return request.cache_size_bytes or latest["cacheSizeBytes"] or max(counted, default=None)


def _list_topic_reasons(reasons: list[TableRow], totals: list[TableRow]) -> list[TableRow]:
    """Bytes by topic, result and reason, sorted: the largest rows, and the rest of each result and reason as the topic
    OTHER_TOPICS, so that the rows add up to `totals`.
    """
    keys = ("topic", "result", "reason")
    named = [{name: row[name] for name in (*keys, "bytes")} for row in reasons]
    rows = sort_rows(named, *keys, most="bytes")[:TOPIC_ROWS]
    rest = {(row["result"], row["reason"]): row["bytes"] for row in totals}
    for row in rows:
        rest[row["result"], row["reason"]] -= row["bytes"]
    others = [
        {"topic": OTHER_TOPICS, "result": result, "reason": reason, "bytes": size_bytes}
        for (result, reason), size_bytes in rest.items()
        if size_bytes
    ]
    return sorted([*rows, *others], key=lambda row: (row["topic"], row["result"], row["reason"]))


def _list_periods(
    facts: DataFrame, topics: list[TableRow], window_ms: int, boots: list[TableRow]
) -> TopicPeriods:
    """In at most about WINDOWS windows, for the largest PERIOD_TOPICS topics and all others together."""
    span_ms = max(boot["lastMs"] for boot in boots) - min(boot["firstMs"] for boot in boots)
    width_ms = window_ms * max(1, -(-span_ms // (window_ms * WINDOWS)))
    largest = sort_rows(topics, "topic", most="bytes")[:PERIOD_TOPICS]
    is_named = F.col("topic").isin(*(row["topic"] for row in largest))
    coarse = facts.where(F.col("bytes") > 0).withColumns(
        {
            "topic": F.when(is_named, F.col("topic")).otherwise(OTHER_TOPICS),
            "startMs": F.col("windowMs") - F.col("windowMs") % F.lit(width_ms),
        }
    )
    keys = ("startMs", "topic", "result", "reason")
    rows = coarse.groupBy(*keys).agg(F.sum("bytes").alias("bytes")).collect()
    return TopicPeriods(width_ms, sorted(tuple(row) for row in rows))


def _describe_nothing(
    files: list[FileCount], problems: dict[str, int], ledger: Ledger | None
) -> str:
    if not files:
        return "no .jsonl or .jsonl.gz file could be read"
    entries = ledger.entries if ledger else ()
    refused = next((entry for entry in entries if entry.kind == "not-read"), None)
    if refused is not None:
        return f"{refused.path} could not be read ({refused.text}), nor could another file"
    counted = (
        ", ".join(f"{count} {problem}" for problem, count in problems.items()) or "none unreadable"
    )
    total = sum(file.lines for file in files)
    return f"{len(files)} files with {total} lines hold no line about a Fetch that can be read ({counted})"
