"""Files of any store that Hadoop knows, seen from the driver: this machine's, HDFS, object stores.

Owns names (a path of this machine or a URI), listing, and small files read and written whole. Must not know what
files hold. Invariants: a name without a scheme is a path of this machine, whatever the cluster's default store is;
a directory is listed with all below it; what cannot be listed is returned and said, never an error and never left
out.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import SparkSession

from spark_audit.session import SPARK_ERRORS, describe_spark_error

READABLE: Final = re.compile(r".*\.jsonl(\.\d+)?(\.(gz|zst|bz2|lz4))?")
"""Names of log files: as the sidecar writes them, as log rotation renames them, and compressed by others."""
_RESEMBLES: Final = re.compile(r"access-.*|.*\.jsonl.*")
_BEING_WRITTEN: Final = re.compile(r".*\.gz\.tmp|.*\.crc|[._].*")
_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:/")
_STATUS: Final = re.compile(
    r"\w+\{path=(?P<path>.*); isDirectory=(?P<directory>true|false);"
    r"(?: length=(?P<length>\d+);[^/]*)? modification_time=(?P<modified>-?\d+);.*",
    re.DOTALL,
)


class StoredFile(NamedTuple):
    """A file: its full URI, stored size and time of last change (ms since 1970)."""

    uri: str
    size_bytes: int
    modified_ms: int


class Listing(NamedTuple):
    """What was found: log files in order of name; names that only look like logs; what could not be listed, and why."""

    files: tuple[StoredFile, ...]
    skipped: tuple[str, ...]
    unreadable: dict[str, str]


class StoreError(Exception):
    """A store refused; the message is its own."""


def to_uri(name: str | Path) -> str:
    """A URI as it is; a path of this machine as an absolute `file:` URI."""
    text = str(name)
    return text if _SCHEME.match(text) else f"file://{Path(text).absolute()}"


def plain_path(uri: str) -> str:
    """A file of this machine as its path, other URIs as they are."""
    return "/" + uri.removeprefix("file:").lstrip("/") if uri.startswith("file:") else uri


def find_hidden(uri: str, listed: Sequence[str]) -> dict[str, str]:
    """Of a directory of this machine, what Hadoop leaves out of its listing without a word, and why: names at which it
    may not look, and links to nothing. None of a directory of another store.
    """
    names: list[str] = []
    if uri.startswith("file:"):
        with suppress(OSError):  # of a directory that has gone, the listing has said so
            names = [path.name for path in Path(plain_path(uri)).iterdir()]
    seen = {one.rsplit("/", 1)[-1] for one in listed}
    reasons = {name: _explain_hidden(Path(plain_path(uri), name)) for name in names}
    return {
        f"{uri.rstrip('/')}/{name}": why
        for name, why in sorted(reasons.items())
        if why and name not in seen and not _BEING_WRITTEN.fullmatch(name)
    }


def _explain_hidden(path: Path) -> str:
    """Empty of what can be looked at, or has been removed since."""
    is_link = False
    try:
        is_link = path.is_symlink()
        path.stat()
    except FileNotFoundError as error:
        return f"it links to nothing: {error.strerror}" if is_link else ""
    except OSError as error:
        return error.strerror or str(error)
    return ""


def escape_glob(uri: str) -> str:
    """The name as a pattern that matches nothing else: Spark takes every path for a pattern."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", uri)


class Store:
    """The stores as the session's Hadoop configuration reaches them."""

    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self._jvm = context._jvm
        self._configuration = context._jsc.hadoopConfiguration()

    def _open(self, uri: str) -> tuple[Any, Any]:
        path = self._jvm.org.apache.hadoop.fs.Path(uri)
        return path.getFileSystem(self._configuration), path

    def exists(self, uri: str) -> bool:
        """Whether there is a file or directory. StoreError: the store cannot be reached."""
        return bool(self._ask(uri, lambda system, path: system.exists(path)))

    def read_text(self, uri: str) -> str:
        """A small file as UTF-8. StoreError: it cannot be read."""

        def read(system: Any, path: Any) -> bytes:
            stream = system.open(path)
            try:
                return bytes(self._jvm.org.apache.hadoop.io.IOUtils.readFullyToByteArray(stream))
            finally:
                stream.close()

        return bytes(self._ask(uri, read)).decode("utf-8")

    def write_text(self, uri: str, text: str) -> None:
        """Write a small file as UTF-8, as `write_bytes` does."""
        self.write_bytes(uri, text.encode("utf-8"))

    def write_bytes(self, uri: str, data: bytes) -> None:
        """Write a small file; a reader sees all of it or none, but for stores that rename by copying."""

        def write(system: Any, path: Any) -> None:
            beside = path.suffix(".tmp")
            renames = system.getScheme() in ("file", "hdfs", "viewfs")
            stream = system.create(beside if renames else path, True)
            stream.write(bytearray(data))
            stream.close()
            if renames:
                system.delete(path, False)
                if not system.rename(beside, path):
                    raise StoreError(f"{uri} cannot be written")

        self._ask(uri, write)

    def delete(self, uri: str) -> None:
        """Remove a file, or a directory with all below it; nothing happens if there is none."""
        self._ask(uri, lambda system, path: system.delete(path, True))

    def list_names(self, uri: str) -> list[str]:
        """Full URIs directly below a directory; none if it does not exist. StoreError as for `exists`."""
        if not self.exists(uri):
            return []
        return [found.uri for found, _ in self._ask(uri, self._statuses)]

    def list_logs(self, names: Sequence[str | Path]) -> Listing:
        """The log files that `names` mean: files, directories with all below them, or patterns."""
        files: dict[str, StoredFile] = {}
        skipped: set[str] = set()
        unreadable: dict[str, str] = {}
        for name in names:
            uri = to_uri(name)
            try:
                tops = self._ask(uri, self._match)
            except StoreError as error:
                unreadable[uri] = str(error)
                continue
            for found, is_directory in tops:
                if not is_directory:
                    files[found.uri] = found
                    continue
                for below in self._walk(found.uri, unreadable):
                    base = below.uri.rsplit("/", 1)[-1]
                    if READABLE.fullmatch(base) and not _BEING_WRITTEN.fullmatch(base):
                        files[below.uri] = below
                    elif _RESEMBLES.fullmatch(base) and not _BEING_WRITTEN.fullmatch(base):
                        skipped.add(below.uri)
        kept = [found for uri, found in sorted(files.items()) if f"{uri}.gz" not in files]
        return Listing(tuple(kept), tuple(sorted(skipped)), unreadable)

    def find_fault(self, uri: str) -> str:
        """Empty if the file can be opened and its first byte read, else why not."""

        def read(system: Any, path: Any) -> None:
            stream = system.open(path)
            try:
                stream.read()
            finally:
                stream.close()

        try:
            self._ask(uri, read)
        except StoreError as error:
            return str(error)
        return ""

    def _match(self, system: Any, path: Any) -> list[tuple[StoredFile, bool]]:
        """The file or directory of this very name, else all that the pattern matches."""
        if system.exists(path):
            return self._scan([system.getFileStatus(path)])
        return self._scan(system.globStatus(path) or [])

    def _statuses(self, system: Any, path: Any) -> list[tuple[StoredFile, bool]]:
        return self._scan(system.listStatus(path))

    def _scan(self, statuses: Any) -> list[tuple[StoredFile, bool]]:
        """Each file and whether it is a directory: by one call for each, its text, unless that is of another form."""
        found = []
        for one in statuses:
            text = _STATUS.fullmatch(one.toString())
            if text is not None:
                file = StoredFile(text["path"], int(text["length"] or 0), int(text["modified"]))
                found.append((file, text["directory"] == "true"))
                continue
            file = StoredFile(
                one.getPath().toString(), int(one.getLen()), int(one.getModificationTime())
            )
            found.append((file, bool(one.isDirectory())))
        return found

    def _walk(self, uri: str, unreadable: dict[str, str]) -> Iterator[StoredFile]:
        waiting = [uri]
        while waiting:
            directory = waiting.pop()
            try:
                found = self._ask(directory, self._statuses)
            except StoreError as error:
                unreadable[directory] = str(error)
                continue
            unreadable |= find_hidden(directory, [one.uri for one, _ in found])
            for one, is_directory in found:
                if is_directory:
                    waiting.append(one.uri)
                else:
                    yield one

    def _ask(self, uri: str, action: Any) -> Any:
        try:
            system, path = self._open(uri)
            return action(system, path)
        except SPARK_ERRORS as error:
            raise StoreError(f"{uri}: {describe_spark_error(error)}") from error
