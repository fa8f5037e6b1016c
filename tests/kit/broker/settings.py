"""What a test broker's server.properties says.

Owns the wording: listeners, security of each, quick-start settings. Values in, text out: no files or
processes. Every broker has two listeners of its own besides the given ones, plain text on the loopback and
advertised as themselves: CONTROLLER, and DIRECT (inter-broker; the tests' way to the broker that bypasses
Forebay).
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.kit.broker.certificates import TlsFiles

HOST = "127.0.0.1"
DIRECT, CONTROLLER = "DIRECT", "CONTROLLER"
SCRAM_ITERATIONS = 4096
MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
# Small and quick; durability and balance are not what these brokers are for.
DEFAULTS: "Mapping[str, object]" = {
    "process.roles": "broker,controller",
    "controller.listener.names": CONTROLLER,
    "inter.broker.listener.name": DIRECT,
    "num.network.threads": 2,
    "num.io.threads": 4,
    "offsets.topic.num.partitions": 4,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 4,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.num.partitions": 4,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    "num.recovery.threads.per.data.dir": 1,
    "log.cleaner.dedupe.buffer.size": 4 << 20,
    "log.retention.ms": -1,  # many tests' records bear old timestamps: they would go 30 s after the broker's start
    "initial.broker.registration.timeout.ms": 120_000,
    "metadata.max.idle.interval.ms": 0,  # no records that say nothing: an idle broker takes half the CPU
}


@dataclass(frozen=True, slots=True)
class Listener:
    """A listener beside DIRECT.

    `protocol`: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. `mechanisms`: SASL mechanisms (keys of MODULES).
    `advertised`: host and port that clients are told, e.g. Forebay's, or by node id; None: the listener itself.
    `properties`: more settings, without "listener.name.<name>.", e.g. {"ssl.client.auth": "required"}.
    `max_reauth_ms`: connections.max.reauth.ms of its mechanisms; 0: none.
    """

    name: str
    protocol: str = "PLAINTEXT"
    mechanisms: tuple[str, ...] = ()
    advertised: "tuple[str, int] | Mapping[int, tuple[str, int]] | None" = None
    properties: "Mapping[str, object]" = field(default_factory=dict)
    max_reauth_ms: int = 0

    def advertised_by(self, node: "Node") -> tuple[str, int]:
        """What one broker tells clients."""
        if isinstance(self.advertised, tuple):
            return self.advertised
        return (self.advertised or {}).get(node.node_id, (HOST, node.ports[self.name]))

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")


class Node(NamedTuple):
    """One broker of a cluster: its id and the ports it listens on by listener name."""

    node_id: int
    ports: "Mapping[str, int]"


def build_listener(
    listener: Listener, users: "Mapping[str, str]", tls: "TlsFiles | None"
) -> dict[str, object]:
    """The settings of one listener's security."""
    prefix = f"listener.name.{listener.name.lower()}."
    settings: dict[str, object] = {}
    if listener.uses_tls and tls is not None:
        settings |= {
            f"{prefix}ssl.keystore.type": "PEM",
            f"{prefix}ssl.keystore.location": tls.server.keystore,
            f"{prefix}ssl.truststore.type": "PEM",
            f"{prefix}ssl.truststore.location": tls.authority,
        }
    if listener.mechanisms:
        settings[f"{prefix}sasl.enabled.mechanisms"] = ",".join(listener.mechanisms)
    for mechanism in listener.mechanisms:
        known = "".join(f' user_{user}="{password}"' for user, password in users.items())
        options = known if mechanism == "PLAIN" else ""
        at = f"{prefix}{mechanism.lower()}."
        settings[f"{at}sasl.jaas.config"] = f"{MODULES[mechanism]} required{options};"
        if listener.max_reauth_ms:
            settings[f"{at}connections.max.reauth.ms"] = listener.max_reauth_ms
    return settings | {f"{prefix}{key}": value for key, value in listener.properties.items()}


def build_addresses(node: Node, listeners: "Sequence[Listener]") -> dict[str, object]:
    """listeners, advertised.listeners and the protocol map."""
    advertised = {DIRECT: (HOST, node.ports[DIRECT])}
    advertised |= {one.name: one.advertised_by(node) for one in listeners}
    protocols = {CONTROLLER: "PLAINTEXT", DIRECT: "PLAINTEXT"} | {
        one.name: one.protocol for one in listeners
    }
    return {
        "listeners": ",".join(f"{name}://{HOST}:{port}" for name, port in node.ports.items()),
        "advertised.listeners": ",".join(
            f"{name}://{host}:{port}" for name, (host, port) in advertised.items()
        ),
        "listener.security.protocol.map": ",".join(
            f"{name}:{protocol}" for name, protocol in protocols.items()
        ),
    }


def build_properties(
    node: Node,
    voters: "Sequence[Node]",
    log_dir: "Path",
    *,
    listeners: "Sequence[Listener]" = (),
    users: "Mapping[str, str]",
    tls: "TlsFiles | None" = None,
    authorizer: bool = False,
    overrides: "Mapping[str, object]",
) -> str:
    """The text of server.properties. `overrides` win over everything."""
    settings: dict[str, object] = {
        **DEFAULTS,
        "node.id": node.node_id,
        "log.dirs": log_dir,
        "controller.quorum.voters": ",".join(
            f"{one.node_id}@{HOST}:{one.ports[CONTROLLER]}" for one in voters
        ),
        **build_addresses(node, listeners),
    }
    for listener in listeners:
        settings |= build_listener(listener, users, tls)
    if authorizer:  # whoever comes by DIRECT is User:ANONYMOUS, the brokers among themselves too
        settings["authorizer.class.name"] = (
            "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
        )
        settings["super.users"] = "User:ANONYMOUS;User:admin"
    return "".join(f"{key}={value}\n" for key, value in (settings | dict(overrides)).items())


def build_scram_arguments(listeners: "Sequence[Listener]", users: "Mapping[str, str]") -> list[str]:
    """StorageTool's arguments that make the SCRAM users known from the first start."""
    wanted = sorted(
        {one for listener in listeners for one in listener.mechanisms if one.startswith("SCRAM")}
    )
    return [
        argument
        for mechanism in wanted
        for user, password in users.items()
        for argument in (
            "--add-scram",
            f"{mechanism}=[name={user},iterations={SCRAM_ITERATIONS},password={password}]",
        )
    ]
