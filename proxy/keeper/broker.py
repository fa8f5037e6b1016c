"""The keeper's broker: all that `proxy.broker.Broker` is, shown to workers.

Owns the order of showing and changing. Must not know how a worker is reached. Invariants: what ends
the validity of stored bytes is shown before they change; all links are told of topics and partitions
that go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from proxy.broker import Broker
from proxy.keeper.segment import open_segment
from proxy.keeper.shown import ShownPartitions, find_place
from proxy.keeper.told import RingReaders
from proxy.partitions._rows import ffi
from proxy.partitions.table import Partition, Partitions
from proxy.partitions.topics import Topic, Topics
from proxy.replica_fetcher.fetcher import ReplicaFetcher
from proxy.replica_fetcher.session_poll import REST_TIMES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from blockcache.cache import BlockCache
    from metrics.access_log import AccessLog
    from proxy.config.model import Config
    from proxy.keeper.worker_link import WorkerLink
    from proxy.partitions.leader_state import Lease
    from proxy.partitions.topics import Leader


class RowTable:
    """The partitions by place. `native`: their rows (`pt_row *[]`), NULL where there is none."""

    __slots__ = ("native", "partitions", "room")

    def __init__(self, room: int) -> None:
        self.room = room
        self.native: Any = ffi.new("pt_row *[]", room)
        self.partitions: dict[int, Partition] = {}

    def put(self, partition: Partition) -> None:
        """Note a partition that is followed."""
        place = find_place(partition.slot)
        self.partitions[place] = partition
        self.native[place] = partition.row

    def find(self, slot: int) -> Partition:
        """The one with this slot. Raises KeyError."""
        return self.partitions[find_place(slot)]

    def remove(self, partition: Partition) -> None:
        """Note that it is followed no more."""
        place = find_place(partition.slot)
        if self.partitions.get(place) is partition:
            del self.partitions[place]
            self.native[place] = ffi.NULL


class ShownPartition(Partition):
    """A partition whose new epochs and lost logs are shown at once."""

    __slots__ = ("_shown",)

    def __init__(
        self,
        shown: ShownPartitions,
        topic: Topic,
        index: int,
        slot: int,
        transactions_limit: int,
    ) -> None:
        super().__init__(topic, index, slot, transactions_limit)
        self._shown = shown

    def enter_epoch(self, is_new: bool, is_stored: bool) -> None:
        """As its base, and shown before anything of the epoch is stored."""
        super().enter_epoch(is_new, is_stored)
        self._shown.show(self)

    def forget_log(self, probe_offset: int, is_stored: bool) -> None:
        """As its base, and shown before anything else is learned of it."""
        super().forget_log(probe_offset, is_stored)
        self._shown.show(self)


class KeptPartitions(Partitions):
    """The table of the keeper."""

    __slots__ = ("_shown", "rows")

    def __init__(
        self, shown: ShownPartitions, cache: BlockCache, limit: int, transactions_limit: int
    ) -> None:
        super().__init__(cache, limit, transactions_limit)
        self._shown = shown
        self.rows = RowTable(shown.segment.rows)

    def open_lease(self) -> Lease:
        """As its base, seen by workers."""
        return self._shown.open_lease()

    def make(self, topic: Topic, index: int, slot: int) -> Partition:
        """As its base."""
        partition = ShownPartition(self._shown, topic, index, slot, self.transactions_limit)
        self.rows.put(partition)
        return partition

    def forget(self, partition: Partition) -> None:
        """As its base, shown before its bytes go and after."""
        if partition.is_followed:
            self._shown.withdraw(partition)
            super().forget(partition)
            self._shown.forget(partition)
            self.rows.remove(partition)


class ShowingFetcher(ReplicaFetcher):
    """A replica fetcher that marks what has changed. `rest_times`: workers wake delayed Fetches and answer them, which
    takes several times as long as what is done here.
    """

    rest_times = 6 * REST_TIMES

    def __init__(self, broker: KeeperBroker) -> None:
        super().__init__(broker)
        self._shown = broker.shown

    def changed(self, partition: Partition) -> None:
        """As its base."""
        super().changed(partition)
        self._shown.note_learned(partition)

    def doubt(self, partition: Partition) -> None:
        """As its base."""
        super().doubt(partition)
        self._shown.show(partition)


class ToldTopics(Topics):
    """A table of topics, of which workers are told."""

    __slots__ = ("_links",)

    def __init__(self, links: dict[int, WorkerLink]) -> None:
        super().__init__()
        self._links = links

    def learn(self, name: str, topic_id: bytes, leaders: Mapping[int, Leader]) -> Topic | None:
        """As its base."""
        replaced = super().learn(name, topic_id, leaders)
        topic = self.find(topic_id)
        assert topic is not None
        for link in list(self._links.values()):
            link.tell_topic(topic)
        return replaced


class KeeperBroker(Broker):
    """The broker of a process that shows what it knows. `links`: the attached workers, by number."""

    partitions: KeptPartitions

    def __init__(
        self,
        config: Config,
        cache: BlockCache,
        access_log: AccessLog | None,
        version: str,
        now: Callable[[], float],
    ) -> None:
        self.links: dict[int, WorkerLink] = {}
        self._left: set[int] = set()
        self.rings = RingReaders(self)
        self.shown = ShownPartitions(
            open_segment(cache.statistics().partitions_max), self._tell_news
        )
        super().__init__(config, cache, access_log, version, now)

    def catch_up(self) -> None:
        """As its base: what workers have told."""
        self.rings.catch_up()

    def _tell_news(self) -> None:
        for link in list(self.links.values()):
            link.tell_news()

    def build_topics(self) -> Topics:
        """As its base."""
        return ToldTopics(self.links)

    def build_partitions(self, limit: int, transactions_limit: int) -> Partitions:
        """As its base."""
        return KeptPartitions(self.shown, self.cache, limit, transactions_limit)

    def build_replica_fetcher(self) -> ReplicaFetcher:
        """As its base."""
        return ShowingFetcher(self)

    def invalidate(self, partition: Partition, from_offset: int, reason: str) -> None:
        """As its base: nobody serves what is about to go, nor what was found while it went, and all see what is
        left.
        """
        self.shown.withdraw(partition)
        super().invalidate(partition, from_offset, reason)
        self.shown.withdraw(partition)
        self.shown.show(partition)

    def distrust(self, topic: Topic, reason: str) -> None:
        """As its base."""
        super().distrust(topic, reason)
        for partition in self.partitions:
            if partition.topic is topic:
                self.shown.show(partition)

    def forget(self, partition: Partition, reason: str) -> None:
        """As its base, and workers are told."""
        super().forget(partition, reason)
        for link in list(self.links.values()):
            link.tell_forgotten(partition)

    def forget_topic(self, topic_id: bytes) -> None:
        """As its base, and workers are told."""
        super().forget_topic(topic_id)
        for link in list(self.links.values()):
            link.tell_topic_forgotten(topic_id)

    def tick(self, now: float) -> None:
        """Timed: show what has changed without a mark."""
        del now
        self.shown.sweep(self.partitions)
        self.shown.flush()
        for link in list(self.links.values()):
            link.tell_throttle()
        self._left = {one for one in self._left if not self._may_release(one)}

    def note_left(self, number: int) -> None:
        """Note that a worker has left: what it has pinned is let go once its process is dead."""
        self._left.add(number)

    def _may_release(self, number: int) -> bool:
        """Whether nothing is left to be released of this number."""
        return number in self.links or self.cache.release_holder(number)
