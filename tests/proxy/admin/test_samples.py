"""The scrape shows every metric of the catalog, and no other."""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING

import uvloop

from metrics.access_log_schema import BLOCK_SOURCES
from metrics.catalog import CATALOG, GROUPS
from metrics.collector import SampleCollector
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
        counters.stored.invalidations["epoch"] += 1
        counters.clients.disconnects["client"] += 1
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
    """But for those of `forebay canary`, which is another process."""
    others = {metric.name for metric in GROUPS["Canary"]}
    assert shown(tmp_path).keys() == CATALOG.keys() - others


def test_limits_used_by_alerts_are_as_configured(tmp_path: Path) -> None:
    families = shown(tmp_path)
    assert families["forebay_throttle_target_ratio"] == {0.35}
    assert families["forebay_throttle_rate_floor_bytes_per_second"] == {3 << 20}
    assert families["forebay_throttle_disk_limit_bytes_per_second"] == {60e6}
    assert families["forebay_throttle_disk_limit_requests_per_second"] == {3000}
    assert families["forebay_isolation_slots_floor"] == {5, 6}


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
