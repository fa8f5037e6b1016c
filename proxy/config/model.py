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

from proxy.config.access_log import AccessLogConfig
from proxy.config.admin import Admin
from proxy.config.delegation_tokens import DelegationTokensConfig, PrincipalRulesText
from proxy.config.isolation import Isolation, Pattern
from proxy.config.networks import NetworkList
from proxy.config.process import Log, Shutdown, SupervisorConfig
from proxy.config.section import Name, Path, Section
from proxy.config.throttle import ThrottleConfig
from proxy.config.tls_keys import (
    Ciphers,
    TlsVersion,
    ciphers_field,
    crl_field,
    min_version_field,
)
from proxy.config.units import (
    GIB,
    KIB,
    MIB,
    Count,
    CountOrAuto,
    Duration,
    ListenAddress,
    RemoteAddress,
    Size,
)

LARGEST_FRAME_BYTES = (1 << 31) - 1  # Kafka's length prefix is an int32
MOST_WORKERS = 31  # with the keeper 32 processes hold bytes of the arena
HELD_CONNECTIONS = 256  # those above connectionRatePerAddress that are held before they are closed

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
CacheMode = Literal["serve", "observe", "off"]


class ListenerTls(Section):
    """TLS toward the clients of a listener."""

    certificate_file: Path = Field(description="PEM file: certificate and chain of this listener.")
    key_file: Path = Field(
        description="PEM file: the certificate's private key, without a passphrase."
    )
    client_auth: Literal["none", "required"] = Field(
        default="none",
        description="`required`: clients must present a certificate; see `useDelegationTokens` and "
        "`allowSharedIdentity`.",
    )
    client_ca_file: Path | None = Field(
        default=None, description="PEM file: authorities that sign clients' certificates."
    )
    crl_file: Path | None = crl_field()
    min_version: TlsVersion = min_version_field()
    ciphers: Ciphers | None = ciphers_field()
    principal_from: Literal["subject", "dns", "uri", "email"] = Field(
        default="subject",
        description="Part of a client's certificate that names its principal, with `useDelegationTokens`: "
        "the subject as the broker reads it (`CN=app,O=org`), or the first subject "
        "alternative name of a kind.",
    )
    principal_mapping_rules: PrincipalRulesText = Field(
        default="DEFAULT",
        description="The broker's `ssl.principal.mapping.rules`, applied to the name that `principalFrom` "
        "gives. A client whose name no rule matches is closed.",
    )


class UpstreamTls(Section):
    """TLS toward the broker of a listener."""

    enabled: bool = Field(default=False, description="Whether the broker's listener uses TLS.")
    ca_file: Path | None = Field(
        default=None, description="PEM file: trusted authorities. Unset: those of the system."
    )
    server_name: Name | None = Field(
        default=None,
        description="Name expected in the broker's certificate. Unset: the host of `upstream`.",
    )
    certificate_file: Path | None = Field(
        default=None,
        description="PEM file: Forebay's own client certificate; see `allowSharedIdentity`.",
    )
    key_file: Path | None = Field(
        default=None, description="PEM file: the private key of `certificateFile`."
    )
    insecure_skip_verify: bool = Field(
        default=False, description="Trust any certificate. For tests only."
    )
    crl_file: Path | None = crl_field()
    min_version: TlsVersion = min_version_field()
    ciphers: Ciphers | None = ciphers_field()


class UpstreamCredentials(Section):
    """Forebay's own SASL credentials, for the replica fetcher. Clients' credentials pass unchanged."""

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


class ListenerConfig(Section):
    """A socket for clients and the broker behind it."""

    name: Name = Field(
        default="default",
        description="Name of this listener in logs and metrics; each listener has its own.",
    )
    listen: ListenAddress = Field(
        description="HOST:PORT for clients; `:PORT` means all interfaces, port 0 any free port."
    )
    upstream: RemoteAddress = Field(
        description="HOST:PORT of the broker's listener for Forebay; not the address that clients are given."
    )
    advertised: RemoteAddress | None = Field(
        default=None,
        description="HOST:PORT that the broker is to tell clients of this listener, where that is not an address of "
        "this machine with the port of `listen`: a load balancer's, or one behind NAT. Forebay compares only, and "
        "warns (`forebay_advertised_mismatch`).",
    )
    catch_up_upstream: RemoteAddress | None = Field(
        default=None,
        description="HOST:PORT of a second listener of the same broker, with the same security, for "
        "reads of history. Kafka's network threads belong to a listener and block on cold"
        " data (KAFKA-7504). Clients that authenticate by GSSAPI stay on the first listener, and "
        "those by SCRAM unless `useDelegationTokens` is set.",
    )
    use_delegation_tokens: bool = Field(
        default=False,
        description="Sign in to the broker as each client's own principal, by delegation tokens that "
        "Forebay creates ([security.md](security.md#client-certificates)): for clients with "
        "certificates (`tls.clientAuth: required`), and for SCRAM clients on "
        "`catchUpUpstream`. `upstream` must be a listener with SASL and SCRAM, and a listener needs "
        "`upstreamCredentials` that may create tokens for others.",
    )
    cache_mode: CacheMode | None = Field(
        default=None,
        description="As `cache.mode`, for the clients of this listener; the lower of both holds (`off`, "
        "`observe`, `serve`). Batches of its producers are stored regardless. Unset: `cache.mode` alone.",
    )
    pass_through: bool = Field(
        default=False,
        description="Pass all bytes to `upstream` and back unread, without cache: TLS and client "
        "certificates stay between client and broker. Takes no key beside `name`, `listen`, "
        "`upstream`, `allow` and `deny`.",
    )
    allow: NetworkList | None = Field(
        default=None,
        description="Networks whose clients are accepted, separated by commas (`10.0.0.0/8, 2001:db8::/32`); others"
        " are closed at once and counted. Unset: all. Pipes of the supervisor follow it, too.",
    )
    deny: NetworkList | None = Field(
        default=None,
        description="Networks whose clients are closed at once and counted, also where `allow` has them.",
    )
    proxy_protocol: Literal["none", "v2"] = Field(
        default="none",
        description="`v2`: each connection begins with a header of the PROXY protocol, version 2, before TLS. The "
        "address in it is the client's: in logs, lists and limits. Without one within 10 s the connection is "
        "closed and counted. A worker must run: without one, such connections are closed, not piped.",
    )
    trusted_proxies: NetworkList | None = Field(
        default=None,
        description="Networks of the load balancers that send the header of `proxyProtocol`; others are closed at "
        "once and counted. Required with `proxyProtocol`.",
    )
    allow_shared_identity: bool = Field(
        default=False,
        description="Start although client certificates end at Forebay, so that the broker sees "
        "Forebay's identity instead of each client's. Memory then serves no client on "
        "this listener.",
    )
    tls: ListenerTls | None = Field(
        default=None, description="TLS toward clients. Unset: plaintext."
    )
    upstream_tls: UpstreamTls = Field(
        default_factory=UpstreamTls, description="TLS toward the broker."
    )
    upstream_credentials: UpstreamCredentials | None = Field(
        default=None,
        description="Forebay's own credentials, for the replica fetcher. Unset where the broker asks "
        "for none. Without them a partition is polled only over connections of clients "
        "that wait for it.",
    )

    @property
    def wants_certificates(self) -> bool:
        """Whether clients must present a certificate to Forebay."""
        return self.tls is not None and self.tls.client_auth == "required"

    @property
    def signs_in_for_clients(self) -> bool:
        """Whether Forebay signs in to the broker as the principal of each client's certificate."""
        return self.wants_certificates and self.use_delegation_tokens

    @property
    def shares_identity(self) -> bool:
        """Whether client certificates may be the identity on this listener, so that the broker
        cannot tell clients apart.
        """
        if self.signs_in_for_clients:
            return False
        return self.wants_certificates or self.upstream_tls.certificate_file is not None


class TopicModeConfig(Section):
    """The mode of the topics of one pattern."""

    pattern: Pattern = Field(
        description="Pattern of topic names, with `*` and `?`; the first match counts."
    )
    mode: CacheMode = Field(
        description="As `cache.mode`, for these topics; the lowest of process, listener and topic holds."
    )


class Cache(Section):
    """The block cache, and how long it may serve."""

    mode: CacheMode = Field(
        default="serve",
        description="`serve`: memory answers Fetches. `observe`: the broker answers all requests, "
        "Forebay keeps only the index of a cache of `size`, and the access log says what "
        "would have hit; takes at most about a quarter of `size`. `off`: the broker "
        "answers all requests.",
    )
    topic_modes: tuple[TopicModeConfig, ...] = Field(
        default=(),
        max_length=256,
        description="Modes of topics, by name pattern. Topics that none matches follow `mode` alone.",
    )
    size_bytes: Size = Field(
        default=0,
        ge=16 * MIB,
        le=4096 * GIB,
        description="Memory for record batches. Unset: half of the container's memory limit (cgroup "
        "v2 or v1), or an eighth of the machine's memory without such a limit; at most "
        "7/8 of the file system that holds `directory`. One partition is cached for each 16 KiB of "
        "it, 131072 at most; further ones are misses (`forebay_queue_limit{queue="
        '"followed_partitions"}`).',
    )
    directory: Annotated[str, StringConstraints(max_length=4096)] = Field(
        default="/dev/shm",
        description="Directory of the arena's file; must be memory-backed. Empty: anonymous memory, "
        "which `forebay arena inspect` cannot read.",
    )
    keep_arena: bool = Field(
        default=False,
        description="Keep the arena's file when Forebay ends, and take over what an earlier process left "
        "there. The file occupies `size` bytes of memory until the next start, or until it is deleted; "
        "Forebay logs its path at the stop. Needs `directory` and a connection of Forebay's own to the "
        "broker. False: removed at the stop.",
    )
    confirm_every_s: Duration = Field(
        default=1.0,
        ge=0.1,
        le=30.0,
        description="The lease: time during which memory may serve after a response of the broker.",
    )
    verify_ratio: float = Field(
        default=0.001,
        ge=0.0,
        le=1.0,
        description="Share of the responses from memory that the verifier reads again from the "
        "broker, over Forebay's own connection, and compares. A difference drops the "
        "topic's blocks; see `forebay_verify_samples_total`.",
    )
    authorize_every_s: Duration = Field(
        default=10.0,
        ge=1.0,
        le=3600.0,
        description="Interval at which the broker is asked for a principal's right to a topic, and so the time "
        "after which memory no longer serves who has lost it.",
    )
    hole_wait_s: Duration = Field(
        default=0.005,
        ge=0.0,
        le=0.1,
        description="Time that a Fetch waits for bytes on their way into memory before it is a miss.",
    )
    transactions_per_partition: Count = Field(
        default=2000,
        ge=16,
        le=1_000_000,
        description="Transactions kept for each partition, open and aborted ones counted apart, about"
        " 200 bytes each. Older history is read from the broker by read_committed "
        "consumers.",
    )


class Limits(Section):
    """Limits on what Forebay holds for clients and brokers; per process unless stated otherwise."""

    max_request_frame_bytes: Size = Field(
        default=100 * MIB,
        ge=64 * KIB,
        le=LARGEST_FRAME_BYTES,
        description="Largest request, as a broker's socket.request.max.bytes. A larger one closes its"
        " client.",
    )
    max_response_frame_bytes: Size = Field(
        default=GIB,
        ge=MIB,
        le=LARGEST_FRAME_BYTES,
        description="Largest response of a broker. A larger one closes its connection.",
    )
    request_memory_bytes: Size = Field(
        default=128 * MIB,
        ge=MIB,
        le=64 * GIB,
        description="Bytes of requests in flight and of incomplete requests. At the limit clients are"
        " not read. A larger request passes alone. While others wait, an incomplete "
        "request must arrive at the pace of `frameTimeout`.",
    )
    response_memory_bytes: Size = Field(
        default=256 * MIB,
        ge=MIB,
        le=64 * GIB,
        description="Bytes of responses in flight. At the limit large ones leave in pieces as they "
        "arrive, or wait at the broker, and memory answers 64 KiB at a time. A larger "
        "response passes alone.",
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
        description="Client connections of all listeners, TLS handshakes included. Further ones are "
        "closed at once and counted. An eighth of them may be in their handshake, for 10 "
        "s; beyond that the oldest handshake is closed.",
    )
    connections_per_address: Count = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Connections that one client address has open, on all listeners, as max.connections.per.ip of a "
        "broker, which sees Forebay's address alone. An IPv6 address stands for its /64. Further ones are "
        "closed at once and counted. 0: no limit.",
    )
    connection_rate_per_address: Count = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="New connections of one client address per second, as connection_creation_rate of a broker "
        "(KIP-612); ten seconds' worth at once. Further ones are held for up to 1 s, closed and counted. 0: no "
        "limit.",
    )
    pipelined_requests: Count = Field(
        default=100,
        ge=1,
        le=10_000,
        description="Unanswered requests of one connection. At the limit the connection is not read.",
    )
    request_partitions: Count = Field(
        default=5000,
        ge=100,
        le=1_000_000,
        description="Topics, partitions and tagged fields that one Produce or Fetch names, and "
        "partitions of one fetch session. A larger request is relayed unread. Each of "
        "them takes about 10 us, during which no other request is served.",
    )
    parked_fetches: Count = Field(
        default=10_000,
        ge=0,
        le=1_000_000,
        description="Delayed Fetches: they wait in Forebay for records. Further ones are misses.",
    )
    read_joiners: Count = Field(
        default=100,
        ge=0,
        le=100_000,
        description="Consumers that share one read from the broker when they miss the same range at "
        "the same time. Further ones read for themselves. 0: reads are not shared.",
    )
    watched_partitions: Count = Field(
        default=10_000,
        ge=0,
        le=1_000_000,
        description="Partitions that the replica fetcher polls. Further ones are misses. Twice as many "
        "are cached, if `cache.size` has room for them.",
    )
    principals: Count = Field(
        default=4096,
        ge=0,
        le=1_000_000,
        description="Principals whose rights are shared by all their connections on a listener, so that the "
        "broker is asked once for all. Connections of further ones ask for themselves. 0: no rights are "
        "shared, for an authorizer that looks at more than principal, listener and host.",
    )
    readers: Count = Field(
        default=2048,
        ge=0,
        le=100_000,
        description="Rows of the live view (`forebay top`, `/top`) in ten seconds: a client, its group and a topic. "
        "Further ones share a row. As many partitions are known in which somebody is behind. 0: none.",
    )
    fetch_sessions: Count = Field(
        default=1000,
        ge=0,
        le=1_000_000,
        description="Fetch sessions of clients (KIP-227), as "
        "max.incremental.fetch.session.cache.slots of a broker. Further clients name all "
        "partitions in each request.",
    )
    fetch_session_partitions: Count = Field(
        default=250_000,
        ge=0,
        le=100_000_000,
        description="Partitions of all fetch sessions together, and of wide Fetches without a session, which "
        "are remembered, too; about 400 bytes each.",
    )
    idle_timeout_s: Duration = Field(
        default=600.0,
        ge=1.0,
        le=86400.0,
        description="Time after which an idle client is closed, as connections.max.idle.ms of a "
        "broker. Clients that have vanished are closed too (keepalive, TCP_USER_TIMEOUT).",
    )
    connect_timeout_s: Duration = Field(
        default=10.0,
        ge=0.1,
        le=300.0,
        description="Time to connect to the broker, TLS and SASL included. After 2 s without an "
        "answer its name is resolved again.",
    )
    upstream_timeout_s: Duration = Field(
        default=10.0,
        ge=1.0,
        le=300.0,
        description="Time within which the broker must answer Forebay's own heartbeat. Beyond it "
        "Forebay is not ready and opens its own connections anew.",
    )
    frame_timeout_s: Duration = Field(
        default=30.0,
        ge=0.1,
        le=3600.0,
        description="Time within which a request must be complete after its first byte.",
    )


class Config(Section):
    """The whole of `forebay.yaml`."""

    listeners: tuple[ListenerConfig, ...] = Field(
        min_length=1, max_length=64, description="Where clients connect."
    )
    workers: CountOrAuto = Field(
        default=1,
        ge=1,
        le=MOST_WORKERS,
        description="Processes that carry clients' bytes. 1: one process does all. From 2 on a process of its own, "
        "the keeper, has the cache and asks the broker, and each worker takes a processor of its own. `auto`: the "
        "processors that the container may use, less one for the keeper, and at least 1.",
    )
    cache: Cache = Field(default_factory=Cache, description="The block cache.")
    throttle: ThrottleConfig = Field(
        default_factory=ThrottleConfig, description="Delays for lagging consumers on a busy disk."
    )
    isolation: Isolation = Field(default_factory=Isolation, description="Queues toward the broker.")
    limits: Limits = Field(
        default_factory=Limits, description="Limits on memory, counts and times."
    )
    delegation_tokens: DelegationTokensConfig = Field(
        default_factory=DelegationTokensConfig,
        description="Signing in as clients' principals, on listeners with `useDelegationTokens`.",
    )
    admin: Admin = Field(default_factory=Admin, description="HTTP for operators.")
    access_log: AccessLogConfig = Field(
        default_factory=AccessLogConfig, description="Log of every Fetch."
    )
    supervisor: SupervisorConfig = Field(
        default_factory=SupervisorConfig, description="The process that starts the worker."
    )
    shutdown: Shutdown = Field(default_factory=Shutdown, description="Shutdown.")
    log: Log = Field(default_factory=Log, description="Forebay's own log.")
