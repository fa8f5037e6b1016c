"""Every number of the audit against a plain recomputation from what was logged."""

import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from metrics.access_log_schema import EMPTY_INTERVAL_MS, READ_VERSIONS
from spark_audit import tables
from spark_audit.job import WINDOWS, Request, plan_window_ms, run
from spark_audit.page.report import build_page
from spark_audit.reading import find_inputs, good_lines, read_lines
from spark_audit.sums import sum_boot_lines, sum_lags
from spark_audit.tables import LAG_BANDS, NO_CLIENT_ID, UNKNOWN_LAG
from tests.kit.log_lines import LoggedFetch
from tests.spark_audit.conftest import EMPTY, Audited
from tests.spark_audit.traffic import Traffic, write_log


def name_of(line: LoggedFetch) -> str:
    ids = {"orders": "b3JkZXJz", "payments": "cGF5bWVudHM", "clicks": "Y2xpY2tz"}
    return line.topic or next(
        topic_id
        for topic, topic_id in ids.items()
        if (line.topic_id or b"").startswith(topic.encode())
    )


def recompute(
    lines: list[LoggedFetch], key: Callable[[LoggedFetch], object]
) -> dict[object, dict[str, int]]:
    sums: dict[object, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for line in lines:
        row = sums[key(line)]
        row["bytes"] += line.bytes
        row["partitions"] += 1
        row["emptyPartitions"] += line.bytes == 0
        row[f"{line.result}Bytes"] += line.bytes
        row[f"{line.result}Partitions"] += 1
    return sums


def assert_same(
    rows: list[dict], expected: dict[object, dict[str, int]], key: Callable[[dict], object]
) -> None:
    assert {key(row) for row in rows} == set(expected)
    for row in rows:
        sums = expected[key(row)]
        for measure in (
            "bytes",
            "partitions",
            "emptyPartitions",
            "hitBytes",
            "missBytes",
            "passBytes",
        ):
            assert row[measure] == sums[measure], (row, measure)
        assert row["hitPartitions"] == sums["hitPartitions"]
        wanted = sums["hitBytes"] / sums["bytes"] if sums["bytes"] else None
        assert row["hitRatioBytes"] == (None if wanted is None else pytest.approx(wanted))
        assert row["hitRatioPartitions"] == pytest.approx(
            sums["hitPartitions"] / sums["partitions"]
        )


def test_the_whole(audited: Audited) -> None:
    assert_same(
        [audited.findings.total], recompute(audited.traffic.fetches, lambda line: 0), lambda row: 0
    )


def test_by_topic_with_the_id_where_no_name_is_known(audited: Audited) -> None:
    expected = recompute(audited.traffic.fetches, lambda line: name_of(line)[:8])
    assert_same(audited.findings.topics, expected, lambda row: row["topic"][:8])


def test_by_client(audited: Audited) -> None:
    expected = recompute(
        audited.traffic.fetches, lambda line: line.response.client_id or NO_CLIENT_ID
    )
    assert_same(audited.findings.clients, expected, lambda row: row["clientId"])


def test_by_partition_and_by_window_as_parquet(audited: Audited, spark: SparkSession) -> None:
    def read(name: str) -> list[dict]:
        path = (audited.out / "tables" / name).as_uri()
        return [row.asDict() for row in spark.read.parquet(path).collect()]

    expected = recompute(audited.traffic.fetches, lambda line: (name_of(line)[:8], line.partition))
    assert_same(read("by_partition"), expected, lambda row: (row["topic"][:8], row["partition"]))
    window_ms = audited.findings.window_ms
    expected = recompute(
        audited.traffic.fetches, lambda line: line.response.ts // window_ms * window_ms
    )
    assert_same(read("by_window"), expected, lambda row: row["windowMs"])
    admitted = sum(line.bytes for line in audited.traffic.blocks)
    assert sum(row["bytes"] for row in read("admissions")) == admitted


def test_by_result_and_reason(audited: Audited) -> None:
    expected = recompute(audited.traffic.fetches, lambda line: (line.result, line.reason))
    rows: dict[object, Any] = {
        (row["result"], row["reason"]): row for row in audited.findings.totals
    }
    assert set(rows) == set(expected)
    for pair, sums in expected.items():
        assert (rows[pair]["bytes"], rows[pair]["partitions"]) == (
            sums["bytes"],
            sums["partitions"],
        )


def name_band(line: LoggedFetch) -> str:
    if line.high_watermark < 0:
        return UNKNOWN_LAG
    lag = max(0, line.high_watermark - line.offset)
    return next(name for below, name in LAG_BANDS if lag < below)


def test_by_band_of_lag(audited: Audited) -> None:
    assert_same(
        audited.findings.lag_bands,
        recompute(audited.traffic.fetches, name_band),
        lambda row: row["band"],
    )


def test_latency(audited: Audited) -> None:
    for row in audited.findings.latency:
        lines = [
            line for line in audited.traffic.fetches if line.bytes and line.result == row["result"]
        ]
        times = sorted(round(line.response.total_ms, 3) for line in lines)
        assert row["partitions"] == len(times)
        assert row["totalMs_max"] == times[-1]
        assert row["totalMs_p50"] == pytest.approx(statistics.median(times), abs=5)
        assert row["waitMs_max"] == max(round(line.response.wait_ms, 3) for line in lines)


def test_delays_by_client_and_topic(audited: Audited) -> None:
    for rows, key in (
        (audited.findings.delays_by_client, lambda line: line.response.client_id or NO_CLIENT_ID),
        (audited.findings.delays_by_topic, lambda line: name_of(line)),
    ):
        assert rows and sum(row["partitions"] for row in rows) == sum(
            line.delay_ms is not None for line in audited.traffic.fetches
        )
        for row in rows:
            name = row.get("clientId") or row["topic"]
            lines = [
                line
                for line in audited.traffic.fetches
                if line.delay_ms and key(line)[:8] == name[:8]
            ]
            waits = [round(line.delay_ms or 0, 3) for line in lines]
            assert (row["partitions"], row["bytes"]) == (
                len(lines),
                sum(line.bytes for line in lines),
            )
            assert row["delayMs_max"] == max(waits)
            assert row["delayMs_sum"] == pytest.approx(sum(waits))
            assert row["delayMs_p50"] <= row["delayMs_p95"] <= row["delayMs_max"]


def test_bands_of_lag_begin_where_lags_of_sums_are_rounded_to() -> None:
    assert [below for below, _ in LAG_BANDS[:-1]] == [
        10**power for power in range(len(LAG_BANDS) - 1)
    ]


def test_windows_of_a_log_with_sums_are_multiples_of_their_interval(audited: Audited) -> None:
    assert audited.findings.window_ms == EMPTY_INTERVAL_MS
    for span_ms in (0, 10**5, 10**6, 10**7, 10**8, 10**12):
        assert plan_window_ms(5, 5 + span_ms, EMPTY_INTERVAL_MS) % EMPTY_INTERVAL_MS == 0


class Versions(NamedTuple):
    """One traffic, logged in each version as a boot of its own, and a boot whose log has one sum alone."""

    traffic: dict[str, Traffic]
    lines: DataFrame
    answered: DataFrame
    facts: DataFrame

    def read(self, table: DataFrame, boot: str) -> list[dict]:
        return [row.asDict() for row in table.where(F.col("boot") == boot).collect()]


@pytest.fixture(scope="module")
def versions(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Versions:
    root = tmp_path_factory.mktemp("versions")
    logs = root / "logs"
    traffic = {
        f"v{version}": write_log(logs, f"v{version}", rounds=600, version=version)
        for version in READ_VERSIONS
    }
    sum_alone = EMPTY % ("hit", 6, '{"lag":0,"responses":3,"partitions":[1,2]}')
    (logs / "sum.jsonl").write_text(sum_alone)
    lines = read_lines(spark, find_inputs([str(logs)]), root / "table").lines.persist()
    answered = tables.build_places(good_lines(lines, "fetch"), good_lines(lines, "empty"))
    keys = ("boot", "windowMs", "topic", "partition", "result", "reason")
    facts = tables.sum_answered(answered.persist(), 10_000, *keys).persist()
    return Versions(traffic, lines, answered, facts)


@pytest.mark.parametrize("version", READ_VERSIONS)
def test_one_traffic_has_the_same_tables_in_either_version(
    versions: Versions, version: int
) -> None:
    """All that is summed of questions is what was asked; windows too, where they are multiples of the interval."""
    boot, facts = f"v{version}", versions.facts
    traffic = versions.traffic[boot]
    assert bool(traffic.empties) == (version >= 2)
    lines = traffic.fetches
    total = versions.read(tables.hit_ratio(facts, "boot"), boot)
    assert_same(total, recompute(lines, lambda line: 0), lambda row: 0)
    windows = versions.read(tables.hit_ratio(facts, "boot", "windowMs"), boot)
    expected = recompute(lines, lambda line: line.response.ts // 10_000 * 10_000)
    assert_same(windows, expected, lambda row: row["windowMs"])
    partitions = versions.read(tables.hit_ratio(facts, "boot", "topic", "partition"), boot)
    expected = recompute(lines, lambda line: (name_of(line)[:8], line.partition))
    assert_same(partitions, expected, lambda row: (row["topic"][:8], row["partition"]))
    bands = tables.lag_bands(sum_lags(versions.answered.where(F.col("boot") == boot))).collect()
    rows = [row.asDict() for row in bands]
    assert_same(rows, recompute(lines, name_band), lambda row: row["band"])


def test_of_a_sum_alone_each_partition_has_its_share(versions: Versions) -> None:
    """Consumers waited at the tail, and nothing came."""
    (total,) = versions.read(tables.hit_ratio(versions.facts, "boot"), "b")
    assert (total["partitions"], total["emptyPartitions"], total["hitRatioBytes"]) == (6, 6, None)
    partitions = versions.read(tables.hit_ratio(versions.facts, "boot", "partition"), "b")
    assert [row["partitions"] for row in partitions] == [3, 3]
    (boot,) = versions.read(tables.boots(sum_boot_lines(versions.lines), versions.lines), "b")
    assert (boot["firstMs"], boot["lastMs"]) == (1763700000001, 1763700004000)


@pytest.mark.long
def test_a_log_of_sums_alone_is_audited(spark: SparkSession, tmp_path: Path) -> None:
    """Consumers waited at the tail, and nothing came."""
    (tmp_path / "a.jsonl").write_text(
        EMPTY % ("hit", 6, '{"lag":0,"responses":3,"partitions":[1,2]}')
    )
    request = Request(find_inputs([str(tmp_path)]), tmp_path / "out")
    findings = run(spark, request, lambda _text: None)
    assert (findings.total["partitions"], findings.total["emptyPartitions"]) == (6, 6)
    assert [row["partitions"] for row in findings.partitions] == [3, 3]
    assert [(boot["firstMs"], boot["lastMs"]) for boot in findings.boots] == [
        (1763700000001, 1763700004000)
    ]
    assert build_page(findings)


@pytest.mark.parametrize(
    ("span_ms", "window_ms"),
    [(0, 1000), (WINDOWS // 2 * 1000 - 1, 1000), (WINDOWS // 2 * 1000, 2000), (10**12, 86_400_000)],
)
def test_windows_fit_the_span(span_ms: int, window_ms: int) -> None:
    assert plan_window_ms(5, 5 + span_ms) == window_ms
