"""Raw readers of topics that change: Fetch of versions 4 to 17, by name and by id, with leader epochs.

Owns a thread, its connections, and what each Fetch brought. Must not know what is done to the topics. A reader
connects to the leader that Metadata names, has that broker's own Metadata tell the topic id and the epoch on the same
connection, reads some steps from somewhere (the start, the tail, where it was), and begins anew. Invariants: a Fetch
carries the epoch that was told last (version 9 on) or none; answers are kept as they came, equal batches once.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from kio.schema.list_offsets.v7.request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i64

from protocol import batch, control, fetch
from protocol.errors import BadFrame, ErrorCode
from protocol.metadata import scan_metadata_response
from tests.chaos.broker_logs import digest_of
from tests.chaos.readings import NO_EPOCH, Fetched
from tests.kit.raw_fetch import METADATA_VERSION, FetchFailed, FetchThrottled, RawClient
from tests.protocol import oracle

if TYPE_CHECKING:
    import random
    from collections.abc import Collection, Mapping, Sequence

EARLIEST, LATEST = -2, -1
LIST_OFFSETS, LIST_OFFSETS_VERSION = 2, 7
BY_NAME, BY_ID = (4, 7, 9, 10, 11, 12), range(13, 18)
EPOCHS_FROM = 9
STEPS = 40
MAX_WAIT_MS = 200
WHOLE_BYTES = 1 << 20
STEP_BYTES = (600, 2000, 1 << 20)
PAUSE_S = 0.1
ANSWER_S = 4.0
"""A broker that says nothing for so long is asked anew: many stand still in a run."""
TOO_HIGH_SHARE = 0.02
"""Of the requests: a current_leader_epoch that no broker knows."""


def reads_by_id(topic: str) -> str:
    """How a topic stands among the hushed ones when it may be read by name alone."""
    return f"reads of {topic} by id"


class Leader(NamedTuple):
    """What Metadata says of a partition."""

    address: str
    topic_id: bytes
    epochs: Mapping[int, int]
    partitions: tuple[int, ...]


class RawFollower(threading.Thread):
    """Reads `topics` (name -> partitions) until `finish`, but none of those that are `hushed`.

    `fetched`: what was read. `errors`: Kafka's error codes by count, and how connections ended.
    """

    def __init__(
        self,
        name: str,
        bootstrap: str,
        topics: Mapping[str, int],
        versions: Sequence[int],
        rng: random.Random,
        hushed: Collection[str] = (),
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._nodes = bootstrap.split(",")
        self._topics, self._versions, self._rng, self._hushed = dict(topics), versions, rng, hushed
        self._finishing = threading.Event()
        self._positions: dict[tuple[bytes, int], int] = {}
        self._known: dict[bytes, bytes] = {}
        self.fetched: list[Fetched] = []
        self.errors: dict[str, int] = {}

    def finish(self) -> None:
        self._finishing.set()

    def run(self) -> None:
        while not self._finishing.wait(PAUSE_S):
            wanted = [topic for topic in self._topics if not self._is_hushed(topic)]
            if not wanted:
                continue
            try:
                self._read(self._rng.choice(wanted))
            except (OSError, BadFrame, FetchFailed, FetchThrottled) as failed:
                self._count(f"{type(failed).__name__}")

    def _is_hushed(self, topic: str) -> bool:
        return topic in self._hushed or (
            reads_by_id(topic) in self._hushed and BY_ID[0] in self._versions
        )

    def _count(self, what: str) -> None:
        self.errors[what] = self.errors.get(what, 0) + 1

    def _read(self, topic: str) -> None:
        """Some steps of one connection to one leader."""
        with RawClient(self._rng.choice(self._nodes), self.name, ANSWER_S) as client:
            leaders = find_leaders(client, topic)
        if not leaders:
            return
        address = self._rng.choice(sorted({one.address for one in leaders.values()}))
        with RawClient(address, self.name, ANSWER_S) as client:
            mine = {
                place: one
                for place, one in find_leaders(client, topic).items()
                if one.address == address
            }
            if not mine:
                return
            places = sorted(mine)
            if (
                self._rng.random() < 0.5
            ):  # one partition alone is asked for in another way than several
                places = [self._rng.choice(places)]
            version = self._rng.choice(self._versions)
            offsets = {place: self._begin(client, topic, mine[place], place) for place in places}
            self._walk(client, version, topic, mine, offsets)

    def _begin(self, client: RawClient, topic: str, leader: Leader, partition: int) -> int:
        start = self._rng.random()
        if start < 0.4:
            return find_offset(client, topic, partition, EARLIEST)
        end = find_offset(client, topic, partition, LATEST)
        if start < 0.6:
            return self._rng.randint(0, max(end, 0))
        return self._positions.get((leader.topic_id, partition), max(end, 0))

    def _walk(
        self,
        client: RawClient,
        version: int,
        topic: str,
        leaders: dict[int, Leader],
        offsets: dict[int, int],
    ) -> None:
        step_bytes = self._rng.choice(STEP_BYTES)
        carries = version >= EPOCHS_FROM and self._rng.random() < 0.8
        for _ in range(STEPS):
            if self._finishing.is_set() or self._is_hushed(topic):
                return
            asked = [
                fetch.FetchPartition(
                    leaders[place].topic_id if version in BY_ID else topic,
                    place,
                    self._choose_epoch(leaders[place].epochs[place]) if carries else NO_EPOCH,
                    offset,
                    -1,
                    -1,
                    step_bytes,
                )
                for place, offset in offsets.items()
            ]
            sent_at = time.monotonic()
            answer = client.fetch(version, asked, max_wait_ms=MAX_WAIT_MS)
            by_partition = {one.partition: one for one in asked}
            for said, records in answer:
                one, leader = by_partition[said.partition], leaders[said.partition]
                if said.error_code:
                    self._count(f"error {said.error_code}")
                    if one.current_leader_epoch > leader.epochs[one.partition]:
                        continue  # too high on purpose
                    return
                end = self._keep(one, version, topic, leader, sent_at, records)
                offsets[one.partition] = max(end, one.fetch_offset)
                self._positions[leader.topic_id, one.partition] = offsets[one.partition]

    def read_whole(
        self, bootstrap: str, topic: str, partition: int, version: int, patience_s: float
    ) -> list[Fetched]:
        """A partition from its start to the high watermark that its leader names now. TimeoutError."""
        deadline = time.monotonic() + patience_s
        while True:
            try:
                return self._read_whole(bootstrap, topic, partition, version, deadline)
            except (OSError, BadFrame, FetchFailed, FetchThrottled) as failed:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"{topic}-{partition} is not read to its end: {failed!r}"
                    ) from failed
                time.sleep(PAUSE_S)

    def _read_whole(
        self, bootstrap: str, topic: str, partition: int, version: int, deadline: float
    ) -> list[Fetched]:
        with RawClient(bootstrap.split(",")[0], self.name, ANSWER_S) as client:
            leaders = find_leaders(client, topic)
        if partition not in leaders:
            raise FetchFailed(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        before = len(self.fetched)
        leader = leaders[partition]
        with RawClient(leader.address, self.name, ANSWER_S) as client:
            offset = find_offset(client, topic, partition, EARLIEST)
            end = find_offset(client, topic, partition, LATEST)
            key = leader.topic_id if version in BY_ID else topic
            epoch = leader.epochs[partition] if version >= EPOCHS_FROM else NO_EPOCH
            while offset < end:
                if time.monotonic() > deadline:
                    raise FetchFailed(ErrorCode.OFFSET_NOT_AVAILABLE)
                asked = fetch.FetchPartition(key, partition, epoch, offset, -1, -1, WHOLE_BYTES)
                sent_at = time.monotonic()
                ((said, records),) = client.fetch(version, [asked], max_wait_ms=MAX_WAIT_MS)
                if said.error_code:
                    raise FetchFailed(said.error_code)
                offset = max(self._keep(asked, version, topic, leader, sent_at, records), offset)
        return self.fetched[before:]

    def _choose_epoch(self, epoch: int) -> int:
        return epoch + 5 if self._rng.random() < TOO_HIGH_SHARE else epoch

    def _keep(
        self,
        asked: fetch.FetchPartition,
        version: int,
        topic: str,
        leader: Leader,
        sent_at: float,
        records: bytes,
    ) -> int:
        """Note what was brought; the offset after it, -1 where that was nothing."""
        heads = batch.scan_batches(records, 0, len(records))
        if not heads:
            return -1
        whole = (records[one.start : one.end] for one in heads)
        kept = tuple(self._known.setdefault(digest_of(data), data) for data in whole)
        self.fetched.append(
            Fetched(
                self.name,
                version,
                topic,
                leader.topic_id,
                asked.partition,
                version in BY_ID,
                sent_at,
                asked.current_leader_epoch,
                asked.fetch_offset,
                kept,
            )
        )
        return heads[-1].last_offset + 1


def find_leaders(client: RawClient, topic: str) -> dict[int, Leader]:
    """Partition -> its leader, as the broker at the other end knows; {} where it knows of no such topic."""
    request = control.build_metadata_request(METADATA_VERSION, 1, client.client_id, topics=[topic])
    said = scan_metadata_response(client.call(request), METADATA_VERSION)
    addresses = {one.node_id: f"{one.host}:{one.port}" for one in said.brokers}
    (found,) = said.topics
    if not found.topic_id or not any(found.topic_id):
        return {}
    epochs = {one.partition: one.leader_epoch for one in found.partitions}
    led = [one for one in found.partitions if one.leader_id in addresses]
    numbers = tuple(one.partition for one in found.partitions)
    return {
        one.partition: Leader(addresses[one.leader_id], found.topic_id, epochs, numbers)
        for one in led
    }


def find_offset(client: RawClient, topic: str, partition: int, timestamp: int) -> int:
    """EARLIEST, or LATEST: the high watermark (ListOffsets). FetchFailed."""
    asked = ListOffsetsPartition(
        partition_index=i32(partition), current_leader_epoch=i32(NO_EPOCH), timestamp=i64(timestamp)
    )
    body = ListOffsetsRequest(
        replica_id=BrokerId(-1),
        isolation_level=i8(0),
        topics=(ListOffsetsTopic(name=TopicName(topic), partitions=(asked,)),),
    )
    answer = oracle.read_response(
        LIST_OFFSETS,
        LIST_OFFSETS_VERSION,
        client.call(oracle.request_frame(body, 2, client.client_id)),
    )[1]
    said = answer.topics[0].partitions[0]
    if int(said.error_code):
        raise FetchFailed(int(said.error_code))
    return int(said.offset)
