"""Every metric of Forebay, once: name, type, labels, meaning.

Owns the names that dashboards, alerts and the audit rely on; `metrics.catalog_docs` writes docs/metrics.md from
them. Must not know where a value comes from.
Invariants: names follow Prometheus' rules (base units last, counters end in _total); no label is a client id,
a topic or an offset, nor any other text or number from the wire; a label's values are listed here wherever they are
a closed set.
"""

from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """One metric. `labels` are names in the order in which samples give their values."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


LABEL_VALUES: Final[dict[str, tuple[str, ...]]] = {
    "purpose": ("client", "watch", "proof", "authorization", "verify"),
    "verdict": ("equal", "mismatch", "unanswered", "outdated", "dropped"),
    "direction": ("request", "response"),
    "bound": ("requests", "bytes"),
    "way": ("own", "client"),
}
"""Labels whose values are a closed set, as result and reason are; a strict collector refuses any other."""

_HOPS = (
    ("client_to_proxy_request", "Requests received from clients"),
    ("proxy_to_server_request", "Requests sent to the broker on behalf of clients"),
    ("server_to_proxy_response", "Responses received from the broker for clients"),
    ("proxy_to_client_response", "Responses sent to clients, from memory or from the broker"),
)

GROUPS: Final[dict[str, tuple[Metric, ...]]] = {
    "Process": (
        Metric("forebay_build_info", "gauge", "Always 1; which build runs", ("version", "commit_id")),
        Metric("forebay_ready", "gauge", "1 when every listener is bound and its broker reachable, else 0"),
    ),
    "Fetch": (
        Metric(
            "forebay_fetch_partitions_total",
            "counter",
            "Partitions of fetches answered, each with exactly one result and reason",
            ("result", "reason"),
        ),
        Metric(
            "forebay_fetch_bytes_total",
            "counter",
            "Record bytes handed to clients, by result and reason",
            ("result", "reason"),
        ),
        Metric(
            "forebay_fetch_would_hit_bytes_total",
            "counter",
            "Record bytes that memory would have answered, with `cache.mode: observe`",
        ),
        Metric(
            "forebay_upstream_fetch_bytes_total",
            "counter",
            "Record bytes that the broker sent: for clients, for the watch, proofs, authorization, verifier",
            ("purpose",),
        ),
        Metric(
            "forebay_fetch_looks_total",
            "counter",
            "Partitions that fetches have been planned for, again after each wake-up; those of a fetch session "
            "that have nothing new are not looked at",
        ),
        Metric(
            "forebay_fetch_shared_reads_total",
            "counter",
            "Misses that were answered by a read which another consumer had under way",
        ),
        Metric(
            "forebay_fetch_shared_bytes_total",
            "counter",
            "Record bytes that several consumers were given of one read, all but the first",
        ),
        Metric(
            "forebay_fetch_undelivered_partitions_total",
            "counter",
            "Partitions of fetches whose client had gone before the answer left",
        ),
        Metric("forebay_fetch_wait_seconds", "histogram", "Time a fetch was parked at the tail"),
        Metric(
            "forebay_fetch_hit_seconds",
            "histogram",
            "Service time of fetches answered from memory, parking apart",
        ),
        Metric("forebay_fetch_upstream_seconds", "histogram", "Time a forwarded fetch waited for the broker"),
        Metric(
            "forebay_fetch_sessions_evicted_total",
            "counter",
            "Fetch sessions of clients that made room for others",
        ),
        Metric("forebay_parked_fetches", "gauge", "Fetches that wait at the tail for new data"),
        Metric(
            "forebay_authorization_renewals_total",
            "counter",
            "Fetches sent on a client's own connection only to renew its right to a topic",
        ),
        Metric(
            "forebay_authorization_proofs_total",
            "counter",
            "Fetches sent on a client's own connection to learn its right to a topic before anything is read for it",
        ),
    ),
    "Produce": (
        Metric(
            "forebay_produce_batches_total",
            "counter",
            "Batches of answered Produces, by what became of them in the cache",
            ("outcome",),
        ),
        Metric(
            "forebay_produce_seconds",
            "histogram",
            "From a Produce's last byte to its answer handed to the client",
        ),
    ),
    "Block cache": (
        Metric("forebay_cache_capacity_bytes", "gauge", "Size of the arena"),
        Metric("forebay_cache_resident_bytes", "gauge", "Memory that the arena has taken so far"),
        Metric("forebay_cache_size_bytes", "gauge", "Bytes of live batches"),
        Metric("forebay_cache_index_bytes", "gauge", "Bytes of the index in use"),
        Metric(
            "forebay_cache_pinned_bytes", "gauge", "Bytes of blocks that requests or responses under way hold"
        ),
        Metric(
            "forebay_cache_limbo_bytes", "gauge", "Bytes of evicted blocks that wait for their last reader"
        ),
        Metric(
            "forebay_cache_lent_bytes",
            "gauge",
            "Bytes of blocks that large Produces under way were, or are being, received into",
        ),
        Metric(
            "forebay_cache_lent_limit_bytes", "gauge", "Beyond it large Produces are received on the heap"
        ),
        Metric(
            "forebay_cache_adopted_batches_total",
            "counter",
            "Batches from Produce that were stored where they were received, without a copy",
        ),
        Metric("forebay_cache_partitions", "gauge", "Partitions that the index knows"),
        Metric("forebay_cache_blocks", "gauge", "Data blocks in use"),
        Metric("forebay_cache_admitted_bytes_total", "counter", "Bytes admitted; ages in bytes count in it"),
        Metric(
            "forebay_cache_admitted_batches_total",
            "counter",
            "Batches admitted, by where they came from",
            ("source",),
        ),
        Metric("forebay_cache_evictions_total", "counter", "Blocks freed, by why", ("reason",)),
        Metric("forebay_cache_evicted_bytes_total", "counter", "Bytes of blocks freed"),
        Metric(
            "forebay_cache_skipped_batches_total",
            "counter",
            "Batches that did not enter: too large for the arena, or all room was pinned",
        ),
        Metric(
            "forebay_cache_invalidations_total",
            "counter",
            "Ranges dropped because of the log, by why",
            ("reason",),
        ),
        Metric(
            "forebay_cache_oldest_age_bytes", "gauge", "Bytes admitted since the oldest block in the arena"
        ),
        Metric(
            "forebay_cache_oldest_age_seconds", "gauge", "Time since the oldest block in the arena was begun"
        ),
    ),
    "Watch": (
        Metric("forebay_watch_partitions", "gauge", "Partitions that the watch follows"),
        Metric("forebay_watch_leases", "gauge", "Partitions that memory may serve now"),
        Metric(
            "forebay_verify_samples_total",
            "counter",
            "Answers from memory that were read again from the broker (`cache.verifyRatio`), by what came of it",
            ("verdict",),
        ),
        Metric(
            "forebay_watch_polls_total", "counter", "Forebay's own Fetch requests to the broker", ("purpose",)
        ),
        Metric(
            "forebay_topic_questions_total",
            "counter",
            "Metadata requests about topics that are not known, or whose leader may have changed, by whose link asks",
            ("way",),
        ),
        Metric(
            "forebay_topic_questions_dropped_total",
            "counter",
            "Topics that were not asked about, since too many others wait to be",
        ),
        Metric("forebay_watch_lease_lapses_total", "counter", "Leases that expired before they were renewed"),
        Metric("forebay_transactions_open", "gauge", "Transactions open on followed partitions"),
        Metric(
            "forebay_transactions_aborted", "gauge", "Aborted transactions kept, to be told to read_committed"
        ),
    ),
    "Throttle": (
        Metric("forebay_throttle_disk_sampled", "gauge", "1 while the disk can be looked at", ("disk",)),
        Metric(
            "forebay_throttle_disk_busy", "gauge", "1 while misses of this disk may have to wait", ("disk",)
        ),
        Metric(
            "forebay_throttle_disk_load_ratio",
            "gauge",
            "The disk's load at the last look: util, as far as requests also wait or queue",
            ("disk",),
        ),
        Metric(
            "forebay_throttle_disk_util_ratio", "gauge", "Share of time with a request in flight", ("disk",)
        ),
        Metric("forebay_throttle_disk_await_seconds", "gauge", "Mean time of the disk's requests", ("disk",)),
        Metric(
            "forebay_throttle_target_ratio",
            "gauge",
            "The load at which misses are to hold the disk: throttle.target",
            ("disk",),
        ),
        Metric(
            "forebay_throttle_rate_bytes_per_second",
            "gauge",
            "Bytes of misses that the disk is given",
            ("disk",),
        ),
        Metric(
            "forebay_throttle_rate_floor_bytes_per_second",
            "gauge",
            "What it is given at least, whatever its load: throttle.floor",
            ("disk",),
        ),
        Metric("forebay_throttle_waiting_requests", "gauge", "Misses that wait for their disk", ("disk",)),
        Metric("forebay_throttle_waiting_bytes", "gauge", "What they would read at most", ("disk",)),
        Metric(
            "forebay_throttle_granted_total", "counter", "Misses let go, at once or in their turn", ("disk",)
        ),
        Metric(
            "forebay_throttle_miss_bytes_total", "counter", "Record bytes that misses have read", ("disk",)
        ),
        Metric(
            "forebay_throttle_delayed_total", "counter", "Misses that had to wait before they went", ("disk",)
        ),
        Metric("forebay_throttle_delay_seconds_total", "counter", "Time that misses have waited", ("disk",)),
        Metric(
            "forebay_throttle_overdue_total",
            "counter",
            "Misses that went because of throttle.maxDelay",
            ("disk",),
        ),
        Metric(
            "forebay_throttle_cancelled_total",
            "counter",
            "Waiting misses that nobody wanted any more",
            ("disk",),
        ),
        Metric(
            "forebay_throttle_refused_total",
            "counter",
            "Misses that found no room to wait and were answered empty, by the bound",
            ("disk", "bound"),
        ),
        Metric(
            "forebay_throttle_ungated_total",
            "counter",
            "Misses of history whose disk is not known or not seen: never delayed",
        ),
        Metric("forebay_lane_requests_total", "counter", "Requests sent to the broker's second listener"),
        Metric("forebay_lanes_lost_total", "counter", "Second links lost with something unanswered on them"),
    ),
    "Isolation": (
        Metric("forebay_isolation_slots", "gauge", "Requests that may be at work in the broker", ("queue",)),
        Metric("forebay_isolation_slots_floor", "gauge", "Slots that the queue always has", ("queue",)),
        Metric("forebay_isolation_in_use", "gauge", "Requests that hold a slot", ("queue",)),
        Metric("forebay_isolation_waiting", "gauge", "Requests that wait for a slot", ("queue",)),
        Metric("forebay_isolation_waiting_bytes", "gauge", "Bytes of the requests that wait", ("queue",)),
        Metric(
            "forebay_isolation_lingering_polls",
            "gauge",
            "Long polls at the broker without a slot",
            ("queue",),
        ),
        Metric(
            "forebay_isolation_lingering_acks",
            "gauge",
            "Waits for followers at the broker without a slot",
            ("queue",),
        ),
        Metric(
            "forebay_isolation_admitted_total", "counter", "Requests let through to the broker", ("queue",)
        ),
        Metric(
            "forebay_isolation_refused_total", "counter", "Requests that found no room to wait", ("queue",)
        ),
        Metric(
            "forebay_isolation_expired_total", "counter", "Requests refused after maxQueueWait", ("queue",)
        ),
        Metric("forebay_isolation_canceled_total", "counter", "Requests whose client went away", ("queue",)),
        Metric(
            "forebay_isolation_released_total", "counter", "Slots given back before the answer", ("queue",)
        ),
        Metric("forebay_isolation_topics_hanging", "gauge", "Topics that hang: refused but for probes"),
        Metric("forebay_isolation_hangs_total", "counter", "Times that a topic was found hanging"),
        Metric("forebay_isolation_recoveries_total", "counter", "Times that one answered again"),
        Metric(
            "forebay_isolation_probes_total", "counter", "Requests let through to see whether a topic answers"
        ),
        Metric("forebay_produce_refused_total", "counter", "Partitions of Produces refused with error 19"),
        Metric("forebay_fetch_refused_total", "counter", "Fetches answered empty: a full queue, or a quota"),
    ),
    "Connections": (
        Metric(
            "forebay_connections_total",
            "counter",
            "Client connections accepted; active = total - errors - disconnects",
        ),
        Metric("forebay_active_connections", "gauge", "Client connections open now"),
        Metric("forebay_connection_errors_total", "counter", "Client connections that ended by an error"),
        Metric(
            "forebay_disconnects_total",
            "counter",
            "Client connections that ended otherwise, by cause",
            ("cause",),
        ),
        Metric(
            "forebay_bad_frames_total", "counter", "Frames that ended their connection: length, header, pace"
        ),
        Metric(
            "forebay_wide_requests_total",
            "counter",
            "Produces and Fetches relayed unread, since they name more than `limits.requestPartitions`",
        ),
        Metric(
            "forebay_internal_errors_total",
            "counter",
            "Errors of Forebay's own: something was not learned or stored, or a request was forwarded",
        ),
        Metric(
            "forebay_blind_connections_total",
            "counter",
            "Connections passed through unread (SaslHandshake v0)",
        ),
        Metric("forebay_upstream_connections", "gauge", "Broker connections open now"),
        Metric(
            "forebay_upstream_silent_seconds",
            "gauge",
            "For how long the broker has owed an answer to Forebay itself, or could not be reached; 0: it has answered",
        ),
        Metric(
            "forebay_upstream_connect_errors_total", "counter", "Attempts to reach the broker that failed"
        ),
        Metric(
            "forebay_upstream_reopens_total",
            "counter",
            "Broker connections reopened without the client noticing",
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
        Metric("forebay_in_flight_bytes", "gauge", "Bytes of requests or responses held", ("direction",)),
        Metric(
            "forebay_unfinished_frame_bytes",
            "gauge",
            "Of these: charged for frames that have begun and not ended",
            ("direction",),
        ),
        Metric(
            "forebay_in_flight_limit_bytes",
            "gauge",
            "Their bound, at which sockets are not read",
            ("direction",),
        ),
        Metric(
            "forebay_reads_paused_total",
            "counter",
            "Times a socket was not read at the bound",
            ("direction",),
        ),
        Metric(
            "forebay_reads_paused", "gauge", "Sockets that wait for bytes in flight to fall", ("direction",)
        ),
        Metric("forebay_queue_depth", "gauge", "Entries waiting", ("queue",)),
        Metric("forebay_queue_limit", "gauge", "Bound of the queue", ("queue",)),
    ),
    "Access log": (
        Metric("forebay_access_log_written_lines_total", "counter", "Lines written"),
        Metric("forebay_access_log_written_bytes_total", "counter", "Bytes written, before compression"),
        Metric(
            "forebay_access_log_dropped_lines_total", "counter", "Lines dropped: queue full or disk failing"
        ),
        Metric("forebay_access_log_pending_files", "gauge", "Finished files that wait to be compressed"),
    ),
    "Own log": (
        Metric(
            "forebay_log_dropped_lines_total",
            "counter",
            "Lines of Forebay's own log dropped: standard error is not read, or not there",
        ),
        Metric(
            "forebay_log_suppressed_lines_total",
            "counter",
            "Lines of Forebay's own log that one of the same cause counts (`suppressed`): one a second is written",
        ),
    ),
}
"""The metrics by section of the documentation."""

CATALOG: Final[dict[str, Metric]] = {metric.name: metric for group in GROUPS.values() for metric in group}
