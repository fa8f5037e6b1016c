"""A partition's log as the broker shows it: its batches, its offsets, its aborted transactions.

Owns reading them, past Forebay. Must not know what is compared with them. Invariant: nothing is appended or deleted
while a log is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from protocol import fetch
from protocol.batch import Batch, is_control, scan_batches
from protocol.control_batch import ControlType, scan_control

if TYPE_CHECKING:
    from tests.e2e.differential.cases import Place
    from tests.kit.raw_fetch import RawClient

VERSION = 13
MAX_BYTES = 8 << 20


class Aborted(NamedTuple):
    """An aborted transaction; `last_offset` is its marker's."""

    producer_id: int
    first_offset: int
    last_offset: int


class Log(NamedTuple):
    """`batches` are spans of `raw`; `aborted` in the order of their markers."""

    place: Place
    epoch: int
    start: int
    stable: int
    end: int
    raw: bytes
    batches: list[Batch]
    aborted: list[Aborted]

    def find(self, offset: int) -> int:
        """The index of the first batch that ends at or after `offset`."""
        return next(
            (i for i, one in enumerate(self.batches) if one.last_offset >= offset),
            len(self.batches),
        )

    def records(self, index: int, count: int) -> bytes:
        """The bytes of so many batches."""
        chosen = self.batches[index : index + count]
        return self.raw[chosen[0].start : chosen[-1].end] if chosen else b""


def read_log(client: RawClient, place: Place, epoch: int, start: int) -> Log:
    """The log of `place` from its start to its HW, and the aborted transactions that read_committed is told."""
    said, _ = _ask(client, place, start, 0)
    stable, end = said.last_stable_offset, said.high_watermark
    raw, offset = bytearray(), start
    while offset < end:
        _, records = _ask(client, place, offset, 0)
        found = scan_batches(records, 0, len(records))
        if not found:
            break  # what is left of it was compacted
        raw += records[: found[-1].end]
        offset = found[-1].last_offset + 1
    pairs: dict[tuple[int, int], None] = {}
    offset = start
    while offset < stable:
        said, records = _ask(client, place, offset, 1)
        pairs |= dict.fromkeys(said.aborted or ())
        found = scan_batches(records, 0, len(records))
        if not found:
            break
        offset = found[-1].last_offset + 1
    batches = scan_batches(raw, 0, len(raw))
    return Log(
        place,
        epoch,
        start,
        stable,
        end,
        bytes(raw),
        batches,
        _find_aborted(raw, batches, list(pairs)),
    )


def _ask(
    client: RawClient, place: Place, offset: int, isolation_level: int
) -> tuple[fetch.FetchedPartition, bytes]:
    """What one Fetch says of it, and its records."""
    wanted = fetch.FetchPartition(place.topic_id, place.partition, -1, offset, -1, -1, MAX_BYTES)
    ((said, records),) = client.fetch(
        VERSION, [wanted], max_wait_ms=0, isolation_level=isolation_level
    )
    assert said.error_code == 0, f"{place}: error {said.error_code}"
    return said, records


def _find_aborted(
    raw: bytes | bytearray, batches: list[Batch], pairs: list[tuple[int, int]]
) -> list[Aborted]:
    """Each with its marker: the first abort of the producer id above its first offset."""
    markers = [
        (one.producer_id, one.base_offset)
        for one in batches
        if is_control(one.attributes) and scan_control(raw, one) is ControlType.ABORT
    ]
    found = [
        Aborted(
            producer_id, first, min(at for who, at in markers if who == producer_id and at > first)
        )
        for producer_id, first in pairs
    ]
    return sorted(found, key=lambda one: one.last_offset)
