"""The objects of other rooms that this room uses, and the signals that it gives.

Owns their types alone. It must not know who has them. Invariant: nothing here is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from blockcache.cache import BlockCache
    from protocol.fetch import FetchPartition
    from proxy.accounting.counters import Counters
    from proxy.accounting.stored_runs import StoredRuns
    from proxy.config.model import Config
    from proxy.partitions.table import Partition, Partitions
    from proxy.partitions.topics import Topic, Topics


class Confirmation(Protocol):
    """Asks the broker to confirm partitions: the replica fetcher."""

    def prove_next(self, partition: Partition) -> None:
        """Have the broker confirm it, after the answer that is being learned from."""

    def doubt(self, partition: Partition) -> None:
        """End its lease, and have the broker confirm it."""

    def changed(self, partition: Partition) -> None:
        """Plan the next question about it anew: what is known or stored of it has changed."""

    def follow(self, partition: Partition, asked: FetchPartition | None) -> None:
        """Watch it, although nobody waits for it here."""

    def produced(self, partition: Partition, now: float | None = None) -> None:
        """A Produce of it was acknowledged."""

    def forget(self, partition: Partition) -> None:
        """It is not followed any more."""


class TopicQueries(Protocol):
    """Asks the broker about topics."""

    def ask(self, topic: str | bytes) -> None:
        """Learn its name, id and leaders, soon."""


class NodeIdentity(Protocol):
    """Which node the broker is."""

    def is_this(self, node_id: int) -> bool:
        """Return True if that node is the broker behind this process."""


class PartitionServices(Protocol):
    """Handed to what stores records and updates leader states."""

    @property
    def config(self) -> Config:
        """What was configured."""

    @property
    def cache(self) -> BlockCache:
        """Memory."""

    @property
    def counters(self) -> Counters:
        """What is counted."""

    @property
    def stored_runs(self) -> StoredRuns | None:
        """The access log's lines of stored records; None: there is no log."""

    @property
    def topics(self) -> Topics:
        """All that are known."""

    @property
    def partitions(self) -> Partitions:
        """All that are followed."""

    @property
    def replica_fetcher(self) -> Confirmation:
        """Who asks for confirmation."""

    @property
    def topic_lookup(self) -> TopicQueries:
        """Who asks about topics."""

    @property
    def now(self) -> Callable[[], float]:
        """The clock, in seconds."""

    def attempt(self, action: Callable[[], object], doing: str) -> None:
        """Run `action`; log and count its error."""

    @property
    def node(self) -> NodeIdentity:
        """Which node the broker is."""

    def invalidate(self, partition: Partition, from_offset: int, reason: str) -> None:
        """Drop what is stored of it at or above the offset."""

    def distrust(self, topic: Topic, reason: str) -> None:
        """Drop what was stored of it from Produce."""

    def forget_topic(self, topic_id: bytes) -> None:
        """The broker does not know it."""
