"""Findings with everything that a page can show: two brokers' boots with a downtime, long names, bad lines, delays.

Owns invented numbers that fit together. No Spark is needed: a page is made of plain values. Invariant: each call gives
the same findings.
"""

import math
import random
from collections.abc import Iterable, Mapping
from typing import Any

from spark_audit.calibration import calibrate
from spark_audit.diagnosis import Diagnosis, TopicNeed
from spark_audit.job import Findings, TopicPeriods
from spark_audit.ledger import BootCount, Ledger, LedgerEntry
from spark_audit.reading import FileCount
from spark_audit.reconcile import Comparison, IntervalDifference, Reconciliation, ScrapedCounters
from spark_audit.sizing import Ages, Bucket, CurvePoint, NeededSize, Sizing
from spark_audit.what_if.replay import PolicyResult, WhatIf

START_MS = 1_763_700_000_000
MINUTE_MS = 60_000
MIB = 1 << 20
TOPICS = (
    "orders",
    "payments.v2",
    "clickstream-eu-west-1-enriched-with-geo-and-device-attributes-by-user-id",
    "ledger.tx",
    "audit<script>",
    "metrics",
)
CLIENTS = (
    "billing",
    "fraud-scoring-7f9c6d5b8-xk2lp",
    "(none)",
    "replay",
    "warehouse & lake loader",
)
DOWN = range(70, 85)
"""Minutes in which no Forebay ran."""


def build_ratio_row(hit: int, miss: int, passed: int, **keys: Any) -> dict[str, Any]:
    """A row as `tables.hit_ratio` makes it."""
    total = hit + miss + passed
    return {
        **keys,
        "bytes": total,
        "hitBytes": hit,
        "missBytes": miss,
        "passBytes": passed,
        "partitions": total // 40_000 + 12,
        "emptyPartitions": total // 90_000,
        "hitPartitions": hit // 40_000,
        "missPartitions": miss // 40_000,
        "passPartitions": passed // 40_000,
        "observedBytes": 0,
        "wouldHitBytes": 0,
        "hitRatioBytes": hit / total if total else None,
        "hitRatioPartitions": hit / total if total else None,
    }


def build_windows() -> list[dict[str, Any]]:
    """Two hours of minutes, with a downtime and three silent minutes."""
    rows, chance = [], random.Random(7)
    for minute in range(120):
        if minute in DOWN or minute in (30, 31, 32):
            continue
        load = 60 + 25 * math.sin(minute / 14) + chance.random() * 12
        ratio = 0.975 - 0.02 * chance.random() - (0.2 if minute in range(85, 91) else 0)
        passed = 2.0 if minute % 3 else 0.4
        hit, miss = load * ratio, load * (1 - ratio)
        sizes = (round(size * 8 * MIB) for size in (hit, miss, passed))
        rows.append(build_ratio_row(*sizes, windowMs=START_MS + minute * MINUTE_MS))
    return rows


def _sum(rows: Iterable[Mapping[str, Any]], key: str) -> int:
    return sum(row[key] for row in rows)


def _split(total: Mapping[str, Any], names: tuple[str, ...], key: str) -> list[dict[str, Any]]:
    """The total by name, each with half of what is left."""
    rows, left = [], [total["hitBytes"], total["missBytes"], total["passBytes"]]
    for number, name in enumerate(names):
        last = number == len(names) - 1
        mine = [size if last else size * (4 + number) // (9 + number) for size in left]
        left = [size - part for size, part in zip(left, mine, strict=True)]
        rows.append({**build_ratio_row(*mine), key: name})
    return sorted(rows, key=lambda row: -row["bytes"])


def build_boot(
    name: str, first_minute: float, last_minute: float, **changes: Any
) -> dict[str, Any]:
    """A row as `tables.boots` makes it."""
    return {
        "boot": name,
        "schemaVersion": 3,
        "nodeId": 3,
        "keeper": None,
        "listeners": [{"name": "main", "address": "kafka-3:9092", "upstream": "127.0.0.1:19092"}],
        "upstreamFirst": None,
        "upstreamLast": None,
        "leaseLapses": 4,
        "firstMs": START_MS + round(first_minute * MINUTE_MS),
        "lastMs": START_MS + round(last_minute * MINUTE_MS),
        "admittedBytesFirst": 0,
        "admittedBytesLast": round((last_minute - first_minute) * 160 * MIB),
        "droppedLines": 0,
        "cacheSizeBytes": 1536 * MIB,
        "filesOpened": 2,
        "filesClosed": 2,
        "fetchLines": 700_000,
        "emptyLines": 21_000,
        "blockLines": 96_000,
        "countersLines": 70,
        **changes,
    }


def build_sizing(total_bytes: int) -> Sizing:
    """A curve with two groups of readers: at the tail, and an hour behind. A tenth of what is unknown may be hit."""
    points, buckets = [], []
    for step in range(96):
        size_bytes = round(4096 * 2 ** (step / 4))
        tail = 1 / (1 + math.exp(-(math.log2(size_bytes) - 24.5)))
        late = 1 / (1 + math.exp(-2 * (math.log2(size_bytes) - 31)))
        share = 0.72 * tail + 0.22 * late
        hit_bytes, possible = (
            round(total_bytes * share),
            round(total_bytes * min(0.97, share + 0.03)),
        )
        points.append(CurvePoint(size_bytes, hit_bytes, round(9000 * share), size_bytes, possible))
        before = points[-2].hit_bytes if step else 0
        buckets.append(Bucket(size_bytes, size_bytes, hit_bytes - before, 1))
    known, unknown = points[-1].hit_bytes, round(total_bytes * 0.03)
    needed = []
    for target in (0.9, 0.95, 0.99, 0.999):
        point = next(p for p in points if p.hit_bytes >= target * known)
        ratio = point.hit_bytes / (total_bytes or 1)
        needed.append(NeededSize(target, point.size_bytes, point.size_bytes, ratio, ratio + 0.03))
    return Sizing(
        points=tuple(points),
        needed=tuple(needed),
        known_bytes=known,
        never_bytes=total_bytes - known - unknown,
        unknown_bytes=unknown,
        known_partitions=8500,
        never_partitions=200,
        unknown_partitions=300,
        calibration=calibrate([], None, None),
        ages=Ages(buckets),
        possible=Ages(buckets),
    )


def build_findings() -> Findings:
    """All sections have something to show."""
    windows = build_windows()
    total = build_ratio_row(*(_sum(windows, f"{kind}Bytes") for kind in ("hit", "miss", "pass")))
    missed, passed = total["missBytes"], total["passBytes"]
    totals = [
        _reason("hit", "", total["hitBytes"]),
        _reason("miss", "evicted", missed * 6 // 10),
        _reason("miss", "cold", missed * 3 // 10),
        _reason("miss", "unproven", missed - missed * 6 // 10 - missed * 3 // 10),
        _reason("pass", "follower", passed),
    ]
    bands = (
        "0",
        "1-9",
        "10-99",
        "100-999",
        "1k-10k",
        "10k-100k",
        "100k-1M",
        "1M and more",
        "unknown",
    )
    lags = [*_split(total, bands[:7], "band"), build_ratio_row(0, 0, 0, band="1M and more")]
    partitions = [
        {**row, "partition": number % 3}
        for number, row in enumerate(_split(total, TOPICS, "topic"))
    ]
    topics = _split(total, TOPICS, "topic")
    delays = [
        {
            "clientId": client,
            "topic": topic,
            "partitions": 900 // (number + 1),
            "bytes": 300 * MIB // (number + 1),
            "delayMs_sum": 90_000.0 / (number + 1),
            "delayMs_p50": 80.0 / (number + 1),
            "delayMs_p95": 900.0 / (number + 1),
            "delayMs_max": 2_400.0 / (number + 1),
        }
        for number, (client, topic) in enumerate(zip(CLIENTS[:3], TOPICS, strict=False))
    ]
    counters = ScrapedCounters(
        {}, 1536 * MIB, 41, {"client": missed, "watch": 90 * MIB, "proof": MIB}
    )
    return Findings(
        files=[FileCount("/var/log/forebay/access-1.jsonl.gz", 900_000, 12, True)],
        problems={"corrupt": 11, "unknown-type": 1},
        boots=[
            build_boot("5d0c91ab2f6e8a34", 0, 69.6),
            build_boot("e11f27c09b5d4e68", 85.2, 120, droppedLines=41),
        ],
        window_ms=MINUTE_MS,
        total=total,
        totals=totals,
        topics=topics,
        clients=_split(total, CLIENTS, "clientId"),
        partitions=partitions,
        topic_reasons=_list_reasons(topics),
        periods=TopicPeriods(MINUTE_MS, _list_periods(windows)),
        windows=windows,
        lag_bands=lags,
        latency=[_latency("hit", 1.0), _latency("miss", 40.0)],
        delays_by_client=delays,
        delays_by_topic=delays,
        admissions=[{"source": "produce", "bytes": 9000 * MIB}],
        sizing=build_sizing(total["hitBytes"] + missed),
        topic_sizing={},
        what_if=WhatIf("e11f27c09b5d4e68", 81_000, 0.1, _build_policies()),
        cache_size_bytes=1536 * MIB,
        compared_boot=None,
        comparison=[],
        counters=counters,
        reconciliations=_build_reconciliations(),
        groups=_split(total, ("billing-workers", "fraud", "(none)"), "group"),
        brokers=[
            {**build_ratio_row(total["hitBytes"], missed, 0), **keys, "boots": 1}
            for keys in (
                {"broker": "3", "listeners": "main kafka-3:9092"},
                {"broker": "10.0.0.1:19092", "listeners": ""},
            )
        ],
        lag_times=_split(total, ("under 1 s", "1 to 10 s", "8 min and more"), "band"),
        topic_needs=[
            TopicNeed(
                topic, 900 * MIB // (number + 1), 700 * MIB // (number + 1), 2048 * MIB, 40 * MIB
            )
            for number, topic in enumerate(TOPICS[:4])
        ],
        diagnoses=_build_diagnoses(),
        ledger=_build_ledger(),
    )


def _build_policies() -> tuple[PolicyResult, ...]:
    return tuple(
        PolicyResult(policy, admits, size, size, 0.7 + 0.02 * number + size / (16384 * MIB))
        for number, (policy, admits) in enumerate(
            (policy, admits) for policy in ("FIFO", "LRU", "S3-FIFO") for admits in (False, True)
        )
        for size in (768 * MIB, 1536 * MIB, 3072 * MIB)
    )


def _build_ledger() -> Ledger:
    log = "/var/log/forebay/access-1.jsonl.gz"
    return Ledger(
        (
            BootCount("5d0c91ab2f6e8a34", "3", 9, 817_000, 816_988, 0, 0, 12, 0, True),
            BootCount("e11f27c09b5d4e68", "3", 5, 500_041, 500_000, 0, 41, 0, 0, False),
        ),
        (
            LedgerEntry(
                "dropped", "e11f27c09b5d4e68", log, None, 41, "dropped by the sidecar, not written"
            ),
            LedgerEntry("unreadable", "5d0c91ab2f6e8a34", log, 812, 12, "corrupt: {<b>"),
        ),
    )


def _build_diagnoses() -> list[Diagnosis]:
    return [
        Diagnosis(
            "size",
            1600 * MIB,
            "the cache of 1.50 GiB is too small: 1.58 GiB of orders, payments.v2 and 4 more topics had been"
            " evicted when they were read",
            "cache.size",
            "7GiB",
            "hits grow from 74.1 % to 93.2 % of hits and misses",
            "costs 19.25 a month, saves reads for 61.00 a month",
        ),
        Diagnosis(
            "laggard",
            800 * MIB,
            "client <replay>, which no consumer group shows, read 800 MiB of ledger.tx up to 3 h behind from the"
            " broker",
            "throttle.weights",
            "[{clientId: <replay>, weight: 0.1}]",
            "while the disk is busy it gets a tenth of another reader's share",
        ),
    ]


def _build_reconciliations() -> list[Reconciliation]:
    row = Comparison("miss", "evicted", 700, 741, 41 * MIB, 42 * MIB)
    differing = IntervalDifference("e11f27c09b5d4e68", START_MS, START_MS + MINUTE_MS, row, 41)
    span = START_MS, START_MS + 60 * MINUTE_MS
    return [
        Reconciliation(
            "5d0c91ab2f6e8a34",
            "log",
            True,
            *span,
            [],
            [],
            "boot 5d0c91ab2f6e8a34: the log agrees in all of 69 intervals",
        ),
        Reconciliation(
            "e11f27c09b5d4e68",
            "log",
            False,
            *span,
            [row],
            [differing],
            "boot e11f27c09b5d4e68: 1 of 34 intervals differ",
        ),
        Reconciliation(
            "77aa",
            "scrape",
            None,
            None,
            None,
            [],
            [],
            "boot 77aa: the scrape is of another Forebay",
        ),
    ]


def _list_reasons(topics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Bytes of each topic, with one reason for all misses and passes."""
    reasons = {"hit": "", "miss": "evicted", "pass": "follower"}
    return [
        {"topic": row["topic"], "result": result, "reason": reason, "bytes": row[f"{result}Bytes"]}
        for row in topics
        for result, reason in reasons.items()
    ]


def _list_periods(windows: list[dict[str, Any]]) -> list[tuple[int, str, str, str, int]]:
    """Everything is of one topic, but in the first hour the misses, which are of another."""
    half_ms = START_MS + 60 * MINUTE_MS
    return [
        (row["windowMs"], "orders" if kind == "hit" else late, kind, reason, row[f"{kind}Bytes"])
        for row in windows
        for kind, reason in (("hit", ""), ("miss", "evicted"))
        for late in ["ledger.tx" if row["windowMs"] < half_ms else "orders"]
    ]


def _reason(result: str, reason: str, size_bytes: int) -> dict[str, Any]:
    return {
        "result": result,
        "reason": reason,
        "bytes": size_bytes,
        "partitions": size_bytes // 40_000,
        "emptyPartitions": size_bytes // 200_000,
    }


def _latency(result: str, factor: float) -> dict[str, Any]:
    ranks = {"p50": 0.8, "p90": 4.0, "p99": 21.5, "p999": 96.0, "max": 501.0}
    times = {f"totalMs_{rank}": value * factor for rank, value in ranks.items()}
    waits = {f"waitMs_{rank}": value * factor / 2 for rank, value in ranks.items()}
    return {"result": result, "partitions": 120_000, **times, **waits}
