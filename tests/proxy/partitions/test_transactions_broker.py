"""The follower of transactions compared with a real broker: the same LSO, the same aborted lists.

All that the follower sees is what a read_uncommitted Fetch returns, and each of its answers is held against one
read_committed Fetch of the broker.
"""

import time
from random import Random
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka import Producer

from protocol.batch import scan_batches
from proxy.partitions.transactions import Transactions
from tests.e2e.transactional import COMMITTED, TIMEOUT_S, Writer
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, RawReader

if TYPE_CHECKING:
    from tests.kit.broker.kafka import KafkaCluster

pytestmark = pytest.mark.e2e

STEPS = 40


class Shown(NamedTuple):
    """What one read_committed Fetch said; `end` is the offset after its last batch."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]]
    end: int


class Beside:
    """The follower, and the broker to compare it with."""

    def __init__(self, client: RawClient, topic: str) -> None:
        self.client = client
        self.reader = RawReader(client, topic)
        self.reader.read_past_errors()
        self.followed = Transactions(1000, 1.0)

    def ask(self, offset: int, max_bytes: int) -> Shown:
        asked = self.reader.asked()._replace(fetch_offset=offset, max_bytes=max_bytes)
        ((said, records),) = self.client.fetch(
            13, [asked], max_wait_ms=0, isolation_level=COMMITTED
        )
        assert said.error_code == 0
        batches = scan_batches(records, 0, len(records))
        end = batches[-1].last_offset + 1 if batches else offset
        offsets = said.high_watermark, said.last_stable_offset, said.log_start_offset
        return Shown(*offsets, [(int(one), int(first)) for one, first in said.aborted or ()], end)

    def follow(self, start: int) -> int:
        """Hand on what can be read from `start`; where it ends."""
        self.reader.offset, self.reader.raw = start, bytearray()
        self.reader.poll()
        raw = bytes(self.reader.raw)
        self.followed.observed(raw, scan_batches(raw, 0, len(raw)), start, self.reader.offset)
        return self.reader.offset

    def begin(self) -> int:
        """Follow anew from where the broker shows its LSO now, as after a restart or an election; where that is."""
        self.followed = Transactions(1000, 1.0)
        shown = self.ask(0, 1)
        self.followed.shown(*shown[:3], 0.0)
        return shown.last_stable_offset

    def compare(self, fetch_offset: int, max_bytes: int) -> int | None:
        """Length of the aborted list of one fetch, which must be the broker's; None where it is not known."""
        before = self.ask(fetch_offset, max_bytes)
        if self.followed.end >= before.high_watermark:
            stable = self.followed.last_stable_offset(before.high_watermark)
            deadline = time.monotonic() + TIMEOUT_S
            while before.last_stable_offset != stable:
                # behind a marker the broker moves its HW first (UnifiedLog.updateHighWatermarkMetadata)
                assert stable is not None
                assert before.last_stable_offset < stable
                assert time.monotonic() < deadline
                before = self.ask(fetch_offset, max_bytes)
        aborted = self.followed.aborted(fetch_offset, before.end)
        if aborted is None:
            # markers are written behind the answer
            assert (
                fetch_offset < self.followed.known_from or self.followed.end < before.high_watermark
            )
            return None
        # The broker's upper bound is an index entry's (LogSegment.fetchUpperBoundOffset): it may list more.
        wanted = (
            [one for one in before.aborted if one[1] < before.end]
            if before.end > fetch_offset
            else []
        )
        assert aborted == wanted
        return len(aborted)


class Life:
    """Transactional producers that commit, abort and are fenced in the middle, and one that is not."""

    def __init__(self, bootstrap: str, topic: str, seed: int) -> None:
        self.rng = Random(seed)
        self.topic = topic
        self.writers = [Writer(bootstrap, topic, name) for name in ("one", "two", "three")]
        self.plain = Producer({"bootstrap.servers": bootstrap})

    def step(self) -> None:
        writer = self.rng.choice(self.writers)
        step = self.rng.choice(
            ("write", "write", "write", "commit", "abort", "abort", "fence", "plain")
        )
        if step == "write":
            writer.write(self.rng.randint(1, 3))
        elif step in ("commit", "abort"):
            writer.end(commits=step == "commit")
        elif step == "fence":
            writer.renew()
        else:
            self.plain.produce(self.topic, b"value", partition=0)
            assert self.plain.flush(TIMEOUT_S) == 0


def test_the_follower_says_what_the_broker_says(broker: "KafkaCluster") -> None:
    topic = create_topic(broker.direct)
    life = Life(broker.direct, topic, 890)
    rng = life.rng
    with RawClient(broker.direct) as client:
        beside = Beside(client, topic)
        beside.begin()
        seen = 0
        lists: list[int | None] = []
        for _ in range(STEPS):
            life.step()
            seen = beside.follow(seen)
            lists += [
                beside.compare(rng.randint(0, seen), rng.choice((1, 200, 1000, 1 << 20)))
                for _ in range(4)
            ]
        assert beside.followed.known_from == 0
        assert sum(length or 0 for length in lists) > 50


def test_follower_begun_midway_agrees_with_the_broker(broker: "KafkaCluster") -> None:
    """Begun at an LSO below which nothing is open, but above which transactions end that began below it."""
    topic = create_topic(broker.direct)
    life = Life(broker.direct, topic, 891)
    with RawClient(broker.direct) as client:
        beside = Beside(client, topic)
        lists: list[int | None] = []
        doubted = 0
        for _ in range(STEPS):
            life.step()
            begun = beside.begin()
            seen = beside.follow(begun)
            doubted += beside.followed.known_from > begun
            lists += [beside.compare(offset, 1 << 20) for offset in range(begun, seen)]
        assert doubted > 0
        assert sum(length is not None for length in lists) > 50
