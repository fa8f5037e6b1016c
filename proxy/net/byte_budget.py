"""Byte budgets: how many bytes may be in flight, and which connections pause reading at the limit.

Owns the count of a process-wide budget (there are two: requests and responses), the charges for
frames that have begun, and the paused framed transports. Must not know what the bytes are.
Invariants:
* every byte that was added is subtracted once.
* a transport paused here resumes when the count is below the limit again, or when it holds nothing
  itself.
* a frame is charged whole before memory is set aside for it. A frame that may not be charged stays
  unread.
* only one frame larger than ORDINARY_BYTES at a time may exceed the limit, or half of it. A frame
  larger than the whole limit thus passes at full charge, and frames that are never completed leave
  room for others.
"""

from __future__ import annotations

from typing import Protocol

RESUME_AT = 0.75
"""Reading resumes below this share of the limit, so that a process at its limit does not flap."""
LARGE_SHARE = 0.5
"""Share of the limit that unfinished frames larger than ORDINARY_BYTES may be charged for together.
"""
ORDINARY_BYTES = (1 << 20) + (1 << 16)
"""Largest request of a producer with default settings (max.request.size: 1 MiB), and its header."""


class BudgetedTransport(Protocol):
    """A framed transport, as its byte budget sees it. `charged_bytes`: the charge for the frame that
    has begun; the budget writes it.
    """

    charged_bytes: int

    def hold_reading(self, reason: object) -> None:
        """Read no more until `release_reading` is called for the same reason."""

    def release_reading(self, reason: object) -> None:
        """Undo `hold_reading`."""

    def offer(self) -> bool:
        """Whether a splice takes the large frame that has begun."""


class ByteBudget:
    """A count of bytes with a limit. The counts are plain integers, which the scrape reads. An
    unfinished frame of at most `uncharged_bytes` is charged only once it is whole.
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
        """Part of `in_flight_bytes`: the charges for frames that have begun and not ended."""
        self._large_bytes = 0
        self.pauses = 0
        self.paused: dict[BudgetedTransport, None] = {}
        """Transports that wait for the count to fall. While there is none, `sub` only subtracts."""
        self.waiting: dict[BudgetedTransport, int] = {}
        """Paused transports with a frame that has begun and may not be received yet, to its size in
        bytes; oldest first.
        """

    def set_limit(self, limit_bytes: int) -> None:
        """Take another limit. Bytes in flight beyond it stay charged and are served; no more is read until
        they have fallen below. Transports that have room by a higher limit resume.
        """
        self.limit_bytes = limit_bytes
        self.sub(0)

    @property
    def paused_transports(self) -> int:
        """Number of transports that wait for the count to fall."""
        return len(self.paused)

    def add(self, nbytes: int, reader: BudgetedTransport | None) -> None:
        """Charge `nbytes` that arrived on `reader`. Pauses `reader` when the count reaches the
        limit. None: they did not arrive now, or on a connection that is gone.
        """
        self.in_flight_bytes += nbytes
        if reader is not None and self.in_flight_bytes >= self.limit_bytes:
            self.pause(reader)

    def pause(self, reader: BudgetedTransport) -> None:
        """Pause reading on `reader` until the count falls. Has no effect on a transport that is
        paused already.
        """
        if reader not in self.paused:
            self.paused[reader] = None
            self.pauses += 1
            reader.hold_reading(self)

    def sub(self, nbytes: int) -> None:
        """Give back `nbytes`. Below RESUME_AT of the limit, paused transports resume, unless their
        frame has no room.
        """
        self.in_flight_bytes -= nbytes
        if self.paused and self.in_flight_bytes < self.limit_bytes * RESUME_AT:
            paused, self.paused = self.paused, {}
            for framed in paused:
                size_bytes = self.waiting.get(framed)
                if size_bytes is not None and not self.has_room(size_bytes):
                    self.paused[framed] = None
                    continue
                if size_bytes is not None:
                    del self.waiting[framed]
                    self._charge(framed, size_bytes)
                framed.release_reading(self)

    def let_one(self, reader: BudgetedTransport) -> None:
        """Resume `reader`, which holds nothing any more, even at the limit. Clients that do not
        read their responses thus starve nobody else. A transport whose frame waits for room stays
        paused.
        """
        if reader not in self.waiting and self.paused.pop(reader, False) is None:
            reader.release_reading(self)

    def forget(self, reader: BudgetedTransport) -> None:
        """Drop `reader`, whose connection is gone, with the charge for its unfinished frame."""
        self.paused.pop(reader, None)
        self.end(reader)
        self.sub(0)  # resumes others, which `end` alone does not

    # -- frames that have begun ----------------------------------------------------------------------------

    def has_room(self, frame_bytes: int) -> bool:
        """Whether a frame of this size may be received now."""
        if frame_bytes <= ORDINARY_BYTES or not self._large_bytes:
            return self.in_flight_bytes < self.limit_bytes
        is_within = self._large_bytes + frame_bytes <= self.limit_bytes * LARGE_SHARE
        return is_within and self.in_flight_bytes + frame_bytes <= self.limit_bytes

    @property
    def is_crowded(self) -> bool:
        """Whether transports are paused and unfinished frames may be the cause."""
        is_filled = self.unfinished_bytes >= self.limit_bytes * LARGE_SHARE
        return bool(self.paused) and (is_filled or self._large_bytes > 0)

    def begin(self, reader: BudgetedTransport, frame_bytes: int) -> None:
        """Charge a frame of `frame_bytes` that has begun on `reader`, or pause `reader` until there
        is room for it. Call `end` once the frame is whole.
        """
        if reader not in self.paused and self.has_room(frame_bytes):
            self._charge(reader, frame_bytes)
        elif reader not in self.waiting:
            self.waiting[reader] = frame_bytes
            self.pause(reader)

    def offer(self) -> None:
        """Timed: offer every waiting frame to a splice again, or receive it if there is room by
        now.
        """
        for reader, size_bytes in list(self.waiting.items()):
            has_passed = reader.offer()
            if has_passed or self.has_room(size_bytes):
                self.end(reader)
                if not has_passed:
                    self._charge(reader, size_bytes)
                self.paused.pop(reader, None)
                reader.release_reading(self)

    def _charge(self, reader: BudgetedTransport, frame_bytes: int) -> None:
        reader.charged_bytes = frame_bytes
        self.in_flight_bytes += frame_bytes
        self.unfinished_bytes += frame_bytes
        if frame_bytes > ORDINARY_BYTES:
            self._large_bytes += frame_bytes

    def end(self, reader: BudgetedTransport) -> None:
        """End the charge for the frame on `reader`, which is whole. From now on the holder of the
        frame charges for it. Call `sub` next, which resumes others.
        """
        self.waiting.pop(reader, None)
        size_bytes, reader.charged_bytes = reader.charged_bytes, 0
        self.in_flight_bytes -= size_bytes
        self.unfinished_bytes -= size_bytes
        if size_bytes > ORDINARY_BYTES:
            self._large_bytes -= size_bytes
