"""A leader that lost records leads again: what memory has of them is never served.

Three brokers, a Forebay before the first; the topic may elect a replica that is behind. Records that only the first
broker has are tailed from memory; then the second one leads without them and appends others at their offsets, and the
first comes back, is cut to that log, and leads again. Kafka loses acknowledged records here, as it was told to; a
reader through Forebay must see the same loss as a direct one.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.chaos.history import Place
from tests.chaos.orders import elect
from tests.e2e.raw_fetch import RawClient, RawReader
from tests.e2e.sidecar import Pair
from tests.e2e.test_invalidation import (
    CACHE,
    RECORDS,
    check_hits,
    check_same,
    hit_bytes,
    tail_while,
    wait_for_hits,
    wait_ready,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.e2e

FIRST, BEHIND = 1, 2
OVERRIDES = {"broker.session.timeout.ms": 6000, "broker.heartbeat.interval.ms": 1000}
CONFIG = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
PATIENCE_S = 60.0
POLL_S = 0.2
ASK_S = 2.0
"""librdkafka keeps to the broker that it asked first, though that goes away: who asks anew is told by another."""
UNKNOWN = -1


def wait_for(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(POLL_S)


def test_what_an_unclean_election_lost_is_not_served() -> None:
    cluster = {"size": 3, "heap_mb": 256, "overrides": OVERRIDES}
    with Pair(cluster, {"cache": CACHE}) as pair:
        topic = f"unclean-{time.time_ns()}"
        admin = AdminClient({"bootstrap.servers": pair.direct})
        wanted = NewTopic(topic, 1, replica_assignment=[[FIRST, BEHIND]], config=CONFIG)
        admin.create_topics([wanted])[topic].result(20)

        def state() -> tuple[int, set[int]]:
            try:
                found = admin.list_topics(topic, timeout=ASK_S).topics[topic].partitions[0]
            except KafkaException:
                return UNKNOWN, set()
            return found.leader, set(found.isrs)

        with RawClient(pair.through) as client:
            reader = RawReader(client, topic).settle()
            tail_while(reader, lambda: write(pair, topic, "kept"), RECORDS)
            pair.broker.stop(BEHIND)
            wait_for("the follower is missed", lambda: state() == (FIRST, {FIRST}))
            wait_for_hits(pair, reader)
            before = hit_bytes(pair)
            tail_while(reader, lambda: write(pair, topic, "lost"), 2 * RECORDS)
            assert b"lost-" in reader.raw
            assert hit_bytes(pair) > before
        pair.broker.stop(FIRST)
        pair.broker.start(BEHIND)
        wait_for("the one that is behind leads", lambda: state()[0] == BEHIND)
        write(cast("Pair", SimpleNamespace(through=pair.direct)), topic, "instead")
        pair.broker.start(FIRST)
        wait_for("the first has caught up", lambda: FIRST in state()[1])
        host, port = pair.broker.address(node_id=BEHIND)
        wait_for(
            "the first leads", lambda: not elect(f"{host}:{port}", [Place(topic, 0)]) or state()[0] == FIRST
        )
        wait_for("the first is known to lead", lambda: state()[0] == FIRST)
        wait_ready(pair)
        whole = check_same(pair, topic)
        assert b"lost-" not in whole
        assert b"instead-" in whole
        with RawClient(pair.through) as client:
            reader = RawReader(client, topic, offset=2 * RECORDS)
            check_hits(pair, reader, topic, "after", 3 * RECORDS)
        check_same(pair, topic)
