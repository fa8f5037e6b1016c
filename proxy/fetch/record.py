"""A client's Fetch: what arrived, its place in the response order if it waits, and its accounting.

Owns the counting. Must not know how the response was found. Invariants:
* A `FetchRecord` is made only for a Fetch that waits, is forwarded or is refused.
* Each partition of each Fetch gets exactly one result and reason.
* Bytes are counted when the response's last byte has left, not before.
* Responses released by one broker response are sent first and counted afterwards (`Accounts`).
"""

from __future__ import annotations

from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from protocol import api
from proxy.fetch.hit_estimate import plan_observed
from proxy.partitions.readable import (
    NEEDS_BROKER,
    UNREAD,
    PartitionOutcome,
    PartitionStatus,
    ReadState,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from protocol.fetch import FetchPartition, FetchRequest, FetchResponse
    from protocol.header import RequestHeader
    from protocol.primitives import Frame, Topic
    from proxy.fetch.access_lines import AccessLines
    from proxy.fetch.services import FetchLink, FetchServices
    from proxy.fetch.sessions.context import FetchContext

SIZE = itemgetter(PartitionOutcome._fields.index("size_bytes"))
VERDICT = itemgetter(
    PartitionOutcome._fields.index("result"), PartitionOutcome._fields.index("reason")
)
"""Fields of an outcome, read in C."""
NOT_PARKED = -1.0
"""Waiting time, in seconds, of a Fetch that has never been in the purgatory."""


class ClientFetch(NamedTuple):
    """A client's Fetch as it arrived, in `received_at` seconds.

    `context` is the Fetch as its session completes it; None if it names each partition once and no
    session, or if its session is the broker's.
    `request_bytes` are charged to the byte budget of requests until the response is made.
    """

    link: FetchLink
    head: RequestHeader
    request: FetchRequest
    context: FetchContext | None
    request_bytes: int
    received_at: float

    @property
    def partitions(self) -> list[FetchPartition]:
        """All partitions that the Fetch asks for, including those that its session remembers."""
        return self.request.partitions if self.context is None else self.context.partitions

    @property
    def topics(self) -> Iterable[Topic]:
        """All topics that the Fetch asks for, each once."""
        if self.context is None:
            return dict.fromkeys(one.topic for one in self.request.partitions)
        return self.context.topics


class FetchRecord:
    """A Fetch that memory does not answer at once: its place in the response order, and how long it
    waited, in seconds.

    `parked_at`: when it entered the purgatory; -1.0 if it never did, and `waited_s` is NOT_PARKED.
    """

    __slots__ = (
        "context",
        "fetch",
        "head",
        "link",
        "parked_at",
        "reply",
        "request",
        "waited_s",
        "would_hit_bytes",
    )

    def __init__(self, fetch: ClientFetch) -> None:
        """The Fetch takes the next place in the response order."""
        self.fetch = fetch
        self.link = fetch.link
        self.head = fetch.head
        self.request = fetch.request
        self.context = fetch.context
        self.parked_at = -1.0
        self.waited_s = NOT_PARKED
        self.would_hit_bytes: list[int] | None = None
        self.reply = fetch.link.replies.reserve()

    @property
    def partitions(self) -> list[FetchPartition]:
        """All partitions that the Fetch asks for, including those that its session remembers."""
        return self.fetch.partitions

    def refused(self, outcomes: Sequence[PartitionOutcome], frame: Frame) -> None:
        """Send Forebay's own response without records: an error, or a pause."""
        fetch, waited_s = self.fetch, self.waited_s
        left = partial(self.link.broker.accounts.enter, fetch, outcomes, True, waited_s=waited_s)
        self.link.answer_whole(api.FETCH, self.reply, frame, len(frame), fetch.request_bytes, left)

    def forwarded(
        self, statuses: Sequence[PartitionStatus], response: FetchResponse | None, answer: Frame
    ) -> None:
        """Send the broker's own frame. `response` is the decoded frame; None if it could not be
        decoded.
        """
        sent = self.passing(statuses, response)
        self.link.answer(
            self.head,
            self.reply,
            (answer,),
            self.fetch.request_bytes,
            sent,
            held_bytes=len(answer),
        )

    def passing(
        self, statuses: Sequence[PartitionStatus], response: FetchResponse | None
    ) -> Callable[[bool], None]:
        """Return the callback that counts the broker's own response.

        Call it with True when the last byte has left, with False if it never will. `response` None
        counts zero bytes.
        """
        fetched = response.partitions if response is not None else ()
        by_key = {(f.topic, f.partition): f.end - f.start for f in fetched}
        sizes = [by_key.get((status.asked.topic, status.asked.partition), 0) for status in statuses]
        if self.would_hit_bytes is None:
            outcomes = [
                PartitionOutcome(status, size_bytes, *verdict)
                for status, size_bytes, verdict in zip(
                    statuses, sizes, plan_verdicts(statuses), strict=True
                )
            ]
        else:
            outcomes = list(map(plan_observed, statuses, self.would_hit_bytes, sizes))

        return partial(
            self.link.broker.accounts.enter, self.fetch, outcomes, False, waited_s=self.waited_s
        )

    def abandoned(self) -> None:
        """Count partitions that got no response, because the client or the broker disconnected."""
        self.link.broker.counters.undelivered_partitions += len(self.partitions)


Departed: TypeAlias = "tuple[ClientFetch, Sequence[PartitionOutcome], bool, float, float]"
"""A response that has left: Fetch, outcomes, whether Forebay built it (False: it is the broker's own
frame), when it left, in seconds, and the seconds in the purgatory, or NOT_PARKED.
"""


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
    ) -> None:
        """Count the response to `fetch`: it has left, or never will (`delivered` is False)."""
        now = self._broker.now()
        if not delivered:
            self._broker.counters.undelivered_partitions += len(outcomes)
            self._count(((fetch, (), is_ours, now, waited_s),))
        elif self._departed is not None:
            self._departed.append((fetch, outcomes, is_ours, now, waited_s))
        else:
            self._count(((fetch, outcomes, is_ours, now, waited_s),))

    def enter_unread(
        self, link: FetchLink, head: RequestHeader, received_at: float, delivered: bool
    ) -> None:
        """Count the response to a Fetch that Forebay did not decode, as one partition."""
        counters = self._broker.counters
        if not delivered:
            counters.undelivered_partitions += 1
            return
        counters.fetch_partitions[UNREAD] += 1
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
        counters = broker.counters
        for fetch, outcomes, is_ours, left_at, waited_s in departed:
            for verdict, alike in groupby(outcomes, VERDICT):
                sizes = list(map(SIZE, alike))
                counters.fetch_partitions[verdict] += len(sizes)
                counters.fetch_bytes[verdict] += sum(sizes)
            if broker.cache.observes:
                counters.would_hit_bytes += sum(one.would_hit_bytes or 0 for one in outcomes)
            took_s = left_at - fetch.received_at
            if not is_ours:
                counters.fetch_upstream_s.observe(took_s)
            elif waited_s < 0:
                counters.fetch_hit_s.observe(took_s)
            else:
                counters.fetch_wait_s.observe(waited_s)
                counters.fetch_hit_s.observe(took_s - waited_s)
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


def plan_verdicts(statuses: Sequence[PartitionStatus]) -> list[tuple[str, str]]:
    """Return result and reason of each partition of a forwarded request, in order.

    A partition that memory could have served was forwarded with the others: its reason is `mixed`.
    """
    hard = any(status.state in NEEDS_BROKER for status in statuses)
    verdicts = []
    for status in statuses:
        if status.state in NEEDS_BROKER:
            verdicts.append((status.state.value, status.reason))
        elif not hard and status.state in (ReadState.IN_TRANSIT, ReadState.UNCONFIRMED):
            verdicts.append(("miss", status.reason))
        elif not hard and all(
            other.state in (ReadState.AT_END, ReadState.READABLE) for other in statuses
        ):
            verdicts.append(("miss", "unproven"))
        else:
            verdicts.append(("pass", "mixed"))
    return verdicts
