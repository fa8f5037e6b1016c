"""What was read of topics that change underneath, and what had been done to them by then.

Owns the values. Must not know Kafka clients, threads or Forebay. Invariants: times are monotonic, in s; `settled_at` is
when every broker of the cluster, asked directly, answered as one that knows of the change, so that no client of bare
brokers could see the former state in an answer to a question asked later; infinite where that was not seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tests.chaos.broker_logs import digest_of

ATTRIBUTES_AT = 21
NEVER = float("inf")
NO_EPOCH = -1
AT_LAST = "at last"
"""How readers are named who read when all is over."""


class Fetched(NamedTuple):
    """What a Fetch on a raw connection brought of a partition: whole batches, as they came.

    `topic_id`: what Metadata had named on the same connection before. `epoch`: the current_leader_epoch of the
    request, NO_EPOCH without one.
    """

    reader: str
    version: int
    topic: str
    topic_id: bytes
    partition: int
    by_id: bool
    sent_at: float
    epoch: int
    offset: int
    batches: tuple[bytes, ...]

    def __str__(self) -> str:
        said = f"{'id' if self.by_id else 'name'} (v{self.version}), epoch {self.epoch}, from {self.offset}"
        return (
            f"{self.reader}: {self.topic}-{self.partition} by {said}, asked at {self.sent_at:.2f}"
        )


class Taken(NamedTuple):
    """A record as a client library hands it over. `stamp`: (0 CreateTime or 1 LogAppendTime, ms)."""

    offset: int
    digest: int
    stamp: tuple[int, int]


def digest_sent(data: bytes) -> bytes:
    """Of what a broker stores as it was sent: all from the attributes on, which the CRC covers."""
    return digest_of(data[ATTRIBUTES_AT:])


class Delivered(NamedTuple):
    """What a client, made at `made_at`, got of a partition from its start on. `end`: the high watermark then."""

    reader: str
    topic: str
    partition: int
    made_at: float
    end: int
    reached: int
    records: tuple[Taken, ...]

    def __str__(self) -> str:
        return f"{self.reader}: {self.topic}-{self.partition}, made at {self.made_at:.2f}"


class Incarnation(NamedTuple):
    """A topic of this id was made under its name. `settled_at`: no broker has a former one."""

    topic: str
    topic_id: bytes
    settled_at: float


class Cut(NamedTuple):
    """The log starts at `before`. `settled_at`: each replica refuses what lies below."""

    topic_id: bytes
    partition: int
    before: int
    settled_at: float


class Election(NamedTuple):
    """A leader was elected in `epoch`, uncleanly. `settled_at`: each replica knows that epoch."""

    topic_id: bytes
    partition: int
    epoch: int
    settled_at: float


class Last(NamedTuple):
    """When all was over, a partition was read from its start to its end: through Forebay, then past it. `took_s`: from
    the first question to the last answer.
    """

    reader: str
    topic: str
    partition: int
    through: tuple[bytes, ...]
    direct: tuple[bytes, ...]
    took_s: float


@dataclass(slots=True)
class Changes:
    """A whole run. `compacted`: topics that the cleaner may have changed, whose offsets may have gaps. `whole`: topics
    whose logs lose nothing but their beginning. `sent`: of a topic that loses records, `digest_sent` of all batches
    that were sent to it.
    """

    fetched: list[Fetched] = field(default_factory=list)
    delivered: list[Delivered] = field(default_factory=list)
    incarnations: list[Incarnation] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    elections: list[Election] = field(default_factory=list)
    last: list[Last] = field(default_factory=list)
    sent: dict[str, set[bytes]] = field(default_factory=dict)
    compacted: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()

    def ids_of(self, topic: str) -> list[bytes]:
        """In the order of their making."""
        return [one.topic_id for one in self.incarnations if one.topic == topic]
