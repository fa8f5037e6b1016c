"""A Fetch of a version that Forebay does not read: relayed, counted and logged alike, once for the whole request."""

from __future__ import annotations

import struct

import pytest

from tests.kit.broker.topics import create_topic
from tests.kit.log_lines import unfold
from tests.kit.raw_fetch import RawClient
from tests.kit.sidecar import Pair, ProxiedBroker
from tests.protocol.batches import batch_v2

pytestmark = pytest.mark.e2e

FETCH, OLD_VERSION = 1, 3


def build_old_fetch(correlation_id: int, topics: list[str]) -> bytes:
    """FetchRequest v3, by hand: replica, max wait, min bytes, max bytes, then each topic with partition 0."""
    name = b"old"
    body = struct.pack(">hhih", FETCH, OLD_VERSION, correlation_id, len(name)) + name
    body += struct.pack(">iiiii", -1, 100, 1, 1 << 20, len(topics))
    for topic in topics:
        body += (
            struct.pack(">h", len(topic)) + topic.encode() + struct.pack(">iiqi", 1, 0, 0, 1 << 20)
        )
    return struct.pack(">i", len(body)) + body


def test_it_has_one_line_and_one_count(proxied_39: ProxiedBroker) -> None:
    with Pair(shared=proxied_39) as pair:
        topics = [create_topic(pair.direct) for _ in range(2)]
        with RawClient(pair.through) as writer, RawClient(pair.through) as client:
            for topic in topics:
                writer.produce(topic, batch_v2(3, value=b"found"))
            for correlation_id in (7, 8):
                answer = client.call(build_old_fetch(correlation_id, topics))
                assert (
                    struct.unpack_from(">i", answer, 4) == (correlation_id,) and b"found" in answer
                )
        assert pair.sidecar.fetch_counts("partitions") == {("pass", "version"): 2}
        assert pair.sidecar.stop() == 0
        lines = [line for line in unfold(pair.sidecar.access_lines()) if line["type"] == "fetch"]
        assert [(line["result"], line["reason"]) for line in lines] == [("pass", "version")] * 2
        for line in lines:
            assert (line["topic"], line["partition"], line["bytes"], line["clientId"]) == (
                None,
                -1,
                0,
                "old",
            )
            assert line["apiVersion"] == OLD_VERSION
