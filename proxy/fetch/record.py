"""Record of one client's Fetch: its place in the response order, its times, and its accounting.

Owns the counting. Must not know how the response was found. Invariants:
* Each partition of each Fetch gets exactly one result and reason.
* Bytes are counted when the response's last byte has left, not before.
* Responses released by one broker response are sent first and counted afterwards (`Accounts`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

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
    from collections.abc import Callable, Hashable, Sequence

    from blockcache.arena import Hit
    from protocol.fetch import FetchPartition, FetchRequest, FetchResponse
    from protocol.header import RequestHeader
    from protocol.wire import Frame
    from proxy.broker import Broker
    from proxy.fetch.access_lines import AccessLines
    from proxy.fetch.response import Found
    from proxy.fetch.sessions.context import FetchContext
    from proxy.net.client_connection import ClientConnection
    from proxy.net.send_buffer import Sendable
    from proxy.partitions.table import Partition

HIT = ("hit", "")
"""Result and reason of bytes that memory served."""


class FetchRecord:
    """A client's Fetch, from its arrival to the last byte of its response. All times are in
    seconds.
    """

    __slots__ = (
        "context",
        "head",
        "link",
        "parked_at",
        "received_at",
        "reply",
        "request",
        "request_bytes",
        "waited_s",
        "would_hit_bytes",
    )

    def __init__(
        self,
        link: ClientConnection,
        head: RequestHeader,
        request: FetchRequest,
        request_bytes: int,
        context: FetchContext | None = None,
        received_at: float | None = None,
    ) -> None:
        """`context` is the Fetch as its session completes it; None if the session is the broker's,
        or is no longer needed.

        `received_at` None: the Fetch arrives now and takes a place in the response order. Otherwise
        it arrived then, and has no place, because its response leaves at once.
        """
        self.context = context
        self.link = link
        self.head = head
        self.request = request
        self.request_bytes = request_bytes
        self.received_at = link.broker.now() if received_at is None else received_at
        self.parked_at = -1.0
        self.waited_s = 0.0
        self.would_hit_bytes: list[int] | None = None
        if received_at is None:
            self.reply = link.replies.reserve()

    @property
    def partitions(self) -> list[FetchPartition]:
        """All partitions that the Fetch asks for, including those that its session remembers."""
        return self.request.partitions if self.context is None else self.context.partitions

    def served(
        self,
        outcomes: Sequence[PartitionOutcome],
        buffers: Sequence[Sendable],
        hits: Sequence[Hit],
        held_bytes: int,
    ) -> None:
        """Send Forebay's own response.

        `outcomes` are the partitions that the response names; an incremental response omits
        unchanged ones. `hits` pin the arena's bytes in `buffers`; `held_bytes` of the buffers are
        on the heap. A single buffer without hits is on the heap, and is charged if it does not
        leave at once.
        """
        link = self.link
        broker = link.broker

        def sent(delivered: bool) -> None:
            for hit in hits:
                hit.release()
            broker.accounts.enter(self, outcomes, delivered, is_ours=True)

        if len(buffers) == 1 and not hits:
            (frame,) = buffers
            link.answer_whole(api.FETCH, self.reply, frame, len(frame), self.request_bytes, sent)
        else:
            link.answer(
                self.head, self.reply, buffers, self.request_bytes, sent, held_bytes=held_bytes
            )

    def forwarded(
        self, statuses: Sequence[PartitionStatus], response: FetchResponse | None, answer: Frame
    ) -> None:
        """Send the broker's own frame. `response` is the decoded frame; None if it could not be
        decoded.
        """
        sent = self.passing(statuses, response)
        self.link.answer(
            self.head, self.reply, (answer,), self.request_bytes, sent, held_bytes=len(answer)
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

        def sent(delivered: bool) -> None:
            self.link.broker.accounts.enter(self, outcomes, delivered, is_ours=False)

        return sent

    def abandoned(self) -> None:
        """Count partitions that got no response, because the client or the broker disconnected."""
        self.link.broker.counters.undelivered_partitions += len(self.partitions)

    def count(self, outcomes: Sequence[PartitionOutcome], is_ours: bool, left_at: float) -> None:
        """Count the response, which left at `left_at`. `is_ours`: Forebay built it; False: it is
        the broker's own frame.
        """
        broker = self.link.broker
        counters = broker.counters
        for one in outcomes:
            verdict = one.result, one.reason
            counters.fetch_partitions[verdict] += 1
            counters.fetch_bytes[verdict] += one.size_bytes
            if one.would_hit_bytes:
                counters.would_hit_bytes += one.would_hit_bytes
        self.count_times(is_ours, left_at)
        if broker.scheduler.quotas.active:
            _charge(broker, self.link.client_id, outcomes)

    def count_times(self, is_ours: bool, ended_at: float) -> None:
        """Count how long the Fetch took, whether the response was delivered or not."""
        counters = self.link.broker.counters
        if not is_ours:
            counters.fetch_upstream_s.observe(ended_at - self.received_at)
            return
        if self.parked_at >= 0:
            counters.fetch_wait_s.observe(self.waited_s)
        counters.fetch_hit_s.observe(ended_at - self.received_at - self.waited_s)


Departed: TypeAlias = "tuple[FetchRecord, Sequence[PartitionOutcome], bool, float]"
"""A response whose last byte has left: Fetch, outcomes, whether Forebay built it, and when it left,
in seconds.
"""


class Accounts:
    """Counts responses that have left: each at once, or a batch of them after all have left.

    During a batch, `shared_answers` has what responses to equal requests share, by request. The
    batch changes nothing that is known, so an entry stays valid until `settle`. None outside a
    batch.
    """

    __slots__ = ("_broker", "_waiting", "lines", "shared_answers")

    def __init__(self, broker: Broker, lines: AccessLines | None) -> None:
        """`lines` None: there is no access log."""
        self._broker = broker
        self.lines = lines
        self._waiting: list[Departed] = []
        self.shared_answers: dict[Hashable, Found] | None = None

    def enter(
        self,
        record: FetchRecord,
        outcomes: Sequence[PartitionOutcome],
        delivered: bool,
        is_ours: bool,
    ) -> None:
        """Count the response to `record`: it has left, or never will (`delivered` is False)."""
        now = self._broker.now()
        if not delivered:
            self._broker.counters.undelivered_partitions += len(outcomes)
            record.count_times(is_ours, now)
            return
        if self.shared_answers is not None:
            self._waiting.append((record, outcomes, is_ours, now))
            return
        record.count(outcomes, is_ours, now)
        if self.lines is not None:
            self.lines.put_departed(((record, outcomes, is_ours, now),))

    def enter_hit(
        self,
        link: ClientConnection,
        version: int,
        isolation_level: int,
        partition: Partition,
        fetch_offset: int,
        size_bytes: int,
        frame_bytes: int,
        admitted_at: int,
        received_at: float,
    ) -> None:
        """Count a response that has no record: one partition from memory.

        Such a response has left whole without waiting, and no quota applies. `frame_bytes` is its
        whole size; `size_bytes` counts records only. `admitted_at` is the clock of admitted bytes;
        `received_at` is in seconds.
        """
        broker = self._broker
        counters, now = broker.counters, broker.now()
        traffic = counters.responses_out[api.FETCH]
        traffic.frames += 1
        traffic.size_bytes += frame_bytes
        counters.fetch_partitions[HIT] += 1
        counters.fetch_bytes[HIT] += size_bytes
        counters.fetch_hit_s.observe(now - received_at)
        if self.lines is not None:
            took_s = now - received_at
            self.lines.put_hit(
                link,
                version,
                isolation_level,
                partition,
                fetch_offset,
                HIT,
                size_bytes,
                admitted_at,
                took_s,
            )

    def enter_unread(
        self, link: ClientConnection, head: RequestHeader, received_at: float, delivered: bool
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
        self.shared_answers = {}

    def settle(self) -> None:
        """End the batch: count all responses that have left."""
        self.shared_answers = None
        if not self._waiting:
            return
        departed, self._waiting = self._waiting, []
        for record, outcomes, is_ours, left_at in departed:
            record.count(outcomes, is_ours, left_at)
        if self.lines is not None:
            self.lines.put_departed(departed)


def _charge(broker: Broker, client_id: str | None, outcomes: Sequence[PartitionOutcome]) -> None:
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
