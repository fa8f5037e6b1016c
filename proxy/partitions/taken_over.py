"""Proof of the batches of one partition that an earlier process stored.

Owns which question is next, and the judgement of its answer. Must not know who asks. The bytes are
frozen until both have been answered in one proven epoch:
* a Fetch at their end, with their newest epoch, has not diverged, as after any new epoch (`update._is_check`). It
  proves offsets and epochs.
* a Fetch at the newest batch below the high watermark (HW) has brought that batch, byte for byte. The
  earlier process stored produced batches only while the broker was seen to store them unchanged
  (`recompression.py`). The sample shows whether the broker still did so when the process ended.

Whatever cannot be proven so is dropped.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from protocol import batch
from protocol.errors import BadFrame
from protocol.fetch import FetchPartition

if TYPE_CHECKING:
    from blockcache.cache import BlockCache
    from protocol.fetch import FetchedPartition
    from protocol.primitives import Frame

HEAD_BYTES = 61
"""A batch header's length (DefaultRecordBatch); its CRC covers what follows."""
HEAD = Struct(">qi")
"""Base offset, and length without these two."""
TRIES_MAX = 50
"""How often a sample may come back empty: the broker's byte limit gives others their turn first."""


class StoredSample(NamedTuple):
    """Stored batch that the broker is asked for: its header and length in bytes."""

    head: bytes
    base_offset: int
    size_bytes: int


GAP_S = 60.0
"""For how long after its process's end, in seconds, batches are served below records that it did not see.
Where a topic was compacted meanwhile, the cleaner may have removed records that deleted what is
stored. A running process learns a changed policy within as long
(replica_fetcher/compaction_policy.py).
"""
CATCH_UP_S = 5.0
"""For how long after its process's end, in seconds, the records that it did not see are read at its stored
end, and not left as history. Consumers that it served come back for them; the broker's disk does not
read them, since they are that young.
"""


class TakenOver:
    """Proof of a partition's batches that is still missing. `ended_at`: when the earlier process was
    last alive, in seconds.
    """

    __slots__ = ("ended_at", "sample", "tries")

    def __init__(self, ended_at: float) -> None:
        self.ended_at = ended_at
        self.sample: StoredSample | None = None
        self.tries = 0

    def begin(self) -> None:
        """Show everything again: the epoch is another one, or batches were dropped."""
        self.sample, self.tries = None, 0

    def catches_up(self, asked_at: float) -> bool:
        """Return True if a Fetch sent at `asked_at` (seconds) is to go on where the batches end."""
        return asked_at - self.ended_at <= CATCH_UP_S

    def choose_sample(
        self, cache: BlockCache, slot: int, high_watermark: int, asked_at: float
    ) -> bool:
        """Ask for a sample next: a Fetch sent at `asked_at` (seconds) has checked the end of the batches.
        Return False if they cannot be served: none of them is visible, or the log cleaner may have
        removed records that follow them.
        """
        edges = cache.edges(slot, 0)
        if edges.tail_end < high_watermark and asked_at - self.ended_at > GAP_S:
            return False
        newest = min(edges.tail_end, high_watermark) - 1
        head = cache.peek_head(slot, newest) if newest >= edges.tail_start else None
        if head is None:
            return False
        base_offset, length = HEAD.unpack_from(head)
        self.sample = StoredSample(head, base_offset, length + HEAD.size)
        return bool(base_offset <= newest)

    def plan_question(self, topic_id: bytes, index: int, epoch: int) -> FetchPartition | None:
        """Return the question for the sample; None while the end of the batches is to be checked."""
        if self.sample is None:
            return None
        _, base_offset, size_bytes = self.sample
        return FetchPartition(topic_id, index, epoch, base_offset, -1, -1, size_bytes)

    def compare(
        self, asking: FetchPartition, answered: FetchedPartition, frame: Frame
    ) -> bool | None:
        """Return whether the broker has brought the sample as it is stored; None if this was no answer to it,
        or had no room for it.
        """
        sample = self.sample
        if sample is None or asking.fetch_offset != sample.base_offset or asking.max_bytes <= 1:
            return None
        if answered.end == answered.start:
            self.tries += 1
            return None if self.tries < TRIES_MAX else False
        try:
            batches = batch.scan_batches(frame, answered.start, answered.end)
        except BadFrame:
            return False
        if not batches:
            return False  # a part of a larger one
        first = batches[0]
        return (
            first.end - first.start == sample.size_bytes
            and bytes(memoryview(frame)[first.start : first.start + HEAD_BYTES]) == sample.head
        )
