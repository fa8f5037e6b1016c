"""How many bytes may be in flight, and who stops reading when they are.

Owns the two process-wide counts (requests, responses) and the wires that were paused at the bound. It must
not know what the bytes are. Invariants: what was added is taken away once; a wire paused here is resumed when
the count is below the bound again, or it holds nothing itself; one frame larger than the whole bound passes
at full charge, since reading stops only after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxy.wire import Wire

RESUME_AT = 0.75
"""Reading goes on below this share of the bound, so that a process at its bound does not flap."""


class Bound:
    """A count of bytes with a limit. Plain integers: the scrape reads them."""

    __slots__ = ("in_flight_bytes", "limit_bytes", "paused", "pauses")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.in_flight_bytes = 0
        self.pauses = 0
        self.paused: dict[Wire, None] = {}
        """Who waits for the count to fall: while it is empty, `sub` only subtracts."""

    @property
    def paused_wires(self) -> int:
        """Connections that wait for the count to fall."""
        return len(self.paused)

    def add(self, nbytes: int, reader: Wire) -> None:
        """`reader` brought `nbytes`: at the bound it is not read any more."""
        self.in_flight_bytes += nbytes
        if self.in_flight_bytes >= self.limit_bytes:
            self.pause(reader)

    def pause(self, reader: Wire) -> None:
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
                wire.release_reading(self)

    def let_one(self, reader: Wire) -> None:
        """`reader` holds nothing any more: at the bound too it may bring one more, so that those who do not
        take their answers starve nobody else.
        """
        if self.paused.pop(reader, False) is None:
            reader.release_reading(self)

    def forget(self, reader: Wire) -> None:
        """`reader` is gone."""
        self.paused.pop(reader, None)
