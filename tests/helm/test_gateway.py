"""Gateways: each before its own broker, beside it, and nobody goes past; and what the chart refuses of them."""

import helm_python
import pytest
import yaml

from tests.helm.chart import Object, Rendered, render, render_scenario
from tests.helm.pod_security import list_violations
from tests.helm.test_network_policy import LAST_PORT, allowed

UPSTREAM = "kafka-{index}.brokers:9092"
LISTENER = {"name": "clients", "listen": ":9092", "upstream": UPSTREAM}
LABELS = {"app": "kafka"}


def render_gateways(
    gateway: Object | None = None, config: Object | None = None, **values: object
) -> Rendered:
    given = {"listeners": [LISTENER], **(config or {})}
    return render(
        {
            "mode": "gateway-per-broker",
            "config": given,
            "gateway": {"brokerPodLabels": LABELS, **(gateway or {})},
            **values,
        }
    )


def pod_of(rendered: Rendered) -> Object:
    pod: Object = rendered.one("StatefulSet")["spec"]["template"]["spec"]
    return pod


def test_each_gateway_reads_the_file_of_its_broker() -> None:
    rendered = render_gateways({"brokers": 2, "firstIndex": 5})
    stateful = rendered.one("StatefulSet")["spec"]
    assert (stateful["replicas"], stateful["ordinals"]) == (2, {"start": 5})
    files = rendered.one("ConfigMap")["data"]
    assert set(files) == {"forebay-5.yaml", "forebay-6.yaml"}
    for index in (5, 6):
        (listener,) = yaml.safe_load(files[f"forebay-{index}.yaml"])["listeners"]
        assert listener["upstream"] == f"kafka-{index}.brokers:9092"
    (container,) = pod_of(rendered)["containers"]
    assert container["args"][-1] == "/etc/forebay/forebay-$(BROKER_INDEX).yaml"
    (index,) = [one for one in container["env"] if one["name"] == "BROKER_INDEX"]
    path = index["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.labels['apps.kubernetes.io/pod-index']"
    assert "restartPolicy" not in container


@pytest.mark.parametrize("placement", ["required", "preferred"])
def test_a_gateway_stands_beside_the_broker_of_its_index(placement: str) -> None:
    given = {"placement": placement, "brokerNamespace": "brokers"}
    affinity = pod_of(render_gateways(given))["affinity"]["podAffinity"]
    (kind,) = affinity
    assert kind.startswith(placement)
    (term,) = affinity[kind]
    term = term.get("podAffinityTerm", term)
    assert term == {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": LABELS},
        "matchLabelKeys": ["apps.kubernetes.io/pod-index"],
        "namespaces": ["brokers"],
    }


def test_it_may_stand_anywhere() -> None:
    assert "affinity" not in pod_of(render_gateways({"placement": "none", "brokerPodLabels": None}))


def test_only_gateways_reach_the_brokers_client_ports() -> None:
    friend = {"podSelector": {"matchLabels": {"app": "rebalancer"}}}
    listeners = [{**LISTENER, "catchUpUpstream": "kafka-{index}.brokers:9095"}]
    rendered = render_gateways(
        {"brokerPolicy": {"enabled": True, "alsoFrom": [friend]}, "brokerNamespace": "brokers"},
        {"listeners": listeners},
    )
    policy = rendered.one("NetworkPolicy")
    assert policy["metadata"]["namespace"] == "brokers"
    assert policy["spec"]["podSelector"] == {"matchLabels": LABELS}
    everyone, gateways = policy["spec"]["ingress"]
    assert "from" not in everyone
    assert allowed(everyone) == set(range(1, LAST_PORT + 1)) - {9092, 9095}
    assert allowed(everyone, "UDP") == allowed(everyone, "SCTP") == set(range(1, LAST_PORT + 1))
    assert allowed(gateways) == {9092, 9095}
    labels = rendered.one("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    own, other = gateways["from"]
    assert own["podSelector"]["matchLabels"].items() <= labels.items()
    assert own["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "kafka"}}
    assert other == friend


@pytest.mark.parametrize("port", [1, LAST_PORT])
def test_the_policy_at_the_ends_of_the_ports(port: int) -> None:
    listeners = [{**LISTENER, "upstream": f"kafka-{{index}}:{port}"}]
    rendered = render_gateways({"brokerPolicy": {"enabled": True}}, {"listeners": listeners})
    everyone, _ = rendered.one("NetworkPolicy")["spec"]["ingress"]
    assert allowed(everyone) == set(range(1, LAST_PORT + 1)) - {port}


def test_names_have_the_addresses_of_ready_gateways_alone() -> None:
    """A connection to a pod that is gone would wait for the client's own timeout (seen on the cluster)."""
    services = {
        one["metadata"]["name"]: one["spec"] for one in render_gateways().of_kind("Service")
    }
    stateful = render_gateways().one("StatefulSet")["spec"]
    names = services[stateful["serviceName"]]
    assert names["clusterIP"] == "None"
    for service in (names, services["trial-forebay-bootstrap"]):
        assert "publishNotReadyAddresses" not in service


def test_each_gateway_may_have_an_address_outside() -> None:
    services = render_scenario("gateway").of_kind("Service")
    outside = [one for one in services if "external" in one["metadata"]["name"]]
    hosts = [list(one["metadata"]["annotations"].values()) for one in outside]
    assert hosts == [[f"kafka-{index}.example"] for index in range(3)]
    indexes = [one["spec"]["selector"]["apps.kubernetes.io/pod-index"] for one in outside]
    assert indexes == ["0", "1", "2"]


def test_it_runs_without_rights_and_its_log_has_claims() -> None:
    stateful = render_scenario("gateway").one("StatefulSet")["spec"]
    pod = stateful["template"]["spec"]
    assert list_violations(pod) == []
    (claim,) = stateful["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "forebay-access-log"
    (container,) = pod["containers"]
    assert set(container["resources"]["limits"]) == {"memory"}, "cpuLimit: false"
    assert container["resources"]["requests"]["cpu"] == "1"


@pytest.mark.parametrize(
    ("gateway", "config", "values", "says"),
    [
        ({}, {"listeners": [{**LISTENER, "upstream": "kafka:9092"}]}, {}, "write {index}"),
        ({}, {}, {"broker": {"enabled": True}}, "broker.enabled"),
        ({}, {}, {"injector": {"enabled": True}}, "two Forebays before one broker"),
        ({"brokerPodLabels": None}, {}, {}, "must select the brokers' pods"),
        (
            {"brokerPodLabels": None, "placement": "none", "brokerPolicy": {"enabled": True}},
            {},
            {},
            "must select the brokers' pods",
        ),
        ({}, {"throttle": {"disks": [{"device": "vda"}]}}, {}, "placement: required"),
    ],
)
def test_refuses(gateway: Object, config: Object, values: Object, says: str) -> None:
    with pytest.raises(helm_python.HelmError) as refusal:
        render_gateways(gateway, config, **values)
    assert says in str(refusal.value)
