"""Idle partitions: a Fetch whose partitions are remembered evaluates the dirty ones, not all of them.

Owns which partitions of a fetch session, or of a connection's Fetches without one, are clean. A
clean partition is at the log's end, and an open Fetch of the replica fetcher names it. The client
knows its HW and log start (rules of omission, fetch/sessions/context.py). Must not
know how changes are detected, or what is answered. Invariants:
* A clean partition has a `CleanPartition` among its waiters. A wake-up, or a request that names it,
  makes it dirty. Each Fetch evaluates all dirty partitions.
* A partition with acknowledged records that no Fetch has shown is not clean at the next evaluation: a
  response must not leave empty without a wait for them (`fetch.completion.is_outdated`).
* All partitions are evaluated again every EVALUATE_ALL_S, and after a right has ended or was taken back.
  The topics of clean ones are noted as used early enough to renew the client's rights.
* A closed object has no waiters and accepts none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from proxy.fetch.authorization import RENEW_AT
from proxy.fetch.evaluate import evaluate
from proxy.fetch.sessions.cache import ASKED
from proxy.fetch.sessions.context import Kind
from proxy.partitions.readable import AT_END

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from proxy.fetch.services import ClientFetch, FetchLink
    from proxy.fetch.sessions.cache import (
        CachedPartition,
        DirtyTracker,
        PartitionKey,
    )
    from proxy.fetch.wakeups import WaitingFetch
    from proxy.partitions.readable import PartitionStatus
    from proxy.partitions.table import Partition

EVALUATE_ALL_S = 10.0
"""Seconds for which the absence of wake-ups is trusted."""


class RememberedPartitions(Protocol):
    """The partitions of a session, or of a connection's Fetches without one."""

    tracker: DirtyTracker | None

    @property
    def names_clean(self) -> bool:
        """Whether a response names clean partitions too, each with HW for LSO; a session's omits
        them.
        """

    @property
    def by_key(self) -> dict[PartitionKey, CachedPartition]:
        """Those that the next Fetch asks for, unless its request says otherwise."""

    @property
    def turn_of(self) -> Callable[[CachedPartition], int]:
        """Returns the place of a kept partition in the order in which they are to be read."""

    def track(self, tracker: DirtyTracker) -> None:
        """Tell `tracker` of changes from now on, and no other."""

    def untrack(self, tracker: DirtyTracker) -> None:
        """Tell `tracker` no more; no effect if another has replaced it."""


class ReaderIdentity(NamedTuple):
    """Connection, isolation level and version for which the partitions are evaluated."""

    link: FetchLink
    isolation_level: int
    version: int


class CleanPartition:
    """WaitingFetch on one clean partition."""

    __slots__ = ("_idle_partitions", "key", "partition")

    def __init__(
        self, idle_partitions: IdlePartitions, key: PartitionKey, partition: Partition
    ) -> None:
        self._idle_partitions = idle_partitions
        self.key = key
        self.partition = partition

    def wake(self, *_partitions: Partition) -> None:
        """Report that the partition has changed."""
        self._idle_partitions.wake(self)

    def note_acknowledged(self, _partition: Partition) -> None:
        """Report that records were acknowledged that no Fetch has shown yet."""
        self._idle_partitions.note_acknowledged(self.key)


class IdlePartitions:
    """Clean and dirty partitions of one session.

    `fetch` is the session's delayed Fetch, or None; `used_at` is the last evaluation, in seconds.
    """

    __slots__ = (
        "_clean",
        "_dirty",
        "_evaluate_all_at",
        "_is_waking",
        "_look_at",
        "_partitions",
        "_rights_version",
        "_unseen",
        "closed",
        "fetch",
        "reader",
        "used_at",
    )

    def __init__(
        self, partitions: RememberedPartitions, reader: ReaderIdentity, now: float
    ) -> None:
        self._partitions = partitions
        self.reader = reader
        self._dirty: dict[PartitionKey, None] = dict.fromkeys(partitions.by_key)
        self._clean: dict[PartitionKey, CleanPartition] = {}
        self._unseen: dict[PartitionKey, None] = {}
        """Clean ones with records that were acknowledged since the last evaluation."""
        self._evaluate_all_at = self._look_at = now
        self._rights_version = reader.link.handlers.authorization.rights.version
        self._is_waking = False
        self.fetch: WaitingFetch | None = None
        self.used_at = now
        self.closed = False
        reader.link.broker.purgatory.track(reader.link, self)

    @property
    def clean_count(self) -> int:
        """Number of partitions that are not evaluated until something changes."""
        return len(self._clean)

    def evaluate(self, now: float) -> list[PartitionStatus]:
        """Evaluate the dirty partitions; return the statuses of those that stay dirty, in the
        session's order.
        """
        self.used_at = now
        link, isolation, version = self.reader
        if not link.broker.keeps:
            link.broker.hear()
        if self._unseen:
            self.mark_dirty(list(self._unseen))
        rights_version = link.handlers.authorization.rights.version
        if now >= self._evaluate_all_at or rights_version != self._rights_version:
            self._rights_version = rights_version
            self._mark_all_dirty()
            self._evaluate_all_at = now + EVALUATE_ALL_S
            period_s = link.broker.config.cache.authorize_every_s
            self._look_at = now + period_s * (1 - RENEW_AT) / 2
        elif now >= self._look_at:
            self._look_at_rights(now)
        kept = map(self._partitions.by_key.__getitem__, self._dirty)
        asked, dirty = list(map(ASKED, sorted(kept, key=self._partitions.turn_of))), []
        for status in evaluate(link, asked, isolation, version, now):
            if status.state is not AT_END or not self._try_mark_clean(status, now):
                dirty.append(status)
        return dirty

    def _look_at_rights(self, now: float) -> None:
        """Note the topics of clean partitions as used, so that their rights are renewed although none is
        evaluated: at least once in the last part of each right's time. Mark all dirty if a right has ended.
        """
        authorization, topic = self.reader.link.handlers.authorization, None
        period_s = self.reader.link.broker.config.cache.authorize_every_s
        self._look_at = min(now + period_s * (1 - RENEW_AT) / 2, authorization.ends_at)
        for (name, _), clean in self._clean.items():
            if name != topic:
                topic = name
                if not authorization.allows(name, now):
                    self._mark_all_dirty()
                    return
                authorization.used(name, clean.partition, now)
                self._look_at = min(self._look_at, authorization.rights.until[name])

    def _try_mark_clean(self, status: PartitionStatus, now: float) -> bool:
        """Mark a partition at the log's end clean if the response has nothing to say about it until
        a wake-up. Return True if it is clean.
        """
        partition, link = status.partition, self.reader.link
        if partition is None or self.closed:
            return False
        key, broker, row = status.asked[:2], link.broker, partition.row
        kept = self._partitions.by_key[key]
        if (
            kept.high_watermark != row.high_watermark
            or kept.log_start_offset != row.log_start_offset
            or (row.last_stable_offset != row.high_watermark and self._partitions.names_clean)
            or not partition.open_polls
            or partition.is_refused(now)
            or row.acknowledged_end > row.high_watermark  # `has_unseen`, without a call
            or not broker.own_connections.usable
        ):
            return False
        del self._dirty[key]
        clean = self._clean[key] = CleanPartition(self, key, partition)
        partition.parked[clean] = None
        authorization, topic = link.handlers.authorization, status.asked.topic
        authorization.used(topic, partition, now)
        if authorization.rights.until[topic] < self._look_at:
            self._look_at = authorization.rights.until[topic]
        if authorization.ends_at < self._look_at:
            self._look_at = authorization.ends_at
        if len(link.handlers.reads):
            link.handlers.reads.drop_asked((status.asked,), self.fetch)
        return True

    def hold(self, fetch: WaitingFetch) -> None:
        """Wake `fetch`, the session's delayed Fetch, after changes."""
        self.fetch = fetch

    def release(self) -> None:
        """Undo `hold`: the Fetch has ended."""
        self.fetch = None

    # -- changes -------------------------------------------------------------------------------------------

    def wake(self, clean: CleanPartition) -> None:
        """Mark the partition dirty after a change.

        Between two Fetches of the session none evaluates it, so the replica fetcher is asked to
        keep following it.
        """
        self.mark_dirty((clean.key,))
        if self.fetch is None:
            self.reader.link.broker.replica_fetcher.cover(clean.partition, self.reader.link)
        else:
            self._wake_fetch()

    def note_acknowledged(self, key: PartitionKey) -> None:
        """Have the next evaluation cover a clean partition. Nobody is woken before its records are
        shown.
        """
        self._unseen[key] = None

    def _wake_fetch(self) -> None:
        """Evaluate the delayed Fetch once for all changes of one response."""
        if not self._is_waking:
            self._is_waking = True
            self.reader.link.broker.wakeups.take(self)

    def evaluate_again(self) -> None:
        """Evaluate the delayed Fetch again. Called once after a batch of wake-ups."""
        self._is_waking = False
        if self.fetch is not None:
            self.fetch.evaluate_again()

    def mark_dirty(self, keys: Iterable[PartitionKey]) -> None:
        """Mark partitions dirty: the next evaluation covers them."""
        for key in keys:
            if key in self._clean:
                self._forget_clean(key)
            self._dirty[key] = None

    def drop(self, key: PartitionKey) -> None:
        """Forget a partition that left the session."""
        self._forget_clean(key)
        self._dirty.pop(key, None)

    def _forget_clean(self, key: PartitionKey) -> None:
        clean = self._clean.pop(key, None)
        self._unseen.pop(key, None)
        if clean is not None:
            clean.partition.parked.pop(clean, None)

    def _mark_all_dirty(self) -> None:
        self.mark_dirty(list(self._clean))

    def close(self) -> None:
        """Mark all partitions dirty and stop tracking: the session or its client is gone, or no
        Fetch came for long.

        A delayed Fetch then evaluates all partitions.
        """
        if self.closed:
            return
        self.closed = True
        if self.fetch is not None:
            self._wake_fetch()
        self._mark_all_dirty()
        self._partitions.untrack(self)
        self.reader.link.broker.purgatory.untrack(self.reader.link, self)


def find_idle_partitions(fetch: ClientFetch, now: float) -> IdlePartitions | None:
    """Return what is known of the remembered partitions of `fetch`: its session's, or those of its
    connection's Fetches without one. None if none are remembered.

    A new, empty object replaces that of another connection, isolation level or version.
    """
    context = fetch.context
    partitions: RememberedPartitions | None = fetch.repeated
    if context is not None and context.kind is Kind.INCREMENTAL and context.session is not None:
        partitions = context.session.partitions
    if partitions is None:
        return None
    reader = fetch.link, fetch.request.isolation_level, fetch.head.api_version
    idle_partitions = partitions.tracker
    if isinstance(idle_partitions, IdlePartitions) and idle_partitions.reader == reader:
        return idle_partitions
    if idle_partitions is not None:
        idle_partitions.close()
    idle_partitions = IdlePartitions(partitions, ReaderIdentity(*reader), now)
    partitions.track(idle_partitions)
    return idle_partitions
