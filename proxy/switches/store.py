"""Store of the switches: their state in a memory file that the supervisor and all workers have mapped.

Owns the file's format and its lock. Must not know what the state says. Invariants:
* any of the processes may write, one at a time (a POSIX lock, which ends with its process); nobody waits longer than
  LOCK_WAIT_S for it.
* a reader sees one whole state: a writer fills the slot that is not in force, then counts `version` up.
* a state outlives its writers; it ends with the supervisor.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import time
import zlib
from typing import TYPE_CHECKING, Final

from proxy.switches.override import SwitchRefused
from proxy.switches.state import EMPTY, SwitchState, pack_state, unpack_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SLOT_BYTES: Final = 128 << 10
"""More than 32 overrides with patterns of 256 characters take, as JSON escapes them."""
HEADER_BYTES: Final = mmap.PAGESIZE
LOCK_WAIT_S: Final = 0.2
LOCK_EVERY_S: Final = 0.005
_SLOT = struct.Struct("<II")
"""Before a slot's bytes: their number, and their CRC-32."""
_READS = 8


class SwitchStore:
    """The state. `fd` is handed to other processes. `is_shared`: a supervisor has it mapped, too, and acts on it."""

    __slots__ = ("_map", "_words", "fd", "is_shared")

    def __init__(self, fd: int | None = None, is_shared: bool = False) -> None:
        """`fd` None: a new, empty store."""
        size_bytes = HEADER_BYTES + 2 * SLOT_BYTES
        if fd is None:
            fd = os.memfd_create("forebay-switches")
            os.ftruncate(fd, size_bytes)
        self.fd = fd
        self.is_shared = is_shared
        self._map = mmap.mmap(fd, size_bytes)
        self._words = memoryview(self._map)[:HEADER_BYTES].cast("Q")

    @property
    def version(self) -> int:
        """Counts the states: 0 before the first change."""
        return self._words[0]

    def read(self) -> SwitchState:
        """The state in force."""
        for _ in range(_READS):
            version = self.version
            with contextlib.suppress(ValueError):
                return self._read(version)
        return EMPTY  # nobody has written whole states: somebody else has the file

    def _read(self, version: int) -> SwitchState:
        """The state of that version. Raises ValueError if it is being replaced."""
        if not version:
            return EMPTY
        at = HEADER_BYTES + (version & 1) * SLOT_BYTES
        size_bytes, crc = _SLOT.unpack_from(self._map, at)
        packed = self._map[at + _SLOT.size : at + _SLOT.size + min(size_bytes, SLOT_BYTES)]
        if zlib.crc32(packed) != crc:
            raise ValueError("a slot that is being written")
        return unpack_state(packed)

    def change(self, follow: Callable[[SwitchState], SwitchState]) -> SwitchState:
        """Put in force what `follow` makes of the state, and return it; nothing is written if that is the same object.
        Raises SwitchRefused, also if another process holds the lock and does not go on.
        """
        with self._locked():
            state = self.read()
            following = follow(state)
            if following is not state:
                self._write(pack_state(following))
            return following

    def _write(self, packed: bytes) -> None:
        if len(packed) > SLOT_BYTES - _SLOT.size:
            raise SwitchRefused("the switches have too many names and patterns: reset some first")
        version = self.version + 1
        at = HEADER_BYTES + (version & 1) * SLOT_BYTES
        _SLOT.pack_into(self._map, at, len(packed), zlib.crc32(packed))
        self._map[at + _SLOT.size : at + _SLOT.size + len(packed)] = packed
        self._words[0] = version

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        until = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= until:
                    raise SwitchRefused("another process of Forebay holds the switches") from None
                time.sleep(LOCK_EVERY_S)
        try:
            yield
        finally:
            fcntl.lockf(self.fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close it here."""
        self._words.release()
        self._map.close()
        os.close(self.fd)
