"""A broker that wants credentials, and Forebays that sign in as alice, who has no rights but those that a test gives.

Owns the broker, its listener and alice's password file. Must not know what is tested. Invariant: one Forebay at a time
listens where the broker's clients are told to connect.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from tests.kit.broker.kafka import USERS, KafkaCluster
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST, Listener
from tests.kit.sidecar import Sidecar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class SignedBroker(NamedTuple):
    """`advertised`: where a Forebay is to listen."""

    cluster: KafkaCluster
    advertised: str


class Signed(NamedTuple):
    """The broker, and a Forebay before it that signs in as alice."""

    broker: KafkaCluster
    sidecar: Sidecar


@contextlib.contextmanager
def start_signed_broker() -> Iterator[SignedBroker]:
    """A broker that is started here and stopped in the end."""
    with lease_port() as lease:
        listener = Listener("CLIENT", "SASL_PLAINTEXT", ("PLAIN",), advertised=(HOST, lease.port))
        with KafkaCluster(listeners=[listener], authorizer=True) as cluster:
            yield SignedBroker(cluster, f"{HOST}:{lease.port}")


@contextlib.contextmanager
def start_signed(broker: SignedBroker, cache: Mapping[str, object]) -> Iterator[Signed]:
    """A Forebay with this `cache` section."""
    secret = broker.cluster.directory / "password"
    secret.touch(mode=0o600)
    secret.write_text(USERS["alice"] + "\n")
    host, port = broker.cluster.address("CLIENT")
    entry = {
        "listen": broker.advertised,
        "upstream": f"{host}:{port}",
        "upstreamCredentials": {
            "mechanism": "PLAIN",
            "username": "alice",
            "passwordFile": str(secret),
        },
    }
    with Sidecar([entry], {"cache": cache}) as sidecar:
        yield Signed(broker.cluster, sidecar)
