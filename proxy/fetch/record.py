"""One client's Fetch on its way through: its place among the replies, its times, and its line in the
accounts.

Owns the counting: every partition of every Fetch gets exactly one result and reason, and its bytes are
counted when the reply's last byte has left, not before. It must not know how the answer was found. Invariant:
what one answer of the broker's wakes leaves before any of it is counted (`Accounts`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from protocol import api
from proxy.fetch.hit_estimate import plan_observed
from proxy.partitions.readable import NEEDS_BROKER, UNREAD, PartitionOutcome, PartitionStatus, ReadState

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
"""Result and reason of what memory has given."""


class FetchRecord:
    """A Fetch from its arrival to its last byte."""

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
        """`context` is its session; None where that is the broker's, or nothing more is asked of it. `received_at`
        where it leaves at once: then it has no place among the replies.
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
        """All that it asks for, what its session remembers included."""
        return self.request.partitions if self.context is None else self.context.partitions

    def served(
        self,
        told: Sequence[PartitionOutcome],
        buffers: Sequence[Sendable],
        hits: Sequence[Hit],
        held_bytes: int,
    ) -> None:
        """The answer is Forebay's. `told` are the partitions that it names (an incremental one leaves out
        what has not changed); `hits` pin what `buffers` show of the arena, `held_bytes` of them are on the
        heap. A single buffer without hits is on the heap, and charged if it does not leave at once.
        """
        link = self.link
        broker = link.broker

        def sent(delivered: bool) -> None:
            for hit in hits:
                hit.release()
            broker.accounts.enter(self, told, delivered, is_ours=True)

        if len(buffers) == 1 and not hits:
            (frame,) = buffers
            link.answer_whole(api.FETCH, self.reply, frame, len(frame), self.request_bytes, sent)
        else:
            link.answer(self.head, self.reply, buffers, self.request_bytes, sent, held_bytes=held_bytes)

    def forwarded(
        self, statuses: Sequence[PartitionStatus], response: FetchResponse | None, answer: Frame
    ) -> None:
        """The answer is the broker's own frame; `response` is its scan, None where it could not be read."""
        sent = self.passing(statuses, response)
        self.link.answer(self.head, self.reply, (answer,), self.request_bytes, sent, held_bytes=len(answer))

    def passing(
        self, statuses: Sequence[PartitionStatus], response: FetchResponse | None
    ) -> Callable[[bool], None]:
        """To be run once the broker's own answer has left, or never will (False)."""
        fetched = response.partitions if response is not None else ()
        by_key = {(f.topic, f.partition): f.end - f.start for f in fetched}
        sizes = [by_key.get((status.asked.topic, status.asked.partition), 0) for status in statuses]
        if self.would_hit_bytes is None:
            told = [
                PartitionOutcome(status, size_bytes, *verdict)
                for status, size_bytes, verdict in zip(statuses, sizes, plan_verdicts(statuses), strict=True)
            ]
        else:
            told = list(map(plan_observed, statuses, self.would_hit_bytes, sizes))

        def sent(delivered: bool) -> None:
            self.link.broker.accounts.enter(self, told, delivered, is_ours=False)

        return sent

    def abandoned(self) -> None:
        """The client or the broker went away before there was an answer."""
        self.link.broker.counters.undelivered_partitions += len(self.partitions)

    def count(self, told: Sequence[PartitionOutcome], is_ours: bool, left_at: float) -> None:
        """It left at `left_at`. `is_ours`: the answer was Forebay's, not the broker's own frame."""
        broker = self.link.broker
        counters = broker.counters
        for one in told:
            verdict = one.result, one.reason
            counters.fetch_partitions[verdict] += 1
            counters.fetch_bytes[verdict] += one.size_bytes
            if one.would_hit_bytes:
                counters.would_hit_bytes += one.would_hit_bytes
        self.count_times(is_ours, left_at)
        if broker.scheduler.quotas.active:
            _charge(broker, self.link.client_id, told)

    def count_times(self, is_ours: bool, ended_at: float) -> None:
        """How long it took, delivered or not."""
        counters = self.link.broker.counters
        if not is_ours:
            counters.fetch_upstream_s.observe(ended_at - self.received_at)
            return
        if self.parked_at >= 0:
            counters.fetch_wait_s.observe(self.waited_s)
        counters.fetch_hit_s.observe(ended_at - self.received_at - self.waited_s)


Departed: TypeAlias = "tuple[FetchRecord, Sequence[PartitionOutcome], bool, float]"
"""An answer whose last byte has left: whether it was Forebay's, not the broker's own frame, and when it left."""


class Accounts:
    """Counts answers that have left: at once, or, while they are held, once all have left that leave together. What
    those may have in common is in `alike` meanwhile, by what was asked: nothing that is known changes in between.
    """

    __slots__ = ("_broker", "_waiting", "alike", "lines")

    def __init__(self, broker: Broker, lines: AccessLines | None) -> None:
        """`lines` None: there is no access log."""
        self._broker = broker
        self.lines = lines
        self._waiting: list[Departed] = []
        self.alike: dict[Hashable, Found] | None = None

    def enter(
        self, record: FetchRecord, told: Sequence[PartitionOutcome], delivered: bool, is_ours: bool
    ) -> None:
        """The answer to `record` has left, or never will."""
        now = self._broker.now()
        if not delivered:
            self._broker.counters.undelivered_partitions += len(told)
            record.count_times(is_ours, now)
            return
        if self.alike is not None:
            self._waiting.append((record, told, is_ours, now))
            return
        record.count(told, is_ours, now)
        if self.lines is not None:
            self.lines.put_departed(((record, told, is_ours, now),))

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
        """`enter`, of an answer of `frame_bytes` that nobody made a record of: one partition from memory, which has
        left whole without waiting for anything, and no quota counts it.
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
                link, version, isolation_level, partition, fetch_offset, HIT, size_bytes, admitted_at, took_s
            )

    def enter_unread(
        self, link: ClientConnection, head: RequestHeader, received_at: float, delivered: bool
    ) -> None:
        """The answer to a Fetch that Forebay did not read has left, or never will: it counts as one partition."""
        counters = self._broker.counters
        if not delivered:
            counters.undelivered_partitions += 1
            return
        counters.fetch_partitions[UNREAD] += 1
        if self.lines is not None:
            self.lines.put_unread(link, head.api_version, self._broker.now() - received_at)

    def hold(self) -> None:
        """Many may leave now. `settle` must follow in the same callback of the loop."""
        self.alike = {}

    def settle(self) -> None:
        """All have left: count them."""
        self.alike = None
        if not self._waiting:
            return
        departed, self._waiting = self._waiting, []
        for record, told, is_ours, left_at in departed:
            record.count(told, is_ours, left_at)
        if self.lines is not None:
            self.lines.put_departed(departed)


def _charge(broker: Broker, client_id: str | None, told: Sequence[PartitionOutcome]) -> None:
    """Count what a Fetch has delivered toward the quotas of its client and topics."""
    quotas, now = broker.scheduler.quotas, broker.now()
    for one in told:
        topic = broker.topics.find(one.status.asked.topic)
        quotas.charge(client_id or "", topic.name if topic is not None else "", one.size_bytes, now)


def plan_verdicts(statuses: Sequence[PartitionStatus]) -> list[tuple[str, str]]:
    """Result and reason of each partition of a forwarded request. What memory could have served went along:
    `mixed`.
    """
    hard = any(status.state in NEEDS_BROKER for status in statuses)
    verdicts = []
    for status in statuses:
        if status.state in NEEDS_BROKER:
            verdicts.append((status.state.value, status.reason))
        elif not hard and status.state in (ReadState.IN_TRANSIT, ReadState.UNCONFIRMED):
            verdicts.append(("miss", status.reason))
        elif not hard and all(other.state in (ReadState.AT_END, ReadState.READABLE) for other in statuses):
            verdicts.append(("miss", "unproven"))
        else:
            verdicts.append(("pass", "mixed"))
    return verdicts
