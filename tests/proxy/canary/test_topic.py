"""The canary's topic, asked of a played broker: it is led by this node, or the canary does not begin."""

from __future__ import annotations

import pytest

from protocol.metadata import BrokerAddress, Metadata, PartitionMetadata, TopicMetadata
from proxy.broker_client import BrokerClient
from proxy.canary.topic import SETTINGS, TopicUnusable, build_command, find_topic
from tests.protocol import oracle

CREATE_TOPICS = 19
NODE = 3


class PlayedBroker(BrokerClient):
    """`leaders`: of partition 0, by topic. A created topic is led by nobody at first."""

    def __init__(
        self, node_id: int | None = NODE, refusal: int = 0, appears: bool = True, **leaders: int
    ) -> None:
        self.node_id, self.refusal, self.appears = node_id, refusal, appears
        self.leaders: dict[str, int] = leaders
        self.created: list[object] = []

    async def ask_metadata(self, topics: list[str]) -> Metadata:
        rows = []
        for name in topics:
            leader = self.leaders.get(name)
            partitions = [] if leader is None else [PartitionMetadata(0, 0, leader, 1)]
            error = 3 if leader is None else max(0, -leader - 1)
            rows.append(TopicMetadata(error, name, bytes(16), False, partitions))
            if leader == -1:
                self.leaders[name] = NODE
        return Metadata(0, "c", 1, [BrokerAddress(NODE, "b", 1, None)], rows)

    async def find_node(self, candidates: list[int]) -> int | None:
        assert candidates == [NODE]
        return self.node_id

    async def call(self, frame: bytes, correlation_id: int = 0) -> bytes:
        _, body = oracle.read_request(CREATE_TOPICS, 7, frame)
        (topic,) = body.topics
        self.created.append(topic)
        if self.refusal in (0, 36) and self.appears:
            self.leaders[topic.name] = -1
        return build_created(topic.name, self.refusal)


def build_created(name: str, error: int) -> bytes:
    """The answer of version 7: throttle time, a topic with its id, error, no message, no settings."""
    text = name.encode()
    row = bytes([len(text) + 1]) + text + bytes(16) + error.to_bytes(2, "big") + b"\0"
    row += b"\0\0\0\1" + b"\0\1" + b"\1" + b"\0"
    body = b"\0\0\0\0" + b"\2" + row + b"\0"
    return (len(body) + 5).to_bytes(4, "big") + b"\0\0\0\0" + b"\0" + body


async def test_a_missing_topic_is_created_on_this_node_and_awaited() -> None:
    broker = PlayedBroker()
    assert await find_topic(broker, "forebay-canary-{node}", 60.0) == "forebay-canary-3"
    (topic,) = broker.created
    assert [(one.partition_index, one.broker_ids) for one in topic.assignments] == [(0, (NODE,))]  # type: ignore[attr-defined]
    assert {one.name: one.value for one in topic.configs} == SETTINGS  # type: ignore[attr-defined]


async def test_a_topic_that_is_there_is_left_alone() -> None:
    broker = PlayedBroker(t=NODE)
    assert await find_topic(broker, "t", 60.0) == "t"
    assert broker.created == []


async def test_a_named_topic_needs_no_node_id() -> None:
    assert await find_topic(PlayedBroker(node_id=None, t=NODE), "t", 60.0) == "t"


@pytest.mark.parametrize(
    ("broker", "name", "reason"),
    [
        (
            PlayedBroker(node_id=None),
            "c-{node}",
            "DescribeConfigs on the cluster, or name .* --topic",
        ),
        (PlayedBroker(node_id=None), "c", "c does not exist: create it"),
        (PlayedBroker(t=8), "t", "led by node 8, and this broker is node 3"),
        (PlayedBroker(t=-30), "t", "may not describe t: allow it Describe, Read and Write"),
        (
            PlayedBroker(refusal=29),
            "c",
            r"error 29, no reason given\); allow .* Create on it, or run: kafka-topics",
        ),
    ],
)
async def test_what_cannot_be_is_told_with_its_remedy(
    broker: PlayedBroker, name: str, reason: str
) -> None:
    with pytest.raises(TopicUnusable, match=reason):
        await find_topic(broker, name, 60.0)


async def test_a_topic_that_another_canary_has_just_created_is_taken() -> None:
    assert await find_topic(PlayedBroker(refusal=36), "c", 60.0) == "c"


async def test_a_leader_is_awaited_for_no_longer_than_told() -> None:
    with pytest.raises(TimeoutError):
        await find_topic(PlayedBroker(appears=False), "c", 0.05)


def test_the_command_has_the_same_settings() -> None:
    command = build_command("c", 3)
    assert "--replica-assignment 3 " in command
    assert all(f"--config {key}={value}" in command for key, value in SETTINGS.items())
