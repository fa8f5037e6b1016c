"""The one broker that this process stands before, and everything known of it.

Owns the join of cache, partitions, topics, watch, counters and the access log, and the list of fetches that
wait. Handlers get it with their client link. It must not know sockets. Invariants: all listeners of a process
lead to the same broker, so that what one client's answer teaches holds for all; `now` is a clock that only goes
forward, suspended machines included, in seconds.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from random import Random
from time import time_ns
from typing import TYPE_CHECKING

from metrics.access_log import FetchLine, FetchValues, cut_text
from protocol.framing import SMALL_BYTES
from proxy.accounting.age_clock import AgeClock
from proxy.accounting.counters import Counters
from proxy.accounting.stored_runs import StoredRuns
from proxy.fetch.misses.coalescing import SharedReads
from proxy.fetch.record import Accounts
from proxy.fetch.sessions.cache import SessionCache
from proxy.fetch.sessions.idle_partitions import WakeupBatch
from proxy.net.byte_budget import ByteBudget
from proxy.net.tls_handshakes import Handshakes
from proxy.partitions.readable import UNREAD, Look
from proxy.partitions.table import Partitions
from proxy.partitions.topics import Topics
from proxy.produce.pipeline import PipelineCounts
from proxy.produce.single_batch import HeaderCache
from proxy.replica_fetcher.broker_settings import Node
from proxy.replica_fetcher.compaction_policy import CompactionPolicies
from proxy.replica_fetcher.fetcher import ReplicaFetcher
from proxy.replica_fetcher.topic_metadata import TopicLookup
from proxy.replica_fetcher.verifier import Verifier
from proxy.scheduling.disk_throttle import DiskThrottle
from proxy.scheduling.request_scheduler import RequestScheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from blockcache.cache import BlockCache
    from metrics.access_log import AccessLog
    from protocol.header import RequestHeader
    from proxy.config.model import Config
    from proxy.fetch.delayed_fetch import DelayedFetch
    from proxy.fetch.record import Departed
    from proxy.fetch.sessions.idle_partitions import Standing
    from proxy.net.client_connection import ClientConnection
    from proxy.net.listener import Listener
    from proxy.net.own_connections import OwnConnections
    from proxy.net.response_order import Place
    from proxy.partitions.readable import Told
    from proxy.partitions.table import Partition
    from proxy.partitions.topics import Topic

log = logging.getLogger("forebay.broker")

SESSION_LEAST_S = 120.0
"""How long a fetch session is safe from others (FetchSession.MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS)."""
FETCH_MAX_BYTES = 57_671_680
"""`fetch.max.bytes` of a broker that does not say its own (ServerConfigs.FETCH_MAX_BYTES_DEFAULT)."""
LEAST_DELAY_S = 0.0000005
"""What is less is no delay in a line, which tells thousandths of a millisecond."""
REST_S = 10.0
"""How long after its last Fetch a session's partitions are stood for (fetch/sessions/idle_partitions.py)."""


class Broker:
    """What handlers share."""

    own_connections: OwnConnections

    def __init__(
        self,
        config: Config,
        cache: BlockCache,
        access_log: AccessLog | None,
        version: str,
        now: Callable[[], float],
    ) -> None:
        self.config = config
        self.version = version
        self.now = now
        self.node_id = -1
        """Which node the broker is; -1 until it has told (replica_fetcher/broker_settings.py)."""
        self.fetch_max_bytes = FETCH_MAX_BYTES
        self._stores = config.cache.mode != "off"
        self.cache = cache
        self.access_log = access_log
        self.stored_runs: StoredRuns | None = None
        if access_log is not None:
            self.stored_runs = StoredRuns(access_log, cache, config.access_log.queue_lines)
        self.counters = Counters()
        self.pipeline_counts = PipelineCounts()
        self.accounts = Accounts(self)
        self.wakeups = WakeupBatch()
        self.requests = ByteBudget(config.limits.request_memory_bytes)
        self.responses = ByteBudget(config.limits.response_memory_bytes, SMALL_BYTES)
        self.handshakes = Handshakes(self.counters, config.limits.max_connections)
        self.topics = Topics()
        self.age_clock = AgeClock()
        self.partitions = Partitions(
            cache, 2 * config.limits.watched_partitions, config.cache.transactions_per_partition
        )
        self.watch = ReplicaFetcher(self)
        self.topic_lookup = TopicLookup(self)
        self.disk_throttle = DiskThrottle(self)
        self.scheduler = RequestScheduler(self)
        self.routes = HeaderCache(self)
        self.cleanup = CompactionPolicies(self)
        self.node = Node(self)
        self.verifier = Verifier(self, config.cache.verify_ratio, Random().random)
        limits = config.limits
        self.shared_reads = SharedReads(self, limits.read_joiners)
        self.sessions = SessionCache(
            limits.fetch_sessions,
            limits.fetch_session_partitions,
            SESSION_LEAST_S,
            Random(),
            limits.request_partitions,
        )
        self.parked: dict[ClientConnection, dict[DelayedFetch, None]] = defaultdict(dict)
        self.standings: dict[ClientConnection, dict[Standing, None]] = defaultdict(dict)

    @property
    def answer_bytes(self) -> int:
        """The most that one answer from memory may have of records now: at the bound of answers, little."""
        responses = self.responses
        return self.fetch_max_bytes if responses.in_flight_bytes < responses.limit_bytes else SMALL_BYTES

    def is_this(self, node_id: int) -> bool:
        """Whether that node is the broker behind this process; False while either is not known (-1)."""
        return node_id == self.node_id >= 0

    def stores_on(self, listener: Listener) -> bool:
        """Whether what passes on this listener is stored, and served or observed."""
        return self._stores and not listener.config.shares_identity

    # -- errors of ours ------------------------------------------------------------------------------------

    def attempt(
        self, action: Callable[[], object], doing: str, otherwise: Callable[[], object] | None = None
    ) -> None:
        """Run what must not keep an answer from its client: an error in it is logged and counted, and then `otherwise`
        is run.
        """
        try:
            action()
        except Exception:
            self.failed(doing)
            if otherwise is not None:
                otherwise()

    def failed(self, doing: str) -> None:
        """`doing`, one of a few texts, has raised what is being handled."""
        self.counters.internal_errors += 1
        log.exception(f"{doing} failed")

    def fall_back(
        self, link: ClientConnection, gone: int, doing: str, whole: Callable[[], object] | None
    ) -> None:
        """`doing`, for a request of a client, has raised what is being handled. If nothing has gone toward broker or
        client since `link.gone` was `gone`, the request goes `whole`, as it came: an error of ours costs a miss, not a
        connection. That ends where this fails, too, or `whole` is None.
        """
        self.failed(doing)
        if link.gone != gone or link.upstream.closed:
            return
        try:
            if whole is not None:
                whole()
                return
        except Exception:
            self.failed("relaying a request")
        link.close("internal_error", "closing a client that cannot be served")

    # -- fetches that wait ---------------------------------------------------------------------------------

    def park(self, link: ClientConnection, fetch: DelayedFetch) -> bool:
        """Let a fetch wait. False at the bound."""
        if self.counters.parked_fetches >= self.config.limits.parked_fetches:
            return False
        self.parked[link][fetch] = None
        self.counters.parked_fetches += 1
        return True

    def unpark(self, link: ClientConnection, fetch: DelayedFetch) -> None:
        """A fetch waits no longer."""
        waiting = self.parked.get(link)
        if waiting is None or waiting.pop(fetch, fetch) is fetch:
            return
        self.counters.parked_fetches -= 1
        if not waiting:
            del self.parked[link]

    def leave_parked(self, link: ClientConnection) -> None:
        """Everything that waits on `link` is answered with what there is."""
        for fetch in list(self.parked.get(link, ())):
            fetch.leave()

    def leave_oldest(self, link: ClientConnection, place: Place) -> None:
        """The fetch that waits in this place, if one does, is answered with what there is."""
        for fetch in self.parked.get(link, ()):
            if fetch.record.reply is place:
                fetch.leave()
                return

    def drop_parked(self, link: ClientConnection) -> None:
        """The client of `link` is gone."""
        for fetch in list(self.parked.get(link, ())):
            fetch.drop()
        for standing in list(self.standings.get(link, ())):
            standing.close()
        self.watch.drop_link(link)

    def rest_standings(self, now: float) -> None:
        """Timed: sessions that nobody polls are not stood for."""
        for standings in list(self.standings.values()):
            for standing in [one for one in standings if one.fetch is None and now - one.used_at > REST_S]:
                standing.close()

    def parked_partitions(self, link: ClientConnection) -> list[Partition]:
        """What the fetches of one client wait on."""
        waiting = self.parked.get(link, ())
        return list(dict.fromkeys(p for fetch in waiting for p in fetch.held))

    # -- what is void --------------------------------------------------------------------------------------

    def invalidate(self, partition: Partition, from_offset: int, reason: str) -> None:
        """Drop what is stored of `partition` at or above `from_offset`."""
        self.cache.truncate(partition.slot, from_offset)
        partition.transactions.truncate(from_offset)
        self.counters.invalidations[reason] += 1
        partition.tail = min(partition.tail, from_offset) if partition.has_stored(self.cache) else -1
        if partition.produced_from >= from_offset:
            partition.produced_from = -1

    def distrust(self, topic: Topic, reason: str) -> None:
        """The broker does not store of `topic` what is produced, or stores it otherwise than before: all that was
        stored from Produce goes, in every partition, and batches that were written before now teach nothing.
        """
        topic.fidelity.begin_generation()
        for partition in [p for p in self.partitions if p.topic is topic]:
            if partition.produced_from >= 0:
                self.invalidate(partition, partition.produced_from, reason)
            known_end = max(partition.leader_state.high_watermark, partition.acknowledged_end)
            partition.young_from = max(partition.young_from, known_end)

    def forget(self, partition: Partition, reason: str) -> None:
        """The partition is not there any more: nothing of it is known."""
        self.counters.invalidations[reason] += 1
        self.routes.clear()
        self.watch.forget(partition)
        self.partitions.forget(partition)

    def forget_topic(self, topic_id: bytes) -> None:
        """The broker does not know this topic id: it was deleted, and perhaps re-created under another. Who waited on
        it looks again, and must not find it.
        """
        topic = self.topics.find(topic_id)
        if topic is not None:
            self.routes.clear()
            self.topics.forget(topic)
        for partition in [p for p in self.partitions if p.topic.id == topic_id]:
            self.forget(partition, "topic-gone")

    def charge_fetch(self, client_id: str | None, told: Sequence[Told]) -> None:
        """What a fetch has delivered counts toward the quotas of its client and topics."""
        quotas = self.scheduler.quotas
        now = self.now()
        for one in told:
            topic = self.topics.find(one.status.asked.topic)
            quotas.charge(client_id or "", topic.name if topic is not None else "", one.size_bytes, now)

    # -- the access log ------------------------------------------------------------------------------------

    def log_fetches(self, departed: Sequence[Departed]) -> None:
        """Fetches have left, whole: one line a partition of each. What they have in common is looked up once."""
        assert self.access_log is not None
        ts = time_ns() // 1_000_000
        admitted_bytes = self.cache.peek_admitted_bytes()
        lines: list[FetchValues] = []
        for record, told, _, left_at in departed:
            link = record.link
            for one in told:
                asked = one.status.asked
                partition = one.status.partition
                topic = partition.topic if partition is not None and partition.is_followed else None
                if topic is None or not topic.name:
                    topic = self.topics.find(asked.topic)
                    partition = self.partitions.find(topic, asked.partition) if topic is not None else None
                age_bytes = None
                if one.admitted_at is not None:
                    age_bytes = admitted_bytes - one.admitted_at
                elif partition is not None:
                    age_bytes = self._age(partition, one)
                lines += (
                    (
                        ts,
                        link.listener.name,
                        link.number,
                        cut_text(link.client_id),
                        record.head.api_version,
                        (topic.name or None) if topic is not None else _name(asked.topic),
                        topic.id if topic is not None else _id(asked.topic),
                        asked.partition,
                        asked.fetch_offset,
                        record.request.isolation_level,
                        one.result,
                        one.reason,
                        one.size_bytes,
                        partition.leader_state.high_watermark if partition is not None else -1,
                        age_bytes,
                        record.waited_s * 1000,
                        (left_at - record.received_at) * 1000,
                        admitted_bytes,
                        one.delay_s * 1000 if one.delay_s >= LEAST_DELAY_S else None,
                        one.would_hit_bytes,
                    ),
                )
        self.access_log.put_all(lines)

    def log_hit(
        self,
        link: ClientConnection,
        version: int,
        isolation_level: int,
        partition: Partition,
        fetch_offset: int,
        size_bytes: int,
        admitted_at: int,
        took_s: float,
    ) -> None:
        """A Fetch of one partition has left, whole: memory had it at once."""
        assert self.access_log is not None
        admitted_bytes, topic = self.cache.peek_admitted_bytes(), partition.topic
        self.access_log.put(
            (
                time_ns() // 1_000_000,
                link.listener.name,
                link.number,
                cut_text(link.client_id),
                version,
                topic.name or None,
                topic.id,
                partition.index,
                fetch_offset,
                isolation_level,
                "hit",
                "",
                size_bytes,
                partition.leader_state.high_watermark,
                admitted_bytes - admitted_at,
                0.0,
                took_s * 1000,
                admitted_bytes,
                None,
                None,
            )
        )

    def count_unread(
        self, link: ClientConnection, head: RequestHeader, received_at: float, delivered: bool
    ) -> None:
        """A Fetch that could not be read was relayed, and its answer has left, or never will: it counts as one
        partition, with one line for all of it.
        """
        if not delivered:
            self.counters.undelivered_partitions += 1
            return
        self.counters.fetch_partitions[UNREAD] += 1
        if self.access_log is None:
            return
        self.access_log.put(
            FetchLine(
                time_ns() // 1_000_000,
                link.listener.name,
                link.number,
                cut_text(link.client_id),
                head.api_version,
                None,
                None,
                -1,
                -1,
                0,
                *UNREAD,
                0,
                -1,
                None,
                0.0,
                (self.now() - received_at) * 1000,
                self.cache.peek_admitted_bytes(),
            )
        )

    def _age(self, partition: Partition, one: Told) -> int | None:
        """Bytes admitted since this offset was: what a FIFO must be larger than to hit it. None where it
        never was, or is forgotten. What is only observed may arrive at its reader first: it is as young as it
        can be.
        """
        if one.status.look is Look.TAIL and not one.size_bytes:
            return None
        age_bytes = self.cache.age_bytes(partition.slot, one.status.asked.fetch_offset)
        return one.size_bytes if age_bytes is None and one.would_hit_bytes else age_bytes


def _name(topic: str | bytes) -> str | None:
    return cut_text(topic) if isinstance(topic, str) else None


def _id(topic: str | bytes) -> bytes | None:
    return topic if isinstance(topic, bytes) else None
