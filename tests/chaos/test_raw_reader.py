"""What raw readers and whole clients get of a bare broker is what its log holds; one changed byte is not."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.chaos.broker_logs import BrokerLogs
from tests.chaos.log_checker import check_changes
from tests.chaos.raw_reader import BY_ID, BY_NAME, RawFollower
from tests.chaos.raw_writer import RawWriter
from tests.chaos.readings import NEVER, Changes, Incarnation
from tests.chaos.whole_readers import CLIENTS, WholeReader
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient

if TYPE_CHECKING:
    from tests.kit.broker.kafka import KafkaCluster

pytestmark = pytest.mark.e2e

PARTITIONS = 2
ENOUGH = 40
PATIENCE_S = 60.0


def test_a_bare_broker_keeps_every_promise(broker: KafkaCluster) -> None:
    topic = create_topic(
        broker.direct, partitions=PARTITIONS, config={"message.timestamp.type": "LogAppendTime"}
    )
    topics, direct, rng = {topic: PARTITIONS}, broker.direct, random.Random(topic)
    writer = RawWriter("writer", direct, direct, topic, rng)
    followers = [
        RawFollower(f"v{versions[0]}", direct, topics, versions, rng)
        for versions in (BY_NAME, BY_ID)
    ]
    threads: list[Any] = [writer, *followers]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and min(len(one.fetched) for one in followers) < ENOUGH:
        time.sleep(0.1)
    for thread in threads:
        thread.finish()
        thread.join(PATIENCE_S)
    whole = WholeReader("whole", direct, direct, topics, rng, ())
    for client in CLIENTS:
        whole.read(topic, client, PATIENCE_S)
    logs = BrokerLogs([broker.log_dir()], topics)
    logs.scan()

    with RawClient(direct) as asking:
        known = Incarnation(topic, asking.topic(topic, PARTITIONS).id, NEVER)
    fetched = [fetch for one in followers for fetch in one.fetched]
    changes = Changes(fetched, whole.delivered, [known], whole=frozenset((topic,)))
    assert check_changes(changes, logs.held) == []
    assert all(len(one.fetched) >= ENOUGH for one in followers)
    assert all(one.records and one.reached >= one.end for one in changes.delivered)
    assert {one.reader for one in changes.delivered} == {"whole, read_by_id", "whole, read_by_name"}

    spoiled = bytearray(fetched[0].batches[0])
    spoiled[-1] ^= 1
    changes.fetched[0] = fetched[0]._replace(batches=(bytes(spoiled), *fetched[0].batches[1:]))
    assert [one.rule for one in check_changes(changes, logs.held)] == ["unequal"]
