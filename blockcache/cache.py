"""BlockCache: record batches by partition and offset in a bounded arena, oldest out first. Read this first.

Owns: the Python API over C (native/pyfastcache.h), and offering pinned blocks to the owners of the pins before they
are evicted. Must not know: Kafka beyond batches' bounds, who may read what, clocks. Invariants: one thread; `insert`
never fails for lack of room; what `lookup` returns is whole batches, contiguous, as inserted; a slot or pin of the
past is recognised and refused; of several processes one inserts and evicts, the others look up (`attach`), and find
nothing while the arena is `is_withheld` from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

from blockcache._pyfastcache import ffi, lib
from blockcache.appending import make_appender
from blockcache.arena import Arena, Hit
from blockcache.arena_file import HOLDERS, ArenaError, open_memory
from blockcache.errors import (
    ArenaTorn,
    BadBatch,
    CacheBroken,
    CacheError,
    PartitionsFull,
    StaleSlot,
)
from blockcache.layout import BROKEN, HEADER_BYTES, NODE_BYTES
from blockcache.left import inspect_left
from blockcache.results import Edges, Inserted, Span
from blockcache.sections import plan_sections
from blockcache.sending import Sender
from blockcache.statistics import CacheStatistics, read_statistics

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from blockcache.arena_file import ArenaMemory
    from blockcache.left import Left

Buffer = bytes | bytearray | memoryview

SIZE_MIN = 64 * 1024
CLOCK_MAX = 1 << 62
fc_contiguous_ends: Callable[..., int] = lib.fc_contiguous_ends
NOT_STORED, RECLAIM, TORN = lib.FC_NOT_STORED, lib.FC_RECLAIM, lib.FC_TORN
WITHHELD = TORN, lib.FC_BUSY, lib.FC_STALE
"""Nothing to a process that only reads: its keeper may drop a partition, or a lock be held, at any moment."""
IDENTITY_BYTES: Final[int] = lib.FC_IDENTITY_BYTES
"""The most that `BlockCache.note_identity` takes."""
NO_EDGES = Edges(-1, -1, -1, -1, -1, -1)
READS_ONLY = "this process only reads the arena: its keeper inserts, evicts and opens"


class BlockCache:
    """The cache of one process. Slots stand for partitions; offsets are Kafka's; sizes are bytes.

    `size_bytes` is the whole arena, index and tables included. It lies in `memory`, which the cache owns; None: in
    anonymous memory of its own. An `observe` cache keeps the index, the ages and the order of
    eviction of one of that size, and of each batch only the header: nothing can be looked up, `span` says what
    could; it takes at most about a quarter of `size_bytes`. The other arguments bound the
    arena's sections; by default they follow from the size. Raises ArenaError where it cannot be had.

    Where `memory` holds an arena of this size, or another process writes one there, the cache `is_pending`: it is empty
    and stores nothing until `take_over` or `begin_anew`.
    """

    def __init__(
        self,
        size_bytes: int,
        memory: ArenaMemory | None = None,
        *,
        max_partitions: int | None = None,
        max_ghosts: int | None = None,
        index_nodes: int | None = None,
        block_min_bytes: int | None = None,
        block_max_bytes: int | None = None,
        shared_block_bytes: int | None = None,
        pin_limit_bytes: int | None = None,
        lent_limit_bytes: int | None = None,
        observe: bool = False,
    ) -> None:
        if size_bytes < SIZE_MIN:
            raise ArenaError(f"an arena needs at least {SIZE_MIN} bytes, not {size_bytes}")
        sections = plan_sections(
            size_bytes,
            partitions_max=max_partitions,
            ghosts_max=max_ghosts,
            nodes_max=index_nodes,
            block_min_bytes=block_min_bytes,
            block_max_bytes=block_max_bytes,
            shared_bytes=shared_block_bytes,
            pin_limit_bytes=pin_limit_bytes,
            lent_limit_bytes=lent_limit_bytes,
            observe=int(observe),
        )
        arena = Arena(size_bytes, open_memory() if memory is None else memory)
        self._sections = ffi.new("fc_config *", sections)
        if arena.is_left:
            arena.header = ffi.new("fc_arena *")
        if lib.fc_format(arena.header, self._sections) < 0:
            arena.close()
            raise ArenaError(
                f"an arena of {size_bytes} bytes cannot hold these sections: {sections}"
            )
        self._prepare(arena, is_pending=arena.is_left)
        if self.is_pending:
            self._follow_clock()

    def _prepare(self, arena: Arena, *, is_pending: bool) -> None:
        self._arena, self._a = arena, arena.header
        self.is_pending = is_pending
        """Whether an earlier process's arena is there, and nobody has decided about it."""
        self.reads_only = arena.holder != 0
        """Whether another process changes what is stored: this one may look up."""
        self.observes = bool(self._a.observe)
        self._is_shared = False
        self._slots: dict[tuple[bytes, int], int] = {}
        self._names: dict[int, tuple[bytes, int]] = {}
        self.sender = Sender(arena)
        self._span = ffi.new("fc_hit *")
        self._span_words = memoryview(ffi.buffer(self._span))[:16].cast("q")
        self._inserted = ffi.new("fc_inserted *")
        self._inserted_words = memoryview(ffi.buffer(self._inserted)).cast("q")
        self._head = ffi.new("uint8_t[]", lib.FC_BATCH_HEADER)
        self._edges = ffi.new("fc_edges *")
        self._edges_words = memoryview(ffi.buffer(self._edges)).cast("q")
        self._offering = self.reads_only
        data_bytes = self._a.data_units * lib.FC_UNIT
        ahead = max(2 * self._a.block_max_bytes, data_bytes // 64)
        self.high_water_bytes: int = data_bytes - ahead
        self.low_water_bytes: int = data_bytes - 2 * ahead
        to = ffi.NULL if self.reads_only else self._a
        self.appender = make_appender(to, self.high_water_bytes)

    # Several processes

    @classmethod
    def attach(cls, memory: ArenaMemory, holder: int) -> BlockCache:
        """The cache that another process keeps in `memory`, which this one owns: to look up in, not to change.

        `holder`, 1 to HOLDERS - 1: by which number its pins are booked; what an earlier process of this number left
        pinned is let go. A process attaches to the same memory once (`is_same`). Raises ArenaError where no shared
        arena of this layout is there; ArenaInUse if another living process has this number; ArenaTorn.
        """
        if not 0 < holder < HOLDERS:
            raise CacheError(f"holders that read are 1 to {HOLDERS - 1}, not {holder}")
        if memory.size_bytes < HEADER_BYTES:
            memory.close()
            raise ArenaError("nobody has made an arena in this memory yet")
        arena = Arena(memory.size_bytes, memory, holder)
        a, is_shared = arena.header, False
        if a.layout == lib.FC_LAYOUT and a.size_bytes == memory.size_bytes:
            is_shared = bool(a.shared and (a.is_open or a.torn))
        rc = lib.fc_release_holder(a, holder, holder) if is_shared else lib.FC_OTHER
        if rc < 0:
            arena.close()
            if rc == TORN:
                raise ArenaTorn
            raise ArenaError(
                "the arena is of another layout, its keeper does not share it, or it is locked"
            )
        cache = cls.__new__(cls)
        cache._prepare(arena, is_pending=False)
        return cache

    def share(self) -> None:
        """Has each call take the arena's lock from now on, before another process attaches; while `is_pending`, once it
        is decided about. Raises ArenaTorn; CacheError if the system has no such lock.
        """
        self._must_write()
        self._is_shared = True
        if not self.is_pending:
            self._call(lib.fc_share(self._a))

    @property
    def is_withheld(self) -> bool:
        """Whether this process only reads, and another one has died or was stopped within a call, so that nothing is
        found now.
        """
        return self.reads_only and bool(self._a.torn or self._a.lock_stuck)

    def is_same(self, fd: int) -> bool:
        """Whether a descriptor is of this cache's memory. Who closes such a one has no lock on it any more."""
        return self._arena.memory.is_same(fd)

    @property
    def memory_fd(self) -> int:
        """The descriptor of the arena's memory, for another process to `attach`."""
        return self._arena.memory.fd

    def become(self, memory: ArenaMemory, holder: int) -> None:
        """Be the cache that another process keeps in `memory`, in place of what this one was: what holds this object
        goes on with the other. Hits of before stay as they are. As `attach`, but for memory that it reads already.
        """
        if self.is_same(memory.fd):
            self.decline(memory, holder)
            return
        former = self._arena.memory
        self.__dict__.update(BlockCache.attach(memory, holder).__dict__)
        former.close()

    def decline(self, memory: ArenaMemory, holder: int) -> None:
        """Close another descriptor of memory that is not to be attached. It may be this cache's, which closing lets go
        of: it is held again.
        """
        is_same = self.is_same(memory.fd)
        memory.close()
        if is_same:
            self._arena.memory.try_hold(holder)

    def release_holder(self, holder: int) -> bool:
        """Lets go of all pins of a reading process that is dead, in any thread if the arena is shared. False where that
        process still lives: call again. While `is_pending`, nothing: `inspect_left` does so. Raises ArenaTorn.
        """
        self._must_write()
        if self._arena.memory.is_living(holder):
            return False
        if not self.is_pending:
            self._call(lib.fc_release_holder(self._a, holder, 0))
        return True

    # An earlier process's arena

    @property
    def path(self) -> Path | None:
        """The arena's file; None: anonymous memory."""
        return self._arena.memory.path

    @property
    def other_bytes(self) -> int:
        """The size of an arena that was left and emptied, since it is another. 0: none."""
        return self._arena.other_bytes

    def _follow_clock(self) -> None:
        """The clock of admitted bytes goes on, whatever becomes of what was left."""
        now, left = self._a.admitted_bytes, self._arena.mapped.admitted_bytes
        self._a.admitted_bytes = self._a.admitted_before = left if now < left < CLOCK_MAX else now

    def try_lock(self) -> bool:
        """Become the arena's only writer. False while the process that wrote it before still does: `inspect_left` must
        wait. While `is_pending`.
        """
        is_mine = self._arena.memory.try_lock()
        if is_mine:
            self._follow_clock()
        return is_mine

    def inspect_left(self) -> Left:
        """Walks and checks the arena that was left, and lets go of what its process had pinned. While `is_pending`, in
        any thread, once `try_lock` has succeeded. Processes that are attached keep their pins.
        """
        return inspect_left(self._arena, self._sections)

    def take_over(self, left: Left) -> None:
        """Serves what `inspect_left` has found whole; to be called once."""
        self._attach()
        self._slots = dict(left.slots)
        self._names = {slot: name for name, slot in left.slots.items()}

    def clear_left(self) -> None:
        """Makes an empty arena of the one that was left: before `begin_anew`, in any thread. Raises ArenaTorn while
        other processes are attached: they need what is in it, this one other memory.
        """
        if self._arena.memory.find_living():
            raise ArenaTorn
        mapped, clock = self._arena.mapped, self._a.admitted_bytes
        lib.fc_begin_anew(mapped, self._sections, clock)

    def begin_anew(self) -> None:
        """Serves from an empty arena, after `clear_left`; to be called once."""
        self._attach()

    def _attach(self) -> None:
        if not self.is_pending:
            raise CacheError("no arena was left by an earlier process, or it was decided about")
        self.is_pending = False
        self._a = self._arena.header = self.appender.arena = self._arena.mapped
        if self._is_shared:
            self.share()

    def note_identity(self, identity: bytes) -> None:
        """Notes in the arena whose bytes these are, for who takes it over; at most IDENTITY_BYTES."""
        self._must_write()
        if not self.is_pending:
            ffi.buffer(self._a.identity)[:] = identity.ljust(IDENTITY_BYTES, b"\0")

    def note_alive(self, at: int) -> None:
        """Notes in the arena that its process was alive at a time of the caller's clock, above 0."""
        self._must_write()
        if not self.is_pending:
            self._a.alive_at = at

    # Partitions

    def open(self, topic_id: bytes, index: int) -> int:
        """The slot of a partition (16 raw bytes of topic id, partition index). Raises PartitionsFull."""
        slot = self._slots.get((topic_id, index))
        if slot is not None:
            return slot
        if len(topic_id) != 16:
            raise CacheError(f"a topic id has 16 bytes, not {len(topic_id)}")
        self._must_write()
        slot = self._call(lib.fc_open(self._a, topic_id, index))
        self._slots[topic_id, index] = slot
        self._names[slot] = (topic_id, index)
        return slot

    def drop(self, slot: int) -> None:
        """Forgets a partition and frees its slot; the slot is stale from here on."""
        self._must_write()
        self._call(lib.fc_drop(self._a, slot))
        del self._slots[self._names.pop(slot)]

    def expect(self, slot: int, offset: int) -> None:
        """Says where the tail starts while nothing is stored."""
        self._must_write()
        self._call(lib.fc_expect(self._a, slot, offset))

    def truncate(self, slot: int, from_offset: int) -> None:
        """Drops every batch that ends at or above `from_offset`: the log ends there now."""
        self._must_write()
        self._call(lib.fc_truncate(self._a, slot, from_offset))

    def advance_start(self, slot: int, log_start_offset: int) -> None:
        """Drops every batch that ends below `log_start_offset`, and refuses such from here on."""
        self._must_write()
        self._call(lib.fc_advance_start(self._a, slot, log_start_offset))

    # Bytes

    def insert(self, slot: int, buf: Buffer, start: int, end: int, covers_from: int) -> Inserted:
        """Stores what is new of `buf[start:end]`: one or more whole v2 batches, ascending.

        Offsets between the batches, and from `covers_from` (at most the first base offset) to the first, are
        known to be empty. A batch that is there already is kept as stored, also where the newcomer is its
        cleaned version. One that overlaps another epoch, other offsets or another producer's is a conflict:
        nothing is stored from there on; `truncate(slot, conflict_offset)` makes room for it. Raises BadBatch
        before storing anything.
        """
        self._not_while_offering()
        source = ffi.from_buffer(buf)
        if not 0 <= start <= end <= len(source):
            raise BadBatch(f"no run at [{start}, {end}) of {len(source)} bytes")
        out, words = self._inserted, self._inserted_words
        words[0], words[1], words[5], words[6], words[7] = 0, covers_from, 0, 0, 0
        rc = lib.fc_insert(self._a, slot, source + start, end - start, out)
        while rc == lib.FC_RECLAIM:
            self._offer()
            rc = lib.fc_insert(self._a, slot, source + start, end - start, out)
        self._call(rc)
        _, _, first_offset, next_offset, conflict_offset, stored, skipped, batches = words.tolist()
        return Inserted(stored, first_offset, next_offset, conflict_offset, skipped, batches)

    def make_room(self) -> None:
        """Has the owners of pins let go of the next block to be evicted. Raises CacheError within that."""
        self._not_while_offering()
        self._offer()

    def reserve(self, size_bytes: int) -> memoryview | None:
        """Memory for a request of `size_bytes` with one batch that `appender` is to store: lent until the last view of
        it is gone. None where no more may be lent, there is no room for it, or the cache only observes.
        """
        arena, used_max = self._arena, self.high_water_bytes
        arena.take_back()
        if self._offering:
            self._must_write()
            return None
        while (at := lib.fc_reserve(self._a, size_bytes, used_max)) in (RECLAIM, NOT_STORED):
            if at == RECLAIM:
                self._offer()
            else:
                self.eliminate()
                used_max = self._a.size_bytes
        if at == TORN:
            raise ArenaTorn
        return None if at < 0 else arena.lend(at, size_bytes)

    def lookup(
        self,
        slot: int,
        offset: int,
        limit_offset: int,
        max_bytes: int,
        at_least_one: bool = True,
        on_reclaim: Callable[[Hit], None] | None = None,
    ) -> Hit | None:
        """Whole contiguous batches from the one that answers `offset`, each ending below `limit_offset`.

        At most `max_bytes`, but for the first batch if `at_least_one`. None where the offset is not stored, or
        only observed; an empty hit (`next_offset == offset`) where it is, or is the tail's end, and nothing of
        it is readable within the limits. The caller releases the hit.
        """
        most = max(1, max_bytes)  # no batch is so small
        wanted = slot, offset, limit_offset, most
        _, (size_bytes,), (next_offset,), (admitted_at,), _ = self.sender.find_all(
            wanted, most, not at_least_one
        )
        if size_bytes < 0:
            self._find_nothing(size_bytes)
            return None
        if not size_bytes:
            return Hit((), next_offset, 0, admitted_at)
        (hit,) = self.sender.hold()
        if hit.pins:
            hit.on_reclaim = on_reclaim
        return hit

    def span(
        self, slot: int, offset: int, limit_offset: int, max_bytes: int, at_least_one: bool = True
    ) -> Span | None:
        """What `lookup` would find, without its bytes or pins; in an `observe` cache as in another."""
        room = max(0, max_bytes)
        rc = lib.fc_span(self._a, slot, offset, limit_offset, room, at_least_one, self._span)
        if rc:
            self._find_nothing(rc)
            return None
        next_offset, size_bytes = self._span_words.tolist()
        return Span(next_offset, size_bytes, self._span.cut == 1)

    def peek_head(self, slot: int, offset: int) -> bytes | None:
        """The 61 header bytes of the stored or observed batch that answers `offset`; None where there is none."""
        rc = lib.fc_copy_head(self._a, slot, offset, self._head)
        if rc:
            self._find_nothing(rc)
            return None
        return bytes(ffi.buffer(self._head))

    # Where things are

    def contiguous_end(self, slot: int, offset: int) -> int:
        """Where the stored run that covers `offset` ends; `offset` itself where nothing does."""
        end: int = lib.fc_contiguous_end(self._a, slot, offset)
        if end < 0:
            self._find_nothing(end)
            return offset
        return end

    def contiguous_ends(self, places: Any, count: int, ends: Any) -> None:
        """`contiguous_end` of `count` places by one call. `places`: words of C (`int64_t *`), slot and offset
        of each, one behind another. `ends` gets the end of each; that of a stale slot is negative, as are all while
        the arena `is_withheld`.
        """
        if (rc := fc_contiguous_ends(self._a, places, count, ends)) < 0:
            self._find_nothing(rc)

    def edges(self, slot: int, offset: int) -> Edges:
        """The tail, the hole that `offset` stands in or that follows its run, the newest epoch."""
        if (rc := lib.fc_find_edges(self._a, slot, offset, self._edges)) < 0:
            self._find_nothing(rc)
            return NO_EDGES
        return Edges._make(self._edges_words.tolist())

    def tail(self, slot: int) -> tuple[int, int]:
        """(start, end) of the newest contiguous run; equal: nothing is stored; (-1, -1): nothing is known."""
        return self.edges(slot, 0)[:2]

    def last_epoch(self, slot: int) -> int:
        """The leader epoch of the newest batch, or -1."""
        return self.edges(slot, 0).last_epoch

    def first_after_epoch(self, slot: int, leader_epoch: int) -> int:
        """The base offset of the oldest stored batch of a later epoch than this; -1 where there is none."""
        first: int = lib.fc_first_after_epoch(self._a, slot, leader_epoch)
        if first < 0:
            self._find_nothing(first)
            return -1
        return first

    def unaborted_from(self, slot: int, end: int, batches: int) -> int:
        """The least offset from which on, up to `end`, batches are stored without a gap and none is an abort marker;
        `end` where that is unknown. Looks at the newest `batches` of them.
        """
        return self._call(lib.fc_unaborted_from(self._a, slot, end, batches))

    def age_bytes(self, slot: int, offset: int) -> int | None:
        """Bytes admitted, over all partitions, since `offset` was, its own batch included: the smallest FIFO of bytes
        that holds it. None: neither stored nor in the ghost.
        """
        age: int = lib.fc_age(self._a, slot, offset)
        if age < 0:
            self._find_nothing(age)
            return None
        return age

    # Room

    def prefault(self, from_bytes: int, size_bytes: int) -> None:
        """Touches the arena's pages from one offset on, so that no insert pays for their first use.

        May run in another thread, beside any other call: no byte changes. Does nothing beyond the arena's
        end, once it is closed, and for an `observe` cache.
        """
        if not self.observes:
            self._arena.prefault(from_bytes, size_bytes)

    @property
    def resident_bytes(self) -> int:
        """Memory that the arena has taken so far."""
        return self._arena.resident_bytes

    def evict_to(self, low_water_bytes: int) -> int:
        """Evicts the oldest blocks until at most so many bytes of blocks are used; returns how many went."""
        self._not_while_offering()
        before = self._a.evicted_blocks[lib.FC_FOR_WATER]
        while (rc := lib.fc_evict_to(self._a, low_water_bytes)) == lib.FC_RECLAIM:
            self._offer()
        self._call(rc)
        evicted: int = self._a.evicted_blocks[lib.FC_FOR_WATER] - before
        return evicted

    def eliminate(self) -> int:
        """Evicts down to the low water if the high water is reached: for the owner to call ahead of need. Nothing by a
        process that only reads.
        """
        self._arena.take_back()
        if self.reads_only or self.used_bytes <= self.high_water_bytes:
            return 0
        return self.evict_to(self.low_water_bytes)

    @property
    def used_bytes(self) -> int:
        """Bytes of the data pool that belong to blocks, limbo included."""
        used: int = (self._a.data_units - self._a.free_units) * lib.FC_UNIT
        return used

    @property
    def block_max_bytes(self) -> int:
        """The largest size class of a block: holes as large are not filled."""
        size: int = self._a.block_max_bytes
        return size

    @property
    def batch_max_bytes(self) -> int:
        """The largest batch that is stored; insert skips larger ones."""
        size: int = self._a.batch_max_bytes
        return size

    def peek_admitted_bytes(self) -> int:
        """The clock of ages: record bytes admitted, all time."""
        clock: int = self._a.admitted_bytes
        return clock

    @property
    def oldest_admitted(self) -> int:
        """The clock when the oldest block's first batch was admitted; the present one if there is none."""
        clock: int = lib.fc_oldest_admitted(self._a)
        if clock < 0:
            self._find_nothing(clock)
            return self.peek_admitted_bytes()
        return clock

    @property
    def held_bytes(self) -> int | None:
        """Bytes of the batches in it; None while none was evicted for room. Its mean over time is the size of the
        FIFO of bytes that this cache is like (Little's law: each admitted byte stays for so many others).
        """
        held: int = self._a.live_bytes
        return held if any(self._a.evicted_blocks) else None

    @property
    def generation(self) -> int:
        """Of the newest block: how many there have been."""
        generation: int = self._a.generation
        return generation

    def statistics(self) -> CacheStatistics:
        """What is there now and what was counted, as plain integers."""
        self._arena.take_back()
        return read_statistics(self._a, self.oldest_admitted, lib.FC_UNIT, NODE_BYTES)

    def check(self) -> None:
        """Walks everything. Raises CacheBroken with the part that is not as it must be."""
        rc = lib.fc_check(self._a)
        if rc == TORN:
            raise ArenaTorn
        if rc < 0:
            raise CacheBroken(BROKEN.get(rc, str(rc)))

    def close(self) -> None:
        """Gives up the arena, not what is in it. Views that are still held stay readable; the cache does not."""
        self._arena.close()
        self._a, self.appender.arena = None, ffi.NULL

    # Inside

    def _offer(self) -> None:
        """Asks the owners of the pins on the next block to be evicted to let go."""
        self._arena.take_back()
        self._offering, self.appender.arena = True, ffi.NULL
        try:
            for hit in self._arena.holders(self._a.reclaim_block, self._a.reclaim_generation):
                if hit.pins and hit.on_reclaim is not None:
                    hit.on_reclaim(hit)
        finally:
            self._offering, self.appender.arena = False, self._a

    def _must_write(self) -> None:
        if self.reads_only:
            raise CacheError(READS_ONLY)

    def _not_while_offering(self) -> None:
        if self._offering:
            self._must_write()
            raise CacheError("on_reclaim may release and look up, not insert or evict")

    def _call(self, rc: int) -> int:
        """Passes a result on; raises what a negative one means."""
        return rc if rc >= 0 else self._refuse(rc)

    def _find_nothing(self, rc: int) -> None:
        """Returns where a negative result stands for nothing that is stored; raises what another one means."""
        if rc != NOT_STORED and not (self.reads_only and rc in WITHHELD):
            self._refuse(rc)

    def _refuse(self, rc: int) -> NoReturn:
        if rc == TORN:
            raise ArenaTorn
        if rc == lib.FC_STALE:
            raise StaleSlot("the partition was dropped since its slot was opened")
        if rc == lib.FC_FULL:
            raise PartitionsFull(f"all {self._a.partitions_max} partition slots are open")
        if rc == lib.FC_BAD_BATCH:
            raise BadBatch(
                "not a run of whole v2 record batches in ascending order from covers_from on"
            )
        raise CacheError(f"unexpected result {rc}")
