"""Counters of the data path: plain integers, read by the metrics scrape.

Owns nothing but numbers. Must not know what is counted: results and reasons are those of the table
in `metrics.access_log_schema`. Invariant: no client can make a table grow by what it sends.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from metrics.histogram import Histogram
from protocol.api import APIS

WAIT_BOUNDS_S = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)
UNKNOWN_KEY = -1


@dataclass(slots=True)
class Traffic:
    """Frames and bytes of one API key at one of the four points of a request's way."""

    frames: int = 0
    size_bytes: int = 0

    def add(self, frames: int, size_bytes: int) -> None:
        """Count `frames` more, of so many bytes together."""
        self.frames += frames
        self.size_bytes += size_bytes


class Hops(dict[int, Traffic]):
    """Traffic by API key. All keys that Kafka does not have share UNKNOWN_KEY: a client may send
    65,536 of them.
    """

    def __missing__(self, api_key: int) -> Traffic:
        known = api_key if api_key in APIS else UNKNOWN_KEY
        return self.setdefault(known, Traffic())


@dataclass(slots=True)
class Counters:
    """The counts of one process since its start."""

    connections: int = 0
    active_connections: int = 0
    connection_errors: int = 0
    blind_connections: int = 0
    bad_frames: int = 0
    wide_requests: int = 0
    internal_errors: int = 0
    upstream_connect_errors: int = 0
    upstream_reopened: int = 0
    catch_up_losses: int = 0
    produce_refused: int = 0
    fetch_refused: int = 0
    catch_up_requests: int = 0
    disconnects: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    requests_in: Hops = field(default_factory=Hops)
    requests_out: Hops = field(default_factory=Hops)
    responses_in: Hops = field(default_factory=Hops)
    responses_out: Hops = field(default_factory=Hops)
    fetch_partitions: defaultdict[tuple[str, str], int] = field(
        default_factory=lambda: defaultdict(int)
    )
    fetch_bytes: defaultdict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    undelivered_partitions: int = 0
    would_hit_bytes: int = 0
    looked_partitions: int = 0
    shared_reads: int = 0
    shared_read_bytes: int = 0
    upstream_fetch_bytes: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    produce_batches: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    admitted_batches: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    invalidations: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    watch_requests: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    watch_asked_partitions: int = 0
    watch_answered_partitions: int = 0
    verified: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    lease_lapses: int = 0
    topic_questions: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    topic_questions_dropped: int = 0
    parked_fetches: int = 0
    authorization_renewals: int = 0
    authorization_proofs: int = 0
    fetch_wait_s: Histogram = field(default_factory=lambda: Histogram(WAIT_BOUNDS_S))
    fetch_hit_s: Histogram = field(default_factory=lambda: Histogram(WAIT_BOUNDS_S))
    fetch_upstream_s: Histogram = field(default_factory=lambda: Histogram(WAIT_BOUNDS_S))
    produce_s: Histogram = field(default_factory=lambda: Histogram(WAIT_BOUNDS_S))
