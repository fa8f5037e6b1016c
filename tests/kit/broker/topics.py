"""Topics on a test broker, created and removed by one call each.

Owns waiting until what was asked for is true everywhere: leaders are known and answer, a deleted name is gone.
Must not know what is written to them.
"""

import time
import uuid
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from confluent_kafka.cimpl import NewTopic

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT_S = 60.0
EACH_S = 0.03
"""Patience for each partition beside TIMEOUT_S: a busy machine makes fifty logs a second."""
POLL_S = 0.05


def create_topic(
    bootstrap: str,
    name: str | None = None,
    *,
    partitions: int = 1,
    replication_factor: int = 1,
    config: "Mapping[str, str] | None" = None,
) -> str:
    """Creates a topic (a fresh name if none is given), waits for its leaders and returns its name.

    Raises KafkaException as the broker refused, TimeoutError.
    """
    name = name or f"t-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(name, partitions, replication_factor, config=dict(config or {}))
    admin.create_topics([topic], operation_timeout=TIMEOUT_S)[name].result(TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S + partitions * EACH_S
    while count_leaders(admin, name) != partitions:
        if time.monotonic() > deadline:
            raise TimeoutError(f"topic {name} has no leaders")
        time.sleep(POLL_S)
    while not is_readable(admin, name, partitions):
        if time.monotonic() > deadline:
            raise TimeoutError(f"topic {name} cannot be read")
        time.sleep(POLL_S)
    return name


def is_readable(admin: AdminClient, name: str, partitions: int) -> bool:
    """Whether every leader answers for its partition: metadata runs ahead of the log."""
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    wanted = {TopicPartition(name, partition): latest for partition in range(partitions)}
    try:
        return all(one.result(TIMEOUT_S).offset >= 0 for one in admin.list_offsets(wanted).values())
    except KafkaException:
        return False


def delete_topic(bootstrap: str, name: str) -> None:
    """Deletes a topic and waits until the broker no longer names it. Raises KafkaException, TimeoutError."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([name], operation_timeout=TIMEOUT_S)[name].result(TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    while name in admin.list_topics(timeout=TIMEOUT_S).topics:
        if time.monotonic() > deadline:
            raise TimeoutError(f"topic {name} is still there")
        time.sleep(POLL_S)


def count_leaders(admin: AdminClient, name: str) -> int:
    """How many of the topic's partitions have a leader."""
    topic = admin.list_topics(timeout=TIMEOUT_S).topics.get(name)
    return sum(one.leader >= 0 for one in topic.partitions.values()) if topic else 0
