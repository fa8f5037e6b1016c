"""A listener with `passThrough` beside one that is served from memory, before one real broker.

Owns a broker with a plain listener and one that wants clients' certificates, and the Forebay before both. Must not know
how bytes are passed on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import ssl
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.e2e.test_reload import Traffic
from tests.e2e.test_supervisor import wait_until
from tests.e2e.test_upgrade import wait_for_upgrade
from tests.e2e.test_upgrade_clients import CONNECTS_ANEW
from tests.kit.broker.kafka import KafkaCluster
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST, Listener
from tests.kit.broker.topics import create_topic
from tests.kit.sidecar import PATIENT_CACHE, Sidecar

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e


class Mixed(NamedTuple):
    """`unread`: where clients with certificates connect. `options`: those of such a client."""

    broker: KafkaCluster
    sidecar: Sidecar
    unread: str
    options: dict[str, str]


@pytest.fixture(scope="module")
def mixed() -> Iterator[Mixed]:
    with contextlib.ExitStack() as stack:
        ports = {name: stack.enter_context(lease_port()).port for name in ("PLAIN", "MUTUAL")}
        required = {"ssl.client.auth": "required"}
        listeners = [
            Listener("PLAIN", advertised=(HOST, ports["PLAIN"])),
            Listener("MUTUAL", "SSL", advertised=(HOST, ports["MUTUAL"]), properties=required),
        ]
        broker = stack.enter_context(KafkaCluster(listeners=listeners))
        assert broker.tls is not None
        entries = [
            {
                "name": name,
                "listen": f"{HOST}:{port}",
                "upstream": "{}:{}".format(*broker.address(name)),
                "passThrough": name == "MUTUAL",
            }
            for name, port in ports.items()
        ]
        sidecar = stack.enter_context(Sidecar(entries, {"cache": PATIENT_CACHE}))
        options = {
            "security.protocol": "SSL",
            "ssl.ca.location": str(broker.tls.authority),
            "ssl.certificate.location": str(broker.tls.client.certificate),
            "ssl.key.location": str(broker.tls.client.key),
        }
        yield Mixed(broker, sidecar, f"{HOST}:{ports['MUTUAL']}", options)


def start_both(mixed: Mixed) -> list[Traffic]:
    """Clients with certificates, and clients in plain text."""
    topics = [create_topic(mixed.broker.direct) for _ in range(2)]
    return [
        Traffic(mixed.unread, topics[0], mixed.options),
        Traffic(mixed.sidecar.bootstrap, topics[1], {}),
    ]


def test_both_are_served_and_one_of_them_from_memory(mixed: Mixed) -> None:
    sidecar = mixed.sidecar
    sidecar.wait_for_log("MUTUAL has no cache; the broker's listener at ")
    before = sidecar.metrics()["forebay_pass_through_bytes_total", "response", "MUTUAL"]
    traffic = start_both(mixed)
    for one in traffic:
        one.go_on()
    counts = sidecar.metrics()
    assert counts["forebay_listener_connections", "MUTUAL"] > 0
    for one in traffic:
        one.stop()
    carried = sum(len(value) for value in traffic[0].consumed)
    counts = sidecar.metrics()
    assert counts["forebay_pass_through_bytes_total", "response", "MUTUAL"] - before > carried
    assert counts["forebay_pass_through_bytes_total", "request", "MUTUAL"] > carried
    hits = sum(size for (result, _), size in sidecar.fetch_counts().items() if result == "hit")
    assert hits > 0
    wait_until(
        lambda: sidecar.metrics()["forebay_listener_connections", "MUTUAL"] == 0, "all pipes end"
    )


def test_the_brokers_certificate_reaches_the_client(mixed: Mixed) -> None:
    assert mixed.broker.tls is not None
    host, port = mixed.unread.split(":")
    shown = ssl.get_server_certificate((host, int(port)), ca_certs=str(mixed.broker.tls.authority))
    own = mixed.broker.tls.server.certificate.read_text()
    assert ssl.PEM_cert_to_DER_cert(shown) == ssl.PEM_cert_to_DER_cert(own)


def test_clients_of_both_work_through_an_upgrade(mixed: Mixed) -> None:
    traffic = start_both(mixed)
    for one in traffic:
        one.go_on()
    former = mixed.sidecar.worker_pid
    os.kill(mixed.sidecar.pid, signal.SIGUSR2)
    wait_for_upgrade(mixed.sidecar, former)
    assert mixed.sidecar.metrics()["forebay_listener_accepted_total", "MUTUAL"] > 0
    for one in traffic:
        told = one.errors[:]
        assert [text for text in told if not any(word in text for word in CONNECTS_ANEW)] == []
        one.errors.clear()
        one.stop()
