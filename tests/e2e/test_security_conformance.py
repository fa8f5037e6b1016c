"""Whoever signs in, however, is told by Forebay what the broker itself tells: allowed, denied, revoked while tailing.

Owns one broker that has each security protocol twice: DIRECT_* is the broker itself, THROUGH_* a Forebay before it. The
same principal asks both at the same time. Must not know how Forebay learns of rights. Invariants: memory holds each
topic's records before anybody is refused, since an administrator has produced them through Forebay and reads them; a
right that ends is not used for longer than `cache.authorizeEvery` after the broker itself has refused.
"""

from __future__ import annotations

import contextlib
import threading
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

from tests.e2e.test_security import sign_in, upstream
from tests.kit.broker.kafka import USERS, KafkaCluster
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST, Listener
from tests.kit.broker.topics import create_topic
from tests.kit.sidecar import PATIENT_CACHE, Sidecar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from confluent_kafka import Message

pytestmark = pytest.mark.e2e

Options = dict[str, Any]

MTLS = "MTLS"
"""TLS with client certificates. Forebay takes them in the broker's place, and signs in by delegation tokens."""
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", MTLS)
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
NONE, CERTIFICATE = "none", "mTLS"
CELLS = [
    *((protocol, NONE) for protocol in ("PLAINTEXT", "SSL")),
    (MTLS, CERTIFICATE),
    *((protocol, one) for protocol in ("SASL_PLAINTEXT", "SASL_SSL") for one in MECHANISMS),
]
DIRECT, THROUGH = "DIRECT", "THROUGH"
ADMIN, ALICE, ANONYMOUS, CERTIFIED = "admin", "alice", "ANONYMOUS", "CN=client"
RECORDS = 10
AUTHORIZE_EVERY_S = 2.0
SLACK_S = 1.0
"""A record that was produced before a right ended may be on its way for so long."""
EVERY_S = 0.02
PATIENCE_S = 120.0
REFUSED = KafkaError.TOPIC_AUTHORIZATION_FAILED


class Fronts(NamedTuple):
    """The broker, the Forebay before it, and `addresses` by side and protocol."""

    broker: KafkaCluster
    sidecar: Sidecar
    addresses: dict[tuple[str, str], str]

    def connect(self, side: str, protocol: str, mechanism: str, user: str) -> Options:
        """librdkafka's settings for a user; with NONE there is no user."""
        address = self.addresses[side, protocol]
        spoken = "SSL" if protocol == MTLS else protocol
        options: Options = {"bootstrap.servers": address, "security.protocol": spoken}
        if spoken.endswith("SSL"):
            assert self.broker.tls is not None
            options["ssl.ca.location"] = str(self.broker.tls.authority)
        if mechanism == CERTIFICATE:
            assert self.broker.tls is not None
            client = self.broker.tls.client
            options["ssl.certificate.location"] = str(client.certificate)
            options["ssl.key.location"] = str(client.key)
        if mechanism in {NONE, CERTIFICATE}:
            return options
        return sign_in(mechanism, user) | options

    def connect_admin(self, side: str) -> Options:
        return self.connect(side, "SASL_PLAINTEXT", "PLAIN", ADMIN)


def name_listener(side: str, protocol: str) -> str:
    return f"{side}_{protocol}"


@pytest.fixture(scope="module")
def fronts() -> Iterator[Fronts]:
    with contextlib.ExitStack() as stack:
        listen = {one: f"{HOST}:{stack.enter_context(lease_port()).port}" for one in PROTOCOLS}
        listeners = [
            build_listener(side, protocol, int(listen[protocol].split(":")[1]))
            for side in (DIRECT, THROUGH)
            for protocol in PROTOCOLS
        ]
        overrides = {
            "super.users": f"User:{ADMIN}",
            "allow.everyone.if.no.acl.found": "true",
            "delegation.token.secret.key": "secret-of-the-test",
        }
        broker = stack.enter_context(
            KafkaCluster(listeners=listeners, authorizer=True, overrides=overrides)
        )
        entries = [build_entry(broker, protocol, listen[protocol]) for protocol in PROTOCOLS]
        cache = PATIENT_CACHE | {"size": "32MiB", "authorizeEvery": f"{AUTHORIZE_EVERY_S}s"}
        sidecar = stack.enter_context(Sidecar(entries, {"cache": cache}))
        addresses = {(THROUGH, protocol): listen[protocol] for protocol in PROTOCOLS}
        for protocol in PROTOCOLS:
            addresses[DIRECT, protocol] = upstream(broker, name_listener(DIRECT, protocol))
        yield Fronts(broker, sidecar, addresses)


def build_listener(side: str, protocol: str, port: int) -> Listener:
    """The broker's; behind Forebay it advertises `port`, and has SASL where Forebay takes the certificates."""
    spoken = protocol
    mechanisms: tuple[str, ...] = MECHANISMS if protocol.startswith("SASL") else ()
    properties = {}
    if protocol == MTLS and side == DIRECT:
        spoken, properties = "SSL", {"ssl.client.auth": "required"}
    elif protocol == MTLS:
        spoken, mechanisms = "SASL_SSL", ("SCRAM-SHA-256",)
    advertised = (HOST, port) if side == THROUGH else None
    return Listener(name_listener(side, protocol), spoken, mechanisms, advertised, properties)


def build_entry(broker: KafkaCluster, protocol: str, listen: str) -> Options:
    """Forebay's listener for a protocol; the one for SASL in plain text has credentials for Forebay itself."""
    behind = upstream(broker, name_listener(THROUGH, protocol))
    entry: Options = {"name": protocol.lower(), "listen": listen, "upstream": behind}
    if protocol.endswith("SSL") or protocol == MTLS:
        assert broker.tls is not None
        server = broker.tls.server
        entry["tls"] = {"certificateFile": str(server.certificate), "keyFile": str(server.key)}
        entry["upstreamTls"] = {"enabled": True, "caFile": str(broker.tls.authority)}
    if protocol == MTLS:
        assert broker.tls is not None
        entry["tls"] |= {"clientAuth": "required", "clientCaFile": str(broker.tls.authority)}
        entry["useDelegationTokens"] = True
    if protocol == "SASL_PLAINTEXT":
        secret = broker.directory / "password"
        secret.touch(mode=0o600)
        secret.write_text(USERS[ADMIN] + "\n")
        entry["upstreamCredentials"] = {
            "mechanism": "SCRAM-SHA-256",
            "username": ADMIN,
            "passwordFile": str(secret),
        }
    return entry


class Rights:
    """What users may read of one topic. Others than those named here may not; all may know that it is there, or no
    client would come as far as a Fetch.
    """

    def __init__(self, fronts: Fronts, topic: str) -> None:
        self._admin = AdminClient(fronts.connect_admin(DIRECT))
        self._topic = topic
        self._create(self._name("*", AclOperation.DESCRIBE))
        self.grant(ADMIN)

    def grant(self, user: str) -> None:
        self._create(self._name(user, AclOperation.READ))

    def _create(self, what: tuple[Any, ...]) -> None:
        for future in self._admin.create_acls([AclBinding(*what)]).values():
            future.result(PATIENCE_S)

    def revoke(self, user: str) -> None:
        what = AclBindingFilter(*self._name(user, AclOperation.READ))
        for future in self._admin.delete_acls([what]).values():
            future.result(PATIENCE_S)

    def _name(self, user: str, operation: AclOperation) -> tuple[Any, ...]:
        topic = (ResourceType.TOPIC, self._topic, ResourcePatternType.LITERAL)
        return (*topic, f"User:{user}", "*", operation, AclPermissionType.ALLOW)


class Reader:
    """A consumer of the topic from its start; `stamps` are the values that it got, `error` the broker's, in the end."""

    def __init__(self, options: Options, topic: str) -> None:
        settings = {"group.id": "unused", "enable.auto.commit": False, "log_level": 3}
        self.consumer = Consumer(settings | options)
        self.consumer.assign([TopicPartition(topic, 0, 0)])
        self.stamps: list[float] = []
        self.error: int | None = None
        self.refused_at: float | None = None

    def read_once(self) -> None:
        for message in self.consumer.consume(100, 0.02):
            self._take(message)

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is None:
            self.stamps.append(float(message.value() or b"0"))
        elif error.code() > 0 and self.error is None:  # below 0: librdkafka's own, it retries
            self.error, self.refused_at = error.code(), time.monotonic()

    def close(self) -> None:
        self.consumer.close()


def read_all(readers: list[Reader], until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not until():
        assert time.monotonic() < deadline, [(len(one.stamps), one.error) for one in readers]
        for one in readers:
            one.read_once()


def produce(producer: Producer, topic: str) -> None:
    """One record through Forebay, with the time at which it is produced."""
    producer.produce(topic, b"%.6f" % time.monotonic(), partition=0)
    assert producer.flush(PATIENCE_S) == 0


@contextlib.contextmanager
def produce_on(fronts: Fronts, topic: str) -> Iterator[None]:
    """Records come all the time, through Forebay."""
    over = threading.Event()

    def run() -> None:
        producer = Producer(fronts.connect_admin(THROUGH))
        while not over.wait(EVERY_S):
            produce(producer, topic)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE_S)


def make_topic(fronts: Fronts) -> tuple[str, Rights]:
    """A topic of RECORDS records that memory serves to the administrator, and to nobody else."""
    topic = create_topic(fronts.broker.direct)
    rights = Rights(fronts, topic)
    producer = Producer(fronts.connect_admin(THROUGH))
    reader = Reader(fronts.connect_admin(THROUGH), topic)
    before = count_hits(fronts)
    while count_hits(fronts) == before or len(reader.stamps) < RECORDS:
        produce(producer, topic)
        reader.read_once()
    reader.close()
    return topic, rights


def count_hits(fronts: Fronts) -> float:
    return fronts.sidecar.fetch_counts().get(("hit", ""), 0)


def find_user(mechanism: str) -> str:
    return {NONE: ANONYMOUS, CERTIFICATE: CERTIFIED}.get(mechanism, ALICE)


def open_readers(fronts: Fronts, cell: tuple[str, str], topic: str) -> list[Reader]:
    """The same principal past Forebay, and through it."""
    protocol, mechanism = cell
    user = find_user(mechanism)
    sides = (DIRECT, THROUGH)
    return [Reader(fronts.connect(side, protocol, mechanism, user), topic) for side in sides]


@pytest.mark.parametrize("cell", CELLS, ids="-".join)
def test_whoever_may_read_reads_the_same_and_from_memory(
    fronts: Fronts, cell: tuple[str, str]
) -> None:
    topic, rights = make_topic(fronts)
    rights.grant(find_user(cell[1]))
    direct, through = readers = open_readers(fronts, cell, topic)
    read_all(readers, lambda: all(len(one.stamps) >= RECORDS for one in readers))
    before = count_hits(fronts)
    with produce_on(fronts, topic):
        read_all(readers, lambda: count_hits(fronts) > before)
    read_all(readers, lambda: len(direct.stamps) == len(through.stamps))
    assert direct.stamps == through.stamps
    assert direct.error is through.error is None
    for one in readers:
        one.close()


@pytest.mark.parametrize("cell", CELLS, ids="-".join)
def test_whoever_may_not_read_is_refused_alike(fronts: Fronts, cell: tuple[str, str]) -> None:
    topic, _ = make_topic(fronts)
    readers = open_readers(fronts, cell, topic)
    with produce_on(fronts, topic):
        read_all(readers, lambda: all(one.error is not None for one in readers))
    assert [one.error for one in readers] == [REFUSED, REFUSED]
    assert [one.stamps for one in readers] == [[], []]
    for one in readers:
        one.close()


@pytest.mark.parametrize("cell", CELLS, ids="-".join)
def test_a_right_that_is_revoked_ends_in_time(fronts: Fronts, cell: tuple[str, str]) -> None:
    topic, rights = make_topic(fronts)
    user = find_user(cell[1])
    rights.grant(user)
    direct, through = readers = open_readers(fronts, cell, topic)
    before = count_hits(fronts)
    with produce_on(fronts, topic):
        read_all(readers, lambda: all(one.stamps for one in readers))
        read_all(readers, lambda: count_hits(fronts) > before)
        rights.revoke(user)
        read_all(readers, lambda: all(one.error is not None for one in readers))
        assert direct.refused_at is not None
        assert max(through.stamps) <= direct.refused_at + AUTHORIZE_EVERY_S + SLACK_S
        (late,) = again = open_readers(fronts, cell, topic)[1:]
        read_all(again, lambda: late.error is not None)
    assert [one.error for one in (*readers, late)] == [REFUSED] * 3
    assert late.stamps == []
    for one in (*readers, late):
        one.close()
