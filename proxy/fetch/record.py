"""A client's Fetch that memory does not answer at once: its place in the response order, its outcomes.

Owns the outcome of each partition of a response that the broker gives. Must not know how the
response was found. Invariants:
* A `FetchRecord` is made only for a Fetch that waits, is forwarded or is refused.
* Each partition of each Fetch gets exactly one result and reason.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from protocol import api
from protocol.batch import peek_timestamp
from proxy.fetch.hit_estimate import plan_observed
from proxy.fetch.services import NOT_PARKED
from proxy.partitions.readable import NEEDS_BROKER, PartitionOutcome, PartitionStatus, ReadState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from protocol.fetch import FetchPartition, FetchResponse
    from protocol.primitives import Frame
    from proxy.fetch.services import ClientFetch


NOTHING = (0, None)
"""Size and time stamp of a partition without records."""


class FetchRecord:
    """A Fetch that memory does not answer at once: its place in the response order, and how long it
    waited, in seconds.

    `waited_s` is NOT_PARKED if it was never in the purgatory.
    """

    __slots__ = (
        "context",
        "fetch",
        "head",
        "link",
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
        self.waited_s = NOT_PARKED
        self.would_hit_bytes: list[int] | None = None
        self.reply = fetch.link.replies.reserve()

    @property
    def partitions(self) -> list[FetchPartition]:
        """All partitions that the Fetch asks for, including those that its session remembers."""
        return self.fetch.partitions

    def estimate(self, would_hit_bytes: list[int]) -> None:
        """Note how many record bytes of each partition memory would have served."""
        self.would_hit_bytes = would_hit_bytes

    def refused(self, outcomes: Sequence[PartitionOutcome], frame: Frame) -> None:
        """Send Forebay's own response without records: an error, or a pause."""
        fetch, waited_s = self.fetch, self.waited_s
        left = partial(self.link.broker.accounts.enter, fetch, outcomes, True, waited_s=waited_s)
        self.link.answer_whole(api.FETCH, self.reply, frame, len(frame), fetch.request_bytes, left)

    def forwarded(
        self,
        statuses: Sequence[PartitionStatus],
        response: FetchResponse | None,
        came: Frame,
        answer: Frame,
    ) -> None:
        """Send `answer`, what the session makes of the broker's frame `came`. `response` is that
        frame decoded; None if it could not be decoded.
        """
        sent = self.passing(statuses, response, came)
        self.link.answer(
            self.head,
            self.reply,
            (answer,),
            self.fetch.request_bytes,
            sent,
            held_bytes=len(answer),
        )

    def passing(
        self, statuses: Sequence[PartitionStatus], response: FetchResponse | None, came: Frame
    ) -> Callable[[bool], None]:
        """Return the callback that counts the broker's own response, which begins with `came`.

        Call it with True when the last byte has left, with False if it never will. `response` None
        counts zero bytes.
        """
        fetched = response.partitions if response is not None else ()
        by_key = {
            (f.topic, f.partition): (f.end - f.start, peek_timestamp(came, f.start))
            for f in fetched
            if f.end > f.start
        }
        found = [
            by_key.get((status.asked.topic, status.asked.partition), NOTHING) for status in statuses
        ]
        if self.would_hit_bytes is None:
            outcomes = [
                PartitionOutcome(status, size_bytes, *verdict, timestamp_ms=timestamp_ms)
                for status, (size_bytes, timestamp_ms), verdict in zip(
                    statuses, found, plan_verdicts(statuses), strict=True
                )
            ]
        else:
            outcomes = [
                plan_observed(status, would_hit_bytes, *one)
                for status, would_hit_bytes, one in zip(
                    statuses, self.would_hit_bytes, found, strict=True
                )
            ]

        return partial(
            self.link.broker.accounts.enter, self.fetch, outcomes, False, waited_s=self.waited_s
        )

    def abandoned(self) -> None:
        """Count partitions that got no response, because the client or the broker disconnected."""
        self.link.broker.counters.fetch.lose(len(self.partitions))


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
