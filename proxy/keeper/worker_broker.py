"""A worker's broker: all that `proxy.broker.Broker` is, with the keeper's knowledge of partitions.

Owns the join of the link to the keeper with the rooms of a request. Must not know sockets.
Invariants: nothing is stored or dropped here; acknowledged Produces go to the keeper in the order of
their acknowledgements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blockcache.arena_file import ArenaMemory
from proxy.broker import Broker
from proxy.keeper import messages
from proxy.keeper.asked_throttle import AskedThrottle
from proxy.keeper.keeper_link import AskedFetcher, AskedTopics, KeeperLink, is_current
from proxy.keeper.seen import SeenPartitions
from proxy.partitions import forwarded as batches
from proxy.partitions import store
from proxy.partitions._rows import ffi

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from blockcache.cache import BlockCache
    from metrics.access_log import AccessLog
    from protocol.primitives import Frame
    from proxy.config.model import Config
    from proxy.partitions.forwarded import ForwardedBatches
    from proxy.partitions.table import Partition
    from proxy.partitions.topics import Topic
    from proxy.scheduling.disk_throttle import DiskThrottle

NOWHERE = (ffi.new("pt_store *"), False, 0.0)


class AskedSettings:
    """What asks about topics' settings, in a worker: the keeper does."""

    def tick(self, _now: float) -> None:
        """Nothing is due here."""


class WorkerBroker(Broker):
    """The broker of a process that sees what the keeper shows."""

    partitions: SeenPartitions
    keeps = False

    def __init__(
        self,
        config: Config,
        cache: BlockCache,
        access_log: AccessLog | None,
        version: str,
        now: Callable[[], float],
        address: bytes,
        number: int,
        answer: Callable[[str], bytes],
    ) -> None:
        self.now = now
        self.link = KeeperLink(self, address, number, answer)
        super().__init__(config, cache, access_log, version, now)

    def build_partitions(self, limit: int, _transactions_limit: int) -> Any:
        """As its base."""

        def ask(topic_id: bytes, index: int) -> bool:
            return self.link.send(messages.FOLLOW, topic_id, index)

        return SeenPartitions(self.cache, limit, ask)

    def build_replica_fetcher(self) -> Any:
        """As its base."""
        return AskedFetcher(self)

    def build_disk_throttle(self) -> DiskThrottle:
        """As its base."""
        self.asked_throttle = AskedThrottle(self)
        return self.asked_throttle

    def build_compaction_policies(self) -> Any:
        """As its base."""
        return AskedSettings()

    def build_topic_lookup(self) -> Any:
        """As its base."""
        return AskedTopics(self)

    # -- the keeper --------------------------------------------------------------------------------

    def attach_cache(self, arena_fd: int, number: int, boot: str) -> None:
        """Read from the arena of the keeper with this boot id from now on; owns its descriptor. Raises ArenaError."""
        self.cache.become(ArenaMemory(arena_fd), number)
        if self.access_log is not None:
            self.access_log.learn_keeper(boot)  # the clock that lines have is this arena's

    def lose_keeper(self) -> None:
        """The keeper is gone: nothing is known of any partition."""
        self.routes.clear()
        for topic in self.topics.list_all():
            self.topics.forget(topic)
        self.partitions.drop_all()
        self.asked_throttle.lose_keeper()

    def confirms(self, partitions: Iterable[Partition | None]) -> bool:
        """Whether what was found of these partitions in the arena may be served."""
        return is_current(partitions)

    # -- what a worker does otherwise --------------------------------------------------------------

    def admit_produced(
        self,
        frame: Frame,
        forwarded: ForwardedBatches,
        answer: Frame,
        produced: tuple[Any, int],
        now: float,
        said: Any = None,
    ) -> None:
        """Show the acknowledged ends to all, and have the keeper store the batches."""
        del now
        said = batches.admit(forwarded, frame, answer, produced, NOWHERE)
        if said.acknowledged != produced[1]:  # nearly always equal
            store.count_errors(self, produced)
        if not said.acknowledged:
            return
        native, count, partitions = forwarded
        self.link.show_acknowledged(native, count)
        for partition in partitions:
            if partition is not None:
                partition.tell_acknowledged()
        self.link.tell_produced(forwarded, frame)

    def hear(self) -> None:
        """Note of which partitions other workers saw records acknowledged."""
        for partition in self.link.hear():
            partition.tell_acknowledged()

    def invalidate(self, partition: Partition, _from_offset: int, _reason: str) -> None:
        """The keeper asks the broker."""
        self.link.send(messages.DOUBT, partition.slot)

    def distrust(self, topic: Topic, _reason: str) -> None:
        """The keeper drops what it has stored of it."""
        found = [one.slot for one in self.partitions if one.topic is topic]
        if found:
            self.link.send(messages.MISMATCH, found, found[0])

    def forget(self, partition: Partition, _reason: str) -> None:
        """The keeper forgets partitions."""

    def forget_topic(self, topic_id: bytes) -> None:
        """The keeper has said that the broker does not know it."""
        topic = self.topics.find(topic_id)
        if topic is None:
            return
        self.routes.clear()
        self.topics.forget(topic)
        for partition in [one for one in self.partitions if one.topic.id == topic_id]:
            self.partitions.drop(partition.topic, partition.index)
