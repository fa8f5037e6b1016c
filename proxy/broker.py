"""The one broker that this process stands before, and everything known of it.

Owns the join of cache, partitions, topics, replica fetcher, counters and the access log; handlers get it with their
client connection. It must not know sockets. Invariants: all listeners of a process lead to the same broker, so that
what one client's answer teaches holds for all; `now` is a clock that only goes forward, suspended machines included, in
seconds.
"""

from __future__ import annotations

import logging
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from protocol.framing import SMALL_BYTES
from proxy.accounting.age_clock import AgeClock
from proxy.accounting.client_groups import ClientGroups
from proxy.accounting.counter_lines import CounterLines
from proxy.accounting.counters import Counters
from proxy.accounting.empty_answers import EmptyAnswers
from proxy.accounting.stored_runs import StoredRuns
from proxy.advertised import AdvertisedCheck
from proxy.config.cache_modes import CacheModes
from proxy.fetch.access_lines import AccessLines
from proxy.fetch.accounts import Accounts
from proxy.fetch.misses.coalescing import SharedReads
from proxy.fetch.principals import Principals
from proxy.fetch.purgatory import Purgatory
from proxy.fetch.readers import ProcessTotals, Readers
from proxy.fetch.sessions.cache import SessionCache, SessionLimits
from proxy.fetch.wakeups import WakeupBatch
from proxy.identity.tokens import DelegationTokens
from proxy.net.byte_budget import ByteBudget
from proxy.net.host_limits import HostLimits
from proxy.net.tls_handshakes import Handshakes
from proxy.partitions.partition_row import RUN_ROWS
from proxy.partitions.store import admit_response
from proxy.partitions.table import Partitions
from proxy.partitions.topics import Topics
from proxy.produce.routes import PipelineCounts
from proxy.produce.targets import Targets
from proxy.replica_fetcher.broker_settings import Node
from proxy.replica_fetcher.compaction_policy import CompactionPolicies
from proxy.replica_fetcher.fetcher import ReplicaFetcher
from proxy.replica_fetcher.topic_metadata import TopicLookup
from proxy.replica_fetcher.verifier import Verifier
from proxy.scheduling.disk_throttle import DiskThrottle
from proxy.scheduling.request_scheduler import RequestScheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from blockcache.cache import BlockCache
    from metrics.access_log import AccessLog
    from proxy.config.model import Config, Limits, ListenerConfig
    from proxy.net.client_connection import AnyLink
    from proxy.net.own_connections import OwnConnections
    from proxy.partitions.table import Partition
    from proxy.partitions.topics import Topic

log = logging.getLogger("forebay.broker")

SESSION_LEAST_S = 120.0
"""How long a fetch session is safe from others (FetchSession.MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS)."""


class Broker:
    """What handlers share. `keeps`: partitions are this process's own. Otherwise what is found in the arena has to
    be confirmed, and the keeper stores what is produced.
    """

    keeps = True
    own_connections: OwnConnections
    purgatory: Purgatory
    scheduler: RequestScheduler

    def __init__(
        self,
        config: Config,
        cache: BlockCache,
        access_log: AccessLog | None,
        version: str,
        now: Callable[[], float],
    ) -> None:
        self.configure(config)
        self.version = version
        self.now = now
        self._stores = config.cache.mode != "off"
        self.cache = cache
        self.access_log = access_log
        self.stored_runs: StoredRuns | None = None
        if access_log is not None:
            self.stored_runs = StoredRuns(
                access_log, cache, config.access_log.queue_lines, RUN_ROWS
            )
        self.client_groups = ClientGroups(config.limits.max_connections)
        self.counters = Counters()
        self.readers = Readers(config.limits.readers, now(), self.read_totals)
        self.pipeline_counts = PipelineCounts()
        self.wakeups = WakeupBatch()
        self.requests = ByteBudget(config.limits.request_memory_bytes)
        self.responses = ByteBudget(config.limits.response_memory_bytes, SMALL_BYTES)
        self.handshakes = Handshakes(self.counters.clients, config.limits.max_connections)
        self.sign_ins = DelegationTokens(self)
        self.host_limits = HostLimits(
            config.limits.connections_per_address, config.limits.connection_rate_per_address
        )
        self.topics = self.build_topics()
        self.age_clock = AgeClock()
        self.partitions = self.build_partitions(
            2 * config.limits.watched_partitions, config.cache.transactions_per_partition
        )
        self.replica_fetcher = self.build_replica_fetcher()
        self.topic_lookup = self.build_topic_lookup()
        self.disk_throttle = self.build_disk_throttle()
        self.scheduler = RequestScheduler(self)
        self.routes = Targets(self)
        self.cleanup = self.build_compaction_policies()
        self.node = Node(self)
        self.advertised = AdvertisedCheck(lambda: self.node.node_id, now)
        self.verifier = Verifier(self, config.cache.verify_ratio, Random().random)
        limits = config.limits
        self.shared_reads = SharedReads(self, limits.read_joiners)
        self.principals = Principals(limits.principals)
        self.sessions = SessionCache(build_session_limits(limits), Random())
        self.purgatory = Purgatory(limits.parked_fetches)
        lines = None
        if access_log is not None:
            empty = EmptyAnswers(access_log, config.access_log.queue_lines)
            lines = AccessLines(access_log, cache, self.topics, self.partitions, empty)
        self.accounts = Accounts(self, lines)
        self.counter_lines: CounterLines | None = None
        if access_log is not None and lines is not None:
            settle = partial(self.pipeline_counts.settle, self.counters)
            self.counter_lines = CounterLines(
                access_log, self.counters, cache, lines.empty, now, settle
            )

    # -- parts of which another kind of process has its own ----------------------------------------------------

    def build_topics(self) -> Topics:
        """Return the table of topics."""
        return Topics()

    def build_partitions(self, limit: int, transactions_limit: int) -> Partitions:
        """Return the table of partitions."""
        return Partitions(self.cache, limit, transactions_limit)

    def build_replica_fetcher(self) -> ReplicaFetcher:
        """Return what asks the broker about partitions."""
        return ReplicaFetcher(self)

    def build_compaction_policies(self) -> CompactionPolicies:
        """Return what asks the broker about topics' settings."""
        return CompactionPolicies(self)

    def build_disk_throttle(self) -> DiskThrottle:
        """Return what delays misses of history."""
        return DiskThrottle(self)

    def build_topic_lookup(self) -> TopicLookup:
        """Return what asks the broker about topics."""
        return TopicLookup(self)

    def configure(self, config: Config, trial: Config | None = None, share: float = 0.0) -> None:
        """Put a configuration in force for all that reads it at each use. Parts that keep a value have a method
        of their own (proxy/reload.py). `trial`: the cache's modes of a `share` of the connections (0 to 1).
        """
        self.config = config
        self.modes = CacheModes(config, trial, share)

    admit_produced = admit_response

    def hear(self) -> None:
        """Note of which partitions other processes saw records acknowledged: there are none."""

    def catch_up(self) -> None:
        """Store what other processes have told of: there are none."""

    def confirms(self, partitions: Iterable[Partition | None]) -> bool:
        """Whether what was found of these partitions in the arena may be served."""
        del partitions
        return True

    def read_totals(self) -> ProcessTotals:
        """Counts of this process that the live view shows of a window."""
        counters = self.counters
        return ProcessTotals(
            dict(counters.fetch.record_bytes),
            self.cache.peek_admitted_bytes(),
            counters.watch.lease_lapses,
        )

    @property
    def answer_bytes(self) -> int:
        """The most that one answer from memory may have of records now: at the bound of answers, little."""
        responses = self.responses
        return (
            self.node.fetch_max_bytes
            if responses.in_flight_bytes < responses.limit_bytes
            else SMALL_BYTES
        )

    def stores_on(self, listener: ListenerConfig) -> bool:
        """Whether what passes on this listener is stored, and served or observed."""
        return self._stores and not listener.shares_identity

    # -- errors of ours ------------------------------------------------------------------------------------

    def attempt(
        self,
        action: Callable[[], object],
        doing: str,
        otherwise: Callable[[], object] | None = None,
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
        self.counters.faults.count_error()
        log.exception(f"{doing} failed")

    def fall_back(
        self, link: AnyLink, sent_count: int, doing: str, whole: Callable[[], object] | None
    ) -> None:
        """Send a request on as it came, by `whole`, after `doing` has raised for it: an error of ours costs a miss, not
        a connection. If something has gone toward broker or client since `link.sent_count` was `sent_count`, only log
        and count the error. Close the connection if `whole` is None or raises.
        """
        self.failed(doing)
        if link.sent_count != sent_count or link.upstream.closed:
            return
        try:
            if whole is not None:
                whole()
                return
        except Exception:
            self.failed("relaying a request")
        link.close("internal_error", "closing a client that cannot be served")

    # -- what is void --------------------------------------------------------------------------------------

    def invalidate(self, partition: Partition, from_offset: int, reason: str) -> None:
        """Drop what is stored of `partition` at or above `from_offset`."""
        self.cache.truncate(partition.slot, from_offset)
        partition.truncate(from_offset, partition.has_stored(self.cache))
        self.counters.stored.invalidations[reason] += 1
        self.replica_fetcher.changed(partition)

    def distrust(self, topic: Topic, reason: str) -> None:
        """The broker does not store of `topic` what is produced, or stores it otherwise than before: all that was
        stored from Produce goes, in every partition, and batches that were written before now teach nothing.
        """
        topic.fidelity.begin_generation()
        self.partitions.drop_unclaimed(topic.id)
        for partition in [p for p in self.partitions if p.topic is topic]:
            if partition.produced_from >= 0:
                self.invalidate(partition, partition.produced_from, reason)
            partition.distrust()

    def forget(self, partition: Partition, reason: str) -> None:
        """The partition is not there any more: nothing of it is known."""
        self.counters.stored.invalidations[reason] += 1
        self.routes.clear()
        self.replica_fetcher.forget(partition)
        self.partitions.forget(partition)

    def forget_topic(self, topic_id: bytes) -> None:
        """The broker does not know this topic id: it was deleted, and perhaps re-created under another. Who waited on
        it looks again, and must not find it.
        """
        topic = self.topics.find(topic_id)
        if topic is not None:
            self.routes.clear()
            self.topics.forget(topic)
        self.partitions.drop_unclaimed(topic_id)
        for partition in [p for p in self.partitions if p.topic.id == topic_id]:
            self.forget(partition, "topic-gone")


def build_session_limits(limits: Limits) -> SessionLimits:
    """The limits of clients' fetch sessions."""
    return SessionLimits(
        limits.fetch_sessions,
        limits.fetch_session_partitions,
        SESSION_LEAST_S,
        limits.request_partitions,
    )
