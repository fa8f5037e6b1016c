"""A partition's log in memory with its transactions, as a broker and a Java consumer read it.

Owns the slow, whole-log readings: UnifiedLog's last stable offset, TransactionIndex's aborted list, CompletedFetch's
filter. Must not know the code under test, beyond `Batch`, whose values it hands out.
"""

from typing import NamedTuple

from protocol.batch import Batch, scan_batches
from protocol.control_batch import ControlType
from tests.protocol.markers import build_marker

TRANSACTIONAL, CONTROL = 0x10, 0x20


class Entry(NamedTuple):
    """One batch: of a producer (-1: none), transactional or not; `marker` is None for data."""

    base: int
    last: int
    producer_id: int
    transactional: bool
    marker: ControlType | None


class Transaction(NamedTuple):
    """`marker` is None while it is open."""

    producer_id: int
    first: int
    marker: int | None
    aborted: bool


class Log:
    """The log, its HW and log start. Offsets between entries are empty."""

    def __init__(self):
        self.entries = []
        self.end = self.high_watermark = self.start = 0

    def append(self, producer_id=-1, *, count=1, transactional=False, marker=None):
        last = self.end + count - 1
        self.entries.append(Entry(self.end, last, producer_id, transactional, marker))
        self.end = last + 1

    def data(self, producer_id, count=1):
        self.append(producer_id, count=count, transactional=True)

    def commit(self, producer_id):
        self.append(producer_id, transactional=True, marker=ControlType.COMMIT)

    def abort(self, producer_id):
        self.append(producer_id, transactional=True, marker=ControlType.ABORT)

    def replicate(self):
        self.high_watermark = self.end

    def truncate(self, offset):
        self.entries = [entry for entry in self.entries if entry.last < offset]
        self.end = offset
        self.high_watermark = min(self.high_watermark, offset)

    def transactions(self):
        """Each one, from the whole log, what is deleted included; matched by producer id alone."""
        found: list[Transaction] = []
        for index, entry in enumerate(self.entries):
            if not entry.transactional or entry.marker is not None:
                continue
            if any(one.producer_id == entry.producer_id and one.marker is None for one in found):
                continue
            if any(
                one.producer_id == entry.producer_id and one.marker > entry.base for one in found
            ):
                continue
            ends = (
                later
                for later in self.entries[index:]
                if later.producer_id == entry.producer_id and later.marker is not None
            )
            end = next(ends, None)
            marker = None if end is None else end.base
            aborted = end is not None and end.marker is ControlType.ABORT
            found.append(Transaction(entry.producer_id, entry.base, marker, aborted))
        return found

    def last_stable_offset(self):
        unstable = [
            one.first
            for one in self.transactions()
            if one.marker is None or one.marker >= max(self.high_watermark, self.start)
        ]
        first = min(unstable, default=self.high_watermark)
        return min(self.high_watermark, max(first, self.start))

    def aborted(self, fetch_offset, end_offset):
        return [
            one
            for one in self.transactions()
            if one.aborted and one.marker >= fetch_offset and one.first < end_offset
        ]

    def committed(self, fetch_offset, end_offset):
        """Offsets of all data in the range that belongs to no aborted transaction."""
        aborted = [one for one in self.transactions() if one.aborted]
        return [
            offset
            for entry in self.entries
            if entry.marker is None
            for offset in range(max(entry.base, fetch_offset), min(entry.last + 1, end_offset))
            if not any(
                entry.transactional
                and one.producer_id == entry.producer_id
                and one.first <= offset < one.marker
                for one in aborted
            )
        ]

    def consume(self, fetch_offset, end_offset, aborted):
        """What a read_committed Java consumer hands out of these batches and that aborted list
        (CompletedFetch.nextFetchedRecord).
        """
        queue = sorted(aborted, key=lambda one: one[1])
        producers = set()
        handed: list[int] = []
        for entry in self.entries:
            if entry.last < fetch_offset or entry.base >= end_offset:
                continue
            if entry.producer_id >= 0:
                while queue and queue[0][1] <= entry.last:
                    producers.add(queue.pop(0)[0])
                if entry.marker is ControlType.ABORT:
                    producers.discard(entry.producer_id)
                elif entry.transactional and entry.producer_id in producers:
                    continue
            if entry.marker is None:
                handed += range(max(entry.base, fetch_offset), entry.last + 1)
        return handed

    def read(self, start, end):
        """The batches of entries [start, end), as (buf, batches, from offset, to offset)."""
        buf, batches = b"", []
        for entry in self.entries[start:end]:
            if entry.marker is not None:
                at = len(buf)
                buf += build_marker(entry.base, entry.marker, producer_id=entry.producer_id)
                batches += scan_batches(buf, at, len(buf))
            else:
                batches.append(_data_batch(entry))
        first = self.entries[start - 1].last + 1 if start else 0
        last = self.entries[end - 1].last + 1 if end else 0
        return buf, batches, first, last


def log_of(*steps):
    """A log written by steps such as ("data", A), all of it replicated."""
    log = Log()
    for name, *arguments in steps:
        getattr(log, name)(*arguments)
    log.replicate()
    return log


def _data_batch(entry):
    attributes = TRANSACTIONAL if entry.transactional else 0
    count = entry.last - entry.base + 1
    return Batch(
        0, 0, entry.base, entry.last, 0, 2, 0, attributes, 0, entry.producer_id, 0, 0, count
    )
