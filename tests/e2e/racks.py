"""Two brokers, each in a rack of its own, a Forebay before each; leaders led from one to the other.

Owns the start of the four, how each is reached, and what is asked of the cluster about leaders and replicas. It must
not know what is written. Invariant: replicas are read by rack (KIP-392), and leaders move only when they are told to.
"""

from __future__ import annotations

import contextlib
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple, cast

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.chaos.history import Place
from tests.chaos.orders import elect, reassign
from tests.kit.broker.kafka import KafkaCluster
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST, Listener, Node
from tests.kit.sidecar import Sidecar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from tests.kit.sidecar import Pair

LISTENER = "CLIENT"
OVERRIDES = {
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "auto.leader.rebalance.enable": "false",
    "replica.fetch.wait.max.ms": 100,
}
FIRST, SECOND = 1, 2
PATIENCE_S = 60.0
POLL_S = 0.05


def rack_of(node_id: int) -> str:
    return f"rack-{node_id}"


class Racks(KafkaCluster):
    """Each broker in a rack of its own."""

    def _launch(self, node: Node) -> None:
        path = self.directory / f"server-{node.node_id}.properties"
        with path.open("a") as properties:
            properties.write(f"broker.rack={rack_of(node.node_id)}\n")
        super()._launch(node)


class Two(NamedTuple):
    """The brokers and their Forebays, by node id."""

    broker: KafkaCluster
    sidecars: dict[int, Sidecar]

    @property
    def through(self) -> str:
        return ",".join(one.bootstrap for one in self.sidecars.values())

    def direct(self, node_id: int) -> str:
        host, port = self.broker.address(node_id=node_id)
        return f"{host}:{port}"

    def side(self, node_id: int) -> Pair:
        """One broker with its Forebay."""
        sidecar = self.sidecars[node_id]
        names = {"direct": self.direct(node_id), "through": sidecar.bootstrap, "sidecar": sidecar}
        return cast("Pair", SimpleNamespace(broker=self.broker, **names))


@contextlib.contextmanager
def two_brokers(cache: Mapping[str, Any]) -> Iterator[Two]:
    """Both brokers and their Forebays, run."""
    nodes = (FIRST, SECOND)
    with contextlib.ExitStack() as stack:
        leases = {node: stack.enter_context(lease_port()) for node in nodes}
        advertised = {node: (HOST, lease.port) for node, lease in leases.items()}
        cluster = Racks(
            2,
            listeners=[Listener(LISTENER, advertised=advertised)],
            overrides=OVERRIDES,
            heap_mb=256,
        )
        broker = stack.enter_context(cluster)
        sidecars = {}
        for node, lease in leases.items():
            host, port = broker.address(LISTENER, node)
            entry = {"listen": f"{HOST}:{lease.port}", "upstream": f"{host}:{port}"}
            sidecars[node] = stack.enter_context(Sidecar([entry], {"cache": dict(cache)}, [lease]))
        yield Two(broker, sidecars)


def create(two: Two, replicas: Sequence[int] = (FIRST, SECOND)) -> str:
    topic = f"replicated-{time.time_ns()}"
    admin = AdminClient({"bootstrap.servers": two.broker.direct})
    admin.create_topics([NewTopic(topic, 1, replica_assignment=[list(replicas)])])[topic].result(20)
    wait_for(two, lambda: state(two, topic) == (replicas[0], set(replicas)))
    return topic


def state(two: Two, topic: str) -> tuple[int, set[int]]:
    """Leader and replicas in sync."""
    admin = AdminClient({"bootstrap.servers": two.broker.direct})
    found = admin.list_topics(topic, timeout=20).topics[topic].partitions.get(0)
    return (found.leader, set(found.isrs)) if found else (-1, set())


def wait_for(two: Two, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, two.broker.log_tail(2000)
        time.sleep(POLL_S)


def move(two: Two, topic: str, leader: int) -> None:
    """Let `leader` lead, and wait until it does."""
    place, address = Place(topic, 0), two.direct(FIRST)
    assert not reassign(address, place, [leader, FIRST + SECOND - leader])

    def leads() -> bool:
        elect(address, [place])
        return state(two, topic) == (leader, {FIRST, SECOND})

    wait_for(two, leads)
