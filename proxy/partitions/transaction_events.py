"""Transactions in batches, as a few events; and the events of ranges that arrive out of order.
Pure.

Owns the reading of batches (ProducerAppendInfo.append) and the pieces above the contiguous range
that `transactions` follows. Must not know which transactions are open, or the LSO. Invariants:
* a transactional data batch begins a transaction unless its producer id, of any epoch, has one:
  only the first batch is an event. A marker ends the transaction of its producer id.
* events are in offset order; dropped ones follow from an earlier event of the same piece.
* pieces are disjoint, not adjacent, and in order.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from protocol.batch import MAGIC_V2, is_control, is_transactional
from protocol.control_batch import ControlType, scan_control
from protocol.errors import BadFrame

if TYPE_CHECKING:
    from collections.abc import Iterable

    from protocol.batch import Batch
    from protocol.primitives import Frame

_OF_INTEREST = 0x30  # attribute bits: transactional, control


class Event(Enum):
    """A change of a producer's transaction at an offset."""

    BEGUN = "begun"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNREADABLE = "unreadable"
    """A marker of an unknown type: the log cleaner emptied it, or it is garbage."""


class TransactionEvent(NamedTuple):
    """Event at an offset: for BEGUN the base offset of the first batch, else the marker's offset."""

    offset: int
    producer_id: int
    event: Event


_MARKERS = {
    ControlType.COMMIT: Event.COMMITTED,
    ControlType.ABORT: Event.ABORTED,
    None: Event.UNREADABLE,
}


def scan_events(buf: Frame, batches: Iterable[Batch], from_offset: int) -> list[TransactionEvent]:
    """Return the events of these batches of `buf`, which are in offset order. Batches that end
    below `from_offset` are left out, and control records that end no transaction.
    """
    found = []
    for batch in batches:
        if (
            not batch.attributes & _OF_INTEREST
            or batch.magic != MAGIC_V2
            or batch.producer_id < 0
            or batch.last_offset < from_offset
        ):
            continue
        if is_control(batch.attributes):
            event = _scan_marker(buf, batch)
            if event is not None:
                found.append(TransactionEvent(batch.base_offset, batch.producer_id, event))
        elif is_transactional(batch.attributes):
            found.append(TransactionEvent(batch.base_offset, batch.producer_id, Event.BEGUN))
    return found


def _scan_marker(buf: Frame, batch: Batch) -> Event | None:
    try:
        return _MARKERS.get(scan_control(buf, batch))
    except BadFrame:
        return Event.UNREADABLE


class Piece:
    """The events of one range of offsets, [start, end). Nothing is known of the offsets before it."""

    __slots__ = ("_begun", "end", "events", "start")

    def __init__(self, start: int, end: int | None = None) -> None:
        """`end`: of a range without events, from which on `extend` goes on; None: `start`."""
        self.start = start
        self.end = start if end is None else end
        self.events: list[TransactionEvent] = []
        self._begun: set[int] = set()

    def extend(self, events: Iterable[TransactionEvent], end: int) -> None:
        """Extend the range to `end` with the events up to there. Events below the present end are
        already known, and ignored.
        """
        known_to, self.end = self.end, end
        for event in events:
            if event.offset < known_to:
                continue
            if event.event is Event.BEGUN:
                if event.producer_id in self._begun:
                    continue
                self._begun.add(event.producer_id)
            else:
                self._begun.discard(event.producer_id)
            self.events.append(event)

    def cut(self, end: int) -> Piece:
        """Return a new piece with the events below `end`."""
        part = Piece(self.start)
        part.extend((event for event in self.events if event.offset < end), end)
        return part


def merge(pieces: list[Piece], added: Piece) -> list[Piece]:
    """Return the pieces with `added`, which may overlap or touch any of them. `pieces` itself may
    be changed.
    """
    # the usual case: `added` continues the last piece
    if pieces and pieces[-1].start <= added.start <= pieces[-1].end:
        if added.end > pieces[-1].end:
            pieces[-1].extend(added.events, added.end)
        return pieces
    below = [piece for piece in pieces if piece.end < added.start]
    above = [piece for piece in pieces if piece.start > added.end]
    touching = sorted(
        (*pieces[len(below) : len(pieces) - len(above)], added), key=lambda piece: piece.start
    )
    merged = touching[0]
    for piece in touching[1:]:
        if piece.end > merged.end:
            merged.extend(piece.events, piece.end)
    return [*below, merged, *above]
