"""Accounts: counts and logs the responses to Fetches that have left.

Owns the counting. Must not know how a response was found. Invariants:
* Bytes are counted when the response's last byte has left, not before.
* Responses released by one broker response are sent first and counted afterwards.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from proxy.accounting.empty_answers import CLEAN
from proxy.fetch.hit_estimate import estimate_topics
from proxy.fetch.services import NOT_PARKED
from proxy.partitions.readable import UNREAD, PartitionOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.header import RequestHeader
    from proxy.fetch.access_lines import AccessLines, Departed
    from proxy.fetch.services import ClientFetch, FetchLink, FetchServices

SIZE = itemgetter(PartitionOutcome._fields.index("size_bytes"))
VERDICT = itemgetter(
    PartitionOutcome._fields.index("result"), PartitionOutcome._fields.index("reason")
)
"""Fields of an outcome, read in C."""


class Accounts:
    """Counts responses that have left: each at once, or a batch of them after all have left."""

    __slots__ = ("_broker", "_departed", "lines")

    def __init__(self, broker: FetchServices, lines: AccessLines | None) -> None:
        """`lines` None: there is no access log."""
        self._broker = broker
        self.lines = lines
        self._departed: list[Departed] | None = None
        """The batch; None outside a batch."""

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
        now = self._broker.now()
        if self._broker.modes.observes:
            outcomes = estimate_topics(self._broker, outcomes)
        if not delivered:
            self._broker.counters.fetch.lose(len(outcomes) + clean)
            self._count(((fetch, (), is_ours, now, waited_s, 0),))
        elif self._departed is not None:
            self._departed.append((fetch, outcomes, is_ours, now, waited_s, clean))
        else:
            self._count(((fetch, outcomes, is_ours, now, waited_s, clean),))

    def enter_unread(
        self, link: FetchLink, head: RequestHeader, received_at: float, delivered: bool
    ) -> None:
        """Count the response to a Fetch that Forebay did not decode, as one partition."""
        counts = self._broker.counters.fetch
        if not delivered:
            counts.lose(1)
            return
        counts.partitions[UNREAD] += 1
        if self.lines is not None:
            self.lines.put_unread(link, head.api_version, self._broker.now() - received_at)

    def hold(self) -> None:
        """Begin a batch of responses. `settle` must follow in the same callback of the event loop."""
        self._departed = []

    def settle(self) -> None:
        """End the batch: count all responses that have left."""
        departed, self._departed = self._departed, None
        if departed:
            self._count(departed)

    def _count(self, departed: Sequence[Departed]) -> None:
        """Count responses. One that was not delivered has no outcomes: only its time is counted."""
        broker = self._broker
        counts = broker.counters.fetch
        for fetch, outcomes, is_ours, left_at, waited_s, clean in departed:
            if clean:
                counts.partitions[CLEAN] += clean
            for verdict, alike in groupby(outcomes, VERDICT):
                sizes = list(map(SIZE, alike))
                counts.partitions[verdict] += len(sizes)
                counts.record_bytes[verdict] += sum(sizes)
            if broker.modes.observes:
                counts.observe(sum(one.would_hit_bytes or 0 for one in outcomes))
            took_s = left_at - fetch.received_at
            if not is_ours:
                counts.upstream_s.observe(took_s)
            elif waited_s < 0:
                counts.hit_s.observe(took_s)
            else:
                counts.wait_s.observe(waited_s)
                counts.hit_s.observe(took_s - waited_s)
            if outcomes and broker.readers.limit:
                broker.readers.note(fetch.link.client_id, fetch.link.group, outcomes, left_at)
            if broker.scheduler.quotas.active:
                _charge(broker, fetch.link.client_id, outcomes)
        if self.lines is not None:
            self.lines.put_departed(departed)


def _charge(
    broker: FetchServices, client_id: str | None, outcomes: Sequence[PartitionOutcome]
) -> None:
    """Charge the delivered bytes to the quotas of the client and its topics."""
    quotas, now = broker.scheduler.quotas, broker.now()
    for one in outcomes:
        topic = broker.topics.find(one.status.asked.topic)
        quotas.charge(client_id or "", topic.name if topic is not None else "", one.size_bytes, now)
