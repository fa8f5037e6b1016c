"""SASL beyond the common: SCRAM-SHA-512, and every mechanism inside TLS on both sides of Forebay.

Owns one broker with a listener in plain text and one in TLS, each with a Forebay in front that has credentials of its
own. Must not know how Forebay signs in, beyond its log.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.e2e.test_security import (
    Options,
    open_consumer,
    read,
    refusal_to_sign_in,
    sign_in,
    tls_entry,
    upstream,
    wait_hits,
)
from tests.kit.broker.kafka import USERS, KafkaCluster
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST, Listener
from tests.kit.broker.topics import create_topic
from tests.kit.sidecar import PATIENT_CACHE, Sidecar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import KafkaError

    from tests.kit.broker.certificates import TlsFiles

pytestmark = pytest.mark.e2e

PLAIN_TEXT, TLS = "PLAINSASL", "TLS"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
OWN = {PLAIN_TEXT: "SCRAM-SHA-512", TLS: "PLAIN"}
"""The mechanism of Forebay's own credentials."""


class Fronts(NamedTuple):
    """The Forebay before each listener, by the listener's name."""

    broker: KafkaCluster
    tls: TlsFiles
    sidecars: dict[str, Sidecar]


@pytest.fixture(scope="module")
def fronts() -> Iterator[Fronts]:
    with contextlib.ExitStack() as stack:
        ports = {name: stack.enter_context(lease_port()).port for name in (PLAIN_TEXT, TLS)}
        protocols = {PLAIN_TEXT: "SASL_PLAINTEXT", TLS: "SASL_SSL"}
        listeners = [
            Listener(name, protocols[name], MECHANISMS, (HOST, port))
            for name, port in ports.items()
        ]
        broker = stack.enter_context(KafkaCluster(listeners=listeners))
        assert broker.tls is not None
        secret = broker.directory / "password"
        secret.touch(mode=0o600)
        secret.write_text(USERS["admin"] + "\n")
        listen = {name: f"{HOST}:{port}" for name, port in ports.items()}
        entries: dict[str, Options] = {
            PLAIN_TEXT: {"listen": listen[PLAIN_TEXT], "upstream": upstream(broker, PLAIN_TEXT)},
            TLS: tls_entry(broker, listen[TLS]),
        }
        sidecars = {}
        for name, entry in entries.items():
            credentials = {"mechanism": OWN[name], "username": "admin", "passwordFile": str(secret)}
            named = {"name": name, **entry, "upstreamCredentials": credentials}
            sidecar = Sidecar([named], {"cache": PATIENT_CACHE})
            sidecars[name] = stack.enter_context(sidecar)
        yield Fronts(broker, broker.tls, sidecars)


def options_for(fronts: Fronts, front: str, mechanism: str) -> Options:
    """librdkafka's settings for a mechanism at a listener."""
    options = sign_in(mechanism)
    if front == TLS:
        options |= {"security.protocol": "SASL_SSL", "ssl.ca.location": str(fronts.tls.authority)}
    return options


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("front", [PLAIN_TEXT, TLS])
def test_every_mechanism_passes_and_hits(fronts: Fronts, front: str, mechanism: str) -> None:
    sidecar = fronts.sidecars[front]
    options = options_for(fronts, front, mechanism)
    wait_hits(sidecar, sidecar.bootstrap, options, fronts.broker.direct)


@pytest.mark.parametrize("front", [PLAIN_TEXT, TLS])
def test_forebay_signs_in_with_its_own(fronts: Fronts, front: str) -> None:
    fronts.sidecars[front].wait_for_log("the replica fetcher has its own connection")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
@pytest.mark.parametrize("front", [PLAIN_TEXT, TLS])
def test_a_wrong_password_is_refused(fronts: Fronts, front: str, mechanism: str) -> None:
    options = options_for(fronts, front, mechanism) | {"sasl.password": "wrong"}
    refusal_to_sign_in(
        fronts.sidecars[front].bootstrap, create_topic(fronts.broker.direct), options
    )


def test_plain_text_sasl_on_the_tls_listener_harms_nobody(fronts: Fronts) -> None:
    errors: list[KafkaError] = []
    topic = create_topic(fronts.broker.direct)
    options = sign_in("SCRAM-SHA-512") | {"error_cb": errors.append}
    consumer = open_consumer(fronts.sidecars[TLS].bootstrap, topic, options)
    assert read(consumer, 1, 1.0) == []
    consumer.close()
    test_every_mechanism_passes_and_hits(fronts, TLS, "SCRAM-SHA-512")
