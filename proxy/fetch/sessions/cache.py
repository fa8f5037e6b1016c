"""Fetch sessions that Forebay keeps for its clients, and their eviction (KIP-227). Pure.

Owns what a session remembers of each partition, session ids, the limits and eviction (FetchSession,
CachedPartition, FetchSessionCacheShard). Must not know sockets, clocks, requests or responses.
Invariants:
* Only its owner, an opaque value, finds a session. Kafka asks for the id alone and authorizes each
  partition at each request (KafkaApis.handleFetchRequest). Forebay does not see principals: an
  authenticated connection owns its sessions alone; unauthenticated connections may share an owner,
  as ANONYMOUS does.
* Sessions and their partitions are limited. A new session may evict a stale session, or a smaller
  one that is not new; an equally large one stays (EvictableKey).
* `_sessions` is ordered by last use: `touch` moves a session to the end.
"""

from __future__ import annotations

from collections import Counter
from heapq import heapify, heappop, heappush
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from protocol.fetch_build import KEY

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence
    from random import Random

    from protocol.fetch import FetchPartition
    from protocol.primitives import TopicNameOrId

PartitionKey: TypeAlias = "tuple[TopicNameOrId, int]"

FIRST_EPOCH = 1
LAST_EPOCH = 2**31 - 1
_IDS = (1, 2**31 - 1)
ASKED, TURN = attrgetter("asked"), attrgetter("turn")
"""Fields of `CachedPartition`."""
_SLACK = 64  # invalid entries in `_smallest` before it is rebuilt


class CachedPartition:
    """A session's partition (CachedPartition): its request fields, and the HW and log start last
    shown.

    -1: not shown. `turn` gives the session's order, so that a few partitions can be sorted without
    a walk over all.
    """

    __slots__ = ("asked", "high_watermark", "log_start_offset", "turn")

    def __init__(
        self,
        asked: FetchPartition,
        high_watermark: int = -1,
        log_start_offset: int = -1,
        turn: int = 0,
    ) -> None:
        self.asked = asked
        self.high_watermark = high_watermark
        self.log_start_offset = log_start_offset
        self.turn = turn


class DirtyTracker(Protocol):
    """Remembers which partitions of a session changed; lives as long as the session. `used_at`:
    last evaluation, in seconds.
    """

    used_at: float

    def mark_dirty(self, keys: Iterable[PartitionKey]) -> None:
        """Note that the request fields of partitions changed."""

    def drop(self, key: PartitionKey) -> None:
        """Note that a partition left the session."""

    def close(self) -> None:
        """Note that the session has ended."""


class SessionPartitions:
    """The partitions of a session, in the order in which they are to be read.

    `topics` counts them by topic. `tracker` is told of changes; None: nothing tracks them.
    """

    __slots__ = ("_order", "_turns", "by_key", "topics", "tracker")

    names_clean = False
    turn_of = TURN
    """Place of a kept partition in the order in which they are to be read."""

    def __init__(self, by_key: dict[PartitionKey, CachedPartition]) -> None:
        self.by_key = by_key
        self.topics = Counter(topic for topic, _ in by_key)
        self._turns = count()
        for kept, turn in zip(by_key.values(), self._turns, strict=False):
            kept.turn = turn
        self.tracker: DirtyTracker | None = None
        self._order: list[FetchPartition] | None = None

    def in_order(self) -> list[FetchPartition]:
        """Return all partitions in the order in which they are to be read.

        The list is the same object until the session changes. Callers must not change it.
        """
        if self._order is None:
            self._order = list(map(ASKED, self.by_key.values()))
        return self._order

    def put(self, partitions: Sequence[FetchPartition]) -> None:
        """Add each partition at the end, or change it in its place
        (CachedPartition.updateRequestParams).
        """
        if not partitions:
            return
        keys = list(map(KEY, partitions))
        for key, asked in zip(keys, partitions, strict=True):
            kept = self.by_key.get(key)
            if kept is None:
                self.by_key[key] = CachedPartition(asked, turn=next(self._turns))
                self.topics[asked.topic] += 1
            else:
                kept.asked = asked
        if self.tracker is not None:
            self.tracker.mark_dirty(keys)
        self._order = None

    def forget(self, key: PartitionKey) -> bool:
        """Remove a partition. Return False if the session does not have it."""
        if self.by_key.pop(key, None) is None:
            return False
        self.topics[key[0]] -= 1
        if not self.topics[key[0]]:
            del self.topics[key[0]]
        if self.tracker is not None:
            self.tracker.drop(key)
        self._order = None
        return True

    def move_to_end(self, keys: Iterable[PartitionKey]) -> None:
        """Move partitions to the end of the session's order, which must have them."""
        for key in keys:
            kept = self.by_key[key] = self.by_key.pop(key)
            kept.turn = next(self._turns)
            self._order = None

    def track(self, tracker: DirtyTracker) -> None:
        """Tell `tracker` of changes from now on, and no other."""
        self.tracker = tracker

    def untrack(self, tracker: DirtyTracker) -> None:
        """Tell `tracker` no more; no effect if another has replaced it."""
        if self.tracker is tracker:
            self.tracker = None


class Session:
    """A fetch session. `epoch` is the epoch that its next request must carry."""

    __slots__ = (
        "counted",
        "created_s",
        "epoch",
        "id",
        "last_used_s",
        "owner",
        "partitions",
        "ranked",
        "uses_topic_ids",
    )

    def __init__(
        self,
        session_id: int,
        owner: Hashable,
        uses_topic_ids: bool,
        partitions: dict[PartitionKey, CachedPartition],
        now_s: float,
    ) -> None:
        self.id = session_id
        self.owner = owner
        self.uses_topic_ids = uses_topic_ids
        self.partitions = SessionPartitions(partitions)
        self.epoch = FIRST_EPOCH
        self.created_s = self.last_used_s = now_s
        self.counted = 0
        self.ranked = -1

    def advance(self) -> None:
        """Expect the next epoch; the largest is followed by 1, never by 0
        (FetchMetadata.nextEpoch).
        """
        self.epoch = FIRST_EPOCH if self.epoch == LAST_EPOCH else self.epoch + 1


class SessionLimits(NamedTuple):
    """Limits of all sessions together: their number, and that of their partitions.

    A session that grows has `session_partitions` partitions at most. A session without use for
    `min_eviction_s` seconds may always be evicted.
    """

    sessions: int
    partitions: int
    min_eviction_s: float
    session_partitions: int = 1 << 31


class SessionStatistics(NamedTuple):
    """Current numbers of sessions and partitions; the rest counts since the start. `refused`:
    sessions not granted.
    """

    sessions: int
    partitions: int
    created: int
    evicted: int
    refused: int


class SessionCache:
    """All sessions of a process, within `limits`. `rng` chooses the ids."""

    def __init__(self, limits: SessionLimits, rng: Random) -> None:
        self._limits = limits
        self._rng = rng
        self._sessions: dict[int, Session] = {}
        self._of_owner: dict[Hashable, set[int]] = {}
        # A heap of (size, id). An entry is valid only while its size is the session's `ranked`.
        self._smallest: list[tuple[int, int]] = []
        self._partitions = self._created = self._evicted = self._refused = 0

    def statistics(self) -> SessionStatistics:
        """Return sizes and counts."""
        return SessionStatistics(
            len(self._sessions), self._partitions, self._created, self._evicted, self._refused
        )

    def set_limits(self, limits: SessionLimits) -> None:
        """Take other limits. Sessions beyond them stay until they grow, are stale, or give way to another."""
        self._limits = limits

    def find(self, session_id: int, owner: Hashable) -> Session | None:
        """Return the session; None if it does not exist or has another owner."""
        session = self._sessions.get(session_id)
        return session if session is not None and session.owner == owner else None

    def create(
        self,
        owner: Hashable,
        uses_topic_ids: bool,
        partitions: dict[PartitionKey, CachedPartition],
        now_s: float,
    ) -> Session | None:
        """Return a new session; None if there is no room and no session to evict
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
        """Note that the session was used, and its size. Return False if it has grown beyond a
        limit; it is then evicted.
        """
        del self._sessions[session.id]  # it moves to the end, and its own growth must not evict it
        grown = len(session.partitions.by_key) - session.counted
        is_too_large = len(session.partitions.by_key) > self._limits.session_partitions
        if grown > 0 and (is_too_large or not self._make_room(grown, now_s)):
            self._sessions[session.id] = session
            self.remove(session)
            self._evicted += 1
            return False
        self._sessions[session.id] = session
        session.last_used_s = now_s
        if grown or session.ranked != session.counted:
            self._count(session, now_s)
        return True

    def remove(self, session: Session) -> None:
        """Forget the session. A request of it that is being answered is still answered; no other
        request finds it.
        """
        if self._sessions.pop(session.id, None) is None:
            return
        self._partitions -= session.counted
        if session.partitions.tracker is not None:
            session.partitions.tracker.close()
        session.ranked = -1
        ids = self._of_owner[session.owner]
        ids.discard(session.id)
        if not ids:
            del self._of_owner[session.owner]

    def reserve(self, partitions: int, now_s: float) -> bool:
        """Count partitions that are remembered outside of a session against the same limit. Return
        False, and count none, without room for them; only stale sessions give way.
        """
        if partitions > self._limits.session_partitions or not self._make_room(partitions, now_s):
            return False
        self._partitions += partitions
        return True

    def release(self, partitions: int) -> None:
        """Undo `reserve`."""
        self._partitions -= partitions

    def remove_owned(self, owner: Hashable) -> None:
        """Forget all sessions of an owner that will not return."""
        for session_id in tuple(self._of_owner.get(owner, ())):
            self.remove(self._sessions[session_id])

    def _count(self, session: Session, now_s: float) -> None:
        size = len(session.partitions.by_key)
        self._partitions += size - session.counted
        session.counted = size
        if session.ranked != size and now_s - session.created_s > self._limits.min_eviction_s:
            session.ranked = size
            heappush(self._smallest, (size, session.id))
            if len(self._smallest) > 2 * len(self._sessions) + _SLACK:
                self._smallest = [entry for entry in self._smallest if self._is_rank(entry)]
                heapify(self._smallest)

    def _is_rank(self, entry: tuple[int, int]) -> bool:
        session = self._sessions.get(entry[1])
        return session is not None and session.ranked == entry[0]

    def _has_place(self) -> bool:
        return len(self._sessions) < self._limits.sessions

    def _make_room(self, partitions: int, now_s: float) -> bool:
        """Make room for that many more partitions by evicting stale sessions only. Return False if
        that is not enough.
        """
        if partitions > self._limits.partitions:
            return False
        while self._partitions + partitions > self._limits.partitions:
            stale = self._stale(now_s)
            if stale is None:
                return False
            self._drop(stale)
        return True

    def _stale(self, now_s: float) -> Session | None:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now_s - oldest.last_used_s <= self._limits.min_eviction_s:
            return None
        return oldest

    def _evict(self, size: int, now_s: float) -> bool:
        """Evict a session to make place for one of `size` partitions
        (FetchSessionCacheShard.tryEvict).
        """
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
