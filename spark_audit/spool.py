"""New lines of growing log files, copied into small files that never change.

Owns the spool's folder: which bytes of which log file were taken. Must not know Spark or what a line says. Invariants:
a byte of a log file is in exactly one chunk, however often the process is killed; a chunk appears whole (written
beside, then renamed) and ends with a line's end, unless the log file does not; `X.jsonl` and the `X.jsonl.gz` that it
becomes are one file; the spool holds at most the bytes that one `take` was allowed, and a chunk.

    <spool>/<key>/position              {"path": X.jsonl, "taken": bytes, "isWhole": taken to the end of a .gz}
    <spool>/<key>/<first byte>.jsonl    a chunk, until `clear`
"""

import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

LogFile = gzip.GzipFile | io.BufferedReader
CHUNK_BYTES: Final = 64 << 20
_PIECE_BYTES: Final = 1 << 20
_POSITION: Final = "position"
_UNREADABLE: Final = (OSError, EOFError, zlib.error)


class Position(NamedTuple):
    """How far a log file was taken. `path`: its name before compression."""

    path: str
    taken_bytes: int
    is_whole: bool


class Spool:
    """The chunks in `directory`, which is made if there is none. One process at a time may use it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory

    def take(self, files: Iterable[Path], limit_bytes: int) -> int:
        """Copy up to about `limit_bytes` of lines that were not taken yet; returns the bytes copied. A last line
        without its end is left, except in a `.gz`, which does not grow. Of a damaged file all whole lines are copied
        that can be read. Files that vanish or cannot be opened are left.
        """
        copied = 0
        for path in files:
            for size_bytes in self._take_file(path):
                copied += size_bytes
                if copied >= limit_bytes:
                    return copied
        return copied

    def clear(self) -> None:
        """Remove all chunks: their lines are elsewhere now. Positions stay."""
        for chunk in self._directory.glob("*/*.jsonl"):
            chunk.unlink()

    def positions(self) -> dict[str, Position]:
        """By key, of every log file that was ever looked at."""
        return {path.parent.name: _read(path) for path in self._directory.glob(f"*/{_POSITION}")}

    def _take_file(self, path: Path) -> Iterator[int]:
        """Copies one chunk at each step."""
        name = name_uncompressed(path)
        folder = self._directory / build_key(name)
        folder.mkdir(exist_ok=True)
        position = self._find_position(folder, name)
        if position.is_whole:
            return
        is_compressed = path.suffix == ".gz"
        try:
            with gzip.open(path) if is_compressed else path.open("rb") as file:
                file.seek(position.taken_bytes)
                while size_bytes := _copy_chunk(file, folder, position.taken_bytes, is_compressed):
                    position = position._replace(taken_bytes=position.taken_bytes + size_bytes)
                    _write(folder / _POSITION, position)
                    yield size_bytes
        except _UNREADABLE:
            return
        if is_compressed:
            _write(folder / _POSITION, position._replace(is_whole=True))

    def _find_position(self, folder: Path, name: str) -> Position:
        """As written, and behind a chunk that was renamed before the position was written."""
        path = folder / _POSITION
        position = _read(path) if path.exists() else Position(name, 0, False)
        chunk = _chunk_path(folder, position.taken_bytes)
        if chunk.exists():
            taken_bytes = position.taken_bytes + chunk.stat().st_size
            position = position._replace(taken_bytes=taken_bytes)
            _write(path, position)
        elif not path.exists():
            _write(path, position)
        return position


def name_uncompressed(path: Path) -> str:
    """The name that a log file had before it was compressed."""
    return str(path).removesuffix(".gz")


def build_key(name: str) -> str:
    """A folder's name for a log file."""
    return hashlib.sha256(name.encode()).hexdigest()[:24]


def _chunk_path(folder: Path, first_byte: int) -> Path:
    return folder / f"{first_byte:020d}.jsonl"


def _copy_chunk(file: LogFile, folder: Path, first_byte: int, takes_tail: bool) -> int:
    """Copy whole lines from where the file stands, at most CHUNK_BYTES; returns the bytes of the chunk, 0 without one.
    The file is left behind the chunk's last byte.
    """
    partial = folder / "_partial"
    size_bytes, whole_bytes = 0, 0
    with partial.open("wb") as chunk:
        while size_bytes < CHUNK_BYTES:
            piece = _read_piece(file)
            if not piece:
                takes_tail = takes_tail and piece is not None
                break
            chunk.write(piece)
            newline = piece.rfind(b"\n")
            if newline >= 0:
                whole_bytes = size_bytes + newline + 1
            size_bytes += len(piece)
        is_cut = size_bytes >= CHUNK_BYTES
        if (is_cut and not whole_bytes) or (takes_tail and not is_cut):
            whole_bytes = size_bytes
        chunk.truncate(whole_bytes)
        chunk.flush()
        os.fsync(chunk.fileno())
    if whole_bytes:
        partial.rename(_chunk_path(folder, first_byte))
        file.seek(first_byte + whole_bytes)
    return whole_bytes


def _read_piece(file: LogFile) -> bytes | None:
    """The next bytes, empty at the end; None: they are damaged."""
    try:
        return file.read1(_PIECE_BYTES)
    except _UNREADABLE:
        return None


def _read(path: Path) -> Position:
    values = json.loads(path.read_text(encoding="utf-8"))
    return Position(values["path"], values["taken"], values["isWhole"])


def _write(path: Path, position: Position) -> None:
    """Replace the file at once."""
    values = {"path": position.path, "taken": position.taken_bytes, "isWhole": position.is_whole}
    beside = path.with_name("_position")
    beside.write_text(json.dumps(values), encoding="utf-8")
    beside.replace(path)
