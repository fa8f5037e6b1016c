"""One Fetch request as readable fields, and its frame.

Owns what a request may say, for both sides alike; a session is named by its role (`Step`), since ids differ. Must not
know what is answered. Invariant: every field can hold any value that the wire can hold.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import NamedTuple

from protocol import header
from protocol.fetch import REPLICA_STATE_FROM, SESSIONS_FROM, TOPIC_IDS_FROM, FetchPartition
from protocol.fetch_build import build_request

CONSUMER = -1
FUTURE_REPLICA = -3
NONE = -1
LARGE_BYTES = 50 << 20
REPLICA_STATE = struct.Struct(">BBBiqB")
"""One tagged field: count, tag 1, its size, replica id, replica epoch, no tags within (FetchRequest.json)."""


class Step(Enum):
    """What a request is to its conversation's fetch session (KIP-227)."""

    NONE = "no session (0, -1)"
    NEW = "a new session (0, 0)"
    NEXT = "the session's next epoch"
    RENEWED = "the session is replaced (id, 0)"
    CLOSED = "the session is closed (id, -1)"
    WRONG_EPOCH = "the session, with another epoch"
    UNKNOWN = "a session that is not there"
    UNKNOWN_FULL = "a session that is not there is replaced"
    NEGATIVE = "a negative session id, epoch 1"
    NEGATIVE_FULL = "a negative session id, epoch 0"
    NO_ID = "session id 0, epoch 3"


class Place(NamedTuple):
    """A partition, by the name and the id (16 bytes) of its topic."""

    topic: str
    topic_id: bytes
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def key(self, version: int) -> tuple[str | bytes, int]:
        """As requests and answers of that version name it."""
        return (self.topic_id if version >= TOPIC_IDS_FROM else self.topic), self.partition


class Wanted(NamedTuple):
    """One partition of a request."""

    place: Place
    offset: int
    max_bytes: int = LARGE_BYTES
    current_leader_epoch: int = NONE
    last_fetched_epoch: int = NONE
    log_start_offset: int = NONE

    def __str__(self) -> str:
        words = [f"{self.place} offset {self.offset}"]
        if self.max_bytes != LARGE_BYTES:
            words.append(f"max_bytes {self.max_bytes}")
        for name in ("current_leader_epoch", "last_fetched_epoch", "log_start_offset"):
            if getattr(self, name) != NONE:
                words.append(f"{name} {getattr(self, name)}")
        return ", ".join(words)


class Case(NamedTuple):
    """One request. `odd` names the odd fields that were drawn for it."""

    version: int
    partitions: tuple[Wanted, ...]
    step: Step = Step.NONE
    max_wait_ms: int = 0
    min_bytes: int = 1
    max_bytes: int = LARGE_BYTES
    isolation_level: int = 0
    forgotten: tuple[Place, ...] = ()
    rack_id: str = ""
    replica_id: int = CONSUMER
    odd: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = [f"Fetch v{self.version}"]
        if self.step is not Step.NONE:
            words.append(self.step.value)
        for name in Case._field_defaults:
            value = getattr(self, name)
            if name not in ("step", "odd", "forgotten") and value != Case._field_defaults[name]:
                words.append(f"{name} {value}")
        if self.forgotten:
            words.append(f"forgets {' '.join(map(str, self.forgotten))}")
        rows = "".join(f"\n      {wanted}" for wanted in self.partitions)
        return f"{', '.join(words)}{rows}"

    def build(self, session: tuple[int, int], client_id: str, correlation_id: int) -> bytes:
        """The frame, in this session (id, epoch)."""
        frame = build_request(
            self.version,
            correlation_id,
            client_id,
            max_wait_ms=self.max_wait_ms,
            min_bytes=self.min_bytes,
            max_bytes=self.max_bytes,
            isolation_level=self.isolation_level,
            session_id=session[0],
            session_epoch=session[1],
            partitions=[_build_partition(self.version, wanted) for wanted in self.partitions],
            forgotten=[place.key(self.version) for place in self.forgotten],
            rack_id=self.rack_id,
        )
        return frame if self.replica_id == CONSUMER else self._with_replica(frame)

    def _with_replica(self, frame: bytes) -> bytes:
        """The same from another replica id: a field of its own, from version 15 tagged (KIP-903)."""
        if self.version < REPLICA_STATE_FROM:
            at = header.peek_request(frame).body_start
            return frame[:at] + struct.pack(">i", self.replica_id) + frame[at + 4 :]
        tagged = REPLICA_STATE.pack(1, 1, REPLICA_STATE.size - 3, self.replica_id, NONE, 0)
        body = frame[4:-1] + tagged
        return struct.pack(">i", len(body)) + body

    @property
    def is_consumer(self) -> bool:
        """As FetchRequest.isConsumer says: neither a follower nor a future replica, which read to the log's end."""
        return self.replica_id < 0 and self.replica_id != FUTURE_REPLICA

    @property
    def has_session(self) -> bool:
        """Whether the version has sessions and the request says anything of one."""
        return self.version >= SESSIONS_FROM and self.step is not Step.NONE


def _build_partition(version: int, wanted: Wanted) -> FetchPartition:
    topic, partition = wanted.place.key(version)
    return FetchPartition(
        topic,
        partition,
        wanted.current_leader_epoch,
        wanted.offset,
        wanted.last_fetched_epoch,
        wanted.log_start_offset,
        wanted.max_bytes,
    )
