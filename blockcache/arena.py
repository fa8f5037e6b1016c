"""The arena: one mapping of its memory, and the handles into it.

Owns: the mapping, `Hit` (views into the mapping, with their pins), and memory that is lent. Must not know: whose the
memory is (arena_file.py); what is stored where (that is C's, native/pyfastcache.h). Invariants: who does not have the
writer's lock changes nothing; views are slices of one memoryview over the mapping, which stays mapped while any of them
lives, and any lent memory.
"""

from __future__ import annotations

import mmap
import struct
from collections import deque
from typing import TYPE_CHECKING, Any

from blockcache._pyfastcache import ffi, lib
from blockcache.arena_file import ArenaError, ArenaInUse

if TYPE_CHECKING:
    from collections.abc import Callable

    from blockcache.arena_file import ArenaMemory

buffer, gc = ffi.buffer, ffi.gc
BUSY: int = lib.FC_BUSY
SEGMENT = struct.Struct("=4Q")  # fc_segment: position, length, the pin's block and generation


class Hit:
    """Contiguous whole batches of one partition: views into the arena, or a copy beyond the pin limit.

    `views` are read-only and valid until `release()`, which empties them; `size_bytes` is their sum;
    `next_offset` is where the next read goes on; `admitted_at` is what the clock of admitted bytes
    (`peek_admitted_bytes`) showed before the first batch was admitted. `on_reclaim(hit)` is called at most
    once per block, when that block is next to be evicted: copy what is still unsent and release, or the
    block is kept aside (limbo) until the release.
    """

    __slots__ = (
        "_arena",
        "_packed",
        "admitted_at",
        "next_offset",
        "on_reclaim",
        "pins",
        "size_bytes",
        "views",
    )

    def __init__(
        self,
        views: tuple[memoryview, ...],
        next_offset: int,
        size_bytes: int,
        admitted_at: int,
        arena: Arena | None = None,
        packed: bytes = b"",
        pins: int = 0,
    ) -> None:
        """`packed` are `pins` segments as C says them."""
        self._arena = arena
        self._packed = packed
        self.views = views
        self.size_bytes = size_bytes
        self.next_offset = next_offset
        self.admitted_at = admitted_at
        self.on_reclaim: Callable[[Hit], None] | None = None
        self.pins = pins
        """How many pins it holds; 0 when empty, copied or released."""

    def holds(self, block: int, generation: int) -> bool:
        """Whether one of its pins is on this block."""
        return any(pin[2:] == (block, generation) for pin in SEGMENT.iter_unpack(self._packed))

    def release(self) -> None:
        """Lets go of the pins and empties `views`. Further calls do nothing."""
        arena, pins = self._arena, self.pins
        self._arena, self.pins, self.views = None, 0, ()
        if arena is not None:
            arena.release(self, self._packed, pins)


class Returned(deque[Any]):
    """Where lent memory begins that nobody has any more, for C to be told. The mapping stays while any of it is lent.

    Whoever drops the last view only appends: that may be another thread, while it collects garbage.
    """

    __slots__ = ("mapping",)

    def __init__(self, mapping: mmap.mmap) -> None:
        super().__init__()
        self.mapping = mapping


class Arena:
    """The mapping, C's `fc_arena` in use (`header`), the hits that hold pins, and lent memory that was `returned`.

    `holder`: by which number its pins are booked; 0: it is the process that writes, or will be.

    `mapped`: the `fc_arena` in the mapping. `is_left`: it holds what an earlier process left, or still writes.
    `other_bytes`: the size of what an earlier process left where that was emptied, else 0.
    """

    def __init__(self, size_bytes: int, memory: ArenaMemory, holder: int = 0) -> None:
        """Owns `memory`, which holder 0 empties unless it has this size. Raises ArenaError: ArenaInUse if another
        process writes to one of another size, or has this holder's number.
        """
        self.memory = memory
        self.holder = holder
        left_bytes = memory.size_bytes
        self.is_left = left_bytes == size_bytes
        self.other_bytes = 0 if self.is_left else left_bytes
        try:
            if holder:
                if not self.is_left or not memory.try_hold(holder):
                    raise ArenaInUse(f"another process is the arena's holder {holder}")
            elif memory.try_lock():
                if not self.is_left and memory.find_living():
                    raise ArenaInUse("other processes read from the arena, which has another size")
                memory.allocate(size_bytes)
            elif not self.is_left:
                raise ArenaInUse("another process writes to the arena, which has another size")
        except ArenaError:
            memory.close()
            raise
        self._mapping = mmap.mmap(memory.fd, size_bytes)
        self._keep = ffi.from_buffer(self._mapping)
        self.mapped = self.header = ffi.cast("fc_arena *", self._keep)
        self._base = ffi.cast("char *", self.header)
        self.view = memoryview(self._mapping).toreadonly()
        self.hits: set[Hit] = set()
        self.returned = Returned(self._mapping)
        self.unreleased: list[tuple[bytes, int]] = []
        """Pins that are not wanted any more, and that the lock was not to be had for."""

    def hit(
        self, packed: bytes, pins: int, next_offset: int, size_bytes: int, admitted_at: int
    ) -> Hit:
        """The `Hit` of C's segments: views that hold the pins C has taken."""
        view = self.view
        views = tuple([view[at : at + length] for at, length, _, _ in SEGMENT.iter_unpack(packed)])
        hit = Hit(views, next_offset, size_bytes, admitted_at, self, packed, pins)
        self.hits.add(hit)
        return hit

    def release(self, hit: Hit, packed: bytes, pins: int) -> None:
        """Gives back a hit's pins; nothing once the arena is closed."""
        self.hits.discard(hit)
        if self.header is not None:
            self.unpin(packed, pins)

    def unpin(self, packed: bytes, pins: int) -> None:
        """Gives back the pins of C's segments: now, or by `unpin_rest` if the lock is not to be had."""
        segments = ffi.from_buffer("fc_segment[]", packed)
        if lib.fc_release(self.header, self.holder, segments, pins) == BUSY:
            self.unreleased.append((packed, pins))

    def unpin_rest(self) -> None:
        """Gives back the pins that `unpin` could not."""
        rest, self.unreleased = self.unreleased, []
        for number, (packed, pins) in enumerate(rest):
            self.unpin(packed, pins)
            if self.unreleased:
                self.unreleased += rest[number + 1 :]
                return

    def lend(self, at: int, size_bytes: int) -> memoryview:
        """Memory to be written to, which C has reserved; among the `returned` once its last view is gone."""
        return memoryview(buffer(gc(self._base + at, self.returned.append), size_bytes))

    def take_back(self) -> None:
        """Tells C of lent memory and pins that nobody has any more."""
        if self.unreleased:
            self.unpin_rest()
        while self.returned:
            lib.fc_give_back(self.header, self.returned.popleft())

    def prefault(self, from_bytes: int, size_bytes: int) -> None:
        """Touches pages, in C and without the interpreter's lock; nothing once the arena is closed."""
        keep, mapped, header = self._keep, self.mapped, self.header
        if keep is not None and header is not None:
            lib.fc_prefault(mapped, from_bytes, size_bytes)

    @property
    def resident_bytes(self) -> int:
        """Memory that the arena has taken so far, as the file system counts it."""
        return 0 if self.header is None else self.memory.resident_bytes

    def holders(self, block: int, generation: int) -> list[Hit]:
        """The hits that pin a block."""
        return [hit for hit in self.hits if hit.holds(block, generation)]

    def close(self) -> None:
        """Unmaps the memory, as soon as the last view into it is gone, and closes it."""
        if self.header is None:
            return
        self.header = self.mapped = self._keep = self._base = None
        self.hits.clear()
        self.view = memoryview(b"")
        del self.returned
        self.memory.close()
        del self._mapping
