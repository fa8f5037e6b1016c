"""The arena's layout for who reads one from beside: the structs of native/pyfastcache.h as `struct` formats.

Owns the formats and what makes a byte range an arena. Must not know how an arena is changed. Invariant: sizes and
places are those of C, asserted at import here, in native/layout.c, and field by field in the tests.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from blockcache._pyfastcache import ffi, lib
from blockcache.arena_file import IDENTITY_AT, MAGIC

HEADER_BYTES: int = ffi.sizeof("fc_arena")
NODE_BYTES: int = ffi.sizeof("fc_node")
UNIT_BYTES: int = lib.FC_UNIT
SHARED_SLOT: int = lib.FC_SHARED
BROKEN = {
    getattr(lib, name): name.removeprefix("FC_BROKEN_").lower()
    for name in dir(lib)
    if "BROKEN" in name
}
"""What fc_check returns -> the part of the arena that is not as it must be."""
STATES = {lib.FC_IN_FIFO: "fifo", lib.FC_IN_LIMBO: "limbo", lib.FC_RESERVED: "lent"}

PARTITION = struct.Struct("=16siIIIqqqQQQQQQQQQ")
ENTRY = struct.Struct("=qqQQIIiI")
ITEM = struct.Struct("=qII")
NODE_HEAD = struct.Struct("=IIII")
BLOCK = struct.Struct("=IIQQQIIIIQQQQQII64s")

assert struct.pack("=Q", lib.FC_MAGIC) == MAGIC
assert ffi.offsetof("fc_arena", "identity") == IDENTITY_AT
assert PARTITION.size == ffi.sizeof("fc_partition")
assert ENTRY.size == ffi.sizeof("fc_entry")
assert ITEM.size == ffi.sizeof("fc_item")
assert BLOCK.size == ffi.sizeof("fc_block")
assert NODE_HEAD.size + lib.FC_LEAF_MAX * ENTRY.size == NODE_BYTES
assert NODE_HEAD.size + lib.FC_INNER_MAX * ITEM.size == NODE_BYTES


class PartitionSlot(NamedTuple):
    """fc_partition."""

    topic_id: bytes
    partition: int  # index in C
    generation: int
    root: int
    height: int
    expect: int
    log_start: int
    evicted_end: int
    open_block: int
    block_bytes: int
    entries: int
    live_bytes: int
    ghost: int
    next_free: int
    window_opened: int
    window_bytes: int
    changes: int


class IndexEntry(NamedTuple):
    """fc_entry: one batch."""

    covers_from: int
    base_offset: int
    position: int
    admitted: int
    last_delta: int
    length: int
    leader_epoch: int
    run_start: int

    @property
    def end(self) -> int:
        """The offset behind the batch."""
        return self.base_offset + self.last_delta + 1


class BlockHead(NamedTuple):
    """fc_block."""

    state: int
    units: int
    generation: int
    prev: int
    next: int
    pins: int
    offered: int
    slot: int
    live: int
    used_bytes: int
    live_bytes: int
    opened: int
    written: int
    filled_bytes: int
    first_bytes: int
    lent: int
    pins_of: bytes  # uint16_t of each holder
