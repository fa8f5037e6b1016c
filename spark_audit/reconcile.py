"""The log against the process's own counters: those in its `counters` lines, and those of scrapes.

Owns reading a few metrics from Prometheus' text, comparing, and the words for what differs. Must not know Spark: what
the log adds up to comes in as values. Invariants: counters begin at 0 with each boot, so they are compared with the log
of one boot, found by its id; nothing is rounded (counters are exact below 2^53); two numbers are compared only if they
are of the same moment, so that a log agrees while it is written.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

PARTITIONS_METRIC: Final = "forebay_fetch_partitions_total"
BYTES_METRIC: Final = "forebay_fetch_bytes_total"
CAPACITY_METRIC: Final = "forebay_cache_capacity_bytes"
DROPPED_METRIC: Final = "forebay_access_log_dropped_lines_total"
UPSTREAM_METRIC: Final = "forebay_upstream_fetch_bytes_total"
BOOT_METRIC: Final = "forebay_boot_info"
NUMBER_METRIC: Final = "forebay_access_log_counters_line"
BASELINE_METRIC: Final = "forebay_access_log_baseline_line"
_SAMPLE: Final = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

ResultReason = tuple[str, str]
"""Result and reason."""
Totals = Mapping[ResultReason, tuple[int, int]]
"""(result, reason) -> partitions-of-fetch, bytes."""


class ScrapedCounters(NamedTuple):
    """What the audit reads of a scrape. `cache_size_bytes` and `dropped_lines` are None where absent; `boot` is ""
    before version 3 of the log; `number`: of the `counters` line that has these counters, 0 where none has. `lines`: of
    a keeper and its workers, by boot: the same of each, the sum of which the counters are; `baselines`: the lines with
    what is left out of it, 0: nothing. `boot` and `number` are then the keeper's.
    """

    totals: Totals
    cache_size_bytes: int | None
    dropped_lines: int | None
    upstream_bytes: dict[str, int]
    boot: str = ""
    number: int = 0
    lines: Mapping[str, int] = MappingProxyType({})
    baselines: Mapping[str, int] = MappingProxyType({})

    @property
    def asked(self) -> list[tuple[str, int]]:
        """Boots and numbers of the lines that this is compared with."""
        if not self.lines:
            return [(self.boot, self.number)]
        return [(boot, one) for of in (self.lines, self.baselines) for boot, one in of.items()]


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


class CountersMark(NamedTuple):
    """One `counters` line, and what the log has before it. `counted`: absolute, as its counters say. `expected`: what
    the lines since the boot's first mark in this log should add up to; `found`: what they do.
    """

    number: int
    ts: int
    counted: Totals
    expected: Totals
    found: Totals
    event: str = ""


class IntervalDifference(NamedTuple):
    """Between two marks that follow each other: what one result and reason differ by. `dropped_lines`: dropped by the
    writer meanwhile.
    """

    boot: str
    first_ms: int
    last_ms: int
    row: Comparison
    dropped_lines: int

    @property
    def cause(self) -> str:
        """What a difference of this kind comes from."""
        if self.dropped_lines:
            return f"the writer dropped {self.dropped_lines} lines: raise accessLog.queueLines"
        row = self.row
        if (row.log_partitions, row.log_bytes) < (row.counter_partitions, row.counter_bytes):
            return "lines are missing: a file was deleted, cut, or not given to this audit"
        return "lines are there twice: a file was given under two names"


class BootLog(NamedTuple):
    """What the log says of one boot's counters: its first and last mark, all marks that were asked for, and the
    intervals that differ, the first of them in full.
    """

    boot: str
    first: CountersMark
    last: CountersMark
    asked: Mapping[int, CountersMark]
    intervals: int
    differing: int
    differences: Sequence[IntervalDifference]


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """One boot's log against counters. `source`: the log's own counters, or a scrape. `first_ms`, `until_ms`: the time
    that is compared; None where nothing could be. `agrees`: every number is equal; None: nothing could be compared.
    """

    boot: str
    source: str
    agrees: bool | None
    first_ms: int | None
    until_ms: int | None
    rows: Sequence[Comparison]
    differences: Sequence[IntervalDifference]
    text: str


def scan_counters(text: str) -> ScrapedCounters:
    """Read Prometheus' text. ValueError: it holds no fetch counters of Forebay, so it is some other file."""
    partitions: dict[ResultReason, int] = {}
    size_bytes: dict[ResultReason, int] = {}
    upstream: dict[str, int] = {}
    single: dict[str, int] = {}
    by_boot: dict[str, dict[str, int]] = {NUMBER_METRIC: {}, BASELINE_METRIC: {}}
    boot = ""
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
        elif name == BOOT_METRIC:
            boot = boot or labels.get("boot", "")
        elif name in by_boot and "boot" in labels:
            by_boot[name][labels["boot"]] = int(float(value))
        elif name in (CAPACITY_METRIC, DROPPED_METRIC, NUMBER_METRIC):
            single[name] = int(float(value))
    if not partitions and not size_bytes:
        raise ValueError(f"no {PARTITIONS_METRIC} in it: save the sidecar's /metrics answer")
    pairs = partitions.keys() | size_bytes.keys()
    totals = {pair: (partitions.get(pair, 0), size_bytes.get(pair, 0)) for pair in pairs}
    lines = by_boot[NUMBER_METRIC]
    number = lines.get(boot, single.get(NUMBER_METRIC, 0))
    return ScrapedCounters(
        totals,
        single.get(CAPACITY_METRIC),
        single.get(DROPPED_METRIC),
        upstream,
        boot,
        number,
        *((lines, by_boot[BASELINE_METRIC]) if len(lines) > 1 else ()),
    )


def compare(log: Totals, counters: Totals) -> list[Comparison]:
    """Every result and reason that either side has seen, sorted."""
    rows = []
    for result, reason in sorted(log.keys() | counters.keys()):
        ours, theirs = log.get((result, reason), (0, 0)), counters.get((result, reason), (0, 0))
        if ours != (0, 0) or theirs != (0, 0):
            rows.append(Comparison(result, reason, ours[0], theirs[0], ours[1], theirs[1]))
    return rows


def reconcile_boot(log: BootLog) -> Reconciliation:
    """The log of one boot against its own `counters` lines: each interval, and all of them."""
    rows = compare(log.last.found, log.last.expected)
    agrees = not log.differing and all(row.agrees for row in rows)
    if agrees:
        text = (
            f"boot {log.boot}: the log agrees with its counters in all of {log.intervals} intervals"
        )
        if log.last.event != "close":
            text += "; the last is no line of its end: what a killed Forebay counts afterwards is in no line"
    else:
        text = (
            f"boot {log.boot}: {log.differing} of {log.intervals} intervals differ; "
            + "; ".join(map(describe, log.differences[:3]))
        )
    return Reconciliation(
        log.boot, "log", agrees, log.first.ts, log.last.ts, rows, log.differences, text
    )


def reconcile_scrape(scrape: ScrapedCounters, log: BootLog | None) -> Reconciliation:
    """A scrape against the log of its boot: at the line with its counters, else up to the last line before it, which
    the scrape must not be below. `log` None: there is none of that boot.
    """
    boot = scrape.boot
    if log is None:
        text = (
            f"boot {boot}: the scrape is of another Forebay, or of a time of which there is no log"
        )
        return Reconciliation(boot, "scrape", None, None, None, (), (), text)
    exact = log.asked.get(scrape.number)
    mark = exact or _find_before(scrape, log)
    if mark is None or (exact is None and mark.number == log.first.number):
        text = f"boot {boot}: no counters line of this log is at or shortly before the scrape"
        return Reconciliation(boot, "scrape", None, None, None, (), (), text)
    rows = compare(mark.found, mark.expected)
    early = [one for one in log.differences if one.last_ms <= mark.ts]
    wrong = [row for row in rows if not row.agrees]
    if exact is not None:
        wrong += [row for row in compare(mark.counted, scrape.totals) if not row.agrees]
        until = "up to the scrape"
    else:
        wrong += _find_below(mark.counted, scrape.totals)
        until = "up to the last counters before the scrape; the lines after them are not in this log yet"
    if wrong:
        causes = "; ".join(map(describe, early[:3])) or describe_row(wrong[0])
        text = f"boot {boot}: log and counters differ {until}; {causes}"
    else:
        text = f"boot {boot}: log and counters agree {until}"
    return Reconciliation(boot, "scrape", not wrong, log.first.ts, mark.ts, rows, early, text)


def reconcile_group(scrape: ScrapedCounters, logs: Mapping[str, BootLog]) -> Reconciliation:
    """A scrape of a keeper and its workers against the logs of all: the counters of each at its line add up to the
    scrape's. Where a log ends before its line, the scrape must not be below.
    """
    boots = [boot for boot in scrape.lines if boot]
    name = f"boot {scrape.boot} and {len(boots) - 1} workers"
    obstacle = _find_obstacle(scrape, logs)
    if obstacle:
        return Reconciliation(
            scrape.boot, "scrape", None, None, None, (), (), f"{name}: {obstacle}"
        )
    marks = {boot: _find_last(logs[boot], scrape.lines[boot]) for boot in boots}
    left_out = [logs[boot].asked[one].counted for boot, one in scrape.baselines.items() if one]
    counted = _add((1, [one.counted for one in marks.values()]), (-1, left_out))
    late = [boot for boot, mark in marks.items() if mark.number < scrape.lines[boot]]
    beside = [row for row in compare(counted, scrape.totals) if not row.agrees]
    wrong = _find_below(counted, scrape.totals) if late else beside
    for mark in marks.values():
        wrong += [row for row in compare(mark.found, mark.expected) if not row.agrees]
    early = [
        one
        for boot, mark in marks.items()
        for one in logs[boot].differences
        if one.last_ms <= mark.ts
    ]
    if wrong:
        causes = "; ".join(map(describe, early[:3])) or describe_row(wrong[0])
        text = f"{name}: log and counters differ up to the scrape; {causes}"
    else:
        text = f"{name}: log and counters agree up to the scrape"
    if late:
        text += (
            f", but for what boot {', '.join(late)} counted since its last line in this log: it was killed, or its log"
            f" goes on; {'; '.join(map(describe_row, beside)) or 'that was nothing'}"
        )
    return Reconciliation(
        scrape.boot,
        "scrape",
        not wrong,
        min(logs[boot].first.ts for boot in boots),
        max(mark.ts for mark in marks.values()),
        compare(
            _add((1, [mark.found for mark in marks.values()])),
            _add((1, [mark.expected for mark in marks.values()])),
        ),
        early,
        text,
    )


def _find_obstacle(scrape: ScrapedCounters, logs: Mapping[str, BootLog]) -> str:
    """Why the scrape cannot be compared with the logs of its processes; "": it can."""
    if min(scrape.lines.values()) < 1:
        return "no line has the counters of one of them: ask for the metrics again, more than a second later"
    for boot, number in scrape.lines.items():
        if boot not in logs:
            return f"there is no log of boot {boot}"
        log, baseline = logs[boot], scrape.baselines.get(boot, 0)
        if number < log.first.number or (baseline and baseline not in log.asked):
            return f"the log of boot {boot} lacks the counters lines of the scrape"
    return ""


def _find_last(log: BootLog, number: int) -> CountersMark:
    """The mark of this number, else the last one before it; the log has one."""
    return log.asked[max(one for one in log.asked if one <= number)]


def _add(*signed: tuple[int, Iterable[Totals]]) -> Totals:
    """The sum of all, each with its sign."""
    sums: dict[ResultReason, tuple[int, int]] = {}
    for sign, each in signed:
        for totals in each:
            for key, (partitions, size_bytes) in totals.items():
                known = sums.get(key, (0, 0))
                sums[key] = known[0] + sign * partitions, known[1] + sign * size_bytes
    return sums


def reconcile_old(boot: str, log: Totals, scrape: ScrapedCounters) -> Reconciliation:
    """A scrape without a boot id (before version 3) against all lines of the boot whose log ends last."""
    rows = compare(log, scrape.totals)
    agrees = all(row.agrees for row in rows)
    said = "agree" if agrees else "differ; they can agree only once Forebay has ended or is idle"
    return Reconciliation(
        boot, "scrape", agrees, None, None, rows, (), f"boot {boot}: log and counters {said}"
    )


def describe(one: IntervalDifference) -> str:
    """A difference in words, with its time in ms since 1970 left to the page."""
    return f"{describe_row(one.row)}: {one.cause}"


def describe_row(row: Comparison) -> str:
    """What is counted and what is in the log of one result and reason."""
    name = f"{row.result} {row.reason}".strip()
    partitions, size = (
        row.log_partitions - row.counter_partitions,
        row.log_bytes - row.counter_bytes,
    )
    return f"{name} has {partitions:+,} partitions and {size:+,} bytes in the log"


def _find_before(scrape: ScrapedCounters, log: BootLog) -> CountersMark | None:
    """The last mark that the scrape is not before: by number where the scrape has one, else by what is counted."""
    marks = [mark for _, mark in sorted(log.asked.items())]
    if scrape.number:
        marks = [mark for mark in marks if mark.number <= scrape.number]
    else:
        counted = sum(partitions for partitions, _ in scrape.totals.values())
        marks = [mark for mark in marks if sum(one for one, _ in mark.counted.values()) <= counted]
    return marks[-1] if marks else None


def _find_below(counted: Totals, later: Totals) -> list[Comparison]:
    """Counters that are lower later than they were: the scrape is not of this boot."""
    rows = compare(counted, later)
    return [
        row
        for row in rows
        if row.log_partitions > row.counter_partitions or row.log_bytes > row.counter_bytes
    ]
