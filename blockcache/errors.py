"""What the cache raises.

Owns the exceptions of blockcache but those of its memory (arena_file.py). Must not know who raises them.
"""

from __future__ import annotations


class CacheError(Exception):
    """The caller's fault: a stale slot, garbled batches, more partitions than slots."""


class StaleSlot(CacheError):
    """The slot was dropped since it was opened."""


class BadBatch(CacheError, ValueError):
    """The bytes are no run of whole v2 batches in ascending order, or begin below covers_from."""


class PartitionsFull(CacheError):
    """Every slot of the partition table is open (`max_partitions`)."""


class ArenaTorn(CacheError):
    """The process that changes the arena died within a change, or left one that is damaged: nobody can use it any more.
    Who has pins keeps their bytes; all that is left is other memory (`ArenaMemory.renew`).
    """

    def __init__(
        self, message: str = "the arena was left in the middle of a change: it needs other memory"
    ) -> None:
        super().__init__(message)


class CacheBroken(AssertionError):
    """check() found what cannot be; the message names the part."""
