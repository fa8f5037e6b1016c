"""What the programme asks of a client library in Python; one module beside this one for each library.

Owns the shapes. Must not know a library. Invariants: calls return when the broker has answered; records come as
`show` prints them; a call that the library does not have raises Lacks with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tests.matrix.programme import build_value, digest_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

START_MS = 1_700_000_000_000
PATIENCE_S = 40.0
TIME_TYPES = {0: "CreateTime", 1: "LogAppendTime"}
Shown = list[Any]


class Lacks(Exception):
    """The library has no such call; the message is the reason."""


class Sent(NamedTuple):
    """A record to be sent."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp_ms: int


def build_record(number: int) -> Sent:
    """Record `number` of the programme."""
    key = None if number % 5 == 4 else b"k%d" % (number % 3)
    headers: list[tuple[str, bytes | None]] = []
    if number % 4 == 1:
        headers = [("number", b"%d" % number), ("empty", b"")]
    elif number % 4 == 2:
        headers = [("null", None)]
    return Sent(key, build_value(number), headers, START_MS + number * 1000)


def show(
    partition: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]] | None,
    timestamp_ms: int,
    timestamp_type: str,
) -> Shown:
    """How a record that was read is printed."""
    pairs = [[name, None if one is None else bytes(one).hex()] for name, one in headers or ()]
    shown_key = None if key is None else key.hex()
    return [partition, offset, shown_key, digest_of(value), pairs, timestamp_ms, timestamp_type]


class Producing(Protocol):
    """A producer with acks=all."""

    def send(self, topic: str, partition: int, numbers: Iterable[int]) -> list[int]:
        """Sends records, waits for all; their offsets."""

    def init(self) -> None: ...

    def begin(self) -> None: ...

    def send_offsets(self, topic: str, offset: int, group: str) -> None:
        """Partition 0's, as part of the transaction."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class Reading(Protocol):
    """A consumer; where it is assigned, it is assigned partition 0."""

    def assign(self, topic: str, offset: int) -> None: ...

    def seek(self, offset: int) -> None: ...

    def to_beginning(self) -> int:
        """The position then."""

    def to_end(self) -> int: ...

    def poll(self) -> Sequence[Shown]:
        """What has arrived, after at most a fifth of a second."""

    def subscribe(self, topic: str) -> None: ...

    def count_assigned(self) -> int: ...

    def commit(self) -> None: ...

    def find_time(self, topic: str, timestamp_ms: int) -> Any:
        """The offset for a time in partition 0, with the record's time where the library says it."""

    def ends(self, topic: str) -> list[int]: ...

    def close(self) -> None: ...


class Library(Protocol):
    """One client library, bound to a cluster. `lacks`: step -> why it cannot be run at all."""

    lacks: dict[str, str]

    def produce(self, codec: str = "none", transactional_id: str | None = None) -> Producing: ...

    def read(
        self,
        *,
        committed: bool = False,
        group: str | None = None,
        protocol: str = "classic",
        reset: bool = True,
    ) -> Reading: ...

    def create(self, topic: str, partitions: int) -> None: ...

    def count_nodes(self) -> int: ...

    def count_partitions(self, topic: str) -> int: ...

    def add_partitions(self, topic: str, total: int) -> None: ...

    def alter_config(self, topic: str, name: str, value: str) -> None: ...

    def read_config(self, topic: str, name: str) -> str | None: ...

    def delete_records(self, topic: str, before: int) -> int:
        """The low watermark of partition 0 then."""

    def groups(self) -> list[str]: ...

    def committed(self, group: str, topic: str, partitions: int) -> dict[str, int]: ...

    def topics(self) -> list[str]: ...

    def delete_topic(self, topic: str) -> None: ...

    def name_of(self, error: Exception) -> str | None:
        """Kafka's name of what went wrong; None for an error that is not the library's."""
