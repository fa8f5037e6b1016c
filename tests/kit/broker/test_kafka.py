"""The harness itself against real brokers: what it promises to other tests holds."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from tests.kit.broker.jars import KAFKA_3
from tests.kit.broker.kafka import USERS, KafkaBroker, KafkaCluster
from tests.kit.broker.probe import peek_broker_count
from tests.kit.broker.settings import Listener
from tests.kit.broker.topics import create_topic, delete_topic
from tests.kit.sidecar import ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytestmark = pytest.mark.e2e

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
TIMEOUT_S = 30
LISTENERS = (
    Listener("TLS", "SSL"),
    Listener("SASL", "SASL_PLAINTEXT", MECHANISMS),
    Listener("BOTH", "SASL_SSL", MECHANISMS, max_reauth_ms=60_000),
)


@pytest.fixture(scope="module")
def secured() -> "Iterator[KafkaCluster]":
    with KafkaBroker(listeners=LISTENERS, authorizer=True) as running:
        yield running


def round_trip(
    bootstrap: str, topic: str, options: "Mapping[str, object] | None" = None
) -> list[bytes | None]:
    """Produces two values with confluent-kafka and reads the topic's partition 0 from the beginning."""
    common = {"bootstrap.servers": bootstrap, **(options or {})}
    producer = Producer(common)
    for value in (b"one", b"two"):
        producer.produce(topic, value, partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer(common | {"group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        return [
            message.value()
            for message in consumer.consume(2, timeout=TIMEOUT_S)
            if message.error() is None
        ]
    finally:
        consumer.close()


def test_confluent_round_trip(broker: KafkaCluster) -> None:
    assert round_trip(broker.direct, create_topic(broker.direct)) == [b"one", b"two"]


def test_aiokafka_round_trip(broker: KafkaCluster) -> None:
    topic = create_topic(broker.direct)

    async def run() -> bytes | None:
        async with AIOKafkaProducer(bootstrap_servers=broker.direct) as producer:
            await producer.send_and_wait(topic, b"value")
        async with AIOKafkaConsumer(
            bootstrap_servers=broker.direct, auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            record = await asyncio.wait_for(consumer.getone(), TIMEOUT_S)
            value: bytes | None = record.value
            return value

    assert asyncio.run(run()) == b"value"


def test_tool_runs_kafkas_own_commands(broker: KafkaCluster) -> None:
    topic = create_topic(broker.direct)
    printed = broker.tool(
        "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", broker.direct, "--list"
    )
    assert topic in printed.splitlines()
    delete_topic(broker.direct, topic)
    config = (
        "--bootstrap-server",
        broker.direct,
        "--describe",
        "--entity-type",
        "brokers",
        "--all",
    )
    assert "log.dirs" in broker.tool("kafka.admin.ConfigCommand", *config)


def sign_in(mechanism: str, user: str, cluster: KafkaCluster, *, tls: bool) -> dict[str, object]:
    """librdkafka's settings for a user of the cluster."""
    options: dict[str, object] = {"security.protocol": "SASL_SSL" if tls else "SASL_PLAINTEXT"}
    if mechanism == "OAUTHBEARER":
        options |= {
            "enable.sasl.oauthbearer.unsecure.jwt": "true",
            "sasl.oauthbearer.config": f"principal={user}",
        }
    else:
        options |= {"sasl.username": user, "sasl.password": USERS[user]}
    if tls and cluster.tls is not None:
        options["ssl.ca.location"] = str(cluster.tls.authority)
    return options | {"sasl.mechanism": mechanism}


@pytest.mark.parametrize(
    ("listener", "mechanism"), [*(("SASL", one) for one in MECHANISMS), ("BOTH", "PLAIN")]
)
def test_sasl_round_trip(secured: KafkaCluster, mechanism: str, listener: str) -> None:
    host, port = secured.address(listener)
    options = sign_in(mechanism, "admin", secured, tls=listener == "BOTH")
    assert round_trip(f"{host}:{port}", create_topic(secured.direct), options) == [b"one", b"two"]


def test_authorizer_refuses_other_users(secured: KafkaCluster) -> None:
    host, port = secured.address("SASL")
    topic = create_topic(secured.direct)
    errors: list[str | None] = []
    producer = Producer(
        sign_in("PLAIN", "alice", secured, tls=False)
        | {"bootstrap.servers": f"{host}:{port}", "message.timeout.ms": 1000 * TIMEOUT_S}
    )
    producer.produce(
        topic, b"x", on_delivery=lambda error, _: errors.append(error.name() if error else None)
    )
    producer.flush(TIMEOUT_S)
    assert errors == ["TOPIC_AUTHORIZATION_FAILED"]


def test_tls_round_trip(secured: KafkaCluster) -> None:
    assert secured.tls is not None
    options = {"security.protocol": "SSL", "ssl.ca.location": str(secured.tls.authority)}
    topic = create_topic(secured.direct)
    bootstrap = f"localhost:{secured.address('TLS')[1]}"
    assert round_trip(bootstrap, topic, options) == [b"one", b"two"]


def test_advertised_address_is_what_clients_are_told(proxied: ProxiedBroker) -> None:
    def find_told(bootstrap: str) -> str:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        told = admin.list_topics(timeout=TIMEOUT_S).brokers[1]
        return f"{told.host}:{told.port}"

    assert find_told(proxied.upstream) == proxied.advertised != proxied.upstream
    assert find_told(proxied.cluster.direct) == proxied.cluster.direct


@pytest.mark.smoke39
def test_kafka_3_scram_over_tls_and_tools() -> None:
    with KafkaBroker(
        version=KAFKA_3, listeners=[Listener("BOTH", "SASL_SSL", ("SCRAM-SHA-512",))]
    ) as running:
        host, port = running.address("BOTH")
        options = sign_in("SCRAM-SHA-512", "alice", running, tls=True)
        topic = create_topic(running.direct)
        assert round_trip(f"{host}:{port}", topic, options) == [b"one", b"two"]
        list_topics = ("--bootstrap-server", running.direct, "--list")
        assert (
            topic in running.tool("org.apache.kafka.tools.TopicCommand", *list_topics).splitlines()
        )


def test_stall_restart_and_data_stay(tmp_path: Path) -> None:
    with KafkaBroker(directory=tmp_path / "kafka") as running:
        topic = create_topic(running.direct)
        before = round_trip(running.direct, topic)
        running.stall()
        with pytest.raises(TimeoutError):
            peek_broker_count(running.address())
        running.wake()
        assert peek_broker_count(running.address()) == 1
        running.stop(gracefully=True)
        running.start()
        assert round_trip(running.direct, topic) == before
    assert (tmp_path / "kafka" / "broker-1.log").exists(), "a directory that was given stays"


def is_alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def end(process: "subprocess.Popen[str]", number: signal.Signals) -> None:
    """Python ignores an interrupt that comes while it runs a destructor: then it is told again."""
    for wait_s in (10, 10, 30):
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
            return
    pytest.fail(f"it has not ended by {number.name}")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_broker_outlives_its_starter(number: signal.Signals) -> None:
    script = (
        "import signal, time; from tests.kit.broker.kafka import KafkaBroker\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it\n"
        "with KafkaBroker() as b: print(b.pid(), flush=True); time.sleep(60)"
    )
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=root,
        text=True,
    ) as starter:
        assert starter.stdout is not None
        broker_pid = int(starter.stdout.readline())
        assert is_alive(broker_pid)
        end(starter, number)
    deadline = time.monotonic() + TIMEOUT_S
    while is_alive(broker_pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    alive = is_alive(broker_pid)
    if alive:
        os.kill(broker_pid, signal.SIGKILL)
    assert not alive
