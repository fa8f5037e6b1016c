"""The arena's memory: a descriptor of anonymous memory, or of a file that no other Forebay has.

Owns the descriptor, the file's lock, size and removal, and the lock of the one process that writes. Must not know what
is in it (arena.py), nor the C code: the supervisor opens it. Invariants:
* a file belongs to one Forebay at a time (flock, which inherited descriptors share), and only if this user owns it and
  no other may open it.
* one process at a time writes: it has `try_lock`'s lock, which goes with the process.
* a process that reads has a number (holder) that no other living one has: `try_hold`'s lock. A process maps an arena's
  memory once: POSIX drops its locks as soon as it closes any descriptor of that file (fcntl(2)).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MAGIC = struct.pack("=Q", 0x7961626572734631)
"""The first bytes of an arena (FC_MAGIC)."""
IDENTITY_AT = 528
"""Where an arena says whose bytes it holds (fc_arena.identity); zeros: nobody has said so."""
FLOCK = struct.Struct("@hhqqi4x")  # struct flock of 64-bit Linux
IN_USE_AT, WRITER_AT = 0, 1
"""Bytes of the file that stand for its locks: of the Forebay that has it, and of the process that writes, which is
holder 0. That of holder n is the n-th behind."""
HOLDERS = 32
"""Processes that may have pins: holders are below (FC_HOLDERS)."""


class ArenaError(Exception):
    """The arena cannot be had as configured; the message says what to change."""


class ArenaInUse(ArenaError):
    """Another process holds the arena's file."""


class ArenaMemory:
    """Memory for one arena. It outlives each process that maps it; children inherit `fd`. `path` None: anonymous."""

    __slots__ = ("fd", "path")

    def __init__(self, fd: int, path: Path | None = None) -> None:
        self.fd = fd
        self.path = path

    @property
    def size_bytes(self) -> int:
        """Its present size; 0: nothing was left in it."""
        return os.fstat(self.fd).st_size

    @property
    def resident_bytes(self) -> int:
        """Memory that it has taken so far, as the file system counts it."""
        return os.fstat(self.fd).st_blocks * 512

    @property
    def is_identified(self) -> bool:
        """Whether a process has noted whose bytes it holds: otherwise nobody would take it over."""
        return any(os.pread(self.fd, 1, IDENTITY_AT))

    def try_lock(self) -> bool:
        """Become the process that writes, until its end or `close`. Return False while another one does."""
        return self.try_hold(0)

    def try_hold(self, holder: int) -> bool:
        """Become the process of this number (0: the one that writes), until its end or `close`. Return False while
        another process is.
        """
        wanted = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, WRITER_AT + holder, 1, 0)
        try:
            fcntl.fcntl(self.fd, fcntl.F_SETLK, wanted)
        except OSError as failure:
            if failure.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            return False
        return True

    def find_living(self) -> int:
        """Other living processes that have a number above 0, as bits: `1 << holder`."""
        return sum(1 << holder for holder in range(1, HOLDERS) if self.is_living(holder))

    def is_living(self, holder: int) -> bool:
        """Whether another living process has this number."""
        asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, WRITER_AT + holder, 1, 0)
        kind: int = FLOCK.unpack(fcntl.fcntl(self.fd, fcntl.F_GETLK, asked))[0]
        return kind != fcntl.F_UNLCK

    def is_same(self, fd: int) -> bool:
        """Whether this descriptor is of the same memory."""
        return os.path.samestat(os.fstat(self.fd), os.fstat(fd))

    def allocate(self, size_bytes: int) -> None:
        """Have `size_bytes` at once, so that none is missing later (as a SIGBUS). A file of this size keeps its bytes,
        another is emptied first. Raises ArenaError.
        """
        if self.size_bytes != size_bytes:
            self.empty()
        try:
            os.pwrite(self.fd, MAGIC, 0)
            if self.path is None:
                os.ftruncate(self.fd, size_bytes)
            else:
                os.posix_fallocate(self.fd, 0, size_bytes)
        except OSError as failure:
            self.empty()
            raise self._explain(failure, size_bytes) from failure

    def _explain(self, failure: OSError, size_bytes: int) -> ArenaError:
        if failure.errno != errno.ENOSPC or self.path is None:
            return ArenaError(f"arena {self.path or 'in memory'}: {failure.strerror}")
        volume = os.fstatvfs(self.fd)
        free_bytes = volume.f_bavail * volume.f_frsize
        return ArenaError(
            f"no room for an arena of {size_bytes} bytes at {self.path}: the volume has {free_bytes} left. "
            "Make the cache smaller or the volume larger (a container's /dev/shm has 64 MiB unless told "
            "otherwise: docker run --shm-size; in Kubernetes an emptyDir of medium Memory and its sizeLimit)"
        )

    def empty(self) -> None:
        """Give its memory back. Nobody may have it mapped: for others `renew`."""
        os.ftruncate(self.fd, 0)

    def renew(self) -> None:
        """Be other, empty memory: of a new file under the same name, or anonymous as before. `fd` keeps its number.
        Who has the former memory mapped keeps it. Raises ArenaError; ArenaInUse if the name is another Forebay's file.
        """
        fd = make_file(self.path, self.fd) if self.path is not None else make_memory()
        os.dup2(fd, self.fd, inheritable=os.get_inheritable(self.fd))
        os.close(fd)

    def remove(self) -> None:
        """Remove the file, if `path` still names this one."""
        if self.path is not None:
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self.fd), self.path.stat()):
                    self.path.unlink()

    def close(self) -> None:
        """Close the descriptor, and no other process's. Ends `try_lock`'s lock."""
        os.close(self.fd)


def open_memory() -> ArenaMemory:
    """Return anonymous memory."""
    return ArenaMemory(make_memory())


def make_memory() -> int:
    """A descriptor of anonymous memory."""
    return os.memfd_create("forebay-arena", os.MFD_CLOEXEC)


def open_file(path: Path) -> ArenaMemory:
    """Return the file at `path`, as it was left or empty, locked. Raises ArenaError; ArenaInUse if another Forebay has
    it.
    """
    fd = lock_file(path)
    try:
        check_is_ours(path, fd)
    except ArenaError:
        os.close(fd)
        raise
    return ArenaMemory(fd, path)


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
            take_file(fd)
            if path.exists() and os.path.samestat(os.fstat(fd), path.stat()):
                return fd
        except BlockingIOError:
            os.close(fd)
            raise ArenaInUse(
                f"arena file {path} is in use by another process, as by a Forebay whose first listener has "
                "the same port at another address; give each a cache.directory of its own"
            ) from None
        os.close(fd)


def take_file(fd: int) -> None:
    """Takes the lock of the Forebay that has the file. Raises BlockingIOError."""
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # The same once more, as a lock that a reader can ask after without taking it (map_read_only).
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, IN_USE_AT, 1, 0))


def make_file(path: Path, former_fd: int) -> int:
    """A new, locked file in the place of the one that `former_fd` is. Raises ArenaError; ArenaInUse if `path` is
    neither that one nor free.
    """
    beside = path.with_name(path.name + ".new")
    try:
        with contextlib.suppress(FileNotFoundError):
            if not os.path.samestat(os.fstat(former_fd), path.lstat()):
                raise ArenaInUse(f"arena file {path} was replaced by another process")
        beside.unlink(missing_ok=True)
        fd = os.open(
            beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        try:
            take_file(fd)
            beside.rename(path)
        except OSError:
            os.close(fd)
            raise
    except OSError as failure:
        raise ArenaError(f"arena file {path}: {failure.strerror}") from failure
    return fd


def map_read_only(path: Path) -> tuple[mmap.mmap, bool]:
    """An arena's file, mapped to be looked at, and whether a process holds it. Raises ArenaError.

    Takes no lock, not even for a moment: a process that is just starting must find the file free.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as failure:
        raise ArenaError(f"arena file {path}: {failure.strerror}") from failure
    try:
        asked = fcntl.fcntl(
            fd, fcntl.F_OFD_GETLK, FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, IN_USE_AT, 1, 0)
        )
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
