"""What memory would have answered: `cache.mode: observe`, where the broker answers everything.

Owns the estimate of how many bytes of each partition would have come from memory, made when the Fetch
arrives, as a serving cache decides, and before the broker's answer has brought the same bytes into the index.
It must not know links. Invariants: nothing is served and nobody waits here; the estimate is of bytes, bounded
by what the broker then answers; what no cache may serve (a pass) and what the index does not hold (a miss)
would have hit nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metrics.access_log_schema import OBSERVED
from proxy.partitions.readable import NEEDS_BROKER, PartitionOutcome, ReadState

if TYPE_CHECKING:
    from blockcache.cache import BlockCache
    from proxy.partitions.readable import PartitionStatus

UNBOUNDED = 1 << 62


def peek_would_hit(cache: BlockCache, status: PartitionStatus) -> int:
    """Record bytes that memory could have given: UNBOUNDED at the tail, where they are served as they come.

    A lease that nobody keeps while observing is not asked for: where a serving cache would ask the broker
    (UNCONFIRMED), what is stored counts, and at the tail what comes.
    """
    partition, asked = status.partition, status.asked
    if partition is None or status.state in NEEDS_BROKER:
        return 0
    if status.state in (ReadState.AT_END, ReadState.IN_TRANSIT):
        return UNBOUNDED
    span = cache.span(partition.slot, asked.fetch_offset, UNBOUNDED, asked.max_bytes)
    if span is not None and span.size_bytes:
        return span.size_bytes
    is_at_tail = asked.fetch_offset >= partition.tail >= 0
    return UNBOUNDED if is_at_tail and status.state is ReadState.UNCONFIRMED else 0


def plan_observed(status: PartitionStatus, most_bytes: int, size_bytes: int) -> PartitionOutcome:
    """The account of one partition: `most_bytes` as peeked, `size_bytes` as the broker answered."""
    if status.state is ReadState.PASS:
        return PartitionOutcome(status, size_bytes, status.state.value, status.reason)
    return PartitionOutcome(status, size_bytes, *OBSERVED, would_hit_bytes=min(most_bytes, size_bytes))
