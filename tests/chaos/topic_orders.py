"""What is done to a topic by order, and when no broker knows of the former state any more.

Owns the orders (made, deleted, records deleted, settings) by librdkafka's admin client, past Forebay, and the
questions that each broker is asked directly until it answers as one that knows. Must not know when orders are given,
nor who reads. Invariants: an order is repeated until it is acknowledged or PATIENCE_S are over (TimeoutError); what
its repetition finds done is done.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from protocol import fetch
from protocol.errors import BadFrame, ErrorCode
from tests.chaos.raw_reader import ANSWER_S, find_leaders
from tests.chaos.readings import NO_EPOCH
from tests.kit.raw_fetch import FETCH_VERSION, FetchFailed, RawClient

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.chaos.cluster import Sidecars

PATIENCE_S = 60.0
ASK_S = 10.0
PAUSE_S = 0.1


class TopicOrders:
    """Orders to one cluster."""

    def __init__(self, sidecars: Sidecars) -> None:
        self._sidecars = sidecars

    def create(
        self, topic: str, config: Mapping[str, str], replicas: Sequence[Sequence[int]]
    ) -> bytes:
        """Its id. `replicas`: of each partition, the leader first."""
        assignment = [list(one) for one in replicas]
        wanted = NewTopic(
            topic, len(assignment), replica_assignment=assignment, config=dict(config)
        )
        self._insist(
            lambda admin: admin.create_topics([wanted])[topic].result(ASK_S),
            KafkaError.TOPIC_ALREADY_EXISTS,
        )
        return self.await_id(topic)

    def delete(self, topic: str) -> None:
        self._insist(
            lambda admin: admin.delete_topics([topic])[topic].result(ASK_S),
            KafkaError.UNKNOWN_TOPIC_OR_PART,
        )

    def configure(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])

        def order(admin: AdminClient) -> None:
            for done in admin.incremental_alter_configs([resource]).values():
                done.result(ASK_S)

        self._insist(order)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        def order(admin: AdminClient) -> None:
            for done in admin.delete_records([TopicPartition(topic, partition, before)]).values():
                done.result(ASK_S)

        self._insist(order)

    def _insist(self, order: Callable[[AdminClient], object], done: int | None = None) -> None:
        """`done`: the error that says that an earlier attempt, whose answer was lost, has done it."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            admin = AdminClient({"bootstrap.servers": self._sidecars.direct, "log_level": 0})
            try:
                order(admin)
                return
            except (KafkaException, TimeoutError) as failed:
                if isinstance(failed, KafkaException) and failed.args[0].code() == done:
                    return
                if time.monotonic() > deadline:
                    raise TimeoutError(str(failed)) from failed
                time.sleep(PAUSE_S)

    # -- what the brokers know -----------------------------------------------------------------------------

    def await_id(self, topic: str, former: bytes = b"") -> bytes:
        """The id that some broker names, not the former one."""
        found: set[bytes] = set()

        def known(client: RawClient) -> bool:
            found.update({one.topic_id for one in find_leaders(client, topic).values()} - {former})
            return bool(found)

        self.await_each(known, least=1)
        return found.pop()

    def await_served(self, topic: str, topic_id: bytes, partitions: int) -> float:
        """When each broker has answered a Fetch by this id without an error: it has no other log of that name."""

        def serves(client: RawClient) -> bool:
            return all(
                self.peek(client, topic_id, one, 0)
                in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE)
                for one in range(partitions)
            )

        return self.await_each(serves)

    def await_start(self, topic_id: bytes, partition: int, before: int) -> float:
        """When each broker has refused what lies below a log start."""
        return self.await_each(
            lambda client: (
                self.peek(client, topic_id, partition, before - 1) == ErrorCode.OFFSET_OUT_OF_RANGE
            )
        )

    def peek(self, client: RawClient, topic_id: bytes, partition: int, offset: int) -> int:
        """The error of a Fetch without an epoch: a follower answers it, too (KIP-392)."""
        asked = fetch.FetchPartition(topic_id, partition, NO_EPOCH, offset, -1, -1, 1)
        ((said, _),) = client.fetch(FETCH_VERSION, [asked], max_wait_ms=0)
        return said.error_code

    def await_each(self, holds: Callable[[RawClient], bool], *, least: int = 0) -> float:
        """When `holds` has held of each broker (of `least` of them, if given) once. TimeoutError."""
        deadline = time.monotonic() + PATIENCE_S
        waiting = set(self._sidecars.nodes)
        enough = least or len(waiting)
        while len(self._sidecars.nodes) - len(waiting) < enough:
            for node in sorted(waiting):
                host, port = self._sidecars.cluster.address(node_id=node)
                with (
                    contextlib.suppress(OSError, BadFrame, FetchFailed),
                    RawClient(f"{host}:{port}", timeout_s=ANSWER_S) as client,
                ):
                    if holds(client):
                        waiting.discard(node)
            if time.monotonic() > deadline:
                raise TimeoutError(f"brokers {sorted(waiting)} do not know of it")
            time.sleep(PAUSE_S)
        return time.monotonic()
