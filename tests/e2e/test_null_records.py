"""Produces without records, which a broker never answers: who sends them waits for ever, and nobody else does."""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING

import pytest

from isolation.health import HealthRule
from tests.e2e.raw_frames import Raw, build_plain
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient
from tests.kit.sidecar import Pair, ProxiedBroker
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

PRODUCE, VERSION = 0, 7
CLIENTS = 100
"""More than a queue has slots at any time."""
SILENT_S = 1.0


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    settings = {"shutdown": {"gracePeriod": "1s"}}  # nothing answers what is left in flight
    with Pair(settings=settings, shared=proxied) as running:
        yield running


def build_null(topic: str, acks: int) -> bytes:
    name = topic.encode()
    head = struct.pack(">hhii", -1, acks, 1000, 1) + struct.pack(">h", len(name)) + name
    return build_plain(PRODUCE, VERSION, head + struct.pack(">iii", 1, 0, -1))


@pytest.mark.parametrize("acks", [-1, 1])
def test_a_topic_does_not_hang_for_what_is_never_answered(pair: Pair, acks: int) -> None:
    topic = create_topic(pair.direct)
    with contextlib.ExitStack() as stack, RawClient(pair.through) as writer:
        for _ in range(CLIENTS):
            stack.enter_context(Raw(pair.through)).send(build_null(topic, acks))
        offsets = [writer.produce(topic, batch_v2(1)) for _ in range(20)]
        late = stack.enter_context(Raw(pair.through, HealthRule().hang_after_s + SILENT_S))
        with pytest.raises(TimeoutError):
            late.call(build_null(topic, acks))
        offsets += [writer.produce(topic, batch_v2(1)) for _ in range(20)]
        metrics = pair.sidecar.metrics()
    assert offsets == list(range(40))
    assert metrics["forebay_isolation_topics_hanging",] == 0


def test_a_broker_alone_does_not_answer_either(pair: Pair) -> None:
    topic = create_topic(pair.direct)
    with Raw(pair.direct, SILENT_S) as client, pytest.raises(TimeoutError):
        client.call(build_null(topic, -1))
