"""The demo broker: clients are told Forebay's address, everybody else bypasses it, and a quorum can form."""

import base64
import subprocess
from pathlib import Path

import helm_python
import pytest

from tests.helm.chart import Object, Rendered, render_demo, render_example, render_scenario

WITH_BROKER = ("demo", "small", "passthrough", "three-brokers")


def parse_properties(text: str) -> dict[str, str]:
    """server.properties as Java reads it: the last of two equal keys wins."""
    pairs = [line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#")]
    return dict(pairs)


def parse_listeners(value: str) -> dict[str, str]:
    """Listener's name -> HOST:PORT."""
    return dict(listener.split("://") for listener in value.split(","))


def start_broker(rendered: Rendered, pod: str, directory: Path) -> tuple[dict[str, str], list[str]]:
    """Run broker.sh with Kafka's commands replaced by ones that only say how they were called."""
    stateful = rendered.one("StatefulSet")
    name = stateful["metadata"]["name"]
    data = rendered.one("ConfigMap", name)["data"]
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    (directory / "bin").mkdir()
    for command, body in (
        ("hostname", f"echo {pod}"),
        *((f"kafka-{c}.sh", 'echo "$@"') for c in ("storage", "server-start")),
    ):
        (directory / "bin" / command).write_text(f"#!/bin/sh\n{body}\n")
        (directory / "bin" / command).chmod(0o755)
    (directory / "server.properties").write_text(data["server.properties"])
    script = (
        data["broker.sh"]
        .replace("/etc/kafka", str(directory))
        .replace("/run/kafka/server", f"{directory}/final")
    )
    environment = {item["name"]: item["value"] for item in container["env"]}
    environment |= {"PATH": f"{directory / 'bin'}:/usr/bin:/bin", "KAFKA_HOME": str(directory)}
    done = subprocess.run(
        ["/bin/bash", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return parse_properties((directory / "final.properties").read_text()), done.stdout.splitlines()


@pytest.mark.parametrize("scenario", WITH_BROKER)
def test_clients_are_told_forebays_port_and_others_bypass_it(scenario: str, tmp_path: Path) -> None:
    rendered = render_scenario(scenario)
    name = rendered.one("StatefulSet")["metadata"]["name"]
    properties, commands = start_broker(rendered, f"{name}-0", tmp_path)
    bound, told = (
        parse_listeners(properties["listeners"]),
        parse_listeners(properties["advertised.listeners"]),
    )
    domain = f"{name}-0.{name}s.kafka.svc.cluster.local"
    assert bound == {"CLIENT": "127.0.0.1:19092", "INTERNAL": ":9094", "CONTROLLER": ":9093"}
    assert told == {"CLIENT": f"{domain}:9092", "INTERNAL": f"{domain}:9094"}
    assert properties["inter.broker.listener.name"] == "INTERNAL"
    assert properties["controller.listener.names"] == "CONTROLLER"
    assert properties["node.id"] == "0"
    assert "format --ignore-formatted" in commands[0] and commands[1].endswith("final.properties")


def test_the_catch_up_listener_is_the_brokers_own_and_advertises_forebay(tmp_path: Path) -> None:
    """So that nobody who asks there, Forebay included, is led past Forebay."""
    properties, _ = start_broker(render_scenario("throttle"), "trial-forebay-broker-0", tmp_path)
    bound, told = (
        parse_listeners(properties["listeners"]),
        parse_listeners(properties["advertised.listeners"]),
    )
    assert bound["CATCHUP"] == "127.0.0.1:19095"
    assert told["CATCHUP"] == told["CLIENT"] and told["CLIENT"].endswith(":9092")
    assert "CATCHUP:PLAINTEXT" in properties["listener.security.protocol.map"].split(",")
    assert properties["listener.name.catchup.num.network.threads"] == "2"


def test_every_voter_is_a_pod_of_its_set(tmp_path: Path) -> None:
    rendered = render_scenario("three-brokers")
    stateful = rendered.one("StatefulSet")
    properties, _ = start_broker(rendered, "events-broker-2", tmp_path)
    assert properties["node.id"] == "2"
    voters = dict(voter.split("@") for voter in properties["controller.quorum.voters"].split(","))
    assert voters == {
        str(node): f"events-broker-{node}.events-brokers.kafka.svc.cluster.local:9093"
        for node in range(3)
    }
    assert stateful["spec"]["replicas"] == len(voters)
    assert stateful["spec"]["serviceName"] == "events-brokers"
    assert (
        stateful["spec"]["podManagementPolicy"] == "Parallel"
    )  # else pod 0 waits for a quorum that never starts
    assert rendered.one("Service", "events-brokers")["spec"]["publishNotReadyAddresses"] is True


def test_large_numbers_stay_whole() -> None:
    """Helm holds numbers as floats: a retention would read 2.592e+08, a user id of OpenShift 1.00068e+09."""
    owner = {"runAsUser": 1000680000, "runAsGroup": 1000680000}
    values = {
        "securityContext": owner,
        "broker": {"securityContext": owner, "config": {"log.retention.ms": 259200000}},
        "config": {"cache": {"size": 1 << 30}},
    }
    rendered = render_demo(values)
    properties = parse_properties(
        rendered.one("ConfigMap", "trial-forebay-broker")["data"]["server.properties"]
    )
    pod = rendered.one("StatefulSet")["spec"]["template"]["spec"]
    owners = [
        container["securityContext"]["runAsUser"]
        for container in (*pod["initContainers"], *pod["containers"])
    ]
    assert properties["log.retention.ms"] == "259200000"
    assert [*owners, pod["securityContext"]["fsGroup"]] == [1000680000] * 3
    assert all(type(owner) is int for owner in owners)
    assert "cache of 1073741824 bytes" in rendered.notes


def test_own_properties_are_kept_but_cannot_undo_the_listeners(tmp_path: Path) -> None:
    values = {
        "broker": {
            "config": {
                "listeners": "CLIENT://:9092",
                "offsets.topic.replication.factor": 1,
                "a.b": True,
            }
        }
    }
    properties, _ = start_broker(render_demo(values), "trial-forebay-broker-0", tmp_path)
    assert properties["listeners"].startswith("CLIENT://127.0.0.1:19092,")
    assert (properties["offsets.topic.replication.factor"], properties["a.b"]) == ("1", "true")


@pytest.mark.parametrize("scenario", WITH_BROKER)
def test_services_reach_forebay_by_number(scenario: str) -> None:
    """Not by the sidecar's port names: Services know those from Kubernetes 1.32 on (kubernetes#127958)."""
    services = render_scenario(scenario).of_kind("Service")
    targets = {
        port["name"]: port["targetPort"]
        for service in services
        for port in service["spec"]["ports"]
    }
    assert targets == {
        "kafka": 9092,
        "forebay-admin": 9190,
        "controller": "controller",
        "internal": "internal",
    }


def test_the_cluster_id_is_a_uuid_that_lasts() -> None:
    def cluster_id(values: Object) -> str:
        (container,) = render_demo(values).one("StatefulSet")["spec"]["template"]["spec"][
            "containers"
        ]
        return next(str(item["value"]) for item in container["env"] if item["name"] == "CLUSTER_ID")

    assert len(base64.urlsafe_b64decode(cluster_id({}) + "==")) == 16
    assert cluster_id({}) == cluster_id({"broker": {"replicas": 3}})
    assert (
        cluster_id({"broker": {"clusterId": "Rm9yZWJheUV4YW1wbGUhIQ"}}) == "Rm9yZWJheUV4YW1wbGUhIQ"
    )


@pytest.mark.parametrize("scenario", WITH_BROKER)
def test_the_pod_runs_without_rights_and_without_strangers_in_its_environment(
    scenario: str,
) -> None:
    pod = render_scenario(scenario).one("StatefulSet")["spec"]["template"]["spec"]
    assert pod["enableServiceLinks"] is False and pod["automountServiceAccountToken"] is False
    for container in (*pod["initContainers"], *pod["containers"]):
        context = container["securityContext"]
        assert (
            context["capabilities"] == {"drop": ["ALL"]}
            and context["readOnlyRootFilesystem"] is True
        )
        assert context["runAsNonRoot"] is True and context["allowPrivilegeEscalation"] is False
        assert container["resources"]["requests"] == container["resources"]["limits"]


def test_one_pod_at_a_time_may_be_evicted_unless_switched_off() -> None:
    budget = render_scenario("three-brokers").one("PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    assert render_scenario("small").of_kind("PodDisruptionBudget") == []
    assert render_scenario("own-statefulset").of_kind("PodDisruptionBudget") == []


@pytest.mark.parametrize(
    ("listener", "says"),
    [
        ({"listen": ":9092", "upstream": "kafka:19092"}, "must be on 127.0.0.1"),
        ({"listen": ":9092", "upstream": "127.0.0.1:9094"}, "share a port"),
        ({"listen": ":9093", "upstream": "127.0.0.1:19092"}, "share a port"),
        ({"listen": ":0", "upstream": "127.0.0.1:19092"}, "names no fixed port"),
        (
            {
                "listen": ":9092",
                "upstream": "127.0.0.1:19092",
                "catchUpUpstream": "127.0.0.1:19092",
            },
            "share a port",
        ),
        (
            {"listen": ":9092", "upstream": "127.0.0.1:19092", "catchUpUpstream": "kafka:19095"},
            "catchUpUpstream must be on",
        ),
        (
            {"listen": ":9092", "upstream": "127.0.0.1:19092", "upstreamTls": {"enabled": True}},
            "speaks plain text",
        ),
    ],
)
def test_listeners_that_the_demo_broker_cannot_have_are_refused(
    listener: Object, says: str
) -> None:
    with pytest.raises(helm_python.HelmError, match=says):
        render_demo({"config": {"listeners": [listener]}})


def test_the_example_advertises_forebay(tmp_path: Path) -> None:
    rendered = render_example({})
    properties = parse_properties(rendered.one("ConfigMap", "kafka")["data"]["server.properties"])
    bound, told = (
        parse_listeners(properties["listeners"]),
        parse_listeners(properties["advertised.listeners"]),
    )
    (sidecar,) = rendered.one("StatefulSet")["spec"]["template"]["spec"]["initContainers"]
    ports = {port["name"]: port["containerPort"] for port in sidecar["ports"]}
    assert told["CLIENT"].rpartition(":")[2] == str(ports["forebay"])
    assert bound["CLIENT"] == "127.0.0.1:19092"
    assert {told["INTERNAL"].rpartition(":")[2], bound["CONTROLLER"].rpartition(":")[2]}.isdisjoint(
        map(str, ports.values())
    )
    labels = rendered.one("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert (
        rendered.one("Service", "trial-forebay-admin")["spec"]["selector"].items() <= labels.items()
    )
