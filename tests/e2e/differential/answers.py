"""A Fetch answer as plain values, read by kio: nothing under test has a say in what it holds.

Owns the reading. Must not know what was asked. Invariant: a field that a version lacks is None on both sides.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from protocol.api import FETCH
from protocol.batch import Batch, scan_batches
from tests.protocol import oracle

Key = tuple["str | bytes", int]


class Part(NamedTuple):
    """One partition of an answer. `said` are all fields but the aborted transactions and the records, by name."""

    said: dict[str, Any]
    aborted: list[tuple[int, int]] | None
    records: bytes
    batches: list[Batch]

    @property
    def error(self) -> int:
        return int(self.said["error_code"])

    @property
    def whole(self) -> bytes:
        """Its whole batches."""
        return self.records[: self.batches[-1].end] if self.batches else b""

    def __str__(self) -> str:
        said = {
            name: value
            for name, value in self.said.items()
            if name == "error_code" or value not in (-1, None, (-1, -1))
        }
        spans = (
            f"{self.batches[0].base_offset}..{self.batches[-1].last_offset}"
            if self.batches
            else "none"
        )
        return f"{said} aborted {self.aborted} offsets {spans} ({len(self.records)} bytes)"


class Answer(NamedTuple):
    """A whole answer; `parts` in the order in which they stand."""

    throttle_ms: int
    error: int
    session_id: int
    parts: dict[Key, Part]
    endpoints: list[tuple[Any, ...]]
    is_repeating: bool

    def __str__(self) -> str:
        rows = "".join(f"\n      {key[0]!r}-{key[1]}: {part}" for key, part in self.parts.items())
        head = f"error {self.error}, session {self.session_id}, throttled {self.throttle_ms} ms"
        return f"{head}{f', endpoints {self.endpoints}' if self.endpoints else ''}{rows}"


def read_answer(frame: bytes, version: int) -> Answer:
    """The answer of a frame; raises what kio raises for one that is none."""
    body = oracle.read_response(FETCH, version, frame)[1]
    parts: dict[Key, Part] = {}
    count = 0
    for topic in body.responses:
        for partition in topic.partitions:
            count += 1
            parts[oracle.topic_of(topic, "topic"), int(partition.partition_index)] = _read_part(
                partition
            )
    return Answer(
        oracle.milliseconds(body.throttle_time),
        int(getattr(body, "error_code", 0)),
        int(getattr(body, "session_id", 0)),
        parts,
        [
            (one.node_id, one.host, one.port, one.rack)
            for one in getattr(body, "node_endpoints", ())
        ],
        count != len(parts),
    )


def _read_part(partition: Any) -> Part:
    said: dict[str, Any] = {
        name: int(getattr(partition, name, -1))
        for name in (
            "error_code",
            "high_watermark",
            "last_stable_offset",
            "log_start_offset",
            "preferred_read_replica",
        )
    }
    said |= {
        name: _pair(partition, name)
        for name in ("diverging_epoch", "current_leader", "snapshot_id")
    }
    listed = partition.aborted_transactions
    aborted = (
        None
        if listed is None
        else [(int(one.producer_id), int(one.first_offset)) for one in listed]
    )
    records = bytes(partition.records or b"")
    said["records"] = "null" if partition.records is None else None
    return Part(said, aborted, records, scan_batches(records, 0, len(records)))


def _pair(partition: Any, name: str) -> tuple[int, ...]:
    """(epoch or leader id, end offset or epoch), -1 where it is not said."""
    found = getattr(partition, name, None)
    if found is None:
        return (-1, -1)
    return tuple(
        int(getattr(found, field))
        for field in ("epoch", "end_offset", "leader_id", "leader_epoch")
        if hasattr(found, field)
    )
