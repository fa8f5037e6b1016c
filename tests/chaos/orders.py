"""What an operator tells the cluster, in Kafka's own messages: elect leaders, move replicas.

Owns two requests, made by kio, and what their answers say. Must not know when they are given. They are orders to
the controller: what it refuses while brokers are away is not a failure, and is said so in the answer.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from kio.schema.alter_partition_reassignments.v0.request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kio.schema.elect_leaders.v2.request import ElectLeadersRequest, TopicPartitions
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32

from tests.e2e.raw_frames import Raw
from tests.protocol import oracle

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.chaos.history import Place

REASSIGN, REASSIGN_VERSION = 45, 0
ELECT, ELECT_VERSION = 43, 2
PREFERRED = i8(0)
ANSWER_S = 5.0


def reassign(address: str, place: Place, replicas: Sequence[int]) -> str:
    """Move a partition to these brokers, the first preferred; "" or errors' names. OSError."""
    moved = ReassignablePartition(
        partition_index=i32(place.partition), replicas=tuple(BrokerId(one) for one in replicas)
    )
    topics = (ReassignableTopic(name=TopicName(place.topic), partitions=(moved,)),)
    answer = ask(
        address, AlterPartitionReassignmentsRequest(topics=topics), REASSIGN, REASSIGN_VERSION
    )
    return name(
        [
            answer.error_code,
            *(one.error_code for said in answer.responses for one in said.partitions),
        ]
    )


def elect(address: str, places: Iterable[Place]) -> str:
    """Make the preferred replicas leaders; "" or errors' names. OSError."""
    topics = tuple(
        TopicPartitions(
            topic=TopicName(topic), partitions=tuple(i32(place.partition) for place in some)
        )
        for topic, some in groupby(sorted(places), lambda place: place.topic)
    )
    request = ElectLeadersRequest(election_type=PREFERRED, topic_partitions=topics)
    answer = ask(address, request, ELECT, ELECT_VERSION)
    results = (
        one.error_code for said in answer.replica_election_results for one in said.partition_result
    )
    return name([answer.error_code, *results])


def ask(address: str, body: Any, api_key: int, version: int) -> Any:
    with Raw(address, ANSWER_S) as broker:
        return oracle.read_response(api_key, version, broker.call(oracle.request_frame(body)))[1]


def name(codes: Iterable[Any]) -> str:
    return ", ".join(sorted({code.name for code in codes if code}))
