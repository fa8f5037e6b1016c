"""The log against the counters of a scrape.

Owns reading a few metrics from Prometheus' text and comparing them. Must not know Spark: totals are values.
Invariants: counters begin at 0 with each boot, so they are compared with the log of one boot; every result
and reason seen on either side has one row; nothing is rounded (counters are exact below 2^53).
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

PARTITIONS_METRIC: Final = "forebay_fetch_partitions_total"
BYTES_METRIC: Final = "forebay_fetch_bytes_total"
CAPACITY_METRIC: Final = "forebay_cache_capacity_bytes"
DROPPED_METRIC: Final = "forebay_access_log_dropped_lines_total"
UPSTREAM_METRIC: Final = "forebay_upstream_fetch_bytes_total"
_SAMPLE: Final = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Totals = Mapping[tuple[str, str], tuple[int, int]]
"""(result, reason) -> partitions-of-fetch, bytes."""


class ScrapedCounters(NamedTuple):
    """What the audit reads of a scrape; `cache_size_bytes` and `dropped_lines` are None where absent."""

    totals: Totals
    cache_size_bytes: int | None
    dropped_lines: int | None
    upstream_bytes: dict[str, int]


class Comparison(NamedTuple):
    """One result and reason: what the log says, and what the counters say."""

    result: str
    reason: str
    log_partitions: int
    counter_partitions: int
    log_bytes: int
    counter_bytes: int

    @property
    def agrees(self) -> bool:
        """Whether both numbers are equal."""
        return (
            self.log_partitions == self.counter_partitions and self.log_bytes == self.counter_bytes
        )


def scan_counters(text: str) -> ScrapedCounters:
    """Read Prometheus' text. ValueError: it holds no fetch counters of Forebay, so it is some other file."""
    partitions: dict[tuple[str, str], int] = {}
    size_bytes: dict[tuple[str, str], int] = {}
    upstream: dict[str, int] = {}
    single: dict[str, int] = {}
    for line in text.splitlines():
        match = _SAMPLE.fullmatch(line)
        if match is None or line.startswith("#"):
            continue
        name, labels, value = match[1], dict(_LABEL.findall(match[2] or "")), match[3]
        pair = (labels.get("result", ""), labels.get("reason", ""))
        if name == PARTITIONS_METRIC:
            partitions[pair] = int(float(value))
        elif name == BYTES_METRIC:
            size_bytes[pair] = int(float(value))
        elif name == UPSTREAM_METRIC:
            upstream[labels.get("purpose", "")] = int(float(value))
        elif name in (CAPACITY_METRIC, DROPPED_METRIC):
            single[name] = int(float(value))
    if not partitions and not size_bytes:
        raise ValueError(f"no {PARTITIONS_METRIC} in it: save the sidecar's /metrics answer")
    pairs = partitions.keys() | size_bytes.keys()
    totals = {pair: (partitions.get(pair, 0), size_bytes.get(pair, 0)) for pair in pairs}
    return ScrapedCounters(
        totals, single.get(CAPACITY_METRIC), single.get(DROPPED_METRIC), upstream
    )


def compare(log: Totals, counters: Totals) -> list[Comparison]:
    """Every result and reason that either side has seen, sorted."""
    rows = []
    for result, reason in sorted(log.keys() | counters.keys()):
        ours, theirs = log.get((result, reason), (0, 0)), counters.get((result, reason), (0, 0))
        if ours != (0, 0) or theirs != (0, 0):
            rows.append(Comparison(result, reason, ours[0], theirs[0], ours[1], theirs[1]))
    return rows
