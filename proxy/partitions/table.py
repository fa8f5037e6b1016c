"""Every partition this process knows, by topic id and by topic name.

Owns the table and its bound, and what of a partition is for whom to read. It must not know sockets.
Invariants: one `Partition` per (topic id, index), and only where Metadata has shown that index; a topic that is
re-created under its name has another id, so other partitions; what nobody used for a while is forgotten and its blocks
are dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from blockcache.cache import PartitionsFull
from proxy.partitions.leader_state import LeaderState
from proxy.partitions.producer_state import ProducerLedger
from proxy.partitions.transactions import Transactions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blockcache.cache import BlockCache
    from proxy.partitions.topics import Topic

REFUSED_FOR_S = 30.0
"""How long a topic that Forebay's own principal was refused is asked about on clients' links alone."""
HOLE_PATIENCE_S = 1.0
"""How long transactions wait for bytes that nobody may ever ask for (`Transactions`)."""


class Waiter(Protocol):
    """Something parked on partitions."""

    def wake(self, partition: Partition) -> None:
        """`partition` has changed."""


class Partition:
    """One partition: the broker's truth, its place in the cache, and who waits for it."""

    __slots__ = (
        "acknowledged_end",
        "divergences",
        "failures",
        "index",
        "is_followed",
        "leader_state",
        "log_start_offset",
        "looked_at",
        "missed_from",
        "news_at",
        "old_format",
        "open_polls",
        "own_refused_until",
        "parked",
        "probe_offset",
        "produced_from",
        "producers",
        "retry_at",
        "slot",
        "tail",
        "topic",
        "transactions",
        "wanted_at",
        "young_from",
        "zstd",
    )

    def __init__(self, topic: Topic, index: int, slot: int, transactions: Transactions) -> None:
        self.topic = topic
        self.index = index
        self.slot = slot
        self.is_followed = True
        self.leader_state = LeaderState()
        self.transactions = transactions
        self.producers = ProducerLedger()
        self.parked: dict[Waiter, None] = {}
        self.open_polls = 0
        self.tail = -1
        self.probe_offset = -1
        self.acknowledged_end = -1
        self.log_start_offset = -1
        self.produced_from = -1
        self.old_format = False
        self.zstd = False
        self.own_refused_until = float("-inf")
        self.young_from = -1  # batches from here on were written while this process looked
        self.failures = 0
        self.divergences = 0
        self.wanted_at = float("-inf")
        self.news_at = float("-inf")
        self.retry_at = float("-inf")
        self.looked_at = float("-inf")
        self.missed_from: tuple[int, int] | None = None
        """HW and clock of admitted bytes at its first miss of history, if that came soon after the start
        (scheduling/disk_throttle.py)."""

    def stored_end(self) -> int:
        """Where Forebay's own Fetch stands: at the end of what is stored, but not beyond the HW (DelayedFetch
        case F). -1 unknown.
        """
        high_watermark = self.leader_state.high_watermark
        if high_watermark < 0:
            return self.probe_offset
        return high_watermark if self.tail < 0 else min(self.tail, high_watermark)

    def has_unseen(self, offset: int) -> bool:
        """Whether something was acknowledged in this leader epoch from `offset` on that no Fetch has shown yet: the
        broker has it, and what is known of the HW is old.
        """
        return self.acknowledged_end > max(offset, self.leader_state.high_watermark)

    @property
    def log_fields(self) -> dict[str, object]:
        """What a log line names it by."""
        return {"topic": self.topic.name or self.topic.id.hex(), "partition": self.index}

    def wake_parked(self) -> None:
        """Whoever waits on it looks again."""
        for waiter in list(self.parked):
            waiter.wake(self)

    def last_stable_offset(self) -> int:
        """The broker's LSO as far as it is known, never above it: what the batches tell, or the greatest that
        was shown in this epoch. -1 unknown.
        """
        high_watermark, shown = self.leader_state.high_watermark, self.leader_state.last_stable_offset
        if shown > high_watermark:
            shown = high_watermark
        followed = self.transactions.last_stable_offset(high_watermark)
        return shown if followed is None or followed < shown else followed

    def readable_end(self, read_committed: bool) -> int:
        """First offset that a consumer of this isolation may not read yet."""
        return self.last_stable_offset() if read_committed else self.leader_state.high_watermark

    def is_at_end(self, offset: int, read_committed: bool) -> bool:
        """Whether a consumer of this isolation that stands there waits for news: at the HW, or anywhere from
        the LSO to it (UnifiedLog.read: beyond the LSO, too, there is nothing yet).
        """
        return 0 <= self.readable_end(read_committed) <= offset <= self.leader_state.high_watermark

    def is_refused(self, now: float) -> bool:
        """Whether the broker has refused Forebay's own principal the topic, a while ago at most."""
        return now < self.own_refused_until

    def has_stored(self, cache: BlockCache) -> bool:
        """Whether any batch of the partition is stored."""
        start, end = cache.tail(self.slot)
        return start < end

    def __repr__(self) -> str:
        return f"{self.topic.name or self.topic.id.hex()}-{self.index}"


class Partitions:
    """The table. `limit`, or what the arena has room for, bounds it: beyond, new partitions are not followed (their
    fetches pass).
    `transactions_limit` bounds what is kept of one partition's transactions.
    """

    __slots__ = ("_by_key", "_new_topics", "_topics", "cache", "limit", "refused", "transactions_limit")

    def __init__(self, cache: BlockCache, limit: int, transactions_limit: int) -> None:
        self.cache = cache
        self.limit = min(limit, cache.statistics().partitions_max)
        self.transactions_limit = transactions_limit
        self.refused = 0
        self._by_key: dict[tuple[bytes, int], Partition] = {}
        self._topics: dict[Topic, int] = {}  # how many partitions of each
        self._new_topics: dict[Topic, None] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._by_key.values())

    def find(self, topic: Topic, index: int) -> Partition | None:
        """The partition, if it is followed."""
        return self._by_key.get((topic.id, index))

    def follow(self, topic: Topic, index: int) -> Partition | None:
        """The partition, followed from now on. None at the bound, or where Metadata has not shown it."""
        key = (topic.id, index)
        partition = self._by_key.get(key)
        if partition is None:
            if index not in topic.leaders:
                return None
            if len(self._by_key) >= self.limit:
                self.refused += 1
                return None
            try:
                slot = self.cache.open(topic.id, index)
            except PartitionsFull:
                self.refused += 1
                return None
            transactions = Transactions(self.transactions_limit, HOLE_PATIENCE_S)
            partition = self._by_key[key] = Partition(topic, index, slot, transactions)
            self._count(topic, 1)
        return partition

    def _count(self, topic: Topic, change: int) -> None:
        count = self._topics.get(topic, 0)
        self._topics[topic] = count + change
        if not count:
            self._new_topics[topic] = None
        elif not self._topics[topic]:
            del self._topics[topic]
            self._new_topics.pop(topic, None)

    def follows(self, topic: Topic) -> bool:
        """Whether any partition of the topic is followed."""
        return topic in self._topics

    def take_new_topics(self) -> dict[Topic, None]:
        """Those that have come to be followed since the last time, and still are."""
        found, self._new_topics = self._new_topics, {}
        return found

    def forget(self, partition: Partition) -> None:
        """The partition is gone or idle: its blocks go, whoever waits on it looks again."""
        if not partition.is_followed:
            return
        partition.is_followed = False
        del self._by_key[partition.topic.id, partition.index]
        self._count(partition.topic, -1)
        partition.leader_state.revoke()
        self.cache.drop(partition.slot)
        partition.wake_parked()
