"""A directory of rotated log files: which is written, which are compressed, which are deleted.

Owns the files `access-<time>-<boot>-<sequence>.jsonl` of one process. Knows no line format, thread or queue:
the owner hands in bytes that end with a newline and calls `compress_step` when it has time. Invariants: a
name is never opened twice, so a restart overwrites nothing; a later file's name sorts behind, also where the wall
clock has gone back, so that the oldest go first; the current file is held under flock, so that
another process's is neither compressed nor deleted; a `.jsonl.gz` is complete (written beside, then renamed);
after each rotation and compression at most `max_files` files and `max_total_bytes` bytes are left, what is in
use apart; a failed write takes back what it wrote and ends the file. Errors: OSError from every method.
"""

import calendar
import fcntl
import io
import os
import re
import time
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

COMPRESS_STEP_BYTES = 1 << 20
MODE = 0o640
_GZIP_WBITS = 31
_LEVEL = 3
"""A third of the time of 6, and files a quarter larger: docs/performance.md."""
_BOOT = re.compile(r"[0-9A-Za-z_-]{1,64}")
_STAMP = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(r"access-(?P<stamp>[0-9TZ]+)-(?P<boot>[0-9A-Za-z_-]{1,64})-[0-9]{6,}\.jsonl")


class _Compression(NamedTuple):
    """A finished file on its way into its `.gz`."""

    source: Path
    target: Path
    reader: IO[bytes]
    writer: IO[bytes]
    squeeze: "zlib._Compress"


class LogFiles:
    """The files of one boot in `directory` (created if absent), rotated at `rotate_bytes`."""

    def __init__(
        self,
        directory: Path,
        boot: str,
        *,
        now_ms: Callable[[], int],
        rotate_bytes: int,
        max_files: int,
        max_total_bytes: int,
    ) -> None:
        """Adopts for compression what crashed processes left. ValueError: a boot id that is no plain word."""
        if not _BOOT.fullmatch(boot):
            raise ValueError(f"boot id {boot!r} must be 1 to 64 letters, digits, '-' or '_'")
        self._directory = directory
        self._boot = boot
        self._now_ms = now_ms
        self._rotate_bytes = rotate_bytes
        self._max_files = max_files
        self._max_total_bytes = max_total_bytes
        self._current: IO[bytes] | None = None
        self._current_bytes = 0
        self._finished: deque[Path] = deque()
        self._compression: _Compression | None = None
        self.sequence = 0
        directory.mkdir(parents=True, exist_ok=True)
        self._adopt_leftovers()

    @property
    def is_open(self) -> bool:
        """Whether a current file exists; if not, the next write opens one."""
        return self._current is not None

    @property
    def wants_rotation(self) -> bool:
        """Whether the current file has reached its size."""
        return self._current_bytes >= self._rotate_bytes

    @property
    def pending_files(self) -> int:
        """Finished files that wait to be compressed."""
        return len(self._finished) + (self._compression is not None)

    def open(self) -> None:
        """Start the next file under a name that no other file has."""
        self._directory.mkdir(parents=True, exist_ok=True)
        stamp = self._find_stamp()
        while True:
            self.sequence += 1
            path = self._directory / f"access-{stamp}-{self._boot}-{self.sequence:06d}.jsonl"
            if path.with_suffix(".jsonl.gz").exists():
                continue
            with suppress(FileExistsError):
                self._current = _create(path, "xb")
                break
        self._current_bytes = 0
        fcntl.flock(self._current, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _find_stamp(self) -> str:
        """The time, or where the newest name is of a later one, what sorts behind that."""
        newest = max((path.name for path in self._directory.glob("access-*.jsonl*")), default="")
        named, now_s = _NAME.match(newest), self._now_ms() / 1000
        if named is not None:
            with suppress(ValueError):  # a name that only looks like a time
                named_s = calendar.timegm(time.strptime(named["stamp"], _STAMP))
                now_s = max(now_s, named_s if named["boot"] == self._boot else named_s + 1)
        return time.strftime(_STAMP, time.gmtime(now_s))

    def write(self, data: bytes) -> None:
        """Append whole lines to the open current file. On OSError nothing was added and the file is ended."""
        assert self._current is not None
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self._current.write(rest) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._current.fileno(), self._current_bytes)
            self._finish()
            raise
        self._current_bytes += len(data)

    def rotate(self) -> None:
        """Finish the current file, if any, and hand it to compression."""
        self._finish()
        self._prune()

    def compress_step(self) -> bool:
        """Compress up to COMPRESS_STEP_BYTES of a finished file; False when nothing is left to compress."""
        try:
            if self._compression is None:
                if not self._finished:
                    return False
                self._compression = self._begin(self._finished.popleft())
            if self._compression is not None:
                self._advance(self._compression)
        except OSError:
            self._abandon()
            raise
        return True

    def close(self) -> None:
        """Finish the current file. A compression under way is abandoned: the next start takes it up again."""
        self._finish()
        self._abandon()

    def _finish(self) -> None:
        current, self._current = self._current, None
        size_bytes, self._current_bytes = self._current_bytes, 0
        if current is None:
            return
        current.close()
        if size_bytes:
            self._finished.append(Path(current.name))
        else:
            Path(current.name).unlink(missing_ok=True)

    def _begin(self, source: Path) -> _Compression | None:
        """None: another process that shares the directory has compressed, deleted or taken it."""
        target = source.with_suffix(".jsonl.gz")
        try:
            reader = source.open("rb", buffering=0)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(reader, fcntl.LOCK_EX | fcntl.LOCK_NB)
            writer = _create(target.with_suffix(".gz.tmp"), "wb")
        except BlockingIOError:
            reader.close()
            return None
        except OSError:
            reader.close()
            raise
        return _Compression(
            source, target, reader, writer, zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_WBITS)
        )

    def _advance(self, work: _Compression) -> None:
        chunk = work.reader.read(COMPRESS_STEP_BYTES)
        if chunk:
            _write_all(work.writer, work.squeeze.compress(chunk))
            return
        _write_all(work.writer, work.squeeze.flush())
        os.fsync(work.writer.fileno())
        self._compression = None
        work.reader.close()
        work.writer.close()
        Path(work.writer.name).replace(work.target)
        work.source.unlink(missing_ok=True)
        self._prune()

    def _abandon(self) -> None:
        work, self._compression = self._compression, None
        if work is not None:
            work.reader.close()
            work.writer.close()
            with suppress(OSError):
                Path(work.writer.name).unlink(missing_ok=True)

    def _adopt_leftovers(self) -> None:
        for torn in self._directory.glob("access-*.jsonl.gz.tmp"):
            if not _is_held(source := torn.with_suffix("").with_suffix("")) and source.exists():
                torn.unlink(missing_ok=True)
        for path in sorted(self._directory.glob("access-*.jsonl")):
            if path.with_suffix(".jsonl.gz").exists():
                path.unlink(missing_ok=True)
            elif not _is_held(path):
                self._finished.append(path)

    def _prune(self) -> None:
        """Delete the oldest finished files until both bounds hold; what is being compressed is left."""
        kept = [
            path
            for path in sorted(self._directory.glob("access-*.jsonl*"))
            if path.suffix != ".tmp"
        ]
        current = Path(self._current.name) if self._current is not None else None
        busy = self._compression.source if self._compression is not None else None
        sizes = {path: _size_bytes(path) for path in kept}
        count, total_bytes = len(sizes), sum(sizes.values())
        for path, size_bytes in sizes.items():
            if count <= self._max_files and total_bytes <= self._max_total_bytes:
                return
            if path in (current, busy) or (path.suffix == ".jsonl" and _is_held(path)):
                continue
            path.unlink(missing_ok=True)
            with suppress(ValueError):
                self._finished.remove(path)
            count, total_bytes = count - 1, total_bytes - size_bytes


def _create(path: Path, mode: str) -> IO[bytes]:
    """Not for all to read: lines tell client ids and topics. The audit may be of the directory's group."""
    return io.FileIO(path, mode, opener=lambda name, flags: os.open(name, flags, MODE))


def _write_all(writer: IO[bytes], data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[writer.write(rest) :]


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _is_held(path: Path) -> bool:
    """Whether a living process writes this file."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
