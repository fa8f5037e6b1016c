"""What an operator tells the cluster, in Kafka's own messages: elect leaders, move replicas.

Owns two requests, made by kio, and one answer each. Must not know when they are given. They are orders to the controller:
what it refuses while brokers are away is not a failure, and is said so in the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from kio.schema.alter_partition_reassignments.v0.request import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i32

from tests.e2e.raw_frames import Raw
from tests.protocol import oracle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.chaos.history import Place

REASSIGN, REASSIGN_VERSION = 45, 0
TIMEOUT_S = 15.0


def reassign(address: str, place: Place, replicas: Sequence[int]) -> str:
    """Move a partition to these brokers, the first preferred; "" or the error's name. OSError."""
    moved = ReassignablePartition(
        partition_index=i32(place.partition), replicas=tuple(BrokerId(one) for one in replicas)
    )
    body = AlterPartitionReassignmentsRequest(
        topics=(ReassignableTopic(name=TopicName(place.topic), partitions=(moved,)),)
    )
    with Raw(address) as broker:
        answer = oracle.read_response(REASSIGN, REASSIGN_VERSION, broker.call(oracle.request_frame(body)))[1]
    codes = [answer.error_code, *(one.error_code for said in answer.responses for one in said.partitions)]
    return ", ".join(code.name for code in codes if code)


def elect(bootstrap: str, places: Sequence[Place]) -> str:
    """Make the preferred replicas leaders; "" or what went wrong."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    try:
        admin.elect_leaders(
            ElectionType.PREFERRED, [TopicPartition(*place) for place in places], request_timeout=TIMEOUT_S
        ).result(TIMEOUT_S)
    except (KafkaException, TimeoutError) as failed:
        return f"{failed}"
    return ""
