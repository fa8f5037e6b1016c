"""The audit of real runs: one load before a serving and an observing Forebay, read by Spark from their own logs.

The load goes in step, so that both caches admit the same bytes in the same order: 20 MiB through 16 MiB of cache, a
reader at the tail, then one over all of it. Batches fill a fetch exactly, because a broker ends an answer with a cut
batch and memory does not. TOLERANCE is for MOMENTS fetches, which differ by moments: the first ones of a connection,
and those that a busy machine lets the broker answer first; sizes below two fetches are left out, since where a tail's
fetch ends among batches just written is a moment's matter, too.
`version1` is the log of a Forebay that wrote a line for each partition of each response, with its last scrape: raw
clients at the tail, in history, in transactions and in errors.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from metrics.access_log_schema import OBSERVED, SCHEMA_VERSION
from spark_audit.job import Findings, Request, run
from spark_audit.page.report import build_page
from spark_audit.reading import find_inputs
from spark_audit.reconcile import ScrapedCounters, scan_counters
from spark_audit.summary import build_outlook, build_spared, build_summary
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, RawReader
from tests.kit.sidecar import PATIENT_CACHE, Sidecar
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.kit.broker.kafka import KafkaCluster

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(1800),
]  # the first test starts Spark and runs twice

MIB = 1 << 20
VALUE = bytes(range(256)) * 480
BATCHES = 20 * MIB // len(VALUE)
BATCHES_A_FETCH = 4
MOMENTS = 4
TOLERANCE = MOMENTS * BATCHES_A_FETCH / (2 * BATCHES)
"""Of all bytes, which are read twice."""
VERSION_1 = Path(__file__).with_name("version1")


class Audited(NamedTuple):
    """One run: what the audit found in `logs`, the scrape before its end, and what the raw readers got."""

    findings: Findings
    metrics: dict[tuple[str, ...], float]
    received_bytes: int
    logs: Path
    counters: ScrapedCounters


def load(address: str, topic: str) -> int:
    """Write, follow, then read all again; the record bytes that the readers got."""
    one = batch_v2(1, value=VALUE)
    with RawClient(address, "writer") as writer, RawClient(address, "tail") as client:
        tail = RawReader(client, topic).settle()
        tail.max_bytes = BATCHES_A_FETCH * len(one)
        for _ in range(BATCHES // BATCHES_A_FETCH):
            offsets = [writer.produce(topic, one) for _ in range(BATCHES_A_FETCH)]
            tail.read_to(offsets[-1] + 1)
    with RawClient(address, "again") as client:
        again = RawReader(client, topic)
        again.max_bytes = BATCHES_A_FETCH * len(one)
        again.read_past_errors()
        again.read_to(tail.offset)
    assert again.raw == tail.raw
    return tail.received_bytes + again.received_bytes


def run_one(broker: KafkaCluster, mode: str, spark: SparkSession, directory: Path) -> Audited:
    topic = create_topic(broker.direct)
    with lease_port() as lease:
        entry = {"listen": f"{HOST}:{lease.port}", "upstream": broker.direct}
        settings = {"cache": PATIENT_CACHE | {"size": "16MiB", "mode": mode}}
        with Sidecar([entry], settings) as sidecar:
            received_bytes = load(sidecar.bootstrap, topic)
            metrics, text = sidecar.metrics(), sidecar.admin("/metrics")
            assert sidecar.stop() == 0
            shutil.copytree(sidecar.log_directory, directory / "logs")
    inputs = find_inputs([str(directory / "logs")])
    counters = scan_counters(text)
    findings = run(spark, Request(inputs, directory / "out", (counters,)), lambda _text: None)
    return Audited(findings, metrics, received_bytes, directory / "logs", counters)


@pytest.fixture(scope="module")
def runs(
    broker: KafkaCluster, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Audited]:
    return {
        mode: run_one(broker, mode, spark, tmp_path_factory.mktemp(mode))
        for mode in ("serve", "observe")
    }


def test_the_curve_of_an_observing_run_is_that_of_a_real_one(runs: dict[str, Audited]) -> None:
    real, observed = (runs[mode].findings.sizing for mode in ("serve", "observe"))
    assert real.total_bytes == pytest.approx(observed.total_bytes, rel=TOLERANCE)
    for point in [one for one in real.points if one.size_bytes >= MIB]:
        hit_bytes, _ = observed.ages.within(point.held_bytes)
        wanted = pytest.approx(observed.hit_ratio(hit_bytes), abs=TOLERANCE)
        assert real.hit_ratio(point.hit_bytes) == wanted
    ratio = real.hit_ratio(real.points[-1].hit_bytes)
    assert ratio is not None and 0.5 < ratio <= 1


def test_what_would_have_hit_is_what_did(runs: dict[str, Audited]) -> None:
    real, observed = (build_outlook(runs[mode].findings) for mode in ("serve", "observe"))
    assert observed.observed_ratio == pytest.approx(real.observed_ratio, abs=TOLERANCE)
    assert observed.predicted_ratio == pytest.approx(real.predicted_ratio, abs=TOLERANCE)
    would_hit = runs["observe"].metrics["forebay_fetch_would_hit_bytes_total",]
    assert would_hit == runs["observe"].findings.total["wouldHitBytes"]
    served = runs["serve"].findings.total
    assert would_hit == pytest.approx(served["hitBytes"], abs=TOLERANCE * served["bytes"])


def test_observing_serves_nothing_from_memory_and_takes_little_of_it(
    runs: dict[str, Audited],
) -> None:
    observed, real = runs["observe"], runs["serve"]
    assert observed.findings.total["hitBytes"] == 0 < real.findings.total["hitBytes"]
    assert {row["reason"] for row in observed.findings.totals} >= {OBSERVED[1]}
    resident = "forebay_cache_resident_bytes"
    assert observed.metrics[resident,] < 4 * MIB < real.metrics[resident,]
    admitted = "forebay_cache_admitted_bytes_total"
    assert observed.metrics[admitted,] == real.metrics[admitted,]


@pytest.mark.parametrize("mode", ["serve", "observe"])
def test_log_counters_and_clients_agree(runs: dict[str, Audited], mode: str) -> None:
    findings = runs[mode].findings
    assert findings.problems == {}
    assert findings.comparison and all(row.agrees for row in findings.comparison)
    assert findings.total["bytes"] == runs[mode].received_bytes


def sum_results(*found: Findings) -> dict[tuple[str, str], tuple[int, int, int]]:
    """(result, reason) -> partitions, empty ones of them, and bytes, over several audits."""
    sums: dict[tuple[str, str], tuple[int, int, int]] = {}
    for row in (row for findings in found for row in findings.totals):
        pair, more = (row["result"], row["reason"]), (row["partitions"], row["emptyPartitions"])
        before = sums.get(pair, (0, 0, 0))
        sums[pair] = (before[0] + more[0], before[1] + more[1], before[2] + row["bytes"])
    return sums


@pytest.fixture(scope="module")
def version1(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Findings:
    counters = scan_counters((VERSION_1 / "metrics.txt").read_text())
    out = tmp_path_factory.mktemp("version1")
    request = Request(find_inputs([str(VERSION_1)]), out, (counters,))
    return run(spark, request, lambda _text: None)


@pytest.mark.long
def test_a_log_of_version_1_agrees_with_its_counters(version1: Findings) -> None:
    assert version1.problems == {}
    assert [(boot["schemaVersion"], boot["emptyLines"]) for boot in version1.boots] == [(1, 0)]
    assert version1.comparison and all(row.agrees for row in version1.comparison)
    assert version1.total["emptyPartitions"] > 50


def test_partitions_without_records_are_summed(runs: dict[str, Audited]) -> None:
    for findings in (runs["serve"].findings, runs["observe"].findings):
        (boot,) = findings.boots
        assert boot["schemaVersion"] == SCHEMA_VERSION
        assert 0 < boot["emptyLines"] <= findings.total["emptyPartitions"]
        with_records = findings.total["partitions"] - findings.total["emptyPartitions"]
        assert boot["fetchLines"] == with_records


@pytest.mark.long
def test_a_log_that_changes_its_version_is_the_sum_of_both(
    runs: dict[str, Audited], version1: Findings, spark: SparkSession, tmp_path: Path
) -> None:
    """Forebay was replaced by a newer one, which goes on in the same directory."""
    for directory in (VERSION_1, runs["serve"].logs):
        shutil.copytree(directory, tmp_path / "logs", dirs_exist_ok=True)
    counters = runs["serve"].counters
    request = Request(find_inputs([str(tmp_path / "logs")]), tmp_path / "out", (counters,))
    both = run(spark, request, lambda _text: None)
    assert both.problems == {}
    assert sorted(boot["schemaVersion"] for boot in both.boots) == [1, SCHEMA_VERSION]
    assert sum_results(both) == sum_results(version1, runs["serve"].findings)
    last = max(both.boots, key=lambda boot: boot["lastMs"])
    assert both.compared_boot == last["boot"]
    assert all(row.agrees for row in both.comparison) == (last["schemaVersion"] == SCHEMA_VERSION)


def test_what_was_spared_is_net_of_forebays_own_fetches(runs: dict[str, Audited]) -> None:
    spared = build_spared(runs["serve"].findings)
    assert (
        spared.own_bytes is not None and spared.net_bytes == spared.hit_bytes - spared.own_bytes > 0
    )
    assert build_summary(runs["serve"].findings)["spared"]["netBytes"] == spared.net_bytes
    assert "would have hit" in build_page(runs["observe"].findings)
