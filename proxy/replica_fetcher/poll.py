"""Standing Fetch over many partitions: its questions, its pauses, and its fetch session if any.

Owns the request in flight and, for idle polls, the session toward the broker (KIP-227). Must not
know which requests wait for the news. Invariants:
* at most one request is in flight; `open_polls` counts the open long polls that name a partition.
* each partition is asked at the end of its stored bytes, not beyond the HW, with its epoch and no
  rack id. The byte limit is the least that Kafka allows (one batch comes regardless), or a block if
  visible bytes are missing.
* a partition that may have been truncated is asked at its stored end, with that epoch.
* a partition omitted from a session's response is confirmed as last shown
  (FetchSession.CachedPartition.maybeUpdateResponseData), unless the response was throttled empty,
  or refused as a whole.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from blockcache.results import Edges
from protocol import fetch, fetch_ordinary
from protocol.errors import BadFrame, ErrorCode
from protocol.fetch import FetchPartition
from protocol.fetch_build import build_request
from proxy.partitions.update import observe

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from protocol.fetch import FetchResponse
    from protocol.wire import Frame
    from proxy.net.broker_connection import BrokerConnection
    from proxy.partitions.table import Partition
    from proxy.replica_fetcher.services import FetcherServices

VERSION = fetch_ordinary.SINGLE_VERSION
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
NEW_SESSION = (0, 0)
NO_SESSION = (0, -1)

Key = tuple[bytes, int]


def may_be_truncated(partition: Partition) -> bool:
    """True if the log may have been cut below the stored end: in an epoch that is not proven or not
    checked yet. A follower truncates to its leader's log at any time, within an epoch.
    """
    leader_state = partition.leader_state
    return (
        leader_state.frozen
        or leader_state.is_replica
        or leader_state.asked_epoch != leader_state.epoch
    )


def plan_asked(partition: Partition, edges: Edges, block_bytes: int) -> FetchPartition | None:
    """Return the question about one partition; None if there is no offset to ask at or no epoch to
    carry.

    A possible truncation is checked at the end of the newest stored batch (`edges`), with its epoch
    (KIP-595). `block_bytes` is the byte limit if visible bytes are missing.
    """
    leader_state = partition.leader_state
    epoch = leader_state.asked_epoch
    offset = partition.stored_end()
    checks = edges.last_epoch >= 0 and (
        leader_state.frozen or epoch != leader_state.epoch or edges.tail_end == offset
    )
    if checks:
        offset = edges.tail_end
    if offset < 0 or epoch < 0 or partition.old_format:
        return None
    behind = 0 <= partition.tail < leader_state.high_watermark
    return FetchPartition(
        partition.topic.id,
        partition.index,
        epoch,
        offset,
        edges.last_epoch if checks else -1,
        -1,
        block_bytes if behind else FEW_BYTES,
    )


def group_by_topic(named: Iterable[FetchPartition]) -> list[FetchPartition]:
    """Return the questions grouped by topic, topics in the order of their first question. The
    broker gives the one batch that it always returns to the first partition that has any.
    """
    topics: dict[str | bytes, list[FetchPartition]] = {}
    for one in named:
        topics.setdefault(one.topic, []).append(one)
    return [one for asked in topics.values() for one in asked]


class Poll:
    """Consecutive Fetches on one connection, one at a time. `source` names the poll in counters.
    `in_session` keeps a fetch session (id 0: the broker grants none). `max_wait_s` 0: a proof.
    """

    __slots__ = (
        "_asked",
        "_broker",
        "_epoch",
        "_known",
        "_rest_until",
        "_session_id",
        "in_flight",
        "in_session",
        "link",
        "max_wait_s",
        "session_refused",
        "source",
    )

    def __init__(
        self, broker: FetcherServices, source: str, max_wait_s: float, in_session: bool
    ) -> None:
        self._broker = broker
        self.source = source
        self.max_wait_s = max_wait_s
        self.in_session = in_session
        self.in_flight = False
        self.link: BrokerConnection | None = None
        self._asked: dict[Key, FetchPartition] = {}
        self._known: dict[Key, FetchPartition] = {}
        self._session_id = 0
        self._epoch = 0
        self._rest_until = float("-inf")
        self.session_refused = False

    def forget_session(self) -> None:
        """Forget the session: it or its connection is gone, and the next request names everything."""
        self._session_id = self._epoch = 0
        self._known = {}

    def send(self, link: BrokerConnection, partitions: Iterable[Partition]) -> bool:
        """Ask for `partitions`. Return False if none of them can be asked, a request is in flight,
        or the poll rests.
        """
        if self.in_flight or self._broker.now() < self._rest_until:
            return False
        if link is not self.link:
            self.link = link
            self.forget_session()
        asked, covering = self._plan(partitions)
        if not asked:
            return False
        frame = self._build(asked)
        self.in_flight = True
        self._asked = asked
        if self.max_wait_s > 0:
            for partition in covering:
                partition.open_polls += 1
        else:
            covering = []
        self._broker.counters.watch_requests[self.source] += 1
        sent_at = self._broker.now()
        link.send(frame, 0, lambda answer: self._answered(answer, covering, sent_at))
        return True

    def _plan(
        self, partitions: Iterable[Partition]
    ) -> tuple[dict[Key, FetchPartition], list[Partition]]:
        """Return the questions by key, and the partitions that they name."""
        cache = self._broker.cache
        block_bytes = cache.block_max_bytes
        asked: dict[Key, FetchPartition] = {}
        named = []
        for partition in partitions:
            if not partition.is_followed:
                continue  # forgotten since it was queued
            edges = (
                cache.edges(partition.slot, 0) if may_be_truncated(partition) else NOTHING_STORED
            )
            plan = plan_asked(partition, edges, block_bytes)
            if plan is not None:
                asked[partition.topic.id, partition.index] = plan
                named.append(partition)
        return asked, named

    def _build(self, asked: dict[Key, FetchPartition]) -> bytes:
        session = NO_SESSION
        named: Sequence[FetchPartition] = list(asked.values())
        forgotten: list[Key] = []
        if self.in_session:
            session = (self._session_id, self._epoch) if self._session_id else NEW_SESSION
            named = [a for key, a in asked.items() if self._known.get(key) != a]
            forgotten = [key for key in self._known if key not in asked]
            self._known = asked
        most = max(sum(a.max_bytes for a in asked.values() if a.max_bytes > FEW_BYTES), FEW_BYTES)
        return build_request(
            VERSION,
            0,
            CLIENT_ID,
            max_wait_ms=int(self.max_wait_s * 1000),
            min_bytes=1,
            max_bytes=min(most, 1 << 30),
            isolation_level=0,
            session_id=session[0],
            session_epoch=session[1],
            partitions=group_by_topic(named),
            forgotten=sorted(forgotten),
        )

    def _answered(self, answer: Frame | None, covered: Sequence[Partition], sent_at: float) -> None:
        self.in_flight = False
        for partition in covered:
            partition.open_polls -= 1
        response = self._scan(answer)
        if response is None:
            self.forget_session()
            self._rest_until = self._broker.now() + REST_S
            self._broker.watch.polled(self, False)
            return
        assert answer is not None
        broker = self._broker
        broker.accounts.hold()  # answer the waiters first, then send the next poll, then count
        broker.wakeups.gather()
        for step in (
            partial(self._learn, response, answer, sent_at),
            partial(broker.wakeups.look, broker.attempt),
            partial(broker.watch.polled, self, True),
            broker.accounts.settle,
        ):
            broker.attempt(step, "a poll's answer")

    def _scan(self, answer: Frame | None) -> FetchResponse | None:
        if answer is None:
            return None
        try:
            response = fetch_ordinary.scan_single(answer) or fetch.scan_response(answer, VERSION)
        except BadFrame:
            return None
        return response if response.error_code == ErrorCode.NONE else None

    def _learn(self, response: FetchResponse, answer: Frame, sent_at: float) -> None:
        asked = self._asked
        incremental = self.in_session and self._session_id != 0
        if self.in_session:
            self._session_id = response.session_id
            self._epoch = 1 if self._epoch == (1 << 31) - 1 else self._epoch + 1
            self.session_refused = not response.session_id
            if self.session_refused:
                self.forget_session()
        if incremental and not (response.throttle_time_ms > 0 and not response.partitions):
            self._confirm_omitted(response, asked, sent_at)
        if response.partitions:
            observe(self._broker, asked.values(), response, answer, sent_at, self.source)

    def _confirm_omitted(
        self, response: FetchResponse, asked: dict[Key, FetchPartition], sent_at: float
    ) -> None:
        shown = {(p.topic, p.partition) for p in response.partitions}
        lease_until = sent_at + self._broker.config.cache.confirm_every_s
        for key, asking in asked.items():
            topic = self._broker.topics.find(key[0]) if key not in shown else None
            partition = self._broker.partitions.find(topic, key[1]) if topic is not None else None
            if partition is None or partition.leader_state.epoch != asking.current_leader_epoch:
                continue
            partition.leader_state.renew(lease_until)
            if _may_have_moved(partition):
                self._broker.watch.ask(partition, None)


def _may_have_moved(partition: Partition) -> bool:
    """True if the LSO may differ from the known one, although HW and log start offset are as shown.
    The LSO is below the HW, and not every batch up to the HW was seen.
    """
    high_watermark = partition.leader_state.high_watermark
    return (
        partition.transactions.end < high_watermark
        and partition.last_stable_offset() < high_watermark
    )
