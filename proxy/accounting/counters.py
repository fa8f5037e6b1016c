"""Counters of the data path: plain integers, read by the metrics scrape.

Owns nothing but numbers. Must not know what is counted: results and reasons are those of the table
in `metrics.access_log_schema`. Invariant: no client can make a table grow by what it sends.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from metrics.histogram import Histogram
from protocol.api import APIS
from protocol.error_names import NAMES

WAIT_BOUNDS_S = (
    *(0.0001, 0.00025, 0.0005),
    *(0.001, 0.0025, 0.005),
    *(0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5),
    *(1.0, 5.0, 30.0),
)
"""As many as C has cells for (proxy/produce/native/pipeline.h)."""
HIT_BOUNDS_S = (
    *(0.00002, 0.00005),
    *(0.0001, 0.0002, 0.0005),
    *(0.001, 0.002, 0.005),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 1.0),
)
"""Memory answers within tens of microseconds."""
RELAY_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
LAG_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
UNKNOWN_KEY = -1
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
OTHER_MECHANISM = "other"


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


def _by_label() -> defaultdict[str, int]:
    return defaultdict(int)


def _by_key() -> defaultdict[int, int]:
    return defaultdict(int)


def _by_code() -> defaultdict[tuple[int, int], int]:
    return defaultdict(int)


def _by_verdict() -> defaultdict[tuple[str, str], int]:
    return defaultdict(int)


def _waits() -> Histogram:
    return Histogram(WAIT_BOUNDS_S)


def _hits() -> Histogram:
    return Histogram(HIT_BOUNDS_S)


def _lags() -> Histogram:
    return Histogram(LAG_BOUNDS_S)


class RelayTimes(dict[int, Histogram]):
    """Seconds from request to response, by API key, as `Hops`."""

    def __missing__(self, api_key: int) -> Histogram:
        known = api_key if api_key in APIS else UNKNOWN_KEY
        return self.setdefault(known, Histogram(RELAY_BOUNDS_S))


@dataclass(slots=True)
class TrafficCounts:
    """Requests and responses at the four points of their way."""

    requests_in: Hops = field(default_factory=Hops)
    requests_out: Hops = field(default_factory=Hops)
    responses_in: Hops = field(default_factory=Hops)
    responses_out: Hops = field(default_factory=Hops)


@dataclass(slots=True)
class ApiCounts:
    """Responses of the broker by API key: the time that relayed ones took, errors by code, and requests that got
    none. Keys and codes that Kafka does not have are UNKNOWN_KEY and 0.
    """

    took_s: RelayTimes = field(default_factory=RelayTimes)
    errors: defaultdict[tuple[int, int], int] = field(default_factory=_by_code)
    unanswered: defaultdict[int, int] = field(default_factory=_by_key)

    def answer(self, api_key: int, error_code: int, took_s: float) -> None:
        """Count the response to a relayed request; `error_code` 0: none is known."""
        self.took_s[api_key].observe(took_s)
        if error_code:
            self.fail(api_key, error_code)

    def fail(self, api_key: int, error_code: int) -> None:
        """Count an error of the broker, of a response or of one of its partitions."""
        known = api_key if api_key in APIS else UNKNOWN_KEY
        self.errors[known, error_code if error_code in NAMES else 0] += 1

    def lose(self, api_key: int) -> None:
        """Count a relayed request whose connection ended before its response."""
        self.unanswered[api_key if api_key in APIS else UNKNOWN_KEY] += 1


@dataclass(slots=True)
class AuthenticationCounts:
    """SASL exchanges of clients that the broker has ended, by mechanism; and Forebay's own that it refused."""

    accepted: defaultdict[str, int] = field(default_factory=_by_label)
    refused: defaultdict[str, int] = field(default_factory=_by_label)
    own_refused: int = 0

    def end(self, mechanism: str, is_accepted: bool) -> None:
        """Count the end of a client's exchange."""
        known = mechanism if mechanism in MECHANISMS else OTHER_MECHANISM
        (self.accepted if is_accepted else self.refused)[known] += 1

    def refuse_own(self) -> None:
        """Count a refusal of `upstreamCredentials`, or of a connection without them."""
        self.own_refused += 1


@dataclass(slots=True)
class LoopCounts:
    """How late the event loop runs a timer that is due."""

    lag_s: Histogram = field(default_factory=_lags)

    def note(self, late_s: float) -> None:
        """Count one look."""
        self.lag_s.observe(late_s)


@dataclass(slots=True)
class FaultCounts:
    """Errors of Forebay, and frames of either side that cannot be read."""

    internal_errors: int = 0
    bad_frames: int = 0

    def count_error(self) -> None:
        """Count an exception of Forebay's own code."""
        self.internal_errors += 1

    def count_bad_frame(self) -> None:
        """Count a frame that cannot be read."""
        self.bad_frames += 1


@dataclass(slots=True)
class ClientCounts:
    """Connections of clients: how they begin and end, and what Forebay does on them.

    `disconnects` holds ends without an error, by cause.
    """

    connections: int = 0
    active_connections: int = 0
    connection_errors: int = 0
    disconnects: defaultdict[str, int] = field(default_factory=_by_label)
    blind_connections: int = 0
    wide_requests: int = 0
    authorization_renewals: int = 0
    authorization_proofs: int = 0
    rights_withdrawn: int = 0

    def open(self) -> None:
        """Count a connection that begins."""
        self.connections += 1
        self.active_connections += 1

    def close(self, cause: str, is_error: bool) -> None:
        """Count the end of a connection that `open` has counted; `cause` labels an end without
        error.
        """
        self.active_connections -= 1
        if is_error:
            self.connection_errors += 1
        else:
            self.disconnects[cause] += 1

    def reject(self, cause: str) -> None:
        """Count a connection that ends before it has begun: its TLS handshake has failed."""
        self.connections += 1
        self.disconnects[cause] += 1

    def go_blind(self) -> None:
        """Count a connection whose bytes pass unread from now on."""
        self.blind_connections += 1

    def count_wide(self) -> None:
        """Count a request that names too many partitions to be read."""
        self.wide_requests += 1

    def renew(self) -> None:
        """Count a renewal of a connection's rights."""
        self.authorization_renewals += 1

    def prove(self) -> None:
        """Count a first question for a connection's rights."""
        self.authorization_proofs += 1

    def withdraw(self) -> None:
        """Count a right of a principal that the broker has taken back."""
        self.rights_withdrawn += 1


@dataclass(slots=True)
class UpstreamCounts:
    """Connections to the broker, and record bytes that it has sent, by purpose."""

    connect_errors: int = 0
    reopened: int = 0
    catch_up_requests: int = 0
    catch_up_losses: int = 0
    fetch_bytes: defaultdict[str, int] = field(default_factory=_by_label)

    def fail(self) -> None:
        """Count a connection that could not be made."""
        self.connect_errors += 1

    def reopen(self) -> None:
        """Count an idle connection that the broker closed; the next request opens it again."""
        self.reopened += 1

    def catch_up(self) -> None:
        """Count a request on a catch-up connection."""
        self.catch_up_requests += 1

    def lose_catch_up(self) -> None:
        """Count a catch-up connection that was lost."""
        self.catch_up_losses += 1


@dataclass(slots=True)
class TokenCounts:
    """Delegation tokens, sign-ins by them, and what failed, by reason."""

    created: int = 0
    renewed: int = 0
    expired: int = 0
    sign_ins: int = 0
    failures: defaultdict[str, int] = field(default_factory=_by_label)

    def create(self) -> None:
        """Count a token that the broker has created."""
        self.created += 1

    def renew(self) -> None:
        """Count a token that the broker has renewed."""
        self.renewed += 1

    def expire(self, is_answered: bool) -> None:
        """Count a token that the broker was asked to expire, if it has answered."""
        self.expired += is_answered

    def sign_in(self) -> None:
        """Count a connection that has signed in, or has done so again."""
        self.sign_ins += 1

    def fail(self, reason: str) -> None:
        """Count a token that could not be had or used."""
        self.failures[reason] += 1


@dataclass(slots=True)
class FetchCounts:
    """Responses to Fetches. `partitions` and `record_bytes` are by result and reason; times are in
    seconds.
    """

    partitions: defaultdict[tuple[str, str], int] = field(default_factory=_by_verdict)
    record_bytes: defaultdict[tuple[str, str], int] = field(default_factory=_by_verdict)
    undelivered_partitions: int = 0
    would_hit_bytes: int = 0
    looked_partitions: int = 0
    repeated: int = 0
    refused: int = 0
    wait_s: Histogram = field(default_factory=_waits)
    hit_s: Histogram = field(default_factory=_hits)
    upstream_s: Histogram = field(default_factory=_waits)

    def lose(self, partitions: int) -> None:
        """Count partitions whose response never left."""
        self.undelivered_partitions += partitions

    def refuse(self) -> None:
        """Count a Fetch that is answered empty, before the broker has seen it."""
        self.refused += 1

    def observe(self, would_hit_bytes: int) -> None:
        """Count record bytes that memory would have served, in the mode `observe`."""
        self.would_hit_bytes += would_hit_bytes


@dataclass(slots=True)
class ProduceCounts:
    """Produces: what was decided of their batches, refused batches, and seconds until the response."""

    batches: defaultdict[str, int] = field(default_factory=_by_label)
    refused: int = 0
    took_s: Histogram = field(default_factory=_waits)

    def refuse(self, batches: int) -> None:
        """Count batches that are refused, before the broker has seen them."""
        self.refused += batches


@dataclass(slots=True)
class StoredCounts:
    """Batches that entered memory, by source, and ranges that were dropped, by reason. Of arenas that an earlier
    process left: what became of them, and partitions of which the bytes were proven.
    """

    batches: defaultdict[str, int] = field(default_factory=_by_label)
    invalidations: defaultdict[str, int] = field(default_factory=_by_label)
    takeovers: defaultdict[str, int] = field(default_factory=_by_label)
    taken_over_partitions: int = 0


@dataclass(slots=True)
class WatchCounts:
    """The replica fetcher's polls, by purpose, and the partitions in them."""

    requests: defaultdict[str, int] = field(default_factory=_by_label)
    asked_partitions: int = 0
    answered_partitions: int = 0
    lease_lapses: int = 0

    def lapse(self, leases: int) -> None:
        """Count leases that have ended without a response."""
        self.lease_lapses += leases


@dataclass(slots=True)
class Counters:
    """The counts of one process since its start, as one record for each kind of event."""

    traffic: TrafficCounts = field(default_factory=TrafficCounts)
    apis: ApiCounts = field(default_factory=ApiCounts)
    authentications: AuthenticationCounts = field(default_factory=AuthenticationCounts)
    loop: LoopCounts = field(default_factory=LoopCounts)
    faults: FaultCounts = field(default_factory=FaultCounts)
    clients: ClientCounts = field(default_factory=ClientCounts)
    upstream: UpstreamCounts = field(default_factory=UpstreamCounts)
    tokens: TokenCounts = field(default_factory=TokenCounts)
    fetch: FetchCounts = field(default_factory=FetchCounts)
    produce: ProduceCounts = field(default_factory=ProduceCounts)
    stored: StoredCounts = field(default_factory=StoredCounts)
    watch: WatchCounts = field(default_factory=WatchCounts)
