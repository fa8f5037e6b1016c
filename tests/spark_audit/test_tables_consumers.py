"""Tables by group and broker, lag in seconds, laggards: each against a recomputation from what was logged."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import pytest

from metrics.access_log import AccessLog, BlockLine, ListenerAddress
from spark_audit import tables
from spark_audit.brokers import UNKNOWN_BROKER, BootRow, join_brokers
from spark_audit.reading import find_inputs, good_lines, read_lines
from spark_audit.sums import sum_behind, sum_boot_lines, sum_lag_times
from tests.kit.log_lines import LoggedFetch, LoggedResponse
from tests.spark_audit.traffic import START_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    Sums = dict[object, int]

GROUPS = {"c1": "billing", "c2": "fraud", "twin": "a"}
"""By client id, as the broker that coordinates them learns it."""
ELSEWHERE = "far"
"""The boot that coordinates none of them."""
HOUR_MS = 3_600_000
LAGS_MS = (0, 999, 1_000, 59_999, 8 * 60_000 - 1, 8 * 60_000, HOUR_MS, 30 * HOUR_MS, -5_000)


class Logged(NamedTuple):
    """What was logged, with its boot, and the tables' inputs."""

    lines: list[tuple[str, LoggedFetch]]
    fetches: DataFrame
    facts: DataFrame
    boots: list[dict]


def build_lines(boot: str, count: int) -> list[LoggedFetch]:
    draw = random.Random(boot)
    lines = []
    for number in range(count):
        client_id = draw.choice([*GROUPS, "lonely", None])
        group = GROUPS.get(client_id or "") if boot != ELSEWHERE else None
        if client_id == "twin" and boot == "near2":
            group = "b"
        ts = START_MS + number
        response = LoggedResponse(ts, "main", number, client_id, group, 13, 0.0, 1.0, 0)
        result = draw.choice([("hit", ""), ("miss", "cold")])
        lag_ms = draw.choice([*LAGS_MS, None])
        stamp = None if lag_ms is None else ts - lag_ms
        topic = draw.choice(["orders", "clicks"])
        line = LoggedFetch(response, topic, None, 0, 1, 0, *result, 100 + number, 200, None)
        lines.append(line._replace(timestamp_ms=stamp))
    return lines


@pytest.fixture(scope="module")
def logged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Logged:
    directory = tmp_path_factory.mktemp("consumers")
    lines: list[tuple[str, LoggedFetch]] = []
    for boot, node_id in (("near", 1), ("near2", 2), (ELSEWHERE, None)):
        log = AccessLog(directory, boot, now_ms=lambda: START_MS)
        log.learn_listeners([ListenerAddress("main", f"{boot}:9092", f"{boot}:19092")])
        if node_id is not None:
            log.learn_node(node_id)
        for line in build_lines(boot, 120):
            log.put(line.line)
            lines.append((boot, line))
        log.put(
            BlockLine(START_MS, "", "orders", None, 0, 0, 9, 700, "watch", 700, 1, 0, 700, (), None)
        )
        assert log.close(timeout_s=30)
    read = read_lines(
        spark, find_inputs([str(directory)]), directory.with_name(f"{directory.name}-table")
    ).lines.persist()
    fetches = good_lines(read, "fetch")
    answered = tables.build_answered(fetches, good_lines(read, "empty"))
    keys = ("boot", "connection", "clientId", "group", "result", "reason")
    facts = tables.sum_answered(answered, 10_000, *keys)
    boots = [
        row.asDict(recursive=True) for row in tables.boots(sum_boot_lines(read), read).collect()
    ]
    return Logged(lines, fetches, facts.persist(), boots)


def sum_bytes(logged: Logged, key: Callable[[str, LoggedFetch], object]) -> Sums:
    sums: Sums = defaultdict(int)
    for boot, line in logged.lines:
        sums[key(boot, line)] += line.bytes
    return sums


def test_a_group_is_what_the_line_says_or_the_only_one_that_other_brokers_know(
    logged: Logged,
) -> None:
    def group_of(boot: str, line: LoggedFetch) -> str:
        client_id, group = line.response[3], line.response[4]
        if group is None and boot == ELSEWHERE and client_id in ("c1", "c2"):
            return GROUPS[client_id]
        return group or tables.NO_GROUP

    table = tables.hit_ratio(tables.name_groups(logged.facts), "group").collect()
    assert {row["group"]: row["bytes"] for row in table} == sum_bytes(logged, group_of)
    assert {row["group"] for row in table} == {"billing", "fraud", "a", "b", tables.NO_GROUP}


def test_a_connection_has_the_group_that_it_names_later(spark: SparkSession) -> None:
    """Unless its lines name several; other connections of the boot, and other boots, keep what they have."""
    rows = [
        ("fetch", "b1", 1, None),
        ("empty", "b1", 1, "g"),
        ("fetch", "b1", 2, None),
        ("fetch", "b1", 3, None),
        ("fetch", "b1", 3, "g"),
        ("empty", "b1", 3, "h"),
        ("fetch", "b2", 1, None),
        ("fetch", "b2", 4, "g"),
    ]
    lines = spark.createDataFrame(rows, "type string, boot string, connection long, group string")
    filled = tables.fill_groups(lines, tables.learn_groups(lines)).collect()
    assert len(filled) == len(rows)
    groups: dict[object, list[object]] = defaultdict(list)
    for row in filled:
        groups[row["boot"], row["connection"]].append(row["group"])
    assert groups["b1", 1] == ["g", "g"]
    assert sorted(map(str, groups["b1", 3])) == ["None", "g", "h"]
    assert (groups["b1", 2], groups["b2", 1], groups["b2", 4]) == ([None], [None], ["g"])


def test_brokers_are_named_by_node_id_or_by_address(logged: Logged) -> None:
    by_boot = [row.asDict() for row in tables.hit_ratio(logged.facts, "boot").collect()]
    brokers = {row["broker"]: row for row in join_brokers(logged.boots, by_boot)}
    names = {"near": "1", "near2": "2", ELSEWHERE: f"{ELSEWHERE}:19092"}
    expected = sum_bytes(logged, lambda boot, line: names[boot])
    assert {name: row["bytes"] for name, row in brokers.items()} == expected
    assert brokers["1"]["listeners"] == "main near:9092"
    hits = sum_bytes(logged, lambda boot, line: (names[boot], line.result))
    for name, row in brokers.items():
        assert row["hitBytes"] == hits[name, "hit"]
        assert row["hitRatioBytes"] == pytest.approx(row["hitBytes"] / row["bytes"])


def test_two_starts_of_one_broker_are_one_row() -> None:
    sums = dict.fromkeys(("bytes", "partitions", "hitBytes", "hitPartitions"), 3)
    boots = [{"boot": name, "nodeId": 7, "keeper": None, "listeners": None} for name in ("x", "y")]
    boots.append({"boot": "old", "nodeId": None, "keeper": None, "listeners": None})
    rows = join_brokers(boots, [{"boot": one["boot"], **sums} for one in boots])
    assert [(row["broker"], row["boots"], row["bytes"]) for row in rows] == [
        ("7", 2, 6),
        (UNKNOWN_BROKER, 1, 3),
    ]


def test_workers_are_of_their_keeper_s_broker_and_no_starts_of_their_own() -> None:
    sums = dict.fromkeys(("bytes", "partitions"), 3)
    seen = [{"name": "main", "address": "a:9092", "upstream": "b:19092"}]
    boots: list[BootRow] = [
        {"boot": "k", "nodeId": 7, "keeper": None, "listeners": []},
        {"boot": "w1", "nodeId": 7, "keeper": "k", "listeners": seen},
        {"boot": "w2", "nodeId": None, "keeper": "k", "listeners": seen},
        {"boot": "idle", "nodeId": None, "keeper": "", "listeners": seen},
    ]
    rows = join_brokers(boots, [{"boot": one["boot"], **sums} for one in boots[1:3]])
    assert [(row["broker"], row["boots"], row["bytes"], row["listeners"]) for row in rows] == [
        ("7", 1, 6, "main a:9092"),
    ]


def lag_of(line: LoggedFetch) -> int | None:
    return None if line.timestamp_ms is None else line.response[0] - line.timestamp_ms


def test_lag_in_seconds_is_by_the_records_own_time_stamps(logged: Logged) -> None:
    def band_of(boot: str, line: LoggedFetch) -> str:
        lag_ms = lag_of(line)
        if lag_ms is None:
            return tables.UNKNOWN_LAG
        return next(name for below_ms, name in tables.LAG_TIMES if lag_ms < below_ms)

    table = tables.lag_times(sum_lag_times(logged.fetches)).collect()
    assert {row["band"]: row["bytes"] for row in table} == sum_bytes(logged, band_of)
    assert len(table) == len(tables.LAG_TIMES) + 1, "no band is empty"
    assert sum(row["hitBytes"] for row in table) == sum(
        line.bytes for _, line in logged.lines if line.result == "hit"
    )


def test_laggards_are_readers_from_the_broker_further_behind_than_its_page_cache(
    logged: Logged,
) -> None:
    learned = tables.learn_groups(logged.facts)
    rows = tables.laggards(sum_behind(logged.fetches), learned).collect()
    expected: Sums = defaultdict(int)
    for _, line in logged.lines:
        lag_ms = lag_of(line)
        if line.result != "hit" and lag_ms is not None and lag_ms >= 8 * 60_000:
            client = line.response[3] or tables.NO_CLIENT_ID
            expected[line.topic, client, line.response[4] or tables.NO_GROUP] += line.bytes
    assert {(row["topic"], row["clientId"], row["group"]): row["bytes"] for row in rows} == expected
    assert max(row["lagMs_max"] for row in rows) == 30 * HOUR_MS
