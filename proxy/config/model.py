"""The configuration: every key, its type, default, limits and meaning.

Owns the shape of `forebay.yaml`. Must not read a file, the environment or a clock (see
config/load.py), nor check the machine (config/check.py). docs/configuration.md is generated from
this file. Invariants:
* a Config is valid and frozen.
* YAML keys are camelCase without units. The attribute is the same name in snake_case, unit last:
  `confirm_every_s` is `confirmEvery` (a Duration, float seconds), `size_bytes` is `size` (a Size,
  int bytes).
* the configuration never holds secrets: keys that end in File name the files that hold them.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from proxy.config.isolation import Isolation
from proxy.config.section import Name, Path, Section
from proxy.config.throttle import Throttle
from proxy.config.units import GIB, KIB, MIB, Address, Count, Duration, ListenAddress, RemoteAddress, Size

LARGEST_FRAME_BYTES = (1 << 31) - 1  # Kafka's length prefix is an int32

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]


class ListenerTls(Section):
    """TLS toward the clients of a listener."""

    certificate_file: Path = Field(description="PEM file: this listener's certificate and its chain.")
    key_file: Path = Field(description="PEM file: the certificate's private key, without a passphrase.")
    client_auth: Literal["none", "required"] = Field(
        default="none", description="`required`: clients must show a certificate; see `allowSharedIdentity`."
    )
    client_ca_file: Path | None = Field(
        default=None, description="PEM file: the authorities that clients' certificates are checked against."
    )


class UpstreamTls(Section):
    """TLS toward the broker of a listener."""

    enabled: bool = Field(default=False, description="Whether the broker's listener speaks TLS.")
    ca_file: Path | None = Field(
        default=None, description="PEM file: trusted authorities; unset: those of the system."
    )
    server_name: Name | None = Field(
        default=None,
        description="The name expected in the broker's certificate; unset: the host of `upstream`.",
    )
    certificate_file: Path | None = Field(
        default=None, description="PEM file: Forebay's own client certificate; see `allowSharedIdentity`."
    )
    key_file: Path | None = Field(default=None, description="PEM file: the private key of `certificateFile`.")
    insecure_skip_verify: bool = Field(default=False, description="Trust any certificate. For tests only.")


class UpstreamCredentials(Section):
    """Forebay's own SASL credentials, for the watch. Clients' own are passed through untouched."""

    mechanism: Mechanism = Field(description="SASL mechanism of the broker's listener.")
    username: Annotated[str, StringConstraints(min_length=1, max_length=1024)] | None = Field(
        default=None, description="User name, for PLAIN and SCRAM."
    )
    password_file: Path | None = Field(
        default=None, description="File that holds the password, for PLAIN and SCRAM."
    )
    token_file: Path | None = Field(
        default=None,
        description="File that holds the token, for OAUTHBEARER; read again at each authentication.",
    )


class Listener(Section):
    """A client-facing socket and the one broker behind it."""

    name: Name = Field(
        default="default", description="Names this listener in logs and metrics; each listener its own."
    )
    listen: ListenAddress = Field(
        description="HOST:PORT for clients; `:PORT` is all interfaces, port 0 any free port."
    )
    upstream: RemoteAddress = Field(
        description="HOST:PORT of the broker's listener for Forebay; not the one that clients are told."
    )
    catch_up_upstream: RemoteAddress | None = Field(
        default=None,
        description="HOST:PORT of a second listener of the same broker, with the same security, for reads of "
        "history: Kafka's network threads block on cold data, and are per listener (KAFKA-7504). Clients that "
        "authenticate by SCRAM or GSSAPI stay on the first.",
    )
    allow_shared_identity: bool = Field(
        default=False,
        description="Start although client certificates end at Forebay, so that the broker sees one "
        "identity, Forebay's, instead of each client's. Memory then serves nobody on this listener.",
    )
    tls: ListenerTls | None = Field(default=None, description="TLS toward clients; unset: plain text.")
    upstream_tls: UpstreamTls = Field(default_factory=UpstreamTls, description="TLS toward the broker.")
    upstream_credentials: UpstreamCredentials | None = Field(
        default=None,
        description="Forebay's own credentials, for the watch; unset where the broker asks for none. Without "
        "them a partition is watched only on links of clients that wait for it.",
    )

    @property
    def shares_identity(self) -> bool:
        """Whether client certificates may be the identity on this listener, so that the broker
        cannot tell clients apart.
        """
        clients_show_one = self.tls is not None and self.tls.client_auth == "required"
        return clients_show_one or self.upstream_tls.certificate_file is not None


class Cache(Section):
    """The block cache and what entitles it to serve."""

    mode: Literal["serve", "observe", "off"] = Field(
        default="serve",
        description="`serve`: memory answers. `observe`: everything is passed through, only the index of a "
        "cache of `size` is kept, and the access log says what would have hit; takes at most about a quarter "
        "of `size`. `off`: everything is passed through.",
    )
    size_bytes: Size = Field(
        default=0,
        ge=16 * MIB,
        le=4096 * GIB,
        description="Memory for record batches. Unset: half of the container's memory limit (cgroup v2 or "
        "v1), or an eighth of the machine's memory where there is none; at most 7/8 of the file system that "
        "holds `directory`.",
    )
    directory: Annotated[str, StringConstraints(max_length=4096)] = Field(
        default="/dev/shm",
        description="Where the arena's file lies; must be memory-backed. Empty: anonymous memory; nothing is "
        "taken over at a restart.",
    )
    confirm_every_s: Duration = Field(
        default=1.0,
        ge=0.1,
        le=30.0,
        description="The lease: for how long a broker's answer entitles memory to serve.",
    )
    verify_ratio: float = Field(
        default=0.001,
        ge=0.0,
        le=1.0,
        description="Share of the answers from memory that are read again from the broker, over Forebay's own "
        "link, and compared. A difference drops the topic's blocks; see `forebay_verify_samples_total`.",
    )
    authorize_every_s: Duration = Field(
        default=60.0,
        ge=1.0,
        le=3600.0,
        description="How often each connection's right to a topic is asked of the broker.",
    )
    hole_wait_s: Duration = Field(
        default=0.005,
        ge=0.0,
        le=0.1,
        description="How long a fetch waits at a gap for its bytes before it is a miss.",
    )
    transactions_per_partition: Count = Field(
        default=2000,
        ge=16,
        le=1_000_000,
        description="Transactions kept of each partition, open and aborted ones apart, about 200 bytes each; of "
        "history beyond them read_committed consumers are told by the broker.",
    )


class Limits(Section):
    """Bounds on what clients and brokers can make Forebay hold; per process unless they say otherwise."""

    max_request_frame_bytes: Size = Field(
        default=100 * MIB,
        ge=64 * KIB,
        le=LARGEST_FRAME_BYTES,
        description="Largest request, as a broker's socket.request.max.bytes; a larger one ends its client.",
    )
    max_response_frame_bytes: Size = Field(
        default=GIB,
        ge=MIB,
        le=LARGEST_FRAME_BYTES,
        description="Largest answer of a broker. A larger one ends its link.",
    )
    request_memory_bytes: Size = Field(
        default=128 * MIB,
        ge=MIB,
        le=64 * GIB,
        description="Requests in flight, and those that have begun; at the bound clients are not read. A larger "
        "request passes alone. While others wait, a begun one must come at the pace that `frameTimeout` asks for.",
    )
    response_memory_bytes: Size = Field(
        default=256 * MIB,
        ge=MIB,
        le=64 * GIB,
        description="Answers in flight; at the bound large ones leave in pieces as they come, or wait at the broker, "
        "and memory answers 64 KiB at a time. A larger answer passes alone.",
    )
    connection_request_memory_bytes: Size = Field(
        default=16 * MIB,
        ge=64 * KIB,
        le=64 * GIB,
        description="As `requestMemory`, for each client connection.",
    )
    connection_response_memory_bytes: Size = Field(
        default=64 * MIB,
        ge=64 * KIB,
        le=64 * GIB,
        description="As `responseMemory`, for each client connection.",
    )
    max_connections: Count = Field(
        default=4096,
        ge=1,
        le=1_000_000,
        description="Client connections of all listeners, TLS handshakes included; further ones are closed at once and "
        "counted. An eighth of them may be in their handshake, for 10 s; beyond it the oldest handshake is closed.",
    )
    pipelined_requests: Count = Field(
        default=100,
        ge=1,
        le=10_000,
        description="Unanswered requests of one connection; at the bound it is not read.",
    )
    request_partitions: Count = Field(
        default=5000,
        ge=100,
        le=1_000_000,
        description="Topics, partitions and tagged fields that one Produce or Fetch names, and partitions of one fetch "
        "session; a request of more is relayed unread. Reading and answering one takes about 10 us for each of them, "
        "in which nobody else is served.",
    )
    parked_fetches: Count = Field(
        default=10_000,
        ge=0,
        le=1_000_000,
        description="Fetches that wait in Forebay for data; beyond it they are misses.",
    )
    read_joiners: Count = Field(
        default=100,
        ge=0,
        le=100_000,
        description="Consumers that share one read of the broker's when they miss the same range at the same "
        "time; beyond it they read for themselves. 0: nothing is shared.",
    )
    watched_partitions: Count = Field(
        default=10_000, ge=0, le=1_000_000, description="Partitions under watch; beyond it they are misses."
    )
    fetch_sessions: Count = Field(
        default=1000,
        ge=0,
        le=1_000_000,
        description="Fetch sessions of clients (KIP-227), as max.incremental.fetch.session.cache.slots of a "
        "broker; beyond it clients name everything in each request.",
    )
    fetch_session_partitions: Count = Field(
        default=250_000,
        ge=0,
        le=100_000_000,
        description="Partitions of all fetch sessions together, about 400 bytes each.",
    )
    idle_timeout_s: Duration = Field(
        default=600.0,
        ge=1.0,
        le=86400.0,
        description="Time after which a client that sends nothing, and waits for nothing, is closed, as "
        "connections.max.idle.ms of a broker; one that has vanished, too (keepalive, TCP_USER_TIMEOUT).",
    )
    connect_timeout_s: Duration = Field(
        default=10.0,
        ge=0.1,
        le=300.0,
        description="Time for a connection to the broker, TLS and SASL included.",
    )
    upstream_timeout_s: Duration = Field(
        default=10.0,
        ge=1.0,
        le=300.0,
        description="Time within which the broker must answer a small question of Forebay's own; beyond it Forebay is "
        "not ready, and its own connections are opened anew.",
    )
    frame_timeout_s: Duration = Field(
        default=30.0, ge=0.1, le=3600.0, description="Time within which a begun request must be complete."
    )


class Admin(Section):
    """HTTP for operators: metrics, health, state."""

    listen: ListenAddress = Field(
        default=Address("127.0.0.1", 9190), description="HOST:PORT of the admin server."
    )
    max_connections: Count = Field(
        default=32,
        ge=1,
        le=10_000,
        description="Open admin connections; further ones are closed, but for eight that may ask a probe (`/livez`, "
        "`/readyz`) each.",
    )
    token_file: Path | None = Field(
        default=None,
        description="File that holds a token which all but probes must show (`Authorization: Bearer`); read at "
        "start. Unset: whoever reaches the port may ask.",
    )
    request_timeout_s: Duration = Field(
        default=10.0,
        ge=0.1,
        le=300.0,
        description="Time for a request to arrive and for its answer to be taken.",
    )


class AccessLog(Section):
    """One JSON line per partition of each Fetch and per admitted block; read by `forebay audit`."""

    directory: Path | None = Field(default=None, description="Directory for the files; unset: no access log.")
    rotate_size_bytes: Size = Field(
        default=256 * MIB,
        ge=64 * KIB,
        le=64 * GIB,
        description="A file of this size is closed and compressed.",
    )
    keep_size_bytes: Size = Field(
        default=4 * GIB,
        ge=MIB,
        le=64 * 1024 * GIB,
        description="All files together; the oldest are deleted beyond it.",
    )
    keep_files: Count = Field(
        default=1_000,
        ge=2,
        le=1_000_000,
        description="Number of files; the oldest are deleted beyond it. Counts the one being written.",
    )
    queue_lines: Count = Field(
        default=100_000,
        ge=1_000,
        le=10_000_000,
        description="Lines that wait for the disk; beyond it they are dropped, counted.",
    )


class Shutdown(Section):
    """What happens on SIGTERM."""

    grace_period_s: Duration = Field(
        default=25.0,
        ge=0.0,
        le=3600.0,
        description="Time to answer what is in flight; shorter than Kubernetes' own (30s).",
    )


class Log(Section):
    """Forebay's own log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least important level written."
    )
    format: Literal["json", "text"] = Field(
        default="json", description="One JSON object a line, or plain text."
    )
    queue_lines: Count = Field(
        default=1000,
        ge=10,
        le=1_000_000,
        description="Lines that wait for standard error to be read; beyond it they are dropped, counted.",
    )


class Config(Section):
    """The whole of `forebay.yaml`."""

    listeners: tuple[Listener, ...] = Field(min_length=1, max_length=64, description="Where clients connect.")
    cache: Cache = Field(default_factory=Cache, description="The block cache.")
    throttle: Throttle = Field(default_factory=Throttle, description="Lagging consumers on a busy disk.")
    isolation: Isolation = Field(default_factory=Isolation, description="Queues toward the broker.")
    limits: Limits = Field(default_factory=Limits, description="Bounds on memory, counts and times.")
    admin: Admin = Field(default_factory=Admin, description="HTTP for operators.")
    access_log: AccessLog = Field(default_factory=AccessLog, description="The record of every fetch.")
    shutdown: Shutdown = Field(default_factory=Shutdown, description="Stopping.")
    log: Log = Field(default_factory=Log, description="Forebay's own log.")
