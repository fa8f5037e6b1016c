"""Large Produces, and Fetches of replicas, where nothing is asked of them: the bytes are those that were sent.

Owns a broker and a Forebay whose cache and isolation are off. It must not know which way a request goes.
"""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING

import pytest

from protocol import fetch
from tests.kit import produce_messages
from tests.kit.broker.topics import create_topic
from tests.kit.frames import PRODUCE_VERSION
from tests.kit.raw_fetch import RawClient, RawReader
from tests.kit.sidecar import Pair, ProxiedBroker
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

SETTINGS = {
    "cache": {"mode": "off"},
    "isolation": {"enabled": False},
    "log": {"level": "info", "format": "text"},
}
SIZES = (900_000, 100, 400_000, 70_000, 900_000, 5_000, 900_000)
DEBUGGING_REPLICA = -2
"""An id that is no consumer's, and to which a broker answers as to one (FetchRequest.DEBUGGING_CONSUMER_ID)."""
REPLICA_ID_AT = 15
"""In a request of version 13: behind a header with an empty client id."""


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(settings=SETTINGS, shared=proxied) as pair:
        yield pair


def value_of(number: int, size_bytes: int) -> bytes:
    return bytes([number]) * size_bytes


def read_all(address: str, topic: str, count: int) -> bytes:
    with RawClient(address) as client:
        reader = RawReader(client, topic)
        while reader.offset < count:
            reader.poll(1000)
        return bytes(reader.raw)


def test_pipelined_produces_arrive_whole_and_in_their_order(pair: Pair) -> None:
    topic = create_topic(pair.direct)
    with RawClient(pair.through) as client:
        client.produce(topic, batch_v2(1, value=b"first"))
        frames = [
            client.build_produce(topic, batch_v2(1, value=value_of(number, size)))
            for number, size in enumerate(SIZES)
        ]
        client._socket.sendall(b"".join(frames))
        for number in range(len(SIZES)):
            prefix = client._take(4)
            answer = prefix + client._take(int.from_bytes(prefix, "big"))
            (said,) = produce_messages.scan_response(answer, PRODUCE_VERSION).partitions
            assert (said.error_code, said.base_offset) == (0, 1 + number)
    read = read_all(pair.direct, topic, 1 + len(SIZES))
    assert read == read_all(pair.through, topic, 1 + len(SIZES))
    at = 0
    for number, size in enumerate(SIZES):
        at = read.index(value_of(number, size), at) + size
    assert pair.sidecar.metrics()["forebay_in_flight_bytes", "request"] == 0


def test_a_client_that_dies_within_a_produce_leaves_nothing(pair: Pair) -> None:
    topic = create_topic(pair.direct)
    for cut in (5_000, 300_000, 899_000):
        client = RawClient(pair.through)
        client.produce(topic, batch_v2(1, value=b"before"))
        client._socket.sendall(
            client.build_produce(topic, batch_v2(1, value=value_of(1, 900_000)))[:cut]
        )
        client.abort()
    with RawClient(pair.through) as client:
        assert client.produce(topic, batch_v2(1, value=b"after")) == 3
    read = read_all(pair.direct, topic, 4)
    assert (read.count(b"before"), read.count(b"after")) == (3, 1)
    assert len(read) < 1000


def test_a_replicas_fetches_are_answered_as_by_the_broker(pair: Pair) -> None:
    topic = create_topic(pair.direct)
    answers = []
    with contextlib.ExitStack() as stack:
        direct, through = (
            stack.enter_context(RawClient(address, "")) for address in (pair.direct, pair.through)
        )
        for number in range(4):
            through.produce(topic, batch_v2(1, value=value_of(number, 900_000)))
        words = direct.topic(topic)
        for client in (direct, through):
            client._correlation_id = 100
            for offset in range(4):
                asked = fetch.FetchPartition(words.id, 0, -1, offset, -1, -1, 1 << 20)
                frame = bytearray(client.build_fetch(13, [asked], max_wait_ms=0))
                struct.pack_into(">i", frame, REPLICA_ID_AT, DEBUGGING_REPLICA)
                answers.append(client.call(bytes(frame)))
    assert answers[:4] == answers[4:]
    for answer in answers:
        (said,) = fetch.scan_response(answer, 13).partitions
        assert said.error_code == 0 and said.end - said.start > 900_000
    assert pair.sidecar.fetch_counts("partitions")["pass", "follower"] == 4
