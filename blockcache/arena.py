"""The arena's memory: one mapping, anonymous or a file that no other process has, and the handles into it.

A file that is kept outlives its process, for the next one to take over (`BlockCache.inspect_left`).

Owns: the mapping, its file and the file's lock, `Hit` (views into the mapping, with their pins), and
memory that is lent. Must not know: what is stored where; that is C's (native/pyfastcache.h). Invariants: a file is
mapped by one process at a time (flock, held until close), and only if this user owns it and no other may open it;
views are slices of one memoryview over the mapping, which stays mapped while any of them lives, and any lent memory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import struct
from collections import deque
from typing import TYPE_CHECKING, Any

from blockcache._pyfastcache import ffi, lib
from blockcache.layout import MAGIC

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

buffer, gc = ffi.buffer, ffi.gc
FLOCK = struct.Struct("@hhqqi4x")  # struct flock of 64-bit Linux
SEGMENT = struct.Struct("=4Q")  # fc_segment: position, length, the pin's block and generation


class ArenaError(Exception):
    """The arena cannot be had as configured; the message says what to change."""


class ArenaInUse(ArenaError):
    """Another process holds the arena's file."""


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

    `mapped`: the `fc_arena` in the mapping. `is_left`: it holds what an earlier process left. `other_bytes`: the size
    of what an earlier process left where that was emptied, else 0.
    """

    def __init__(self, size_bytes: int, path: Path | None, keeps_file: bool = False) -> None:
        """`keeps_file`: an earlier process's file of this size is not emptied."""
        self.path = path
        self.is_left, self.other_bytes = False, 0
        if path is None:
            self.fd = open_memory(size_bytes)
        else:
            self.fd, left_bytes = open_file(path, size_bytes, keeps_file)
            self.is_left = keeps_file and left_bytes == size_bytes
            self.other_bytes = 0 if self.is_left else left_bytes
        self._mapping = mmap.mmap(self.fd, size_bytes)
        self._keep = ffi.from_buffer(self._mapping)
        self.mapped = self.header = ffi.cast("fc_arena *", self._keep)
        self._base = ffi.cast("char *", self.header)
        self.view = memoryview(self._mapping).toreadonly()
        self.hits: set[Hit] = set()
        self.returned = Returned(self._mapping)

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
            lib.fc_release(self.header, ffi.from_buffer("fc_segment[]", packed), pins)

    def lend(self, at: int, size_bytes: int) -> memoryview:
        """Memory to be written to, which C has reserved; among the `returned` once its last view is gone."""
        return memoryview(buffer(gc(self._base + at, self.returned.append), size_bytes))

    def take_back(self) -> None:
        """Tells C of lent memory that nobody has any more."""
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
        return 0 if self.header is None else os.fstat(self.fd).st_blocks * 512

    def holders(self, block: int, generation: int) -> list[Hit]:
        """The hits that pin a block."""
        return [hit for hit in self.hits if hit.holds(block, generation)]

    def close(self, keeps_file: bool = False) -> None:
        """Gives the memory back, as soon as the last view into it is gone, and removes the file unless it is kept."""
        if self.header is None:
            return
        self.header = self.mapped = self._keep = self._base = None
        self.hits.clear()
        self.view = memoryview(b"")
        del self.returned
        if self.path is not None and not keeps_file:
            self.path.unlink(missing_ok=True)
        os.close(self.fd)
        del self._mapping


def open_memory(size_bytes: int) -> int:
    """Anonymous shared memory of `size_bytes`, as a file descriptor."""
    fd = os.memfd_create("forebay-arena", os.MFD_CLOEXEC)
    os.ftruncate(fd, size_bytes)
    return fd


def open_file(path: Path, size_bytes: int, keeps_file: bool) -> tuple[int, int]:
    """The arena's file, locked and allocated in full, and its size as it was found. It is emptied, unless it had this
    size and `keeps_file`. Raises ArenaError or ArenaInUse.
    """
    fd = lock_file(path)
    try:
        check_is_ours(path, fd)
        left_bytes = os.fstat(fd).st_size
        if not keeps_file or left_bytes != size_bytes:
            os.ftruncate(fd, 0)
        allocate(path, fd, size_bytes)
    except ArenaError:
        os.close(fd)
        raise
    return fd, left_bytes


def remove_left(path: Path) -> bool:
    """Removes an arena's file that an earlier process left and no process holds. False where there is none, or it is
    not ours to remove.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        check_is_ours(path, fd)
        if os.fstat(fd).st_size == 0 or not os.path.samestat(os.fstat(fd), path.stat()):
            return False
        path.unlink()
    except (OSError, ArenaError):
        return False
    finally:
        os.close(fd)
    return True


def allocate(path: Path, fd: int, size_bytes: int) -> None:
    """Gives a file all its bytes at once, so that none is missing later (as a SIGBUS). It keeps those that it has."""
    try:
        os.pwrite(fd, MAGIC, 0)
        os.posix_fallocate(fd, 0, size_bytes)
    except OSError as failure:
        path.unlink(missing_ok=True)
        if failure.errno != errno.ENOSPC:
            raise ArenaError(f"arena file {path}: {failure.strerror}") from failure
        volume = os.statvfs(path.parent)
        free_bytes = volume.f_bavail * volume.f_frsize
        raise ArenaError(
            f"no room for an arena of {size_bytes} bytes at {path}: the volume has {free_bytes} left. "
            "Make the cache smaller or the volume larger (a container's /dev/shm has 64 MiB unless told "
            "otherwise: docker run --shm-size; in Kubernetes an emptyDir of medium Memory and its sizeLimit)"
        ) from failure


def lock_file(path: Path) -> int:
    """Opens or makes the file and takes its lock; the lock counts only if the path still names that file."""
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as failure:
            foreign = ""
            with contextlib.suppress(OSError):
                foreign = tell_owner(path.lstat())
            reason = f"{failure.strerror}; it {foreign}" if foreign else failure.strerror
            raise ArenaError(f"arena file {path}: {reason}") from failure
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The same once more, as a lock that a reader can ask after without taking it (map_read_only).
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
            if path.exists() and os.path.samestat(os.fstat(fd), path.stat()):
                return fd
        except BlockingIOError:
            os.close(fd)
            raise ArenaInUse(
                f"arena file {path} is in use by another process; give each its own path"
            ) from None
        os.close(fd)


def map_read_only(path: Path) -> tuple[mmap.mmap, bool]:
    """An arena's file, mapped to be looked at, and whether a process holds it. Raises ArenaError.

    Takes no lock, not even for a moment: a process that is just starting must find the file free.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as failure:
        raise ArenaError(f"arena file {path}: {failure.strerror}") from failure
    try:
        asked = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 1, 0))
        held = FLOCK.unpack(asked)[0] != fcntl.F_UNLCK
        return mmap.mmap(fd, 0, access=mmap.ACCESS_READ), held
    except (OSError, ValueError) as failure:
        raise ArenaError(f"arena file {path}: {failure}") from failure
    finally:
        os.close(fd)


def tell_owner(status: os.stat_result) -> str:
    """What is wrong with a file's owner, and the remedy; "" where it is ours."""
    if status.st_uid == os.geteuid():
        return ""
    return (
        f"belongs to another user (uid {status.st_uid}): remove it, or let cache.directory name a directory where "
        "only Forebay's user may write"
    )


def check_is_ours(path: Path, fd: int) -> None:
    """Refuses to empty a file that is not a (dead process's) arena, or to keep records where others have access."""
    status = os.fstat(fd)
    if foreign := tell_owner(status):
        raise ArenaError(f"arena file {path} {foreign}")
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise ArenaError(
            f"arena file {path} has mode {mode:o}: others than its owner may open it. Forebay makes it with 600; "
            "remove it, if no other process needs it"
        )
    if not stat.S_ISREG(status.st_mode):
        raise ArenaError(f"arena file {path} is not a regular file")
    if status.st_size and os.pread(fd, len(MAGIC), 0) != MAGIC:
        raise ArenaError(
            f"{path} holds something else than an arena; name another path or remove the file"
        )
