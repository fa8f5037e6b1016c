"""The objects of other rooms that the replica fetcher uses.

Owns their types alone. It must not know who has them. Invariant: nothing here is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from proxy.partitions.services import Confirmation, PartitionServices, TopicQueries

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.fetch import FetchPartition
    from proxy.advertised import AdvertisedCheck
    from proxy.net.client_connection import AnyLink
    from proxy.net.own_connections import OwnConnections
    from proxy.partitions.table import Partition


class Waiting(Protocol):
    """The Fetches that wait."""

    def list_partitions(self, link: AnyLink) -> list[Partition]:
        """Those that the Fetches of one client wait on."""


class AccountingBatch(Protocol):
    """Counts answers that leave together."""

    def hold(self) -> None:
        """Many may leave now."""

    def settle(self) -> None:
        """All have left."""


class Wakeups(Protocol):
    """Wakes the Fetches that one answer of the broker concerns."""

    def gather(self) -> None:
        """Note who is to be woken."""

    def look(self, attempt: Callable[[Callable[[], object], str], object]) -> None:
        """Wake them, each by `attempt`."""


class Polls(Confirmation, Protocol):
    """The replica fetcher, as its polls and the questions about topics see it. `rest_times`: a standing poll's rest
    after news, in times of what they took.
    """

    rest_times: float

    def ask(
        self, partition: Partition, link: AnyLink | None, asked: FetchPartition | None = None
    ) -> bool:
        """Have the broker confirm `partition` at once. Return True if a question was sent or is
        queued.
        """

    def polled(self, poll: object) -> None:
        """Send the next polls: `poll` has ended."""

    def pump(self) -> None:
        """Send all polls that are due."""

    def suggest(self, partition: Partition) -> None:
        """Use the leader that Metadata named last."""

    def learn_node(self) -> None:
        """Use the broker's node id, which has become known."""


class Questions(TopicQueries, Protocol):
    """The questions about topics, as the replica fetcher sees them."""

    def ask(self, topic: str | bytes, link: AnyLink | None = None) -> None:
        """Learn a topic's name, id and leaders. `link` asks if Forebay's own connections may not."""


class FetcherServices(PartitionServices, Protocol):
    """Handed to all that asks the broker on Forebay's own behalf."""

    @property
    def replica_fetcher(self) -> Polls:
        """The replica fetcher itself."""

    def failed(self, doing: str) -> None:
        """Log and count the error that is being handled."""

    def catch_up(self) -> None:
        """Store what was acknowledged to other processes: an answer of the broker may be about it."""

    @property
    def topic_lookup(self) -> Questions:
        """Who asks about topics."""

    @property
    def own_connections(self) -> OwnConnections:
        """Forebay's own connections to the broker."""

    @property
    def advertised(self) -> AdvertisedCheck:
        """The comparison of what the broker tells clients of its address."""

    @property
    def purgatory(self) -> Waiting:
        """The Fetches that wait."""

    @property
    def accounts(self) -> AccountingBatch:
        """Counts what leaves."""

    @property
    def wakeups(self) -> Wakeups:
        """Wakes who waits."""
