"""The lab in short, without root: a broker whose listeners block on a played disk, with and without Forebay.

The load is the lab's own. Figures are medians, and bars wide: what is shown here is that each part does its
work; what it is worth is the lab's to say. A quiet phase is the measure of a polluted one, so nothing else runs beside.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from bench.pollution.figures import laggards_between, latency_between
from bench.pollution.lab import Crew
from bench.pollution.phases import sleep_until
from bench.pollution.series import NS, read_rows
from tests.bench.pollution.slow_listener import SlowDisk, SlowListener
from tests.kit.broker.kafka import KafkaBroker
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST, Listener
from tests.kit.broker.topics import create_topic
from tests.kit.sidecar import Sidecar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.e2e, pytest.mark.alone]

TOPIC, PARTITIONS, LAGGARDS, RATE = "orders", 4, 4, 200
BACKLOG_BYTES = 96 << 20
DISK_RATE = 20e6
TARGET = 0.6
JOIN_S, QUIET_S, POLLUTED_S, SETTLED_S = 4.0, 3.0, 12.0, 5.0


class Ways(NamedTuple):
    """Addresses of the slow listeners: clients', Forebay's, the second."""

    main: str
    behind: str
    catch_up: str
    forebay_port: int
    disk: SlowDisk


class Felt(NamedTuple):
    """Medians in ms, laggards' MB/s and the disk's share of time, settled."""

    produce_quiet: float
    produce: float
    tail_quiet: float
    tail: float
    laggards_mb_s: float
    util: float


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ways]:
    folder = tmp_path_factory.mktemp("short")
    with ExitStack() as stack:
        leases = [stack.enter_context(lease_port()) for _ in range(4)]
        main, behind, catch_up, forebay = (lease.port for lease in leases)
        advertised = {"MAIN": main, "BEHIND": forebay, "CATCHUP": catch_up}
        listeners = [Listener(name, advertised=(HOST, port)) for name, port in advertised.items()]
        broker = stack.enter_context(KafkaBroker(listeners=listeners))
        disk = stack.enter_context(SlowDisk(folder / "diskstats", "played", DISK_RATE))
        slow = {"MAIN": main, "BEHIND": behind, "CATCHUP": catch_up}
        opened = [SlowListener(port, broker.address(name), disk) for name, port in slow.items()]
        for one in opened:
            stack.callback(one.close)
        create_topic(broker.direct, TOPIC, partitions=PARTITIONS)
        with Crew(folder / "fill.log") as crew:
            words = [
                "producing",
                "--bootstrap",
                broker.direct,
                "--topic",
                TOPIC,
                "--client",
                "fill",
            ]
            words += [
                "--partitions",
                str(PARTITIONS),
                "--size",
                "1024",
                "--fill-bytes",
                str(BACKLOG_BYTES),
            ]
            crew.start(words)
            crew.finish(60)
        addresses = [one.address for one in opened]
        yield Ways(addresses[0], addresses[1], addresses[2], forebay, disk)


def run(ways: Ways, folder: Path, bootstrap: str) -> Felt:
    """A quiet phase and a polluted one."""
    start = time.monotonic_ns() + int(JOIN_S * NS)
    polluted = start + int(QUIET_S * NS)
    settled, end = polluted + int((POLLUTED_S - SETTLED_S) * NS), polluted + int(POLLUTED_S * NS)
    at = ["--bootstrap", bootstrap, "--topic", TOPIC]
    through = [*at, "--start-ns", str(start), "--end-ns", str(end)]
    sent = [
        "--partitions",
        str(PARTITIONS),
        "--size",
        "1024",
        "--rate",
        str(RATE),
        "--client",
        "producer",
    ]
    ends = ",".join([str(BACKLOG_BYTES // 1024 // PARTITIONS)] * PARTITIONS)
    lag = [
        "--ends",
        ends,
        "--laggards",
        str(LAGGARDS),
        "--start-ns",
        str(polluted),
        "--end-ns",
        str(end),
    ]
    with Crew(folder / "load.log") as crew:
        crew.start(["producing", *through, *sent, "--out", str(folder / "producer")])
        crew.start(["tailing", *through, "--client", "tail", "--out", str(folder / "tail")])
        crew.start(["lagging", *at, *lag, "--out", str(folder / "laggards")])
        sleep_until(settled)
        busy_s = ways.disk.busy_s
        sleep_until(end)
        busy_s = ways.disk.busy_s - busy_s
        crew.finish(30)
    producer, tail = read_rows(folder / "producer", 3), read_rows(folder / "tail", 2)
    phases = [(start, polluted), (polluted, end)]
    medians = [
        float(np.median(latency_between(rows, *one))) for rows in (producer, tail) for one in phases
    ]
    rates = laggards_between(read_rows(folder / "laggards", 4), LAGGARDS, settled, end)
    felt: tuple[Any, ...] = (*medians, sum(rates), busy_s / SETTLED_S)
    return Felt._make(felt)


def serve(ways: Ways, **changed: Any) -> Sidecar:
    """Forebay before the slow listeners, with all its mechanisms unless changed."""
    entry = {"listen": f"{HOST}:{ways.forebay_port}", "upstream": ways.behind}
    entry["catchUpUpstream"] = ways.catch_up
    throttle = {
        "target": TARGET,
        "disks": [{"device": "played"}],
        "diskstatsFile": str(ways.disk.path),
    }
    return Sidecar([entry], {"cache": {"size": "32MiB"}, "throttle": throttle, **changed})


def test_laggards_hang_the_plain_broker(ways: Ways, tmp_path: Path) -> None:
    felt = run(ways, tmp_path, ways.main)
    assert felt.produce > 10 * felt.produce_quiet, felt
    assert felt.tail > 10 * felt.tail_quiet, felt
    assert felt.util > TARGET, felt


def test_nobody_notices_them_through_forebay(ways: Ways, tmp_path: Path) -> None:
    with serve(ways) as sidecar:
        felt = run(ways, tmp_path, sidecar.bootstrap)
    assert felt.produce <= max(1.3 * felt.produce_quiet, felt.produce_quiet + 10), felt
    assert felt.tail <= max(1.3 * felt.tail_quiet, felt.tail_quiet + 10), felt
    assert felt.util <= 0.8, felt
    assert felt.laggards_mb_s >= 0.25 * DISK_RATE / 1e6, felt
