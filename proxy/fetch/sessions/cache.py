"""The fetch sessions that Forebay keeps toward its clients, and which of them must go (KIP-227). Pure.

Owns what a session remembers of each partition, ids, the bounds and eviction (FetchSession, CachedPartition,
FetchSessionCacheShard). Must not know sockets, clocks, what is asked or answered. Invariants:
* a session is found only by its owner, an opaque value of the caller's. Kafka asks for the id alone and
  authorizes every partition of a session anew at each request (KafkaApis.handleFetchRequest); Forebay does
  not see principals, so an authenticated connection owns its sessions alone, and connections that nobody
  authenticates may share one owner, as ANONYMOUS does.
* sessions and their partitions are bounded. A new session may evict one that is stale, or a smaller one that
  is not new; an equally large one stays (EvictableKey).
* `_sessions` is ordered by last use: a touch moves to the end.
"""

from __future__ import annotations

from collections import Counter
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable
    from random import Random

    from protocol.fetch import FetchPartition
    from protocol.wire import Topic

PartitionKey: TypeAlias = "tuple[Topic, int]"

FIRST_EPOCH = 1
LAST_EPOCH = 2**31 - 1
_IDS = (1, 2**31 - 1)
_SLACK = 64  # outdated places in the ranking before it is rebuilt


def next_epoch(epoch: int) -> int:
    """FetchMetadata.nextEpoch of an incremental epoch: the largest is followed by 1, never by 0."""
    return FIRST_EPOCH if epoch == LAST_EPOCH else epoch + 1


class Kept:
    """One partition of a session (CachedPartition): what is asked, and the HW and log start last shown. The
    session's order is that of `turn`, so that a few of its partitions can be sorted without a walk over all.
    """

    __slots__ = ("asked", "high_watermark", "log_start_offset", "turn")

    def __init__(self, asked: FetchPartition, high_watermark: int = -1, log_start_offset: int = -1) -> None:
        self.asked = asked
        self.high_watermark = high_watermark
        self.log_start_offset = log_start_offset
        self.turn = 0


class DirtyTracker(Protocol):
    """What somebody knows of a session's partitions, kept as long as the session; `used_at`: last looked at."""

    used_at: float

    def mark_dirty(self, key: PartitionKey) -> None:
        """What is asked of it is new."""

    def drop(self, key: PartitionKey) -> None:
        """It is not asked for any more."""

    def close(self) -> None:
        """The session is gone."""


class Session:
    """One session. `epoch` is the one that its next request must carry; `topics` says how many partitions of each
    it has.
    """

    __slots__ = (
        "_order",
        "_turns",
        "counted",
        "created_s",
        "epoch",
        "id",
        "idle_partitions",
        "last_used_s",
        "owner",
        "partitions",
        "ranked",
        "topics",
        "uses_topic_ids",
    )

    def __init__(
        self,
        session_id: int,
        owner: Hashable,
        uses_topic_ids: bool,
        partitions: dict[PartitionKey, Kept],
        now_s: float,
    ) -> None:
        self.id = session_id
        self.owner = owner
        self.uses_topic_ids = uses_topic_ids
        self.partitions = partitions
        self.topics = Counter(topic for topic, _ in partitions)
        self._turns = count()
        for kept, turn in zip(partitions.values(), self._turns, strict=False):
            kept.turn = turn
        self.epoch = FIRST_EPOCH
        self.created_s = self.last_used_s = now_s
        self.counted = 0
        self.ranked = -1
        self.idle_partitions: DirtyTracker | None = None
        self._order: list[FetchPartition] | None = None

    def in_order(self) -> list[FetchPartition]:
        """All partitions asked for, in the order in which they are to be read. The same list until something
        changes, and never changed itself.
        """
        if self._order is None:
            self._order = [kept.asked for kept in self.partitions.values()]
        return self._order

    def put(self, asked: FetchPartition) -> None:
        """Add a partition at the end, or change it in its place (CachedPartition.updateRequestParams)."""
        key = asked.topic, asked.partition
        kept = self.partitions.get(key)
        if kept is None:
            kept = self.partitions[key] = Kept(asked)
            kept.turn = next(self._turns)
            self.topics[asked.topic] += 1
        else:
            kept.asked = asked
        if self.idle_partitions is not None:
            self.idle_partitions.mark_dirty(key)
        self._order = None

    def forget(self, key: PartitionKey) -> bool:
        """Drop a partition; False if there is none."""
        if self.partitions.pop(key, None) is None:
            return False
        self.topics[key[0]] -= 1
        if not self.topics[key[0]]:
            del self.topics[key[0]]
        if self.idle_partitions is not None:
            self.idle_partitions.drop(key)
        self._order = None
        return True

    def move_to_end(self, key: PartitionKey) -> None:
        """Its turn comes last from now on."""
        kept = self.partitions[key] = self.partitions.pop(key)
        kept.turn = next(self._turns)
        self._order = None


class SessionStatistics(NamedTuple):
    """Sessions and their partitions now; the rest are counts since the start. `refused`: no session granted."""

    sessions: int
    partitions: int
    created: int
    evicted: int
    refused: int


class SessionCache:
    """All sessions of a process, at most `sessions_limit` with together `partitions_limit` partitions, each of at most
    `session_partitions_limit` once it grows; one that was not used for `min_eviction_s` may always be evicted. `rng`
    chooses the ids.
    """

    def __init__(
        self,
        sessions_limit: int,
        partitions_limit: int,
        min_eviction_s: float,
        rng: Random,
        session_partitions_limit: int = 1 << 31,
    ) -> None:
        self._sessions_limit = sessions_limit
        self._partitions_limit = partitions_limit
        self._session_partitions_limit = session_partitions_limit
        self._min_eviction_s = min_eviction_s
        self._rng = rng
        self._sessions: dict[int, Session] = {}
        self._of_owner: dict[Hashable, set[int]] = {}
        self._smallest: list[
            tuple[int, int]
        ] = []  # a heap of (size, id); valid where it is the session's rank
        self._partitions = self._created = self._evicted = self._refused = 0

    def statistics(self) -> SessionStatistics:
        """Sizes and counts."""
        return SessionStatistics(
            len(self._sessions), self._partitions, self._created, self._evicted, self._refused
        )

    def find(self, session_id: int, owner: Hashable) -> Session | None:
        """That session, if it is the owner's."""
        session = self._sessions.get(session_id)
        return session if session is not None and session.owner == owner else None

    def create(
        self, owner: Hashable, uses_topic_ids: bool, partitions: dict[PartitionKey, Kept], now_s: float
    ) -> Session | None:
        """A new session, or None where there is no room and nobody less worthy
        (FetchSessionCacheShard.maybeCreateSession).
        """
        size = len(partitions)
        if not self._make_room(size, now_s) or not (self._has_place() or self._evict(size, now_s)):
            self._refused += 1
            return None
        session_id = self._rng.randrange(*_IDS)
        while session_id in self._sessions:
            session_id = self._rng.randrange(*_IDS)
        session = Session(session_id, owner, uses_topic_ids, partitions, now_s)
        self._sessions[session_id] = session
        self._of_owner.setdefault(owner, set()).add(session_id)
        self._created += 1
        self._count(session, now_s)
        return session

    def touch(self, session: Session, now_s: float) -> bool:
        """The session was used and may have another size. False where it has grown beyond the bound: then it
        is evicted.
        """
        del self._sessions[session.id]  # its place is at the end, and no growth evicts the session itself
        grown = len(session.partitions) - session.counted
        is_too_large = len(session.partitions) > self._session_partitions_limit
        if grown > 0 and (is_too_large or not self._make_room(grown, now_s)):
            self._sessions[session.id] = session
            self.remove(session)
            self._evicted += 1
            return False
        self._sessions[session.id] = session
        session.last_used_s = now_s
        self._count(session, now_s)
        return True

    def remove(self, session: Session) -> None:
        """Forget it. Whoever still answers a request of it does so, but no other request finds it."""
        if self._sessions.pop(session.id, None) is None:
            return
        self._partitions -= session.counted
        if session.idle_partitions is not None:
            session.idle_partitions.close()
        session.ranked = -1
        ids = self._of_owner[session.owner]
        ids.discard(session.id)
        if not ids:
            del self._of_owner[session.owner]

    def remove_owned(self, owner: Hashable) -> None:
        """Forget all of an owner who will not come back."""
        for session_id in tuple(self._of_owner.get(owner, ())):
            self.remove(self._sessions[session_id])

    def _count(self, session: Session, now_s: float) -> None:
        size = len(session.partitions)
        self._partitions += size - session.counted
        session.counted = size
        if session.ranked != size and now_s - session.created_s > self._min_eviction_s:
            session.ranked = size
            heappush(self._smallest, (size, session.id))
            if len(self._smallest) > 2 * len(self._sessions) + _SLACK:
                self._smallest = [entry for entry in self._smallest if self._is_rank(entry)]
                heapify(self._smallest)

    def _is_rank(self, entry: tuple[int, int]) -> bool:
        session = self._sessions.get(entry[1])
        return session is not None and session.ranked == entry[0]

    def _has_place(self) -> bool:
        return len(self._sessions) < self._sessions_limit

    def _make_room(self, partitions: int, now_s: float) -> bool:
        """Room for so many partitions more, at the cost of stale sessions alone."""
        if partitions > self._partitions_limit:
            return False
        while self._partitions + partitions > self._partitions_limit:
            stale = self._stale(now_s)
            if stale is None:
                return False
            self._drop(stale)
        return True

    def _stale(self, now_s: float) -> Session | None:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now_s - oldest.last_used_s <= self._min_eviction_s:
            return None
        return oldest

    def _evict(self, size: int, now_s: float) -> bool:
        """Make place for a session of that size (FetchSessionCacheShard.tryEvict)."""
        victim = self._stale(now_s)
        if victim is None:
            while self._smallest and not self._is_rank(self._smallest[0]):
                heappop(self._smallest)
            if not self._smallest or size <= self._smallest[0][0]:
                return False
            victim = self._sessions[self._smallest[0][1]]
        self._drop(victim)
        return True

    def _drop(self, session: Session) -> None:
        self.remove(session)
        self._evicted += 1
