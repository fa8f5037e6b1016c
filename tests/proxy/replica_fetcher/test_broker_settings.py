"""The node id of the broker: one question at a time, a hint is used, a refusal is logged once."""

from types import SimpleNamespace

import pytest

from protocol import control, metadata
from protocol.errors import ErrorCode
from proxy.replica_fetcher.broker_settings import (
    EVERY_S,
    FETCH_MAX_BYTES_DEFAULT,
    RETRY_S,
    Node,
)
from proxy.replica_fetcher.fetcher import ReplicaFetcher
from tests.proxy.followed_partition import EPOCH, QuietBroker, stand_in

NODES = (4, 2, 9)


class AskedBroker(QuietBroker):
    """A cluster of NODES of which this is one; its answers are given at once, as values."""

    def __init__(self, monkeypatch, this=9, error_code=0, message="expected 9 or empty string"):
        super().__init__()
        self.node = Node(stand_in(self))
        self.this, self.error_code, self.message = this, error_code, message
        self.described = []
        self.listed = NODES
        self.own_connections = SimpleNamespace(
            usable=True, link=lambda _name: self, listener="clients"
        )
        self.compared: list[tuple[str, int]] = []
        self.settings: dict[str, str] = {}
        self.advertised = SimpleNamespace(
            note=lambda listener, brokers: self.compared.append((listener, len(brokers))),
            learn_settings=self.settings.update,
        )
        self.suggested = self.replica_fetcher.suggested
        monkeypatch.setattr(self.replica_fetcher, "learn_node", self._learn_node, raising=False)
        monkeypatch.setattr(control, "build_metadata_request", lambda *_a, **_k: "metadata")
        monkeypatch.setattr(
            control, "build_describe_configs_request", lambda *_a, brokers, **_k: brokers[0]
        )
        monkeypatch.setattr(metadata, "scan_metadata_response", self.cluster)
        monkeypatch.setattr(control, "scan_describe_configs_response", self.describe)

    def _learn_node(self):
        fetcher = SimpleNamespace(_broker=self, suggest=self.suggested.append)
        ReplicaFetcher.learn_node(stand_in(fetcher))

    def cluster(self, _answer, _version):
        return SimpleNamespace(
            cluster_id="one", brokers=[SimpleNamespace(node_id=node) for node in self.listed]
        )

    def describe(self, node_id, _version):
        self.described.append(node_id)
        if self.error_code:
            return [control.DescribedConfig(self.error_code, f"{node_id}", {})]
        if node_id != self.this:
            return [
                control.DescribedConfig(ErrorCode.INVALID_REQUEST, f"{node_id}", {}, self.message)
            ]
        return [control.DescribedConfig(0, f"{node_id}", {"fetch.max.bytes": "65536"})]

    def send(self, frame, _correlation_id, on_answer):
        on_answer(frame)


def test_the_brokers_hint_saves_the_other_questions(monkeypatch):
    broker = AskedBroker(monkeypatch)
    partition = broker.follow()
    broker.node.tick(0.0)
    assert broker.described == [4, 9]
    assert broker.compared == [("clients", len(NODES))]
    assert broker.settings == {"fetch.max.bytes": "65536"}
    assert (broker.node.node_id, broker.node.fetch_max_bytes) == (9, 65536)
    assert broker.suggested == [partition]


def test_all_nodes_are_asked_without_a_hint(monkeypatch):
    broker = AskedBroker(monkeypatch, message=None)
    broker.node.tick(0.0)
    assert broker.described == [4, 2, 9]
    assert broker.node.node_id == 9


@pytest.mark.parametrize("listed", [(4, 2), ()])
def test_a_broker_that_its_controller_fences_is_asked_again_soon(monkeypatch, listed):
    """Metadata lists it once it is back."""
    broker = AskedBroker(monkeypatch)
    broker.listed = listed
    broker.node.tick(0.0)
    assert (broker.described, broker.node.node_id) == ([*listed], -1)
    broker.listed = NODES
    broker.node.tick(RETRY_S - 0.1)
    assert broker.described == [*listed]
    broker.node.tick(RETRY_S)
    assert broker.node.node_id == 9


def test_known_node_alone_is_asked_again(monkeypatch):
    broker = AskedBroker(monkeypatch)
    node = broker.node
    node.tick(0.0)
    broker.described.clear()
    node.tick(EVERY_S - 1)
    assert broker.described == []
    broker.clock_s = EVERY_S
    node.tick(EVERY_S)
    assert broker.described == [9]
    broker.this, broker.message = 2, "expected 2 or empty string"
    broker.described.clear()
    node.tick(2 * EVERY_S)
    node.tick(3 * EVERY_S)
    assert broker.described == [9, 4, 2]
    assert broker.node.node_id == 2


def test_refusal_is_logged_once_with_the_right(monkeypatch, caplog):
    broker = AskedBroker(monkeypatch, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    node = broker.node
    node.tick(0.0)
    node.tick(EVERY_S)
    assert broker.described == [4, 4]
    assert (broker.node.node_id, broker.node.fetch_max_bytes) == (-1, FETCH_MAX_BYTES_DEFAULT)
    (line,) = caplog.messages
    assert "DescribeConfigs on the cluster" in line


@pytest.mark.parametrize("usable", [True, False])
def test_nothing_is_asked_without_an_own_connection(monkeypatch, usable):
    broker = AskedBroker(monkeypatch)
    broker.own_connections = SimpleNamespace(usable=usable, link=lambda _name: None)
    broker.node.tick(0.0)
    assert broker.described == []


def test_leader_is_known_in_metadatas_epoch_only(monkeypatch):
    broker = AskedBroker(monkeypatch)
    broker.node.node_id = 1
    leader_state = broker.follow().leader_state
    leader_state.suggest(EPOCH, False)
    assert not leader_state.is_led
    leader_state.learn(EPOCH, 1, 1, 0, 1.0)
    leader_state.suggest(EPOCH, broker.node.is_this(1))
    assert leader_state.is_led
