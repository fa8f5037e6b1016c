"""Records from the arena to a socket in one call: nothing of them is shown to Python unless the kernel leaves some.

Owns: one lookup at a time, from where it is found to where it is sent, held or dropped. Must not know: what stands
around the records, what becomes of a hit. Invariants: what was found is pinned until one of the three; at most one is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockcache._pyfastcache import ffi, lib
from blockcache.arena import SEGMENT, Hit

if TYPE_CHECKING:
    from blockcache.arena import Arena


class Sender:
    """The last lookup in an arena: `found` is C's, `head` its first words."""

    __slots__ = ("_arena", "_segments", "found", "head")

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.found = ffi.new("fc_hit *")
        words = memoryview(ffi.buffer(self.found))
        self.head = words[: 8 * lib.FC_HIT_HEAD].cast("q")
        self._segments = words[8 * lib.FC_HIT_HEAD :]

    def find(self, slot: int, offset: int, limit_offset: int, max_bytes: int) -> list[int] | None:
        """Whole contiguous batches from the one that answers `offset`, each ending below `limit_offset`, at most
        `max_bytes` but for the first: next offset, size in bytes, number of pieces, whether they are pinned (else they
        are better copied: `hold` does) and when the first was admitted. None, and nothing is held, where there is
        nothing.
        """
        room = max_bytes if max_bytes > 0 else 0
        if lib.fc_lookup(self._arena.header, slot, offset, limit_offset, room, True, self.found):
            return None
        found: list[int] = self.head.tolist()
        return found if found[2] else None

    def send(self, fd: int, head: bytes, end: bytes) -> int:
        """`head`, what was found pinned and `end`, to a socket that nothing waits for. Returns how many bytes the
        kernel has taken; unless all, what was found is to be held: its rest is sent, and an error met, as usual.
        """
        sent: int = lib.fc_send(self._arena.header, self.found, fd, head, len(head), end, len(end))
        return sent

    def hold(self) -> Hit:
        """What was found, as views that hold its pins, or as a copy that holds none."""
        arena = self._arena
        next_offset, size_bytes, segments, pinned, admitted_at = self.head.tolist()
        if segments == 0:
            return Hit((), next_offset, 0, admitted_at)
        if pinned:
            packed = bytes(self._segments[: segments * SEGMENT.size])
            return arena.hit(packed, segments, next_offset, size_bytes, admitted_at)
        copy = bytearray(size_bytes)
        lib.fc_gather(arena.header, self.found, ffi.from_buffer(copy))
        return Hit((memoryview(copy).toreadonly(),), next_offset, size_bytes, admitted_at)

    def drop(self) -> None:
        """What was found is not wanted."""
        if self.found.pinned:
            lib.fc_release(self._arena.header, self.found.segment, self.found.segments)
