"""The objects of other rooms that Fetch uses, and those that this room keeps for a connection.

Owns their types alone. It must not know who has them. Invariant: nothing here is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from proxy.net.services import ConnectionServices, Handlers

if TYPE_CHECKING:
    from collections.abc import Callable

    from blockcache.cache import BlockCache
    from protocol.fetch_again import FetchScanner
    from proxy.fetch.authorization import Authorization
    from proxy.fetch.misses.coalescing import SharedReads
    from proxy.fetch.misses.reads import Reads
    from proxy.fetch.purgatory import Purgatory
    from proxy.fetch.record import Accounts
    from proxy.fetch.sessions.cache import SessionCache
    from proxy.fetch.sessions.idle_partitions import WakeupBatch
    from proxy.net.client_connection import ClientConnection
    from proxy.net.own_connections import OwnConnections
    from proxy.partitions.table import Partitions
    from proxy.partitions.topics import Topics
    from proxy.replica_fetcher.fetcher import ReplicaFetcher
    from proxy.replica_fetcher.topic_metadata import TopicLookup
    from proxy.replica_fetcher.verifier import Verifier
    from proxy.scheduling.disk_throttle import DiskThrottle
    from proxy.scheduling.request_scheduler import RequestScheduler


class FetchServices(ConnectionServices, Protocol):
    """Handed to what answers, delays and forwards Fetches."""

    @property
    def cache(self) -> BlockCache:
        """The stored batches."""

    @property
    def topics(self) -> Topics:
        """All topics that are known."""

    @property
    def partitions(self) -> Partitions:
        """All partitions that are followed."""

    @property
    def replica_fetcher(self) -> ReplicaFetcher:
        """The replica fetcher."""

    @property
    def topic_lookup(self) -> TopicLookup:
        """The questions about topics."""

    @property
    def verifier(self) -> Verifier:
        """The comparison of served records with the broker's."""

    @property
    def scheduler(self) -> RequestScheduler:
        """The queues toward the broker."""

    @property
    def disk_throttle(self) -> DiskThrottle:
        """The delay of misses."""

    @property
    def own_connections(self) -> OwnConnections:
        """Forebay's own connections to the broker."""

    @property
    def sessions(self) -> SessionCache:
        """The fetch sessions."""

    @property
    def purgatory(self) -> Purgatory:
        """The delayed Fetches."""

    @property
    def shared_reads(self) -> SharedReads:
        """The reads that consumers share."""

    @property
    def wakeups(self) -> WakeupBatch:
        """The Fetches that one response of the broker wakes."""

    @property
    def accounts(self) -> Accounts:
        """The count and log of responses."""

    @property
    def fetch_max_bytes(self) -> int:
        """`fetch.max.bytes` of the broker."""

    @property
    def answer_bytes(self) -> int:
        """The most record bytes of a response from memory now."""

    def attempt(
        self,
        action: Callable[[], object],
        doing: str,
        otherwise: Callable[[], object] | None = None,
    ) -> None:
        """Run `action`. Log and count its error, then run `otherwise`."""

    def fall_back(
        self, link: FetchLink, sent_count: int, doing: str, whole: Callable[[], object] | None
    ) -> None:
        """Send a request on as it came, after `doing` has raised for it."""


class FetchHandlers(Handlers, Protocol):
    """What is kept for a connection whose Fetches are handled."""

    @property
    def authorization(self) -> Authorization:
        """The client's rights to topics."""

    @property
    def fetches(self) -> FetchScanner:
        """The template of the client's Fetches."""

    @property
    def reads(self) -> Reads:
        """The miss fetches."""


FetchLink: TypeAlias = "ClientConnection[FetchServices, FetchHandlers]"
"""A client connection as Fetch sees it."""
