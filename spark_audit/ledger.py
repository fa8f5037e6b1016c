"""Which lines of the logs are there, and which are not.

Owns the completeness ledger: gaps between files and within them, duplicates, files cut short, unreadable lines and
files, skipped names, implausible clocks. Must not know Spark, stores or the page: reports on segments come in,
plain values go out. Invariants: of the segments of one boot and sequence the longest counts, the others are
duplicates; lines that the writer stated and that are in no segment are missing; each entry names a file, and a line
where one is known.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from spark_audit.problems import IMPLAUSIBLE_CLOCK

KINDS: Final[dict[str, str]] = {
    "gap": "lines that the sidecar has written and that no file holds",
    "dropped": "lines that the sidecar dropped when it wrote",
    "unreadable": "lines without meaning: corrupt, torn, or of an unknown version or type",
    IMPLAUSIBLE_CLOCK: "lines whose time stamp lies before 2020 or in the future",
    "cut": "files that end before their last line, or are damaged",
    "duplicate": "files that hold what another file holds; counted once",
    "not-read": "files and directories that could not be read",
    "skipped": "files that look like logs and whose names Forebay does not know",
    "unknown-file": "lines of a file that does not say its boot and number: duplicates cannot be told",
}
"""A kind of entry -> what it means, in the order in which a page shows them."""


class SegmentReport(NamedTuple):
    """What a worker says of the lines of one file of one boot; see `log_file`. `opened_at` and `closed_at` are the
    writer's numbers of lines before the first and behind the last; `dropped...` its numbers of dropped ones.
    """

    path: str
    ingest: str
    segment: int
    first_line: int
    boot: str | None
    sequence: int | None
    broker: str
    lines: int
    log_lines: int
    good: dict[str, int]
    bad: dict[str, int]
    samples: tuple[dict[str, Any], ...]
    opened_at: int | None
    closed_at: int | None
    dropped_first: int
    dropped_last: int
    first_ms: int | None
    last_ms: int | None
    damage: str
    torn: bool

    @property
    def counted_lines(self) -> int:
        """Lines of other types than `log`, unreadable ones included: what `writtenLines` counts."""
        return self.lines - self.log_lines


class LedgerEntry(NamedTuple):
    """One thing that is not as it should be. `lines`: how many it concerns, None if not known. `line`: 1 is the first
    line of the file, None if no line can be named.
    """

    kind: str
    boot: str | None
    path: str
    line: int | None
    lines: int | None
    text: str


class BootCount(NamedTuple):
    """Lines of one boot between its first and last that are known of. `earlier_lines` were written before those, in
    files that are not in the input, mostly because the sidecar has removed them since.
    """

    boot: str
    broker: str
    files: int
    expected_lines: int
    present_lines: int
    missing_lines: int
    dropped_lines: int
    unreadable_lines: int
    earlier_lines: int
    is_closed: bool


@dataclass(frozen=True, slots=True)
class Ledger:
    """The whole. `left_out`: ingest -> segments that are duplicates, whose rows do not count."""

    boots: tuple[BootCount, ...]
    entries: tuple[LedgerEntry, ...]
    left_out: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def expected_lines(self) -> int:
        """Lines that the sidecars had to write, dropped ones included."""
        return sum(boot.expected_lines for boot in self.boots)

    @property
    def readable_lines(self) -> int:
        """Of them, those that are there and can be read."""
        return sum(boot.present_lines - boot.unreadable_lines for boot in self.boots)

    @property
    def ratio(self) -> float | None:
        """Share of the expected lines that can be read; None if none were expected."""
        expected = self.expected_lines
        return self.readable_lines / expected if expected else None

    def count(self, kind: str) -> int:
        """Lines of one kind of entry, where they are known."""
        return sum(entry.lines or 0 for entry in self.entries if entry.kind == kind)


def scan_report(values: dict[str, Any], ingest: str) -> SegmentReport:
    """A report from a worker's JSON object."""
    return SegmentReport(
        path=values["path"],
        ingest=ingest,
        segment=values["segment"],
        first_line=values["firstLine"],
        boot=values["boot"],
        sequence=values["sequence"],
        broker=values["broker"],
        lines=values["lines"],
        log_lines=values["logLines"],
        good=values["good"],
        bad=values["bad"],
        samples=tuple(values["samples"]),
        opened_at=values["openedAt"],
        closed_at=values["closedAt"],
        dropped_first=values["droppedFirst"],
        dropped_last=values["droppedLast"],
        first_ms=values["firstMs"],
        last_ms=values["lastMs"],
        damage=values["damage"],
        torn=values["torn"],
    )


def build_ledger(
    reports: Sequence[SegmentReport],
    not_read: dict[str, str] | None = None,
    skipped: Iterable[str] = (),
) -> Ledger:
    """`not_read`: files and directories, and why; `skipped`: names that look like logs."""
    counted, entries, left_out = _choose(reports)
    boots = []
    by_boot: dict[str, list[SegmentReport]] = defaultdict(list)
    for report in counted:
        entries += _judge_segment(report)
        if report.boot is not None and report.sequence is not None:
            by_boot[report.boot].append(report)
        elif report.counted_lines:
            text = "neither the name nor an `open` line says which file of which boot this is"
            entries.append(
                LedgerEntry(
                    "unknown-file",
                    report.boot,
                    report.path,
                    report.first_line,
                    report.counted_lines,
                    text,
                )
            )
    for boot, segments in sorted(by_boot.items()):
        count, found = _count_boot(boot, sorted(segments, key=lambda one: one.sequence or 0))
        boots.append(count)
        entries += found
    for path, reason in sorted((not_read or {}).items()):
        entries.append(LedgerEntry("not-read", None, path, None, None, reason))
    for path in skipped:
        entries.append(LedgerEntry("skipped", None, path, None, None, "not a name of a log file"))
    order = list(KINDS)
    entries.sort(key=lambda one: (order.index(one.kind), -(one.lines or 0), one.path))
    return Ledger(
        tuple(boots),
        tuple(entries),
        {ingest: tuple(sorted(segments)) for ingest, segments in left_out.items()},
    )


def _choose(
    reports: Sequence[SegmentReport],
) -> tuple[list[SegmentReport], list[LedgerEntry], dict[str, list[int]]]:
    """Of each boot and sequence the segment with the most good lines; the others are left out. What one file held at an
    earlier ingest, before it grew or was compressed, is no duplicate.
    """
    best: dict[tuple[str, int], SegmentReport] = {}
    counted, entries, left_out = [], [], defaultdict(list)
    for report in sorted(reports, key=_worth):
        if report.boot is None or report.sequence is None:
            counted.append(report)
            continue
        kept = best.setdefault((report.boot, report.sequence), report)
        if kept is report:
            counted.append(report)
            continue
        left_out[report.ingest].append(report.segment)
        if report.path.removesuffix(".gz") != kept.path.removesuffix(".gz"):
            text = f"the same file {report.sequence} of boot {report.boot} as {kept.path}"
            entries.append(
                LedgerEntry(
                    "duplicate",
                    report.boot,
                    report.path,
                    report.first_line,
                    report.counted_lines,
                    text,
                )
            )
    return counted, entries, left_out


def _worth(report: SegmentReport) -> tuple[int, str, str, int]:
    return -sum(report.good.values()), report.path, report.ingest, report.segment


def _judge_segment(report: SegmentReport) -> list[LedgerEntry]:
    entries = []
    for problem, count in sorted(report.bad.items()):
        sample = next((one for one in report.samples if one["problem"] == problem), None)
        kind = IMPLAUSIBLE_CLOCK if problem == IMPLAUSIBLE_CLOCK else "unreadable"
        text = f"{problem}: {sample['text']}" if sample else problem
        line = sample["line"] if sample else None
        entries.append(LedgerEntry(kind, report.boot, report.path, line, count, text))
    last_line = report.first_line + report.lines - 1
    if report.damage:
        entries.append(
            LedgerEntry("cut", report.boot, report.path, last_line or None, None, report.damage)
        )
    elif report.torn:
        text = "the last line has no end"
        entries.append(LedgerEntry("cut", report.boot, report.path, last_line, None, text))
    return entries


def _count_boot(boot: str, segments: list[SegmentReport]) -> tuple[BootCount, list[LedgerEntry]]:
    """Compare what the writer says to have written before and behind each file with what is there."""
    entries: list[LedgerEntry] = []
    missing = 0
    first = segments[0]
    at = first.opened_at or 0
    dropped_before = first.dropped_first
    for place, segment in enumerate(segments):
        if segment.opened_at is not None and segment.opened_at > at:
            lost = segment.opened_at - at
            missing += lost
            entries.append(_gap(boot, segments[place - 1] if place else None, segment, lost))
        begin = segment.opened_at if segment.opened_at is not None else at
        following = segments[place + 1] if place + 1 < len(segments) else None
        end = segment.closed_at
        if end is None and following is not None and following.sequence == segment.sequence + 1:  # type: ignore[operator]
            end = following.opened_at
        at = begin + segment.counted_lines
        if end is not None and end > at:
            lost = end - at
            missing += lost
            text = f"the sidecar has written {end - begin} lines into this file, {segment.counted_lines} are there"
            entries.append(LedgerEntry("gap", boot, segment.path, segment.first_line, lost, text))
        at = max(at, end or 0)
    last = segments[-1]
    dropped = max(segment.dropped_last for segment in segments) - dropped_before
    if dropped > 0:
        entries.append(
            LedgerEntry(
                "dropped", boot, last.path, None, dropped, "dropped by the sidecar, not written"
            )
        )
    present = sum(segment.counted_lines for segment in segments)
    unreadable = sum(sum(segment.bad.values()) for segment in segments)
    count = BootCount(
        boot=boot,
        broker=next((one.broker for one in segments if one.broker != "unknown"), "unknown"),
        files=len(segments),
        expected_lines=present + missing + max(0, dropped),
        present_lines=present,
        missing_lines=missing,
        dropped_lines=max(0, dropped),
        unreadable_lines=unreadable,
        earlier_lines=first.opened_at or 0,
        is_closed=last.closed_at is not None,
    )
    return count, entries


def _gap(boot: str, before: SegmentReport | None, segment: SegmentReport, lost: int) -> LedgerEntry:
    place = f"between file {before.sequence} and file" if before else "before file"
    text = f"{lost} lines are missing {place} {segment.sequence} of boot {boot}"
    return LedgerEntry("gap", boot, segment.path, segment.first_line, lost, text)


def describe_ledger(ledger: Ledger) -> dict[str, Any]:
    """The ledger as JSON values: the share, counts by boot, and each entry with file, line and text."""
    return {
        "ratio": ledger.ratio,
        "expectedLines": ledger.expected_lines,
        "readableLines": ledger.readable_lines,
        "boots": [boot._asdict() for boot in ledger.boots],
        "entries": [entry._asdict() for entry in ledger.entries],
        "kinds": KINDS,
    }
