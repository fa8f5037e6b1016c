"""values.schema.json refuses what is unknown or of the wrong type, before anything reaches a cluster."""

import json
from collections.abc import Iterator
from typing import Any

import helm_python
import pytest
import yaml

from tests.helm.chart import CHART, Object, render, render_demo, render_sidecar
from tests.helm.config_schema import SCHEMA_FILE, build_values_schema, format_json


def test_config_is_what_forebay_reads() -> None:
    written, due = json.loads(SCHEMA_FILE.read_text()), json.loads(build_values_schema())
    assert written == due, "run python -m tests.helm.config_schema"


def _objects_of(schema: Object, path: str = "") -> Iterator[tuple[str, Object]]:
    if schema.get("type") in ("object", ["object", "null"]):
        yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from _objects_of(inner, f"{path}.{name}")
    if "items" in schema:
        yield from _objects_of(schema["items"], f"{path}[]")


def test_every_object_of_the_chart_is_closed() -> None:
    """Open are only those that Kubernetes itself checks, and Helm's own `global`."""
    schema = json.loads(SCHEMA_FILE.read_text())
    open_ones = {path for path, item in _objects_of(schema) if "additionalProperties" not in item}
    lists = {".extraEnv[]", ".extraVolumes[]", ".extraVolumeMounts[]"}
    lists |= {
        ".metrics.serviceMonitor.relabelings[]",
        ".metrics.serviceMonitor.metricRelabelings[]",
    }
    lists |= {".networkPolicy.adminFrom[]", ".metrics.serviceMonitor.authorization"}
    lists |= {".metrics.serviceMonitor.tlsConfig"}
    lists |= {path.replace("serviceMonitor", "podMonitor") for path in lists}
    lists |= {".extraObjects[]", ".imagePullSecrets[]", ".gateway.brokerPolicy.alsoFrom[]"}
    lists |= {f".{pods}.tolerations[]" for pods in ("broker", "gateway", "injector")}
    lists |= {f".{pods}.topologySpreadConstraints[]" for pods in ("broker", "gateway")}
    assert open_ones == lists | {".global", ".accessLogVolume", ".broker.affinity"}


def test_every_default_has_its_schema_and_every_key_its_default() -> None:
    schema = json.loads(SCHEMA_FILE.read_text())["properties"]
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(values) == set(schema) - {"global"}
    for key in set(values) - {"config"}:
        inner = schema[key].get("properties")
        assert not inner or set(values[key]) == set(inner) - {
            "initialDelaySeconds",
            "successThreshold",
        }, key


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"replicas": 3}, "additional properties 'replicas' not allowed"),
        ({"image": {"repo": "forebay"}}, "'repo' not allowed"),
        ({"config": {"cache": {"sise": "1GiB"}}}, "'sise' not allowed"),
        (
            {"config": {"listeners": [{"listen": ":1", "upstream": "h:1", "tsl": {}}]}},
            "'tsl' not allowed",
        ),
        ({"config": {"listeners": [{"listen": ":1"}]}}, "missing property 'upstream'"),
        ({"config": {"listeners": []}}, "minItems"),
        ({"config": {"listeners": None}}, "missing property 'listeners'"),
        ({"config": {"isolation": {"enabled": "yes"}}}, "got string, want boolean"),
        ({"config": {"cache": {"mode": False}}}, "got boolean, want string"),
        ({"config": {"limits": {"maxConnections": "many"}}}, "got string, want integer"),
        ({"config": {"cache": {"size": True}}}, "got boolean, want "),
        ({"config": {"log": {"level": "loud"}}}, "must be one of"),
        ({"resources": {"limits": {"cpu": "1"}}}, "'limits' not allowed"),
        ({"resources": {"cpu": "1 core"}}, "does not match pattern"),
        ({"resources": {"memory": "2GiB"}}, "does not match pattern"),
        ({"securityContext": {"runAsUser": 0}}, "got 0, want 1"),
        ({"livenessProbe": {"httpGet": {"path": "/readyz"}}}, "'httpGet' not allowed"),
        ({"extraEnv": {"TZ": "UTC"}}, "got object, want array"),
        ({"broker": {"replicas": 2}}, "must be one of 1, 3, 5"),
        ({"broker": {"clusterId": "short"}}, "does not match pattern"),
        ({"image": {"tag": 1.1}}, "at '/image/tag': got number"),
        ({"image": {"digest": "sha256:abc"}}, "does not match pattern"),
    ],
)
def test_refuses(values: Object, says: str) -> None:
    with pytest.raises(helm_python.HelmValuesError) as refusal:
        render(values)
    assert says in str(refusal.value)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"config": {"cache": {"size": "lots"}}}, '"lots" is not a size'),
        ({"config": {"shutdown": {"gracePeriod": "25"}}}, '"25" is not a duration'),
        (
            {"accessLogVolume": {"persistentVolumeClaim": {"claimName": "logs"}}},
            "all brokers would share one claim",
        ),
        ({"accessLogVolume": {"emptyDir": {}}, "accessLogClaim": {"size": "9Gi"}}, "set one"),
        ({"accessLogClaim": {"size": "1Gi"}}, "keepSize and two files more are 1152Mi"),
        ({"config": {"admin": {"listen": "127.0.0.1:9190"}}}, "must not be the loopback"),
        ({"config": {"admin": {"listen": None}}}, "must not be the loopback"),
        ({"config": {"admin": {"listen": "[::1]:9190"}}}, "must not be the loopback"),
    ],
)
def test_templates_refuse_what_a_pod_cannot_run(values: Object, says: str) -> None:
    with pytest.raises(helm_python.HelmError) as refusal:
        render_sidecar(values)
    assert says in str(refusal.value)


@pytest.mark.parametrize(
    ("size", "mebibytes"),
    [
        ("7MiB", 8),
        ("7Mi", 8),
        ("0.5GiB", 586),
        (7 << 20, 8),
        ("7340032", 8),
        ("7340033", 9),
        ("1GB", 1090),
    ],
)
def test_sizes_are_read_as_forebay_reads_them(size: Any, mebibytes: int) -> None:
    volumes = render_sidecar({"config": {"cache": {"size": size}}}).volumes
    assert volumes["forebay-arena"]["emptyDir"]["sizeLimit"] == f"{mebibytes}Mi"


@pytest.mark.parametrize(
    ("period", "seconds"),
    [("25s", 90), ("1m30s", 155), ("250ms", 66), ("1h", 3665), ("0s", 65), ("1.5s", 67), (0, 65)],
)
def test_durations_are_read_as_forebay_reads_them(period: Any, seconds: int) -> None:
    pod = render_demo({"config": {"shutdown": {"gracePeriod": period}}}).one("StatefulSet")["spec"][
        "template"
    ]["spec"]
    assert pod["terminationGracePeriodSeconds"] == seconds


def test_json_is_written_for_people_and_means_the_same() -> None:
    value = {"short": [1, 2], "long": ["x" * 50, {"y" * 50: None}, {}]}
    text = format_json(value)
    assert json.loads(text) == value
    assert '"short": [1, 2]' in text and max(map(len, text.splitlines())) <= 110
