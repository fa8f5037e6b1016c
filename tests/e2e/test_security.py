"""TLS, SASL, re-authentication and ACLs through Forebay: the broker decides who may, Forebay never knows
more.

Owns one broker with a listener for each way to sign in and a Forebay for each way to be configured. Must not
know how Forebay signs in or asks, beyond its counters and its log.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
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
from tests.kit.broker.kafka import USERS, KafkaCluster
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST, Listener
from tests.kit.broker.topics import create_topic
from tests.kit.sidecar import PATIENT_CACHE, Sidecar, SidecarFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.kit.broker.certificates import TlsFiles

pytestmark = pytest.mark.e2e

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER")
REAUTH_MS = 3000
AUTHORIZE_EVERY_S = 2.0
COUNT = 8
HIT = ("hit", "")
GROUP = "unused"
Options = dict[str, Any]


class Secured(NamedTuple):
    """`own` has credentials of its own, `bare` has none, `encrypted` speaks TLS on both sides."""

    broker: KafkaCluster
    tls: TlsFiles
    own: Sidecar
    reauth_bootstrap: str
    bare: Sidecar
    encrypted: Sidecar


def upstream(broker: KafkaCluster, name: str) -> str:
    host, port = broker.address(name)
    return f"{host}:{port}"


def tls_entry(broker: KafkaCluster, listen: str) -> Options:
    assert broker.tls is not None
    server = broker.tls.server
    return {
        "listen": listen,
        "upstream": upstream(broker, "TLS"),
        "tls": {"certificateFile": str(server.certificate), "keyFile": str(server.key)},
        "upstreamTls": {"enabled": True, "caFile": str(broker.tls.authority)},
    }


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    with contextlib.ExitStack() as stack:
        ports = {
            name: stack.enter_context(lease_port()).port
            for name in ("TLS", "OWN", "REAUTH", "BARE")
        }
        listen = {name: f"{HOST}:{port}" for name, port in ports.items()}
        listeners = [
            Listener(
                name,
                "SSL" if name == "TLS" else "SASL_PLAINTEXT",
                () if name == "TLS" else MECHANISMS,
                advertised=(HOST, port),
                max_reauth_ms=REAUTH_MS if name == "REAUTH" else 0,
            )
            for name, port in ports.items()
        ]
        broker = stack.enter_context(KafkaCluster(listeners=listeners, authorizer=True))
        assert broker.tls is not None
        secret = broker.directory / "password"
        secret.touch(mode=0o600)
        secret.write_text(USERS["admin"] + "\n")
        credentials = {
            "mechanism": "SCRAM-SHA-256",
            "username": "admin",
            "passwordFile": str(secret),
        }
        entries: dict[str, Options] = {
            name: {"name": name, "listen": listen[name], "upstream": upstream(broker, name)}
            for name in ("OWN", "REAUTH", "BARE")
        }
        entries["OWN"]["upstreamCredentials"] = credentials
        cache = {
            "cache": PATIENT_CACHE | {"size": "32MiB", "authorizeEvery": f"{AUTHORIZE_EVERY_S}s"}
        }
        own = stack.enter_context(Sidecar([entries["OWN"], entries["REAUTH"]], cache))
        bare = stack.enter_context(Sidecar([entries["BARE"]], cache))
        encrypted = stack.enter_context(Sidecar([tls_entry(broker, listen["TLS"])], cache))
        yield Secured(broker, broker.tls, own, listen["REAUTH"], bare, encrypted)


def sign_in(mechanism: str, user: str = "admin") -> Options:
    """librdkafka's settings for a user."""
    options: Options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        unsecured = {"enable.sasl.oauthbearer.unsecure.jwt": "true"}
        return options | unsecured | {"sasl.oauthbearer.config": f"principal={user}"}
    return options | {"sasl.username": user, "sasl.password": USERS[user]}


def open_consumer(bootstrap: str, topic: str, options: Mapping[str, Any]) -> Consumer:
    common = {"bootstrap.servers": bootstrap, "group.id": GROUP, "enable.auto.commit": False}
    consumer = Consumer(common | dict(options))
    consumer.assign([TopicPartition(topic, 0, 0)])
    return consumer


def read(consumer: Consumer, count: int, timeout_s: float = TIMEOUT_S) -> list[bytes | None]:
    """Values, until there are `count`. AssertionError on a client's error about the topic."""
    values: list[bytes | None] = []
    deadline = time.monotonic() + timeout_s
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is not None:
            error = message.error()
            assert error is None or error.code() < 0, error  # below 0: librdkafka's own, it retries
            if error is None:
                values.append(message.value())
    return values


def refusal(consumer: Consumer) -> KafkaError:
    """The broker's error that the consumer is told; no record may come before."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is not None:
            error = message.error()
            assert error is not None, "a record reached who may not read it"
            if error.code() > 0:
                return error
    raise AssertionError("no refusal")


def tail(
    sidecar: Sidecar, bootstrap: str, topic: str, options: Mapping[str, Any], count: int = COUNT
) -> float:
    """Produce and read one record after the other through Forebay; bytes served from memory meanwhile."""
    producer = Producer({"bootstrap.servers": bootstrap, **options})
    consumer = open_consumer(bootstrap, topic, options)
    before = sidecar.fetch_counts().get(HIT, 0)
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        assert read(consumer, 1) == [b"%d" % number]
    consumer.close()
    return sidecar.fetch_counts().get(HIT, 0) - before


def tail_until_hit(
    sidecar: Sidecar, bootstrap: str, topic: str, options: Mapping[str, Any], count: int = COUNT
) -> None:
    """`tail`, until memory has served: a busy machine proves rights and leases later."""
    deadline = time.monotonic() + 4 * TIMEOUT_S
    while tail(sidecar, bootstrap, topic, options, count) == 0:
        assert time.monotonic() < deadline, sidecar.fetch_counts()


def wait_hits(sidecar: Sidecar, bootstrap: str, options: Mapping[str, Any], direct: str) -> None:
    tail_until_hit(sidecar, bootstrap, create_topic(direct), options, 12)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_sasl_passes_through_and_own_credentials_give_hits(
    secured: Secured, mechanism: str
) -> None:
    wait_hits(secured.own, secured.own.bootstrap, sign_in(mechanism), secured.broker.direct)
    secured.own.wait_for_log("the replica fetcher has its own connection")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_without_own_credentials_clients_links_carry_the_watch(
    secured: Secured, mechanism: str
) -> None:
    wait_hits(secured.bare, secured.bare.bootstrap, sign_in(mechanism), secured.broker.direct)
    secured.bare.wait_for_log("the replica fetcher has no connection of its own")


def refusal_to_sign_in(bootstrap: str, topic: str, options: Mapping[str, Any]) -> None:
    """Wait until a consumer is told that it cannot sign in; nothing else may come."""
    errors: list[KafkaError] = []
    consumer = open_consumer(bootstrap, topic, {**options, "error_cb": errors.append})
    deadline = time.monotonic() + TIMEOUT_S
    while not any(error.code() == KafkaError._AUTHENTICATION for error in errors):
        assert time.monotonic() < deadline, errors
        assert consumer.poll(0.1) is None
    consumer.close()


def test_wrong_password_is_the_brokers_answer(secured: Secured) -> None:
    for sidecar in (secured.own, secured.bare):
        options = sign_in("PLAIN") | {"sasl.password": "wrong"}
        refusal_to_sign_in(sidecar.bootstrap, create_topic(secured.broker.direct), options)


def test_client_lives_past_reauthentication(secured: Secured) -> None:
    seen: list[dict[str, Any]] = []
    options = sign_in("SCRAM-SHA-256") | {
        "statistics.interval.ms": 250,
        "stats_cb": lambda text: seen.append(json.loads(text)),
    }
    topic = create_topic(secured.broker.direct)
    producer = Producer({"bootstrap.servers": secured.reauth_bootstrap} | sign_in("PLAIN"))
    consumer = open_consumer(secured.reauth_bootstrap, topic, options)
    ends = time.monotonic() + REAUTH_MS / 1000 * 2.5
    sent = 0
    while time.monotonic() < ends:
        producer.produce(topic, b"%d" % sent, partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        assert read(consumer, 1) == [b"%d" % sent]
        sent += 1
        time.sleep(0.1)
    consumer.close()
    node = next(one for one in seen[-1]["brokers"].values() if one["nodeid"] == 1)
    assert node["disconnects"] == 0, "the connection outlived its session"
    assert node["req"]["SaslAuthenticate"] > 2, "it authenticated more than once"
    assert secured.own.fetch_counts().get(HIT, 0) > 0


def change_acl(
    secured: Secured, kind: ResourceType, name: str, operation: AclOperation, *, grant: bool
) -> None:
    """What alice may do."""
    admin = AdminClient({"bootstrap.servers": secured.broker.direct})
    what = (
        kind,
        name,
        ResourcePatternType.LITERAL,
        "User:alice",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )
    changed = (
        admin.create_acls([AclBinding(*what)])
        if grant
        else admin.delete_acls([AclBindingFilter(*what)])
    )
    for future in changed.values():
        future.result(TIMEOUT_S)


@pytest.mark.parametrize("which", ["own", "bare"])
def test_memory_serves_nobody_whom_the_broker_refuses(secured: Secured, which: str) -> None:
    sidecar: Sidecar = getattr(secured, which)
    topic = create_topic(secured.broker.direct)
    change_acl(secured, ResourceType.GROUP, GROUP, AclOperation.READ, grant=True)
    change_acl(
        secured, ResourceType.TOPIC, topic, AclOperation.DESCRIBE, grant=True
    )  # as far as Fetch
    assert tail(sidecar, sidecar.bootstrap, topic, sign_in("PLAIN")) > 0, (
        "another principal's are hits"
    )
    alice = open_consumer(sidecar.bootstrap, topic, sign_in("SCRAM-SHA-256", "alice"))
    assert refusal(alice).code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    alice.close()
    change_acl(secured, ResourceType.TOPIC, topic, AclOperation.READ, grant=True)
    alice = open_consumer(sidecar.bootstrap, topic, sign_in("SCRAM-SHA-256", "alice"))
    assert len(read(alice, COUNT)) == COUNT
    producer = Producer({"bootstrap.servers": sidecar.bootstrap} | sign_in("PLAIN"))
    before = sidecar.fetch_counts().get(HIT, 0)
    for _ in range(COUNT):
        producer.produce(topic, b"more", partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        assert read(alice, 1) == [b"more"]
    assert sidecar.fetch_counts().get(HIT, 0) > before, (
        "alice, the only reader now, is served from memory"
    )
    change_acl(secured, ResourceType.TOPIC, topic, AclOperation.READ, grant=False)
    ends = time.monotonic() + 3 * AUTHORIZE_EVERY_S
    refused = False
    while not refused:
        assert time.monotonic() < ends, (
            "a right that was taken away ends within cache.authorizeEvery"
        )
        producer.produce(topic, b"more", partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        message = alice.poll(0.2)
        error = message.error() if message is not None else None
        refused = error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    alice.close()


def test_tls_on_both_sides_gives_hits(secured: Secured) -> None:
    options = {"security.protocol": "SSL", "ssl.ca.location": str(secured.tls.authority)}
    wait_hits(secured.encrypted, secured.encrypted.bootstrap, options, secured.broker.direct)


def test_plain_text_on_a_tls_listener_harms_nobody(secured: Secured) -> None:
    errors: list[KafkaError] = []
    topic = create_topic(secured.broker.direct)
    consumer = open_consumer(secured.encrypted.bootstrap, topic, {"error_cb": errors.append})
    assert read(consumer, 1, 1.0) == []
    consumer.close()
    test_tls_on_both_sides_gives_hits(secured)


def connect(bootstrap: str, tls: TlsFiles, *, shows_certificate: bool) -> None:
    """A TLS handshake and one byte, since TLS 1.3 refuses after the handshake. OSError."""
    host, port = bootstrap.split(":")
    context = ssl.create_default_context(cafile=str(tls.authority))
    if shows_certificate:
        context.load_cert_chain(str(tls.client.certificate), str(tls.client.key))
    with (
        socket.create_connection((host, int(port)), TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as wrapped,
    ):
        wrapped.settimeout(1.0)
        with contextlib.suppress(TimeoutError):
            if wrapped.recv(1) == b"":
                raise ConnectionError("closed")


def test_client_certificates_refuse_the_start_unless_shared_identity_is_allowed(
    secured: Secured,
) -> None:
    with lease_port() as lease:
        entry = tls_entry(secured.broker, f"{HOST}:{lease.port}")
        entry["tls"] |= {"clientAuth": "required", "clientCaFile": str(secured.tls.authority)}
        with pytest.raises(SidecarFailed, match="allowSharedIdentity"), Sidecar([entry]):
            pass
        with Sidecar([entry | {"allowSharedIdentity": True}]) as shared:
            shared.wait_for_log("memory serves nobody")
            with pytest.raises(OSError):
                connect(shared.bootstrap, secured.tls, shows_certificate=False)
            connect(shared.bootstrap, secured.tls, shows_certificate=True)
            assert {result for result, _ in shared.fetch_counts("partitions")} <= {"pass"}
