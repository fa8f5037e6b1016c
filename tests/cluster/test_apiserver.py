"""Every scenario of the chart before a real API server: strict fields, Pod Security `restricted`. Needs no node.

What needs definitions that a bare cluster has not (Prometheus operator, cert-manager) is left to tests/helm.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import build
from tests.cluster.cluster import Cluster, Object
from tests.cluster.layout import ClusterError, State
from tests.helm.chart import NAMESPACE, SCENARIOS, Rendered, render_example, render_scenario
from tests.helm.crds import CRD_KINDS

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def apiserver() -> Iterator[Cluster]:
    """etcd, API server and controllers on the loopback, with a namespace that enforces the strictest level."""
    with build.filling_cache():
        build.build_kube()
    state = State.default()
    alone = Cluster(State(Path(f"{state.directory}-api")), has_node=False)
    alone.down()
    alone.up()
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": NAMESPACE, "labels": labels}
    alone.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    yield alone
    alone.down()


def render_named(scenario: str) -> Rendered:
    return render_example({}) if scenario == "example" else render_scenario(scenario)


def build_pods(rendered: Rendered) -> list[Object]:
    """The pods that controllers would make, with the volumes of their claims, and those of the chart itself."""
    pods = rendered.of_kind("Pod")
    for owner in (*rendered.of_kind("StatefulSet"), *rendered.of_kind("Deployment")):
        template = owner["spec"]["template"]
        claims = [one["metadata"]["name"] for one in owner["spec"].get("volumeClaimTemplates", [])]
        volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
        name = owner["metadata"]["name"]
        spec = {**template["spec"], "volumes": [*template["spec"].get("volumes", []), *volumes]}
        spec.pop("priorityClassName", None)
        metadata = {**template["metadata"], "name": f"{name}-pod", "namespace": NAMESPACE}
        pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return pods


def dry_run(apiserver: Cluster, item: Object) -> None:
    """Raises ClusterError with the refusal."""
    flags = ["--dry-run=server", "--validate=strict", "-n", NAMESPACE]
    apiserver.kubectl("create", *flags, "-f", "-", stdin=json.dumps(item))


@pytest.mark.parametrize("scenario", [*SCENARIOS, "example"])
def test_objects_and_pods_are_admitted(apiserver: Cluster, scenario: str) -> None:
    rendered = render_named(scenario)
    accounts = rendered.of_kind("ServiceAccount")
    for account in accounts:
        apiserver.apply(account, namespace=NAMESPACE)
    for item in rendered.objects:
        if item["kind"] not in CRD_KINDS and item not in accounts:
            dry_run(apiserver, {**item, "metadata": {"namespace": NAMESPACE, **item["metadata"]}})
    for pod in build_pods(rendered):
        dry_run(apiserver, pod)


def test_a_pod_with_rights_is_refused(apiserver: Cluster) -> None:
    """The check can fail."""
    pod = build_pods(render_scenario("demo"))[-1]
    pod = {**pod, "spec": {**pod["spec"], "hostNetwork": True}}
    with pytest.raises(ClusterError, match="violates PodSecurity"):
        dry_run(apiserver, pod)


def test_an_unknown_field_is_refused(apiserver: Cluster) -> None:
    item = render_scenario("demo").one("PodDisruptionBudget")
    broken = {**item, "spec": {**item["spec"], "maxUnavailabel": 1}}
    with pytest.raises(ClusterError, match="maxUnavailabel"):
        dry_run(apiserver, broken)
