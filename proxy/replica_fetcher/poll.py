"""Fetches of Forebay's own over many partitions: their questions, and those without a session.

Owns the questions about partitions, and the polls without a session: proofs, join polls, and polls on
the connections of clients. Must not know sessions (`session_poll.py`), nor who is polled when. Invariants:
* at most one request is in flight; `open_polls` counts the open long polls that name a partition.
* each partition is asked at the end of its stored bytes, not beyond the HW, with its epoch and no
  rack id. The byte limit is the least that Kafka allows (one batch comes regardless), or a block if
  visible bytes are missing.
* a partition that may have been truncated is asked at its stored end, with that epoch.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from blockcache.results import Edges
from protocol import fetch, fetch_rows
from protocol.errors import BadFrame, ErrorCode
from protocol.fetch import FetchPartition
from protocol.fetch_build import build_request
from proxy.partitions.update import observe
from proxy.replica_fetcher.upstream_session import NO_SESSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from protocol.fetch import FetchResponse
    from protocol.primitives import Frame
    from proxy.net.broker_connection import BrokerConnection
    from proxy.net.client_connection import AnyLink
    from proxy.net.own_connections import OwnConnections
    from proxy.partitions.table import Partition
    from proxy.replica_fetcher.services import FetcherServices

VERSION = fetch_rows.ROWS_VERSION
"""The first version that names topics by id (KIP-516); it has epochs and divergence. Every broker
from 3.1 on supports it.
"""
CLIENT_ID = "forebay-watch"
FEW_BYTES = 1
REST_S = 0.1
"""Pause in seconds after a response without content: the broker refused the request as a whole, or
the connection was lost.
"""
NOTHING_STORED = Edges(-1, -1, -1, -1, -1, -1)

TopicIdPartition = tuple[bytes, int]


def may_be_truncated(partition: Partition) -> bool:
    """True if the log may have been cut below the stored end: in an epoch that is not proven or not
    checked yet. A follower truncates to its leader's log at any time, within an epoch.
    """
    row = partition.row
    epoch = row.epoch
    return (
        row.frozen
        or (epoch != row.led_epoch and partition.leader_state.is_replica)
        or row.suggested_epoch > epoch
    )


def plan_asked(partition: Partition, edges: Edges, block_bytes: int) -> FetchPartition | None:
    """Return the question about one partition; None if there is no offset to ask at or no epoch to
    carry.

    A possible truncation is checked at the end of the newest stored batch (`edges`), with its epoch
    (KIP-595). Of what an earlier process stored, a sample is asked for after that. `block_bytes` is
    the byte limit if visible bytes are missing.
    """
    row, epoch = partition.row, partition.leader_state.asked_epoch
    if partition.taken_over is not None and epoch == row.epoch:
        question = partition.taken_over.plan_question(partition.topic.id, partition.index, epoch)
        if question is not None:
            return question
    offset = partition.stored_end()
    checks = edges.last_epoch >= 0 and (
        row.frozen or epoch != row.epoch or edges.tail_end == offset
    )
    if checks:
        offset = edges.tail_end
    if offset < 0 or epoch < 0 or row.old_format:
        return None
    behind = 0 <= row.tail < row.high_watermark
    return FetchPartition(
        partition.topic.id,
        partition.index,
        epoch,
        offset,
        edges.last_epoch if checks else -1,
        -1,
        block_bytes if behind else FEW_BYTES,
    )


def plan_question(
    broker: FetcherServices, partition: Partition, may_be_cut: bool
) -> FetchPartition | None:
    """Return the question about the partition as it stands now; None if it cannot be asked about,
    or is not followed any more. `may_be_cut`: as `may_be_truncated` says.
    """
    if not partition.is_followed:
        return None
    cache = broker.cache
    edges = cache.edges(partition.slot, 0) if may_be_cut else NOTHING_STORED
    return plan_asked(partition, edges, cache.block_max_bytes)


def group_by_topic(named: Iterable[FetchPartition]) -> list[FetchPartition]:
    """Return the questions grouped by topic, topics in the order of their first question. The
    broker gives the one batch that it always returns to the first partition that has any.
    """
    topics: dict[str | bytes, list[FetchPartition]] = {}
    for one in named:
        topics.setdefault(one.topic, []).append(one)
    return [one for asked in topics.values() for one in asked]


def build_poll(
    named: Iterable[FetchPartition],
    missing_bytes: int,
    max_wait_s: float,
    session: tuple[int, int] = NO_SESSION,
    forgotten: Iterable[TopicIdPartition] = (),
) -> bytes:
    """Return the request frame. `missing_bytes`: the sum of the byte limits of all partitions of
    which visible bytes are missing; `session`: id and epoch.
    """
    return build_request(
        VERSION,
        0,
        CLIENT_ID,
        max_wait_ms=int(max_wait_s * 1000),
        min_bytes=1,
        max_bytes=min(max(missing_bytes, FEW_BYTES), 1 << 30),
        isolation_level=0,
        session_id=session[0],
        session_epoch=session[1],
        partitions=group_by_topic(named),
        forgotten=sorted(forgotten),
    )


def scan_poll(answer: Frame | None) -> FetchResponse | None:
    """Return what the broker answered; None if the response is lost or cannot be read."""
    if answer is None:
        return None
    try:
        return fetch_rows.scan_rows(answer) or fetch.scan_response(answer, VERSION)
    except BadFrame:
        return None


def process_answer(
    broker: FetcherServices, learn: Callable[[], object], polled: Callable[[], object]
) -> None:
    """Learn from a response and answer the waiters, then send the next poll, then count."""
    try:
        broker.catch_up()
    except Exception:
        broker.failed("what workers have told")
    broker.accounts.hold()
    broker.wakeups.gather()
    for step in (
        learn,
        partial(broker.wakeups.look, broker.attempt),
        polled,
        broker.accounts.settle,
    ):
        broker.attempt(step, "a poll's answer")


class Poll:
    """Consecutive Fetches without a session on one connection, one at a time. `source` names the
    poll in counters. `max_wait_s` 0: a proof.
    """

    __slots__ = ("_broker", "_rest_until", "in_flight", "max_wait_s", "source")

    def __init__(self, broker: FetcherServices, source: str, max_wait_s: float) -> None:
        self._broker = broker
        self.source = source
        self.max_wait_s = max_wait_s
        self.in_flight = False
        self._rest_until = float("-inf")

    def send(self, link: BrokerConnection, partitions: Iterable[Partition]) -> bool:
        """Ask for `partitions`. Return False if none of them can be asked, a request is in flight,
        or the poll rests.
        """
        if self.in_flight or self._broker.now() < self._rest_until:
            return False
        asked: dict[Partition, FetchPartition] = {}
        for partition in partitions:
            question = plan_question(self._broker, partition, may_be_truncated(partition))
            if question is not None:
                asked[partition] = question
        if not asked:
            return False
        missing_bytes = sum(a.max_bytes for a in asked.values() if a.max_bytes > FEW_BYTES)
        frame = build_poll(asked.values(), missing_bytes, self.max_wait_s)
        self.in_flight = True
        if self.max_wait_s > 0:
            for partition in asked:
                partition.cover()
        counts = self._broker.counters.watch
        counts.requests[self.source] += 1
        counts.asked_partitions += len(asked)
        sent_at = self._broker.now()
        link.send(frame, 0, lambda answer: self._answered(answer, asked, sent_at))
        return True

    def _answered(
        self, answer: Frame | None, asked: dict[Partition, FetchPartition], sent_at: float
    ) -> None:
        self.in_flight = False
        if self.max_wait_s > 0:
            for partition in asked:
                partition.uncover()
        broker = self._broker
        response = scan_poll(answer)
        if response is None or response.error_code != ErrorCode.NONE:
            self._rest_until = broker.now() + REST_S
            broker.replica_fetcher.polled(self)
            return
        assert answer is not None
        process_answer(
            broker,
            partial(observe, broker, asked, response, answer, sent_at, self.source),
            partial(broker.replica_fetcher.polled, self),
        )


class JoinPolls:
    """Polls over partitions that got a waiter while no open poll names them."""

    __slots__ = ("_broker", "_is_gathering", "_polls", "_waiting")

    def __init__(self, broker: FetcherServices, count: int, max_wait_s: float) -> None:
        self._broker = broker
        self._polls = [Poll(broker, "watch", max_wait_s) for _ in range(count)]
        self._waiting: dict[Partition, None] = {}
        self._is_gathering = False

    def add(self, partition: Partition) -> None:
        """Name `partition` in the next poll. Polls are sent after the present callback of the event
        loop, so that one names all partitions that get a waiter now.
        """
        self._waiting[partition] = None
        if not self._is_gathering:
            self._is_gathering = True
            asyncio.get_running_loop().call_soon(self._gather)

    def forget(self, partition: Partition) -> None:
        """Name `partition` no more; no effect if it does not wait."""
        self._waiting.pop(partition, None)

    def _gather(self) -> None:
        self._is_gathering = False
        self._broker.replica_fetcher.pump()

    def send(self, own: OwnConnections) -> dict[Partition, None]:
        """Send the polls that are due. Return the partitions for which none had room."""
        self._waiting = {p: None for p in self._waiting if p.parked and not p.open_polls}
        for number, poll in enumerate(self._polls):
            link = own.link(f"join-{number}") if self._waiting and not poll.in_flight else None
            if link is not None and poll.send(link, self._waiting):
                self._waiting = {p: None for p in self._waiting if not p.open_polls}
        return self._waiting


class ClientPolls:
    """Polls on the connections of waiting clients, where Forebay has none of its own, or no right to
    the topic.
    """

    __slots__ = ("_broker", "_max_wait_s", "_proofs", "watches")

    def __init__(self, broker: FetcherServices, max_wait_s: float) -> None:
        self._broker = broker
        self._max_wait_s = max_wait_s
        self.watches: dict[AnyLink, Poll] = {}
        self._proofs: dict[AnyLink, Poll] = {}

    def ask(self, link: AnyLink, partition: Partition) -> bool:
        """Ask for `partition` at once. Return True if a question was sent or is in flight."""
        poll = self._proofs.get(link)
        if poll is None:
            poll = self._proofs[link] = Poll(self._broker, "proof", 0.0)
        return poll.in_flight or poll.send(link.upstream, (partition,))

    def cover(self, link: AnyLink) -> bool:
        """Let the waiting client's connection carry a poll over the partitions it waits for:
        session-less, one at a time. Return False if none is in flight then.
        """
        poll = self.watches.get(link)
        if poll is None:
            poll = self.watches[link] = Poll(self._broker, "watch", self._max_wait_s)
        waiting = self._broker.purgatory.list_partitions(link)
        return poll.in_flight or poll.send(link.upstream, waiting)

    def polled(self, poll: object) -> None:
        """Send the next poll of a client that still waits, after the response to `poll`."""
        for link, carried in list(self.watches.items()):
            if carried is poll:
                for partition in self._broker.purgatory.list_partitions(link):
                    if not partition.open_polls:
                        self.cover(link)
                        break

    def drop_link(self, link: AnyLink) -> None:
        """Forget the polls on the connection of a client that is gone."""
        self.watches.pop(link, None)
        self._proofs.pop(link, None)
