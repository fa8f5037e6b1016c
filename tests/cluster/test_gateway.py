"""mode gateway-per-broker before brokers that somebody else owns: nothing of theirs changes but what they advertise."""

from collections.abc import Iterator

import pytest

from tests.cluster import foreign
from tests.cluster.clients import Load, build_namespace, running_load
from tests.cluster.cluster import Cluster, Object
from tests.cluster.layout import DOMAIN, ClusterError
from tests.cluster.programs import wait_until
from tests.cluster.release import READY_S, SMALL, Release, merge

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1200)]
NAMESPACE, NAME = "operated", "gate"
GATES = tuple(f"{NAME}-{index}" for index in range(foreign.REPLICAS))
ADVERTISED = f"{NAME}-{{nodeId}}.{NAME}-gateways.{NAMESPACE}.svc.{DOMAIN}:9092"
BROKERS = f"kafka-{{index}}.kafka.{NAMESPACE}.svc.{DOMAIN}:{foreign.CLIENT_PORT}"
VALUES: Object = merge(
    SMALL,
    {
        "mode": "gateway-per-broker",
        "fullnameOverride": NAME,
        "config": {"listeners": [{"name": "clients", "listen": ":9092", "upstream": BROKERS}]},
        "gateway": {
            "brokers": foreign.REPLICAS,
            "placement": "required",
            "brokerPodLabels": foreign.LABELS,
            "brokerPolicy": {"enabled": True},
        },
    },
)


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> Iterator[Release]:
    cluster.apply(build_namespace(NAMESPACE))
    foreign.create_brokers(cluster, NAMESPACE, ADVERTISED)
    gates = Release(cluster, NAME, NAMESPACE)
    gates.install(VALUES)
    yield gates
    gates.remove()


@pytest.fixture(scope="module")
def load(release: Release) -> Iterator[Load]:
    bootstrap = f"{NAME}-bootstrap.{NAMESPACE}.svc:9092"
    with running_load(release.cluster, "gateway", bootstrap, "events") as running:
        running.settle()
        yield running


def test_helm_test_passes(release: Release) -> None:
    assert "Succeeded" in release.helm("test")


def test_each_gateway_serves_its_own_broker(release: Release, load: Load) -> None:
    load.settle(500)
    for index, gate in enumerate(GATES):
        upstream = BROKERS.format(index=index)
        assert upstream in release.ask(gate, "/config")
        assert release.count_hits(gate) > 0
        node = release.pod(gate)["spec"]["nodeName"]
        assert node == release.pod(f"kafka-{index}")["spec"]["nodeName"]


def test_brokers_are_untouched(release: Release) -> None:
    for pod in foreign.PODS:
        assert [one["name"] for one in release.pod(pod)["spec"]["containers"]] == ["kafka"]
        assert "initContainers" not in release.pod(pod)["spec"]


def test_the_policy_is_one_that_the_api_server_knows(release: Release) -> None:
    """Nothing on this node enforces policies: tests/helm judges which ports it leaves open."""
    spec = release.cluster.get("networkpolicy", f"{NAME}-brokers", "-n", NAMESPACE)["spec"]
    assert spec["podSelector"]["matchLabels"] == foreign.LABELS


def test_killed_gateway(release: Release, load: Load) -> None:
    with load.watching("gateway killed"):
        release.kill(GATES[0], "forebay")


def test_evicted_gateway(release: Release, load: Load) -> None:
    """The budget refuses a second eviction meanwhile."""
    old = release.pod(GATES[1])["metadata"]["uid"]
    with load.watching("gateway evicted"):
        release.evict(GATES[1])
        with pytest.raises(ClusterError, match="disruption budget"):
            release.evict(GATES[2])
        wait_until("a new pod", lambda: release.pod(GATES[1])["metadata"]["uid"] != old, READY_S)
        release.wait_ready(*GATES)


def test_brokers_that_their_owner_rolls_get_new_addresses(release: Release, load: Load) -> None:
    """A gateway finds its broker by name each time that it connects."""
    old = [release.pod(pod)["status"]["podIP"] for pod in foreign.PODS]
    with load.watching("gateways: the owner restarts all brokers, one by one"):
        foreign.restart_brokers(release.cluster, NAMESPACE)
        release.wait_ready(*GATES)
    assert all(
        release.pod(pod)["status"]["podIP"] != one
        for pod, one in zip(foreign.PODS, old, strict=True)
    )


def test_changed_configuration_of_gateways(release: Release, load: Load) -> None:
    with load.watching("gateways: configuration changed (rolling upgrade)"):
        release.install(VALUES, {"config": {"log": {"level": "debug"}}})
        release.wait_rolled(NAME)
    assert '"debug"' in release.ask(GATES[0], "/config")


def test_a_changed_secret_would_roll_the_pods(release: Release) -> None:
    """`checksumSecrets`: Helm asks the cluster for the Secret. Rendered by the server, not applied."""
    checksums = set()
    for token in ("one", "two", "two"):
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token"}}
        release.cluster.apply({**secret, "stringData": {"token": token}}, namespace=NAMESPACE)
        text = release.render(VALUES, {"checksumSecrets": ["token"]})
        (line,) = [one for one in text.splitlines() if "forebay/secrets-checksum" in one]
        checksums.add(line.strip())
    assert len(checksums) == 2
