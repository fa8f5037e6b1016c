"""A broker with two log directories on two disks, one of them busy: only what lies on that one waits.

Owns one broker and, in turn, two Forebays before it: one sees the log directories, the other asks the broker
where partitions lie. The disks are lines of a file that the test writes (fake_disks.py).
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka import Producer

from tests.e2e.fake_disks import FLOOR_BYTES, FakeDisks, build_throttle
from tests.kit.broker.kafka import KafkaCluster
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST, Listener
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, RawReader, explain, read_all
from tests.kit.sidecar import Sidecar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

pytestmark = pytest.mark.e2e

BUSY, IDLE = "sdx", "sdy"
COUNT, PARTITIONS = 2500, 6
BITE_BYTES = 200_000
SURGE_BYTES = 2 * BITE_BYTES
"""Beyond the floor's rate: one bite that was saved up for, one that is on its way."""
WAYS = ("directory", "brokerDirectory")
TIMEOUT_S = 60.0


class Jbod(NamedTuple):
    """`directories` by the disk that they stand for; `listen` is where Forebay is to be."""

    broker: KafkaCluster
    disks: FakeDisks
    directories: dict[str, Path]
    listen: str

    def broker_directories(self, topic: str) -> list[tuple[str, Path]]:
        """(disk, partition's directory) of a topic's partitions."""
        return [
            (name, path)
            for name, base in self.directories.items()
            for path in base.glob(f"{topic}-*")
        ]


@pytest.fixture(scope="module")
def jbod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jbod]:
    base = tmp_path_factory.mktemp("jbod")
    directories = {BUSY: base / "one", IDLE: base / "two"}
    with contextlib.ExitStack() as stack:
        disks = stack.enter_context(FakeDisks(base / "diskstats", [BUSY, IDLE]))
        overrides = {"log.dirs": ",".join(map(str, directories.values()))}
        lease = stack.enter_context(lease_port())
        client = Listener("CLIENT", advertised=(HOST, lease.port))
        listeners = [client, Listener("CATCHUP", advertised=(HOST, lease.port))]
        broker = stack.enter_context(KafkaCluster(listeners=listeners, overrides=overrides))
        disks.disks[BUSY].busy = True
        yield Jbod(broker, disks, directories, f"{HOST}:{lease.port}")


def build_settings(disks: FakeDisks, places: list[dict[str, str]]) -> dict[str, Any]:
    """A throttle that looks often and has little to give to a busy disk."""
    return {"throttle": build_throttle(disks, places, ceiling=str(64 << 20), maxDelay="60s")}


def make_history(jbod: Jbod) -> tuple[str, dict[str, int]]:
    """A topic with records that no Forebay has seen, and one partition of it on each disk."""
    topic = create_topic(
        jbod.broker.direct, "two-disks-and-dashes-" + str(time.time_ns()), partitions=PARTITIONS
    )
    producer = Producer(
        {"bootstrap.servers": jbod.broker.direct, "linger.ms": 1, "batch.size": 16_000}
    )
    deadline = time.monotonic() + TIMEOUT_S
    while len(jbod.broker_directories(topic)) < PARTITIONS:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    found = {
        name: int(path.name.rpartition("-")[2]) for name, path in jbod.broker_directories(topic)
    }
    for partition in found.values():
        for number in range(COUNT):
            producer.produce(topic, b"%d-" % number + b"v" * 1000, partition=partition)
            producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    return topic, found


def open_reader(client: RawClient, topic: str, partition: int) -> RawReader:
    reader = RawReader(client, topic, partition=partition)
    reader.read_past_errors()
    reader.offset, reader.max_bytes = 0, BITE_BYTES
    reader.raw.clear()
    return reader


@pytest.mark.parametrize(("way", "laned"), list(zip(WAYS, (True, False), strict=True)))
def test_only_partitions_on_the_busy_disk_wait(jbod: Jbod, way: str, laned: bool) -> None:
    """`laned`: what is let through goes over the broker's second listener."""
    topic, partitions = make_history(jbod)
    places = [{"device": name, way: str(path)} for name, path in jbod.directories.items()]
    entry = {"listen": jbod.listen}
    for key, listener in (("upstream", "CLIENT"), ("catchUpUpstream", "CATCHUP"))[: 1 + laned]:
        entry[key] = "{}:{}".format(*jbod.broker.address(listener))
    with Sidecar([entry], build_settings(jbod.disks, places)) as sidecar:
        rate = ("forebay_throttle_rate_bytes_per_second", BUSY)
        deadline = time.monotonic() + TIMEOUT_S
        while sidecar.metrics()[rate] > FLOOR_BYTES:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        read_both(jbod, sidecar, topic, partitions)
        assert (sidecar.metrics()["forebay_lane_requests_total",] > 0) == laned


def read_both(jbod: Jbod, sidecar: Sidecar, topic: str, partitions: dict[str, int]) -> None:
    """One client asks for both at a time: the idle disk's comes at once, and the busy one's in its turn."""
    with RawClient(sidecar.bootstrap, "both") as client:
        slow, fast = (open_reader(client, topic, partitions[name]) for name in (BUSY, IDLE))
        behind = -1
        started = time.monotonic()
        while slow.offset < COUNT:
            asked = [slow.asked(), fast.asked()]
            answers = client.fetch(slow.version, asked, max_wait_ms=200)
            for reader, (said, records) in zip((slow, fast), answers, strict=True):
                reader.take(said, records)
            if behind < 0 and fast.offset >= COUNT:
                behind, read_bytes = slow.offset, len(slow.raw)
                most_bytes = FLOOR_BYTES * (time.monotonic() - started) + SURGE_BYTES
                assert read_bytes <= most_bytes, "a busy disk gives no more than its floor"
        assert 0 <= behind < COUNT, "the busy disk's partition was not read when the other was"
        for reader, name in ((slow, BUSY), (fast, IDLE)):
            direct = read_all(jbod.broker.direct, topic, partition=partitions[name])
            assert explain(bytes(reader.raw), direct) == ""
    metrics = sidecar.metrics()
    assert metrics["forebay_throttle_delayed_total", BUSY] > 0
    assert metrics["forebay_throttle_delayed_total", IDLE] == 0
    assert metrics["forebay_throttle_granted_total", IDLE] > 0, "it was known to lie there"
    shown = json.loads(sidecar.admin("/throttle"))["disks"]
    assert [shown[name]["sampled"] for name in (BUSY, IDLE)] == [True, True]
