"""All partitions that this process follows, by topic id and index.

Owns the table and its limit, and the readable range of a partition per isolation level. Must not
know sockets. Invariants:
* there is one `Partition` per (topic id, index), and only for an index that Metadata has shown.
* a topic that is re-created under its name has another id, so other partitions.
* a partition unused for a while is forgotten, and its blocks are dropped. So are blocks of an earlier
  process that nobody has claimed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from blockcache.errors import PartitionsFull
from proxy.partitions.back_off import BackOff
from proxy.partitions.leader_state import LeaderState, Lease
from proxy.partitions.partition_row import open_row, word
from proxy.partitions.taken_over import TakenOver
from proxy.partitions.transactions import Transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from blockcache.cache import BlockCache
    from proxy.partitions.topics import Topic

HOLE_PATIENCE_S = 1.0
"""How long transactions wait for bytes that no request may ever fetch (`Transactions`)."""


class Waiter(Protocol):
    """A delayed request that waits for partitions."""

    def wake(self, *partitions: Partition) -> None:
        """Called when `partitions` have changed: once for all that change together."""

    def note_acknowledged(self, partition: Partition) -> None:
        """Called when records of `partition` were acknowledged that no Fetch has shown yet."""


class Partition:
    """Partition with its leader state, its place in the cache, and the waiters parked on it.

    `row`: its state that C changes, too. `slot`: its number in the cache. `tail`: end of the newest
    contiguous stored run, where the next batch is expected. `open_polls`: unanswered long polls that
    name it. `probe_offset`: the offset of Forebay's own Fetch while the HW is unknown.
    `acknowledged_end`: end of the records acknowledged in this epoch. `produced_from`: stored bytes of
    producers begin there. `news_at`: when its HW last grew. `wanted_at`: when it was last tailed or
    served, or was taken over. `taken_over`: proof of what an earlier process stored; None if nothing is to be proven.
    Offsets are -1 while unknown; times are seconds of a monotonic clock.
    """

    __slots__ = (
        "back_off",
        "divergences",
        "index",
        "leader_state",
        "log_start_offset",
        "looked_at",
        "missed_from",
        "news_at",
        "open_polls",
        "parked",
        "recalling",
        "row",
        "slot",
        "taken_over",
        "topic",
        "transactions",
        "wanted_at",
    )

    is_followed = word("is_followed", bool)
    tail = word("tail", int)
    probe_offset = word("probe_offset", int)
    acknowledged_end = word("acknowledged_end", int)
    produced_from = word("produced_from", int)
    zstd = word("zstd", bool)
    old_format = word("old_format", bool)
    young_from = word("young_from", int)
    """Batches from here on were written while this process followed it."""

    def __init__(self, topic: Topic, index: int, slot: int, transactions_limit: int) -> None:
        self.topic = topic
        self.index = index
        self.slot = slot
        self.row = open_row(slot, topic.fidelity.native)
        self.leader_state = LeaderState(self.row)
        self.transactions = Transactions(transactions_limit, HOLE_PATIENCE_S, self.row)
        self.parked: dict[Waiter, None] = {}
        self.open_polls = 0
        self.taken_over: TakenOver | None = None
        self.log_start_offset = -1
        self.divergences = 0
        self.wanted_at = float("-inf")
        self.news_at = float("-inf")
        self.back_off = BackOff()
        self.looked_at = float("-inf")
        self.recalling: tuple[int, float] | None = None
        """LSO that the broker showed, and when, in seconds, while stored batches are older than the run of
        `transactions` (`update._recall`); None: there is nothing to find in them.
        """
        self.missed_from: tuple[int, int] | None = None
        """HW and clock of admitted bytes at its first miss on history, if that was soon after the
        start; `NOT_SOON` if later (scheduling/disk_throttle.py).
        """

    def stored_end(self) -> int:
        """Return the offset of Forebay's own Fetch: the end of the stored bytes, but not beyond the
        HW (DelayedFetch case F). Return -1 if no offset is known.
        """
        row = self.row
        high_watermark, tail = row.high_watermark, row.tail
        if high_watermark < 0:
            return int(row.probe_offset)
        return int(high_watermark if tail < 0 else min(tail, high_watermark))

    def seen_end(self, stored_end: int) -> int:
        """Return up to where stored batches may be read, which are contiguous up to `stored_end`."""
        return stored_end

    def has_unseen(self, offset: int) -> bool:
        """True if the broker acknowledged records from `offset` on in this leader epoch that no
        Fetch has shown yet. The known HW is then out of date.
        """
        high_watermark: int = self.row.high_watermark
        return self.acknowledged_end > max(offset, high_watermark)

    @property
    def log_fields(self) -> dict[str, object]:
        """Return the fields by which a log line names the partition."""
        return {"topic": self.topic.name or self.topic.id.hex(), "partition": self.index}

    def wake_parked(self) -> None:
        """Wake all waiters, so that they evaluate the partition again."""
        for waiter in list(self.parked):
            waiter.wake(self)

    def tell_acknowledged(self) -> None:
        """Tell all waiters of records that were acknowledged and that no Fetch has shown yet."""
        for waiter in list(self.parked):
            waiter.note_acknowledged(self)

    def last_stable_offset(self) -> int:
        """Return the broker's LSO as far as it is known, never above it; -1 if unknown. The value
        comes from the batches, or is the greatest LSO shown in this epoch.
        """
        high_watermark: int = self.row.high_watermark
        shown: int = self.row.last_stable_offset
        if shown >= high_watermark:
            return high_watermark
        followed = self.transactions.last_stable_offset(high_watermark)
        return shown if followed is None or followed < shown else followed

    def readable_end(self, read_committed: bool) -> int:
        """Return the first offset that a consumer of this isolation level may not read yet; -1 if
        unknown.
        """
        return self.last_stable_offset() if read_committed else self.row.high_watermark

    def is_at_end(self, offset: int, read_committed: bool) -> bool:
        """True if a consumer of this isolation level at `offset` waits for new records: at the HW,
        or anywhere from LSO to HW (UnifiedLog.read: beyond the LSO, too, nothing is readable
        yet).
        """
        return 0 <= self.readable_end(read_committed) <= offset <= self.leader_state.high_watermark

    def is_refused(self, now: float) -> bool:
        """True if the broker refused the topic to Forebay's own principal a short time ago."""
        return now < self.back_off.refused_until

    def has_stored(self, cache: BlockCache) -> bool:
        """True if any batch of the partition is stored."""
        start, end = cache.tail(self.slot)
        return start < end

    # -- events ------------------------------------------------------------------------------------

    def probe(self, offset: int) -> None:
        """Ask at `offset` while the HW is unknown: a client asks there."""
        if self.leader_state.high_watermark < 0:
            self.row.probe_offset = max(offset, 0)

    def look(self, now: float) -> None:
        """Note that it is asked about apart from the standing polls."""
        self.looked_at = now

    def cover(self) -> None:
        """Count a long poll that names it and has been sent."""
        self.open_polls += 1

    def uncover(self) -> None:
        """Undo `cover`: the poll is answered, or names it no more."""
        self.open_polls -= 1

    def note_miss(self, first: tuple[int, int]) -> None:
        """Note its first miss on history: `missed_from`."""
        self.missed_from = first

    def settle(self, lapsed: bool, news_at: float) -> None:
        """Move the tail after a response, at least to the log start offset. If the lease had lapsed,
        records written meanwhile are history, and the tail moves to the HW. `news_at`: when the HW
        last grew.
        """
        row = self.row
        high_watermark, tail = row.high_watermark, row.tail
        if tail < 0 or (lapsed and tail < high_watermark):
            tail = high_watermark
        row.tail = max(tail, row.log_start_offset)
        self.news_at = news_at

    def extend(self, end: int) -> None:
        """Move the tail to `end`, never back."""
        self.row.tail = max(self.tail, end)

    def move_tail(self, end: int) -> None:
        """Move the tail to the end of what is stored, which may be before it."""
        self.row.tail = end

    def note_produced(self, base_offset: int) -> None:
        """Note that stored bytes of a producer begin at `base_offset` or before. Acknowledgements of
        several connections may cross.
        """
        if not 0 <= self.produced_from <= base_offset:
            self.row.produced_from = base_offset

    def note_old_format(self) -> None:
        """Ask about it no more: its batches are older than format 2."""
        self.row.old_format = True

    def note_zstd(self) -> None:
        """Note that its log has zstd batches."""
        self.row.zstd = True

    def advance_start(self, log_start_offset: int) -> None:
        """Note that the log begins at `log_start_offset`."""
        self.log_start_offset = log_start_offset

    def take_over(self, cache: BlockCache, ended_at: float, now: float) -> None:
        """Note that an earlier process, which ended at `ended_at`, stored batches of it. Which of them came
        from Produce is not known, nor their codecs: all count as produced, and as zstd. `now`: it counts
        as unused from then on. Both are in seconds.
        """
        self.news_at = now
        start, end = cache.tail(self.slot)
        if start < end:
            self.wanted_at = now  # its readers come back
            self.taken_over = TakenOver(ended_at)
            self.row.tail = end
            self.row.produced_from = 0
            self.row.zstd = True

    def confirm_log(self, is_stored: bool) -> None:
        """Note that the stored bytes are those of the broker's log. `is_stored`: there are any."""
        self.taken_over = None
        self.recalling = (-1, 0.0) if is_stored else None
        self.leader_state.await_check(False)
        self.divergences = 0

    def recall(self, shown: tuple[int, float] | None) -> None:
        """Take another value of `recalling`."""
        self.recalling = shown

    def enter_epoch(self, is_new: bool, is_stored: bool) -> None:
        """Enter a proven epoch: freeze what is stored until it is checked. `is_new`: another one was
        proven before. `is_stored`: any batch is.
        """
        self.recalling = None
        if is_new:
            self.row.acknowledged_end = -1
            self.transactions.truncate(0)
        if self.young_from < 0:
            self.row.young_from = self.leader_state.high_watermark
        if self.taken_over is not None:
            self.taken_over.begin()
        self.divergences = 0
        self.leader_state.await_check(is_stored)
        if not is_stored:
            self.row.tail = self.row.produced_from = -1  # they belong to the previous log

    def diverge(self) -> int:
        """Count a failed check of the stored bytes. Return the number of them in a row."""
        self.divergences += 1
        return self.divergences

    def forget_log(self, probe_offset: int, is_stored: bool) -> None:
        """Forget the offsets: the log was truncated or replaced. The next question is at
        `probe_offset`, -1 if none is known. `is_stored`: any batch is, and has to be checked.
        """
        self.recalling = None
        self.leader_state.forget_offsets()
        self.leader_state.await_check(is_stored)
        self.row.probe_offset = probe_offset
        self.row.acknowledged_end = -1

    def truncate(self, from_offset: int, is_stored: bool) -> None:
        """Note that nothing at or above `from_offset` is stored. `is_stored`: any batch is."""
        self.recalling = None
        self.transactions.truncate(from_offset)
        self.row.tail = min(self.tail, from_offset) if is_stored else -1
        if not is_stored:
            self.taken_over = None
        elif self.taken_over is not None:
            self.taken_over.begin()
        if self.produced_from >= from_offset:
            self.row.produced_from = -1

    def distrust(self) -> None:
        """Compare no batch that was written before now: the broker stores batches otherwise."""
        known_end = max(self.leader_state.high_watermark, self.acknowledged_end)
        self.row.young_from = max(self.young_from, known_end)

    def unfollow(self) -> None:
        """Nobody follows it any more: a partition that is followed again is a new object."""
        self.row.is_followed = False

    def __repr__(self) -> str:
        return f"{self.topic.name or self.topic.id.hex()}-{self.index}"


class Partitions:
    """The table of partitions.

    `limit`, or the room in the arena if that is less, bounds it. Beyond the limit new partitions
    are not followed, and their Fetches pass through. `transactions_limit` bounds the transactions
    kept per partition. `refused` counts how often one was not followed because of the limit. While the
    cache is pending, none is followed.
    `find_by_key` is `find` by topic id and index; the dictionary's own method, because each partition
    of each Fetch calls it.
    """

    __slots__ = (
        "_by_key",
        "_ended_at",
        "_new_topics",
        "_taken_over_at",
        "_topics",
        "_unclaimed",
        "cache",
        "find_by_key",
        "limit",
        "refused",
        "transactions_limit",
    )

    def __init__(self, cache: BlockCache, limit: int, transactions_limit: int) -> None:
        self.cache = cache
        self.set_limit(limit)
        self.transactions_limit = transactions_limit
        self.refused = 0
        self._by_key: dict[tuple[bytes, int], Partition] = {}
        self.find_by_key: Callable[[tuple[bytes, int]], Partition | None] = self._by_key.get
        self._topics: dict[Topic, int] = {}  # number of followed partitions per topic
        self._new_topics: dict[Topic, None] = {}
        self._unclaimed: dict[tuple[bytes, int], int] = {}
        self._ended_at = float("-inf")
        self._taken_over_at = float("-inf")

    def set_limit(self, limit: int) -> None:
        """Take another limit. Partitions beyond it stay followed; no more are added."""
        self.limit = min(limit, self.cache.statistics().partitions_max)

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._by_key.values())

    def find(self, topic: Topic, index: int) -> Partition | None:
        """Return the partition if it is followed, else None."""
        return self._by_key.get((topic.id, index))

    def follow(self, topic: Topic, index: int) -> Partition | None:
        """Return the partition, followed from now on. Return None at the limit, or if Metadata has
        not shown the index.
        """
        key = (topic.id, index)
        partition = self._by_key.get(key)
        if partition is None:
            if index not in topic.leaders:
                return None
            slot = self._open(key)
            if slot < 0:
                self.refused += not self.cache.is_pending
                return None
            partition = self._by_key[key] = self.make(topic, index, slot)
            self._count(topic, 1)
            if self._unclaimed.pop(key, None) is not None:
                partition.take_over(self.cache, self._ended_at, self._taken_over_at)
        return partition

    def make(self, topic: Topic, index: int, slot: int) -> Partition:
        """Return a new partition, which has `slot` in the cache."""
        return Partition(topic, index, slot, self.transactions_limit)

    def open_lease(self) -> Lease:
        """Return a lease to be shared by the members of a fetch session, which has ended."""
        return Lease(float("-inf"), is_shared=True)

    def _open(self, key: tuple[bytes, int]) -> int:
        """Return the partition's slot in the cache; -1 at the limit, and while the cache is pending.
        Unclaimed partitions make room.
        """
        if len(self._by_key) >= self.limit or self.cache.is_pending:
            return -1
        if key not in self._unclaimed and len(self) + len(self._unclaimed) >= self.limit:
            self._drop_unclaimed(list(self._unclaimed)[:1])
        try:
            return self.cache.open(*key)
        except PartitionsFull:
            return -1

    # -- partitions of an earlier process ----------------------------------------------------------

    @property
    def unclaimed(self) -> int:
        """Return the number of partitions that an earlier process stored and that are not followed."""
        return len(self._unclaimed)

    def take_over(
        self, slots: Mapping[tuple[bytes, int], int], down_s: float, now: float
    ) -> list[bytes]:
        """Note at `now` (seconds) what an earlier process stored, which ended `down_s` seconds ago: each
        partition is taken over once it is followed. Return the ids of their topics.
        """
        self._taken_over_at = now
        self._ended_at = now - down_s
        self._unclaimed = dict(slots)
        return list(dict.fromkeys(topic_id for topic_id, _ in slots))

    def claim(self, topic: Topic, index: int) -> Partition | None:
        """Follow the partition if an earlier process stored it; otherwise return it only if it is followed already."""
        if (topic.id, index) in self._unclaimed:
            return self.follow(topic, index)
        return self.find(topic, index)

    def drop_unclaimed(self, topic_id: bytes | None = None) -> int:
        """Drop what an earlier process stored and nobody follows, of one topic or of all. Return the number of
        partitions.
        """
        return self._drop_unclaimed(
            [key for key in self._unclaimed if topic_id is None or key[0] == topic_id]
        )

    def _drop_unclaimed(self, keys: list[tuple[bytes, int]]) -> int:
        for key in keys:
            self.cache.drop(self._unclaimed.pop(key))
        return len(keys)

    def _count(self, topic: Topic, change: int) -> None:
        count = self._topics.get(topic, 0)
        self._topics[topic] = count + change
        if not count:
            self._new_topics[topic] = None
        elif not self._topics[topic]:
            del self._topics[topic]
            self._new_topics.pop(topic, None)

    def follows(self, topic: Topic) -> bool:
        """True if any partition of the topic is followed."""
        return topic in self._topics

    def take_new_topics(self) -> dict[Topic, None]:
        """Return the topics that have become followed since the last call, and still are."""
        found, self._new_topics = self._new_topics, {}
        return found

    def forget(self, partition: Partition) -> None:
        """Stop following the partition, drop its blocks and wake its waiters: it is gone or idle."""
        if not partition.is_followed:
            return
        partition.unfollow()
        del self._by_key[partition.topic.id, partition.index]
        self._count(partition.topic, -1)
        partition.leader_state.revoke()
        self.cache.drop(partition.slot)
        partition.wake_parked()
