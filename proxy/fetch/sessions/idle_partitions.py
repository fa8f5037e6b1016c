"""What a fetch session's partitions were at the last look: a poll looks at what has changed, not at all of them.

Owns which partitions of a session are quiet: at the tail, under an outstanding watch, and with nothing that the
client has not been told (the rules of omission, fetch/sessions/context.py). It must not know how news arrives, or what
is answered. Invariants:
* a quiet partition has a mark among those who wait on it; whatever wakes the mark, or a request that names it,
  makes it lively, and what is lively is looked at in each poll.
* all are looked at again every RELOOK_S, and early enough to renew the client's right to a topic.
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

RELOOK_S = 10.0
"""How long the absence of news is relied on."""


class WakeupBatch:
    """Sessions with news whose Fetch is to look again: in the loop's next turn, or, while an answer is learned from,
    as soon as all of it has been. Then nobody waits for what else the loop has to do.
    """

    __slots__ = ("_gathered",)

    def __init__(self) -> None:
        self._gathered: list[Standing] | None = None

    def gather(self) -> None:
        """An answer is being learned from. `look` must follow in the same callback of the loop."""
        self._gathered = []

    def take(self, standing: Standing) -> None:
        """`standing` has news, and a Fetch that waits."""
        if self._gathered is None:
            asyncio.get_running_loop().call_soon(standing.look_again)
        else:
            self._gathered.append(standing)

    def look(self, broker: Broker) -> None:
        """All has been learned."""
        gathered, self._gathered = self._gathered or (), None
        for standing in gathered:
            broker.attempt(standing.look_again, "waking a fetch")


class Looker(NamedTuple):
    """For whom a look is."""

    link: ClientConnection
    isolation_level: int
    version: int


class Mark:
    """Waits on one quiet partition."""

    __slots__ = ("_standing", "key", "partition")

    def __init__(self, standing: Standing, key: PartitionKey, partition: Partition) -> None:
        self._standing = standing
        self.key = key
        self.partition = partition

    def wake(self, _partition: Partition) -> None:
        """The partition has changed."""
        self._standing.wake(self)


class Standing:
    """One session's partitions. `fetch` is the one of it that waits; `used_at` when it was last looked at."""

    __slots__ = (
        "_is_waking",
        "_lively",
        "_marks",
        "_relook_at",
        "_session",
        "closed",
        "fetch",
        "looker",
        "used_at",
    )

    def __init__(self, session: Session, looker: Looker, now: float) -> None:
        self._session = session
        self.looker = looker
        self._lively: dict[PartitionKey, None] = dict.fromkeys(session.partitions)
        self._marks: dict[PartitionKey, Mark] = {}
        self._relook_at = now
        self._is_waking = False
        self.fetch: DelayedFetch | None = None
        self.used_at = now
        self.closed = False
        looker.link.broker.purgatory.standings[looker.link][self] = None

    @property
    def quiet(self) -> int:
        """Partitions that are not looked at until something is new."""
        return len(self._marks)

    def lively(self) -> list[FetchPartition]:
        """What the next look is at, in the session's order."""
        partitions = self._session.partitions
        if len(self._lively) == len(partitions):
            return self._session.in_order()
        return [partitions[key].asked for key in sorted(self._lively, key=lambda key: partitions[key].turn)]

    def look(self, now: float) -> list[PartitionStatus]:
        """Look at what is lively; what stays so, in the session's order."""
        self.used_at = now
        link, isolation, version = self.looker
        if now >= self._relook_at:
            self._stir_all()
            period_s = link.broker.config.cache.authorize_every_s * (1 - RENEW_AT)
            self._relook_at = now + min(RELOOK_S, period_s)
        asked = self.lively()
        link.broker.counters.looked_partitions += len(asked)
        lively = []
        for one in asked:
            status = evaluate_one(link, one, isolation, version, now)
            kept = self._session.partitions[one.topic, one.partition]
            if not self._settle(status, kept, now):
                lively.append(status)
        return lively

    def _settle(self, status: PartitionStatus, kept: Kept, now: float) -> bool:
        """Whether there is nothing to be said of it until something wakes it."""
        partition, link = status.partition, self.looker.link
        if status.state is not ReadState.AT_END or partition is None or self.closed:
            return False
        leader_state, broker = partition.leader_state, link.broker
        if (kept.high_watermark, kept.log_start_offset) != (
            leader_state.high_watermark,
            leader_state.log_start_offset,
        ):
            return False
        if not partition.open_polls or partition.is_refused(now) or not broker.own_connections.usable:
            return False
        key = status.asked.topic, status.asked.partition
        del self._lively[key]
        mark = self._marks[key] = Mark(self, key, partition)
        partition.parked[mark] = None
        link.authorization.used(status.asked.topic, partition, now)
        if len(link.reads):
            link.reads.drop_asked((status.asked,))
        return True

    # -- news ----------------------------------------------------------------------------------------------

    def wake(self, mark: Mark) -> None:
        """Its partition has changed. Between two polls nobody looks, and the watch must not lose it."""
        self.stir(mark.key)
        if self.fetch is None:
            self.looker.link.broker.watch.cover(mark.partition, self.looker.link)
        else:
            self._wake_fetch()

    def _wake_fetch(self) -> None:
        """One look for all that an answer has woken."""
        if not self._is_waking:
            self._is_waking = True
            self.looker.link.broker.wakeups.take(self)

    def look_again(self) -> None:
        """All that had news has said so: the Fetch that waits looks at it."""
        self._is_waking = False
        if self.fetch is not None:
            self.fetch.look_again()

    def stir(self, key: PartitionKey) -> None:
        """Something is new of it: it is looked at."""
        if self._marks:
            self._unmark(key)
        self._lively[key] = None

    def drop(self, key: PartitionKey) -> None:
        """It is not asked for any more."""
        self._unmark(key)
        self._lively.pop(key, None)

    def _unmark(self, key: PartitionKey) -> None:
        mark = self._marks.pop(key, None)
        if mark is not None:
            mark.partition.parked.pop(mark, None)

    def _stir_all(self) -> None:
        for key in list(self._marks):
            self.stir(key)

    def close(self) -> None:
        """The session or its client is gone, or rests: nothing is quiet any more, a Fetch that waits looks at all."""
        if self.closed:
            return
        self.closed = True
        if self.fetch is not None:
            self._wake_fetch()
        self._stir_all()
        if self._session.standing is self:
            self._session.standing = None
        standings = self.looker.link.broker.purgatory.standings
        standings[self.looker.link].pop(self, None)
        if not standings[self.looker.link]:
            del standings[self.looker.link]


def find_standing(record: FetchRecord, now: float) -> Standing | None:
    """What is known of the partitions of `record`'s session; None where it has none that remembers them. A
    session may be used by another connection, isolation level or version than before: then nothing is known.
    """
    context = record.context
    if context is None or context.kind is not Kind.INCREMENTAL or context.session is None:
        return None
    session = context.session
    looker = Looker(record.link, record.request.isolation_level, record.head.api_version)
    standing = session.standing
    if isinstance(standing, Standing) and standing.looker == looker:
        return standing
    if standing is not None:
        standing.close()
    standing = session.standing = Standing(session, looker, now)
    return standing
