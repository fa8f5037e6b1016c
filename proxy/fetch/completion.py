"""Completion of a delayed Fetch: count readable bytes, decide when to answer. Decides, without
effect.

Owns the byte rules of ReplicaManager.fetchMessages and DelayedFetch, and the time that a Fetch
waits for its miss fetches. Must not know timers, or how changes are detected. Invariants:
* A Fetch waits for a miss fetch that nothing delays, as a broker's client waits for the broker's
  disk.
* A Fetch does not wait for a miss fetch that the disk throttle delays.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from proxy.fetch.evaluate import has_arrived
from proxy.partitions.readable import AT_END, IN_TRANSIT, READABLE, UNCONFIRMED

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from blockcache.cache import BlockCache
    from protocol.fetch import FetchRequest
    from proxy.fetch.evaluate import View
    from proxy.fetch.misses.read import Read
    from proxy.fetch.services import ClientFetch
    from proxy.partitions.readable import PartitionStatus
    from proxy.partitions.table import Partition

GRACE_S = 1.0
"""Seconds beyond max_wait that a Fetch without any bytes waits for the broker's response to its
miss fetches.
"""
READ_WAIT_S = 0.1
"""Seconds that readable bytes wait for a miss fetch of the same Fetch, counted from its sending.

A broker's client waits for the broker's disk. A client that polls once takes a partition without
records for an empty one. A few seeks of a spinning disk take 30 ms; a slower disk must not delay
bytes that memory has.
"""


def is_complete(fetch: ClientFetch, statuses: Sequence[PartitionStatus]) -> bool:
    """Return True if memory alone completes the Fetch: some partition is readable, the broker need
    not answer or confirm any other, and the readable bytes reach min_bytes.
    """
    has_readable = False
    for status in statuses:
        if status.state is READABLE:
            has_readable = True
        elif status.state is not AT_END and status.state is not IN_TRANSIT:
            return False
    if not has_readable:
        return False
    if fetch.request.min_bytes <= 1:
        return True
    least_bytes = fetch.request.least_bytes
    return least_bytes <= 1 or _readable_bytes(fetch, statuses, repeat(None)) >= least_bytes


def is_enough(fetch: ClientFetch, view: View, has_clean: bool) -> bool:
    """Return True if the Fetch is to be answered now, without waiting.

    True in three cases: min_bytes or max_wait is 0; the readable bytes of all partitions reach
    min_bytes; a miss fetch brought an error. An error that a broker finds before it reads counts
    only if there is nothing else. `has_clean`: the session has more partitions than `view` lists.
    """
    least_bytes, reads = fetch.request.least_bytes, view.reads
    if least_bytes == 0:
        return True
    if not view.is_here:
        return not has_clean and all(read is not None and read.is_erroneous for read in reads)
    if least_bytes == 1:
        return True
    if any(
        has_arrived(read) and read.has_error and not read.is_erroneous
        for read in reads
        if read is not None
    ):
        return True
    return _readable_bytes(fetch, view.statuses, reads) >= least_bytes


def _readable_bytes(
    fetch: ClientFetch, statuses: Sequence[PartitionStatus], reads: Iterable[Read | None]
) -> int:
    """Return the readable bytes as a broker counts them (LogSegment.read).

    The first batch counts whatever its size; the last batch counts with the part that fits.
    """
    cache, room, readable_bytes = fetch.link.broker.cache, fetch.request.max_bytes, 0
    for status, read in zip(statuses, reads, strict=False):
        asked, is_first = status.asked, readable_bytes == 0
        most, size_bytes = min(asked.max_bytes, room), 0
        if read is not None and has_arrived(read):
            size_bytes = (
                len(read.records(most, is_first)) if is_first else min(read.held_bytes, most)
            )
        elif status.state is READABLE and status.partition is not None:
            size_bytes = peek_broker_bytes(cache, status, status.partition, most, is_first)
        readable_bytes += size_bytes
        room = max(room - size_bytes, 0)
    return readable_bytes


def peek_broker_bytes(
    cache: BlockCache, status: PartitionStatus, partition: Partition, most: int, is_first: bool
) -> int:
    """Return how many bytes of a READABLE partition a broker would return if `most` bytes were
    allowed.

    0 if not even the first batch fits (firstEntryIncomplete, ReplicaManager.readFromLog).
    `is_first`: the batch may exceed `most`.
    """
    offset, limit = status.asked.fetch_offset, status.limit_offset
    span = cache.span(partition.slot, offset, limit, most, is_first)
    if span is None or not span.size_bytes:
        return 0
    return max(span.size_bytes, most) if span.is_cut else span.size_bytes


def is_outdated(view: View) -> bool:
    """Return True if the response would be empty although records beyond the requested offset were
    acknowledged.

    A broker would show these records. The replica fetcher is about to see them; the Fetch waits for
    it a while. A disk read is the last resort, since the broker may be stalling.
    """
    return not view.is_here and any(
        one.state in (AT_END, UNCONFIRMED)
        and one.partition is not None
        and one.partition.has_unseen(one.asked.fetch_offset)
        for one in view.statuses
    )


def find_wait_end(view: View, request: FetchRequest, deadline: float) -> float:
    """Return the time in seconds until which a complete Fetch waits for its miss fetches; -inf if
    it must not wait.

    * Without any bytes to return: the deadline plus GRACE_S. The broker itself would return these
      records, even after max_wait.
    * Otherwise READ_WAIT_S after sending, or max_wait if that is shorter and not 0. A client with
      max_wait 0 gets records that a broker reads, too.
    * A miss fetch that the disk throttle delayed holds up no Fetch.
    """
    reading = [read for read in view.reads if read is not None and read.holds_up]
    if not reading:
        return float("-inf")
    if not view.is_here:
        return deadline + GRACE_S
    most_s = READ_WAIT_S
    if request.max_wait_ms > 0:
        most_s = min(most_s, request.max_wait_ms / 1000)
    return max(
        (read.sent_at + most_s for read in reading if not read.delay_s), default=float("-inf")
    )
