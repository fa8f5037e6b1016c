"""The log against the counters in it: whatever is lost, doubled or not written yet, the audit says what differs."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import pytest

from metrics.access_log import AccessLog, BlockLine, CountersLine, LogLimits
from spark_audit.reading import find_inputs, good_lines, read_lines
from spark_audit.reconcile import (
    BootLog,
    CountersMark,
    ScrapedCounters,
    reconcile_boot,
    reconcile_group,
    reconcile_scrape,
    scan_counters,
)
from spark_audit.sections import build_marks, build_sections, read_boot_logs
from spark_audit.tables import build_answered
from tests.kit.log_lines import unfold
from tests.spark_audit.traffic import pretend, sum_empty

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.kit.log_lines import LoggedFetch

BOOT = "b5"
LINES_A_SECTION = 120
SCRAPED = 7
START_MS = 1_763_700_000_000


def write_counted_log(directory: Path) -> list[ScrapedCounters]:
    """Log a pretended traffic with a line of counters after each LINES_A_SECTION lines; what a scrape at each would
    have said, first at the start. Sums without records are written a section later.
    """
    limits = LogLimits(rotate_bytes=60_000, flush_interval_s=0.001)
    log = AccessLog(directory, BOOT, now_ms=lambda: START_MS, limits=limits)
    partitions: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    waiting: list[LoggedFetch] = []
    older: list[LoggedFetch] = []
    scrapes: list[ScrapedCounters] = []

    def count(event: str) -> None:
        open_sums = Counter((line.result, line.reason) for line in waiting)
        results = [
            (*pair, number, sizes[pair], open_sums[pair]) for pair, number in partitions.items()
        ]
        totals = {pair: (number, sizes[pair]) for pair, number in partitions.items()}
        number = len(scrapes) + 1
        ts = START_MS + 60_000 * number
        log.put_counters(
            CountersLine(ts, event, number, results, [("watch", 9 * number)], 0, 0, 0, 0, 0)
        )
        scrapes.append(ScrapedCounters(totals, None, 0, {}, BOOT, number))

    count("open")
    lines: list[LoggedFetch | BlockLine] = list(pretend(600, 200_000))
    for number, line in enumerate(lines, 1):
        if isinstance(line, BlockLine):
            log.put(line)
        else:
            partitions[line.result, line.reason] += 1
            sizes[line.result, line.reason] += line.bytes
            if line.bytes or line.delay_ms is not None:
                log.put(line.line)
            else:
                waiting.append(line)
        if number % LINES_A_SECTION == 0:
            for empty in sum_empty(older):
                log.put_empty(empty)
            waiting = waiting[len(older) :]
            count("minute")
            older = list(waiting)
    assert log.close(timeout_s=30)
    return scrapes


def split(directory: Path) -> list[list[bytes]]:
    """The lines of each file, in the order of the files."""
    found = []
    for path in sorted(directory.iterdir()):
        read = gzip.decompress if path.suffix == ".gz" else bytes
        found.append(read(path.read_bytes()).splitlines(keepends=True))
    return found


def lose_minutes(files: list[list[bytes]]) -> list[list[bytes]]:
    """Four in ten lines of counters were dropped."""
    draw = random.Random(3)
    return [
        [line for line in lines if b'"event":"minute"' not in line or draw.random() < 0.6]
        for lines in files
    ]


def add_copy(files: list[list[bytes]]) -> list[list[bytes]]:
    return [*files, [line for line in files[1] if b'"type":"counters"' not in line]]


WHOLE, LOST, TWICE, DELETED, DROPPED = "whole", "lost", "twice", "deleted", "dropped"
VARIANTS: dict[str, Callable[[list[list[bytes]]], list[list[bytes]]]] = {
    WHOLE: lambda files: files,
    LOST: lambda files: [*files[:2], *files[3:]],
    TWICE: add_copy,
    DELETED: lambda files: files[3:],
    DROPPED: lose_minutes,
}
"""What became of the log; each is a boot of its own."""


class Counted(NamedTuple):
    """What scrapes would have said, the log's files as they were written, and what the audit reads of each variant."""

    scrapes: list[ScrapedCounters]
    files: list[list[bytes]]
    logs: dict[str, BootLog]


@pytest.fixture(scope="module")
def counted(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Counted:
    directory = tmp_path_factory.mktemp("counted")
    scrapes = write_counted_log(directory / "written")
    files = split(directory / "written")
    assert len(files) > 4
    for variant, change in VARIANTS.items():
        target = directory / "logs" / variant
        target.mkdir(parents=True)
        for number, lines in enumerate(change(files)):
            text = b"".join(lines).replace(
                b'"boot":"%s"' % BOOT.encode(), b'"boot":"%s"' % variant.encode()
            )
            (target / f"{number}.jsonl").write_bytes(text)
    last = scrapes[-1].number
    asked = [(variant, number) for variant in VARIANTS for number in (SCRAPED, last, last + 1)]
    read = read_lines(spark, find_inputs([str(directory / "logs")]), directory / "table").lines
    answered = build_answered(good_lines(read, "fetch"), good_lines(read, "empty"))
    marks = build_marks(build_sections(answered), good_lines(read, "counters"))
    return Counted(scrapes, files, read_boot_logs(marks, asked))


def test_a_whole_log_agrees_at_every_line_of_counters(counted: Counted) -> None:
    scrapes, log = counted.scrapes, counted.logs[WHOLE]
    assert log.intervals == len(scrapes) - 1 > 10
    own = reconcile_boot(log)
    assert own.agrees and own.differences == []
    assert sum(row.log_partitions for row in own.rows) > 500
    for number in (SCRAPED, len(scrapes)):
        found = reconcile_scrape(scrapes[number - 1], log)
        assert found.agrees and "up to the scrape" in found.text
        assert found.until_ms == START_MS + 60_000 * number
        written = sum(row.log_partitions for row in found.rows)
        counted_partitions = sum(one for one, _ in scrapes[number - 1].totals.values())
        assert 0 < counted_partitions - written < LINES_A_SECTION * 2, "some sums were open"
    changed = {**scrapes[-1].totals, ("hit", ""): (1, 1)}
    wrong = reconcile_scrape(scrapes[-1]._replace(totals=changed), log)
    assert not wrong.agrees and "hit has" in wrong.text


def test_a_scrape_after_the_log_s_end_agrees_up_to_that(counted: Counted) -> None:
    """The log was copied before its last lines had been written."""
    last, log = counted.scrapes[-1], counted.logs[WHOLE]
    more = {pair: (one + 5, size + 5) for pair, (one, size) in last.totals.items()}
    for number in (last.number + 1, 0):
        found = reconcile_scrape(last._replace(totals=more, number=number), log)
        assert found.agrees and "not in this log yet" in found.text, found.text
        assert found.until_ms == START_MS + 60_000 * last.number
    less = reconcile_scrape(
        last._replace(totals={("hit", ""): (1, 1)}, number=last.number + 1), log
    )
    assert not less.agrees


def test_a_lost_file_is_an_interval_with_its_time(counted: Counted) -> None:
    responses = [json.loads(line) for line in counted.files[2] if b'"type":"response"' in line]
    fetches = len(list(unfold(responses)))
    log = counted.logs[LOST]
    found = reconcile_boot(log)
    assert found.agrees is False
    assert 0 < log.differing < log.intervals / 2, "the other intervals agree"
    missing = sum(one.row.counter_partitions - one.row.log_partitions for one in found.differences)
    assert missing >= fetches > 0
    assert all("lines are missing" in one.cause for one in found.differences)
    first, last = (
        min(one.first_ms for one in found.differences),
        max(one.last_ms for one in found.differences),
    )
    assert START_MS < first < last < START_MS + 60_000 * len(counted.scrapes)


def test_a_file_that_is_there_twice_counts_once(counted: Counted) -> None:
    """Of two copies only the longer one counts."""
    assert reconcile_boot(counted.logs[TWICE]).agrees is True


def test_a_log_whose_oldest_files_were_deleted_agrees_from_its_first_counters_on(
    counted: Counted,
) -> None:
    """As retention does it all the time."""
    scrapes, log = counted.scrapes, counted.logs[DELETED]
    assert log.first.number > 1
    assert reconcile_boot(log).agrees and reconcile_scrape(scrapes[-1], log).agrees
    early = reconcile_scrape(scrapes[0], log)
    assert early.agrees is None and "no counters line" in early.text


def test_lines_of_counters_that_were_dropped_make_longer_intervals(counted: Counted) -> None:
    log = counted.logs[DROPPED]
    assert 3 < log.intervals < len(counted.scrapes) - 1
    assert reconcile_boot(log).agrees


def test_a_scrape_of_another_boot_is_compared_with_nothing() -> None:
    found = reconcile_scrape(
        ScrapedCounters({("hit", ""): (1, 1)}, None, None, {}, "other", 3), None
    )
    assert found.agrees is None and "another Forebay" in found.text


def boot_log(boot: str, *hits: int) -> BootLog:
    """Lines 1, 2 and so on with so many hits so far, of a byte each, and a log that has as many."""
    marks = {}
    for number, count in enumerate(hits, 1):
        here, since = {("hit", ""): (count, count)}, {("hit", ""): (count - hits[0],) * 2}
        marks[number] = CountersMark(number, START_MS + number, here, since, since, "minute")
    return BootLog(boot, marks[1], marks[len(hits)], marks, len(hits) - 1, 0, ())


LOGS = {"k": boot_log("k", 0, 0), "w1": boot_log("w1", 0, 5, 9), "w2": boot_log("w2", 0, 100, 107)}


def scrape_group(hits: int, lines: dict[str, int], **baselines: int) -> ScrapedCounters:
    counted = {("hit", ""): (hits, hits)}
    return ScrapedCounters(counted, None, 0, {}, "k", lines.get("k", 0), lines, baselines)


def test_the_counters_of_a_keeper_and_its_workers_add_up() -> None:
    found = reconcile_group(scrape_group(107 + 5, {"k": 2, "w1": 2, "w2": 3}), LOGS)
    assert (found.agrees, found.boot, found.source) == (True, "k", "scrape")
    assert found.text == "boot k and 2 workers: log and counters agree up to the scrape"
    assert [(row.log_bytes, row.counter_bytes) for row in found.rows] == [(112, 112)]
    wrong = reconcile_group(scrape_group(107 + 6, {"k": 2, "w1": 2, "w2": 3}), LOGS)
    assert wrong.agrees is False and "hit has -1 partitions and -1 bytes in the log" in wrong.text


def test_what_a_worker_had_counted_before_its_keeper_is_left_out() -> None:
    lines = {"k": 2, "w1": 3, "w2": 3}
    assert reconcile_group(scrape_group(9 + 7, lines, k=0, w1=0, w2=2), LOGS).agrees is True
    assert reconcile_group(scrape_group(9 + 107, lines, k=0, w1=0, w2=2), LOGS).agrees is False


def test_what_a_killed_worker_counted_after_its_last_line_is_said() -> None:
    """Its line 4 never reached the disk: what the counters have beyond its line 3 is in no line."""
    found = reconcile_group(scrape_group(5 + 111, {"k": 2, "w1": 2, "w2": 4}), LOGS)
    assert found.agrees is True
    assert "but for what boot w2 counted since its last line" in found.text
    assert "it was killed" in found.text and "hit has -4 partitions and -4 bytes" in found.text
    below = reconcile_group(scrape_group(5 + 106, {"k": 2, "w1": 2, "w2": 4}), LOGS)
    assert below.agrees is False, "counters do not fall"


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ({"k": 2, "w1": 2, "w3": 4}, "there is no log of boot w3"),
        ({"k": 2, "w1": 2, "w2": 0}, "no line has the counters of one of them"),
        ({"k": 2, "w1": 2, "": 0}, "no line has the counters of one of them"),
    ],
)
def test_processes_without_a_line_are_compared_with_nothing(
    lines: dict[str, int], text: str
) -> None:
    found = reconcile_group(scrape_group(112, lines), LOGS)
    assert found.agrees is None and text in found.text


def test_a_scrape_of_one_process_and_of_several_are_told_apart() -> None:
    text = (
        'forebay_fetch_partitions_total{reason="",result="hit"} 7\n'
        'forebay_boot_info{boot="k"} 1\nforebay_access_log_counters_line{boot="k"} 4\n'
        'forebay_access_log_baseline_line{boot="k"} 0\n'
    )
    alone = scan_counters(text)
    assert (alone.boot, alone.number, dict(alone.lines)) == ("k", 4, {})
    more = text + (
        'forebay_boot_info{boot="w"} 1\nforebay_access_log_counters_line{boot="w"} 9\n'
        'forebay_access_log_baseline_line{boot="w"} 3\n'
    )
    several = scan_counters(more)
    assert (several.boot, several.number) == ("k", 4)
    assert (several.lines, several.baselines) == ({"k": 4, "w": 9}, {"k": 0, "w": 3})
    assert several.asked == [("k", 4), ("w", 9), ("k", 0), ("w", 3)]


def test_a_log_that_has_no_end_says_so(counted: Counted) -> None:
    assert "a killed Forebay" in reconcile_boot(counted.logs[WHOLE]).text
