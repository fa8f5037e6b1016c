"""The follower of transactions beside a real broker: the same last stable offset, the same aborted lists.

Transactional producers commit, abort and are fenced in the middle; all that the follower sees is what a
read_uncommitted Fetch returns, and each of its answers is held against one read_committed Fetch of the broker.
"""

from random import Random
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka import Producer

from protocol.batch import scan_batches
from proxy.transactions import Transactions
from tests.broker.topics import create_topic
from tests.e2e.raw_fetch import RawClient, RawReader
from tests.e2e.transactional import COMMITTED, TIMEOUT_S, Writer

if TYPE_CHECKING:
    from tests.broker.kafka import KafkaCluster

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
        ((said, records),) = self.client.fetch(13, [asked], max_wait_ms=0, isolation_level=COMMITTED)
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

    def compare(self, fetch_offset: int, max_bytes: int) -> int:
        """Length of the aborted list of one fetch, which must be the broker's."""
        before = self.ask(fetch_offset, max_bytes)
        if self.followed.end >= before.high_watermark:
            assert self.followed.last_stable_offset(before.high_watermark) == before.last_stable_offset
        aborted = self.followed.aborted(fetch_offset, before.end)
        if aborted is None:
            assert self.followed.end < before.high_watermark  # markers are written behind the answer
            return 0
        # The broker's upper bound is an index entry's (LogSegment.fetchUpperBoundOffset): it may list more.
        wanted = [one for one in before.aborted if one[1] < before.end] if before.end > fetch_offset else []
        assert aborted == wanted
        return len(aborted)


def test_the_follower_says_what_the_broker_says(broker: "KafkaCluster") -> None:
    rng = Random(890)
    topic = create_topic(broker.direct)
    writers = [Writer(broker.direct, topic, name) for name in ("one", "two", "three")]
    plain = Producer({"bootstrap.servers": broker.direct})
    with RawClient(broker.direct) as client:
        beside = Beside(client, topic)
        shown = beside.ask(0, 1)
        beside.followed.shown(*shown[:3], 0.0)
        seen, listed = 0, 0
        for _ in range(STEPS):
            writer = rng.choice(writers)
            step = rng.choice(("write", "write", "write", "commit", "abort", "abort", "fence", "plain"))
            if step == "write":
                writer.write(rng.randint(1, 3))
            elif step in ("commit", "abort"):
                writer.end(commits=step == "commit")
            elif step == "fence":
                writer.renew()
            else:
                plain.produce(topic, b"value", partition=0)
                assert plain.flush(TIMEOUT_S) == 0
            seen = beside.follow(seen)
            for _ in range(4):
                listed += beside.compare(rng.randint(0, seen), rng.choice((1, 200, 1000, 1 << 20)))
        assert beside.followed.known_from == 0
        assert listed > 50
