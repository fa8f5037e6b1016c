"""What the cache counts, as plain integers: one frozen value per call, for the scrape and for tests.

Must not know: metric names. Invariant: bytes are bytes, counts only grow unless they say what is there now.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """A moment of the cache. Bytes of blocks include their headers and unused ends; record bytes do not."""

    arena_bytes: int
    block_bytes: int  # the data pool
    block_bytes_used: int
    block_bytes_free: int
    blocks: int  # in the FIFO
    live_record_bytes: int
    entries: int  # batches in the index
    index_bytes: int  # the index pool
    index_bytes_used: int
    partitions: int  # slots open
    partitions_max: int
    pins: int
    pinned_bytes: int  # of blocks that have a pin, limbo included
    pin_limit_bytes: int
    limbo_blocks: int  # evicted or invalidated, memory kept for their pins
    limbo_bytes: int
    limbo_entered: int
    reserved_blocks: int  # lent to requests that arrive, nothing of them stored yet
    lent_bytes: (
        int  # of blocks that requests under way were received into, adopted or not; pinned, too
    )
    lent_limit_bytes: int
    adopted_batches: int  # stored where they were received
    ghosts: int
    oldest_admitted_bytes: int  # the clock at the oldest block's first batch
    admitted_bytes: int  # the clock: record bytes admitted, all time
    admitted_before_bytes: int  # the clock when this process began: what it took over is below
    admitted_batches: int
    kept_batches: int  # came again and were there already
    conflicts: int
    skipped_batches: int  # too large for the arena, below the log start, or everything was pinned
    skipped_bytes: int
    evicted_blocks_room: int
    evicted_blocks_index: int
    evicted_blocks_water: int
    evicted_bytes: int
    truncated_bytes: int
    start_moved_bytes: int
    dropped_bytes: int
    lookups: int
    copied_lookups: int  # past the pin limit
    gathered_lookups: int  # small pieces, copied rather than pinned
    refused_lookups: int  # of processes that only read: nothing more may be pinned
    limbo_idle: int  # blocks of limbo_blocks that nobody pins any more: the next change frees them
    lock_calls: int  # of an arena that several processes share: its lock was taken
    lock_waits: int  # ... and not at once
    lock_waited_ns: int
    lock_refusals: int  # calls of processes that only read: the lock was not to be had in time


def read_statistics(
    a: Any, oldest_admitted: int, unit_bytes: int, node_bytes: int
) -> CacheStatistics:
    """Reads C's header `a` (fc_arena)."""
    return CacheStatistics(
        arena_bytes=a.size_bytes,
        block_bytes=a.data_units * unit_bytes,
        block_bytes_used=(a.data_units - a.free_units) * unit_bytes,
        block_bytes_free=a.free_units * unit_bytes,
        blocks=a.blocks,
        live_record_bytes=a.live_bytes,
        entries=a.entries,
        index_bytes=a.nodes_max * node_bytes,
        index_bytes_used=a.nodes_live * node_bytes,
        partitions=a.partitions_open,
        partitions_max=a.partitions_max,
        pins=a.pins,
        pinned_bytes=a.pinned_bytes,
        pin_limit_bytes=a.pin_limit_bytes,
        limbo_blocks=a.limbo_blocks,
        limbo_bytes=a.limbo_bytes,
        limbo_entered=a.limbo_entered,
        reserved_blocks=a.reserved_blocks,
        lent_bytes=a.lent_bytes,
        lent_limit_bytes=a.lent_limit_bytes,
        adopted_batches=a.adopted_batches,
        ghosts=min(a.ghosts_written, a.ghosts_max),
        oldest_admitted_bytes=oldest_admitted,
        admitted_bytes=a.admitted_bytes,
        admitted_before_bytes=a.admitted_before,
        admitted_batches=a.admitted_batches,
        kept_batches=a.kept_batches,
        conflicts=a.conflicts,
        skipped_batches=a.skipped_batches,
        skipped_bytes=a.skipped_bytes,
        evicted_blocks_room=a.evicted_blocks[0],
        evicted_blocks_index=a.evicted_blocks[1],
        evicted_blocks_water=a.evicted_blocks[2],
        evicted_bytes=a.evicted_bytes,
        truncated_bytes=a.invalidated_bytes[0],
        start_moved_bytes=a.invalidated_bytes[1],
        dropped_bytes=a.invalidated_bytes[2],
        lookups=a.lookups,
        copied_lookups=a.copied_lookups,
        gathered_lookups=a.gathered_lookups,
        refused_lookups=a.refused_lookups,
        limbo_idle=a.limbo_idle,
        lock_calls=a.lock_calls,
        lock_waits=a.lock_waits,
        lock_waited_ns=a.lock_waited_ns,
        lock_refusals=a.lock_refusals,
    )
