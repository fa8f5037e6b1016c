"""The scrape shows every metric of the catalog, and no other."""

from __future__ import annotations

import asyncio
import io
import re
from typing import TYPE_CHECKING

import uvloop

from metrics.access_log_schema import BLOCK_SOURCES
from metrics.catalog import CATALOG, GROUPS, METRIC_VALUES
from metrics.collector import Exposition, SampleCollector
from protocol.api import FETCH
from proxy.admin.log_queue import LogQueue
from proxy.admin.samples import collect
from proxy.app import Forebay
from proxy.build_info import find_commit
from proxy.config.load import Setting, load
from tests.kit.broker.certificates import write_certificates

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from prometheus_client import Metric


def flag(path: tuple[str | int, ...], value: str) -> Setting:
    return Setting(path, value, "--" + "-".join(map(str, path)))


def shown(log_directory: Path) -> dict[str, set[float]]:
    """Family -> the values of its samples (`scrape`)."""
    suffix = {"counter": "_total"}
    return {
        family.name + suffix.get(family.type, ""): {sample.value for sample in family.samples}
        for family in scrape(log_directory)
    }


def scrape(log_directory: Path) -> list[Metric]:
    """The families of a process that has counted one of everything."""

    disks = log_directory / "diskstats"
    tls = write_certificates(log_directory).server
    disks.write_text("8 0 sdx 1 0 8 1 1 0 8 1 0 2 2\n")

    async def run() -> list[Metric]:
        settings = [
            flag(("listeners", 0, "listen"), "127.0.0.1:0"),
            flag(("listeners", 0, "upstream"), "127.0.0.1:1"),
            flag(("listeners", 0, "name"), "clients"),
            flag(("listeners", 1, "listen"), "127.0.0.1:0"),
            flag(("listeners", 1, "upstream"), "127.0.0.1:1"),
            flag(("listeners", 1, "name"), "tools"),
            flag(("listeners", 1, "tls", "certificateFile"), str(tls.certificate)),
            flag(("listeners", 1, "tls", "keyFile"), str(tls.key)),
            flag(("listeners", 2, "listen"), "127.0.0.1:0"),
            flag(("listeners", 2, "upstream"), "127.0.0.1:1"),
            flag(("listeners", 2, "name"), "unread"),
            flag(("listeners", 2, "passThrough"), "true"),
            flag(("cache", "size"), "16MiB"),
            flag(("accessLog", "directory"), str(log_directory)),
            flag(("throttle", "disks", 0, "device"), "sdx"),
            flag(("throttle", "disks", 0, "throughput"), "60MB"),
            flag(("throttle", "disks", 0, "iops"), "3000"),
            flag(("throttle", "diskstatsFile"), str(disks)),
            flag(("throttle", "target"), "0.35"),
            flag(("throttle", "floor"), "3MiB"),
            flag(("isolation", "dataSlots", "floor"), "5"),
            flag(("isolation", "controlSlots", "floor"), "6"),
        ]
        forebay = Forebay(load(None, {}, settings).config, LogQueue(io.BytesIO(), 10))
        forebay.broker.disk_throttle.start()
        counters = forebay.broker.counters
        counters.produce.batches["store"] += 1
        counters.stored.invalidations["idle"] += 1
        counters.clients.disconnects["idle"] += 1
        counters.apis.answer(8, 16, 0.001)
        counters.apis.fail(FETCH, 999)
        counters.apis.lose(999)
        counters.authentications.end("PLAIN", False)
        counters.authentications.end("MINE", True)
        for source in BLOCK_SOURCES:
            counters.stored.batches[source] += 1
        for hops in (
            counters.traffic.requests_in,
            counters.traffic.requests_out,
            counters.traffic.responses_in,
            counters.traffic.responses_out,
        ):
            hops[FETCH].frames += 1
            hops[999].frames += 1
            hops[1000].frames += 1
        try:
            families: list[Metric] = list(
                SampleCollector(lambda: collect(forebay), strict=True).collect()
            )
        finally:
            await forebay.stop()
            assert forebay.own_log is not None
            forebay.own_log.close()
        series = [(one.name, *one.labels.items()) for family in families for one in family.samples]
        assert len(series) == len(set(series)), "no series is there twice"
        return families

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def test_scrape_and_catalog_name_the_same_metrics(tmp_path: Path) -> None:
    """But for those of `forebay canary`, which is another process, of several workers, and of prometheus-client."""
    others = {metric.name for group in ("Canary", "Operating system") for metric in GROUPS[group]}
    others |= {"forebay_workers_attached", "forebay_keeper_missed_produces_total"}
    others |= {"forebay_worker_connections"}
    others |= {name for name in CATALOG if name.startswith("forebay_process_")}
    assert shown(tmp_path).keys() == CATALOG.keys() - others


def test_limits_used_by_alerts_are_as_configured(tmp_path: Path) -> None:
    families = shown(tmp_path)
    assert families["forebay_throttle_target_ratio"] == {0.35}
    assert families["forebay_throttle_rate_floor_bytes_per_second"] == {3 << 20}
    assert families["forebay_throttle_disk_limit_bytes_per_second"] == {60e6}
    assert families["forebay_throttle_disk_limit_requests_per_second"] == {3000}
    assert families["forebay_isolation_slots_floor"] == {5, 6}


def read_series(families: list[Metric]) -> dict[tuple[str, ...], float]:
    """Values by the sample's name and its labels' values."""
    return {
        (one.name, *one.labels.values()): one.value for family in families for one in family.samples
    }


def test_errors_are_named_and_counted_by_api(tmp_path: Path) -> None:
    series = read_series(scrape(tmp_path))
    assert series["forebay_response_errors_total", "OffsetCommit"] == 1
    assert series["forebay_response_errors_total", "Heartbeat"] == 0
    codes = {name[1:]: value for name, value in series.items() if "error_codes" in name[0]}
    assert codes == {("OffsetCommit", "NOT_COORDINATOR"): 1, ("Fetch", "unknown"): 1}
    assert series["forebay_relayed_request_seconds_count", "OffsetCommit"] == 1
    assert series["forebay_relayed_unanswered_total", "unknown"] == 1
    assert series["forebay_authentications_total", "PLAIN", "refused"] == 1
    assert series["forebay_authentications_total", "other", "accepted"] == 1


def test_series_of_closed_sets_exist_from_the_start(tmp_path: Path) -> None:
    """An increase from nothing to 1 is none for Prometheus' `increase`."""
    series = read_series(scrape(tmp_path)).keys()
    for name, values in METRIC_VALUES.items():
        if name != "forebay_worker_restarts_total":  # the supervisor's, here without one
            assert {(name, value) for value in values} <= series
    for api in ("Produce", "Fetch", "Metadata", "SaslAuthenticate", "unknown"):
        assert ("forebay_client_to_proxy_request_total", api) in series


def test_the_process_is_in_the_scrape() -> None:
    text = Exposition(list).render().decode()
    assert {one.name for one in GROUPS["Operating system"]} == set(
        re.findall(r"^(process_\w+) ", text, re.MULTILINE)
    )


def test_a_clone_has_the_commit_that_is_checked_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a linked work tree, with a packed reference, and with none."""
    monkeypatch.setattr("proxy.build_info.COMMIT_FILE", tmp_path / "none")
    monkeypatch.setattr("proxy.build_info.CLONE", tmp_path)
    git, linked = tmp_path / "main", tmp_path / ".git"
    steps = (
        ((git / "refs/heads/a", "0123abc\n"), "0123abc-clone"),
        ((git / "HEAD", "ref: refs/heads/b\n"), ""),
        ((git / "packed-refs", "# pack-refs\n4567def refs/heads/b\n"), "4567def-clone"),
        ((git / "HEAD", "89abcde\n"), "89abcde-clone"),
        ((linked, "nothing\n"), ""),
    )
    git.joinpath("refs/heads").mkdir(parents=True)
    git.joinpath("HEAD").write_text("ref: refs/heads/a\n")
    linked.write_text(f"gitdir: {git}\n")
    for (path, text), commit in steps:
        path.write_text(text)
        find_commit.cache_clear()
        assert find_commit() == commit
    find_commit.cache_clear()


def test_the_build_is_named_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "commit.txt").write_text("0123abc\n")
    monkeypatch.setattr("proxy.build_info.COMMIT_FILE", tmp_path / "commit.txt")
    find_commit.cache_clear()
    try:
        assert find_commit() == "0123abc"
        labels = {
            label
            for family in scrape(tmp_path)
            for one in family.samples
            for label in one.labels.items()
        }
        assert ("commit_id", "0123abc") in labels
    finally:
        find_commit.cache_clear()


def test_connections_are_told_by_the_name_of_their_listener(tmp_path: Path) -> None:
    families = {family.name: family.samples for family in scrape(tmp_path)}
    for name in ("forebay_listener_connections", "forebay_listener_accepted"):
        assert {one.labels["listener"] for one in families[name]} == {
            "clients",
            "tools",
            "unread",
        }
