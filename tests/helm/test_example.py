"""The example and the demo brokers as clusters admit them: Pod Security, volumes of root, no operator."""

import pytest

from tests.helm.chart import SCENARIOS, Object, Rendered, render_example, render_scenario
from tests.helm.crds import CRD_KINDS
from tests.helm.pod_security import list_violations

STATEFUL = [name for name in SCENARIOS if render_scenario(name).of_kind("StatefulSet")]


def render_named(scenario: str) -> Rendered:
    return render_example({}) if scenario == "example" else render_scenario(scenario)


def pod_of(scenario: str) -> Object:
    pod: Object = render_named(scenario).one("StatefulSet")["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize("scenario", [*STATEFUL, "example"])
def test_a_namespace_that_enforces_restricted_admits_the_pods(scenario: str) -> None:
    assert list_violations(pod_of(scenario)) == []


@pytest.mark.parametrize("scenario", [*STATEFUL, "example"])
def test_a_volume_whose_root_belongs_to_root_can_be_written(scenario: str) -> None:
    """The kubelet gives a claim's files to `fsGroup`, else the broker cannot make its log directory."""
    stateful = render_named(scenario).one("StatefulSet")
    assert stateful["spec"]["volumeClaimTemplates"]
    pod = pod_of(scenario)
    (broker,) = pod["containers"]
    context = {**pod["securityContext"], **broker["securityContext"]}
    assert pod["securityContext"]["fsGroup"] == context["runAsGroup"] > 0


def test_a_cluster_without_the_operator_takes_the_example() -> None:
    """A ServiceMonitor is refused there, and with it the whole release."""
    kinds = {item["kind"] for item in render_example({}).objects}
    assert not kinds & set(CRD_KINDS)
    watched = render_example({"forebay": {"metrics": {"serviceMonitor": {"enabled": True}}}})
    assert watched.one("ServiceMonitor")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"containers": [{"name": "a"}]}, "a: runAsNonRoot is not true"),
        ({"containers": [{"name": "a"}]}, "a: keeps capabilities"),
        ({"containers": [{"name": "a"}]}, "a: allowPrivilegeEscalation is not false"),
        ({"containers": [{"name": "a"}]}, "a: no seccompProfile"),
        ({"hostNetwork": True}, "hostNetwork"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "volume v: hostPath"),
        ({"containers": [{"name": "a", "ports": [{"hostPort": 1}]}]}, "a: hostPort"),
        ({"containers": [{"name": "a", "securityContext": {"privileged": True}}]}, "a: privileged"),
        ({"containers": [{"name": "a", "securityContext": {"runAsUser": 0}}]}, "a: runAsUser is 0"),
        (
            {
                "initContainers": [
                    {"name": "a", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}
                ]
            },
            "a: adds SYS_ADMIN",
        ),
    ],
)
def test_the_check_of_pods_can_fail(change: Object, reason: str) -> None:
    assert reason in list_violations(change)
