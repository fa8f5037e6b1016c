"""Records from the arena to a socket in one call: Python sees none of them unless the kernel leaves some.

Owns the lookups of one response, from where they are found to where they are sent, held or dropped.
Must not know what stands around the records, or what becomes of a hit. Invariants:
* What was found is pinned, or is not moved, until `send` has sent all of it, or `hold` or `drop` is
  called. Nothing is inserted until then.
* `size_bytes` is 0 while nothing is found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from blockcache._pyfastcache import ffi, lib
from blockcache.arena import SEGMENT, Hit
from blockcache.errors import ArenaTorn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from blockcache.arena import Arena

HIT_HEAD: Final = lib.FC_HIT_HEAD
TAKEN_WORDS: Final = len(ffi.typeof("fc_taken").fields)
WANTED_WORDS: Final = len(ffi.typeof("fc_wanted").fields)
PINNED: Final = lib.FC_PINNED
"""What a hit says that keeps its pins; others that it has are let go once it is copied."""
ROOM_BYTES: Final = 1 << 20
"""Memory for the lookups of one response. A lookup takes 48 bytes and 32 for each of its pieces."""
NO_ROOM: Final = lib.FC_NO_ROOM
"""Size of what a partition gives to a response that is full."""
_TAKEN_ROOM: Final = 64
_find_all: Callable[..., int] = lib.fc_find_all


class Taken(NamedTuple):
    """What the partitions of a response give, each list in their order, and how many bytes of the response's limit
    are left.

    `sizes`: bytes of whole batches; 0: not even the first fits, or NO_ROOM, or another negative: the offset is not
    stored, the slot is stale, or there is no memory for another lookup. `next_offsets`: where the next read goes on.
    `admitted`: the clock of admitted bytes when the first batch was admitted, 0 where there is none.
    `timestamps`: maxTimestamp of the first batch, in ms since 1970, -1 where there is none.
    """

    room_bytes: int
    sizes: list[int]
    next_offsets: list[int]
    admitted: list[int]
    timestamps: list[int]


class Sender:
    """The lookups of one response: records of `hits` partitions, of together `size_bytes`."""

    __slots__ = (
        "_arena",
        "_hits",
        "_response",
        "_response_words",
        "_taken",
        "_taken_room",
        "_taken_words",
        "_words",
        "hits",
        "size_bytes",
    )

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._hits = ffi.new("uint8_t[]", ROOM_BYTES)
        self._words = memoryview(ffi.buffer(self._hits)).cast("q")
        self._response = ffi.new("fc_response *", {"holder": arena.holder})
        self._response_words = memoryview(ffi.buffer(self._response)).cast("Q")
        self.hits = self.size_bytes = 0
        self._make_room(_TAKEN_ROOM)

    def _make_room(self, partitions: int) -> None:
        """For so many in one call of `find_all`."""
        self._taken = ffi.new("fc_taken[]", partitions)
        self._taken_words = memoryview(ffi.buffer(self._taken)).cast("q")
        self._taken_room = partitions

    def find_all(self, wanted: Sequence[int], room_bytes: int, has_records: bool) -> Taken:
        """Find the records of several partitions of a response that may have `room_bytes` more of them.

        `wanted` has WANTED_WORDS integers for each: slot, fetch offset, limit offset, most bytes. A
        partition gives whole contiguous batches from the one that answers the offset, each ending
        below the limit offset, within its own limit and what is left of the response's. Only the
        response's first batch is given whatever its size; `has_records`: it has one. Where a broker
        would add a part of the next batch, that part counts as used (LogSegment.read). Nothing is found while the
        arena is withheld (`BlockCache.is_withheld`).
        Raises ArenaTorn.
        """
        count, response = len(wanted) // WANTED_WORDS, self._response_words
        if count > self._taken_room:
            self._make_room(count)
        if self._arena.unreleased:
            self._arena.unpin_rest()
        response[0] = room_bytes
        rc = _find_all(
            self._arena.header,
            wanted,
            count,
            has_records,
            self._response,
            self._hits,
            ROOM_BYTES,
            self._taken,
        )
        if rc < 0 and not self._arena.holder:
            raise ArenaTorn
        words = self._taken_words[: count * TAKEN_WORDS].tolist()
        room_bytes, self.hits, _, self.size_bytes, _ = self._response_words.tolist()
        columns = words[::TAKEN_WORDS], words[1::TAKEN_WORDS], words[2::TAKEN_WORDS]
        return tuple.__new__(Taken, (room_bytes, *columns, words[3::TAKEN_WORDS]))

    def send(self, fd: int, heads: bytes, cuts: Sequence[int]) -> int:
        """Send `heads` and what was found to a socket that nothing waits for; the records of lookup
        i stand before `heads[cuts[i]]`.

        Returns how many bytes the kernel has taken. Unless it took all, call `hold`: its rest is
        sent, and an error met, as usual.
        """
        sent: int = lib.fc_send(
            self._arena.header, self._response, self._hits, fd, heads, len(heads), cuts
        )
        if sent == len(heads) + self.size_bytes:
            self.hits = self.size_bytes = 0
            if self._response_words[1]:
                self._keep_unreleased()
        return sent

    def _keep_unreleased(self) -> None:
        """Have the arena give back later what C could not release."""
        at, response = 0, self._response
        for _ in range(response.hits):
            _, _, segments, pinned, _, _ = self._words[at : at + HIT_HEAD].tolist()
            start = 8 * (at + HIT_HEAD)
            end = start + segments * SEGMENT.size
            if pinned:
                packed = bytes(ffi.buffer(self._hits + start, end - start))
                self._arena.unreleased.append((packed, segments))
            at = end >> 3
        response.hits = response.hit_bytes = 0

    def hold(self) -> list[Hit]:
        """Return what was found, in its order: as views that hold its pins, or as copies that hold none."""
        at, hits = 0, []
        for _ in range(self.hits):
            hit, at = self._hold_one(at)
            hits.append(hit)
        response = self._response
        response.hits = response.hit_bytes = response.size_bytes = 0
        self.hits = self.size_bytes = 0
        return hits

    def _hold_one(self, at: int) -> tuple[Hit, int]:
        """Return what is described at word `at`, and the word behind it."""
        arena = self._arena
        next_offset, size_bytes, segments, pinned, admitted_at, _ = self._words[
            at : at + HIT_HEAD
        ].tolist()
        start = 8 * (at + HIT_HEAD)
        end = start + segments * SEGMENT.size
        if pinned == PINNED:
            packed = bytes(ffi.buffer(self._hits + start, end - start))
            return arena.hit(packed, segments, next_offset, size_bytes, admitted_at), end >> 3
        copy = bytearray(size_bytes)
        found = ffi.cast("fc_hit *", self._hits + 8 * at)
        lib.fc_gather(arena.header, found, ffi.from_buffer(copy))
        if pinned:
            arena.unpin(bytes(ffi.buffer(self._hits + start, end - start)), segments)
        view = memoryview(copy).toreadonly()
        return Hit((view,), next_offset, size_bytes, admitted_at), end >> 3

    def drop(self) -> None:
        """Release what was found: it is not wanted."""
        lib.fc_release_all(self._arena.header, self._response, self._hits)
        self.hits = self.size_bytes = 0
        if self._response_words[1]:
            self._keep_unreleased()
