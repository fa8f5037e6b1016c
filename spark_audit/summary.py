"""The findings as one JSON document: what a program asks of an audit.

Owns the names in summary.json and the few numbers derived for it and the page. Must not know Spark or HTML.
Invariants: sizes in bytes, times in ms since 1970, ratios between 0 and 1 or null; keys are camelCase.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

from metrics.access_log_schema import SCHEMA_VERSION
from spark_audit.job import Findings
from spark_audit.reconcile import Comparison


class Outlook(NamedTuple):
    """The sizing curve beside what happened, at the cache's own size; None where the size is not known."""

    predicted_ratio: float | None
    observed_ratio: float | None
    admitted_bytes_per_s: float | None

    def residence_s(self, held_bytes: int) -> float | None:
        """For how long a cache that holds so many bytes of batches holds what is admitted."""
        return held_bytes / self.admitted_bytes_per_s if self.admitted_bytes_per_s else None


def build_outlook(findings: Findings) -> Outlook:
    """Observed: hits of hits and misses (`cache.mode: observe`: what would have been either), the sizing curve's
    population, so that the two can be compared.
    """
    total, sizing = findings.total, findings.sizing
    hits = total["hitBytes"] + total["wouldHitBytes"]
    reachable = total["hitBytes"] + total["missBytes"] + total["observedBytes"]
    at_size = [point for point in sizing.points if point.size_bytes == findings.cache_size_bytes]
    admitted_bytes, span_ms = 0, 0
    for boot in findings.boots:
        if boot["admittedBytesLast"] is not None and boot["keeper"] is None:
            admitted_bytes += boot["admittedBytesLast"] - boot["admittedBytesFirst"]
            span_ms += boot["lastMs"] - boot["firstMs"]
    return Outlook(
        predicted_ratio=sizing.hit_ratio(at_size[0].hit_bytes) if at_size else None,
        observed_ratio=hits / reachable if reachable else None,
        admitted_bytes_per_s=1000 * admitted_bytes / span_ms if span_ms else None,
    )


class Spared(NamedTuple):
    """What the broker did not have to read and send: hits, less what Forebay itself asked for (None: no counters)."""

    hit_bytes: int
    hit_partitions: int
    own_bytes: int | None

    @property
    def net_bytes(self) -> int | None:
        """Hits less Forebay's own fetches; negative where nobody reads what it watches."""
        return None if self.own_bytes is None else self.hit_bytes - self.own_bytes


def build_spared(findings: Findings) -> Spared:
    """What Forebay asked for: of all boots, by their `counters` lines; of one boot without them, by a scrape of it."""
    total, counters = findings.total, findings.counters
    own_bytes = None
    if all(boot.get("upstreamLast") is not None for boot in findings.boots):
        own_bytes = sum(
            _own_bytes(boot["upstreamLast"]) - _own_bytes(boot["upstreamFirst"])
            for boot in findings.boots
        )
    elif counters is not None and counters.upstream_bytes and len(findings.boots) == 1:
        own_bytes = sum(
            size for purpose, size in counters.upstream_bytes.items() if purpose != "client"
        )
    return Spared(total["hitBytes"], total["hitPartitions"], own_bytes)


def _own_bytes(upstream: Iterable[Any]) -> int:
    """Of what the broker sent, by purpose, what no client asked for."""
    return sum(one["bytes"] for one in upstream if one["purpose"] != "client")


def build_summary(findings: Findings) -> dict[str, Any]:
    """The content of summary.json."""
    return {
        "schemaVersion": SCHEMA_VERSION,
        "log": _log(findings),
        "fetches": findings.total,
        "results": findings.totals,
        "topics": findings.topics,
        "clients": findings.clients,
        "lagBands": findings.lag_bands,
        "lagTimes": findings.lag_times,
        "groups": findings.groups,
        "brokers": findings.brokers,
        "topicNeeds": [need._asdict() for need in findings.topic_needs],
        "findings": [
            {**dataclasses.asdict(one), "sentence": one.sentence} for one in findings.diagnoses
        ],
        "latency": findings.latency,
        "delays": {"byClient": findings.delays_by_client, "byTopic": findings.delays_by_topic},
        "spared": _spared(build_spared(findings)),
        "admissions": findings.admissions,
        "sizing": _sizing(findings, build_outlook(findings)),
        "whatIf": _what_if(findings),
        "reconciliation": _reconciliation(findings),
    }


def _log(findings: Findings) -> dict[str, Any]:
    return {
        "files": len(findings.files),
        "lines": sum(file.lines for file in findings.files),
        "unreadableLines": sum(findings.problems.values()),
        "unreadableLinesByProblem": findings.problems,
        "incompleteFiles": [file.path for file in findings.files if file.incomplete],
        "droppedLines": sum(boot["droppedLines"] or 0 for boot in findings.boots),
        "firstMs": min(boot["firstMs"] for boot in findings.boots),
        "lastMs": max(boot["lastMs"] for boot in findings.boots),
        "windowMs": findings.window_ms,
        "boots": findings.boots,
    }


def _spared(spared: Spared) -> dict[str, Any]:
    return {
        "hitBytes": spared.hit_bytes,
        "hitPartitions": spared.hit_partitions,
        "ownUpstreamBytes": spared.own_bytes,
        "netBytes": spared.net_bytes,
    }


def _sizing(findings: Findings, outlook: Outlook) -> dict[str, Any]:
    sizing = findings.sizing
    return {
        "cacheSizeBytes": findings.cache_size_bytes,
        "predictedHitRatioBytes": outlook.predicted_ratio,
        "observedHitRatioBytes": outlook.observed_ratio,
        "bytes": sizing.total_bytes,
        "achievableBytes": sizing.known_bytes,
        "achievableRatioBytes": sizing.hit_ratio(sizing.known_bytes),
        "neverStoredBytes": sizing.never_bytes,
        "neverStoredPartitions": sizing.never_partitions,
        "unknownAgeBytes": sizing.unknown_bytes,
        "unknownAgePartitions": sizing.unknown_partitions,
        "calibration": {
            "factor": sizing.calibration.factor,
            "measuredAtBytes": sizing.calibration.measured_at_bytes,
        },
        "neededBytes": {
            f"{target:g}": size_bytes for target, size_bytes in sizing.needed_bytes.items()
        },
        "needed": [
            {
                "target": one.target,
                "sizeBytes": one.size_bytes,
                "heldBytes": one.held_bytes,
                "hitRatioBytes": one.hit_ratio,
                "possibleHitRatioBytes": one.possible_ratio,
            }
            for one in sizing.needed
        ],
        "admittedBytesPerSecond": outlook.admitted_bytes_per_s,
        "points": [
            {
                "sizeBytes": point.size_bytes,
                "hitBytes": point.hit_bytes,
                "hitPartitions": point.hit_partitions,
                "hitRatioBytes": sizing.hit_ratio(point.hit_bytes),
                "heldBytes": point.held_bytes,
                "possibleHitRatioBytes": sizing.hit_ratio(point.possible_bytes),
            }
            for point in sizing.points
        ],
    }


def _what_if(findings: Findings) -> dict[str, Any] | None:
    what_if = findings.what_if
    if what_if is None:
        return None
    return {
        "boot": what_if.boot,
        "events": what_if.events,
        "sampleRate": what_if.rate,
        "policies": [
            {
                "policy": one.policy,
                "admitsLaggards": one.admits_laggards,
                "sizeBytes": one.size_bytes,
                "heldBytes": one.held_bytes,
                "hitRatioBytes": one.hit_ratio,
                "worthRatioBytes": what_if.worth(one),
            }
            for one in what_if.results
        ],
    }


def _reconciliation(findings: Findings) -> list[dict[str, Any]]:
    return [
        {
            "boot": one.boot,
            "source": one.source,
            "agrees": one.agrees,
            "firstMs": one.first_ms,
            "untilMs": one.until_ms,
            "text": one.text,
            "rows": [_comparison(row) for row in one.rows],
            "differences": [
                {
                    "firstMs": difference.first_ms,
                    "lastMs": difference.last_ms,
                    "droppedLines": difference.dropped_lines,
                    "cause": difference.cause,
                    **_comparison(difference.row),
                }
                for difference in one.differences
            ],
        }
        for one in findings.reconciliations
    ]


def _comparison(row: Comparison) -> dict[str, Any]:
    return {
        "result": row.result,
        "reason": row.reason,
        "logPartitions": row.log_partitions,
        "counterPartitions": row.counter_partitions,
        "logBytes": row.log_bytes,
        "counterBytes": row.counter_bytes,
        "agrees": row.agrees,
    }
