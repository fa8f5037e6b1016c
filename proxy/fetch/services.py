"""What Fetch's modules share: the objects that they use, and a client's Fetch as it arrived.

Owns their types alone. It must not know who has them. Invariant: nothing here is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from proxy.fetch.authorization import AuthorizationServices
from proxy.fetch.misses.reads import MissHandlers, MissServices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from blockcache.cache import BlockCache
    from protocol.fetch import FetchPartition, FetchRequest
    from protocol.fetch_build import KeptLayout
    from protocol.header import RequestHeader
    from protocol.primitives import TopicNameOrId
    from proxy.advertised import AdvertisedCheck
    from proxy.fetch.misses.reads import Reads
    from proxy.fetch.purgatory import Purgatory
    from proxy.fetch.readers import Readers
    from proxy.fetch.sessions.cache import SessionCache
    from proxy.fetch.sessions.context import FetchContext
    from proxy.fetch.sessions.repeated import RepeatedFetches, RepeatedPartitions
    from proxy.fetch.wakeups import WakeupBatch
    from proxy.net.client_connection import ClientConnection
    from proxy.net.own_connections import OwnConnections
    from proxy.partitions.readable import PartitionOutcome
    from proxy.partitions.table import Partition
    from proxy.replica_fetcher.broker_settings import Node
    from proxy.replica_fetcher.fetcher import ReplicaFetcher
    from proxy.replica_fetcher.verifier import Verifier

NOT_PARKED = -1.0
"""Waiting time, in seconds, of a Fetch that has never been in the purgatory."""


class ResponseAccounts(Protocol):
    """The count and log of responses."""

    @property
    def lines(self) -> object | None:
        """The lines of the access log; None: there is no log."""

    def enter(
        self,
        fetch: ClientFetch,
        outcomes: Sequence[PartitionOutcome],
        is_ours: bool,
        delivered: bool,
        waited_s: float = NOT_PARKED,
        clean: int = 0,
    ) -> None:
        """Count the response to `fetch`: it has left, or never will (`delivered` is False).

        `clean`: partitions that it names without records, and that have no outcome.
        """

    def enter_unread(
        self, link: FetchLink, head: RequestHeader, received_at: float, delivered: bool
    ) -> None:
        """Count the response to a Fetch that Forebay did not decode, as one partition."""


class FetchServices(MissServices, AuthorizationServices, Protocol):
    """Handed to what answers, delays and forwards Fetches."""

    @property
    def cache(self) -> BlockCache:
        """The stored batches."""

    @property
    def replica_fetcher(self) -> ReplicaFetcher:
        """The replica fetcher."""

    @property
    def verifier(self) -> Verifier:
        """The comparison of served records with the broker's."""

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
    def wakeups(self) -> WakeupBatch:
        """The Fetches that one response of the broker wakes."""

    @property
    def accounts(self) -> ResponseAccounts:
        """The count and log of responses."""

    @property
    def readers(self) -> Readers:
        """Who reads what."""

    @property
    def node(self) -> Node:
        """What the broker says of itself."""

    @property
    def advertised(self) -> AdvertisedCheck:
        """The comparison of what the broker tells clients of its address."""

    @property
    def keeps(self) -> bool:
        """Whether partitions are this process's own. Otherwise `confirms` has to confirm what is found in the arena."""

    def hear(self) -> None:
        """Note of which partitions other processes saw records acknowledged."""

    def confirms(self, partitions: Iterable[Partition | None]) -> bool:
        """Whether what was found of these partitions in the arena may be served."""

    @property
    def answer_bytes(self) -> int:
        """The most record bytes of a response from memory now."""

    def fall_back(
        self, link: FetchLink, sent_count: int, doing: str, whole: Callable[[], object] | None
    ) -> None:
        """Send a request on as it came, after `doing` has raised for it."""


class FetchHandlers(MissHandlers, Protocol):
    """What is kept for a connection whose Fetches are handled."""

    @property
    def kept(self) -> KeptLayout:
        """The layout of the last response."""

    @property
    def repeated(self) -> RepeatedFetches:
        """What is remembered of the Fetches without a session."""

    @property
    def reads(self) -> Reads:
        """The miss fetches."""


FetchLink: TypeAlias = "ClientConnection[FetchServices, FetchHandlers]"
"""A client connection as Fetch sees it."""


class ClientFetch(NamedTuple):
    """A client's Fetch as it arrived, in `received_at` seconds.

    `context` is the Fetch as its session completes it; None if it names each partition once and no
    session, or if its session is the broker's.
    `repeated`: its partitions as they are remembered from the connection's Fetch before; None if they
    are not, or if it names a session.
    `request_bytes` are charged to the byte budget of requests until the response is made.
    """

    link: FetchLink
    head: RequestHeader
    request: FetchRequest
    context: FetchContext | None
    request_bytes: int
    received_at: float
    repeated: RepeatedPartitions | None = None

    @property
    def partitions(self) -> list[FetchPartition]:
        """All partitions that the Fetch asks for, including those that its session remembers."""
        return self.request.partitions if self.context is None else self.context.partitions

    @property
    def topics(self) -> Iterable[TopicNameOrId]:
        """All topics that the Fetch asks for, each once."""
        if self.context is None:
            return dict.fromkeys(one.topic for one in self.request.partitions)
        return self.context.topics
