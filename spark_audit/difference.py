"""Two reports side by side: what changed, and which topics account for it.

Owns reading a report's files and the arithmetic of a change. Must not know Spark, HTML or the command line. Invariants:
the points of all topics add up to the change of the hit ratio; bytes are compared per second of time with a log, so
that periods of different lengths can be compared; shares are of bytes.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from metrics.access_log_schema import RESULT_REASONS, RESULTS
from spark_audit.units import show_bytes, show_duration, show_points, show_ratio, show_time

_PERIOD: Final = re.compile(r"(?P<directory>.+)@(?P<since>[^@/]+)/(?P<until>[^@/]+)")
NAMED: Final = 3
"""Topics that the sentences name."""
NOTABLE_POINTS: Final = 0.0005
"""A smaller change of a ratio is none."""


class UnfitReport(Exception):
    """No report of this version is there; the message says what to do."""


class TopicBytes(NamedTuple):
    """Record bytes of a topic that clients got: all, hits, and by (result, reason)."""

    bytes: int
    hit: int
    reasons: Mapping[tuple[str, str], int]

    @property
    def ratio(self) -> float | None:
        """Hits of all bytes; None of nothing."""
        return self.hit / self.bytes if self.bytes else None


class Report(NamedTuple):
    """One side: its name, summary.json and the bytes of each topic."""

    name: str
    summary: Mapping[str, Any]
    topics: Mapping[str, TopicBytes]

    @property
    def logged_s(self) -> float:
        """Seconds of which any start of Forebay has a log; at least a millisecond."""
        return max(1, measure_union(self.summary["log"]["boots"])) / 1000

    @property
    def ratio(self) -> float | None:
        """Hits of all bytes; None of nothing."""
        ratio: float | None = self.summary["fetches"]["hitRatioBytes"]
        return ratio

    def rate(self, size_bytes: float) -> float:
        """Bytes per second of time with a log."""
        return size_bytes / self.logged_s


class TopicChange(NamedTuple):
    """What a topic adds to the change of the hit ratio, as a share of 1: by its own ratio, and by its share of bytes.

    `before` and `after`: its bytes on both sides. `reason`: the result and reason whose bytes per second grew most,
    with the growth; None where none grew.
    """

    topic: str
    before: TopicBytes
    after: TopicBytes
    by_ratio: float
    by_share: float
    reason: tuple[str, str, float] | None

    @property
    def points(self) -> float:
        """The whole contribution."""
        return self.by_ratio + self.by_share


def load_report(directory: Path, name: str) -> Report:
    """Read summary.json and topics.json of a report's directory. UnfitReport: they are not there, or of another
    version.
    """
    try:
        summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
        rows = json.loads((directory / "topics.json").read_text(encoding="utf-8"))
        report = Report(name, summary, build_topics(rows))
        for key in ("fetches", "results", "clients", "latency", "sizing"):
            summary[key]
        measure_union(summary["log"]["boots"])
    except OSError as error:
        raise UnfitReport(
            f"{directory} holds no report: {error.strerror} ({error.filename}); write one with forebay audit LOGS"
            f" --out {directory}"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UnfitReport(
            f"{directory} holds a report of another version ({type(error).__name__}: {error}); run forebay audit again"
        ) from error
    return report


def open_report(argument: str) -> Report:
    """A report's directory, or `DIR@FROM/TO`: the windows of a report that begin from FROM on and before TO.
    UnfitReport: there is none, or nothing lies there.
    """
    match = None if Path(argument).is_dir() else _PERIOD.fullmatch(argument)
    if match is None:
        return load_report(Path(argument), argument)
    report = load_report(Path(match["directory"]), argument)
    return cut_report(
        report, Path(match["directory"]), *map(_scan_time, match.group("since", "until"))
    )


def _scan_time(text: str) -> int:
    """Milliseconds since 1970 of an ISO 8601 time, in UTC if it names no zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UnfitReport(f"{text!r} is no time such as 2026-11-24 or 2026-11-24T12:30") from error
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def cut_report(report: Report, directory: Path, since_ms: int, until_ms: int) -> Report:
    """The bytes of a period of a report. Clients, latency and curve are of the whole report: they are left out."""
    try:
        periods = json.loads((directory / "periods.json").read_text(encoding="utf-8"))
        window_ms, rows = periods["window_ms"], periods["rows"]
    except (OSError, ValueError, KeyError) as error:
        raise UnfitReport(f"{directory} has no periods.json: run forebay audit again") from error
    kept = [row for row in rows if since_ms <= row[0] < until_ms]
    log = report.summary["log"]
    if not kept:
        raise UnfitReport(
            f"no client got a byte in {report.name}: the report covers {show_time(log['firstMs'])} to"
            f" {show_time(log['lastMs'])} in windows of {show_duration(window_ms / 1000)}"
        )
    first_ms, last_ms = min(row[0] for row in kept), max(row[0] for row in kept) + window_ms
    sums: dict[tuple[str, str], int] = {}
    for _, _, result, reason, size_bytes in kept:
        sums[result, reason] = sums.get((result, reason), 0) + size_bytes
    kinds = {
        kind: sum(size_bytes for (result, _), size_bytes in sums.items() if result == kind)
        for kind in RESULTS
    }
    total = sum(kinds.values())
    boots = [
        {"firstMs": max(boot["firstMs"], first_ms), "lastMs": min(boot["lastMs"], last_ms)}
        for boot in log["boots"]
        if boot["firstMs"] < last_ms and boot["lastMs"] > first_ms
    ]
    summary = {
        "log": {**log, "boots": boots, "firstMs": first_ms, "lastMs": last_ms},
        "fetches": {
            "bytes": total,
            "hitRatioBytes": kinds["hit"] / total,
            **{f"{kind}Bytes": size_bytes for kind, size_bytes in kinds.items()},
        },
        "results": [
            {"result": result, "reason": reason, "bytes": size_bytes}
            for (result, reason), size_bytes in sums.items()
        ],
        "clients": [],
        "latency": [],
        "sizing": {"points": [], "cacheSizeBytes": None},
    }
    names = ("topic", "result", "reason", "bytes")
    topics = build_topics(dict(zip(names, row[1:], strict=True)) for row in kept)
    return Report(report.name, summary, topics)


def build_topics(rows: Iterable[Mapping[str, Any]]) -> dict[str, TopicBytes]:
    """By topic, from rows of topic, result, reason and bytes."""
    reasons: dict[str, dict[tuple[str, str], int]] = {}
    for row in rows:
        mine = reasons.setdefault(row["topic"], {})
        pair = row["result"], row["reason"]
        mine[pair] = mine.get(pair, 0) + row["bytes"]
    return {
        topic: TopicBytes(sum(mine.values()), mine.get(("hit", ""), 0), mine)
        for topic, mine in reasons.items()
    }


def measure_union(boots: Iterable[Mapping[str, Any]]) -> int:
    """Milliseconds that at least one of the boots covers."""
    covered_ms, end_ms = 0, None
    for first_ms, last_ms in sorted((boot["firstMs"], boot["lastMs"]) for boot in boots):
        begin_ms = first_ms if end_ms is None else max(first_ms, end_ms)
        covered_ms += max(0, last_ms - begin_ms)
        end_ms = last_ms if end_ms is None else max(last_ms, end_ms)
    return covered_ms


def build_changes(before: Report, after: Report) -> list[TopicChange]:
    """A change for each topic of either side, the one that accounts for most first.

    With the share w of all bytes and the ratio q of a topic, and the ratio R of all, the change of R is the sum over
    topics of mean(w) * change(q) + change(w) * (mean(q) - mean(R)). A topic of one side only has that side's ratio on
    both, so that all of its contribution is by share.
    """
    nothing = TopicBytes(0, 0, {})
    totals = [sum(one.bytes for one in side.topics.values()) for side in (before, after)]
    hits = [sum(one.hit for one in side.topics.values()) for side in (before, after)]
    if not all(totals):
        return []
    mean_all = (hits[0] / totals[0] + hits[1] / totals[1]) / 2
    changes = []
    for topic in sorted(before.topics.keys() | after.topics.keys()):
        mine = before.topics.get(topic, nothing), after.topics.get(topic, nothing)
        if not any(side.bytes for side in mine):
            continue
        shares = [side.bytes / total for side, total in zip(mine, totals, strict=True)]
        ratios = [mine[0].ratio, mine[1].ratio]
        first = ratios[0] if ratios[0] is not None else ratios[1]
        second = ratios[1] if ratios[1] is not None else ratios[0]
        assert first is not None and second is not None
        by_ratio = (shares[0] + shares[1]) / 2 * (second - first)
        by_share = (shares[1] - shares[0]) * ((first + second) / 2 - mean_all)
        reason = _find_grown(mine, (before, after))
        changes.append(TopicChange(topic, *mine, by_ratio, by_share, reason))
    return sorted(changes, key=lambda change: (-abs(change.points), change.topic))


def _find_grown(
    sides: tuple[TopicBytes, TopicBytes], reports: tuple[Report, Report]
) -> tuple[str, str, float] | None:
    """Of misses and passes, the reason that grew most in bytes per second."""
    growth = {
        pair: reports[1].rate(sides[1].reasons.get(pair, 0))
        - reports[0].rate(sides[0].reasons.get(pair, 0))
        for pair in RESULT_REASONS
        if pair[0] != "hit"
    }
    pair = max(growth, key=lambda one: growth[one])
    return (*pair, growth[pair]) if growth[pair] > 0 else None


def describe(before: Report, after: Report, changes: Sequence[TopicChange]) -> list[str]:
    """The change in sentences: the ratio, the topics that account for it, the traffic, and what is not known."""
    if before.ratio is None or after.ratio is None:
        empty = before.name if before.ratio is None else after.name
        return [f"Nothing can be compared: in {empty} no client got a byte."]
    change = after.ratio - before.ratio
    if abs(change) < NOTABLE_POINTS:
        said = [f"The hit ratio is the same: {show_ratio(after.ratio)} of bytes."]
    else:
        verb = "rose" if change > 0 else "fell"
        said = [
            f"The hit ratio {verb} by {show_points(abs(change))}, from {show_ratio(before.ratio)} to"
            f" {show_ratio(after.ratio)} of bytes."
        ]
    said += [
        _describe_topic(one)
        for one in changes[:NAMED]
        if abs(one.points) >= max(NOTABLE_POINTS, abs(change) / 20)
    ]
    totals = [side.rate(side.summary["fetches"]["bytes"]) for side in (before, after)]
    broker = [
        side.rate(side.summary["fetches"]["missBytes"] + side.summary["fetches"]["passBytes"])
        for side in (before, after)
    ]
    said.append(
        f"Clients got {show_bytes(totals[1])}/s after {show_bytes(totals[0])}/s; of these the broker sent"
        f" {show_bytes(broker[1])}/s after {show_bytes(broker[0])}/s."
    )
    for side in (before, after):
        missing = side.summary["log"]["droppedLines"] + side.summary["log"]["unreadableLines"]
        if missing:
            said.append(
                f"{missing:,} lines are missing in {side.name}: its numbers are too small by them."
            )
    return said


def _describe_topic(change: TopicChange) -> str:
    """One topic's part, and whether its own ratio or its share of the traffic made it."""
    text = f"{change.topic} accounts for {show_points(change.points, is_signed=True)}: "
    if not change.before.bytes:
        text += f"it is new, with {show_ratio(change.after.ratio)} hits"
    elif not change.after.bytes:
        text += f"it is no longer read; it had {show_ratio(change.before.ratio)} hits"
    elif abs(change.by_ratio) >= abs(change.by_share):
        text += f"its hit ratio went from {show_ratio(change.before.ratio)} to {show_ratio(change.after.ratio)}"
    else:
        text += (
            f"its share of the traffic changed; its hit ratio is {show_ratio(change.after.ratio)}"
        )
    if change.reason is not None and change.points < 0:
        result, reason, growth = change.reason
        text += f" ({result} {reason}: {show_bytes(growth)}/s more)"
    return f"{text}."


def build_document(before: Report, after: Report, changes: Sequence[TopicChange]) -> dict[str, Any]:
    """The content of diff.json."""
    return {
        "before": _side(before),
        "after": _side(after),
        "sentences": describe(before, after, changes),
        "topics": [
            {
                "topic": one.topic,
                "points": one.points,
                "byRatio": one.by_ratio,
                "byShare": one.by_share,
                "bytesBefore": one.before.bytes,
                "bytesAfter": one.after.bytes,
                "hitRatioBytesBefore": one.before.ratio,
                "hitRatioBytesAfter": one.after.ratio,
            }
            for one in changes
        ],
    }


def _side(report: Report) -> dict[str, Any]:
    log = report.summary["log"]
    return {
        "name": report.name,
        "firstMs": log["firstMs"],
        "lastMs": log["lastMs"],
        "loggedSeconds": report.logged_s,
        "bytes": report.summary["fetches"]["bytes"],
        "hitRatioBytes": report.ratio,
    }
