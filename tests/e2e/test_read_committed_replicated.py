"""read_committed where three brokers hold the partition: markers are appended before they are below the HW.

One Forebay stands before the partition's leader; the writers know nothing of it. Followers fall behind now and then, so
that the HW stays while the log grows.
"""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.e2e.transactional import TIMEOUT_S, Writer, tailing
from tests.kit.broker.topics import count_leaders
from tests.kit.sidecar import PATIENT_CACHE, Pair

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

LEADER, FOLLOWERS = 1, (2, 3)
SETTINGS = {"min.insync.replicas": "1"}
LAGS_S = 0.4


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with Pair(cluster={"size": 3, "heap_mb": 256}, settings={"cache": PATIENT_CACHE}) as running:
        yield running


def create_led_topic(bootstrap: str) -> str:
    """A topic that the broker behind Forebay leads."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(
        name, num_partitions=1, replica_assignment=[[LEADER, *FOLLOWERS]], config=SETTINGS
    )
    admin.create_topics([topic])[name].result(TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    while not count_leaders(admin, name):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return name


def test_markers_count_once_they_are_replicated(pair: Pair) -> None:
    topic = create_led_topic(pair.direct)
    with tailing(pair, topic=topic) as tail:
        writers = [Writer(pair.direct, topic, name, acks="all") for name in ("a", "b")]
        for turn in range(16):
            for number, writer in enumerate(writers):
                writer.write(2)
                if (turn + number) % 2:
                    with lagging_follower(pair, lags=turn % 4 == 3):
                        writer.end(commits=turn % 3 != 0)
                        writer.write(1)
            if turn % 4 == 0:
                tail.wait_stable()
        for writer in writers:
            writer.end(commits=True)
        tail.check(listed=3)
        behind = [one for one in tail.reader.answers if one.last_stable_offset < one.high_watermark]
        assert behind


@contextmanager
def lagging_follower(pair: Pair, *, lags: bool) -> Iterator[None]:
    """One that fetches nothing for a while, and stays in sync: the log grows, the HW stands still."""
    if not lags:
        yield
        return
    pair.broker.stall(FOLLOWERS[-1])
    waker = threading.Timer(LAGS_S, pair.broker.wake, FOLLOWERS[-1:])
    waker.start()
    try:
        yield
    finally:
        waker.join()
