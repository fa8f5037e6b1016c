"""Hit estimate: bytes that memory would have served in `cache.mode: observe`, where the broker
answers everything.

Owns the estimate for each partition. The estimate is made when the Fetch arrives, as a serving
cache decides, before the broker's response adds the same bytes to the index. Must not know
connections. Invariants:
* Nothing is served here, and no Fetch waits here.
* The estimate is in bytes, at most the size of the broker's response.
* A pass (no cache may serve it) and a miss (the index lacks it) would have hit nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metrics.access_log_schema import OBSERVED
from proxy.partitions.readable import NEEDS_BROKER, PartitionOutcome, ReadState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockcache.cache import BlockCache
    from proxy.fetch.services import FetchServices
    from proxy.partitions.readable import PartitionStatus

RESULT = PartitionOutcome._fields.index("result")
REASON = PartitionOutcome._fields.index("reason") + 1
"""Where an outcome's verdict begins and ends."""
UNBOUNDED = 1 << 62
"""Estimate at the end of the log: all bytes of the broker's response, whatever their number."""


def peek_would_hit(cache: BlockCache, status: PartitionStatus) -> int:
    """Return the record bytes that memory could have served; UNBOUNDED at the end of the log, 0 for
    a miss or pass.

    Observing keeps no leases, so an UNCONFIRMED partition counts, where a serving cache would ask
    the broker first. Its stored bytes count; at the end of the log all bytes of the response count.
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


def plan_observed(
    status: PartitionStatus, most_bytes: int, size_bytes: int, timestamp_ms: int | None
) -> PartitionOutcome:
    """Return the outcome of one partition.

    `most_bytes` is the result of `peek_would_hit`; `size_bytes` and `timestamp_ms` are of the
    broker's response. A pass keeps its own result and reason, and has no estimate.
    """
    if status.state is ReadState.PASS:
        verdict, would_hit_bytes = (status.state.value, status.reason), None
    else:
        verdict, would_hit_bytes = OBSERVED, min(most_bytes, size_bytes)
    return PartitionOutcome(
        status,
        size_bytes,
        *verdict,
        would_hit_bytes=would_hit_bytes,
        timestamp_ms=timestamp_ms,
    )


def estimate_topics(
    broker: FetchServices, outcomes: Sequence[PartitionOutcome]
) -> Sequence[PartitionOutcome]:
    """Return `outcomes` with an estimate for topics that alone are observed (`cache.topicModes`): the bytes of the
    response that memory holds now. No status says so: such a topic is not looked up for its Fetch.
    """
    return [
        one._replace(would_hit_bytes=_peek_held(broker, one))
        if one[RESULT:REASON] == OBSERVED and one.would_hit_bytes is None
        else one
        for one in outcomes
    ]


def _peek_held(broker: FetchServices, outcome: PartitionOutcome) -> int:
    asked = outcome.status.asked
    topic = broker.topics.find(asked.topic)
    partition = None if topic is None else broker.partitions.find(topic, asked.partition)
    if partition is None or not outcome.size_bytes:
        return 0
    span = broker.cache.span(partition.slot, asked.fetch_offset, UNBOUNDED, outcome.size_bytes)
    return 0 if span is None else min(span.size_bytes, outcome.size_bytes)
