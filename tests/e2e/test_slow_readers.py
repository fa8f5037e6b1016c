"""Clients that ask and do not read, while the arena is overwritten below their answers.

Owns a small arena, clients that do not read, and the comparison with a direct read. Must not
know how an answer is kept; only that its bytes stay right and that it holds little of the arena.
"""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from protocol import batch, fetch
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, RawReader, explain, read_all
from tests.kit.sidecar import PATIENT_CACHE, Pair, ProxiedBroker
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

MIB = 1 << 20
ARENA_BYTES = 32 * MIB
BATCH_BYTES = 200_000
FIRST = 90
"""Batches in memory when the slow clients ask: well below the arena."""
OVERWRITES = 2
MORE = OVERWRITES * ARENA_BYTES // BATCH_BYTES
SLOW, APART = 3, 25
ASKED_BYTES = 6_000_000
"""Each: more than the kernel takes (tcp_wmem, 4 MiB), so that it is stuck; all: more than may be pinned, so that some
are copies.
"""
VERSION = 11
BLOCK_BYTES = ARENA_BYTES // 64
MOST = 0.9
PATIENCE_S = 20.0
TRIES = 5
HIT = ("hit", "")
PINNED, LIMBO = ("forebay_cache_pinned_bytes",), ("forebay_cache_limbo_bytes",)
HEAP = "forebay_in_flight_bytes", "response"
UNDELIVERED = "forebay_fetch_undelivered_partitions_total"


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(settings={"cache": PATIENT_CACHE | {"size": "32MiB"}}, shared=proxied) as running:
        yield running


class SlowClient(RawClient):
    """Takes no more than the kernel does for it, until `read_answer`."""

    def read_answer(self) -> bytes:
        """The records of one answer about one partition."""
        prefix = self._take(4)
        frame = prefix + self._take(int.from_bytes(prefix, "big"))
        (said,) = fetch.scan_response(frame, VERSION).partitions
        assert said.error_code == 0
        return frame[said.start : said.end]


def write(pair: Pair, topic: str, batches: int, seed: int) -> None:
    """One record a batch, every batch other bytes."""
    values = random.Random(seed)
    with RawClient(pair.through, "writer") as client:
        for _ in range(batches):
            client.produce(topic, batch_v2(1, value=values.randbytes(BATCH_BYTES)))


def write_below(tail: RawReader, pair: Pair, batches: int, seed: int) -> None:
    """Write while `tail` reads along, so that all of it is in memory and may be served."""
    end = tail.offset + batches
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write, pair, tail.topic.name, batches, seed)
        tail.read_to(end)
        writing.result(60)


class Gauges(threading.Thread):
    """Remembers the greatest value of a few gauges, and the last."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(daemon=True)
        self._pair = pair
        self._ended = threading.Event()
        self.most = dict.fromkeys((PINNED, LIMBO, HEAP), 0.0)
        self.last = dict(self.most)

    def run(self) -> None:
        while not self._ended.wait(0.05):
            samples = self._pair.sidecar.metrics()
            for name in self.most:
                self.last[name] = samples[name]
                self.most[name] = max(self.most[name], samples[name])

    def wait_until_pinned(self, patience_s: float = PATIENCE_S) -> bool:
        deadline = time.monotonic() + patience_s
        while not self._pair.sidecar.metrics()[PINNED]:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def end(self) -> None:
        self._ended.set()
        self.join(10)


def test_slow_readers_get_their_bytes_and_hold_little(pair: Pair) -> None:
    topic = create_topic(pair.direct)
    slow = [SlowClient(pair.through, "slow") for _ in range(SLOW)]
    with RawClient(pair.through, "good") as good:
        readers = [RawReader(client, topic, version=VERSION).settle() for client in slow]
        tail = RawReader(good, topic, version=VERSION).settle()
        write_below(tail, pair, FIRST, seed=1)
        before = pair.sidecar.fetch_counts("partitions").get(HIT, 0)
        for number, (client, reader) in enumerate(zip(slow, readers, strict=True)):
            asked = reader.asked()._replace(fetch_offset=APART * number, max_bytes=ASKED_BYTES)
            client.send_fetch(VERSION, [asked], max_wait_ms=500)
        gauges = Gauges(pair)
        assert gauges.wait_until_pinned(), "nothing is under way"
        gauges.start()
        hits = pair.sidecar.fetch_counts().get(HIT, 0)
        write_below(tail, pair, MORE, seed=2)
        hits = pair.sidecar.fetch_counts()[HIT] - hits
        assert gauges.last[LIMBO] > 0, "what they hold was overwritten but for their pins"
        assert pair.sidecar.fetch_counts("partitions")[HIT] >= before + 2, "the good client went on"
        whole = read_all(pair.direct, topic, version=VERSION)
        assert bytes(tail.raw) == whole, explain(bytes(tail.raw), whole)
        assert hits >= MOST * MORE * BATCH_BYTES, "and was served from memory"
        starts = [one.start for one in batch.scan_batches(whole, 0, len(whole))]
        for number, client in enumerate(slow):
            records, start = client.read_answer(), starts[APART * number]
            assert len(records) > ASKED_BYTES - 2 * BATCH_BYTES
            assert records == whole[start : start + len(records)]
        gauges.end()
        assert 0 < gauges.most[PINNED] <= ARENA_BYTES // 4 + BLOCK_BYTES
        assert gauges.most[LIMBO] <= gauges.most[PINNED]
        assert gauges.most[HEAP] >= ASKED_BYTES - 2 * BATCH_BYTES, (
            "copies are charged as what brokers answer is"
        )
        for name in (PINNED, LIMBO, HEAP):
            assert pair.sidecar.metrics()[name] == 0, "an answer that has left holds nothing"
    for client in slow:
        client.close()


def test_slow_readers_that_die_let_go(pair: Pair) -> None:
    topic = create_topic(pair.direct)
    slow = SlowClient(pair.through, "slow")
    reader = RawReader(slow, topic, version=VERSION).settle()
    # by another connection: for one that has read much the kernel has grown a large buffer
    with RawClient(pair.through, "good") as good:
        write_below(RawReader(good, topic, version=VERSION).settle(), pair, FIRST, seed=3)
    reader.offset = 0
    undelivered, tries = pair.sidecar.metrics()[UNDELIVERED,], 1
    asked = [reader.asked()._replace(max_bytes=ASKED_BYTES)]
    slow.send_fetch(VERSION, asked, max_wait_ms=500)
    while not Gauges(pair).wait_until_pinned(
        patience_s=PATIENCE_S / TRIES
    ):  # a lapsed lease: the broker answered
        slow.abort()
        undelivered += 1
        tries += 1
        assert tries < TRIES, "nothing is under way"
        slow = SlowClient(pair.through, "slow")
        RawReader(slow, topic, version=VERSION).settle()
        slow.send_fetch(VERSION, asked, max_wait_ms=500)
    slow.abort()
    deadline = time.monotonic() + PATIENCE_S
    while pair.sidecar.metrics()[PINNED] and time.monotonic() < deadline:
        time.sleep(0.05)
    metrics = pair.sidecar.metrics()
    assert [metrics[name] for name in (PINNED, LIMBO, HEAP)] == [0, 0, 0]
    assert metrics[UNDELIVERED,] == undelivered + 1
