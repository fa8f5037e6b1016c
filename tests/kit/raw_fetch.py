"""A blocking Kafka client that keeps what it reads as it came: raw record batches, headers included.

Owns one connection, its requests (Fetch of any version that Forebay reads, Metadata, Produce of a given
batch) and the walk of a partition from one offset to another. It must not know whether Forebay is in between:
that is what the tests compare. Produce is built by `tests.kit.frames`, without code under test.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import TYPE_CHECKING, NamedTuple, Self

from protocol import batch, control, fetch
from protocol.errors import ErrorCode
from protocol.fetch import FetchPartition
from protocol.fetch_build import build_request
from protocol.metadata import scan_metadata_response
from tests.kit import frames

if TYPE_CHECKING:
    from types import TracebackType

TIMEOUT_S = 60.0
METADATA_VERSION = 12
FETCH_VERSION = 13
MAX_BYTES = 8 << 20
POLL_S = 0.05
NO_EPOCH = -1
STALE_EPOCH = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH})
"""A client that is told so asks Metadata, and goes on with the epoch that it names."""


class FetchFailed(RuntimeError):
    """The answer carries an error; `code` is Kafka's."""

    def __init__(self, code: int) -> None:
        super().__init__(f"Fetch was answered with error {code}")
        self.code = code


class FetchThrottled(RuntimeError):
    """The answer names no partition (KIP-219): the broker's quota, or Forebay's refusal."""

    def __init__(self, throttle_time_ms: int) -> None:
        super().__init__(f"Fetch was answered empty, with a throttle time of {throttle_time_ms} ms")
        self.throttle_time_ms = throttle_time_ms


class TopicWords(NamedTuple):
    """A topic as Fetch names it: its name, its id (16 bytes), and the leader epochs of its partitions."""

    name: str
    id: bytes
    epochs: dict[int, int]


class RawClient:
    """One connection to `address`, "host:port"."""

    def __init__(self, address: str, client_id: str = "raw", timeout_s: float = TIMEOUT_S) -> None:
        """`timeout_s`: of the connection, and of each part of an answer."""
        host, port = address.split(",")[0].split(":")
        self.client_id = client_id
        self._socket = socket.create_connection((host, int(port)), timeout_s)
        self._correlation_id = 0

    @property
    def peer(self) -> tuple[str, int]:
        """Host and port of the other end."""
        host, port = self._socket.getpeername()
        return host, port

    @property
    def ports(self) -> tuple[int, int]:
        """This end's port, and the other's."""
        return self._socket.getsockname()[1], self._socket.getpeername()[1]

    def call(self, frame: bytes) -> bytes:
        """The answer to a request, both whole frames. OSError where the connection ends."""
        self.send(frame)
        return self.receive()

    def send(self, frame: bytes) -> None:
        """A request, without waiting for its answer."""
        self._socket.sendall(frame)

    def receive(self) -> bytes:
        """The next answer, as `call` gives it."""
        prefix = self._take(4)
        return prefix + self._take(int.from_bytes(prefix, "big"))

    def _take(self, size_bytes: int) -> bytes:
        taken = bytearray()
        while len(taken) < size_bytes:
            part = self._socket.recv(size_bytes - len(taken))
            if not part:
                raise ConnectionError("closed before the answer")
            taken += part
        return bytes(taken)

    def _next_id(self) -> int:
        self._correlation_id += 1
        return self._correlation_id

    def topic(self, name: str, partitions: int = 1) -> TopicWords:
        """Ask until the broker knows the topic and its leaders. TimeoutError."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            request = control.build_metadata_request(
                METADATA_VERSION, self._next_id(), self.client_id, topics=[name]
            )
            (found,) = scan_metadata_response(self.call(request), METADATA_VERSION).topics
            epochs = {p.partition: p.leader_epoch for p in found.partitions if p.leader_id >= 0}
            if found.topic_id and len(epochs) >= partitions:
                return TopicWords(name, found.topic_id, epochs)
            time.sleep(POLL_S)
        raise TimeoutError(f"no broker knows {name}")

    def build_fetch(
        self,
        version: int,
        asked: list[FetchPartition],
        *,
        max_wait_ms: int,
        isolation_level: int = 0,
    ) -> bytes:
        """A session-less Fetch request."""
        return build_request(
            version,
            self._next_id(),
            self.client_id,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=MAX_BYTES,
            isolation_level=isolation_level,
            session_id=0,
            session_epoch=-1,
            partitions=asked,
        )

    def fetch(
        self,
        version: int,
        asked: list[FetchPartition],
        *,
        max_wait_ms: int,
        isolation_level: int = 0,
    ) -> list[tuple[fetch.FetchedPartition, bytes]]:
        """One Fetch: what is said of each partition and its record bytes, cut ones included. FetchFailed,
        FetchThrottled.
        """
        request = self.build_fetch(
            version, asked, max_wait_ms=max_wait_ms, isolation_level=isolation_level
        )
        frame = self.call(request)
        answer = fetch.scan_response(frame, version)
        if answer.error_code:
            raise FetchFailed(answer.error_code)
        if asked and not answer.partitions:
            raise FetchThrottled(answer.throttle_time_ms)
        return [(p, frame[max(p.start, 0) : max(p.end, 0)]) for p in answer.partitions]

    def send_fetch(self, version: int, asked: list[FetchPartition], *, max_wait_ms: int) -> None:
        """Ask and do not wait for the answer."""
        self.send(self.build_fetch(version, asked, max_wait_ms=max_wait_ms))

    def build_produce(self, topic: str, records: bytes, acks: int = -1) -> bytes:
        """A Produce request of one batch to partition 0."""
        return frames.build_produce(
            topic, records, acks, correlation_id=self._next_id(), client_id=self.client_id
        )

    def produce(self, topic: str, records: bytes) -> int:
        """Append one batch to partition 0; the offset that the broker gave it."""
        answer = self.call(self.build_produce(topic, records))
        said = frames.read_produced(answer)
        assert said.error_code == 0, said
        return said.base_offset

    def produce_past_errors(self, topic: str, records: bytes) -> int:
        """`produce`, again while the broker leads nothing: its controller fences one that was too busy to report."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            said = frames.read_produced(self.call(self.build_produce(topic, records)))
            is_late = time.monotonic() > deadline
            if said.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER or is_late:
                assert said.error_code == 0, said
                return said.base_offset
            time.sleep(POLL_S)

    def abort(self) -> None:
        """Reset the connection, as a client does that dies."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class RawReader:
    """Walks one partition from `offset` on. `raw`: what was read; `received_bytes` counts cut batches too. It carries
    the leader epoch that Metadata names, as clients do, and asks Metadata again when that is out of date; without
    `with_epoch` it carries none.
    """

    def __init__(
        self,
        client: RawClient,
        topic: str,
        *,
        partition: int = 0,
        version: int = FETCH_VERSION,
        offset: int = 0,
        max_bytes: int = MAX_BYTES,
        with_epoch: bool = True,
    ) -> None:
        self.client = client
        self.version = version
        self.partition = partition
        self.topic = client.topic(topic, partition + 1)
        self.offset = offset
        self.max_bytes = max_bytes
        self.with_epoch = with_epoch
        self.raw = bytearray()
        self.received_bytes = 0
        self.high_watermark = -1
        self.log_start_offset = -1

    def asked(self) -> FetchPartition:
        """What the next Fetch says of the partition."""
        key = self.topic.id if self.version >= fetch.TOPIC_IDS_FROM else self.topic.name
        epoch = self.topic.epochs[self.partition] if self.with_epoch else NO_EPOCH
        return FetchPartition(key, self.partition, epoch, self.offset, -1, -1, self.max_bytes)

    def poll(self, max_wait_ms: int = 0) -> int:
        """One Fetch; the bytes of whole batches it brought, 0 where it only taught a newer epoch. FetchFailed."""
        ((said, records),) = self.client.fetch(
            self.version, [self.asked()], max_wait_ms=max_wait_ms
        )
        if self.with_epoch and said.error_code in STALE_EPOCH:
            time.sleep(POLL_S)  # Metadata may be behind the log
            known = self.topic
            found = self.client.topic(known.name, self.partition + 1)
            self.topic = found if found.id == known.id else known
            return 0
        return self.take(said, records)

    def take(self, said: fetch.FetchedPartition, records: bytes) -> int:
        """Keep what one Fetch brought for this partition; the bytes of its whole batches. FetchFailed."""
        if said.error_code:
            raise FetchFailed(said.error_code)
        self.high_watermark, self.log_start_offset = said.high_watermark, said.log_start_offset
        self.received_bytes += len(records)
        batches = batch.scan_batches(records, 0, len(records))
        if not batches:
            return 0
        self.raw += records[: batches[-1].end]
        self.offset = batches[-1].last_offset + 1
        return batches[-1].end

    def read_to(self, offset: int, max_wait_ms: int = 500) -> bytes:
        """Fetch until everything below `offset` is read; all that was read. TimeoutError."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.offset < offset:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.topic.name} was read to {self.offset}, not to {offset}")
            self.poll(max_wait_ms)
        return bytes(self.raw)

    def settle(self, polls: int = 8, max_wait_ms: int = 40) -> Self:
        """Stand at the tail for a moment: the first fetches of a connection are the broker's to answer."""
        self.read_past_errors()
        for _ in range(polls):
            self.poll(max_wait_ms)
        return self

    def read_past_errors(self, max_wait_ms: int = 0) -> None:
        """Fetch until no error is answered: Metadata may run ahead of the log. The last FetchFailed."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                self.poll(max_wait_ms)
            except FetchFailed:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)
            else:
                return


def read_all(
    address: str,
    topic: str,
    *,
    partition: int = 0,
    version: int = FETCH_VERSION,
    start: int = 0,
    end: int = -1,
) -> bytes:
    """Every batch of a partition from `start` to `end`, on a connection of its own; -1: to its high watermark, which
    Forebay may know a moment later than the broker.
    """
    with RawClient(address, "raw-whole") as client:
        reader = RawReader(client, topic, partition=partition, version=version, offset=start)
        reader.read_past_errors()
        return reader.read_to(end if end >= 0 else reader.high_watermark)


def end_of(raw: bytes) -> int:
    """The offset after the last of these batches; 0 of none."""
    batches = batch.scan_batches(raw, 0, len(raw))
    return batches[-1].last_offset + 1 if batches else 0


def explain(one: bytes, other: bytes) -> str:
    """Where two runs of batches first differ, for an assertion's message."""
    if one == other:
        return ""
    pairs = zip(
        batch.scan_batches(one, 0, len(one)), batch.scan_batches(other, 0, len(other)), strict=False
    )
    for left, right in pairs:
        if one[left.start : left.end] != other[right.start : right.end]:
            return f"{len(one)} and {len(other)} bytes differ in\n {left}\n {right}"
    return f"one of {len(one)} and {len(other)} bytes is longer"
