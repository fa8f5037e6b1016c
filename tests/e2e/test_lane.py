"""The second link: history comes over the broker's other listener, with the client's own authentication.

Owns one broker with a client and a catch-up listener of each security, and one Forebay before it. What lies
in the topics was written past Forebay before it followed them, so that it is history to it. Between Forebay
and each catch-up listener is a wire that can be cut (between.py).
"""

from __future__ import annotations

import contextlib
import json
import statistics
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from proxy.net.catch_up_connection import PAUSE_S, SILENCE_S
from tests.e2e.between import Between
from tests.e2e.families import TIMEOUT_S
from tests.kit.broker.kafka import USERS, KafkaCluster
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST, MODULES, Listener
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import RawClient, RawReader, explain, read_all
from tests.kit.sidecar import Sidecar

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER")
REAUTH_MS = 8000
"""librdkafka signs in again after nine tenths of a session (rd_kafka_broker_start_reauth_timer): a busy machine may
take the rest, 0.8 s, for it.
"""
COUNT = 2000
BITE_BYTES = 100_000
ALONE = 10
"""Records whose delay is measured before history is read."""
WAITS_S = 100
"""The Fetch and the shutdown, in the test that neither is waited for."""
STRANGER = f'{MODULES["PLAIN"]} required user_nobody="unknown-here";'
Options = dict[str, Any]


class Laned(NamedTuple):
    """`bootstraps` and `wires` by the name of the client listener; a wire leads to its catch-up listener."""

    broker: KafkaCluster
    sidecar: Sidecar
    bootstraps: dict[str, str]
    wires: dict[str, Between]

    def total(self, name: str) -> float:
        """`forebay_{name}_total`."""
        return self.sidecar.metrics()[f"forebay_{name}_total",]


def build_listeners(ports: dict[str, int]) -> list[Listener]:
    """A client and a catch-up listener of each security; the catch-up listener of OTHER knows nobody."""
    protocols = {
        "OPEN": "PLAINTEXT",
        "SASL": "SASL_PLAINTEXT",
        "TLS": "SSL",
        "OTHER": "SASL_PLAINTEXT",
    }
    listeners = []
    for name, protocol in protocols.items():
        mechanisms = {"SASL": MECHANISMS, "OTHER": ("PLAIN",)}.get(name, ())
        reauth_ms = REAUTH_MS if name == "SASL" else 0
        strange = {"plain.sasl.jaas.config": STRANGER} if name == "OTHER" else {}
        advertised = (HOST, ports[name])
        listeners += [
            Listener(name, protocol, mechanisms, advertised, max_reauth_ms=reauth_ms),
            Listener(f"{name}2", protocol, mechanisms, advertised, strange, reauth_ms),
        ]
    return listeners


def build_entry(broker: KafkaCluster, name: str, listen: str, wire: Between) -> Options:
    """An entry of Forebay's `listeners`."""
    host, port = broker.address(name)
    entry: Options = {"name": name, "listen": listen, "upstream": f"{host}:{port}"}
    entry["catchUpUpstream"] = wire.address
    if name == "TLS":
        assert broker.tls is not None
        server = broker.tls.server
        entry["tls"] = {"certificateFile": str(server.certificate), "keyFile": str(server.key)}
        entry["upstreamTls"] = {"enabled": True, "caFile": str(broker.tls.authority)}
    return entry


@pytest.fixture(scope="module")
def laned() -> Iterator[Laned]:
    with contextlib.ExitStack() as stack:
        ports = {
            n: stack.enter_context(lease_port()).port for n in ("OPEN", "SASL", "TLS", "OTHER")
        }
        broker = stack.enter_context(KafkaCluster(listeners=build_listeners(ports)))
        wires = {name: stack.enter_context(Between(broker.address(f"{name}2"))) for name in ports}
        bootstraps = {name: f"{HOST}:{port}" for name, port in ports.items()}
        entries = [build_entry(broker, name, bootstraps[name], wires[name]) for name in ports]
        settings = {"shutdown": {"gracePeriod": f"{WAITS_S}s"}}
        sidecar = stack.enter_context(Sidecar(entries, settings))
        yield Laned(broker, sidecar, bootstraps, wires)


def write(bootstrap: str, topic: str, count: int, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, "batch.size": 16_000})
    for number in range(count):
        producer.produce(topic, b"%d-" % number + b"v" * 1000, partition=partition)
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0


def make_history(laned: Laned, count: int = COUNT, partitions: int = 1) -> str:
    """A topic with records that Forebay has not seen."""
    topic = create_topic(laned.broker.direct, partitions=partitions)
    write(laned.broker.direct, topic, count)
    return topic


def open_reader(client: RawClient, topic: str) -> RawReader:
    """At the start of a topic that the connection may read, in bites."""
    reader = RawReader(client, topic)
    reader.read_past_errors()
    reader.offset, reader.max_bytes = 0, BITE_BYTES
    reader.raw.clear()
    return reader


def client_options(laned: Laned, name: str, mechanism: str = "") -> Options:
    """librdkafka's settings: history in small fetches."""
    options: Options = {
        "bootstrap.servers": laned.bootstraps[name],
        "group.id": "unused",
        "enable.auto.commit": False,
        "fetch.message.max.bytes": BITE_BYTES,
        "queued.min.messages": 50,
        "fetch.queue.backoff.ms": 10,
        "fetch.wait.max.ms": 100,
    }
    if name == "TLS":
        assert laned.broker.tls is not None
        return options | {
            "security.protocol": "SSL",
            "ssl.ca.location": str(laned.broker.tls.authority),
        }
    if mechanism:
        options |= {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        unsecured = {"enable.sasl.oauthbearer.unsecure.jwt": "true"}
        return options | unsecured | {"sasl.oauthbearer.config": "principal=admin"}
    if mechanism:
        options |= {"sasl.username": "admin", "sasl.password": USERS["admin"]}
    return options


def read_history(
    options: Options, topic: str, count: int, records: int = 200, pause_s: float = 0.0
) -> list[int]:
    """Read from the start; the numbers that the values begin with. A broker's error fails."""
    consumer = Consumer(options)
    consumer.assign([TopicPartition(topic, 0, 0)])
    numbers: list[int] = []
    deadline = time.monotonic() + 2 * TIMEOUT_S
    while len(numbers) < count and time.monotonic() < deadline:
        for message in consumer.consume(records, 0.5):
            error, value = message.error(), message.value()
            assert error is None or error.code() < 0, error
            if error is None and value is not None:
                numbers.append(int(value.split(b"-")[0]))
        time.sleep(pause_s)
    consumer.close()
    return numbers


@pytest.mark.parametrize(
    ("name", "mechanism"),
    [("OPEN", ""), ("SASL", "PLAIN"), ("SASL", "OAUTHBEARER"), ("TLS", "")],
    ids=["plaintext", "PLAIN", "OAUTHBEARER", "TLS"],
)
def test_history_is_read_over_the_second_link(laned: Laned, name: str, mechanism: str) -> None:
    topic = make_history(laned)
    asked, lost, opened = (
        laned.total("lane_requests"),
        laned.total("lanes_lost"),
        laned.wires[name].accepted,
    )
    assert read_history(client_options(laned, name, mechanism), topic, COUNT) == list(range(COUNT))
    assert laned.total("lane_requests") > asked + 3
    assert laned.wires[name].accepted == opened + 1, "one link a client"
    assert laned.total("lanes_lost") == lost


def test_a_new_connection_is_proven_before_its_history_is_read(laned: Laned) -> None:
    """Its first Fetch is not read by the client listener's threads: only what stands at the tail goes there."""
    topic = make_history(laned)
    wait_for_proof(laned, topic)
    proofs, asked = laned.total("authorization_proofs"), laned.total("lane_requests")
    with RawClient(laned.bootstraps["OPEN"], "new") as client:
        history = RawReader(client, topic)
        history.max_bytes = BITE_BYTES
        history.read_past_errors()
        assert history.offset > 0
        assert (
            explain(bytes(history.raw), read_all(laned.broker.direct, topic)[: len(history.raw)])
            == ""
        )
    assert laned.total("authorization_proofs") == proofs + 1
    assert laned.total("lane_requests") == asked + 1


def wait_for_proof(laned: Laned, topic: str) -> None:
    """Until Forebay knows the partition, which another connection reads over the second link then."""
    deadline = time.monotonic() + TIMEOUT_S
    with RawClient(laned.bootstraps["OPEN"], "known") as client:
        reader = open_reader(client, topic)
        asked = laned.total("lane_requests")
        while laned.total("lane_requests") == asked:
            assert time.monotonic() < deadline
            reader.offset = 0
            reader.poll(200)


def test_scram_stays_on_the_first_link(laned: Laned) -> None:
    topic = make_history(laned)
    asked, opened = laned.total("lane_requests"), laned.wires["SASL"].accepted
    options = client_options(laned, "SASL", "SCRAM-SHA-256")
    assert read_history(options, topic, COUNT) == list(range(COUNT))
    assert (laned.total("lane_requests"), laned.wires["SASL"].accepted) == (asked, opened)


def test_reauthentication_is_repeated_on_the_link_in_use(laned: Laned) -> None:
    """A broker ends a connection whose session has expired: none ends, over three sessions."""
    topic = make_history(laned, 3000)
    seen: list[dict[str, Any]] = []
    options = client_options(laned, "SASL", "OAUTHBEARER") | {
        "statistics.interval.ms": 250,
        "stats_cb": lambda text: seen.append(json.loads(text)),
        "fetch.message.max.bytes": 20_000,
    }
    lost, opened = laned.total("lanes_lost"), laned.wires["SASL"].accepted
    growth: list[float] = []
    ending = threading.Event()

    def watch() -> None:
        while not ending.wait(REAUTH_MS / 1000):
            growth.append(laned.total("lane_requests"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.monotonic()
    numbers = read_history(options, topic, 3000, records=20, pause_s=0.18)
    took_s = time.monotonic() - started
    ending.set()
    watcher.join()
    assert numbers == list(range(3000))
    assert took_s > 3 * REAUTH_MS / 1000
    node = next(one for one in seen[-1]["brokers"].values() if one["nodeid"] == 1)
    assert node["disconnects"] == 0
    assert node["req"]["SaslAuthenticate"] > 3
    assert growth == sorted(set(growth)), "the link was in use in every session"
    assert laned.total("lanes_lost") == lost
    assert laned.wires["SASL"].accepted == opened + 1


@pytest.mark.alone
def test_who_tails_beside_history_does_not_notice(laned: Laned) -> None:
    topic = make_history(laned, partitions=2)
    through = laned.bootstraps["OPEN"]
    asked = laned.total("lane_requests")
    direct = laned.broker.direct
    alone, beside, past = [], [], []
    with (
        RawClient(through, "lagging") as client,
        RawClient(through, "tailing") as other,
        RawClient(direct, "past") as third,
    ):
        history = open_reader(client, topic)
        tail = RawReader(other, topic, partition=1).settle()
        control = RawReader(third, topic, partition=1).settle()
        for _ in range(ALONE):
            alone.append(measure_delay(through, tail))
        while history.offset < COUNT:
            history.poll(200)
            beside.append(measure_delay(through, tail))
            past.append(measure_delay(direct, control, start=tail.offset))
            tail.read_to(control.offset)
        assert explain(bytes(history.raw), read_all(laned.broker.direct, topic)) == ""
    assert laned.total("lane_requests") > asked + 3
    most_s = max(0.2, 3 * statistics.median(alone), 3 * statistics.median(past))
    assert statistics.median(beside) < most_s, (alone, beside, past)


def measure_delay(address: str, tail: RawReader, start: int = 0) -> float:
    """Seconds from the acknowledgement of a record to its arrival at the tail's reader, which reads up to `start`
    before.
    """
    tail.read_to(start)
    offset = tail.offset
    write(address, tail.topic.name, 1, partition=1)
    written_at = time.monotonic()
    while tail.offset == offset:
        tail.poll(500)
    return time.monotonic() - written_at


def test_a_link_that_dies_within_a_frame_is_not_noticed_and_used_again_later(laned: Laned) -> None:
    topic, wire = make_history(laned), laned.wires["OPEN"]
    lost = laned.total("lanes_lost")
    with RawClient(laned.bootstraps["OPEN"], "cut") as client:
        history = open_reader(client, topic)
        history.read_to(history.offset + 200)
        wire.cut_after(BITE_BYTES // 2)
        history.read_to(history.offset + 600)
        assert wire.refusing, "it was cut"
        assert laned.total("lanes_lost") == lost + 1
        asked, tried = laned.total("lane_requests"), wire.accepted
        wire.heal()
        history.read_to(history.offset + 200)
        assert (laned.total("lane_requests"), wire.accepted) == (asked, tried), "not before PAUSE_S"
        time.sleep(PAUSE_S)
        history.read_to(COUNT)
        assert laned.total("lane_requests") > asked
        assert explain(bytes(history.raw), read_all(laned.broker.direct, topic)) == ""
    assert laned.total("lanes_lost") == lost + 1


def test_a_link_that_says_nothing_is_given_up_and_history_goes_on(laned: Laned) -> None:
    topic, wire = make_history(laned), laned.wires["OPEN"]
    lost = laned.total("lanes_lost")
    with RawClient(laned.bootstraps["OPEN"], "silent") as client:
        history = open_reader(client, topic)
        history.read_to(history.offset + 200)
        wire.stall()
        stood_at, started = history.offset, time.monotonic()
        while history.offset < stood_at + 400:
            asked_at = time.monotonic()
            history.poll(max_wait_ms=300)
            answered_s = time.monotonic() - asked_at
            assert answered_s < SILENCE_S / 2, "no fetch waits until the link is given up"
            assert time.monotonic() - started < 2 * SILENCE_S
        assert laned.total("lanes_lost") == lost + 1
        wire.flow()
        history.read_to(COUNT)
        assert explain(bytes(history.raw), read_all(laned.broker.direct, topic)) == ""


def test_a_refused_authentication_harms_nobody_and_is_not_tried_in_a_circle(laned: Laned) -> None:
    topic = make_history(laned)
    tried, lost = laned.wires["OTHER"].accepted, laned.total("lanes_lost")
    started = time.monotonic()
    options = client_options(laned, "OTHER", "PLAIN")
    assert read_history(options, topic, COUNT, pause_s=0.2) == list(range(COUNT))
    took_s = time.monotonic() - started
    tries = laned.wires["OTHER"].accepted - tried
    assert 1 <= tries <= 1 + took_s / PAUSE_S
    assert laned.total("lanes_lost") == lost + tries
    laned.sidecar.wait_for_log("does not accept on the second listener")


@pytest.mark.parametrize("name", ["OPEN", "SASL"])
def test_a_link_closed_while_idle_is_opened_again_in_silence(laned: Laned, name: str) -> None:
    topic, wire = make_history(laned), laned.wires[name]
    options = client_options(laned, name, "PLAIN" if name == "SASL" else "")
    consumer = Consumer(options)
    said = len(laned.sidecar.log_path.read_text())
    lost = laned.total("lanes_lost")
    for _ in range(2):
        opened, read = wire.accepted, 0
        consumer.assign([TopicPartition(topic, 0, 0)])
        deadline = time.monotonic() + TIMEOUT_S
        while read < COUNT:
            assert time.monotonic() < deadline
            read += len(consumer.consume(500, 0.5))
        assert wire.accepted == opened + 1
        wire.close_all()
        time.sleep(0.2)
    consumer.close()
    assert laned.total("lanes_lost") == lost
    assert "WARN" not in laned.sidecar.log_path.read_text()[said:]


def test_a_broker_that_closes_idle_links_is_not_blamed() -> None:
    """connections.max.idle.ms, on a broker of its own, which closes the second link and the first one too. The client
    is not idle as long as Forebay looks seldom.
    """
    with contextlib.ExitStack() as stack:
        lease = stack.enter_context(lease_port())
        listeners = [Listener("OPEN", advertised=(HOST, lease.port)), Listener("OPEN2")]
        idle = {"connections.max.idle.ms": 1000}
        broker = stack.enter_context(KafkaCluster(listeners=listeners, overrides=idle))
        wire = stack.enter_context(Between(broker.address("OPEN2")))
        listen = f"{HOST}:{lease.port}"
        patient = {"limits": {"idleTimeout": "1h"}}
        entry = build_entry(broker, "OPEN", listen, wire)
        sidecar = stack.enter_context(Sidecar([entry], patient, leases=[lease]))
        laned = Laned(broker, sidecar, {"OPEN": listen}, {"OPEN": wire})
        topic = make_history(laned)
        with RawClient(listen, "resting") as client:
            history = open_reader(client, topic)
            for part in (COUNT // 3, 2 * COUNT // 3, COUNT):
                opened = wire.accepted
                history.read_to(part)
                assert wire.accepted == opened + 1, "a new one after each rest"
                time.sleep(3)
            assert explain(bytes(history.raw), read_all(broker.direct, topic)) == ""
        assert laned.total("lanes_lost") == 0
        assert "second link is gone" not in sidecar.log_path.read_text()


def test_nothing_is_left_of_clients_that_are_gone(laned: Laned) -> None:
    topic, wire = make_history(laned), laned.wires["OPEN"]
    with RawClient(laned.bootstraps["OPEN"], "first") as client:
        reader, before = open_reader(client, topic), laned.total("lane_requests")
        while (
            laned.total("lane_requests") == before
        ):  # the topic becomes known by a client that never waits, too
            reader.offset = 0
            reader.poll()
    wire.stall()
    clients = [RawClient(laned.bootstraps["OPEN"], "leaving") for _ in range(4)]
    asked = laned.total("lane_requests")
    for client in clients:
        open_reader(client, topic).poll(max_wait_ms=50)
    assert laned.total("lane_requests") == asked + len(clients)
    for client in clients:
        client.abort()
    wire.flow()
    held = ("forebay_in_flight_bytes", "response"), ("forebay_queue_depth", "parked_fetches")
    deadline = time.monotonic() + TIMEOUT_S
    while any(map(laned.sidecar.metrics().__getitem__, held)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert laned.total("internal_errors") == 0


def test_a_stop_does_not_wait_for_the_second_link(laned: Laned) -> None:
    """Last of all. A read under way on it is not waited for: the client gets what there is."""
    topic, wire = make_history(laned), laned.wires["OPEN"]
    with RawClient(laned.bootstraps["OPEN"], "stopped") as client:
        reader = open_reader(client, topic)
        wire.stall()
        reader.poll(max_wait_ms=50)
        client.send_fetch(reader.version, [reader.asked()], max_wait_ms=WAITS_S * 1000)
        time.sleep(0.3)
        started = time.monotonic()
        assert laned.sidecar.stop() == 0
        assert time.monotonic() - started < WAITS_S / 2
    said = laned.sidecar.log_path.read_text()
    assert not any(word in said for word in ("Traceback", "never retrieved", "was destroyed"))
