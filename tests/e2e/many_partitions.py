"""Several partitions of one topic, written by one Produce request and read by one Fetch.

Owns the request that writes a batch to each of them, and a reader that walks them together. It must not know whether
Forebay is in between, but for the two waits until memory has been taught what the topic's broker does with batches.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from protocol import batch, fetch
from tests.kit.frames import PRODUCE_VERSION
from tests.kit.raw_fetch import MAX_BYTES, FetchFailed, explain
from tests.protocol import oracle
from tests.protocol.golden_capture import produce_body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tests.kit.raw_fetch import RawClient
    from tests.kit.sidecar import Pair

FETCH_VERSION = 13
PATIENCE_S = 60.0
WAIT_MS = 500


def produce_all(client: RawClient, topic: str, batches: Mapping[int, bytes]) -> dict[int, int]:
    """One Produce request of a batch to each partition; the offsets after them."""
    body = produce_body(PRODUCE_VERSION, topic, UUID(int=0), b"")
    (entry,) = body.topic_data
    (partition,) = entry.partition_data
    data = tuple(
        replace(partition, index=index, records=records) for index, records in batches.items()
    )
    body = replace(body, topic_data=(replace(entry, partition_data=data),))
    answer = client.call(oracle.request_frame(body, client_id=client.client_id))
    (said,) = oracle.read_response(0, PRODUCE_VERSION, answer)[1].responses
    assert all(int(one.error_code) == 0 for one in said.partition_responses), said
    counts = {
        index: batch.scan_batches(raw, 0, len(raw))[0].record_count
        for index, raw in batches.items()
    }
    return {
        int(one.index): int(one.base_offset) + counts[one.index] for one in said.partition_responses
    }


class Partitions:
    """Walks `indices` of a topic on one connection. `offsets`: where each is; `raw`: what was read of it;
    `max_bytes`: of each in one Fetch.
    """

    def __init__(self, client: RawClient, topic: str, indices: Iterable[int]) -> None:
        self._client = client
        self.max_bytes = MAX_BYTES
        self.offsets = dict.fromkeys(indices, 0)
        self.raw = {index: bytearray() for index in self.offsets}
        self._topic = client.topic(topic, max(self.offsets) + 1)

    def poll(self, max_wait_ms: int = 0) -> None:
        """One Fetch of all. FetchFailed."""
        epochs = self._topic.epochs
        asked = [
            fetch.FetchPartition(
                self._topic.id, index, epochs[index], offset, -1, -1, self.max_bytes
            )
            for index, offset in self.offsets.items()
        ]
        for said, records in self._client.fetch(FETCH_VERSION, asked, max_wait_ms=max_wait_ms):
            if said.error_code:
                raise FetchFailed(said.error_code)
            found = batch.scan_batches(records, 0, len(records))
            if found:
                self.raw[said.partition] += records[: found[-1].end]
                self.offsets[said.partition] = found[-1].last_offset + 1

    def read_to(self, ends: Mapping[int, int]) -> None:
        """Fetch until each is read to its end. TimeoutError."""
        deadline = time.monotonic() + PATIENCE_S
        while any(self.offsets[index] < end for index, end in ends.items()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.offsets} of {ends}")
            self.poll(WAIT_MS)

    def read_again(self, starts: Mapping[int, int]) -> None:
        """From `starts` to where each is; `raw` is that then."""
        ends = dict(self.offsets)
        self.offsets.update(starts)
        self.raw = {index: bytearray() for index in self.offsets}
        self.read_to(ends)

    def find_unequal(self, direct: RawClient, starts: Mapping[int, int]) -> dict[int, str]:
        """Partitions of which `raw`, read from `starts` on, is not what another connection is given; the first
        difference of each.
        """
        other = Partitions(direct, self._topic.name, self.offsets)
        other.offsets, other.max_bytes = dict(self.offsets), self.max_bytes
        other.read_again(starts)
        return {
            i: explain(bytes(raw), bytes(other.raw[i]))
            for i, raw in self.raw.items()
            if raw != other.raw[i]
        }

    def follow(self, writer: RawClient, batches: Mapping[int, bytes]) -> int:
        """Write a batch to each, and read them; their bytes."""
        before = sum(map(len, self.raw.values()))
        self.read_to(produce_all(writer, self._topic.name, batches))
        return sum(map(len, self.raw.values())) - before

    def follow_until_hits(
        self,
        pair: Pair,
        writer: RawClient,
        batches: Callable[[int], Mapping[int, bytes]],
        *,
        from_produce: bool = False,
    ) -> dict[int, int]:
        """Write and read until all of a round comes from memory, and has come there from Produce if that is asked:
        where that round began. TimeoutError.
        """
        deadline = time.monotonic() + PATIENCE_S
        turn = 0
        while time.monotonic() < deadline:
            starts, stored, hits = dict(self.offsets), stored_batches(pair), hit_bytes(pair)
            size_bytes = self.follow(writer, batches(turn))
            is_stored = stored_batches(pair) - stored >= len(self.offsets)
            if (is_stored or not from_produce) and hit_bytes(pair) - hits >= size_bytes:
                return starts
            turn += 1
        raise TimeoutError(
            f"not all of a round is served from memory: {pair.sidecar.fetch_counts()}"
        )


def stored_batches(pair: Pair) -> float:
    """Batches stored from Produce so far."""
    return pair.sidecar.metrics().get(("forebay_produce_batches_total", "store"), 0)


def hit_bytes(pair: Pair) -> float:
    """Bytes served from memory so far."""
    return pair.sidecar.fetch_counts().get(("hit", ""), 0)
