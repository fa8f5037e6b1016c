"""Memory in which the keeper shows its partitions to the workers: a row for each place in the cache, and
the leases that partitions share.

Owns the layout, and the mapping. Must not know what a row means (partitions/native/rows.h). Invariants:
one process writes, those that attach read, but for the word of a row that all raise; a reader of another
layout attaches to nothing.
"""

from __future__ import annotations

import mmap
import os
from struct import Struct
from typing import Any, Final

from proxy.partitions._rows import ffi

HEAD = Struct("=8sQQQ")
MAGIC: Final = b"forebay1"
HEAD_BYTES: Final = 4096
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
        self._shown = ffi.cast("pt_shown *", base + HEAD_BYTES + LEASES * LEASE_BYTES)

    def find(self, place: int) -> Any:
        """The shown row of a place (`pt_shown *`)."""
        assert 0 <= place < self.rows
        return self._shown + place

    def close(self) -> None:
        """Close the descriptor. The mapping stays for as long as a row of it is held."""
        os.close(self.fd)


def _find_size(rows: int) -> int:
    size_bytes: int = HEAD_BYTES + LEASES * LEASE_BYTES + rows * SHOWN_BYTES
    return size_bytes


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
