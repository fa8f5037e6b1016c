"""Records from the arena to a socket in one call: Python sees none of them unless the kernel leaves some.

Owns the lookups of one response, from where they are found to where they are sent, held or dropped.
Must not know what stands around the records, or what becomes of a hit. Invariants:
* What was found is pinned, or is not moved, until `send` has sent all of it, or `hold` or `drop` is
  called. Nothing is inserted until then.
* `size_bytes` is 0 while nothing is found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from blockcache._pyfastcache import ffi, lib
from blockcache.arena import SEGMENT, Hit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockcache.arena import Arena

HEAD_BYTES: Final = 8 * lib.FC_HIT_HEAD
ROOM_BYTES: Final = 1 << 20
"""Memory for the lookups of one response. A lookup takes 40 bytes and 32 for each of its pieces."""
LARGEST_BYTES: Final = ffi.sizeof("fc_hit")


class Sender:
    """The lookups of one response, of together `size_bytes`; `found` is C's memory for them, one behind another."""

    __slots__ = ("_arena", "_at", "_bytes", "_places", "_words", "found", "size_bytes")

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._bytes = ffi.new("uint8_t[]", ROOM_BYTES)
        self.found = ffi.cast("fc_hit *", self._bytes)
        self._words = memoryview(ffi.buffer(self._bytes)).cast("q")
        self._places: list[int] = []
        self._at = self.size_bytes = 0

    def find(
        self,
        slot: int,
        offset: int,
        limit_offset: int,
        max_bytes: int,
        at_least_one: bool = True,
    ) -> list[int] | None:
        """Find whole contiguous batches from the one that answers `offset`, each ending below
        `limit_offset`.

        They have at most `max_bytes`, but for the first if `at_least_one`. Returns next offset, size
        in bytes, number of pieces, whether these are pinned, and the clock of admitted bytes when
        the first batch was admitted. Nothing is kept of a lookup of 0 bytes. None: the offset is not
        stored, the slot is stale, or there is no memory for another lookup.
        """
        at, room = self._at, max_bytes if max_bytes > 0 else 0
        if at > ROOM_BYTES - LARGEST_BYTES:
            return None
        found = self.found if not at else ffi.cast("fc_hit *", self._bytes + at)
        if lib.fc_lookup(self._arena.header, slot, offset, limit_offset, room, at_least_one, found):
            return None
        words: list[int] = self._words[at >> 3 : (at + HEAD_BYTES) >> 3].tolist()
        if words[2]:
            self._places.append(at)
            self._at = at + HEAD_BYTES + words[2] * SEGMENT.size
            self.size_bytes += words[1]
        return words

    def send(self, fd: int, heads: bytes, cuts: Sequence[int]) -> int:
        """Send `heads` and what was found to a socket that nothing waits for; the records of lookup
        i stand before `heads[cuts[i]]`.

        Returns how many bytes the kernel has taken. Unless it took all, call `hold`: its rest is
        sent, and an error met, as usual.
        """
        sent: int = lib.fc_send(
            self._arena.header, self.found, len(self._places), fd, heads, len(heads), cuts
        )
        if sent == len(heads) + self.size_bytes:
            self._places.clear()
            self._at = self.size_bytes = 0
        return sent

    def _forget(self) -> None:
        self._places.clear()
        self._at = self.size_bytes = 0

    def hold(self) -> list[Hit]:
        """Return what was found, in its order: as views that hold its pins, or as copies that hold none."""
        places = self._places.copy()
        self._forget()
        return [self._hold_one(at) for at in places]

    def _hold_one(self, at: int) -> Hit:
        arena = self._arena
        next_offset, size_bytes, segments, pinned, admitted_at = self._words[
            at >> 3 : (at + HEAD_BYTES) >> 3
        ].tolist()
        if pinned:
            start = at + HEAD_BYTES
            packed = bytes(ffi.buffer(self._bytes + start, segments * SEGMENT.size))
            return arena.hit(packed, segments, next_offset, size_bytes, admitted_at)
        copy = bytearray(size_bytes)
        found = ffi.cast("fc_hit *", self._bytes + at)
        lib.fc_gather(arena.header, found, ffi.from_buffer(copy))
        return Hit((memoryview(copy).toreadonly(),), next_offset, size_bytes, admitted_at)

    def drop(self) -> None:
        """Release what was found: it is not wanted."""
        lib.fc_release_all(self._arena.header, self.found, len(self._places))
        self._forget()
