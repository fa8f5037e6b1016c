"""The objects of other rooms that Produce uses.

Owns their types alone. It must not know who has them. Invariant: nothing here is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from proxy.partitions.services import PartitionServices
from proxy.relay import RelayHandlers, RelayServices

if TYPE_CHECKING:
    from protocol.primitives import Frame
    from proxy.net.client_connection import ClientConnection
    from proxy.partitions.forwarded import ForwardedBatches
    from proxy.produce.routes import PipelineCounts
    from proxy.produce.targets import Targets
    from proxy.replica_fetcher.fetcher import ReplicaFetcher
    from proxy.replica_fetcher.topic_metadata import TopicLookup


class ProduceServices(RelayServices, PartitionServices, Protocol):
    """Handed to what forwards, refuses and stores Produces."""

    @property
    def replica_fetcher(self) -> ReplicaFetcher:
        """The replica fetcher."""

    @property
    def topic_lookup(self) -> TopicLookup:
        """The questions about topics."""

    @property
    def routes(self) -> Targets:
        """The targets of requests that were seen."""

    @property
    def pipeline_counts(self) -> PipelineCounts:
        """The counts that C keeps."""

    @property
    def keeps(self) -> bool:
        """Whether this process stores what is produced, and not the keeper."""

    def admit_produced(
        self,
        frame: Frame,
        forwarded: ForwardedBatches,
        answer: Frame,
        produced: tuple[Any, int],
        now: float,
    ) -> None:
        """Store what the response `answer` acknowledges of the request `frame`, or have the keeper do it."""

    def failed(self, doing: str) -> None:
        """Log and count the error that is being handled."""


ProduceLink: TypeAlias = "ClientConnection[ProduceServices, RelayHandlers]"
"""A client connection as Produce sees it."""
