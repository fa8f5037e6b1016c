"""The brokers' logs on disk: every record batch that a replica of a topic holds, or held during the run.

Owns the scan of the data directories and the values that it makes. Must not know clients or Forebay. A Fetch answers
with bytes of these files (FileRecords.writeTo), so a batch that no replica ever held is a wrong answer. Invariants: a
file that is deleted or compacted away is renamed first and stays for file.delete.delay.ms (60 s), so that a scan every
SCAN_S sees it whole; a truncation removes batches from the end only, so the last batch that was seen tells of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
import time
from base64 import urlsafe_b64decode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from protocol import batch
from protocol.errors import BadFrame
from tests.chaos.history import Place

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from protocol.batch import Batch

SCAN_S = 0.3
DIRECTORY = re.compile(r"(.+)-(\d+)(?:\.[0-9a-f]+-(?:delete|stray|future))?")
SEGMENT = re.compile(r"\d{20}\.log(?:\.(?:deleted|swap|cleaned))?")
TOPIC_ID = re.compile(r"topic_id: *(\S+)")
DIGEST_BYTES = 16
NO_END = 1 << 63


class Log(NamedTuple):
    """One partition of one incarnation of a topic."""

    topic_id: bytes
    partition: int


class Kept(NamedTuple):
    """A batch as some replica has or had it; `data` is the whole batch, `seen_at` is monotonic, in s."""

    head: Batch
    data: bytes
    seen_at: float


Lineage = tuple[tuple[int, int], ...]
"""(leader epoch, start offset), rising: what LeaderEpochFileCache holds."""


@dataclass(slots=True)
class Held:
    """What was seen of all logs.

    `batches`: log -> digest -> batch. `lineages`: log -> leader epoch -> the lineage of that epoch's leader.
    """

    batches: dict[Log, dict[bytes, Kept]] = field(default_factory=dict)
    lineages: dict[Log, dict[int, Lineage]] = field(default_factory=dict)

    def add(self, log: Log, data: bytes, head: Batch, seen_at: float) -> bytes:
        """Note a batch; its digest."""
        digest = digest_of(data)
        self.batches.setdefault(log, {}).setdefault(digest, Kept(head, data, seen_at))
        return digest

    def add_lineage(self, log: Log, lineage: Lineage) -> None:
        """Of two lineages of one epoch the longer is kept: the log start removes old epochs, nothing adds any."""
        if lineage:
            known = self.lineages.setdefault(log, {})
            epoch = lineage[-1][0]
            known[epoch] = max(known.get(epoch, ()), lineage, key=len)


def digest_of(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def scan_whole(data: bytes) -> list[Batch]:
    """The whole batches at the beginning of `data` whose CRC is right: the rest is still being written."""
    found = []
    at = 0
    while at + batch.LOG_OVERHEAD <= len(data):
        after = at + batch.LOG_OVERHEAD + int.from_bytes(data[at + 8 : at + 12], "big")
        try:
            scanned = batch.scan_batches(data, at, min(after, len(data)))
        except BadFrame:
            break
        if not scanned or not batch.is_crc_right(data, scanned[0]):
            break
        found.append(scanned[0])
        at = after
    return found


def read_senders(directories: Iterable[Path], topics: Collection[str]) -> dict[Place, list[Batch]]:
    """The heads of the batches that replicas have now, by partition."""
    found: dict[Place, list[Batch]] = {}
    for path, place in list_logs(directories, topics):
        for segment in path.glob("*.log"):
            found.setdefault(place, []).extend(scan_whole(segment.read_bytes()))
    return found


def list_logs(directories: Iterable[Path], topics: Collection[str]) -> Iterator[tuple[Path, Place]]:
    """The directories of the topics' partitions, also such as are being deleted."""
    for directory in directories:
        for path in list_directory(directory):
            named = DIRECTORY.fullmatch(path.name)
            if named is not None and named[1] in topics:
                yield path, Place(named[1], int(named[2]))


@dataclass(slots=True)
class Segment:
    """How far a file was read. `last`: where its last known batch lies and what that is."""

    read_bytes: int = 0
    last_start: int = 0
    last_digest: bytes = b""
    modified_ns: int = -1


class BrokerLogs(threading.Thread):
    """Scans `directories` (log.dirs of all brokers) for `topics` until `finish`; `scan` may be called besides."""

    def __init__(self, directories: Sequence[Path], topics: Collection[str]) -> None:
        super().__init__(name="broker-logs", daemon=True)
        self._directories, self._topics = directories, frozenset(topics)
        self._segments: dict[tuple[int, int], Segment] = {}
        self._epochs: dict[Path, int] = {}
        self._finishing = threading.Event()
        self._lock = threading.Lock()
        self.held = Held()

    def finish(self) -> None:
        self._finishing.set()

    def run(self) -> None:
        while not self._finishing.wait(SCAN_S):
            self.scan()

    def scan(self) -> None:
        """Read what is new in all logs."""
        with self._lock:
            for path, place in list_logs(self._directories, self._topics):
                self._scan_log(path, place.partition)

    def _scan_log(self, path: Path, partition: int) -> None:
        with contextlib.suppress(
            FileNotFoundError
        ):  # renamed or gone meanwhile: the next scan finds it
            topic_id = read_topic_id(path)
            if not topic_id:
                return
            log = Log(topic_id, partition)
            self._scan_lineage(log, path / "leader-epoch-checkpoint")
            for segment in list_directory(path):
                if SEGMENT.fullmatch(segment.name):
                    with contextlib.suppress(FileNotFoundError):
                        self._scan_segment(log, segment)

    def _scan_lineage(self, log: Log, path: Path) -> None:
        try:
            modified_ns = path.stat().st_mtime_ns
        except FileNotFoundError:
            return
        if self._epochs.get(path) != modified_ns:
            self.held.add_lineage(log, parse_lineage(path.read_text()))
            self._epochs[path] = modified_ns

    def _scan_segment(self, log: Log, path: Path) -> None:
        with path.open("rb") as file:
            status = path.stat()
            known = self._segments.setdefault((status.st_dev, status.st_ino), Segment())
            if (status.st_size, status.st_mtime_ns) == (known.read_bytes, known.modified_ns):
                return
            file.seek(known.last_start)
            last = file.read(known.read_bytes - known.last_start)
            if (
                known.last_digest and digest_of(last) != known.last_digest
            ):  # truncated, or another file
                known.read_bytes = known.last_start = 0
                known.last_digest = b""
                file.seek(0)
            data = file.read()
        known.modified_ns = status.st_mtime_ns
        now = time.monotonic()
        start = known.read_bytes
        for one in scan_whole(data):
            known.last_start, known.read_bytes = start + one.start, start + one.end
            known.last_digest = self.held.add(log, data[one.start : one.end], one, now)


def list_directory(path: Path) -> Iterable[Path]:
    try:
        return list(path.iterdir())
    except FileNotFoundError:
        return []


def read_topic_id(path: Path) -> bytes:
    """Of a log's directory (PartitionMetadataFile); b"" where it has none yet. FileNotFoundError."""
    found = TOPIC_ID.search((path / "partition.metadata").read_text())
    return urlsafe_b64decode(found[1] + "==") if found else b""


def parse_lineage(text: str) -> Lineage:
    """A leader-epoch-checkpoint: a version, a count, then a line for each epoch; () while it is being written."""
    lines = text.split("\n")
    pairs = [line.split() for line in lines[2:] if line]
    if len(lines) < 2 or not lines[1].isdigit() or len(pairs) != int(lines[1]):
        return ()
    return tuple((int(epoch), int(start)) for epoch, start in pairs)


def is_of(lineage: Lineage, epoch: int, offset: int) -> bool:
    """Whether a batch of `epoch` at `offset` belongs to a log. An epoch before the log's first one is not judged."""
    if not lineage or epoch < lineage[0][0]:
        return True
    ends = [start for _, start in lineage[1:]] + [NO_END]
    return any(
        known == epoch and offset < end for (known, _), end in zip(lineage, ends, strict=True)
    )
