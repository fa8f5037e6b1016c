"""Bytes that memory would have served, estimated in observe mode: at most the broker's bytes."""

from __future__ import annotations

import pytest

from blockcache.cache import BlockCache
from metrics.access_log_schema import OBSERVED
from protocol.fetch import FetchPartition
from proxy.fetch.hit_estimate import UNBOUNDED, peek_would_hit, plan_observed
from proxy.partitions.readable import PartitionStatus, ReadState
from proxy.partitions.table import Partition, Partitions
from proxy.partitions.topics import Topic
from tests.kit.cache_batches import build_batch
from tests.proxy.followed_partition import LEADERS

MIB = 1 << 20
TOPIC_ID = bytes(15) + b"\x01"


@pytest.fixture
def partition() -> Partition:
    """Offsets 10 to 19 stored, the tail behind them."""
    partitions = Partitions(BlockCache(MIB, observe=True), 8, 8)
    topic = Topic(TOPIC_ID, "orders")
    topic.leaders = LEADERS
    followed = partitions.follow(topic, 0)
    assert followed is not None
    run = build_batch(10, 5) + build_batch(15, 5)
    partitions.cache.insert(followed.slot, run, 0, len(run), 10)
    followed.tail = 20
    cache_of[followed] = partitions.cache
    return followed


cache_of: dict[Partition, BlockCache] = {}


def peek(partition: Partition, state: ReadState, offset: int, max_bytes: int = MIB) -> int:
    asked = FetchPartition(TOPIC_ID, 0, -1, offset, -1, -1, max_bytes)
    return peek_would_hit(cache_of[partition], PartitionStatus(asked, partition, state, "", 20))


def test_stored_records_are_estimated_in_whole_batches(partition: Partition) -> None:
    one = len(build_batch(10, 5))
    assert peek(partition, ReadState.READABLE, 10) == 2 * one
    assert peek(partition, ReadState.READABLE, 10, max_bytes=2 * one - 1) == one
    assert peek(partition, ReadState.UNCONFIRMED, 15) == one, (
        "nobody keeps a lease, a proof would have been asked for"
    )


def test_all_records_at_the_tail_are_hits(partition: Partition) -> None:
    assert (
        peek(partition, ReadState.AT_END, 20)
        == peek(partition, ReadState.IN_TRANSIT, 20)
        == UNBOUNDED
    )
    assert peek(partition, ReadState.UNCONFIRMED, 20) == UNBOUNDED
    assert peek(partition, ReadState.UNCONFIRMED, 5) == 0


@pytest.mark.parametrize("state", [ReadState.MISS, ReadState.PASS])
def test_miss_or_pass_is_no_hit(partition: Partition, state: ReadState) -> None:
    assert peek(partition, state, 10) == 0


def test_estimate_counts_the_brokers_bytes(
    partition: Partition,
) -> None:
    asked = FetchPartition(TOPIC_ID, 0, -1, 20, -1, -1, MIB)
    told = plan_observed(
        PartitionStatus(asked, partition, ReadState.AT_END, "", 20), UNBOUNDED, 700, 5
    )
    assert (told.result, told.reason, told.size_bytes, told.would_hit_bytes) == (
        *OBSERVED,
        700,
        700,
    )
    assert told.timestamp_ms == 5
    told = plan_observed(
        PartitionStatus(asked, partition, ReadState.MISS, "cold", -1), 0, 700, None
    )
    assert (told.result, told.reason, told.would_hit_bytes) == (*OBSERVED, 0)
    told = plan_observed(
        PartitionStatus(asked, partition, ReadState.PASS, "old-format", -1), 0, 700, None
    )
    assert (told.result, told.reason, told.would_hit_bytes) == ("pass", "old-format", None)
