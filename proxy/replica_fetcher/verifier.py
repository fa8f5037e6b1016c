"""Compares a sample of the cache's answers with the broker's log, byte for byte.

Owns the sample, its limits and the reaction to a difference: all blocks of the topic are dropped,
and a log line shows the difference. The topic is not stored from Produce until one of its batches
is seen equal again. Must not know how a hit came about. Invariants:
* the broker's side is its response to Forebay's own Fetch (max_wait 0, session-less, in the
  client's isolation level), never the cache.
* one Fetch is in flight, and at most QUEUE_SAMPLES wait; a sample without room is dropped and
  counted.
* cleaned, removed and truncated batches are no difference.
* for read_committed the aborted transactions of the same bytes are compared: below the LSO they are
  settled. The LSO itself moves on: too high an LSO was a difference, too low an LSO is none.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from protocol import batch, fetch
from protocol.errors import BadFrame, ErrorCode
from protocol.fetch import FetchPartition
from protocol.fetch_build import build_request
from proxy.partitions.readable import READ_COMMITTED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from blockcache.arena import Hit
    from protocol.batch import Batch
    from protocol.fetch import FetchedPartition
    from protocol.primitives import Frame
    from proxy.partitions.table import Partition
    from proxy.replica_fetcher.services import FetcherServices

log = logging.getLogger("forebay.verifier")

VERSION = 13
CLIENT_ID = "forebay-verify"
SESSIONLESS = (0, -1)
QUEUE_SAMPLES = 16
SAMPLE_BYTES = 1 << 20
"""Of a longer answer only this many bytes from its start are compared."""
DELETE_HORIZON = 0x40
"""Attribute bit: the cleaner has put its delete horizon into the base timestamp (KIP-534,
DefaultRecordBatch).
"""


class Committed(NamedTuple):
    """The part of a read_committed answer beside its records: (producer id, first offset) of
    aborted transactions, and the LSO.
    """

    aborted: Sequence[tuple[int, int]]
    last_stable_offset: int


class ServedSample(NamedTuple):
    """Records that the cache returned of a partition, from `fetch_offset` on, in leader epoch
    `epoch`.

    `cut`: the sample lacks the end of the answer. `committed` None: the answer was for
    read_uncommitted.
    """

    partition: Partition
    epoch: int
    fetch_offset: int
    records: bytes
    cut: bool
    committed: Committed | None = None


class Difference(NamedTuple):
    """The first batch that is not the broker's.

    `at_byte` counts from the batch's start. A CRC is -1 if that side has no batch there.
    `is_whole`: the stored batch agrees with its own CRC.
    """

    base_offset: int
    last_offset: int
    at_byte: int
    stored_crc: int
    broker_crc: int
    is_whole: bool


class Verifier:
    """Queue of samples. `ratio` is the share of hits that are taken; `draw` returns a uniform
    random number below 1. `verdicts` counts the samples by what became of them.
    """

    __slots__ = ("_broker", "_draw", "_in_flight", "_waiting", "ratio", "verdicts")

    def __init__(self, broker: FetcherServices, ratio: float, draw: Callable[[], float]) -> None:
        self._broker = broker
        self.ratio = ratio
        self._draw = draw
        self._waiting: deque[ServedSample] = deque()
        self._in_flight = False
        self.verdicts: defaultdict[str, int] = defaultdict(int)

    def __len__(self) -> int:
        return len(self._waiting) + self._in_flight

    def set_ratio(self, ratio: float) -> None:
        """Take another share of the hits. Samples that wait are still compared."""
        self.ratio = ratio

    def choose(self, hits: int) -> list[int]:
        """Return which of the next `hits` hits are to be compared, as numbers from 0 on."""
        ratio, draw = self.ratio, self._draw
        return [number for number in range(hits) if draw() < ratio]

    def take(
        self, partition: Partition, fetch_offset: int, hit: Hit, committed: Committed | None
    ) -> None:
        """Copy `hit`, which is about to be sent, and queue it. The bytes must be pinned during this
        call. A full queue, or a refused topic, drops the sample.
        """
        if len(self._waiting) >= QUEUE_SAMPLES or partition.is_refused(self._broker.now()):
            self.verdicts["dropped"] += 1
            return
        records = bytes(b"".join(hit.views)[:SAMPLE_BYTES])
        epoch, cut = partition.leader_state.epoch, hit.size_bytes > SAMPLE_BYTES
        self._waiting.append(ServedSample(partition, epoch, fetch_offset, records, cut, committed))
        self.pump()

    def tick(self, _now: float) -> None:
        """Try to send the next question: the connection may be open by now. Called periodically."""
        self.pump()

    def pump(self) -> None:
        """Ask for the next sample, if no question is in flight."""
        if self._in_flight or not self._waiting or not self._broker.own_connections.usable:
            return
        link = self._broker.own_connections.link("verify")
        if link is None:
            return
        sample = self._waiting.popleft()
        self._in_flight = True
        link.send(build_question(sample), 0, partial(self._answered, sample))

    def _answered(self, sample: ServedSample, answer: Frame | None) -> None:
        self._in_flight = False
        self._broker.attempt(lambda: self._judge(sample, answer), "verifying an answer")
        self.pump()

    def _judge(self, sample: ServedSample, answer: Frame | None) -> None:
        partition = sample.partition
        answered = None if answer is None else scan_answer(answer)
        if answer is None or answered is None:
            self.verdicts["unanswered"] += 1
            return
        record_bytes = answered.end - answered.start
        self._broker.counters.upstream.fetch_bytes["verify"] += record_bytes
        # the broker's log may have been truncated since
        if partition.leader_state.epoch != sample.epoch:
            self.verdicts["outdated"] += 1
            return
        found = find_difference(sample, answer, answered)
        untrue = "" if found is not None else find_untrue(sample, answer, answered)
        if found is None and not untrue:
            self.verdicts["equal"] += 1
            return
        self.verdicts["mismatch"] += 1
        _log_difference(partition, found, untrue)
        self._distrust(partition)

    def _distrust(self, partition: Partition) -> None:
        """Drop all stored bytes of the topic, and store no more from Produce until a batch is seen
        equal.
        """
        self._broker.distrust(partition.topic, "verify")
        for one in [p for p in self._broker.partitions if p.topic is partition.topic]:
            self._broker.invalidate(one, 0, "verify")


def _log_difference(partition: Partition, found: Difference | None, untrue: str) -> None:
    """Log one line with the facts needed to find the cause. `untrue`: the false statement if the
    bytes are equal.
    """
    fields = partition.log_fields
    if found is None:
        log.error(
            "memory told a read_committed client what the broker does not: %s; "
            "dropping the topic's blocks and storing no more of it from Produce",
            untrue,
            extra=fields,
        )
        return
    log.error(
        "memory served other bytes than the broker has: offsets %d to %d, first "
        "differing byte %d of the batch, CRC %08x stored and %08x at the broker, the stored batch %s its "
        "own CRC; dropping the topic's blocks and storing no more of it from Produce",
        found.base_offset,
        found.last_offset,
        found.at_byte,
        found.stored_crc & 0xFFFFFFFF,
        found.broker_crc & 0xFFFFFFFF,
        "agrees with" if found.is_whole else "contradicts",
        extra=fields,
    )


def build_question(sample: ServedSample) -> bytes:
    """Return the Fetch request for the sample's range."""
    size_bytes = len(sample.records)
    topic_id, index = sample.partition.topic.id, sample.partition.index
    return build_request(
        VERSION,
        0,
        CLIENT_ID,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=size_bytes,
        isolation_level=0 if sample.committed is None else READ_COMMITTED,
        session_id=SESSIONLESS[0],
        session_epoch=SESSIONLESS[1],
        partitions=[
            FetchPartition(topic_id, index, sample.epoch, sample.fetch_offset, -1, -1, size_bytes)
        ],
    )


def scan_answer(answer: Frame) -> FetchedPartition | None:
    """Return the one partition of a response. Return None if it has an error or no records, or
    cannot be read: then there is nothing to compare with.
    """
    try:
        response = fetch.scan_response(answer, VERSION)
    except BadFrame:
        return None
    plain = [
        one
        for one in response.partitions
        if one.error_code == ErrorCode.NONE and one.end > one.start
    ]
    return plain[0] if len(plain) == 1 else None


def find_difference(
    sample: ServedSample, frame: Frame, answered: FetchedPartition
) -> Difference | None:
    """Return the first stored batch that differs from the broker's; None if there is none.

    The broker's batches lead. Its response may end earlier or later, and may lack batches that the
    cleaner has removed.
    """
    ours, at, expected = sample.records, 0, sample.fetch_offset
    try:
        theirs = batch.scan_batches(frame, answered.start, answered.end)
    except BadFrame:
        return None
    for their in theirs:
        while at < len(ours):
            size_bytes = min(their.end - their.start, len(ours) - at)
            equal = (
                ours[at : at + size_bytes]
                == memoryview(frame)[their.start : their.start + size_bytes]
            )
            if equal and (their.start + size_bytes == their.end or sample.cut):
                at, expected = at + size_bytes, their.last_offset + 1
                break
            mine = _scan_first(ours, at)
            if mine is None and sample.cut and len(ours) - at < their.end - their.start:
                return None  # the sample was cut within this batch
            if mine is None or mine.last_offset < expected or not batch.is_crc_right(ours, mine):
                return _describe(ours, at, mine, frame, their)
            is_removed = mine.last_offset < their.base_offset
            if not is_removed and not _is_cleaned(mine, their):
                return _describe(ours, at, mine, frame, their)
            at, expected = mine.end, mine.last_offset + 1
            if not is_removed:
                break
    return None


def find_untrue(sample: ServedSample, frame: Frame, answered: FetchedPartition) -> str:
    """Return the false statement of a read_committed answer; "" if there is none.

    Transactions are compared as far as both sides have the same batches: of a cleaned range the
    broker may have forgotten some. The broker may list more than its records need
    (LogSegment.fetchUpperBoundOffset). Where a transaction began before the fetch offset does not
    matter.
    """
    told = sample.committed
    if told is None:
        return ""
    if told.last_stable_offset > answered.last_stable_offset:
        return f"last stable offset {told.last_stable_offset}, the broker's is {answered.last_stable_offset}"
    end_offset = _scan_common_end(sample, frame, answered)
    ours, brokers = (
        sorted(
            (producer_id, max(first, sample.fetch_offset))
            for producer_id, first in one
            if first < end_offset
        )
        for one in (told.aborted, answered.aborted or ())
    )
    if ours == brokers:
        return ""
    return (
        f"aborted transactions (producer id, first offset) of offsets {sample.fetch_offset} to {end_offset - 1}: "
        f"{ours}, the broker's are {brokers}"
    )


def _scan_common_end(sample: ServedSample, frame: Frame, answered: FetchedPartition) -> int:
    """Return the offset behind the last whole batch up to which both sides are equal."""
    end_offset, at = sample.fetch_offset, 0
    try:
        theirs = batch.scan_batches(frame, answered.start, answered.end)
    except BadFrame:
        return end_offset
    for their in theirs:
        size_bytes = their.end - their.start
        if sample.records[at : at + size_bytes] != memoryview(frame)[their.start : their.end]:
            break
        at, end_offset = at + size_bytes, their.last_offset + 1
    return end_offset


def _is_cleaned(mine: Batch, their: Batch) -> bool:
    """True if compaction made the broker's batch of ours: same offsets, but fewer records or a
    delete horizon.
    """
    same_place = (mine.base_offset, mine.last_offset) == (their.base_offset, their.last_offset)
    has_horizon = bool(their.attributes & DELETE_HORIZON) and not mine.attributes & DELETE_HORIZON
    return same_place and (their.record_count < mine.record_count or has_horizon)


def _scan_first(ours: bytes, at: int) -> Batch | None:
    try:
        found = batch.scan_batches(ours, at, len(ours))
    except BadFrame:
        return None
    return found[0] if found and found[0].magic == batch.MAGIC_V2 else None


def _describe(ours: bytes, at: int, mine: Batch | None, frame: Frame, their: Batch) -> Difference:
    stored, brokers = memoryview(ours)[at:], memoryview(frame)[their.start : their.end]
    pairs = enumerate(zip(stored, brokers, strict=False))
    at_byte = next(
        (place for place, (one, other) in pairs if one != other), min(len(stored), len(brokers))
    )
    is_whole = mine is not None and batch.is_crc_right(ours, mine)
    crc = -1 if mine is None else mine.crc
    return Difference(their.base_offset, their.last_offset, at_byte, crc, their.crc, is_whole)
