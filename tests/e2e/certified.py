"""A broker with delegation tokens and ACLs, and Forebays before it that sign in for clients with certificates.

Owns the broker, the clients' authority, Forebay's own user and its rights. Must not know what is tested. Invariant: no
client has a right that a test has not given; Forebay's user is no super user.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.e2e.families import TIMEOUT_S
from tests.kit.broker.client_certificates import ClientAuthority
from tests.kit.broker.kafka import USERS, KafkaCluster
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST, Listener
from tests.kit.sidecar import PATIENT_CACHE, Sidecar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OWN = "forebay"
PEOPLE = {**USERS, OWN: "forebay-secret"}
SCRAMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
REAUTH_MS = 8000
"""Forebay signs in again at seven to eight tenths of a session: a busy machine may take the rest, 1.6 s."""
AUTHORIZE_EVERY_S = 2.0
ACL_TOOL = "org.apache.kafka.tools.AclCommand"
LISTENERS = ("MTLS", "REAUTH", "SCRAM")
Options = dict[str, Any]


@dataclass(frozen=True)
class Certified:
    """`listen`: where a Forebay is to listen, by the name of the broker's listener."""

    broker: KafkaCluster
    authority: ClientAuthority
    listen: dict[str, str]

    def entry(self, name: str, **more: Any) -> Options:
        """An entry of Forebay's `listeners`, toward the broker's listener of that name."""
        broker = self.broker
        host, port = broker.address(name)
        secret = broker.directory / "own-password"
        secret.touch(mode=0o600)
        secret.write_text(PEOPLE[OWN])
        credentials = {
            "mechanism": "SCRAM-SHA-256",
            "username": OWN,
            "passwordFile": str(secret),
        }
        entry: Options = {
            "name": name,
            "listen": self.listen[name],
            "upstream": f"{host}:{port}",
            "upstreamCredentials": credentials,
            "useDelegationTokens": True,
        }
        if name == "MTLS":
            assert broker.tls is not None
            entry["upstreamTls"] = {"enabled": True, "caFile": str(broker.tls.authority)}
        return entry | more

    def certified_entry(self, name: str, **tls: Any) -> Options:
        """An entry that wants certificates of clients; `tls`: more keys of that section."""
        assert self.broker.tls is not None
        server = self.broker.tls.server
        section = {
            "certificateFile": str(server.certificate),
            "keyFile": str(server.key),
            "clientAuth": "required",
            "clientCaFile": str(self.authority.certificate),
        }
        return self.entry(name, tls=section | tls)

    def client(self, name: str, listener: str = "MTLS") -> Options:
        """librdkafka's settings of the client CN=`name`."""
        assert self.broker.tls is not None
        identity = self.authority.identity(name)
        return {
            "bootstrap.servers": self.listen[listener],
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.broker.tls.authority),
            "ssl.certificate.location": str(identity.certificate),
            "ssl.key.location": str(identity.key),
        }

    def context(self, name: str) -> ssl.SSLContext:
        """TLS settings of the client CN=`name`, for a socket."""
        assert self.broker.tls is not None
        context = ssl.create_default_context(cafile=str(self.broker.tls.authority))
        identity = self.authority.identity(name)
        context.load_cert_chain(str(identity.certificate), str(identity.key))
        return context

    def change_acl(
        self, principal: str, kind: ResourceType, name: str, operation: AclOperation, grant: bool
    ) -> None:
        """Give or take one right, and wait until the broker has it in force."""
        change_acl(self.broker, principal, kind, name, operation, grant=grant)

    def allow(self, principal: str, topic: str, *, grant: bool = True) -> None:
        """Reading and writing of a topic; a group's right stays."""
        for operation in (AclOperation.READ, AclOperation.WRITE):
            self.change_acl(principal, ResourceType.TOPIC, topic, operation, grant)
        if grant:
            self.change_acl(principal, ResourceType.GROUP, "*", AclOperation.READ, True)


def change_acl(
    broker: KafkaCluster,
    principal: str,
    kind: ResourceType,
    name: str,
    operation: AclOperation,
    *,
    grant: bool,
) -> None:
    """What a principal may do."""
    admin = AdminClient({"bootstrap.servers": broker.direct})
    pattern = ResourcePatternType.LITERAL
    what = (kind, name, pattern, principal, "*", operation, AclPermissionType.ALLOW)
    changed = (
        admin.create_acls([AclBinding(*what)])
        if grant
        else admin.delete_acls([AclBindingFilter(*what)])
    )
    for future in changed.values():
        future.result(TIMEOUT_S)


@contextlib.contextmanager
def start_certified(overrides: Mapping[str, object] | None = None) -> Iterator[Certified]:
    """The broker. Forebay's user may read all topics, for its own fetches, and create no tokens yet."""
    with contextlib.ExitStack() as stack:
        ports = {name: stack.enter_context(lease_port()).port for name in LISTENERS}
        listeners = [
            Listener("MTLS", "SASL_SSL", SCRAMS, (HOST, ports["MTLS"])),
            Listener(
                "REAUTH",
                "SASL_PLAINTEXT",
                SCRAMS,
                (HOST, ports["REAUTH"]),
                max_reauth_ms=REAUTH_MS,
            ),
            Listener("SCRAM", "SASL_PLAINTEXT", (*SCRAMS, "OAUTHBEARER"), (HOST, ports["SCRAM"])),
            Listener("SCRAM2", "SASL_PLAINTEXT", SCRAMS, (HOST, ports["SCRAM"])),
        ]
        settings = {"delegation.token.secret.key": "test-secret-key", **(overrides or {})}
        broker = stack.enter_context(
            KafkaCluster(listeners=listeners, users=PEOPLE, authorizer=True, overrides=settings)
        )
        user = f"User:{OWN}"
        for operation in (AclOperation.READ, AclOperation.DESCRIBE):
            change_acl(broker, user, ResourceType.TOPIC, "*", operation, grant=True)
        change_acl(
            broker,
            user,
            ResourceType.BROKER,
            "kafka-cluster",
            AclOperation.DESCRIBE_CONFIGS,
            grant=True,
        )
        authority = ClientAuthority(broker.directory / "clients")
        yield Certified(broker, authority, {name: f"{HOST}:{port}" for name, port in ports.items()})


def let_create_tokens(certified: Certified) -> None:
    """Forebay's right, by Kafka's own tool."""
    line = f"--add --allow-principal User:{OWN} --operation CreateTokens --user-principal *"
    certified.broker.tool(ACL_TOOL, "--bootstrap-server", certified.broker.direct, *line.split())


def find_remedy(log: str) -> list[str]:
    """The arguments of the last kafka-acls.sh line in Forebay's log, but for the bootstrap server."""
    line = re.findall(r"kafka-acls\.sh --bootstrap-server BROKER (--add .*)", log)[-1]
    return shlex.split(line)


def start_sidecar(entries: list[Options], **settings: Any) -> Sidecar:
    """A Forebay that is not started yet, with a cache whose rights end soon."""
    cache = PATIENT_CACHE | {"size": "32MiB", "authorizeEvery": f"{AUTHORIZE_EVERY_S}s"}
    return Sidecar(entries, {"cache": cache, **settings})


def wait_until(holds: Any, what: str) -> None:
    """Until `holds()`; AssertionError with `what` where it never does."""
    deadline = time.monotonic() + 3 * TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
