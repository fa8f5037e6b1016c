"""Renders the chart with Helm's own engine (Helm 4, from the helm-python-sdk wheel: no binary, no cluster).

Owns the scenarios (the chart's ci/ values) and the ways into a rendered pod. Knows nothing of what must hold.
Invariants: templates are rendered as `helm install` does, the schema checked first; an object is a plain dict
as YAML gives it.
"""

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import helm_python
import yaml

from proxy.config.units import parse_size

HELM = Path(__file__).parents[2] / "helm"
CHART = HELM / "forebay"
SCENARIOS = {
    path.name.removesuffix("-values.yaml"): path
    for path in sorted((CHART / "ci").glob("*-values.yaml"))
}
SIDECARS = tuple(name for name in SCENARIOS if name != "gateway")
"""Scenarios whose Forebay stands in the brokers' pods."""
RELEASE, NAMESPACE = "trial", "kafka"
Object = dict[str, Any]


class Rendered(NamedTuple):
    """The objects of a release, and its NOTES."""

    objects: tuple[Object, ...]
    notes: str

    def of_kind(self, kind: str) -> list[Object]:
        """All objects of a kind, in the order of the templates' names."""
        return [item for item in self.objects if item["kind"] == kind]

    def objects_of(self, file: str) -> Object:
        """The only ConfigMap that holds a file of that name."""
        (found,) = [item for item in self.of_kind("ConfigMap") if file in item["data"]]
        return found

    def one(self, kind: str, name: str | None = None) -> Object:
        """The only object of a kind (and name); anything else is the test's failure."""
        found = [item for item in self.of_kind(kind) if name in (None, item["metadata"]["name"])]
        assert len(found) == 1, f"{len(found)} objects of kind {kind}, name {name}"
        return found[0]


def read_values(scenario: str) -> Object:
    """The values of one scenario, as its file has them."""
    values: Object = yaml.safe_load(SCENARIOS[scenario].read_text())
    return values


def render(values: Mapping[str, Any] | None = None, chart: Path = CHART) -> Rendered:
    """Render a chart. Raises helm_python.HelmError: the schema's refusal, or what a template says."""
    with helm_python.Chart.load(chart) as loaded:
        files = loaded.render(dict(values or {}), name=RELEASE, namespace=NAMESPACE)
    manifests = [text for name, text in sorted(files.items()) if name.endswith(".yaml")]
    objects = [item for text in manifests for item in yaml.load_all(text, yaml.CSafeLoader) if item]
    return Rendered(
        tuple(objects), "".join(text for name, text in files.items() if name.endswith("/NOTES.txt"))
    )


def render_demo(values: Mapping[str, Any] | None = None) -> Rendered:
    """The chart with its demo broker, and these values besides."""
    given = dict(values or {})
    return render({**given, "broker": {"enabled": True, **given.get("broker", {})}})


@cache
def render_scenario(scenario: str) -> Rendered:
    """One scenario rendered, once for all tests. Not to be changed by them."""
    return render(read_values(scenario))


def merge_values(values: Mapping[str, Any]) -> Object:
    """The chart's defaults with `values` over them, as Helm merges."""
    with helm_python.Chart.load(CHART) as loaded:
        return loaded.merge_values(dict(values))


class Sidecar(NamedTuple):
    """The sidecar's container and the pod's volumes, claims included, as the named templates give them."""

    container: Object
    volumes: dict[str, Object]

    @property
    def memory_bytes(self) -> int:
        """The container's memory limit."""
        return parse_size(self.container["resources"]["limits"]["memory"])

    @property
    def mounts(self) -> dict[str, str]:
        """Volume -> directory."""
        return {mount["name"]: mount["mountPath"] for mount in self.container["volumeMounts"]}

    @property
    def ports(self) -> dict[str, int]:
        """Port's name -> number."""
        return {port["name"]: port["containerPort"] for port in self.container["ports"]}


def sidecar_of(stateful: Mapping[str, Any]) -> Sidecar:
    """The sidecar in a StatefulSet."""
    pod = stateful["spec"]["template"]["spec"]
    (container,) = [item for item in pod["initContainers"] if item["name"] == "forebay"]
    claims = [
        {"name": claim["metadata"]["name"]} for claim in stateful["spec"]["volumeClaimTemplates"]
    ]
    return Sidecar(container, {volume["name"]: volume for volume in (*pod["volumes"], *claims)})


def render_sidecar(values: Mapping[str, Any]) -> Sidecar:
    """The sidecar for these values in a chart that includes it, as a StatefulSet of one's own does."""
    rendered = render_example({"forebay": {**values, "broker": {"enabled": False}}})
    return sidecar_of(rendered.one("StatefulSet"))


def render_example(values: Mapping[str, Any]) -> Rendered:
    """helm/example with its dependency in place, as `helm dependency build` leaves it."""
    return render(values, chart=_example_chart())


@cache
def _example_chart() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="forebay-chart-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    shutil.copytree(
        HELM / "example", directory / "example", ignore=shutil.ignore_patterns("charts")
    )
    shutil.copytree(CHART, directory / "example" / "charts" / "forebay")
    return directory / "example"
