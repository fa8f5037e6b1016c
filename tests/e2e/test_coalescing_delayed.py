"""Laggards at the same offsets behind a busy disk: who is let go first reads for all, and is charged once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.e2e.fake_disks import FLOOR_BYTES, FakeDisks, build_throttle
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, RawReader, read_all
from tests.kit.sidecar import Pair, ProxiedBroker
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

LAGGARDS = 4
BATCHES = 60
BITE_BYTES = 120_000
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def pair(disks: FakeDisks, proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(settings={"throttle": build_throttle(disks)}, shared=proxied) as running:
        yield running


def test_the_disk_is_asked_once_for_all_who_wait_for_the_same(pair: Pair, disks: FakeDisks) -> None:
    topic = create_topic(pair.direct)
    with RawClient(pair.direct) as writer:
        for _ in range(BATCHES):
            writer.produce(topic, batch_v2(2, value=b"old" * 5000))
    whole = read_all(pair.direct, topic)

    def count(name: str, *labels: str) -> float:
        return pair.sidecar.metrics()[f"forebay_{name}", *labels]

    with ExitStack() as stack, ThreadPoolExecutor(LAGGARDS) as pool:
        clients = [
            stack.enter_context(RawClient(pair.through, f"laggard-{number}"))
            for number in range(LAGGARDS)
        ]
        readers = [RawReader(client, topic) for client in clients]
        for reader in readers:
            reader.read_past_errors()
            reader.offset, reader.max_bytes, reader.received_bytes = 0, BITE_BYTES, 0
            reader.raw.clear()
        disks.disks["sdx"].busy = True
        deadline = time.monotonic() + PATIENCE_S
        while count("throttle_rate_bytes_per_second", "sdx") > FLOOR_BYTES:
            assert time.monotonic() < deadline, "the controller goes to its floor"
            time.sleep(0.05)
        read_before = count("throttle_miss_bytes_total", "sdx"), count("fetch_shared_bytes_total")
        for raw in pool.map(lambda reader: reader.read_to(2 * BATCHES), readers):
            assert raw == whole
        read = count("throttle_miss_bytes_total", "sdx") - read_before[0]
        shared = count("fetch_shared_bytes_total") - read_before[1]
        received = sum(reader.received_bytes for reader in readers)
    disks.disks["sdx"].busy = False
    assert read + shared == received
    assert read <= 0.6 * received, f"{read:.0f} bytes from the disk for {received}"
