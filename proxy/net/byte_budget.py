"""How many bytes may be in flight, and who stops reading when they are.

Owns the two process-wide counts (requests, responses), what is charged for frames that have begun, and the wires that
are not read at the bound. It must not know what the bytes are. Invariants: what was added is taken away once; a wire
paused here is resumed when the count is below the bound again, or it holds nothing itself; a frame is charged whole
before memory is set aside for it, and waits unread where it may not be; of frames larger than ORDINARY_BYTES one at a
time may be beyond the bound or half of it, so that one larger than the whole bound passes at full charge, and those
that are never completed leave room for others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxy.net.framed_transport import FramedTransport

RESUME_AT = 0.75
"""Reading goes on below this share of the bound, so that a process at its bound does not flap."""
LARGE_SHARE = 0.5
"""Of the bound: what may be charged for unfinished frames larger than ORDINARY_BYTES."""
ORDINARY_BYTES = (1 << 20) + (1 << 16)
"""What producers send in one request unless told otherwise (max.request.size), and its header."""


class ByteBudget:
    """A count of bytes with a limit. Plain integers: the scrape reads them. An unfinished frame of `uncharged_bytes` or
    less is not charged before it is whole.
    """

    __slots__ = (
        "_large_bytes",
        "in_flight_bytes",
        "limit_bytes",
        "paused",
        "pauses",
        "uncharged_bytes",
        "unfinished_bytes",
        "waiting",
    )

    def __init__(self, limit_bytes: int, uncharged_bytes: int = 0) -> None:
        self.limit_bytes = limit_bytes
        self.uncharged_bytes = uncharged_bytes
        self.in_flight_bytes = 0
        self.unfinished_bytes = 0
        """Of these: charged for frames that have begun and not ended."""
        self._large_bytes = 0
        self.pauses = 0
        self.paused: dict[FramedTransport, None] = {}
        """Who waits for the count to fall: while it is empty, `sub` only subtracts."""
        self.waiting: dict[FramedTransport, int] = {}
        """Those of them with a frame that has begun, of this size, and may not be received yet; oldest first."""

    @property
    def paused_wires(self) -> int:
        """Connections that wait for the count to fall."""
        return len(self.paused)

    def add(self, nbytes: int, reader: FramedTransport) -> None:
        """`reader` brought `nbytes`: at the bound it is not read any more."""
        self.in_flight_bytes += nbytes
        if self.in_flight_bytes >= self.limit_bytes:
            self.pause(reader)

    def pause(self, reader: FramedTransport) -> None:
        """The count is at the bound: `reader` is not read any more."""
        if reader not in self.paused:
            self.paused[reader] = None
            self.pauses += 1
            reader.hold_reading(self)

    def sub(self, nbytes: int) -> None:
        """`nbytes` are done with."""
        self.in_flight_bytes -= nbytes
        if self.paused and self.in_flight_bytes < self.limit_bytes * RESUME_AT:
            paused, self.paused = self.paused, {}
            for wire in paused:
                size_bytes = self.waiting.get(wire)
                if size_bytes is not None and not self.has_room(size_bytes):
                    self.paused[wire] = None
                    continue
                if size_bytes is not None:
                    del self.waiting[wire]
                    self._charge(wire, size_bytes)
                wire.release_reading(self)

    def let_one(self, reader: FramedTransport) -> None:
        """`reader` holds nothing any more: at the bound too it may bring one more, so that those who do not
        take their answers starve nobody else.
        """
        if reader not in self.waiting and self.paused.pop(reader, False) is None:
            reader.release_reading(self)

    def forget(self, reader: FramedTransport) -> None:
        """`reader` is gone."""
        self.paused.pop(reader, None)
        self.end(reader)
        self.sub(0)

    # -- frames that have begun ----------------------------------------------------------------------------

    def has_room(self, frame_bytes: int) -> bool:
        """Whether a frame of this size may be received now."""
        if frame_bytes <= ORDINARY_BYTES or not self._large_bytes:
            return self.in_flight_bytes < self.limit_bytes
        is_within = self._large_bytes + frame_bytes <= self.limit_bytes * LARGE_SHARE
        return is_within and self.in_flight_bytes + frame_bytes <= self.limit_bytes

    @property
    def is_crowded(self) -> bool:
        """Whether others wait, and frames that have begun may be in their way."""
        is_filled = self.unfinished_bytes >= self.limit_bytes * LARGE_SHARE
        return bool(self.paused) and (is_filled or self._large_bytes > 0)

    def begin(self, reader: FramedTransport, frame_bytes: int) -> None:
        """A frame of this size has begun on `reader`: it is charged whole, or waits, and is not read, until it can be.
        Call `end` once it is whole.
        """
        if reader not in self.paused and self.has_room(frame_bytes):
            self._charge(reader, frame_bytes)
        elif reader not in self.waiting:
            self.waiting[reader] = frame_bytes
            self.pause(reader)

    def offer(self) -> None:
        """Timed: a frame that waits may pass by now, without memory of this process."""
        for reader, size_bytes in list(self.waiting.items()):
            has_passed = reader.offer()
            if has_passed or self.has_room(size_bytes):
                self.end(reader)
                if not has_passed:
                    self._charge(reader, size_bytes)
                self.paused.pop(reader, None)
                reader.release_reading(self)

    def _charge(self, reader: FramedTransport, frame_bytes: int) -> None:
        reader.charged_bytes = frame_bytes
        self.in_flight_bytes += frame_bytes
        self.unfinished_bytes += frame_bytes
        if frame_bytes > ORDINARY_BYTES:
            self._large_bytes += frame_bytes

    def end(self, reader: FramedTransport) -> None:
        """The frame that has begun on `reader` is whole: whoever holds it charges it from now on. Call `sub` then."""
        self.waiting.pop(reader, None)
        size_bytes, reader.charged_bytes = reader.charged_bytes, 0
        self.in_flight_bytes -= size_bytes
        self.unfinished_bytes -= size_bytes
        if size_bytes > ORDINARY_BYTES:
            self._large_bytes -= size_bytes
