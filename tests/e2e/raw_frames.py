"""A client that is a socket and frames: what it sends and what comes back, byte for byte.

Owns the socket, builders of the few requests that tests of connections send, and readers of what their
answers say. It must not know whether Forebay is in between. Invariants: requests have correlation ids of
their own, all of the process; reads block for at most TIMEOUT_S.
"""

from __future__ import annotations

import itertools
import socket
import struct
import time
from typing import TYPE_CHECKING, Self
from uuid import UUID

from protocol import control, fetch
from protocol.fetch_build import build_request
from tests.e2e.families import Record, confluent_produce
from tests.kit.broker.topics import create_topic
from tests.protocol import oracle
from tests.protocol.golden_capture import produce_body

if TYPE_CHECKING:
    from tests.e2e.slow_broker import SlowPair
    from tests.kit.sidecar import Pair, Sidecar

TIMEOUT_S = 60.0
FETCH_VERSION = 11  # the last with topic names
PRODUCE_VERSION = 9
METADATA_VERSION = 9
HIT = ("hit", "")


class Raw:
    """A blocking socket that speaks in frames."""

    def __init__(self, address: str, timeout_s: float = TIMEOUT_S) -> None:
        host, port = address.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout_s)

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def take(self) -> bytes:
        """The next frame. ConnectionError where the connection ends instead."""
        frame = bytearray()
        wanted = 4
        while len(frame) < wanted:
            part = self.socket.recv(wanted - len(frame))
            if not part:
                raise ConnectionError("closed")
            frame += part
            if len(frame) == 4:
                wanted = 4 + struct.unpack(">i", frame)[0]
        return bytes(frame)

    def call(self, frame: bytes) -> bytes:
        self.send(frame)
        return self.take()

    def ends(self) -> bool:
        """Whether the peer closes without another byte."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


numbers = itertools.count(1)


def build_metadata() -> bytes:
    return control.build_metadata_request(METADATA_VERSION, next(numbers), "raw", topics=[])


def build_fetch(
    topic: str, offset: int, max_wait_ms: int, most_bytes: int = 1 << 20, least_bytes: int = 1
) -> bytes:
    asked = fetch.FetchPartition(topic, 0, -1, offset, -1, -1, most_bytes)
    return build_request(
        FETCH_VERSION,
        next(numbers),
        "raw",
        max_wait_ms=max_wait_ms,
        min_bytes=least_bytes,
        max_bytes=most_bytes,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        partitions=[asked],
    )


def build_plain(api_key: int, version: int, body: bytes = b"") -> bytes:
    """A request of a version without tagged fields."""
    head = struct.pack(">hhih", api_key, version, next(numbers), 3) + b"raw"
    return struct.pack(">i", len(head) + len(body)) + head + body


def correlation(answer: bytes) -> int:
    number: int = struct.unpack_from(">i", answer, 4)[0]
    return number


def asked_correlation(frame: bytes) -> int:
    number: int = struct.unpack_from(">i", frame, 8)[0]
    return number


def fetched(frame: bytes) -> fetch.FetchedPartition:
    response = fetch.scan_response(frame, FETCH_VERSION)
    assert response.error_code == 0
    (partition,) = response.partitions
    return partition


def read_batch(pair: Pair | SlowPair) -> bytes:
    """A record batch of one record, as the broker stores it: good to be produced."""
    topic = create_topic(pair.direct)
    confluent_produce(pair.direct, topic, [Record(-1, b"key", b"value", ())], "all")
    with Raw(pair.direct) as direct:
        answer = direct.call(build_fetch(topic, 0, 1000))
    partition = fetched(answer)
    return answer[partition.start : partition.end]


def build_produce(topic: str, batch: bytes, acks: int) -> bytes:
    body = produce_body(PRODUCE_VERSION, topic, UUID(int=0), batch, acks=acks)
    return bytes(oracle.request_frame(body, next(numbers), "raw"))


def warm_up(sidecar: Sidecar, connection: Raw, topic: str) -> None:
    """From here on a fetch at the tail of the empty topic waits in Forebay: one was answered from memory."""
    before = sidecar.fetch_counts("partitions").get(HIT, 0)
    deadline = time.monotonic() + TIMEOUT_S
    while sidecar.fetch_counts("partitions").get(HIT, 0) == before:
        assert time.monotonic() < deadline
        fetched(
            connection.call(build_fetch(topic, 0, 50))
        )  # of a new topic, it may say an error at first
