"""Partitions of a connection's Fetches without a session, remembered from one to the next.

Owns the ring of the connection (protocol/fetch_ring.py), and what was last shown of each partition.
Must not know how partitions are read. A client without fetch sessions names all partitions in each
Fetch, and each response names them all. What is remembered lets a Fetch evaluate those with news
alone, as in a session (decision 0041). Invariants:
* Only a connection that waits for no response has its Fetch compared with the ring: what a Fetch that
  waits has remembered stays as it is until its response has left.
* The remembered partitions count against `limits.fetchSessionPartitions`, as those of sessions do.
* A partition with an error or an open transaction counts as not shown: its next response names it as
  it is then. So does one whose list of aborted transactions was null where the end of the log has an
  empty one, because its first batch did not fit (ReplicaManager.readFromLog).
* After an exception nothing is remembered: a Fetch may have left it half changed.
* The client sees nothing of it: no session id, and every partition in every response.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from protocol.fetch_build import KEY, build_ring_heads
from protocol.fetch_ring import FetchRing
from proxy.fetch.sessions.cache import CachedPartition
from proxy.partitions.readable import READ_COMMITTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.fetch import FetchRequest
    from protocol.fetch_build import FetchAnswer, ResponseHeads
    from protocol.primitives import TopicNameOrId
    from proxy.fetch.sessions.cache import DirtyTracker, PartitionKey, SessionCache

WIDE_PARTITIONS: Final = 40
"""Fewest partitions of a Fetch that are remembered; where all have news, evaluating all costs less."""


class RepeatedPartitions:
    """The partitions of one ring. `by_key`: those that the last request named. A kept partition's
    `turn` is its slot.
    """

    __slots__ = ("_by_topic", "_ring", "_slots", "by_key", "tracker")

    names_clean = True

    def __init__(self, ring: FetchRing) -> None:
        self._ring = ring
        self._slots = [CachedPartition(asked, turn=slot) for slot, asked in enumerate(ring.asked)]
        self.by_key: dict[PartitionKey, CachedPartition] = {}
        self.tracker: DirtyTracker | None = None
        self._by_topic: dict[TopicNameOrId, list[int]] | None = None

    @property
    def by_topic(self) -> dict[TopicNameOrId, list[int]]:
        """The partitions that the last request named, by topic. The same object as long as each
        request names the same.
        """
        if self._by_topic is None:
            self._by_topic = defaultdict(list)
            for topic, partition in self.by_key:
                self._by_topic[topic].append(partition)
        return self._by_topic

    def take_request(self) -> None:
        """Note what the request that the ring has just matched changes."""
        ring, changed = self._ring, []
        for slot in ring.changed:
            kept = self._slots[slot]
            kept.asked = ring.asked[slot]
            key = KEY(kept.asked)
            if key not in self.by_key:
                self.by_key[key] = kept
                self._by_topic = None
            changed.append(key)
        if self.tracker is not None and changed:
            self.tracker.mark_dirty(changed)
        for slot in ring.dropped:
            key = KEY(self._slots[slot].asked)
            self.by_key.pop(key, None)
            self._by_topic = None
            if self.tracker is not None:
                self.tracker.drop(key)

    def turn_of(self, kept: CachedPartition) -> int:
        """Return the partition's number in the last request."""
        return self._ring.place[kept.turn]

    def track(self, tracker: DirtyTracker) -> None:
        """Tell `tracker` of changes from now on, and no other."""
        self.tracker = tracker

    def untrack(self, tracker: DirtyTracker) -> None:
        """Tell `tracker` no more; no effect if another has replaced it."""
        if self.tracker is tracker:
            self.tracker = None

    def build_heads(
        self, correlation_id: int, throttle_time_ms: int, answers: Sequence[FetchAnswer]
    ) -> ResponseHeads:
        """Return the response to the last request, without records. `answers`: of all partitions that
        are not clean, in the request's order. Notes what it shows.
        """
        slots = []
        is_listed = self._ring.isolation_level == READ_COMMITTED
        for answer in answers:
            kept = self.by_key[KEY(answer)]
            high_watermark = answer.high_watermark
            is_as_at_end = (
                not answer.error_code
                and answer.last_stable_offset == high_watermark
                and (answer.aborted is not None) == is_listed
            )
            kept.high_watermark = high_watermark if is_as_at_end else -1
            kept.log_start_offset = answer.log_start_offset
            slots.append(kept.turn)
        return build_ring_heads(self._ring, slots, correlation_id, throttle_time_ms, answers)


class RepeatedFetches:
    """What one connection remembers of its Fetches without a session.

    `ring`: the partitions of the last wide one; None: nothing is remembered. `least`: fewest
    partitions of a Fetch that is remembered.
    """

    __slots__ = ("_partitions", "_reserved", "_table", "least", "ring")

    def __init__(self, table: SessionCache, least: int = WIDE_PARTITIONS) -> None:
        self._table = table
        self.least = least
        self.ring: FetchRing | None = None
        self._partitions: RepeatedPartitions | None = None
        self._reserved = 0

    def take(self, request: FetchRequest, version: int, now: float) -> RepeatedPartitions | None:
        """Return the remembered partitions of a Fetch without a session, which names each partition
        once; None if they are not those of the Fetch before. `now` is in seconds.

        Precondition: `ring` has matched the request, or is None and the request names `least`
        partitions; the connection waits for no response.
        """
        ring = self.ring
        if ring is None:
            wide = len(request.partitions)
            if self._table.reserve(wide, now):
                self._reserved = wide
                self.ring = FetchRing(version, request.isolation_level, request.partitions)
            return None
        if ring.isolation_level != request.isolation_level:
            self.close()
            return None
        if self._partitions is None:
            self._partitions = RepeatedPartitions(ring)
        self._partitions.take_request()
        return self._partitions

    def close(self) -> None:
        """Forget all."""
        if self._partitions is not None and self._partitions.tracker is not None:
            self._partitions.tracker.close()
        self._table.release(self._reserved)
        self._reserved = 0
        self.ring = self._partitions = None
