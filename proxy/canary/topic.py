"""The canary's topic: one partition on the broker behind Forebay, small and short-lived.

Owns its name, its settings, and its creation on the direct side. Must not know what is written to it. Invariants:
* partition 0 is led by the broker behind Forebay, or the canary does not begin: it would measure another one.
* one replica: an acknowledgement by all (acks=all) waits for no follower.
* a topic that is there is never changed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from protocol import control
from protocol.errors import ErrorCode
from proxy.broker_client import CLIENT_ID

if TYPE_CHECKING:
    from proxy.broker_client import BrokerClient

CREATE_TOPICS_VERSION = 7
TOPIC_ALREADY_EXISTS = 36  # org.apache.kafka.common.protocol.Errors
POLL_S = 0.1
SETTINGS = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
    "retention.bytes": "16777216",
    "retention.ms": "600000",
    "segment.bytes": "1048576",
    "segment.ms": "600000",
}
"""Ten minutes or 16 MiB are kept, in segments of 1 MiB, the least that a broker allows (KIP-1030)."""


class TopicUnusable(Exception):
    """The topic cannot be had; the message says what to do."""


async def find_topic(client: BrokerClient, pattern: str, timeout_s: float) -> str:
    """The name of the canary's topic, which then exists and is led by this broker; creates it if it is missing.
    `client` is the direct side. `timeout_s`: how long its leader may take after creation. Raises TopicUnusable, and
    as `BrokerClient.call`.
    """
    nodes = [node.node_id for node in (await client.ask_metadata([])).brokers]
    node_id = await client.find_node(nodes)
    if node_id is None and "{node}" in pattern:
        raise TopicUnusable(
            "the broker does not say which node it is: allow this principal DescribeConfigs on the cluster, or name"
            " a topic whose partition 0 this broker leads by --topic"
        )
    name = pattern.replace("{node}", f"{node_id}")
    leader = await _find_leader(client, name)
    if leader is None:
        await _create(client, name, node_id, timeout_s)
        async with asyncio.timeout(timeout_s):
            while leader in (None, -1):
                await asyncio.sleep(POLL_S)
                leader = await _find_leader(client, name)
    if node_id is not None and leader != node_id:
        raise TopicUnusable(
            f"partition 0 of {name} is led by node {leader}, and this broker is node {node_id}: name another topic by"
            f" --topic, or give the partition to this node"
        )
    return name


async def _find_leader(client: BrokerClient, name: str) -> int | None:
    """The leader of partition 0, -1 while there is none; None where the topic does not exist."""
    topics = (await client.ask_metadata([name])).topics
    if len(topics) != 1 or topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return None
    if topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        raise TopicUnusable(
            f"this principal may not describe {name}: allow it Describe, Read and Write on it"
        )
    leaders = [one.leader_id for one in topics[0].partitions if one.partition == 0]
    return leaders[0] if leaders else -1


async def _create(client: BrokerClient, name: str, node_id: int | None, timeout_s: float) -> None:
    if node_id is None:
        raise TopicUnusable(
            f"the topic {name} does not exist: create it with partition 0 on this broker"
        )
    frame = control.build_create_topics_request(
        CREATE_TOPICS_VERSION,
        0,
        CLIENT_ID,
        topic=name,
        replicas=[node_id],
        settings=SETTINGS,
        timeout_ms=round(timeout_s * 1000),
    )
    answers = control.scan_create_topics_response(await client.call(frame), CREATE_TOPICS_VERSION)
    error = answers[0].error_code if len(answers) == 1 else -1
    if error not in (ErrorCode.NONE, TOPIC_ALREADY_EXISTS):
        reason = answers[0].error_message if answers else None
        raise TopicUnusable(
            f"the broker does not create {name} (error {error}, {reason or 'no reason given'}); allow this principal"
            f" Create on it, or run: {build_command(name, node_id)}"
        )


def build_command(name: str, node_id: int) -> str:
    """The command that creates the topic by Kafka's own tool."""
    settings = " ".join(f"--config {key}={value}" for key, value in SETTINGS.items())
    return (
        f"kafka-topics.sh --bootstrap-server ... --create --topic {name} --replica-assignment {node_id}"
        f" {settings}"
    )
