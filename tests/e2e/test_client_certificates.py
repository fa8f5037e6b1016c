"""Clients with certificates, whom Forebay signs in by delegation tokens: the broker sees each one's own principal.

Owns a broker with ACLs and one Forebay that lives through all tests of this file, beside those that a test starts. Must
not know how tokens are kept. Invariant: a principal belongs to one test.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import socket
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AclOperation, ResourceType

from protocol import control
from protocol.metadata import scan_metadata_response
from tests.e2e.certified import (
    ACL_TOOL,
    AUTHORIZE_EVERY_S,
    REAUTH_MS,
    Certified,
    find_remedy,
    let_create_tokens,
    start_certified,
    start_sidecar,
    wait_until,
)
from tests.e2e.families import TIMEOUT_S
from tests.e2e.test_security import HIT, open_consumer, read, refusal, tail_until_hit
from tests.kit.broker.process import kafka_tool
from tests.kit.broker.topics import create_topic
from tests.kit.sidecar import Sidecar, SidecarFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

CREATED = "forebay_delegation_tokens_total", "create"
SIGN_INS = ("forebay_token_sign_ins_total",)
DEPTH = "forebay_queue_depth", "delegation_tokens"
MANY = 200
METADATA_VERSION = 12
SHORT_S = 4.0


class Running(NamedTuple):
    """The broker, and a Forebay before its listeners MTLS and REAUTH, which may create tokens."""

    certified: Certified
    sidecar: Sidecar

    def total(self, *name: str) -> float:
        """A metric's value."""
        return self.sidecar.metrics()[name]


@pytest.fixture(scope="module")
def certified() -> Iterator[Certified]:
    with start_certified() as one:
        yield one


@pytest.fixture(scope="module")
def running(certified: Certified) -> Iterator[Running]:
    """Started without the right to create tokens; the line that Forebay's log names gives it."""
    entries = [certified.certified_entry("MTLS"), certified.certified_entry("REAUTH")]
    sidecar = start_sidecar(entries)
    with contextlib.ExitStack() as stack:
        stack.push(sidecar.__exit__)
        with contextlib.suppress(SidecarFailed):
            sidecar.start(5.0)
            raise AssertionError("it was ready without the right to create tokens")
        sidecar.wait_for_log("Forebay may not create tokens for User:forebay-check")
        assert not sidecar.is_ready()
        remedy = find_remedy(sidecar.log_tail())
        certified.broker.tool(ACL_TOOL, "--bootstrap-server", certified.broker.direct, *remedy)
        wait_until(sidecar.is_ready, "it is not ready with the right that it asked for")
        yield Running(certified, sidecar)


def test_the_right_that_is_missing_is_named_and_enough(running: Running) -> None:
    failures = running.total("forebay_delegation_token_failures_total", "authorization")
    assert failures > 0
    running.sidecar.wait_for_log("Forebay can sign in to the broker for its clients")


def test_memory_serves_each_principal_with_its_own_rights(running: Running) -> None:
    certified, sidecar = running.certified, running.sidecar
    topic = create_topic(certified.broker.direct)
    first, second = (certified.client(name) for name in ("first", "second"))
    bootstrap = certified.listen["MTLS"]
    certified.allow("User:CN=first", topic)
    tail_until_hit(sidecar, bootstrap, topic, first)
    certified.change_acl("User:CN=second", ResourceType.GROUP, "*", AclOperation.READ, True)
    certified.change_acl(
        "User:CN=second", ResourceType.TOPIC, topic, AclOperation.DESCRIBE, True
    )  # as far as Fetch
    consumer = open_consumer(bootstrap, topic, second)
    assert refusal(consumer).code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    consumer.close()
    log = certified.broker.log_path().read_text()
    assert "Principal = User:CN=second is Denied operation = READ from host" in log
    certified.allow("User:CN=second", topic)
    tail_until_hit(sidecar, bootstrap, topic, second)


def test_a_right_that_is_taken_away_ends_in_memory(running: Running) -> None:
    certified, sidecar = running.certified, running.sidecar
    topic = create_topic(certified.broker.direct)
    bootstrap, principal = certified.listen["MTLS"], "User:CN=revoked"
    options = certified.client("revoked")
    certified.allow(principal, topic)
    certified.change_acl(principal, ResourceType.TOPIC, topic, AclOperation.DESCRIBE, True)
    tail_until_hit(sidecar, bootstrap, topic, options)
    producer = Producer({"bootstrap.servers": certified.broker.direct})
    consumer = open_consumer(bootstrap, topic, options)
    producer.produce(topic, b"seen", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    while read(consumer, 1) != [b"seen"]:
        pass
    certified.change_acl(principal, ResourceType.TOPIC, topic, AclOperation.READ, False)
    ends = time.monotonic() + 3 * AUTHORIZE_EVERY_S + TIMEOUT_S / 4
    code = None
    while code != KafkaError.TOPIC_AUTHORIZATION_FAILED:
        assert time.monotonic() < ends
        producer.produce(topic, b"more", partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        message = consumer.poll(0.2)
        error = message.error() if message is not None else None
        code = error.code() if error is not None else None
    consumer.close()


def test_a_session_with_an_end_is_renewed_while_requests_are_in_flight(running: Running) -> None:
    certified, sidecar = running.certified, running.sidecar
    topic = create_topic(certified.broker.direct)
    certified.allow("User:CN=renewed", topic)
    seen: list[dict[str, Any]] = []
    options = certified.client("renewed", "REAUTH")
    bootstrap = certified.listen["REAUTH"]
    statistics = {
        "statistics.interval.ms": 250,
        "stats_cb": lambda text: seen.append(json.loads(text)),
    }
    before, hits = running.total(*SIGN_INS), sidecar.fetch_counts().get(HIT, 0)
    producer = Producer(options)
    consumer = open_consumer(bootstrap, topic, options | statistics)
    ends = time.monotonic() + 2.5 * REAUTH_MS / 1000
    sent = 0
    while time.monotonic() < ends:
        producer.produce(topic, b"%d" % sent, partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        assert read(consumer, 1) == [b"%d" % sent]
        sent += 1
    consumer.close()
    node = next(one for one in seen[-1]["brokers"].values() if one["nodeid"] == 1)
    assert node["disconnects"] == 0, "the connection ended with its session"
    assert running.total(*SIGN_INS) > before + 4
    assert sidecar.fetch_counts().get(HIT, 0) > hits


def test_java_clients_with_certificates(running: Running) -> None:
    certified = running.certified
    topic = create_topic(certified.broker.direct)
    certified.allow("User:CN=java", topic)
    certified.change_acl("User:CN=java", ResourceType.TOPIC, topic, AclOperation.DESCRIBE, True)
    assert certified.broker.tls is not None
    settings = certified.broker.directory / "java-client.properties"
    settings.write_text(
        "security.protocol=SSL\n"
        f"ssl.keystore.type=PEM\nssl.keystore.location={certified.authority.identity('java').keystore}\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={certified.broker.tls.authority}\n"
        "enable.idempotence=false\n"
    )
    where = ("--bootstrap-server", certified.listen["MTLS"], "--topic", topic)
    kafka_tool(
        "org.apache.kafka.tools.ConsoleProducer",
        *(*where, "--command-config", str(settings)),
        stdin="one\ntwo\n",
    )
    bounds = ("--max-messages", "2", "--timeout-ms", str(int(TIMEOUT_S * 1000)))
    printed = kafka_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *(*where, "--partition", "0", "--offset", "earliest", *bounds),
        *("--command-config", str(settings)),
    )
    assert printed.splitlines() == ["one", "two"]


class CertifiedSocket:
    """A TLS socket of a client, and whole frames on it."""

    def __init__(self, certified: Certified, name: str, listener: str = "MTLS") -> None:
        host, port = certified.listen[listener].split(":")
        plain = socket.create_connection((host, int(port)), 3 * TIMEOUT_S)
        self._socket = certified.context(name).wrap_socket(plain, server_hostname=host)
        self._file = self._socket.makefile("rb")

    def call(self, frame: bytes) -> bytes:
        """A request's response; ConnectionError where the connection ends instead."""
        self._socket.sendall(frame)
        size = self._file.read(4)
        if len(size) < 4:
            raise ConnectionError("it was closed")
        return size + self._file.read(int.from_bytes(size, "big"))

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def ask_metadata(client: CertifiedSocket) -> int:
    """The number of topics that the client may see."""
    frame = control.build_metadata_request(METADATA_VERSION, 7, "raw", topics=None)
    return len(scan_metadata_response(client.call(frame), METADATA_VERSION).topics)


@pytest.mark.parametrize("api_version", [0, 1])
def test_sasl_of_a_client_with_a_certificate_is_refused_as_by_an_ssl_listener(
    running: Running, api_version: int
) -> None:
    client = CertifiedSocket(running.certified, "sasl")
    hello = control.build_sasl_handshake_request(api_version, 5, "raw", mechanism="PLAIN")
    answer = control.scan_sasl_handshake_response(client.call(hello), api_version)
    assert (answer.error_code, answer.mechanisms) == (34, [])
    token = control.build_sasl_authenticate_request(
        2, 6, "raw", auth_bytes=b"\0admin\0admin-secret"
    )
    assert control.scan_sasl_authenticate_response(client.call(token), 2).error_code == 34
    ask_metadata(client)
    client.close()


def test_two_hundred_principals_have_a_token_each(running: Running) -> None:
    certified = running.certified
    names = [f"many-{number}" for number in range(MANY)]
    for name in names:
        certified.authority.identity(name)
    created, began = running.total(*CREATED), time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(MANY) as pool:
        clients = list(pool.map(lambda name: CertifiedSocket(certified, name), names))
        topics = list(pool.map(ask_metadata, clients))
    took_s = time.monotonic() - began
    assert running.total(*CREATED) - created == MANY
    assert running.total(*DEPTH) >= MANY
    print(f"{MANY} principals signed in within {took_s:.1f} s")
    others = [CertifiedSocket(certified, name) for name in names[:10]]
    assert [ask_metadata(one) for one in others] == topics[:10]
    assert running.total(*CREATED) - created == MANY, (
        "a token is shared by a principal's connections"
    )
    for one in (*clients, *others):
        one.close()


def test_a_restart_of_the_broker_keeps_principals(running: Running) -> None:
    certified, sidecar = running.certified, running.sidecar
    topic = create_topic(certified.broker.direct)
    certified.allow("User:CN=restarted", topic)
    options, bootstrap = certified.client("restarted"), certified.listen["MTLS"]
    tail_until_hit(sidecar, bootstrap, topic, options)
    certified.broker.stop(gracefully=True)
    certified.broker.start()
    wait_until(sidecar.is_ready, "Forebay is not ready behind the broker's restart")
    tail_until_hit(sidecar, bootstrap, topic, options)


def test_a_token_at_the_end_of_its_life_is_replaced(running: Running) -> None:
    """On a broker's listener that ends sessions: the first would end with its token."""
    certified = running.certified
    running.sidecar.stop()
    try:
        tokens = {"lifetime": f"{SHORT_S:g}s"}
        entry = certified.certified_entry("REAUTH")
        with start_sidecar([entry], delegationTokens=tokens) as sidecar:
            topic = create_topic(certified.broker.direct)
            certified.allow("User:CN=short", topic)
            options, bootstrap = certified.client("short", "REAUTH"), certified.listen["REAUTH"]
            producer = Producer(options)
            consumer = open_consumer(bootstrap, topic, options)
            ends, sent = time.monotonic() + 4 * SHORT_S, 0
            while time.monotonic() < ends or not sidecar.fetch_counts().get(HIT, 0):
                assert time.monotonic() < ends + 3 * TIMEOUT_S
                producer.produce(topic, b"%d" % sent, partition=0)
                assert producer.flush(TIMEOUT_S) == 0
                assert read(consumer, 1) == [b"%d" % sent]
                sent += 1
            consumer.close()
            metrics = sidecar.metrics()
            assert metrics[CREATED] >= 4, (
                "one for the check, and one after the other for the client"
            )
    finally:
        running.sidecar.start()


def test_a_name_without_a_rule_is_closed_and_counted(running: Running) -> None:
    certified = running.certified
    running.sidecar.stop()
    try:
        rules = {"principalMappingRules": "RULE:^CN=(app-.*)$/$1/U"}
        entry = certified.certified_entry("MTLS", **rules)
        with start_sidecar([entry], delegationTokens={"limit": 2}) as sidecar:
            topic = create_topic(certified.broker.direct)
            certified.allow("User:APP-1", topic)
            tail_until_hit(sidecar, certified.listen["MTLS"], topic, certified.client("app-1"))
            with pytest.raises(OSError):
                ask_metadata(CertifiedSocket(certified, "nobody"))
            metrics = sidecar.metrics()
            assert metrics["forebay_disconnects_total", "no_principal"] == 1
            held = [CertifiedSocket(certified, name) for name in ("app-2", "app-3")]
            ask_metadata(held[0])
            ask_metadata(held[1])
            with pytest.raises(OSError):
                ask_metadata(CertifiedSocket(certified, "app-4"))
            metrics = sidecar.metrics()
            assert metrics[DEPTH] == 2
            assert metrics["forebay_delegation_token_failures_total", "limit"] > 0
            sidecar.wait_for_log("raise delegationTokens.limit")
            for one in held:
                one.close()
    finally:
        running.sidecar.start()


def test_a_broker_without_tokens_is_named() -> None:
    with start_certified({"delegation.token.secret.key": ""}) as certified:
        let_create_tokens(certified)
        sidecar = start_sidecar([certified.certified_entry("MTLS")])
        with contextlib.ExitStack() as stack:
            stack.push(sidecar.__exit__)
            with pytest.raises(SidecarFailed):
                sidecar.start(5.0)
            sidecar.wait_for_log("add delegation.token.secret.key=SECRET")
