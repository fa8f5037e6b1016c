"""An arena seen from beside: occupancy, blocks, and each partition's runs and holes, of a live or a dead process.

Owns the walk over a read-only mapping. Must not know files, or how the arena is changed. Invariants: writes
nothing; trusts nothing: numbers are held against the arena's bounds before they are followed, loops are bounded;
what changed while it was read (`changes` odd, or another one afterwards) is read again, at most `ATTEMPTS` times,
and then reported as torn, with what is known without a walk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from blockcache._pyfastcache import ffi, lib
from blockcache.arena_file import MAGIC
from blockcache.layout import (
    BLOCK,
    BROKEN,
    ENTRY,
    HEADER_BYTES,
    ITEM,
    NODE_BYTES,
    NODE_HEAD,
    PARTITION,
    SHARED_SLOT,
    STATES,
    UNIT_BYTES,
    BlockHead,
    IndexEntry,
    PartitionSlot,
)
from blockcache.statistics import CacheStatistics, read_statistics

if TYPE_CHECKING:
    from collections.abc import Iterator

ATTEMPTS = 20
LAST = (1 << 63) - 1


class NoArena(Exception):
    """The bytes are no arena, or one of another layout."""


class Torn(Exception):
    """What was read does not hang together: it changed meanwhile, or its process died in the middle."""


class StoredSpan(NamedTuple):
    """Offsets [start, end)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PartitionPicture:
    """One open partition. `runs` are contiguous, ascending; empty where `torn`."""

    topic_id: bytes
    partition: int
    batches: int
    live_bytes: int
    log_start: int
    evicted_end: int
    block_bytes: int  # size class of its own blocks; 0: the shared one
    runs: tuple[StoredSpan, ...]
    torn: bool

    @property
    def holes(self) -> tuple[StoredSpan, ...]:
        """The gaps between the runs."""
        return tuple(
            StoredSpan(left.end, right.start)
            for left, right in zip(self.runs, self.runs[1:], strict=False)
        )


@dataclass(frozen=True, slots=True)
class BlockSum:
    """All blocks of one kind: "own", "shared", "limbo", or "lent" to requests that arrive. Bytes: of units, written,
    and of live batches.
    """

    kind: str
    blocks: int
    size_bytes: int
    written_bytes: int
    live_bytes: int


@dataclass(frozen=True, slots=True)
class ArenaPicture:
    """A moment of an arena. `torn`: its header changed at every attempt, so that sums may be off by a batch.

    `free_extents` and `free_largest_bytes` tell how scattered the free room is.
    """

    statistics: CacheStatistics
    observe: bool
    torn: bool
    blocks: tuple[BlockSum, ...]
    free_extents: int
    free_largest_bytes: int
    partitions: tuple[PartitionPicture, ...]


def inspect(view: memoryview) -> ArenaPicture:
    """Reads the arena that `view` maps. Raises NoArena."""
    header, torn = read_header(view)
    largest, extents = scan_free(view, header)
    opened = [
        picture
        for i in range(header.partitions_touched)
        if (picture := read_partition(view, header, i))
    ]
    return ArenaPicture(
        statistics=read_statistics(header, find_oldest(view, header), UNIT_BYTES, NODE_BYTES),
        observe=bool(header.observe),
        torn=torn,
        blocks=sum_blocks(view, header),
        free_extents=extents,
        free_largest_bytes=largest * UNIT_BYTES,
        partitions=tuple(opened),
    )


def read_header(view: memoryview) -> tuple[Any, bool]:
    """A copy of `fc_arena`, and whether it may be torn. Raises NoArena."""
    if len(view) < HEADER_BYTES or view[: len(MAGIC)] != MAGIC:
        raise NoArena("not an arena, or one that is just being made")
    for _ in range(ATTEMPTS):
        copy = bytes(view[:HEADER_BYTES])
        header = ffi.cast("fc_arena *", ffi.from_buffer(copy))
        torn = bool(header.changes % 2) or copy != view[:HEADER_BYTES]
        if not torn:
            break
    kept = ffi.new("fc_arena *")
    ffi.memmove(kept, copy, HEADER_BYTES)
    check_header(kept, len(view))
    return kept, torn


def check_header(header: Any, size_bytes: int) -> None:
    """Holds the sections against the mapping. Raises NoArena."""
    if header.layout != lib.FC_LAYOUT:
        raise NoArena(f"an arena of layout {header.layout}; this Forebay reads {lib.FC_LAYOUT}")
    bits = (header.data_units + 63) // 64 * 8
    ends = (
        header.partitions_at + header.partitions_max * PARTITION.size,
        header.taken_at + bits,
        header.starts_at + bits,
        header.nodes_at + header.nodes_max * NODE_BYTES,
        header.data_at + header.data_units * UNIT_BYTES,
    )
    if max(ends) > size_bytes or header.partitions_touched > header.partitions_max:
        raise NoArena(f"an arena whose sections end at {max(ends)} of {size_bytes} bytes")


def find_damage(view: memoryview) -> str | None:
    """The part of an arena that is not as it must be (fc_check); None: it is whole. No process may be writing. Raises
    NoArena.
    """
    header, torn = read_header(view)
    if header.size_bytes > len(view):
        raise NoArena(f"an arena of {header.size_bytes} in {len(view)} bytes")
    if torn:
        return "unfinished"
    rc = lib.fc_check(ffi.cast("fc_arena *", ffi.from_buffer(view)))
    return BROKEN.get(rc, str(rc)) if rc < 0 else None


# The data pool


def read_bits(view: memoryview, at: int, count: int) -> str:
    """A bitmap as text, the first bit first."""
    word = int.from_bytes(view[at : at + (count + 7) // 8], "little")
    return f"{word:0{count}b}"[::-1][:count]


def scan_free(view: memoryview, header: Any) -> tuple[int, int]:
    """(units of the largest free extent, number of extents)."""
    extents = [
        len(part) for part in read_bits(view, header.taken_at, header.data_units).split("1") if part
    ]
    return max(extents, default=0), len(extents)


def scan_blocks(view: memoryview, header: Any) -> Iterator[BlockHead]:
    """The heads that stand where the bitmap says; what is no block (any more) is left out."""
    starts = read_bits(view, header.starts_at, header.data_units)
    unit = starts.find("1")
    while unit >= 0:
        head = BlockHead._make(BLOCK.unpack_from(view, header.data_at + unit * UNIT_BYTES))
        if head.state in STATES and 0 < head.units <= header.data_units - unit:
            yield head
        unit = starts.find("1", unit + 1)


def find_oldest(view: memoryview, header: Any) -> int:
    """The clock when the oldest block's first batch was admitted; the present one if there is none."""
    at: int = header.fifo_oldest
    clock: int = header.admitted_bytes
    if not header.data_at <= at <= len(view) - BLOCK.size:
        return clock
    return BlockHead._make(BLOCK.unpack_from(view, at)).opened


def sum_blocks(view: memoryview, header: Any) -> tuple[BlockSum, ...]:
    """Blocks by kind."""
    sums = {kind: [0, 0, 0, 0] for kind in ("own", "shared", "limbo", "lent")}
    for head in scan_blocks(view, header):
        kind = "shared" if head.slot == SHARED_SLOT else "own"
        total = sums[kind if STATES[head.state] == "fifo" else STATES[head.state]]
        for i, more in enumerate((1, head.units * UNIT_BYTES, head.used_bytes, head.live_bytes)):
            total[i] += more
    return tuple(BlockSum(kind, *total) for kind, total in sums.items())


# The index


def read_slot(view: memoryview, header: Any, place: int) -> PartitionSlot:
    """One `fc_partition`."""
    at = header.partitions_at + place * PARTITION.size
    return PartitionSlot._make(PARTITION.unpack_from(view, at))


def read_partition(view: memoryview, header: Any, place: int) -> PartitionPicture | None:
    """A partition and its runs; None for a slot that is not open."""
    runs: tuple[StoredSpan, ...] = ()
    torn = True
    for _ in range(ATTEMPTS):
        slot = read_slot(view, header, place)
        if slot.generation % 2 == 0:
            return None
        if slot.changes % 2:
            continue
        try:
            walked = tuple(walk_runs(view, header, slot))
        except Torn:
            continue
        if read_slot(view, header, place) == slot:
            runs, torn = walked, False
            break
    return PartitionPicture(
        topic_id=slot.topic_id,
        partition=slot.partition,
        batches=slot.entries,
        live_bytes=slot.live_bytes,
        log_start=slot.log_start,
        evicted_end=slot.evicted_end,
        block_bytes=slot.block_bytes,
        runs=runs,
        torn=torn,
    )


def read_node(
    view: memoryview, header: Any, number: int, level: int
) -> tuple[int, list[tuple[int, ...]]]:
    """(number of the left neighbour, items or entries) of a node. Raises Torn where there is none."""
    if not 0 < number < header.nodes_max:
        raise Torn
    at = header.nodes_at + number * NODE_BYTES
    stands, count, left, _ = NODE_HEAD.unpack_from(view, at)
    shape, most = (ENTRY, lib.FC_LEAF_MAX) if level == 0 else (ITEM, lib.FC_INNER_MAX)
    if stands != level or not 0 < count <= most:
        raise Torn
    at += NODE_HEAD.size
    return left, list(shape.iter_unpack(view[at : at + count * shape.size]))


def scan_starts(view: memoryview, header: Any, number: int, level: int) -> Iterator[IndexEntry]:
    """The entries that start a run, ascending; only into nodes that have any."""
    _, below = read_node(view, header, number, level)
    for item in below:
        if level == 0 and IndexEntry._make(item).run_start:
            yield IndexEntry._make(item)
        elif level > 0 and item[2]:
            yield from scan_starts(view, header, item[1], level - 1)


def find_last_below(view: memoryview, header: Any, slot: PartitionSlot, key: int) -> IndexEntry:
    """The last entry whose base offset is below `key`: a descent, then perhaps one leaf to the left. Raises Torn."""
    number = slot.root
    for level in range(slot.height - 1, 0, -1):
        items = read_node(view, header, number, level)[1]
        number = max((item for item in items if item[0] < key), default=items[0])[1]
    left, entries = read_node(view, header, number, 0)
    found = [entry for entry in entries if entry[1] < key]
    if not found:
        found = read_node(view, header, left, 0)[1]
    last = IndexEntry._make(found[-1])
    if last.base_offset >= key:
        raise Torn
    return last


def walk_runs(view: memoryview, header: Any, slot: PartitionSlot) -> Iterator[StoredSpan]:
    """The runs. Raises Torn where the index is not one."""
    if slot.height > lib.FC_HEIGHT_MAX:
        raise Torn
    if slot.root == 0 or slot.height == 0:
        return
    starts = list(scan_starts(view, header, slot.root, slot.height - 1))
    if not starts:
        raise Torn
    for entry, after in zip(starts, [*starts[1:], None], strict=True):
        last = find_last_below(view, header, slot, LAST if after is None else after.base_offset)
        if last.end <= entry.covers_from:
            raise Torn
        yield StoredSpan(entry.covers_from, last.end)
