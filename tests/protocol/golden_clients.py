"""Real clients' Produce and Fetch frames, recorded by a relay between them and a broker.

Owns: the relay and what each client does: write three records, read them from the beginning. Must not know:
how frames are scanned. Invariants: of each client, the first exchange of each API and version is kept that
has no error in sight.
"""

import asyncio
import socket
import threading
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer

from protocol.api import API_VERSIONS, FETCH, PRODUCE
from tests.kit.broker.kafka import KafkaBroker
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST, Listener

RECORDED = (PRODUCE, FETCH, API_VERSIONS)
VALUES = [b"one", b"two", b"three"]
LISTENER = "RECORDED"


class Recorder:
    """Relays connections on a port of its own to an address, and keeps the exchanges by client name."""

    def __init__(self, port):
        self.server = socket.create_server((HOST, port))
        self.upstream: Any = None
        self.client = ""
        self.kept = {}
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                downstream, _ = self.server.accept()
            except OSError:
                return
            upstream = socket.create_connection(self.upstream)
            waiting: list[bytes] = []
            for source, sink, note in (
                (downstream, upstream, waiting.append),
                (upstream, downstream, lambda frame, waiting=waiting: self._keep(waiting, frame)),
            ):
                threading.Thread(target=self._pump, args=(source, sink, note), daemon=True).start()

    def _pump(self, source, sink, note):
        try:
            while frame := self._frame(source):
                note(frame)
                sink.sendall(frame)
        except OSError:
            pass
        finally:
            sink.close()

    @staticmethod
    def _frame(source):
        """The next whole frame, or nothing at the end."""
        out, size = bytearray(), 4
        while len(out) < size:
            part = source.recv(size - len(out))
            if not part:
                return b""
            out += part
            if len(out) == 4:
                size = 4 + int.from_bytes(out, "big")
        return bytes(out)

    def _keep(self, waiting, response):
        """Pair a response with the request of its correlation id; an answer without records is kept late."""
        correlation_id = response[4:8]
        request = next(frame for frame in waiting if frame[8:12] == correlation_id)
        waiting.remove(request)
        api_key, version = int.from_bytes(request[4:6], "big"), int.from_bytes(request[6:8], "big")
        if api_key not in RECORDED or (api_key == FETCH and VALUES[0] not in response):
            return
        self.kept.setdefault((self.client, api_key, version), (request, response))


def use_confluent(bootstrap, topic):
    """librdkafka."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    for value in VALUES:
        producer.produce(topic, value, partition=0)
    producer.flush(20)
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g-" + topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    assert len(consumer.consume(3, 30)) == 3
    consumer.close()


def use_kafka_python(bootstrap, topic):
    """kafka-python, without a group."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, linger_ms=50)
    for value in VALUES:
        producer.send(topic, value, partition=0)
    producer.flush(20)
    producer.close()
    consumer = KafkaConsumer(
        topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    assert [next(consumer).value for _ in VALUES] == VALUES
    consumer.close()


def use_aiokafka(bootstrap, topic):
    """aiokafka, without a group."""

    async def run():
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=50) as producer:
            await asyncio.gather(
                *[producer.send_and_wait(topic, value, partition=0) for value in VALUES]
            )
        async with AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            assert len([await anext(consumer) for _ in VALUES]) == 3

    asyncio.run(asyncio.wait_for(run(), 30))


def use_java(broker, bootstrap, topic):
    """The console tools of the broker's own version, committed records only."""
    old = broker.version.startswith("3.")
    producer = "kafka.tools.ConsoleProducer" if old else "org.apache.kafka.tools.ConsoleProducer"
    lines = b"\n".join(VALUES).decode() + "\n"
    broker.tool(producer, "--bootstrap-server", bootstrap, "--topic", topic, stdin=lines)
    options = [
        "--bootstrap-server",
        bootstrap,
        "--topic",
        topic,
        "--from-beginning",
        "--max-messages",
        "3",
    ]
    options += ["--isolation-level", "read_committed"]
    broker.tool("org.apache.kafka.tools.consumer.ConsoleConsumer", *options)


def record_clients(kafka_version):
    """The exchanges of all clients with a broker of that version, as rows of a golden file."""
    with lease_port() as lease:
        recorder = Recorder(lease.port)
        listener = Listener(LISTENER, advertised=(HOST, lease.port))
        with KafkaBroker(version=kafka_version, listeners=[listener]) as broker:
            recorder.upstream = broker.address(LISTENER)
            bootstrap = f"{HOST}:{lease.port}"
            clients = {
                "java": lambda topic: use_java(broker, bootstrap, topic),
                "librdkafka": lambda topic: use_confluent(bootstrap, topic),
                "aiokafka": lambda topic: use_aiokafka(bootstrap, topic),
                "kafka-python": lambda topic: use_kafka_python(bootstrap, topic),
            }
            for name, use in clients.items():
                recorder.client = name
                broker.tool(
                    "org.apache.kafka.tools.TopicCommand", *_create(broker.direct, "by-" + name)
                )
                use("by-" + name)
        recorder.server.close()
    return [
        {
            "client": client,
            "api": api_key,
            "version": version,
            "request": request.hex(),
            "response": response.hex(),
        }
        for (client, api_key, version), (request, response) in sorted(recorder.kept.items())
    ]


def _create(bootstrap, topic):
    return ("--bootstrap-server", bootstrap, "--create", "--topic", topic, "--partitions", "1")
