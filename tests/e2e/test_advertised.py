"""A broker that tells clients another address than Forebay's: said, counted, and mended by the line that is logged.

Owns brokers with wrong addresses, each with a Forebay in front. Must not know how an answer is looked at.
"""

from __future__ import annotations

import contextlib
import re
import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from tests.kit.broker.kafka import KafkaCluster
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST, Listener
from tests.kit.sidecar import CLIENT, Sidecar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0
ELSEWHERE = "192.0.2.1"
"""An address of no machine (RFC 5737)."""


class Misled:
    """A broker that advertises `host` and a port to clients, and a Forebay where they are to connect."""

    def __init__(self, stack: contextlib.ExitStack, host: str, is_own_port: bool) -> None:
        self.lease, other = stack.enter_context(lease_port()), stack.enter_context(lease_port())
        port = self.lease.port if is_own_port else other.port
        self.told = f"{host}:{port}"
        self.broker = stack.enter_context(
            KafkaCluster(listeners=[Listener(CLIENT, advertised=(host, port))])
        )
        self._stack = stack

    def front(self, **keys: str) -> Sidecar:
        """Start the Forebay; `keys` of its listener."""
        upstream, port = self.broker.address(CLIENT)
        entry = {"listen": f"{HOST}:{self.lease.port}", "upstream": f"{upstream}:{port}"}
        return self._stack.enter_context(Sidecar([entry | keys]))


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def differs(sidecar: Sidecar) -> dict[str, float]:
    name = "forebay_advertised_mismatch"
    found = {key: value for key, value in sidecar.metrics().items() if key[0] == name}
    return {what: found[name, "default", what] for what in ("port", "host")}


def test_another_port_is_said_with_the_line_that_mends_it(stack: contextlib.ExitStack) -> None:
    misled = Misled(stack, HOST, is_own_port=False)
    sidecar = misled.front()
    wait_until(lambda: differs(sidecar) == {"port": 1, "host": 0}, "it is seen")
    sidecar.wait_for_log(f"is at {misled.told}, none of Forebay's addresses")
    sidecar.wait_for_log(f"{CLIENT}://{HOST}:{misled.lease.port}")
    assert sidecar.metrics()["forebay_advertised_mismatches_total", "default", "port"] >= 1
    line = re.findall(
        r"server\.properties: (advertised\.listeners=\S+)", sidecar.log_tail(100_000)
    )[-1]
    assert f"{CLIENT}://{HOST}:{misled.lease.port}" in line
    assert sidecar.is_ready(), "clients that ask Forebay are served"
    mend(misled.broker, line)
    AdminClient({"bootstrap.servers": sidecar.bootstrap}).list_topics(timeout=PATIENCE_S)


def mend(broker: KafkaCluster, line: str) -> None:
    """The broker takes the logged line as it is (advertised.listeners is a dynamic setting of brokers)."""
    name, _, value = line.partition("=")
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
    AdminClient({"bootstrap.servers": broker.direct}).incremental_alter_configs([resource])


def test_another_host_is_said_unless_it_is_expected(stack: contextlib.ExitStack) -> None:
    misled = Misled(stack, ELSEWHERE, is_own_port=True)
    sidecar = misled.front()
    wait_until(lambda: differs(sidecar) == {"port": 0, "host": 1}, "it is seen")
    sidecar.wait_for_log(f"set listeners[].advertised: {misled.told}")
    sidecar.stop()
    expecting = misled.front(advertised=misled.told)
    AdminClient({"bootstrap.servers": expecting.bootstrap}).list_topics(timeout=PATIENCE_S)
    assert differs(expecting) == {"port": 0, "host": 0}
    assert "forebay.advertised" not in expecting.log_tail(100_000)


def test_the_address_of_forebay_is_no_mismatch(stack: contextlib.ExitStack) -> None:
    sidecar = Misled(stack, HOST, is_own_port=True).front()
    AdminClient({"bootstrap.servers": sidecar.bootstrap}).list_topics(timeout=PATIENCE_S)
    wait_until(lambda: "the broker is node" in sidecar.log_tail(100_000), "it is known")
    assert differs(sidecar) == {"port": 0, "host": 0}
