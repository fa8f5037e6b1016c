"""What a fetch session's partitions were at the last look: a poll looks at what has changed, not at all of them.

Owns which partitions of a session are quiet: at the tail, under an outstanding watch, and with nothing that the
client has not been told (the rules of omission, fetch/sessions/context.py). It must not know how news arrives, or what
is answered. Invariants:
* a quiet partition has a mark among those who wait on it; whatever wakes the mark, or a request that names it,
  makes it lively, and what is lively is looked at in each poll.
* all are looked at again every EVALUATE_ALL_S, and early enough to renew the client's right to a topic.
* a closed one keeps no marks and takes none.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from proxy.fetch.authorization import RENEW_AT
from proxy.fetch.evaluate import evaluate_one
from proxy.fetch.sessions.context import Kind
from proxy.partitions.readable import ReadState

if TYPE_CHECKING:
    from protocol.fetch import FetchPartition
    from proxy.broker import Broker
    from proxy.fetch.delayed_fetch import DelayedFetch
    from proxy.fetch.record import FetchRecord
    from proxy.fetch.sessions.cache import Kept, PartitionKey, Session
    from proxy.net.client_connection import ClientConnection
    from proxy.partitions.readable import PartitionStatus
    from proxy.partitions.table import Partition

EVALUATE_ALL_S = 10.0
"""How long the absence of news is relied on."""


class WakeupBatch:
    """Sessions with news whose Fetch is to look again: in the loop's next turn, or, while an answer is learned from,
    as soon as all of it has been. Then nobody waits for what else the loop has to do.
    """

    __slots__ = "_gathered"

    def __init__(self) -> None:
        self._gathered: list[IdlePartitions] | None = None

    def gather(self) -> None:
        """An answer is being learned from. `look` must follow in the same callback of the loop."""
        self._gathered = []

    def take(self, idle_partitions: IdlePartitions) -> None:
        """`standing` has news, and a Fetch that waits."""
        if self._gathered is None:
            asyncio.get_running_loop().call_soon(idle_partitions.evaluate_again)
        else:
            self._gathered.append(idle_partitions)

    def look(self, broker: Broker) -> None:
        """All has been learned."""
        gathered, self._gathered = self._gathered or (), None
        for idle_partitions in gathered:
            broker.attempt(idle_partitions.evaluate_again, "waking a fetch")


class ReaderIdentity(NamedTuple):
    """For whom a look is."""

    link: ClientConnection
    isolation_level: int
    version: int


class CleanPartition:
    """Waits on one quiet partition."""

    __slots__ = ("_idle_partitions", "key", "partition")

    def __init__(self, idle_partitions: IdlePartitions, key: PartitionKey, partition: Partition) -> None:
        self._idle_partitions = idle_partitions
        self.key = key
        self.partition = partition

    def wake(self, _partition: Partition) -> None:
        """The partition has changed."""
        self._idle_partitions.wake(self)


class IdlePartitions:
    """One session's partitions. `fetch` is the one of it that waits; `used_at` when it was last looked at."""

    __slots__ = (
        "_clean",
        "_dirty",
        "_evaluate_all_at",
        "_is_waking",
        "_session",
        "closed",
        "fetch",
        "reader",
        "used_at",
    )

    def __init__(self, session: Session, reader: ReaderIdentity, now: float) -> None:
        self._session = session
        self.reader = reader
        self._dirty: dict[PartitionKey, None] = dict.fromkeys(session.partitions)
        self._clean: dict[PartitionKey, CleanPartition] = {}
        self._evaluate_all_at = now
        self._is_waking = False
        self.fetch: DelayedFetch | None = None
        self.used_at = now
        self.closed = False
        reader.link.broker.purgatory.idle_partitions[reader.link][self] = None

    @property
    def clean_count(self) -> int:
        """Partitions that are not looked at until something is new."""
        return len(self._clean)

    def dirty(self) -> list[FetchPartition]:
        """What the next look is at, in the session's order."""
        partitions = self._session.partitions
        if len(self._dirty) == len(partitions):
            return self._session.in_order()
        return [partitions[key].asked for key in sorted(self._dirty, key=lambda key: partitions[key].turn)]

    def evaluate(self, now: float) -> list[PartitionStatus]:
        """Look at what is lively; what stays so, in the session's order."""
        self.used_at = now
        link, isolation, version = self.reader
        if now >= self._evaluate_all_at:
            self._mark_all_dirty()
            period_s = link.broker.config.cache.authorize_every_s * (1 - RENEW_AT)
            self._evaluate_all_at = now + min(EVALUATE_ALL_S, period_s)
        asked = self.dirty()
        link.broker.counters.looked_partitions += len(asked)
        dirty = []
        for one in asked:
            status = evaluate_one(link, one, isolation, version, now)
            kept = self._session.partitions[one.topic, one.partition]
            if not self._try_mark_clean(status, kept, now):
                dirty.append(status)
        return dirty

    def _try_mark_clean(self, status: PartitionStatus, kept: Kept, now: float) -> bool:
        """Whether there is nothing to be said of it until something wakes it."""
        partition, link = status.partition, self.reader.link
        if status.state is not ReadState.AT_END or partition is None or self.closed:
            return False
        leader_state, broker = partition.leader_state, link.broker
        if (kept.high_watermark, kept.log_start_offset) != (
            leader_state.high_watermark,
            leader_state.log_start_offset,
        ):
            return False
        if not partition.covered or partition.is_refused(now) or not broker.own_connections.usable:
            return False
        key = status.asked.topic, status.asked.partition
        del self._dirty[key]
        clean = self._clean[key] = CleanPartition(self, key, partition)
        partition.parked[clean] = None
        link.authorization.used(status.asked.topic, partition, now)
        if len(link.reads):
            link.reads.drop_asked((status.asked,))
        return True

    # -- news ----------------------------------------------------------------------------------------------

    def wake(self, clean: CleanPartition) -> None:
        """Its partition has changed. Between two polls nobody looks, and the watch must not lose it."""
        self.mark_dirty(clean.key)
        if self.fetch is None:
            self.reader.link.broker.watch.cover(clean.partition, self.reader.link)
        else:
            self._wake_fetch()

    def _wake_fetch(self) -> None:
        """One look for all that an answer has woken."""
        if not self._is_waking:
            self._is_waking = True
            self.reader.link.broker.wakeups.take(self)

    def evaluate_again(self) -> None:
        """All that had news has said so: the Fetch that waits looks at it."""
        self._is_waking = False
        if self.fetch is not None:
            self.fetch.evaluate_again()

    def mark_dirty(self, key: PartitionKey) -> None:
        """Something is new of it: it is looked at."""
        if self._clean:
            self._forget_clean(key)
        self._dirty[key] = None

    def drop(self, key: PartitionKey) -> None:
        """It is not asked for any more."""
        self._forget_clean(key)
        self._dirty.pop(key, None)

    def _forget_clean(self, key: PartitionKey) -> None:
        clean = self._clean.pop(key, None)
        if clean is not None:
            clean.partition.parked.pop(clean, None)

    def _mark_all_dirty(self) -> None:
        for key in list(self._clean):
            self.mark_dirty(key)

    def close(self) -> None:
        """The session or its client is gone, or rests: nothing is quiet any more, a Fetch that waits looks at all."""
        if self.closed:
            return
        self.closed = True
        if self.fetch is not None:
            self._wake_fetch()
        self._mark_all_dirty()
        if self._session.idle_partitions is self:
            self._session.idle_partitions = None
        idle_partitions = self.reader.link.broker.purgatory.idle_partitions
        idle_partitions[self.reader.link].pop(self, None)
        if not idle_partitions[self.reader.link]:
            del idle_partitions[self.reader.link]


def find_idle_partitions(record: FetchRecord, now: float) -> IdlePartitions | None:
    """What is known of the partitions of `record`'s session; None where it has none that remembers them. A
    session may be used by another connection, isolation level or version than before: then nothing is known.
    """
    context = record.context
    if context is None or context.kind is not Kind.INCREMENTAL or context.session is None:
        return None
    session = context.session
    reader = ReaderIdentity(record.link, record.request.isolation_level, record.head.api_version)
    idle_partitions = session.idle_partitions
    if isinstance(idle_partitions, IdlePartitions) and idle_partitions.reader == reader:
        return idle_partitions
    if idle_partitions is not None:
        idle_partitions.close()
    idle_partitions = session.idle_partitions = IdlePartitions(session, reader, now)
    return idle_partitions
