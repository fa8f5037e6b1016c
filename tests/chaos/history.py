"""What happened to records, as the clients saw it: who sent what, what was promised, who read what.

Owns the values and the one wording of a record's bytes, from which a reader knows whose it is. Must not know Kafka,
threads or Forebay. Invariants: a record has one (producer, sequence), also where it is copied by a pipeline; `digest`
is of key and value; an offset of -1 was never acknowledged.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import random

    from protocol.batch import Batch

FIELDS = 4
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
NO_TRANSACTION = -1


class Kind(Enum):
    """What a producer promises beyond acks=all."""

    PLAIN = "plain"
    IDEMPOTENT = "idempotent"
    TRANSACTIONAL = "transactional"


class Outcome(Enum):
    """How a transaction ended, as its producer knows."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Place(NamedTuple):
    """A partition."""

    topic: str
    partition: int


class Name(NamedTuple):
    """A record: its producer and its number there."""

    producer: str
    sequence: int


class Sent(NamedTuple):
    """A record that a producer gave to its library. `offset` -1: not acknowledged.

    `above`: the highest offset of its partition that had been acknowledged to its producer by then, -1 none.
    """

    name: Name
    place: Place
    digest: int
    offset: int
    transaction: int = NO_TRANSACTION
    above: int = -1


class Read(NamedTuple):
    """A record that a group got."""

    offset: int
    name: Name
    digest: int


@dataclass(slots=True)
class Group:
    """What a group read. `runs`: for each assignment of a partition what was read in it, in order.

    `reached`: the offset up to which each partition was read; nothing is said of one that is absent.
    `resumes`: whether members keep partitions while the group rebalances. `has_hung`: it is not at the end, and
    a member's close has not returned, which may keep its partitions from the others for good: that says nothing.
    """

    name: str
    topics: tuple[str, ...]
    committed: bool
    resumes: bool = False
    has_hung: bool = False
    runs: list[tuple[Place, list[Read]]] = field(default_factory=list)
    reached: dict[Place, int] = field(default_factory=dict)


@dataclass(slots=True)
class History:
    """A whole run.

    `outcomes`: (producer, transaction) -> how it ended. `ends`: the partitions' log ends when all was over.
    `pipelines`: sink topic -> source topic of an exactly-once copy. `stuck`: what did not come to an end in time.
    `batches`: heads of the batches in the brokers' logs.
    """

    kinds: dict[str, Kind] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    outcomes: dict[tuple[str, int], Outcome] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    ends: dict[Place, int] = field(default_factory=dict)
    pipelines: dict[str, str] = field(default_factory=dict)
    stuck: list[str] = field(default_factory=list)
    batches: dict[Place, list[Batch]] = field(default_factory=dict)

    def outcome_of(self, sent: Sent) -> Outcome:
        """COMMITTED for what is in no transaction."""
        if sent.transaction == NO_TRANSACTION:
            return Outcome.COMMITTED
        return self.outcomes.get((sent.name.producer, sent.transaction), Outcome.UNKNOWN)


def build_value(name: Name, transaction: int, size_bytes: int, rng: random.Random) -> bytes:
    """A record's value: one printable line of about `size_bytes`, compressible a little."""
    words = "".join(rng.choices(LETTERS, k=64))
    head = f"{name.producer}|{name.sequence}|{transaction}|"
    return (head + words * (size_bytes // len(words) + 1)).encode()[
        : max(size_bytes, len(head) + 8)
    ]


def scan_name(value: bytes) -> Name:
    """Whose record it is. ValueError for bytes that nobody here wrote."""
    parts = value.split(b"|", FIELDS - 1)
    if len(parts) != FIELDS:
        raise ValueError(f"not a record of ours: {value[:60]!r}")
    return Name(parts[0].decode(), int(parts[1]))


def digest_of(key: bytes | None, value: bytes | None) -> int:
    """Of what a record says, 32 bits."""
    return zlib.crc32(value or b"", zlib.crc32(key or b""))
