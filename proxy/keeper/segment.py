"""Memory in which the keeper shows its partitions to the workers: a row for each place in the cache, and
the leases that partitions share.

Owns the layout, and the mapping. Must not know what a row means (partitions/native/rows.h). Invariants:
one process writes, those that attach read, but for the word of a row that all raise and the bits by which they tell
each other; a reader of another layout attaches to nothing.
"""

from __future__ import annotations

import mmap
import os
from struct import Struct
from typing import Any, Final

from blockcache.arena_file import HOLDERS
from proxy.partitions._rows import ffi

HEAD = Struct("=8sQQQ")
MAGIC: Final = b"forebay2"
HEAD_BYTES: Final = 4096
LISTENING_AT: Final = 64
"""Where the word with the bits of those that hear lies (`pt_heard`)."""
WORD_BYTES: Final = 8
LEASES: Final = 4096
"""Shared leases at a time: a session of the replica fetcher has one, and each member of an ended one may hold it."""
SHOWN_BYTES: Final = ffi.sizeof("pt_shown")
LEASE_BYTES: Final = ffi.sizeof("pt_lease")
NO_LEASE: Final = float("-inf")


class OtherLayout(Exception):
    """The memory is another build's."""


class RowMemory:
    """The mapped memory, of `rows` partitions. `leases`: `pt_lease *`. `fd` is open until `close`."""

    def __init__(self, fd: int, rows: int) -> None:
        """Use `open_segment` or `attach_segment`."""
        self.fd, self.rows = fd, rows
        self._mapping = mmap.mmap(fd, _find_size(rows))
        self._keep = ffi.from_buffer(self._mapping, require_writable=True)
        base = ffi.cast("char *", self._keep)
        self.leases = ffi.cast("pt_lease *", base + HEAD_BYTES)
        shown_at = HEAD_BYTES + LEASES * LEASE_BYTES
        self._shown = ffi.cast("pt_shown *", base + shown_at)
        self._listening = ffi.cast("uint64_t *", base + LISTENING_AT)
        self._heard = ffi.cast("uint64_t *", base + shown_at + rows * SHOWN_BYTES)

    def find(self, place: int) -> Any:
        """The shown row of a place (`pt_shown *`)."""
        assert 0 <= place < self.rows
        return self._shown + place

    def open_heard(self, number: int) -> Any:
        """What the process of this number hears (`pt_heard *`): where others saw records acknowledged."""
        words = _count_words(self.rows)
        native = ffi.new("pt_heard *", (self._heard, self._listening, words, number, self.leases))

        def let_go(_native: Any, _segment: RowMemory = self) -> None:
            """Nothing: until then the mapping is held."""

        return ffi.gc(native, let_go)

    def listen(self, number: int, hears: bool) -> None:
        """By the writer: have others tell the process of this number, or not."""
        bit = 1 << number
        self._listening[0] = self._listening[0] | bit if hears else self._listening[0] & ~bit

    def close(self) -> None:
        """Close the descriptor. The mapping stays for as long as a row of it is held."""
        os.close(self.fd)


def _find_size(rows: int) -> int:
    heard_bytes = HOLDERS * (1 + _count_words(rows)) * WORD_BYTES
    size_bytes: int = HEAD_BYTES + LEASES * LEASE_BYTES + rows * SHOWN_BYTES + heard_bytes
    return size_bytes


def _count_words(rows: int) -> int:
    return -(-rows // 64)


def open_segment(rows: int) -> RowMemory:
    """New memory, in which no partition is shown yet."""
    fd = os.memfd_create("forebay-partitions", os.MFD_CLOEXEC)
    os.ftruncate(fd, _find_size(rows))
    os.pwrite(fd, HEAD.pack(MAGIC, SHOWN_BYTES, rows, LEASES), 0)
    segment = RowMemory(fd, rows)
    for number in range(LEASES):
        segment.leases[number].until = NO_LEASE
    return segment


def attach_segment(fd: int) -> RowMemory:
    """The memory of another process; owns `fd`. Raises OtherLayout."""
    magic, shown_bytes, rows, leases = HEAD.unpack(os.pread(fd, HEAD.size, 0))
    if (magic, shown_bytes, leases) != (MAGIC, SHOWN_BYTES, LEASES):
        os.close(fd)
        raise OtherLayout("the keeper is of another build: its partitions are not read")
    return RowMemory(fd, rows)
