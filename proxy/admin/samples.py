"""Samples of a scrape: every count and statistic of the process under its name in the metric
catalog.

Owns the join of counters, statistics and metric names. Must not count anything itself.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from isolation.classify import queue_name
from metrics.access_log_schema import RESULT_REASONS
from metrics.catalog import LABEL_VALUES, METRIC_VALUES
from metrics.collector import Sample
from protocol.api import APIS, FETCH, PRODUCE
from protocol.error_names import NAMES, UNKNOWN
from proxy.accounting.counters import UNKNOWN_KEY
from proxy.admin.http import RESERVED
from proxy.build_info import find_commit
from proxy.config.model import HELD_CONNECTIONS
from proxy.fetch.principals import WAITS_LIMIT
from proxy.net.host_limits import IDLE_LIMIT
from proxy.replica_fetcher.topic_metadata import TOPICS_LIMIT
from proxy.replica_fetcher.verifier import QUEUE_SAMPLES
from proxy.switches.report import list_switch_samples
from proxy.switches.state import OVERRIDES_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from proxy.accounting.counters import Traffic
    from proxy.admin.access import AdminAccess
    from proxy.admin.http import AdminServer
    from proxy.admin.log_queue import LogQueue
    from proxy.broker import Broker
    from proxy.net.listener import AnyListener
    from proxy.net.own_connections import OwnConnections
    from proxy.net.pass_through import PassThroughListener
    from proxy.switches.store import SwitchStore
    from proxy.tls_files import WatchedFiles
    from throttle.disks import DiskLimit

CLIENT_APIS = (
    *(PRODUCE, FETCH, 2, 3, 8, 9, 10, 11, 12, 13, 14, 17, 18),
    *(22, 23, 24, 25, 26, 28, 36, 68, 71, 72, UNKNOWN_KEY),
)
"""Keys of the APIs that producers and consumers use: their series exist from the start."""
QUEUE_GAUGES = (
    "slots",
    "slots_floor",
    "in_use",
    "waiting",
    "waiting_bytes",
    "lingering_polls",
    "lingering_acks",
    "unread",
)


class ReadinessCheck(Protocol):
    """Whether clients should connect (`proxy.readiness.Readiness`)."""

    is_draining: bool

    def check(self) -> tuple[bool, list[str]]:
        """Return whether clients should connect, and the reasons if not."""


class RenewedFiles(Protocol):
    """The TLS files of listeners (`proxy.renewal.Renewal`)."""

    @property
    def watched(self) -> Sequence[WatchedFiles]: ...


class LastReload(Protocol):
    """The result of the last reload (`proxy.reload.Reloader`)."""

    @property
    def was_successful(self) -> bool: ...
    @property
    def reloaded_at(self) -> float: ...
    @property
    def renewal(self) -> RenewedFiles: ...


class SupervisorFigures(Protocol):
    """What the supervisor counts (`proxy.supervisor.figures.Figures`)."""

    def read(self) -> Iterator[tuple[tuple[str, ...], int]]:
        """Return each metric's name and label value, and its number."""


class KeeperEnd(Protocol):
    """The keeper's end of its workers (`proxy.keeper.server.KeeperServer`)."""

    @property
    def attached(self) -> int: ...


class AttachedEnd(Protocol):
    """A worker's end of its keeper (`proxy.keeper.keeper_link.KeeperLink`)."""

    @property
    def missed(self) -> int: ...
    @property
    def unsent_bytes(self) -> int: ...
    @property
    def unsent_limit_bytes(self) -> int: ...


class Process(Protocol):
    """The parts of the running process that are sampled (`proxy.app.Forebay`)."""

    @property
    def boot(self) -> str: ...
    @property
    def broker(self) -> Broker: ...
    @property
    def listeners(self) -> Sequence[AnyListener]: ...
    @property
    def pass_through(self) -> Sequence[PassThroughListener]: ...
    @property
    def own_connections(self) -> OwnConnections: ...
    @property
    def admin(self) -> AdminServer: ...
    @property
    def admin_access(self) -> AdminAccess: ...
    @property
    def own_log(self) -> LogQueue | None: ...
    @property
    def readiness(self) -> ReadinessCheck: ...
    @property
    def figures(self) -> SupervisorFigures: ...
    @property
    def keeper(self) -> KeeperEnd | None: ...
    @property
    def keeper_link(self) -> AttachedEnd | None: ...
    @property
    def reloader(self) -> LastReload: ...
    @property
    def switches(self) -> SwitchStore: ...


def collect(process: Process) -> Iterator[Sample]:
    """All samples of this moment. Flushes the pipeline's deferred counts first."""
    broker = process.broker
    broker.pipeline_counts.settle(broker.counters)
    yield Sample("forebay_build_info", (broker.version, find_commit()), 1)
    yield Sample("forebay_boot_info", (process.boot,), 1)
    yield Sample("forebay_event_loop_lag_seconds", (), broker.counters.loop.lag_s)
    yield Sample("forebay_ready", (), int(process.readiness.check()[0]))
    for (name, *labels), value in process.figures.read():
        yield Sample(name, tuple(labels), value)
    yield from _switches(process)
    yield from _advertised(process)
    reloader = process.reloader
    yield Sample("forebay_config_last_reload_success", (), int(reloader.was_successful))
    yield Sample("forebay_config_last_reload_timestamp_seconds", (), reloader.reloaded_at)
    watched = reloader.renewal.watched
    admin_files = process.admin_access.watched
    yield from _tls_files([*watched, *([admin_files] if admin_files.in_use.states else [])])
    if process.keeper is not None:
        yield Sample("forebay_workers_attached", (), process.keeper.attached)
    link = process.keeper_link
    if link is not None:
        yield Sample("forebay_keeper_missed_produces_total", (), link.missed)
        yield Sample("forebay_queue_depth", ("keeper_bytes",), link.unsent_bytes)
        yield Sample("forebay_queue_limit", ("keeper_bytes",), link.unsent_limit_bytes)
    yield from _fetches(broker)
    yield from _cache(broker)
    yield from _replica_fetcher(broker)
    yield from _throttle(broker)
    yield from _isolation(broker)
    yield from _connections(process)
    yield from _tokens(broker)
    yield from _authentications(broker)
    yield from _apis(broker)
    yield from _traffic(broker)
    yield from _limits(process)
    yield from _access_log(broker, process.boot)
    yield from _own_log(process)


def _switches(process: Process) -> Iterator[Sample]:
    store = process.switches
    for one in list_switch_samples(store.read(), time.time()):
        yield Sample(*one)
    modes = process.broker.modes
    links = [link for one in process.listeners for link in one.links] if modes.share else []
    on_trial = sum(modes.is_trial(link.number) for link in links)
    yield Sample("forebay_switch_trial_connections", (), on_trial)
    yield Sample("forebay_queue_depth", ("switches",), len(store.read().overrides))
    yield Sample("forebay_queue_limit", ("switches",), OVERRIDES_LIMIT)


def _advertised(process: Process) -> Iterator[Sample]:
    check = process.broker.advertised
    for one in process.listeners:
        for mismatch in LABEL_VALUES["mismatch"]:
            differs = check.differs.get(one.name, "") == mismatch
            yield Sample("forebay_advertised_mismatch", (one.name, mismatch), int(differs))
            count = check.mismatches.get((one.name, mismatch), 0)
            yield Sample("forebay_advertised_mismatches_total", (one.name, mismatch), count)


def _counted(name: str, counts: Mapping[str, int]) -> Iterator[Sample]:
    """Samples of a counter with one label, of every value that the catalog or `counts` has."""
    for value in dict.fromkeys((*METRIC_VALUES[name], *counts)):
        yield Sample(name, (value,), counts.get(value, 0))


def _name_api(api_key: int) -> str:
    return APIS[api_key].name if api_key in APIS else "unknown"


def _tls_files(watched: Sequence[WatchedFiles]) -> Iterator[Sample]:
    for one in watched:
        for kind, end_s in one.in_use.ends.items():
            labels = (one.listener, one.side, kind)
            yield Sample("forebay_tls_certificate_expiry_seconds", labels, end_s)
        for outcome, loads in (("loaded", one.counts.loaded), ("refused", one.counts.refused)):
            yield Sample("forebay_tls_loads_total", (one.listener, one.side, outcome), loads)


def _fetches(broker: Broker) -> Iterator[Sample]:
    counters = broker.counters
    fetch, clients, produce = counters.fetch, counters.clients, counters.produce
    for verdict in RESULT_REASONS:
        yield Sample("forebay_fetch_partitions_total", verdict, fetch.partitions.get(verdict, 0))
        yield Sample("forebay_fetch_bytes_total", verdict, fetch.record_bytes.get(verdict, 0))
    yield Sample("forebay_fetch_would_hit_bytes_total", (), fetch.would_hit_bytes)
    for purpose in LABEL_VALUES["purpose"]:
        size_bytes = counters.upstream.fetch_bytes.get(purpose, 0)
        yield Sample("forebay_upstream_fetch_bytes_total", (purpose,), size_bytes)
    yield Sample("forebay_fetch_looks_total", (), fetch.looked_partitions)
    yield Sample("forebay_fetch_repeated_total", (), fetch.repeated)
    yield Sample("forebay_fetch_shared_reads_total", (), broker.shared_reads.joined)
    yield Sample("forebay_fetch_shared_bytes_total", (), broker.shared_reads.joined_bytes)
    yield Sample("forebay_fetch_undelivered_partitions_total", (), fetch.undelivered_partitions)
    yield Sample("forebay_fetch_wait_seconds", (), fetch.wait_s)
    yield Sample("forebay_fetch_hit_seconds", (), fetch.hit_s)
    yield Sample("forebay_fetch_upstream_seconds", (), fetch.upstream_s)
    yield Sample("forebay_parked_fetches", (), broker.purgatory.parked)
    yield Sample("forebay_authorization_renewals_total", (), clients.authorization_renewals)
    yield Sample("forebay_authorization_proofs_total", (), clients.authorization_proofs)
    yield Sample("forebay_authorization_withdrawals_total", (), clients.rights_withdrawn)
    yield from _counted("forebay_produce_batches_total", produce.batches)
    yield Sample("forebay_produce_seconds", (), produce.took_s)


def _cache(broker: Broker) -> Iterator[Sample]:
    statistics = broker.cache.statistics()
    yield Sample("forebay_cache_capacity_bytes", (), statistics.arena_bytes)
    yield Sample("forebay_cache_resident_bytes", (), broker.cache.resident_bytes)
    yield Sample("forebay_cache_size_bytes", (), statistics.live_record_bytes)
    yield Sample("forebay_cache_index_bytes", (), statistics.index_bytes_used)
    yield Sample("forebay_cache_pinned_bytes", (), statistics.pinned_bytes)
    yield Sample("forebay_cache_limbo_bytes", (), statistics.limbo_bytes)
    yield Sample("forebay_cache_lock_refusals_total", (), statistics.lock_refusals)
    yield Sample("forebay_cache_lent_bytes", (), statistics.lent_bytes)
    yield Sample("forebay_cache_lent_limit_bytes", (), statistics.lent_limit_bytes)
    yield Sample("forebay_cache_adopted_batches_total", (), statistics.adopted_batches)
    yield Sample("forebay_cache_partitions", (), statistics.partitions)
    yield Sample("forebay_cache_blocks", (), statistics.blocks)
    admitted_bytes = statistics.admitted_bytes - statistics.admitted_before_bytes
    yield Sample("forebay_cache_admitted_bytes_total", (), admitted_bytes)
    yield from _counted("forebay_cache_admitted_batches_total", broker.counters.stored.batches)
    yield Sample("forebay_cache_evictions_total", ("room",), statistics.evicted_blocks_room)
    yield Sample("forebay_cache_evictions_total", ("index",), statistics.evicted_blocks_index)
    yield Sample("forebay_cache_evictions_total", ("water",), statistics.evicted_blocks_water)
    yield Sample("forebay_cache_evicted_bytes_total", (), statistics.evicted_bytes)
    yield from _counted("forebay_cache_invalidations_total", broker.counters.stored.invalidations)
    for outcome in LABEL_VALUES["takeover"]:
        arenas = broker.counters.stored.takeovers.get(outcome, 0)
        yield Sample("forebay_cache_takeovers_total", (outcome,), arenas)
    taken_over = broker.counters.stored.taken_over_partitions
    yield Sample("forebay_cache_taken_over_partitions_total", (), taken_over)
    yield Sample("forebay_cache_unclaimed_partitions", (), broker.partitions.unclaimed)
    oldest = statistics.admitted_bytes - statistics.oldest_admitted_bytes
    yield Sample("forebay_cache_oldest_age_bytes", (), oldest)
    age_s = (
        broker.age_clock.age_s(statistics.oldest_admitted_bytes, broker.now())
        if statistics.blocks
        else 0
    )
    yield Sample("forebay_cache_oldest_age_seconds", (), age_s)
    yield Sample("forebay_cache_skipped_batches_total", (), statistics.skipped_batches)


def _replica_fetcher(broker: Broker) -> Iterator[Sample]:
    now, counts = broker.now(), broker.counters.watch
    yield Sample("forebay_watch_partitions", (), broker.replica_fetcher.watched)
    yield Sample("forebay_partitions_refused_total", (), broker.partitions.refused)
    yield Sample(
        "forebay_watch_leases", (), sum(p.leader_state.has_lease(now) for p in broker.partitions)
    )
    for purpose in ("watch", "proof"):
        polls = counts.requests.get(purpose, 0)
        yield Sample("forebay_watch_polls_total", (purpose,), polls)
    yield Sample("forebay_watch_asked_partitions_total", (), counts.asked_partitions)
    yield Sample("forebay_watch_answered_partitions_total", (), counts.answered_partitions)
    for verdict in LABEL_VALUES["verdict"]:
        yield Sample(
            "forebay_verify_samples_total", (verdict,), broker.verifier.verdicts.get(verdict, 0)
        )
    for way in LABEL_VALUES["way"]:
        yield Sample("forebay_topic_questions_total", (way,), broker.topic_lookup.questions[way])
    yield Sample("forebay_topic_questions_dropped_total", (), broker.topic_lookup.dropped)
    yield Sample("forebay_watch_lease_lapses_total", (), counts.lease_lapses)
    known = [p.transactions.statistics() for p in broker.partitions if p.transactions.holds_any]
    yield Sample("forebay_transactions_open", (), sum(one.open for one in known))
    yield Sample("forebay_transactions_aborted", (), sum(one.aborted for one in known))


def _throttle(broker: Broker) -> Iterator[Sample]:
    statistics = broker.disk_throttle.statistics()
    disks = statistics.disks if broker.config.throttle.enabled else {}
    for disk, state in disks.items():
        queue, sample = state.queue, state.sample
        yield Sample("forebay_throttle_disk_sampled", (disk,), int(state.sampled))
        yield Sample("forebay_throttle_disk_busy", (disk,), int(queue.busy))
        if sample is not None:
            yield Sample("forebay_throttle_disk_load_ratio", (disk,), sample.load)
            yield Sample("forebay_throttle_disk_util_ratio", (disk,), sample.util)
            yield Sample("forebay_throttle_disk_await_seconds", (disk,), sample.await_ms / 1000)
        yield from _limit(disk, state.limit)
        for result, count in state.probes.items():
            yield Sample("forebay_throttle_limit_probes_total", (disk, result.value), count)
        yield Sample("forebay_throttle_target_ratio", (disk,), state.target)
        yield Sample(
            "forebay_throttle_rate_bytes_per_second", (disk,), state.controller.rate_bytes_s
        )
        yield Sample("forebay_throttle_rate_floor_bytes_per_second", (disk,), state.floor_bytes_s)
        yield Sample("forebay_throttle_waiting_requests", (disk,), queue.waiting_requests)
        yield Sample("forebay_throttle_waiting_bytes", (disk,), queue.waiting_bytes)
        yield Sample("forebay_throttle_granted_total", (disk,), queue.granted)
        yield Sample("forebay_throttle_miss_bytes_total", (disk,), queue.done_bytes)
        yield Sample("forebay_throttle_delayed_total", (disk,), queue.delayed)
        yield Sample("forebay_throttle_delay_seconds_total", (disk,), queue.delay_sum_s)
        yield Sample("forebay_throttle_overdue_total", (disk,), queue.overdue)
        yield Sample("forebay_throttle_cancelled_total", (disk,), queue.cancelled)
        yield Sample("forebay_throttle_refused_total", (disk, "requests"), queue.refused_requests)
        yield Sample("forebay_throttle_refused_total", (disk, "bytes"), queue.refused_bytes)
    yield Sample("forebay_throttle_ungated_total", (), statistics.ungated)
    yield Sample("forebay_lane_requests_total", (), broker.counters.upstream.catch_up_requests)
    yield Sample("forebay_lanes_lost_total", (), broker.counters.upstream.catch_up_losses)


def _limit(disk: str, limit: DiskLimit) -> Iterator[Sample]:
    labels = (disk, limit.source)
    if limit.bytes_s:
        yield Sample("forebay_throttle_disk_limit_bytes_per_second", labels, limit.bytes_s)
    if limit.requests_s:
        yield Sample("forebay_throttle_disk_limit_requests_per_second", labels, limit.requests_s)


def _isolation(broker: Broker) -> Iterator[Sample]:
    queues, health = broker.scheduler.statistics()
    for number, state in queues.items():
        name = queue_name(number)
        for gauge in QUEUE_GAUGES:
            yield Sample(f"forebay_isolation_{gauge}", (name,), state[gauge])
        for total in ("admitted", "refused", "expired", "cancelled", "released"):
            yield Sample(f"forebay_isolation_{total}_total", (name,), state[total])
    yield Sample("forebay_processor_slowdown", (), broker.scheduler.processor_wait.slowdown)
    yield Sample("forebay_isolation_topics_hanging", (), health["hanging"])
    yield Sample("forebay_isolation_hangs_total", (), health["hangs"])
    yield Sample("forebay_isolation_recoveries_total", (), health["recoveries"])
    yield Sample("forebay_isolation_probes_total", (), health["probes"])
    yield Sample("forebay_produce_refused_total", (), broker.counters.produce.refused)
    yield Sample("forebay_fetch_refused_total", (), broker.counters.fetch.refused)


def _connections(process: Process) -> Iterator[Sample]:
    counters = process.broker.counters
    clients, upstream, faults = counters.clients, counters.upstream, counters.faults
    yield Sample("forebay_connections_total", (), clients.connections)
    yield Sample("forebay_active_connections", (), clients.active_connections)
    for one in process.listeners:
        yield Sample("forebay_listener_connections", (one.name,), len(one.links))
        yield Sample("forebay_listener_accepted_total", (one.name,), one.accepted)
    for unread in process.pass_through:
        yield Sample("forebay_listener_connections", (unread.name,), len(unread))
        yield Sample("forebay_listener_accepted_total", (unread.name,), unread.accepted)
        for direction, size_bytes in (
            ("request", unread.carried.request_bytes),
            ("response", unread.carried.response_bytes),
        ):
            labels = (unread.name, direction)
            yield Sample("forebay_pass_through_bytes_total", labels, size_bytes)
    yield Sample("forebay_connection_errors_total", (), clients.connection_errors)
    yield from _counted("forebay_disconnects_total", clients.disconnects)
    yield Sample("forebay_bad_frames_total", (), faults.bad_frames)
    yield Sample("forebay_wide_requests_total", (), clients.wide_requests)
    yield Sample("forebay_internal_errors_total", (), faults.internal_errors)
    yield Sample("forebay_blind_connections_total", (), clients.blind_connections)
    links = [link for one in process.listeners for link in one.links]
    connected = sum(link.upstream.is_connected + link.catch_up.is_connected for link in links)
    connected += process.own_connections.connected
    yield Sample("forebay_upstream_connections", (), connected)
    silent_s = process.own_connections.silent_s(process.broker.now())
    yield Sample("forebay_upstream_silent_seconds", (), silent_s)
    yield Sample("forebay_upstream_connect_errors_total", (), upstream.connect_errors)
    yield Sample("forebay_upstream_reopens_total", (), upstream.reopened)


def _tokens(broker: Broker) -> Iterator[Sample]:
    tokens = broker.counters.tokens
    for operation, count in (
        ("create", tokens.created),
        ("renew", tokens.renewed),
        ("expire", tokens.expired),
    ):
        yield Sample("forebay_delegation_tokens_total", (operation,), count)
    for reason in LABEL_VALUES["token_failure"]:
        failures = tokens.failures.get(reason, 0)
        yield Sample("forebay_delegation_token_failures_total", (reason,), failures)
    yield Sample("forebay_token_sign_ins_total", (), tokens.sign_ins)


def _authentications(broker: Broker) -> Iterator[Sample]:
    counts = broker.counters.authentications
    for outcome, by_mechanism in (("accepted", counts.accepted), ("refused", counts.refused)):
        for mechanism in LABEL_VALUES["mechanism"]:
            labels = mechanism, outcome
            yield Sample("forebay_authentications_total", labels, by_mechanism.get(mechanism, 0))
    yield Sample("forebay_own_sign_in_refusals_total", (), counts.own_refused)


def _apis(broker: Broker) -> Iterator[Sample]:
    counts = broker.counters.apis
    relayed = [key for key in CLIENT_APIS if key not in (PRODUCE, FETCH)]
    for key, took_s in list(counts.took_s.items()):  # a quantile needs none from the start
        yield Sample("forebay_relayed_request_seconds", (_name_api(key),), took_s)
    for key in dict.fromkeys((*relayed, *counts.unanswered)):
        lost = counts.unanswered.get(key, 0)
        yield Sample("forebay_relayed_unanswered_total", (_name_api(key),), lost)
    errors = dict.fromkeys(CLIENT_APIS, 0)
    for (key, code), count in list(counts.errors.items()):
        errors[key] = errors.get(key, 0) + count
        labels = _name_api(key), NAMES.get(code, UNKNOWN)
        yield Sample("forebay_response_error_codes_total", labels, count)
    for key, count in errors.items():
        yield Sample("forebay_response_errors_total", (_name_api(key),), count)


def _traffic(broker: Broker) -> Iterator[Sample]:
    traffic_counts = broker.counters.traffic
    points: tuple[tuple[str, dict[int, Traffic]], ...] = (
        ("client_to_proxy_request", traffic_counts.requests_in),
        ("proxy_to_server_request", traffic_counts.requests_out),
        ("server_to_proxy_response", traffic_counts.responses_in),
        ("proxy_to_client_response", traffic_counts.responses_out),
    )
    for point, by_key in points:
        for api_key in dict.fromkeys((*CLIENT_APIS, *by_key)):
            name, traffic = _name_api(api_key), by_key[api_key]
            yield Sample(f"forebay_{point}_total", (name,), traffic.frames)
            yield Sample(f"forebay_{point}_bytes_total", (name,), traffic.size_bytes)


def _limits(process: Process) -> Iterator[Sample]:
    broker = process.broker
    for direction, bound in (("request", broker.requests), ("response", broker.responses)):
        yield Sample("forebay_in_flight_bytes", (direction,), bound.in_flight_bytes)
        yield Sample("forebay_unfinished_frame_bytes", (direction,), bound.unfinished_bytes)
        yield Sample("forebay_in_flight_limit_bytes", (direction,), bound.limit_bytes)
        yield Sample("forebay_reads_paused_total", (direction,), bound.pauses)
        yield Sample("forebay_reads_paused", (direction,), bound.paused_transports)
    limits = broker.config.limits
    sessions = broker.sessions.statistics()
    yield Sample("forebay_fetch_sessions_evicted_total", (), sessions.evicted)
    queues = (
        ("connections", broker.counters.clients.active_connections, limits.max_connections),
        ("addresses", len(broker.host_limits), IDLE_LIMIT + limits.max_connections),
        ("held_connections", broker.host_limits.delayed, HELD_CONNECTIONS),
        ("handshakes", len(broker.handshakes), broker.handshakes.limit),
        (
            "admin_connections",
            process.admin.connections,
            broker.config.admin.max_connections + RESERVED,
        ),
        ("parked_fetches", broker.purgatory.parked, limits.parked_fetches),
        ("verify_samples", len(broker.verifier), QUEUE_SAMPLES + 1),
        ("delegation_tokens", len(broker.sign_ins), broker.sign_ins.limit),
        ("topic_lookup", len(broker.topic_lookup), TOPICS_LIMIT),
        ("watched_partitions", broker.replica_fetcher.watched, limits.watched_partitions),
        ("principals", len(broker.principals), limits.principals),
        ("readers", broker.readers.rows, limits.readers),
        ("readers_behind", broker.readers.standings, limits.readers),
        ("client_groups", len(broker.client_groups), broker.client_groups.limit),
        ("authorization_waits", broker.principals.waiting, WAITS_LIMIT),
        ("fetch_sessions", sessions.sessions, limits.fetch_sessions),
        ("fetch_session_partitions", sessions.partitions, limits.fetch_session_partitions),
        ("followed_partitions", len(broker.partitions), broker.partitions.limit),
        (
            "delayed_misses",
            broker.disk_throttle.statistics().waiting_requests,
            broker.config.throttle.waiting_requests * len(broker.config.throttle.disks),
        ),
    )
    for queue, depth, limit in queues:
        yield Sample("forebay_queue_depth", (queue,), depth)
        yield Sample("forebay_queue_limit", (queue,), limit)


def _access_log(broker: Broker, boot: str) -> Iterator[Sample]:
    if broker.access_log is None:
        return
    statistics = broker.access_log.statistics()
    yield Sample("forebay_queue_depth", ("access_log_lines",), statistics.queued_partitions)
    yield Sample("forebay_queue_limit", ("access_log_lines",), statistics.queue_limit_partitions)
    if broker.stored_runs is not None:
        yield Sample("forebay_queue_depth", ("access_log_runs",), len(broker.stored_runs))
        yield Sample("forebay_queue_limit", ("access_log_runs",), broker.stored_runs.limit)
    if broker.accounts.lines is not None:
        empty = broker.accounts.lines.empty
        yield Sample("forebay_queue_depth", ("access_log_sums",), len(empty))
        yield Sample("forebay_queue_limit", ("access_log_sums",), empty.limit)
    yield Sample("forebay_access_log_written_lines_total", (), statistics.written_lines)
    yield Sample("forebay_access_log_written_bytes_total", (), statistics.written_bytes)
    yield Sample("forebay_access_log_dropped_lines_total", (), statistics.dropped_lines)
    yield Sample("forebay_access_log_pending_files", (), statistics.pending_files)
    if broker.counter_lines is not None:
        number = broker.counter_lines.note_scrape()
        yield Sample("forebay_access_log_counters_line", (boot,), number)
        yield Sample("forebay_access_log_baseline_line", (boot,), 0)


def _own_log(process: Process) -> Iterator[Sample]:
    if process.own_log is None:
        return
    statistics = process.own_log.statistics()
    yield Sample("forebay_queue_depth", ("log_lines",), statistics.queued_lines)
    yield Sample("forebay_queue_limit", ("log_lines",), statistics.limit_lines)
    yield Sample("forebay_log_dropped_lines_total", (), statistics.dropped_lines)
    yield Sample("forebay_log_suppressed_lines_total", (), statistics.suppressed_lines)
