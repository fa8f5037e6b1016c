"""Clients name leader epochs that the broker does not know: that is between them and the broker.

A client's Metadata may be from another cluster, or simply wrong. Its Fetch is answered with UNKNOWN_LEADER_EPOCH, and
whoever else reads the partition is served from memory as before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from protocol.errors import ErrorCode
from protocol.fetch import TOPIC_IDS_FROM, FetchPartition
from tests.e2e.test_invalidation import CACHE, RECORDS, check_hits, check_same, tail_while, write
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, RawReader, TopicWords
from tests.kit.sidecar import Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

VERSIONS = pytest.mark.parametrize("version", [12, 13], ids=["by-name", "by-id"])
TOO_HIGH = 1000


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(settings={"cache": CACHE}, shared=proxied) as running:
        yield running


def ask_too_high(client: RawClient, topic: TopicWords, version: int, offset: int) -> None:
    """One Fetch with an epoch that the broker has never had, and its answer."""
    key = topic.id if version >= TOPIC_IDS_FROM else topic.name
    asked = FetchPartition(key, 0, topic.epochs[0] + TOO_HIGH, offset, -1, -1, 1 << 20)
    ((said, records),) = client.fetch(version, [asked], max_wait_ms=0)
    assert said.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert not records


@VERSIONS
def test_an_epoch_too_high_while_others_tail(pair: Pair, version: int) -> None:
    """One such Fetch of a partition that is served from memory; its tailing consumer has hits again at once."""
    topic = create_topic(pair.direct)
    with RawClient(pair.through) as client, RawClient(pair.through) as mistaken:
        reader = RawReader(client, topic).settle()
        tail_while(reader, lambda: write(pair, topic, "before"), RECORDS)
        ask_too_high(mistaken, reader.topic, version, offset=0)
        check_hits(pair, reader, topic, "after", 2 * RECORDS)
    check_same(pair, topic)


@VERSIONS
def test_an_epoch_too_high_from_the_first_reader(pair: Pair, version: int) -> None:
    """Who may read the topic asks so for a partition of which Forebay knows nothing yet; the next consumer tails it
    from memory.
    """
    topic = create_topic(pair.direct, partitions=2)
    with RawClient(pair.through) as mistaken:
        RawReader(mistaken, topic, partition=1, version=version).settle()
        for _ in range(2):
            ask_too_high(mistaken, mistaken.topic(topic), version, offset=0)
    with RawClient(pair.through) as client:
        check_hits(pair, RawReader(client, topic), topic, "after", RECORDS)
    check_same(pair, topic)


def test_an_epoch_too_high_again_and_again(pair: Pair) -> None:
    """A client that does not learn asks before each Fetch of the tailing consumer."""
    topic = create_topic(pair.direct)
    with RawClient(pair.through) as client, RawClient(pair.through) as mistaken:
        reader = RawReader(client, topic).settle()

        def write_and_mistake() -> None:
            for turn in range(4):
                ask_too_high(mistaken, reader.topic, 12 + turn % 2, offset=reader.offset)
                write(pair, topic, f"turn-{turn}", RECORDS // 4)

        tail_while(reader, write_and_mistake, RECORDS)
        check_hits(pair, reader, topic, "after", 2 * RECORDS)
    check_same(pair, topic)
