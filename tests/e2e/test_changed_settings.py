"""A topic's settings change under its producers: what memory was taught before does not hold any more.

One Produce request writes to many partitions after the change, so that the broker shows only some of what it made of
it before the rest may be read. Each partition's bytes are the broker's, at once and when they are read again, and
memory learns the new setting.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from protocol import batch
from tests.e2e.many_partitions import Partitions, hit_bytes, produce_all, stored_batches
from tests.e2e.test_invalidation import CACHE, MOST
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient
from tests.kit.sidecar import Pair, ProxiedBroker
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

COUNT = 8
"""Partitions that are read; one more shows when the broker keeps to the new setting."""
CANARY = COUNT
OLD_ROUNDS = 10
PATIENCE_S = 60.0
POLL_S = 0.05
TIMESTAMPS, CODEC = "message.timestamp.type", "compression.type"
CHANGES = [
    (TIMESTAMPS, "CreateTime", "LogAppendTime"),
    (TIMESTAMPS, "LogAppendTime", "CreateTime"),
    (CODEC, "producer", "gzip"),
]


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(settings={"cache": CACHE}, shared=proxied) as running:
        yield running


def configure(pair: Pair, topic: str, setting: str, value: str) -> None:
    """Change a setting, and wait until the broker writes a batch in that way."""
    entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": pair.direct})
    (done,) = admin.incremental_alter_configs([change]).values()
    done.result(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    with RawClient(pair.direct) as direct:
        canary = Partitions(direct, topic, [CANARY])
        while True:
            canary.follow(direct, {CANARY: batch_v2(value=b"canary")})
            if setting_of(canary.raw[CANARY], setting) == value:
                return
            assert time.monotonic() < deadline, f"the broker does not keep to {setting} {value}"
            time.sleep(POLL_S)


def setting_of(raw: bytes | bytearray, setting: str) -> str:
    """What the last of these batches says of a setting."""
    last = batch.scan_batches(raw, 0, len(raw))[-1]
    if setting == TIMESTAMPS:
        return "LogAppendTime" if batch.is_log_append_time(last.attributes) else "CreateTime"
    codec = batch.CODECS[batch.codec(last.attributes)]
    return "producer" if codec == "none" else codec


def batches(word: str) -> dict[int, bytes]:
    """One for each partition that is read."""
    return {index: batch_v2(value=f"{word}-{index}".encode() * 20) for index in range(COUNT)}


@pytest.mark.parametrize(
    ("setting", "before", "after"), CHANGES, ids=["to-log-append-time", "to-create-time", "to-gzip"]
)
def test_one_request_over_many_partitions_after_a_change(
    pair: Pair, setting: str, before: str, after: str
) -> None:
    """Memory has learned from Produce; after the change one request writes a batch to each of eight partitions. What a
    tailing consumer is given of them is the broker's, in all, and stays so; later batches come from memory again.
    The setting changes to and fro: how many batches the broker shows at once is chance.
    """
    topic = create_topic(pair.direct, partitions=COUNT + 1, config={setting: before})
    with RawClient(pair.through) as client, RawClient(pair.through) as writer:
        tail = Partitions(client, topic, range(COUNT))
        for turn, value in enumerate([after, before, after]):
            tail.follow_until_hits(
                pair,
                writer,
                partial(lambda turn, number: batches(f"taught-{turn}-{number}"), turn),
                from_produce=setting == TIMESTAMPS or value == after,
            )
            configure(pair, topic, setting, value)
            starts = dict(tail.offsets)
            tail.read_again(starts)
            tail.follow(writer, batches(f"{value}-{turn}"))
            check_equal(pair, tail, starts, f"at the tail, {value}")
            assert {setting_of(raw, setting) for raw in tail.raw.values()} == {value}
            tail.read_again(dict.fromkeys(range(COUNT), 0))
            check_equal(pair, tail, dict.fromkeys(range(COUNT), 0), f"read again, {value}")
        tail.follow_until_hits(pair, writer, lambda number: batches(f"later-{number}"))
        check_equal(pair, tail, dict.fromkeys(range(COUNT), 0), "in the end")


@pytest.mark.parametrize(
    ("setting", "before", "after"), CHANGES[:2], ids=["to-log-append-time", "to-create-time"]
)
def test_a_laggard_that_reads_batches_from_before_the_change(
    pair: Pair, setting: str, before: str, after: str
) -> None:
    """Old batches are as the topic was then, and say nothing of what its broker does now: what memory has of the new
    setting stays, and what is produced enters it on.
    """
    topic = create_topic(pair.direct, partitions=COUNT + 1, config={setting: before})
    with RawClient(pair.direct) as direct:
        for number in range(OLD_ROUNDS):
            produce_all(direct, topic, batches(f"old-{number}"))
    configure(pair, topic, setting, after)
    with RawClient(pair.through) as client, RawClient(pair.through) as writer:
        tail = Partitions(client, topic, range(COUNT))
        old_end = 3 * OLD_ROUNDS
        tail.offsets.update(dict.fromkeys(range(COUNT), old_end))
        starts = tail.follow_until_hits(
            pair, writer, lambda number: batches(f"{after}-{number}"), from_produce=True
        )
        with RawClient(pair.through) as lagging:
            laggard = Partitions(lagging, topic, [0])
            laggard.max_bytes = 1  # a batch a Fetch: nothing of the new setting comes along
            laggard.read_to({0: old_end})
            assert setting_of(laggard.raw[0], setting) == before
            check_equal(pair, laggard, {0: 0}, "as the laggard reads it")
        before_bytes = hit_bytes(pair)
        tail.read_again(starts)
        size_bytes = sum(map(len, tail.raw.values()))
        assert hit_bytes(pair) - before_bytes >= MOST * size_bytes, "what memory had is still there"
        stored = stored_batches(pair)
        tail.follow(writer, batches("after"))
        check_equal(pair, tail, starts, "afterwards")
        stored = stored_batches(pair) - stored
        assert stored == COUNT, f"{stored:.0f} of {COUNT} batches of a request were stored from it"


def check_equal(pair: Pair, tail: Partitions, starts: dict[int, int], when: str) -> None:
    """What was read from `starts` on is what the broker has, in each partition."""
    with RawClient(pair.direct) as direct:
        unequal = tail.find_unequal(direct, starts)
    assert not unequal, f"{len(unequal)} of {COUNT} partitions {when}: {unequal}"
