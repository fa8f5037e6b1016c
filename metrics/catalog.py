"""Every metric of Forebay, once: name, type, labels, meaning.

Owns the names that dashboards, alerts and the audit rely on; `metrics.catalog_docs` writes docs/metrics.md from
them. Must not know where a value comes from.
Invariants: names follow Prometheus' rules (base units last, counters end in _total); no label is a client id,
a topic or an offset, nor any other text or number from the wire; a label's values are listed here wherever they are
a closed set, else their bound. Series with values of a closed set exist from the start.
"""

from typing import Final, Literal, NamedTuple

from metrics.access_log_schema import BLOCK_SOURCES

MetricKind = Literal["counter", "gauge", "histogram"]
MergeRule = Literal["sum", "max", "min", "keeper"]
"""How the values of several processes become one. `keeper`: only its value counts, since all processes would show
the same (the supervisor's figures, the arena), or the keeper alone knows it.
"""


class Metric(NamedTuple):
    """One metric. `labels` are names in the order in which samples give their values. `merge`: where several processes
    have it; None: the sum, which no gauge leaves to be guessed.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    merge: MergeRule | None = None

    @property
    def rule(self) -> MergeRule:
        """How the values of several processes become one."""
        return self.merge or "sum"


LABEL_VALUES: Final[dict[str, tuple[str, ...]]] = {
    "purpose": ("client", "watch", "proof", "authorization", "verify"),
    "mismatch": ("port", "host"),
    "switch": ("cache", "throttle", "isolation", "verify", "log", "bypass"),
    "happening": ("set", "reset", "widened", "expired", "reverted", "dropped"),
    "verdict": ("equal", "mismatch", "unanswered", "outdated", "dropped"),
    "direction": ("request", "response"),
    "bound": ("requests", "bytes"),
    "way": ("own", "client"),
    "limit": ("named", "recognised"),
    "probe": ("refused", "followed", "unclear"),
    "upgrade": ("done", "failed"),
    "side": ("client", "broker", "admin"),
    "file": ("certificate", "authority", "crl"),
    "load": ("loaded", "refused"),
    "token_operation": ("create", "renew", "expire"),
    "token_failure": (
        "authorization",
        "disabled",
        "listener",
        "refused",
        "limit",
        "connection",
        "error",
    ),
    "mechanism": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "other"),
    "authentication": ("accepted", "refused"),
    "path": ("through", "direct"),
    "step": ("connect", "produce", "consume"),
    "takeover": (
        "taken-over",
        "size",
        "layout",
        "unfinished",
        "damaged",
        "kernel",
        "unidentified",
        "broker",
    ),
}
"""Labels whose values are a closed set, as result and reason are; a strict collector refuses any other."""

METRIC_VALUES: Final[dict[str, tuple[str, ...]]] = {
    "forebay_worker_restarts_total": ("exit", "signal", "hung", "oom"),
    "forebay_keeper_restarts_total": ("exit", "signal", "hung", "oom"),
    "forebay_produce_batches_total": (
        "store",
        "sample",
        "old-format",
        "no-epoch",
        "warm-up",
        "resent",
        "below-hw",
        "unlike",
    ),
    "forebay_cache_admitted_batches_total": BLOCK_SOURCES,
    "forebay_cache_evictions_total": ("room", "index", "water"),
    "forebay_cache_invalidations_total": (
        "conflict",
        "out-of-range",
        "diverged",
        "replica",
        "unproven",
        "mismatch",
        "unlike",
        "verify",
        "topic-gone",
        "idle",
    ),
    "forebay_watch_polls_total": ("watch", "proof"),
    "forebay_disconnects_total": (
        "client_closed",
        "client_error",
        "idle",
        "drained",
        "drain_timeout",
        "too_many_connections",
        "request_memory",
        "response_memory",
        "denied_address",
        "connections_per_address",
        "connection_rate",
        "untrusted_proxy",
        "proxy_header",
        "handshake",
        "too_many_handshakes",
        "no_principal",
    ),
}
"""Closed sets of a metric's only label, where other metrics have the same label with other values."""

BOUNDED_LABELS: Final[dict[str, str]] = {
    "version": "one value in a process",
    "commit_id": "one value in a process",
    "boot": "of each process that runs, and of up to 64 workers that have ended",
    "listener": "names of `listeners[]`",
    "disk": "those of `throttle.disks`",
    "queue": "`control` and one for each of `isolation.dataQueues`; of `forebay_queue_*` those of"
    " [Every bound](operations.md#every-bound)",
    "api_key": "names of Kafka's APIs, and `unknown`; those that clients use exist from the start",
    "process": "`keeper`, and `worker-N` for each number of a worker: at most 31",
    "error": "names of Kafka's error codes, and `unknown`; a series begins with its first error",
    "worker": "1 to 31: numbers of workers; a successor has another one",
}
"""Labels whose values are no closed set, and what bounds them."""

_HOPS = (
    ("client_to_proxy_request", "Requests received from clients"),
    ("proxy_to_server_request", "Requests sent to the broker on behalf of clients"),
    ("server_to_proxy_response", "Responses received from the broker for clients"),
    ("proxy_to_client_response", "Responses sent to clients, from memory or from the broker"),
)

GROUPS: Final[dict[str, tuple[Metric, ...]]] = {
    "Process": (
        Metric(
            "forebay_build_info",
            "gauge",
            "Always 1; the labels name the build. `commit_id` ends in `-clone` where it runs from a clone, whose files"
            " may have changed since",
            ("version", "commit_id"),
            merge="max",
        ),
        Metric(
            "forebay_boot_info",
            "gauge",
            "Always 1; the label is the boot id in the access log's lines",
            ("boot",),
            merge="max",
        ),
        Metric(
            "forebay_ready",
            "gauge",
            "1 when every listener is bound and the broker is reachable, else 0",
            merge="min",
        ),
        Metric(
            "forebay_fallback",
            "gauge",
            "1 while no worker can run and the supervisor pipes clients to the broker, else 0",
            merge="max",
        ),
        Metric(
            "forebay_worker_restarts_total",
            "counter",
            "Workers replaced, by reason: `exit` (by itself), `signal` (killed), `hung` (no heartbeat),"
            " `oom` (killed for want of memory)",
            ("reason",),
            merge="keeper",
        ),
        Metric(
            "forebay_keeper_restarts_total",
            "counter",
            "Keepers replaced, by reason, as workers are; meanwhile workers pass everything through. 0 with one worker,"
            " which has no keeper beside it",
            ("reason",),
            merge="keeper",
        ),
        Metric(
            "forebay_workers",
            "gauge",
            "Workers that accept clients now",
            merge="keeper",
        ),
        Metric(
            "forebay_workers_expected",
            "gauge",
            "Workers that the supervisor keeps: `workers`",
            merge="keeper",
        ),
        Metric(
            "forebay_worker_connections",
            "gauge",
            "Connections of each of several workers, by its number: one with more than another lets that one take the"
            " next client",
            ("worker",),
            merge="keeper",
        ),
        Metric(
            "forebay_workers_attached",
            "gauge",
            "Workers that read what the keeper stores; the others pass all requests on",
            merge="keeper",
        ),
        Metric(
            "forebay_keeper_missed_produces_total",
            "counter",
            "Produces not wholly stored from Produce, since the keeper was behind or away: its Fetches bring them",
        ),
        Metric(
            "forebay_keeper_ready",
            "gauge",
            "1 while the process that has the cache is ready, else 0: the keeper, or the one worker",
            merge="keeper",
        ),
        Metric(
            "forebay_worker_starvations_total",
            "counter",
            "Silences of a worker or keeper beyond `supervisor.heartbeatTimeout` in which it waited for a processor, so"
            " that it was not killed at once",
            merge="keeper",
        ),
        Metric(
            "forebay_event_loop_lag_seconds",
            "histogram",
            "How late the event loop runs a timer, at ten looks a second: meanwhile all clients wait",
        ),
        Metric(
            "forebay_upgrades_total",
            "counter",
            "Upgrades in place (SIGUSR2): `done`, or `failed`: a former worker or keeper went on, or its successor is"
            " not ready",
            ("upgrade",),
            merge="keeper",
        ),
        Metric(
            "forebay_pipes",
            "gauge",
            "Clients that the supervisor pipes to the broker now, without cache; those of a former crash"
            " loop are in no other count",
            merge="keeper",
        ),
        Metric(
            "forebay_pipes_total",
            "counter",
            "Clients that the supervisor accepted while no worker could run, refused ones included",
            merge="keeper",
        ),
        Metric(
            "forebay_pipes_refused_total",
            "counter",
            "Clients that the supervisor closed at once: at `limits.maxConnections`, or since their"
            " listener cannot be piped",
            merge="keeper",
        ),
        Metric(
            "forebay_process_cpu_seconds_total",
            "counter",
            "Processor time, with several workers, by process: `keeper`, `worker-1` and so on",
            ("process",),
        ),
        Metric(
            "forebay_process_resident_memory_bytes",
            "gauge",
            "Resident memory, with several workers, by process; pages of the arena count in each that has touched them",
            ("process",),
            merge="max",
        ),
        Metric(
            "forebay_process_open_fds",
            "gauge",
            "Open files, with several workers, by process",
            ("process",),
            merge="max",
        ),
        Metric(
            "forebay_bypassed_listeners",
            "gauge",
            "Listeners whose clients the supervisor pipes to the broker since `bypass` is switched on",
            merge="keeper",
        ),
        Metric(
            "forebay_switches",
            "gauge",
            "Switches that override the configuration now, by name; 0: the configured value is in force",
            ("switch",),
            merge="keeper",
        ),
        Metric(
            "forebay_switch_age_seconds",
            "gauge",
            "Time since the oldest switch in force was set; 0 without one",
            merge="keeper",
        ),
        Metric(
            "forebay_switch_share",
            "gauge",
            "Share of the connections that have the switch under trial (`--share`); 1 without a trial",
            merge="keeper",
        ),
        Metric(
            "forebay_switch_trial_connections",
            "gauge",
            "Connections that have the switch under trial; 0 without a trial",
            merge="sum",
        ),
        Metric(
            "forebay_switch_changes_total",
            "counter",
            "What happened to switches since the supervisor started: `set`, `reset`, `widened` (from a share to all), "
            "`expired` (`--for`), `reverted` (a trial that did harm), `dropped` (topics dropped from the cache)",
            ("happening",),
            merge="keeper",
        ),
        Metric(
            "forebay_advertised_mismatch",
            "gauge",
            "1 while the broker tells clients of a listener an address that is none of Forebay's: another `port`, or a "
            "`host` that is none of this machine's addresses",
            ("listener", "mismatch"),
            merge="max",
        ),
        Metric(
            "forebay_advertised_mismatches_total",
            "counter",
            "Answers of the broker that were looked at and name such an address: at most one a minute of a listener",
            ("listener", "mismatch"),
        ),
        Metric(
            "forebay_config_last_reload_success",
            "gauge",
            "1 when the last reload of the configuration was successful, or there was none, else 0",
            merge="min",
        ),
        Metric(
            "forebay_config_last_reload_timestamp_seconds",
            "gauge",
            "Unix time of the last reload of the configuration, successful or not; of the start before the first",
            merge="keeper",
        ),
        Metric(
            "forebay_tls_certificate_expiry_seconds",
            "gauge",
            "Unix time when what is in use ends first, by the listener's `name` (empty: the admin port), by whom its"
            " connections lead to, and by file: `certificate` (the whole chain), `authority` (ended ones"
            " count only if all have ended), `crl` (its next update)",
            ("listener", "side", "file"),
            merge="min",
        ),
        Metric(
            "forebay_tls_loads_total",
            "counter",
            "Loads of changed TLS files, by the listener's `name` (empty: the admin port), by whom its"
            " connections lead to, and by outcome; `refused`: the former files stay in use, and each"
            " further attempt counts",
            ("listener", "side", "load"),
        ),
    ),
    "Operating system": (
        Metric(
            "process_cpu_seconds_total",
            "counter",
            "Processor time of the worker. This section's metrics are prometheus-client's, of the worker alone:"
            " the supervisor is idle",
            merge="keeper",
        ),
        Metric(
            "process_resident_memory_bytes",
            "gauge",
            "Resident memory, the arena included",
            merge="keeper",
        ),
        Metric("process_virtual_memory_bytes", "gauge", "Virtual memory", merge="keeper"),
        Metric(
            "process_open_fds",
            "gauge",
            "Open descriptors; each client takes two or three",
            merge="keeper",
        ),
        Metric("process_max_fds", "gauge", "Limit of open descriptors", merge="keeper"),
        Metric(
            "process_start_time_seconds", "gauge", "Unix time of the worker's start", merge="keeper"
        ),
    ),
    "Fetch": (
        Metric(
            "forebay_fetch_partitions_total",
            "counter",
            "Partitions of answered Fetches, each with exactly one result and reason",
            ("result", "reason"),
        ),
        Metric(
            "forebay_fetch_bytes_total",
            "counter",
            "Record bytes sent to clients, by result and reason",
            ("result", "reason"),
        ),
        Metric(
            "forebay_fetch_would_hit_bytes_total",
            "counter",
            "Record bytes that memory would have served, with `cache.mode: observe`",
        ),
        Metric(
            "forebay_upstream_fetch_bytes_total",
            "counter",
            "Record bytes that the broker sent: for clients, for the replica fetcher "
            "(`watch`, `proof`), for authorization, for the verifier",
            ("purpose",),
        ),
        Metric(
            "forebay_fetch_looks_total",
            "counter",
            "Partitions evaluated for Fetches, again after each wake-up; idle partitions of a"
            " fetch session are not evaluated",
        ),
        Metric(
            "forebay_fetch_repeated_total",
            "counter",
            "Fetches of many partitions without a session that were evaluated as in one: the"
            " connection's Fetch before had named the same partitions",
        ),
        Metric(
            "forebay_fetch_shared_reads_total",
            "counter",
            "Misses answered by a read that another consumer had in flight",
        ),
        Metric(
            "forebay_fetch_shared_bytes_total",
            "counter",
            "Record bytes of shared reads, counted for each consumer but the first",
        ),
        Metric(
            "forebay_fetch_undelivered_partitions_total",
            "counter",
            "Partitions of Fetches whose client was gone before the response left",
        ),
        Metric(
            "forebay_fetch_wait_seconds",
            "histogram",
            "Time that a delayed Fetch waited for new records",
        ),
        Metric(
            "forebay_fetch_hit_seconds",
            "histogram",
            "Service time of Fetches that Forebay answered, without the time as a delayed Fetch",
        ),
        Metric(
            "forebay_fetch_upstream_seconds",
            "histogram",
            "Time from the arrival of a forwarded Fetch until its response has left",
        ),
        Metric(
            "forebay_fetch_sessions_evicted_total", "counter", "Fetch sessions evicted for others"
        ),
        Metric(
            "forebay_parked_fetches",
            "gauge",
            "Delayed Fetches: they wait for new records or for reads",
            merge="sum",
        ),
        Metric(
            "forebay_authorization_renewals_total",
            "counter",
            "Fetches sent on a client's own connection only to renew its principal's right to a topic",
        ),
        Metric(
            "forebay_authorization_proofs_total",
            "counter",
            "Fetches sent on a client's own connection to learn its right to a topic before records are read",
        ),
        Metric(
            "forebay_authorization_withdrawals_total",
            "counter",
            "Rights that the broker has taken back: of one principal to one topic, on all its connections",
        ),
    ),
    "Produce": (
        Metric(
            "forebay_produce_batches_total",
            "counter",
            "Batches of acknowledged Produces: stored in the cache, or why not",
            ("outcome",),
        ),
        Metric(
            "forebay_produce_seconds",
            "histogram",
            "Time from a Produce, once it may go to the broker, to its response",
        ),
    ),
    "Block cache": (
        Metric(
            "forebay_cache_capacity_bytes",
            "gauge",
            "Size of the arena",
            merge="keeper",
        ),
        Metric(
            "forebay_cache_resident_bytes",
            "gauge",
            "Resident memory of the arena",
            merge="keeper",
        ),
        Metric(
            "forebay_cache_size_bytes",
            "gauge",
            "Bytes of live batches",
            merge="keeper",
        ),
        Metric(
            "forebay_cache_index_bytes",
            "gauge",
            "Bytes of the index in use",
            merge="keeper",
        ),
        Metric(
            "forebay_cache_pinned_bytes",
            "gauge",
            "Bytes of blocks that requests or responses in flight hold",
            merge="keeper",
        ),
        Metric(
            "forebay_cache_limbo_bytes",
            "gauge",
            "Bytes of evicted blocks that requests or responses in flight still hold",
            merge="keeper",
        ),
        Metric(
            "forebay_cache_lock_refusals_total",
            "counter",
            "Questions of workers to the cache that found nothing, since another process was stopped while it held the "
            "cache's lock",
            merge="keeper",
        ),
        Metric(
            "forebay_cache_lent_bytes",
            "gauge",
            "Bytes of blocks that hold large Produces in flight",
            merge="keeper",
        ),
        Metric(
            "forebay_cache_lent_limit_bytes",
            "gauge",
            "Limit of `forebay_cache_lent_bytes`; beyond it large Produces are received on the heap",
            merge="keeper",
        ),
        Metric(
            "forebay_cache_adopted_batches_total",
            "counter",
            "Batches from Produce stored where they were received, without a copy",
            merge="keeper",
        ),
        Metric(
            "forebay_cache_partitions",
            "gauge",
            "Partitions in the index",
            merge="keeper",
        ),
        Metric(
            "forebay_cache_blocks",
            "gauge",
            "Data blocks in use",
            merge="keeper",
        ),
        Metric(
            "forebay_cache_admitted_bytes_total",
            "counter",
            "Bytes stored; the clock of ages in bytes",
            merge="keeper",
        ),
        Metric(
            "forebay_cache_admitted_batches_total",
            "counter",
            "Batches stored, by source",
            ("source",),
            merge="keeper",
        ),
        Metric(
            "forebay_cache_evictions_total",
            "counter",
            "Blocks freed, by reason",
            ("reason",),
            merge="keeper",
        ),
        Metric(
            "forebay_cache_evicted_bytes_total",
            "counter",
            "Bytes of blocks freed",
            merge="keeper",
        ),
        Metric(
            "forebay_cache_skipped_batches_total",
            "counter",
            "Batches not stored: too large for the arena, or all blocks were pinned",
            merge="keeper",
        ),
        Metric(
            "forebay_cache_invalidations_total",
            "counter",
            "Ranges and partitions dropped before their eviction, by reason",
            ("reason",),
            merge="keeper",
        ),
        Metric(
            "forebay_cache_takeovers_total",
            "counter",
            "Arenas that an earlier process left: `taken-over`, or the reason why it was dropped",
            ("takeover",),
            merge="keeper",
        ),
        Metric(
            "forebay_cache_taken_over_partitions_total",
            "counter",
            "Partitions whose batches of an earlier process the broker has confirmed",
            merge="keeper",
        ),
        Metric(
            "forebay_cache_unclaimed_partitions",
            "gauge",
            "Partitions whose batches of an earlier process nobody has asked for or confirmed yet",
            merge="keeper",
        ),
        Metric(
            "forebay_cache_oldest_age_bytes",
            "gauge",
            "Bytes stored since the oldest block in the arena",
            merge="keeper",
        ),
        Metric(
            "forebay_cache_oldest_age_seconds",
            "gauge",
            "Age of the oldest block in the arena",
            merge="keeper",
        ),
    ),
    "Watch": (
        Metric(
            "forebay_watch_partitions",
            "gauge",
            "Partitions that the replica fetcher polls",
            merge="keeper",
        ),
        Metric(
            "forebay_partitions_refused_total",
            "counter",
            "How often a partition was asked for or produced to and not followed, at twice"
            " `limits.watchedPartitions` or without room in the arena: the broker answers for it",
            merge="keeper",
        ),
        Metric(
            "forebay_watch_leases",
            "gauge",
            "Partitions under a lease: memory may serve them now",
            merge="keeper",
        ),
        Metric(
            "forebay_verify_samples_total",
            "counter",
            "Responses from memory sampled for the verifier (`cache.verifyRatio`), by what it found",
            ("verdict",),
        ),
        Metric(
            "forebay_watch_polls_total",
            "counter",
            "Forebay's own Fetch requests to the broker, by purpose",
            ("purpose",),
            merge="keeper",
        ),
        Metric(
            "forebay_watch_asked_partitions_total",
            "counter",
            "Partitions that these requests named: all without a fetch session, the changed ones in one",
            merge="keeper",
        ),
        Metric(
            "forebay_watch_answered_partitions_total",
            "counter",
            "Partitions that the responses to them named: in a fetch session those with news",
            merge="keeper",
        ),
        Metric(
            "forebay_topic_questions_total",
            "counter",
            "Metadata requests about topics that are unknown or whose leader may have "
            "changed, over `own` connections or a client's",
            ("way",),
            merge="keeper",
        ),
        Metric(
            "forebay_topic_questions_dropped_total",
            "counter",
            "Topics dropped from the queue of Metadata requests because it was full",
            merge="keeper",
        ),
        Metric(
            "forebay_watch_lease_lapses_total",
            "counter",
            "Leases that expired before they were renewed",
            merge="keeper",
        ),
        Metric(
            "forebay_transactions_open",
            "gauge",
            "Transactions open on followed partitions",
            merge="keeper",
        ),
        Metric(
            "forebay_transactions_aborted",
            "gauge",
            "Aborted transactions kept for read_committed responses",
            merge="keeper",
        ),
    ),
    "Throttle": (
        Metric(
            "forebay_throttle_disk_sampled",
            "gauge",
            "1 while the disk's counters can be read",
            ("disk",),
            merge="keeper",
        ),
        Metric(
            "forebay_throttle_disk_busy",
            "gauge",
            "1 while misses of history may have to wait",
            ("disk",),
            merge="keeper",
        ),
        Metric(
            "forebay_throttle_disk_load_ratio",
            "gauge",
            "Load of the disk at the last sample: util, weighted by waiting or queued requests, "
            "or the share used of its limit, whichever is greater",
            ("disk",),
            merge="keeper",
        ),
        Metric(
            "forebay_throttle_disk_util_ratio",
            "gauge",
            "Share of time with a request in flight",
            ("disk",),
            merge="keeper",
        ),
        Metric(
            "forebay_throttle_disk_await_seconds",
            "gauge",
            "Mean time of a request of the disk",
            ("disk",),
            merge="keeper",
        ),
        Metric(
            "forebay_throttle_disk_limit_bytes_per_second",
            "gauge",
            "Bytes per second that the disk gives at most, as `named` in the configuration or `recognised`",
            ("disk", "limit"),
            merge="keeper",
        ),
        Metric(
            "forebay_throttle_disk_limit_requests_per_second",
            "gauge",
            "As `forebay_throttle_disk_limit_bytes_per_second`, in requests per second",
            ("disk", "limit"),
            merge="keeper",
        ),
        Metric(
            "forebay_throttle_limit_probes_total",
            "counter",
            "Times that misses were allowed more for three seconds, to find a limit that nobody named",
            ("disk", "probe"),
        ),
        Metric(
            "forebay_throttle_target_ratio",
            "gauge",
            "Load that the throttle aims at: `throttle.target`",
            ("disk",),
            merge="keeper",
        ),
        Metric(
            "forebay_throttle_rate_bytes_per_second",
            "gauge",
            "Rate that misses of history may read at",
            ("disk",),
            merge="keeper",
        ),
        Metric(
            "forebay_throttle_rate_floor_bytes_per_second",
            "gauge",
            "Least rate that misses of history get, whatever the load: `throttle.floor`",
            ("disk",),
            merge="keeper",
        ),
        Metric(
            "forebay_throttle_waiting_requests",
            "gauge",
            "Misses that wait for their disk",
            ("disk",),
            merge="keeper",
        ),
        Metric(
            "forebay_throttle_waiting_bytes",
            "gauge",
            "Bytes that the waiting misses read at most",
            ("disk",),
            merge="keeper",
        ),
        Metric(
            "forebay_throttle_granted_total",
            "counter",
            "Misses sent to the broker, at once or after waiting",
            ("disk",),
        ),
        Metric(
            "forebay_throttle_miss_bytes_total",
            "counter",
            "Record bytes that misses read",
            ("disk",),
        ),
        Metric(
            "forebay_throttle_delayed_total",
            "counter",
            "Misses that waited before they were sent",
            ("disk",),
        ),
        Metric(
            "forebay_throttle_delay_seconds_total", "counter", "Time that misses waited", ("disk",)
        ),
        Metric(
            "forebay_throttle_overdue_total",
            "counter",
            "Misses sent because they had waited for `throttle.maxDelay`",
            ("disk",),
        ),
        Metric(
            "forebay_throttle_cancelled_total",
            "counter",
            "Waiting misses cancelled: the client left or asked for another offset",
            ("disk",),
        ),
        Metric(
            "forebay_throttle_refused_total",
            "counter",
            "Misses answered empty because the queue of waiting misses was full, by limit",
            ("disk", "bound"),
        ),
        Metric(
            "forebay_throttle_ungated_total",
            "counter",
            "Misses of history that are never delayed: their disk is unknown or not sampled",
        ),
        Metric("forebay_lane_requests_total", "counter", "Requests sent over catch-up connections"),
        Metric(
            "forebay_lanes_lost_total",
            "counter",
            "Catch-up connections lost with a request unanswered, or refused",
        ),
    ),
    "Isolation": (
        Metric(
            "forebay_isolation_slots",
            "gauge",
            "Requests that may be at work in the broker",
            ("queue",),
            merge="sum",
        ),
        Metric(
            "forebay_isolation_slots_floor",
            "gauge",
            "Least number of slots of the queue",
            ("queue",),
            merge="sum",
        ),
        Metric(
            "forebay_isolation_in_use",
            "gauge",
            "Requests that hold a slot",
            ("queue",),
            merge="sum",
        ),
        Metric(
            "forebay_isolation_waiting",
            "gauge",
            "Requests that wait for a slot",
            ("queue",),
            merge="sum",
        ),
        Metric(
            "forebay_isolation_waiting_bytes",
            "gauge",
            "Bytes of the requests that wait",
            ("queue",),
            merge="sum",
        ),
        Metric(
            "forebay_isolation_lingering_polls",
            "gauge",
            "Long polls in flight that gave their slot back",
            ("queue",),
            merge="sum",
        ),
        Metric(
            "forebay_isolation_lingering_acks",
            "gauge",
            "Produces with acks=all in flight that gave their slot back",
            ("queue",),
            merge="sum",
        ),
        Metric(
            "forebay_isolation_unread",
            "gauge",
            "Requests in flight that gave their slot back, since their clients do not take answers",
            ("queue",),
            merge="sum",
        ),
        Metric(
            "forebay_isolation_admitted_total", "counter", "Requests sent to the broker", ("queue",)
        ),
        Metric(
            "forebay_isolation_refused_total",
            "counter",
            "Requests refused: the queue was full",
            ("queue",),
        ),
        Metric(
            "forebay_isolation_expired_total",
            "counter",
            "Requests refused after `isolation.maxQueueWait`",
            ("queue",),
        ),
        Metric(
            "forebay_isolation_cancelled_total",
            "counter",
            "Waiting requests whose client left",
            ("queue",),
        ),
        Metric(
            "forebay_isolation_released_total",
            "counter",
            "Slots given back before the response",
            ("queue",),
        ),
        Metric(
            "forebay_processor_slowdown",
            "gauge",
            "Running and waiting time of Forebay's thread over its running time: 1 if it never waits "
            "for a processor",
            merge="max",
        ),
        Metric(
            "forebay_isolation_topics_hanging",
            "gauge",
            "Hanging topics: all their requests but probes are refused",
            merge="max",
        ),
        Metric("forebay_isolation_hangs_total", "counter", "Times that a topic began to hang"),
        Metric(
            "forebay_isolation_recoveries_total",
            "counter",
            "Times that a hanging topic answered again",
        ),
        Metric("forebay_isolation_probes_total", "counter", "Probes sent to hanging topics"),
        Metric(
            "forebay_produce_refused_total",
            "counter",
            "Partitions refused with NOT_ENOUGH_REPLICAS (19)",
        ),
        Metric(
            "forebay_fetch_refused_total",
            "counter",
            "Fetches answered empty because a queue was full or a quota used up",
        ),
    ),
    "Connections": (
        Metric(
            "forebay_connections_total",
            "counter",
            "Client connections accepted; active = total - errors - disconnects",
        ),
        Metric(
            "forebay_active_connections",
            "gauge",
            "Client connections open now",
            merge="sum",
        ),
        Metric(
            "forebay_listener_connections",
            "gauge",
            "Client connections open now, by the `name` of their listener",
            ("listener",),
            merge="sum",
        ),
        Metric(
            "forebay_listener_accepted_total",
            "counter",
            "Client connections accepted, by the `name` of their listener; without those whose TLS"
            " handshake failed",
            ("listener",),
        ),
        Metric(
            "forebay_pass_through_bytes_total",
            "counter",
            "Bytes passed on unread by a listener with `passThrough`, by its `name`: to the broker"
            " (`request`) and to clients (`response`)",
            ("listener", "direction"),
        ),
        Metric(
            "forebay_connection_errors_total",
            "counter",
            "Client connections that ended by an error",
        ),
        Metric(
            "forebay_disconnects_total",
            "counter",
            "Client connections that ended otherwise, by cause; those that host rules refuse included",
            ("cause",),
        ),
        Metric(
            "forebay_bad_frames_total",
            "counter",
            "Frames that could not be read: requests, which end their connection, and Fetch responses",
        ),
        Metric(
            "forebay_wide_requests_total",
            "counter",
            "Produces and Fetches relayed unread because they name more than `limits.requestPartitions`",
        ),
        Metric(
            "forebay_internal_errors_total",
            "counter",
            "Errors inside Forebay: the request was forwarded, or a batch was not stored",
        ),
        Metric(
            "forebay_blind_connections_total",
            "counter",
            "Connections relayed unread (SaslHandshake version 0)",
        ),
        Metric(
            "forebay_delegation_tokens_total",
            "counter",
            "Delegation tokens that the broker has created, renewed and expired for Forebay",
            ("token_operation",),
        ),
        Metric(
            "forebay_delegation_token_failures_total",
            "counter",
            "Delegation tokens that could not be had or used, by reason: `authorization` (Forebay may not "
            "create it), `disabled` (the broker has no tokens), `listener` (its listener does not fit), `refused` (the "
            "broker does not accept the token), `limit` (`delegationTokens.limit`), `connection` (the broker "
            "does not answer), `error`. Clients are closed for want of a token",
            ("token_failure",),
        ),
        Metric(
            "forebay_token_sign_ins_total",
            "counter",
            "Broker connections signed in by a delegation token, and signed in again",
        ),
        Metric(
            "forebay_upstream_connections",
            "gauge",
            "Broker connections open now",
            merge="sum",
        ),
        Metric(
            "forebay_upstream_silent_seconds",
            "gauge",
            "Time for which the broker has not answered Forebay's own request, or was not "
            "reachable; 0: it has answered",
            merge="max",
        ),
        Metric(
            "forebay_upstream_connect_errors_total",
            "counter",
            "Failed attempts to connect to the broker",
        ),
        Metric(
            "forebay_upstream_reopens_total",
            "counter",
            "Broker connections reopened without closing the client",
        ),
    ),
    "Authentication": (
        Metric(
            "forebay_authentications_total",
            "counter",
            "SASL exchanges of clients that the broker has ended, sign-ins anew included, and handshakes that it"
            " refused",
            ("mechanism", "authentication"),
        ),
        Metric(
            "forebay_own_sign_in_refusals_total",
            "counter",
            "Refusals of Forebay's own connections by the broker: wrong `upstreamCredentials`, or none",
        ),
    ),
    "Requests by API": (
        Metric(
            "forebay_relayed_request_seconds",
            "histogram",
            "Time of relayed requests, all but Produce and Fetch, from arrival to the broker's response; an API's"
            " series begin with its first response",
            ("api_key",),
        ),
        Metric(
            "forebay_relayed_unanswered_total",
            "counter",
            "Relayed requests that got no response: the client left, or the broker connection was lost",
            ("api_key",),
        ),
        Metric(
            "forebay_response_errors_total",
            "counter",
            "Errors of the broker in responses. Of Produce and Fetch those of partitions, where Forebay reads the"
            " response; of others those of the whole response",
            ("api_key",),
        ),
        Metric(
            "forebay_response_error_codes_total",
            "counter",
            "As `forebay_response_errors_total`, by the name of the code",
            ("api_key", "error"),
        ),
    ),
    "Hops": tuple(
        Metric(
            f"forebay_{hop}{suffix}_total",
            "counter",
            f"{what}{unit}, by API (`unknown`: none of Kafka's)",
            ("api_key",),
        )
        for hop, what in _HOPS
        for suffix, unit in (("", ""), ("_bytes", ": bytes"))
    ),
    "Limits": (
        Metric(
            "forebay_in_flight_bytes",
            "gauge",
            "Bytes of requests or responses in memory",
            ("direction",),
            merge="sum",
        ),
        Metric(
            "forebay_unfinished_frame_bytes",
            "gauge",
            "Part of `forebay_in_flight_bytes` charged for incomplete frames",
            ("direction",),
            merge="sum",
        ),
        Metric(
            "forebay_in_flight_limit_bytes",
            "gauge",
            "Limit of `forebay_in_flight_bytes`; sockets are not read at it",
            ("direction",),
            merge="sum",
        ),
        Metric(
            "forebay_reads_paused_total",
            "counter",
            "Times that a socket was paused at the limit",
            ("direction",),
        ),
        Metric(
            "forebay_reads_paused",
            "gauge",
            "Sockets paused until bytes in flight fall below the limit",
            ("direction",),
            merge="sum",
        ),
        Metric(
            "forebay_queue_depth",
            "gauge",
            "Entries in the queue",
            ("queue",),
            merge="sum",
        ),
        Metric(
            "forebay_queue_limit",
            "gauge",
            "Limit of the queue",
            ("queue",),
            merge="sum",
        ),
    ),
    "Access log": (
        Metric("forebay_access_log_written_lines_total", "counter", "Lines written"),
        Metric(
            "forebay_access_log_written_bytes_total", "counter", "Bytes written, before compression"
        ),
        Metric(
            "forebay_access_log_dropped_lines_total",
            "counter",
            "Lines dropped: queue full or disk failing",
        ),
        Metric(
            "forebay_access_log_pending_files",
            "gauge",
            "Finished files that wait for compression",
            merge="sum",
        ),
        Metric(
            "forebay_access_log_counters_line",
            "gauge",
            "Number of the `counters` line with exactly what this process's Fetch counters have in the scrape; 0: none."
            " A worker that has ended keeps its own",
            ("boot",),
            merge="max",
        ),
        Metric(
            "forebay_access_log_baseline_line",
            "gauge",
            "Number of the `counters` line with what a worker had counted before this keeper's first look at it, which"
            " the scrape's counters leave out; 0: nothing is left out",
            ("boot",),
            merge="max",
        ),
    ),
    "Own log": (
        Metric(
            "forebay_log_dropped_lines_total",
            "counter",
            "Lines of Forebay's own log dropped because standard error is closed, or nobody reads it",
        ),
        Metric(
            "forebay_log_suppressed_lines_total",
            "counter",
            "Lines of Forebay's own log counted in the field `suppressed` of a line of the "
            "same cause; one line a second is written",
        ),
    ),
    "Canary": (
        Metric(
            "forebay_canary_acknowledgement_seconds",
            "histogram",
            "Time from a canary's record to its acknowledgement by all replicas in sync, through Forebay"
            " (`through`) and past it (`direct`). This section's metrics are those of `forebay canary`, on a port"
            " of its own",
            ("path",),
        ),
        Metric(
            "forebay_canary_end_to_end_seconds",
            "histogram",
            "Time from a canary's record to its receipt by the consumer of the same path",
            ("path",),
        ),
        Metric(
            "forebay_canary_failures_total",
            "counter",
            "Records of the canary that failed, by step; `connect` includes the topic and a first record",
            ("path", "step"),
        ),
        Metric(
            "forebay_canary_rounds_total",
            "counter",
            "Rounds of the canary: one record on each path",
        ),
        Metric(
            "forebay_canary_slow_rounds_total",
            "counter",
            "Rounds in which the latency through Forebay was above the bar (`--factor`, `--plus`)",
        ),
        Metric(
            "forebay_canary_last_round_timestamp_seconds",
            "gauge",
            "Unix time of the last round's end; 0: there was none",
            merge="max",
        ),
    ),
}
"""The metrics by section of the documentation. Those of "Canary" are no part of Forebay's own scrape."""

CATALOG: Final[dict[str, Metric]] = {
    metric.name: metric for group in GROUPS.values() for metric in group
}
