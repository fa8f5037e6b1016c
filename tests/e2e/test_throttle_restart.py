"""A restart of Forebay on a busy disk: who was at the tail goes on at once, who was far behind waits as before.

The broker is real, the disk is not (fake_disks.py). Owns one pair. Must not know how the throttle tells them apart.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.e2e.fake_disks import FakeDisks, build_throttle
from tests.e2e.test_throttle import SMALL_BYTES, make_busy, produce, throttled
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, RawReader, read_all
from tests.kit.sidecar import Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

MISSED_RECORDS = 3000
OLD_RECORDS = 6000
PATIENCE_S = 60.0


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[FakeDisks]:
    with FakeDisks(tmp_path / "diskstats", ["sdx"]) as running:
        yield running


@pytest.fixture
def pair(disks: FakeDisks, proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(
        settings={"throttle": build_throttle(disks, startGrace="60s")}, shared=proxied
    ) as running:
        yield running


def test_who_was_at_the_tail_goes_on_who_was_not_waits(pair: Pair, disks: FakeDisks) -> None:
    tailed, old = create_topic(pair.direct), create_topic(pair.direct)
    produce(pair.direct, old, 0, OLD_RECORDS)
    with RawClient(pair.through, "tailing") as client:
        produce(pair.through, tailed, 0, 10)
        at_the_tail = RawReader(client, tailed).settle().offset
    pair.sidecar.stop(signal.SIGKILL)
    produce(pair.direct, tailed, 0, MISSED_RECORDS)
    pair.sidecar.start()
    make_busy(pair, disks.disks["sdx"])
    with RawClient(pair.through, "tailing") as client, RawClient(pair.through, "lagging") as other:
        tail, lagging = RawReader(client, tailed), RawReader(other, old)
        tail.max_bytes = lagging.max_bytes = SMALL_BYTES
        tail.read_past_errors()
        tail.offset = at_the_tail
        tail.raw.clear()
        deadline = time.monotonic() + PATIENCE_S
        while tail.offset < at_the_tail + MISSED_RECORDS:
            assert time.monotonic() < deadline
            tail.poll(max_wait_ms=200)
        assert bytes(tail.raw) == read_all(pair.direct, tailed)[-len(tail.raw) :]
        assert throttled(pair, "delayed") == 0
        lagging.read_past_errors()
        while throttled(pair, "delayed") == 0:
            assert time.monotonic() < deadline, "memory would not hold this"
            produce(pair.through, tailed, 0, 100)
            tail.poll(max_wait_ms=200)
            lagging.offset = 0
            lagging.poll(max_wait_ms=20)
