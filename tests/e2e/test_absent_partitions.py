"""Clients ask for partitions that the broker does not have: that must cost those that it has nothing.

Forebay follows a bounded number of partitions. Whoever may read a topic can name any number in it; what the broker
answers with UNKNOWN_TOPIC_OR_PARTITION takes no place among them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from protocol.errors import ErrorCode
from protocol.fetch import TOPIC_IDS_FROM, FetchPartition
from tests.e2e.test_invalidation import CACHE, RECORDS, check_hits, check_same
from tests.kit.broker.topics import create_topic
from tests.kit.frames import PRODUCE_VERSION
from tests.kit.raw_fetch import RawClient, RawReader
from tests.kit.sidecar import Pair, ProxiedBroker
from tests.protocol import oracle
from tests.protocol.batches import batch_v2
from tests.protocol.golden_capture import produce_body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.e2e

WATCHED = 8
"""limits.watchedPartitions; of partitions twice as many are followed."""
MANY = 3000
ABSENT = range(100, 100 + 4 * WATCHED)


@pytest.fixture
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(
        settings={"cache": CACHE, "limits": {"watchedPartitions": WATCHED}}, shared=proxied
    ) as running:
        yield running


def fetch_absent(client: RawClient, topic: str, version: int) -> None:
    """One at a time, on a connection that may read the topic."""
    reader = RawReader(client, topic, version=version).settle()
    key = reader.topic.id if version >= TOPIC_IDS_FROM else topic
    for index in ABSENT:
        asked = FetchPartition(key, index, -1, 0, -1, -1, 1 << 20)
        ((said, _),) = client.fetch(version, [asked], max_wait_ms=0)
        assert said.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def fetch_by_name(client: RawClient, topic: str) -> None:
    fetch_absent(client, topic, 12)


def fetch_by_id(client: RawClient, topic: str) -> None:
    fetch_absent(client, topic, 13)


def produce_absent(client: RawClient, topic: str) -> None:
    """One at a time, to a topic that Forebay knows."""
    RawReader(client, topic).settle()
    body = produce_body(PRODUCE_VERSION, topic, UUID(int=0), batch_v2())
    (entry,) = body.topic_data
    (partition,) = entry.partition_data
    for index in ABSENT:
        data = (replace(entry, partition_data=(replace(partition, index=index),)),)
        answer = client.call(oracle.request_frame(replace(body, topic_data=data)))
        (said,) = oracle.read_response(0, PRODUCE_VERSION, answer)[1].responses
        assert int(said.partition_responses[0].error_code) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def produce_many_absent(client: RawClient, topic: str) -> None:
    """Thousands in one request, on a connection that never read the topic; somebody else made Forebay know it."""
    with RawClient("{}:{}".format(*client.peer)) as reader:
        RawReader(reader, topic).settle()
    body = produce_body(PRODUCE_VERSION, topic, UUID(int=0), batch_v2())
    (entry,) = body.topic_data
    (partition,) = entry.partition_data
    many = tuple(replace(partition, index=index) for index in range(100, 100 + MANY))
    answer = client.call(
        oracle.request_frame(replace(body, topic_data=(replace(entry, partition_data=many),)))
    )
    (said,) = oracle.read_response(0, PRODUCE_VERSION, answer)[1].responses
    assert {int(one.error_code) for one in said.partition_responses} == {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }


@pytest.mark.parametrize("ask", [fetch_by_name, fetch_by_id, produce_absent, produce_many_absent])
def test_partitions_that_are_not_there_take_no_place(
    pair: Pair, ask: Callable[[RawClient, str], None]
) -> None:
    """A client asks for more of them than Forebay follows; the next topic is tailed from memory all the same."""
    asked, other = create_topic(pair.direct), create_topic(pair.direct)
    with RawClient(pair.through) as client:
        ask(client, asked)
    with RawClient(pair.through) as client:
        check_hits(pair, RawReader(client, other), other, "tailed", RECORDS)
    check_same(pair, other)
