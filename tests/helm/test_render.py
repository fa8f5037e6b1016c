"""Every scenario lints, renders and is what Kubernetes, from the oldest to the newest known, would accept."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import helm_python
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from tests.helm.chart import (
    CHART,
    NAMESPACE,
    RELEASE,
    SCENARIOS,
    Object,
    read_values,
    render_example,
    render_scenario,
)
from tests.helm.crds import CRD_KINDS, check_crd

OLDEST, NEWEST = "1.29", kubernetes_validate.latest_version()
COMPONENT, INDEX = "app.kubernetes.io/component", "apps.kubernetes.io/pod-index"
SEVERITY_WARNING = 2  # 0 unknown, 1 info, 2 warning, 3 error


def check_object(item: Object, version: str) -> None:
    """Raises ValidationError where the object is not one of this version of Kubernetes."""
    if item["kind"] in CRD_KINDS:
        check_crd(item)
    else:
        kubernetes_validate.validate(item, version, strict=True)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_lints_without_a_warning(scenario: str, version: str) -> None:
    report = helm_python.lint(
        CHART, read_values(scenario), strict=True, kube_version=f"v{version.removeprefix('v')}"
    )
    assert report["total_charts_linted"] == 1
    assert [
        message for message in report["messages"] if message["severity"] >= SEVERITY_WARNING
    ] == []


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("scenario", [*SCENARIOS, "example"])
def test_objects_are_valid(scenario: str, version: str) -> None:
    rendered = render_example({}) if scenario == "example" else render_scenario(scenario)
    assert rendered.objects
    for item in rendered.objects:
        check_object(item, version)


def test_the_oldest_version_is_the_one_that_knows_native_sidecars() -> None:
    """What Chart.yaml asks for, and what the check of objects is made against, are one."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={OLDEST}.0-0"
    assert chart["annotations"]["licenses"] == "Apache-2.0"


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_the_check_of_objects_can_fail(version: str) -> None:
    broken = yaml.safe_load(yaml.safe_dump(render_scenario("demo").one("StatefulSet")))
    broken["spec"]["template"]["spec"]["initContainers"][0]["restartPolice"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError, match="restartPolice"):
        check_object(broken, version)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_objects_are_named_once_and_belong_to_the_release(scenario: str) -> None:
    objects = render_scenario(scenario).objects
    names = [(item["kind"], item["metadata"]["name"]) for item in objects]
    assert len(names) == len(set(names))
    for item in objects:
        if item["kind"] != "MutatingWebhookConfiguration":  # it belongs to no namespace
            assert item["metadata"]["namespace"] == NAMESPACE
        assert item["metadata"]["labels"]["app.kubernetes.io/instance"] == RELEASE


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_services_and_budgets_find_the_pods(scenario: str) -> None:
    rendered = render_scenario(scenario)
    sets = rendered.of_kind("StatefulSet")
    services = [item["spec"]["selector"] for item in rendered.of_kind("Service")]
    injector = [item for item in services if item.get(COMPONENT) == "injector"]
    selectors = [
        {key: value for key, value in item.items() if key != INDEX}
        for item in services
        if item not in injector
    ]
    selectors += [
        item["spec"]["selector"]["matchLabels"]
        for item in rendered.of_kind("PodDisruptionBudget")
        if item["spec"]["selector"]["matchLabels"] not in injector
    ]
    for item in sets:
        labels = item["spec"]["template"]["metadata"]["labels"]
        assert all(selector.items() <= labels.items() for selector in selectors)
    if not sets:
        name = rendered.objects_of("forebay.yaml")["metadata"]["name"]
        assert selectors and all(item == {"forebay/sidecar": name} for item in selectors)
    for item in rendered.of_kind("Deployment"):
        labels = item["spec"]["template"]["metadata"]["labels"]
        assert injector and all(selector.items() <= labels.items() for selector in injector)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_notes_tell_where_clients_go_next(scenario: str) -> None:
    rendered = render_scenario(scenario)
    bootstraps = [
        item
        for item in rendered.of_kind("Service")
        if item["metadata"]["name"].endswith("-bootstrap")
    ]
    others = not rendered.of_kind("StatefulSet")
    assert rendered.notes.strip().startswith("Forebay 0.1.0, cache ")
    assert ("-bootstrap.kafka.svc.cluster.local:9" in rendered.notes) == bool(bootstraps)
    assert ("advertised.listeners name port 9" in rendered.notes) == others
    assert ("Nothing scrapes Forebay yet" in rendered.notes) != bool(
        rendered.of_kind("ServiceMonitor") + rendered.of_kind("PodMonitor")
    )
    assert "<no value>" not in rendered.notes and "%!" not in rendered.notes


def test_notes_ask_for_nothing_deprecated() -> None:
    """`kubectl get endpoints` warns from Kubernetes 1.33 on."""
    rendered = render_scenario("own-statefulset")
    service = rendered.one("Service")["metadata"]["name"]
    assert f"get endpointslices -l kubernetes.io/service-name={service}\n" in rendered.notes
    for scenario in SCENARIOS:
        assert not re.search(r"get (endpoints|ep)\b", render_scenario(scenario).notes)


def _find_helm() -> str | None:
    built = Path(__file__).parents[2] / ".build" / "bin" / "helm"
    return (
        os.environ.get("HELM") or shutil.which("helm") or (str(built) if built.exists() else None)
    )


@pytest.mark.skipif(
    _find_helm() is None, reason="no helm command here; the same engine ran as a library"
)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_helm_command_renders_the_same(scenario: str) -> None:
    command = [str(_find_helm()), "template", RELEASE, str(CHART), "--namespace", NAMESPACE]
    command += ["--kube-version", f"{OLDEST}.0", "--values", str(SCENARIOS[scenario])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr

    def by_name(item: Object) -> tuple[str, str]:
        return item["kind"], item["metadata"]["name"]

    objects = [item for item in yaml.safe_load_all(done.stdout) if item]
    assert sorted(objects, key=by_name) == sorted(render_scenario(scenario).objects, key=by_name)
