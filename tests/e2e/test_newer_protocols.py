"""What Forebay does not know passes through: share groups (KIP-932), telemetry (KIP-714), delegation tokens (KIP-48).

One broker with a listener that advertises Forebay and one that does not, for plain text and for SCRAM each: the same is
done on both ways, and has the same outcome.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import Producer
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.get_telemetry_subscriptions.v0.request import GetTelemetrySubscriptionsRequest

from tests.e2e.raw_frames import Raw
from tests.kit.broker.jars import kafka_jars
from tests.kit.broker.java import find_java
from tests.kit.broker.kafka import USERS, KafkaCluster
from tests.kit.broker.ports import lease_port
from tests.kit.broker.process import JVM_FLAGS, JavaProcess, ToolFailed, java_command, kafka_tool
from tests.kit.broker.settings import HOST, Listener, Node
from tests.kit.broker.topics import create_topic
from tests.kit.sidecar import Sidecar
from tests.protocol import oracle

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0
RECORDS = 60
SCRAM = "SCRAM-SHA-256"
SOURCE = Path(__file__).parent / "java" / "PushLog.java"
PUSHED = re.compile(
    r"PushLog client=(\S*) instance=(\S+) terminating=(\S+) type=(\S+) bytes=(\d+) listener=(\S+)"
)
API_VERSIONS, GET_SUBSCRIPTIONS, PUSH_TELEMETRY = 18, 71, 72
OVERRIDES = {
    "delegation.token.secret.key": "for-tests-only",
    "group.share.record.lock.duration.ms": 15_000,
}


class Plugged(KafkaCluster):
    """Its broker has the compiled plugin, where there is a compiler (`javac`, beside `java`)."""

    classes: Path | None = None

    def _launch(self, node: Node) -> None:
        settings = self.directory / f"server-{node.node_id}.properties"
        self.classes = compile_plugin(self.directory)
        if self.classes is None:
            return super()._launch(node)
        with settings.open("a") as properties:
            properties.write(f"metric.reporters={SOURCE.stem}\n")
        options: dict[str, Any] = {"heap_mb": self.heap_mb, "log_level": "info", "flags": JVM_FLAGS}
        command = java_command("kafka.Kafka", str(settings), version=self.version, **options)
        at = command.index("-cp") + 1
        command[at] = f"{self.classes}:{command[at]}"
        self._processes[node.node_id] = JavaProcess(command, self.log_path(node.node_id))
        return None


def compile_plugin(folder: Path) -> Path | None:
    """Where the plugin's class lies; None where there is no compiler."""
    compiler = Path(find_java()).resolve().with_name("javac")
    if not compiler.exists():
        return None
    classes = folder / "classes"
    command = [
        str(compiler),
        *(f"-J{flag}" for flag in JVM_FLAGS),
        "-nowarn",
        "-d",
        str(classes),
        "-cp",
        f"{kafka_jars()}/*",
        str(SOURCE),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
    return classes


class Ways(NamedTuple):
    """`through` and `direct` are plain text; of SCRAM each has its own listener."""

    broker: Plugged
    sidecar: Sidecar
    through: str
    through_scram: str
    direct_scram: str

    @property
    def direct(self) -> str:
        return self.broker.direct

    def asked(self, api: str) -> float:
        """Requests of an API that Forebay has seen."""
        return self.sidecar.metrics().get(("forebay_client_to_proxy_request_total", api), 0)


@pytest.fixture(scope="module")
def ways() -> Iterator[Ways]:
    with contextlib.ExitStack() as stack:
        ports = {name: stack.enter_context(lease_port()).port for name in ("CLIENT", "SASL")}
        listeners = [
            Listener("CLIENT", advertised=(HOST, ports["CLIENT"])),
            Listener("SASL", "SASL_PLAINTEXT", (SCRAM,), advertised=(HOST, ports["SASL"])),
            Listener("BESIDE", "SASL_PLAINTEXT", (SCRAM,)),
        ]
        broker = stack.enter_context(Plugged(listeners=listeners, overrides=OVERRIDES, heap_mb=384))
        entries = []
        for name, port in ports.items():
            host, upstream = broker.address(name)
            entries.append(
                {"name": name, "listen": f"{HOST}:{port}", "upstream": f"{host}:{upstream}"}
            )
        sidecar = stack.enter_context(Sidecar(entries))
        host, beside = broker.address("BESIDE")
        through, through_scram = (entry["listen"] for entry in entries)
        yield Ways(broker, sidecar, through, through_scram, f"{host}:{beside}")


def write(bootstrap: str, topic: str, numbers: range, **options: object) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, **options})
    for number in numbers:
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(PATIENCE_S) == 0


def share(bootstrap: str, topic: str, group: str, count: int) -> tuple[list[tuple[int, str]], int]:
    """(offset, value) of what a share consumer is given, in order, and how many it has acknowledged."""
    printed = kafka_tool(
        "org.apache.kafka.tools.VerifiableShareConsumer",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--group-id", group, "--verbose"),
        *("--max-messages", str(count), "--acknowledgement-mode", "sync"),
        *("--offset-reset-strategy", "earliest"),
    )
    said = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    read = sorted((one["offset"], one["value"]) for one in said if one["name"] == "record_data")
    return read, sum(one["count"] for one in said if one["name"] == "offsets_acknowledged")


def test_share_groups(ways: Ways) -> None:
    """Each record is given once and acknowledged once, also to the group's next consumer; the same on both ways."""
    topic = create_topic(ways.direct)
    before = ways.asked("ShareFetch")
    first, second = range(RECORDS), range(RECORDS, RECORDS + 20)
    for part in (first, second):
        write(ways.through, topic, part)
        with ThreadPoolExecutor(2) as pool:
            each = [
                pool.submit(share, way, topic, f"of-{way}", len(part))
                for way in (ways.direct, ways.through)
            ]
            read = [(number, str(number)) for number in part]
            assert [one.result() for one in each] == 2 * [(read, len(part))]
    assert ways.asked("ShareFetch") > before


def known_keys(bootstrap: str) -> dict[int, tuple[int, int]]:
    """API keys that are offered, with their versions."""
    request = ApiVersionsRequest(client_software_name="raw", client_software_version="1")
    with Raw(bootstrap) as raw:
        frame = raw.call(oracle.request_frame(request))
    answer = oracle.read_response(API_VERSIONS, 3, frame)[1]
    return {
        int(one.api_key): (int(one.min_version), int(one.max_version)) for one in answer.api_keys
    }


def test_telemetry_is_offered_as_the_broker_offers_it(ways: Ways) -> None:
    direct, through = known_keys(ways.direct), known_keys(ways.through)
    assert set(through) == set(direct)
    for key in (GET_SUBSCRIPTIONS, PUSH_TELEMETRY):
        assert through.get(key) == direct.get(key)
        assert (key in direct) == (ways.broker.classes is not None)


def subscribe(ways: Ways, name: str) -> None:
    ways.broker.tool(
        "kafka.admin.ConfigCommand",
        *(
            "--bootstrap-server",
            ways.direct,
            "--alter",
            "--entity-type",
            "client-metrics",
            "--entity-name",
            name,
        ),
        *("--add-config", "metrics=[*],interval.ms=200"),
    )


def pushes(ways: Ways, client_id: str) -> list[tuple[str, ...]]:
    found = PUSHED.findall(ways.broker.log_path().read_text(errors="replace"))
    return [one for one in found if one[0] == client_id]


def ask_until_answered(bootstrap: str, request: Any) -> bytes:
    """The answer; a broker refuses an instance that asks again within the push interval (ClientMetricsManager)."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with Raw(bootstrap) as raw:
            answer = raw.call(oracle.request_frame(request))
        if not oracle.read_response(GET_SUBSCRIPTIONS, 0, answer)[1].error_code:
            return answer
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_telemetry_reaches_the_brokers_plugin(ways: Ways) -> None:
    """librdkafka and Java push what the broker has subscribed to, the last time when they end."""
    if ways.broker.classes is None:
        pytest.skip("the broker's plugin is compiled: no javac beside java")
    subscribe(ways, "all")
    instance = uuid.uuid4()
    request = GetTelemetrySubscriptionsRequest(client_instance_id=instance)
    answers = [ask_until_answered(bootstrap, request) for bootstrap in (ways.direct, ways.through)]
    said = oracle.read_response(GET_SUBSCRIPTIONS, 0, answers[0])[1]
    assert said.client_instance_id == instance
    assert said.requested_metrics
    assert answers[1] == answers[0]
    topic = create_topic(ways.direct)
    producer = Producer({"bootstrap.servers": ways.through, "client.id": "rdkafka-pushes"})
    deadline = time.monotonic() + PATIENCE_S
    while not pushes(ways, "rdkafka-pushes"):
        producer.produce(topic, b"value")
        producer.poll(0.1)
        assert time.monotonic() < deadline, ways.broker.log_tail()
    producer.flush(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while not any(row[2] == "true" for row in pushes(ways, "java-pushes")):
        # one may end before it has been told what is asked of it, or while another push is on its way
        assert time.monotonic() < deadline, ways.broker.log_tail()
        options = ("--bootstrap-server", ways.through, "--topic", topic)
        kafka_tool(
            "org.apache.kafka.tools.ConsoleProducer",
            *(*options, "--command-property", "client.id=java-pushes"),
            stdin="value\n" * 10,
        )
    for client_id in ("rdkafka-pushes", "java-pushes"):
        rows = pushes(ways, client_id)
        assert {row[5] for row in rows} == {"CLIENT"}
        assert all(int(row[4]) > 0 for row in rows)
    assert ways.asked("PushTelemetry") > 0


def sign_in(folder: Path, user: str, password: str, *, token: bool = False) -> Path:
    """A properties file for Kafka's tools."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    said = (
        f'{module} required username="{user}" password="{password}"' + ' tokenauth="true"' * token
    )
    path = folder / f"{user}.properties"
    path.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={SCRAM}\nsasl.jaas.config={said};\n"
        "default.api.timeout.ms=15000\nrequest.timeout.ms=10000\n"
    )
    return path


def tokens(bootstrap: str, config: Path, *options: str) -> list[list[str]]:
    """Rows of what DelegationTokenCommand prints: id, HMAC, owner, requester, renewers, issued, expires, latest."""
    where = ("--bootstrap-server", bootstrap, "--command-config", str(config))
    printed = kafka_tool("org.apache.kafka.tools.DelegationTokenCommand", *options, *where)
    lines = [line.split() for line in printed.splitlines() if "User:" in line]
    return sorted(lines)


def java_write(bootstrap: str, topic: str, config: Path, lines: str) -> None:
    where = ("--bootstrap-server", bootstrap, "--topic", topic, "--command-config", str(config))
    kafka_tool("org.apache.kafka.tools.ConsoleProducer", *where, stdin=lines)


def java_read(bootstrap: str, topic: str, config: Path, count: int) -> list[str]:
    where = ("--bootstrap-server", bootstrap, "--topic", topic, "--command-config", str(config))
    bounds = (
        "--partition",
        "0",
        "--offset",
        "earliest",
        "--max-messages",
        str(count),
        "--timeout-ms",
        "20000",
    )
    return kafka_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer", *where, *bounds
    ).splitlines()


def test_delegation_tokens(ways: Ways, tmp_path: Path) -> None:
    """Made through Forebay, known on both ways; whoever has it signs in with it, until it is made to end."""
    topic = create_topic(ways.direct)
    admin = sign_in(tmp_path, "admin", USERS["admin"])
    through, direct = ways.through_scram, ways.direct_scram
    ((token_id, hmac, owner, *_),) = tokens(
        through, admin, "--create", "--max-life-time-period", "-1"
    )
    assert owner == "User:admin"
    assert tokens(through, admin, "--describe") == tokens(direct, admin, "--describe")
    signed = sign_in(tmp_path, token_id, hmac, token=True)
    java_write(through, topic, signed, "one\ntwo\n")
    assert (
        java_read(through, topic, signed, 2)
        == java_read(direct, topic, signed, 2)
        == ["one", "two"]
    )
    with pytest.raises(ToolFailed, match="not allowed"):
        tokens(through, signed, "--create", "--max-life-time-period", "-1")
    tokens(through, admin, "--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    assert not tokens(direct, admin, "--describe")
    for bootstrap in (direct, through):
        with pytest.raises(ToolFailed, match="Authentication failed"):
            tokens(bootstrap, signed, "--describe")
