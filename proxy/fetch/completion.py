"""When a Fetch that memory speaks for may be answered: how many of its bytes are readable, and what is worth waiting
for. Decides, without effect.

Owns the rules of ReplicaManager.fetchMessages and DelayedFetch as far as they are of bytes, and how long a Fetch waits
for the reads that were made for it. It must not know timers, or how news arrives. Invariants: a read that nothing
delays is waited for, as a broker's client waits for its disk; a read that the throttle holds is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxy.fetch.evaluate import has_arrived
from proxy.fetch.response import is_cut
from proxy.partitions.readable import AT_END, READABLE, UNCONFIRMED

if TYPE_CHECKING:
    from blockcache.cache import BlockCache
    from protocol.fetch import FetchRequest
    from proxy.fetch.evaluate import View
    from proxy.fetch.record import FetchRecord
    from proxy.partitions.readable import PartitionStatus
    from proxy.partitions.table import Partition

GRACE_S = 1.0
"""For how long beyond max_wait a Fetch with nothing to say waits for what the broker is reading for it."""
READ_WAIT_S = 0.1
"""For how long what is readable waits for a read of the same Fetch, from when that was sent. A broker's client waits
for the broker's disk, and who polls once takes for absent what has no records. A few seeks of a spinning disk are
30 ms; a disk that takes longer shall not hold what memory has.
"""


def is_enough(record: FetchRecord, view: View, has_quiet: bool) -> bool:
    """Whether it is answered without waiting: it waits for nothing, the readable bytes of all partitions reach
    min_bytes, or there is an error; of those that a broker finds before it reads, only where there is nothing else.
    `has_quiet`: its session has more partitions than are in `view`.
    """
    least_bytes, reads = record.request.least_bytes, view.reads
    if least_bytes == 0:
        return True
    if not view.is_here:
        return not has_quiet and all(read is not None and read.is_erroneous for read in reads)
    if least_bytes == 1:
        return True
    if any(
        has_arrived(read) and read.has_error and not read.is_erroneous for read in reads if read is not None
    ):
        return True
    return _readable_bytes(record, view) >= least_bytes


def _readable_bytes(record: FetchRecord, view: View) -> int:
    """As many as a broker counts: the first batch whatever its size, and a part of the last (LogSegment.read)."""
    cache, room, readable_bytes = record.link.broker.cache, record.request.max_bytes, 0
    for status, read in zip(view.statuses, view.reads, strict=True):
        asked, is_first = status.asked, readable_bytes == 0
        most, size_bytes = min(asked.max_bytes, room), 0
        if read is not None and has_arrived(read):
            size_bytes = len(read.records(most, is_first)) if is_first else min(read.held_bytes, most)
        elif status.state is READABLE and status.partition is not None:
            size_bytes = peek_broker_bytes(cache, status, status.partition, most, is_first)
        readable_bytes += size_bytes
        room = max(room - size_bytes, 0)
    return readable_bytes


def peek_broker_bytes(
    cache: BlockCache, status: PartitionStatus, partition: Partition, most: int, is_first: bool
) -> int:
    """How many bytes of a READABLE partition a broker would tell of `most`; 0 where not even the first batch fits
    (firstEntryIncomplete, ReplicaManager.readFromLog).
    """
    offset, limit = status.asked.fetch_offset, status.limit_offset
    span = cache.span(partition.slot, offset, limit, most, is_first)
    if span is None or not span.size_bytes:
        return 0
    return max(span.size_bytes, most) if is_cut(cache, status, span.next_offset) else span.size_bytes


def is_outdated(view: View) -> bool:
    """Whether it would be answered empty where something was acknowledged that a broker would show. The watch
    is about to, and is waited for a while: where the broker stalls, its disk is the last to ask.
    """
    return not view.is_here and any(
        one.state in (AT_END, UNCONFIRMED)
        and one.partition is not None
        and one.partition.has_unseen(one.asked.fetch_offset)
        for one in view.statuses
    )


def find_wait_end(view: View, request: FetchRequest, deadline: float) -> float:
    """Until when its reads under way are waited for at most, where it could be answered; -inf where there are none.

    With nothing to say: the broker would itself answer with what it reads, max_wait or not. Else READ_WAIT_S, or
    max_wait where that is less and not 0: who does not want to wait gets what a broker reads all the same. What waits
    for the disk's turn holds nobody.
    """
    reading = [read for read in view.reads if read is not None and read.holds_up]
    if not reading:
        return float("-inf")
    if not view.is_here:
        return deadline + GRACE_S
    most_s = READ_WAIT_S
    if request.max_wait_ms > 0:
        most_s = min(most_s, request.max_wait_ms / 1000)
    return max((read.sent_at + most_s for read in reading if not read.delay_s), default=float("-inf"))
