"""What workers tell the keeper of acknowledged Produces: for each a ring in memory of both (partitions/native/told.c).

Owns the memory, and who wakes whom. Must not know clients, nor how the keeper reaches a worker. Invariants:
* batches are told in the order of their acknowledgements, taken so over all rings, and judged by the keeper alone.
* what the keeper has not taken is bounded: beyond it nothing is told, and the broker brings the records.
* a worker's death leaves whole entries; a keeper's leaves nothing that another keeper reads.
"""

from __future__ import annotations

import asyncio
import mmap
import os
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from proxy.partitions import store
from proxy.partitions._rows import ffi, lib
from proxy.partitions.forwarded import ForwardedBatches, work
from proxy.partitions.leader_state import REFRESH_EPOCH_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proxy.keeper.broker import KeeperBroker
    from proxy.partitions.table import Partition

RING_BYTES: Final = 64 << 20
"""Bytes of Produces that one worker may be ahead of the keeper. Only what was in use is in memory."""
LOOK_S: Final = 0.005
"""How often the keeper looks while something is told, in seconds. It looks before it learns from an answer, and
before it does what a worker asks for: no reader waits for this.
"""
CALLS: Final = 4
"""Calls of C in one turn of the event loop."""
NO_ROWS: Final = ffi.NULL, 0
_turns = count(-1, -1)


class Ring:
    """A worker's end. Owns both descriptors. `leases`: of the rows that the keeper shows. `missed`: requests of which
    some batches found no room.
    """

    def __init__(self, fd: int, wake_fd: int, leases: Any) -> None:
        try:
            self._shared, self._native = _map(fd, leases)
        except OSError:
            os.close(wake_fd)
            raise
        self._wake_fd = wake_fd
        self.missed = 0

    def tell(self, forwarded: ForwardedBatches, frame: Any) -> None:
        """Tell of those batches of the request `frame` that the broker has acknowledged."""
        native, number, _ = forwarded
        source = frame if type(frame) is bytes else ffi.from_buffer(frame)
        said = lib.pt_tell(self._native, native, number, source, len(frame))
        if said & lib.PT_WAKE:
            os.eventfd_write(self._wake_fd, 1)
        if said & lib.PT_FULL:
            self.missed += 1

    @property
    def untaken_bytes(self) -> int:
        """Bytes that the keeper has not taken."""
        untaken: int = lib.pt_untaken(self._native)
        return untaken

    def close(self) -> None:
        """Tell nothing more. The memory goes with the object."""
        os.close(self._wake_fd)


class RingReader:
    """The keeper's end of one ring, from `start` to `close`. `on_broken` is called if the worker has written what is no
    entry.
    """

    def __init__(
        self, rings: RingReaders, on_broken: Callable[[], object], size_bytes: int = RING_BYTES
    ) -> None:
        self._rings, self.on_broken = rings, on_broken
        fd = os.memfd_create("forebay-told", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, lib.PT_RING_HEAD + size_bytes)
            self._shared, self.native = _map(os.dup(fd), ffi.NULL)
            self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        self._is_open = True

    @property
    def fds(self) -> tuple[int, int]:
        """Those for the worker, before `start`."""
        return self._fd, self._wake_fd

    def start(self) -> None:
        """Take what is told from now on. The worker has the memory."""
        os.close(self._fd)
        self._fd = -1
        asyncio.get_running_loop().add_reader(self._wake_fd, self._wake)
        self._rings.add(self)

    def close(self) -> None:
        """Take what is left, then nothing more."""
        if not self._is_open:
            return
        self._is_open = False
        if self._fd >= 0:  # it was not started
            os.close(self._fd)
        asyncio.get_running_loop().remove_reader(self._wake_fd)
        os.close(self._wake_fd)
        self._rings.remove(self)

    def _wake(self) -> None:
        os.eventfd_read(self._wake_fd)
        self._rings.wake()


class RingReaders:
    """All rings that a keeper takes from, at the same looks."""

    def __init__(self, broker: KeeperBroker) -> None:
        self._broker = broker
        self._readers: list[RingReader] = []
        self._taken = ffi.new("pt_taken *")
        self._is_looking = False

    def add(self, reader: RingReader) -> None:
        """Take from this one, too."""
        self._readers.append(reader)
        self.wake()

    def remove(self, reader: RingReader) -> None:
        """Take what this one has left, then nothing more of it."""
        if reader in self._readers:
            self._readers.remove(reader)
            while self._take([reader]) in (lib.PT_MORE, lib.PT_LEFT):
                pass

    def wake(self) -> None:
        """Look soon: something is told, or may be."""
        if not self._is_looking:
            self._is_looking = True
            asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def catch_up(self) -> int:
        """Take what has been told, as far as one turn of the loop has time. Returns PT_DRAINED if that was all."""
        said: int = lib.PT_DRAINED
        for _ in range(CALLS if self._readers else 0):
            said = self._take(self._readers)
            if said == lib.PT_DRAINED:
                break
            if said == lib.PT_BROKEN:
                self._readers.pop(self._taken.ring).on_broken()
        return said

    def _look(self) -> None:
        """Take some. Sleep once nothing came since the last look: to be woken costs both sides more than to look."""
        readers = list(self._readers)
        before = [one.native.at for one in readers]
        loop = asyncio.get_running_loop()
        if self.catch_up() != lib.PT_DRAINED:
            loop.call_soon(self._look)
            return
        are_awake = [
            one.native.at != at or not lib.pt_may_sleep(one.native)
            for one, at in zip(readers, before, strict=True)
        ]
        self._is_looking = any(are_awake)
        if self._is_looking:
            loop.call_later(LOOK_S, self._look)

    def _take(self, readers: Sequence[RingReader]) -> int:
        """Store what is told, by the judgement of this process."""
        broker, taken = self._broker, self._taken
        rings = [one.native for one in readers[: lib.PT_RINGS]]
        rows, now = broker.partitions.rows, broker.now()
        storing = broker.cache.appender, broker.stored_runs is not None, now - REFRESH_EPOCH_S
        turn = next(_turns)
        said: int = lib.pt_take(
            rings, len(rings), rows.native, rows.room, turn, *storing, work.native, taken
        )
        if said == lib.PT_LEFT:
            broker.attempt(lambda: self._finish(now), "storing from Produce")
        if taken.batches:
            broker.attempt(lambda: self._announce(now), "announcing what is stored")
        return said

    def _announce(self, now: float) -> None:
        """Count what C has stored, and show it."""
        broker, taken = self._broker, self._taken
        broker.counters.produce.batches["store"] += taken.batches
        broker.counters.stored.batches["produce"] += taken.batches
        for number in range(taken.count):
            one = taken.stored[number]
            partition = broker.partitions.rows.find(one.row.slot)
            if partition.parked:
                store.announce_all(broker, partition, one.first, one.last, now)
            broker.shown.mark(partition)

    def _finish(self, now: float) -> None:
        """Do what C has left of an entry. What it revokes is shown before anything renews a lease."""
        broker, taken = self._broker, self._taken
        rows = broker.partitions.rows
        batches = taken.forwarded
        partitions: list[Partition | None] = [
            rows.find(batches[number].row.slot) for number in range(taken.number)
        ]
        forwarded = ForwardedBatches(batches, taken.number, partitions)
        frame = memoryview(ffi.buffer(taken.frame, taken.frame_bytes))
        try:
            store.admit_response(broker, frame, forwarded, b"", NO_ROWS, now, work.native)
        finally:
            for partition in filter(None, partitions):
                broker.shown.note_learned(partition)


def _map(fd: int, leases: Any) -> tuple[Any, Any]:
    """Map the memory, whose descriptor is closed. Returns what holds the mapping, and `pt_ring *`."""
    try:
        mapping = mmap.mmap(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)
    shared, size_bytes = ffi.from_buffer(mapping, require_writable=True), len(mapping)
    ends = {"shared": shared, "size": size_bytes - lib.PT_RING_HEAD, "leases": leases}
    return shared, ffi.new("pt_ring *", ends)
