"""Two workers and their keeper under load: the audit adds their logs up to what `/metrics` says, to the byte, also
after a worker and a keeper were killed, and dates what workers gave by what the keeper stored.

A look saves /metrics and copies the logs as they are, with boot ids of its own: all looks are one log for Spark.
"""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, NamedTuple

import pytest

from metrics.merge import START_S
from proxy.accounting.counter_lines import SCRAPE_S
from spark_audit.job import Request, run
from spark_audit.reading import find_inputs
from spark_audit.reconcile import ScrapedCounters, scan_counters
from tests.kit.broker.topics import create_topic
from tests.kit.processes import find_keeper, list_workers
from tests.kit.sidecar import PATIENT_CACHE, Pair, ProxiedBroker
from tests.spark_audit.test_reconcile_live import Load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spark_audit.job import Findings

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1200)]

WORKERS = 2
LOOKS = 3
LOADS = 3
SPREAD_S = 10.0
"""After which one more load is tried where all clients are one worker's."""
PARTITIONS_A_LOOK = 20
PATIENCE_S = 120.0


def wait_for(find: Callable[[], object], what: str, pause_s: float = 0.1) -> None:
    """Until `find` returns what is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not find():
        assert time.monotonic() < deadline, what
        time.sleep(pause_s)


def read_files(directory: Path, boot: str) -> dict[str, bytes]:
    """The files of a process, by the names that they have while they grow. Another process may be compressing those of
    a killed one.
    """
    found: dict[str, bytes] = {}
    for path in (*directory.glob(f"*-{boot}-*.jsonl"), *directory.glob(f"*-{boot}-*.jsonl.gz")):
        with suppress(FileNotFoundError, EOFError):
            text = path.read_bytes()
            name = path.name.removesuffix(".gz")
            found[name] = max(
                found.get(name, b""), gzip.decompress(text) if name != path.name else text
            )
    return found


class Watched:
    """Looks at a Forebay of several workers. `boots`: by look, those of the scrape."""

    def __init__(self, pair: Pair, directory: Path) -> None:
        self.sidecar, self.directory = pair.sidecar, directory
        self.scrapes: list[ScrapedCounters] = []
        self.counted = 0

    def scrape(self) -> ScrapedCounters:
        return scan_counters(self.sidecar.admin("/metrics"))

    def has_line(self, boot: str, number: int) -> bool:
        """Whether the log of a process has reached this line of counters."""
        wanted = f'"number":{number},'.encode()
        return any(
            wanted in line
            for text in read_files(self.sidecar.log_directory, boot).values()
            for line in text.splitlines()
            if b'"type":"counters"' in line
        )

    def running(self) -> set[str]:
        """The boots of the processes that answer."""
        return {key[1] for key in self.sidecar.metrics() if key[0] == "forebay_boot_info"}

    def attached(self) -> bool:
        with suppress(OSError, KeyError):  # the supervisor answers while there is no keeper
            return self.sidecar.metrics()[("forebay_workers_attached",)] == WORKERS
        return False

    def look(self) -> ScrapedCounters:
        """Under load, once each process has a line with its part of the counters, and all are on disk."""
        found = self.scrape()

        def is_exact() -> bool:
            nonlocal found
            found = self.scrape()
            partitions = sum(count for count, _ in found.totals.values())
            return (
                len(found.lines) > WORKERS
                and min(found.lines.values()) > 0
                and partitions >= self.counted + PARTITIONS_A_LOOK
            )

        wait_for(is_exact, "no scrape has the lines of all", 2 * SCRAPE_S)
        self.counted = sum(count for count, _ in found.totals.values())
        for boot, number in found.lines.items():
            wait_for(lambda boot=boot, number=number: self.has_line(boot, number), "its line")  # type: ignore[misc]
        number = len(self.scrapes)
        names = {boot: f"{boot}-{number}" for boot in found.lines}
        self.copy(self.directory / str(number), names)
        self.scrapes.append(
            found._replace(
                boot=names[found.boot],
                lines={names[boot]: one for boot, one in found.lines.items()},
                baselines={names[boot]: one for boot, one in found.baselines.items()},
            )
        )
        return found

    def copy(self, target: Path, names: dict[str, str]) -> None:
        """The whole lines of all these processes' logs, with other boot ids."""
        target.mkdir(parents=True)
        for boot in names:
            for file, text in read_files(self.sidecar.log_directory, boot).items():
                whole = text[: text.rfind(b"\n") + 1]  # the writer may be within a line
                for one, name in names.items():
                    whole = whole.replace(one.encode(), name.encode())
                (target / file).write_bytes(whole)


class Seen(NamedTuple):
    """What was looked at. `keeper`, `killed`: boots of the first keeper, and of the worker that was killed. What an
    audit says of all looks, and of the logs before the keeper was killed.
    """

    watched: Watched
    keeper: str
    killed: set[str]
    looks: Findings
    before: Findings


def fetches_of(watched: Watched, boot: str) -> bool:
    files = read_files(watched.sidecar.log_directory, boot)
    return any(b'"type":"response"' in text for text in files.values())


@pytest.fixture(scope="module")
def seen(
    spark: SparkSession, proxied: ProxiedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seen]:
    directory = tmp_path_factory.mktemp("workers")
    settings = {"cache": PATIENT_CACHE, "workers": WORKERS}
    with ExitStack() as stack:
        pair = stack.enter_context(Pair(shared=proxied, settings=settings))
        watched = Watched(pair, directory / "looks")
        wait_for(watched.attached, "all workers are attached")
        first = set(watched.scrape().lines)
        topic = create_topic(pair.direct, partitions=4)

        workers = first - {watched.scrape().boot}
        loads: list[Load] = []

        def add_load() -> bool:
            """Whether both have clients by now, or a while later."""
            load = Load(pair.through, topic, f"group-{len(loads)}")
            loads.append(load)
            stack.callback(load.stop)
            until = time.monotonic() + SPREAD_S
            while not all(fetches_of(watched, boot) for boot in workers):
                if time.monotonic() > until:
                    return False
                time.sleep(0.1)
            return len(loads) >= LOADS

        wait_for(add_load, "both workers have clients")
        for _ in range(LOOKS):
            last = watched.look()
        os.kill(list_workers(pair.sidecar)[0], signal.SIGKILL)
        wait_for(lambda: len(watched.scrape().lines) > len(last.lines), "its successor is there")
        begun = time.monotonic()
        for _ in range(LOOKS):
            last = watched.look()
        assert first < set(last.lines), "what the killed one counted is in the sum"
        watched.copy(directory / "before", {boot: boot for boot in last.lines})
        killed, keeper_boot = first - watched.running(), last.boot
        wait_for(
            lambda: time.monotonic() - begun > START_S, "all are much older than the next keeper"
        )
        keeper = find_keeper(pair.sidecar)
        assert keeper is not None
        os.kill(keeper, signal.SIGKILL)
        watched.counted = 0
        wait_for(
            lambda: find_keeper(pair.sidecar) not in (keeper, None) and watched.attached(),
            "another keeper has all workers",
        )
        for _ in range(LOOKS):
            watched.look()
        for load in loads:
            load.stop()

    def audit(name: str, scrapes: tuple[ScrapedCounters, ...] = ()) -> Findings:
        inputs = find_inputs([str(directory / name)])
        return run(spark, Request(inputs, directory / f"of-{name}", scrapes), lambda _text: None)

    yield Seen(
        watched, keeper_boot, killed, audit("looks", tuple(watched.scrapes)), audit("before")
    )
    shutil.rmtree(directory)


def test_every_look_agrees_to_the_byte(seen: Seen) -> None:
    found = [one for one in seen.looks.reconciliations if one.source == "scrape"]
    assert len(found) == 3 * LOOKS
    for one, scrape in zip(found, seen.watched.scrapes, strict=True):
        workers = len(scrape.lines) - 1
        expected = (
            f"boot {scrape.boot} and {workers} workers: log and counters agree up to the scrape"
        )
        assert (one.agrees, one.text) == (True, expected)
    sizes = [sum(row.log_bytes for row in one.rows) for one in found]
    assert all(sizes[number] > 0 for number in range(2 * LOOKS)), sizes


def test_each_process_agrees_with_its_own_counters(seen: Seen) -> None:
    found = [one for one in seen.looks.reconciliations if one.source == "log"]
    assert len(found) >= 3 * LOOKS * (WORKERS + 1)
    assert all(one.agrees for one in found), [one.text for one in found if not one.agrees]


def test_a_killed_worker_stays_in_the_sum_and_its_end_is_said(seen: Seen) -> None:
    assert len(seen.killed) == 1
    (killed,) = seen.killed
    later = seen.watched.scrapes[LOOKS : 2 * LOOKS]
    assert all(f"{killed}-{LOOKS + number}" in one.lines for number, one in enumerate(later))
    texts = [one.text for one in seen.before.reconciliations if one.boot == killed]
    assert len(texts) == 1 and "a killed Forebay" in texts[0]


def test_a_keeper_s_successor_leaves_out_what_workers_had_counted(seen: Seen) -> None:
    last = seen.watched.scrapes[-1]
    assert sum(number > 0 for number in last.baselines.values()) == WORKERS


def test_all_that_workers_gave_is_dated(seen: Seen) -> None:
    sizing, hits = seen.before.sizing, seen.before.total["hitBytes"]
    assert hits > 0 and sizing.unknown_bytes == 0, sizing[2:8]
    assert sizing.known_bytes >= hits
    starts = [boot for boot in seen.before.boots if boot["keeper"] is None]
    assert [boot["boot"] for boot in starts] == [seen.keeper]
    assert starts[0]["blockLines"] > 0 and starts[0]["fetchLines"] == 0
    workers = [boot for boot in seen.before.boots if boot["keeper"] is not None]
    assert len(workers) == WORKERS + 1
    assert {boot["keeper"] for boot in workers if boot["fetchLines"]} <= {seen.keeper, ""}
    assert [row["boots"] for row in seen.before.brokers] == [1]
