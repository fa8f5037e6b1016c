"""What must hold of the sidecar in every scenario, whoever's StatefulSet carries it."""

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from proxy.admin.http import build_routes
from proxy.config.check import FURTHER_PROCESS_BYTES
from proxy.config.units import MIB, parse_duration, parse_size
from tests.helm.chart import (
    HELM,
    SIDECARS,
    Object,
    Sidecar,
    merge_values,
    read_values,
    render_demo,
    render_example,
    render_scenario,
    render_sidecar,
    sidecar_of,
)

PROCESS_BYTES = 160 * MIB  # what templates/_sizes.tpl leaves to worker and supervisor


@pytest.fixture(params=SIDECARS)
def scenario(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def sidecar(scenario: str) -> Sidecar:
    return render_sidecar_of(scenario)


@cache
def render_sidecar_of(scenario: str) -> Sidecar:
    """One scenario's, rendered once for all tests. Not to be changed by them."""
    return render_sidecar(read_values(scenario))


@pytest.fixture
def config(scenario: str) -> Object:
    values: Object = merge_values(read_values(scenario))["config"]
    return values


def forebay_yaml(scenario: str) -> Object:
    (item,) = [
        item
        for item in render_scenario(scenario).of_kind("ConfigMap")
        if "forebay.yaml" in item["data"]
    ]
    text: Object = yaml.safe_load(item["data"]["forebay.yaml"])
    return text


def test_is_native(sidecar: Sidecar) -> None:
    assert sidecar.container["restartPolicy"] == "Always"


def test_startup_and_liveness_do_not_wait_for_the_broker(sidecar: Sidecar) -> None:
    """The broker starts only after the startup probe; a broker that is away must not restart Forebay."""
    paths = {
        name: sidecar.container[name]["httpGet"]["path"]
        for name in sidecar.container
        if name.endswith("Probe")
    }
    assert paths == {
        "startupProbe": "/livez",
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz",
    }
    assert {sidecar.container[name]["httpGet"]["port"] for name in paths} == {"forebay-admin"}
    assert set(paths.values()) <= set(
        build_routes(bytes, lambda: (True, ()), dict, dict, dict, dict)
    )


def test_has_no_rights(sidecar: Sidecar) -> None:
    context = sidecar.container["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["runAsNonRoot"] is True and context.get("runAsUser", 1) > 0
    assert context["readOnlyRootFilesystem"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}


def test_requests_are_limits(sidecar: Sidecar) -> None:
    resources = sidecar.container["resources"]
    assert resources["requests"] == resources["limits"]
    assert set(resources["limits"]) == {"cpu", "memory"}


def test_ports_are_those_of_the_configuration(sidecar: Sidecar, config: Object) -> None:
    wanted = [address["listen"] for address in (*config["listeners"], config["admin"])]
    assert list(sidecar.ports.values()) == [int(address.rpartition(":")[2]) for address in wanted]


def test_every_mount_has_its_volume_and_every_written_directory_its_mount(
    sidecar: Sidecar, config: Object
) -> None:
    assert set(sidecar.mounts) <= set(sidecar.volumes)
    writable = {
        mount["mountPath"]
        for mount in sidecar.container["volumeMounts"]
        if not mount.get("readOnly")
    }
    arena = (
        config["cache"].get("directory", "/dev/shm")
        if config["cache"].get("mode", "serve") == "serve"
        else ""
    )
    log = config["accessLog"].get("directory") or ""
    assert writable == {arena, log} - {""}


def test_the_brokers_logs_are_mounted_where_the_throttle_looks_and_cannot_be_written() -> None:
    values = read_values("throttle")
    sidecar = render_sidecar(values)
    (mount,) = [one for one in sidecar.container["volumeMounts"] if one["name"] == "kafka-data"]
    (disk,) = values["config"]["throttle"]["disks"]
    assert mount["readOnly"] is True
    assert Path(disk["directory"]).is_relative_to(mount["mountPath"])
    for stateful in (render_example({}), render_scenario("throttle")):
        pod = stateful.one("StatefulSet")["spec"]["template"]["spec"]
        (broker,) = pod["containers"]
        assert {"name": "kafka-data", "mountPath": mount["mountPath"]} in broker["volumeMounts"]


def test_the_arena_fits_its_volume_and_all_fits_the_memory(
    sidecar: Sidecar, config: Object
) -> None:
    if config["cache"].get("mode", "serve") != "serve":
        assert "forebay-arena" not in sidecar.volumes
        return
    cache_bytes = parse_size(config["cache"].get("size") or sidecar.memory_bytes // 2)
    in_flight = parse_size(config["limits"]["requestMemory"]) + parse_size(
        config["limits"]["responseMemory"]
    )
    assert cache_bytes + in_flight + PROCESS_BYTES <= sidecar.memory_bytes
    if "forebay-arena" in sidecar.mounts:
        volume = sidecar.volumes["forebay-arena"]["emptyDir"]
        assert volume["medium"] == "Memory"
        volume_bytes = parse_size(volume["sizeLimit"])
        assert cache_bytes <= volume_bytes * 7 // 8  # what Forebay allows itself of a file system
        assert volume_bytes + in_flight + PROCESS_BYTES <= sidecar.memory_bytes


def test_the_access_log_stays_below_its_volumes_limit(sidecar: Sidecar, config: Object) -> None:
    """At the limit the kubelet evicts the whole pod, the broker included."""
    volume = sidecar.volumes.get("forebay-access-log", {}).get("emptyDir")
    if volume is not None:
        log = config["accessLog"]
        needed = parse_size(log["keepSize"]) + 2 * parse_size(log["rotateSize"])
        assert parse_size(volume["sizeLimit"]) >= needed


@pytest.mark.parametrize("is_demo", [False, True], ids=["own brokers", "demo"])
def test_each_broker_has_a_claim_of_its_own_for_its_access_log(is_demo: bool) -> None:
    """One claim for all: two Forebays would write to each other's files, or a pod would find no node."""
    values = {"accessLogClaim": {"size": "2Gi", "className": "fast"}}
    stateful = (
        render_demo({**values, "broker": {"replicas": 3}}).one("StatefulSet")
        if is_demo
        else render_example({"forebay": values}).one("StatefulSet")
    )
    claims = {
        one["metadata"]["name"]: one["spec"] for one in stateful["spec"]["volumeClaimTemplates"]
    }
    claim = claims["forebay-access-log"]
    assert claim["resources"]["requests"] == {"storage": "2Gi"}
    assert (claim["storageClassName"], claim["accessModes"]) == ("fast", ["ReadWriteOnce"])
    pod = stateful["spec"]["template"]["spec"]
    assert "forebay-access-log" not in {volume["name"] for volume in pod["volumes"]}
    assert sidecar_of(stateful).mounts["forebay-access-log"] == "/var/log/forebay"
    for item in SIDECARS:
        for volume in render_sidecar_of(item).volumes.values():
            assert "persistentVolumeClaim" not in volume


def test_no_claim_without_a_size_or_a_log() -> None:
    for values in (
        {},
        {"accessLogClaim": {"size": "2Gi"}, "config": {"accessLog": {"directory": None}}},
    ):
        claims = render_demo(values).one("StatefulSet")["spec"]["volumeClaimTemplates"]
        assert [one["metadata"]["name"] for one in claims] == ["kafka-data"]


def test_the_configuration_arrives_unchanged(scenario: str, config: Object) -> None:
    assert forebay_yaml(scenario) == config


def check_config(config: Object, directory: Path) -> subprocess.CompletedProcess[str]:
    """`forebay config check`, with the files and directories that a pod has found in `directory`."""
    file = directory / "forebay.yaml"
    file.write_text(yaml.safe_dump(_on_this_machine(config, directory)))
    command = [sys.executable, "-m", "proxy", "config", "check", str(file)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=HELM.parent
    )


def test_forebay_accepts_its_configuration(scenario: str, tmp_path: Path) -> None:
    done = check_config(forebay_yaml(scenario), tmp_path)
    assert done.returncode == 0, done.stderr


def test_forebay_refuses_a_broken_one(tmp_path: Path) -> None:
    done = check_config({**forebay_yaml("demo"), "cahce": {}}, tmp_path)
    assert done.returncode == 2 and "cache" in done.stderr


def _on_this_machine(config: Object, directory: Path) -> Object:
    def moved(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: moved(name, item) for name, item in value.items()}
        if isinstance(value, list):
            return [moved(key, item) for item in value]
        if key.endswith("File"):
            (directory / "secret").write_text("secret")
            return str(directory / "secret")
        return str(directory) if key == "directory" and value else value

    result: Object = moved("", config)
    if result["cache"].get("mode", "serve") == "serve" and "directory" not in result["cache"]:
        result["cache"]["directory"] = str(directory)
    return result


def test_the_grace_period_covers_broker_and_forebay(scenario: str, config: Object) -> None:
    forebay_s = parse_duration(config["shutdown"]["gracePeriod"])
    for item in render_scenario(scenario).of_kind("StatefulSet"):
        grace_s = item["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert (
            grace_s > forebay_s + merge_values(read_values(scenario))["broker"]["shutdownSeconds"]
        )
    own = render_example({"forebay": {"config": {"shutdown": config["shutdown"]}}}).one(
        "StatefulSet"
    )
    assert own["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > forebay_s + 120


def test_a_changed_configuration_rolls_the_pods_and_nothing_else_does() -> None:
    def annotations(values: Object) -> Object:
        found: Object = render_demo(values).one("StatefulSet")["spec"]["template"]["metadata"][
            "annotations"
        ]
        return found

    assert annotations({"config": {"log": {"level": "debug"}}}) != annotations({})
    assert annotations(
        {"alerts": {"enabled": True}, "livenessProbe": {"periodSeconds": 9}}
    ) == annotations({})


@pytest.mark.parametrize(("spare_bytes", "fits"), [(0, True), (-1, False)])
def test_memory_at_its_bound(spare_bytes: int, fits: bool) -> None:
    volume_bytes = 586 * MIB  # 8/7 of 512 MiB, in whole MiB
    needed_bytes = volume_bytes + 64 * MIB + 64 * MIB + PROCESS_BYTES
    values = {
        "config": {
            "cache": {"size": "512MiB"},
            "limits": {"requestMemory": "64MiB", "responseMemory": "64MiB"},
        },
        "resources": {"memory": str(needed_bytes + spare_bytes)},
    }
    if fits:
        assert (
            parse_size(render_sidecar(values).volumes["forebay-arena"]["emptyDir"]["sizeLimit"])
            == volume_bytes
        )
    else:
        with pytest.raises(helm_python.HelmError, match=r"resources\.memory .* is too little"):
            render_sidecar(values)


@pytest.mark.parametrize(
    ("workers", "cpu", "further"),
    [
        (1, "1", 0),
        (3, "1", 4),
        ("auto", "1", 0),
        ("auto", "2500m", 0),
        ("auto", "3", 3),
        ("auto", "4500m", 4),
        ("auto", "4.5", 4),
        ("auto", "64", 32),
    ],
)
def test_each_further_process_takes_memory(workers: int | str, cpu: str, further: int) -> None:
    """As `forebay config check` counts: beside one worker a second one, the keeper, a spare one."""
    needed_bytes = 586 * MIB + 128 * MIB + PROCESS_BYTES + further * FURTHER_PROCESS_BYTES

    def values(memory_bytes: int) -> Object:
        return {
            "config": {
                "workers": workers,
                "cache": {"size": "512MiB"},
                "limits": {"requestMemory": "64MiB", "responseMemory": "64MiB"},
            },
            "resources": {"memory": str(memory_bytes), "cpu": cpu},
        }

    render_sidecar(values(needed_bytes))
    with pytest.raises(helm_python.HelmError, match=r"resources\.memory .* is too little"):
        render_sidecar(values(needed_bytes - 1))


@pytest.mark.parametrize(
    ("tag", "written"),
    [
        (None, "0.1.0"),
        ("", "0.1.0"),
        ("1", "1"),
        (1, "1"),
        (20260101, "20260101"),
        ("1.10", "1.10"),
    ],
)
def test_a_tag_may_look_like_a_number(tag: str | int | None, written: str) -> None:
    """`--set image.tag=1` gives Helm an integer."""
    values = {"image": {"tag": tag}, "broker": {"image": {"tag": tag or written}}}
    pod = render_demo(values).one("StatefulSet")["spec"]["template"]["spec"]
    assert pod["initContainers"][0]["image"] == f"forebay:{written}"
    assert pod["containers"][0]["image"] == f"apache/kafka:{written}"


def test_secrets_are_in_the_checksum_where_they_are_named() -> None:
    def annotations(values: Object) -> Object:
        stateful = render_demo(values).one("StatefulSet")
        found: Object = stateful["spec"]["template"]["metadata"]["annotations"]
        return found

    assert "forebay/secrets-checksum" not in annotations({})
    assert "forebay/secrets-checksum" in annotations({"checksumSecrets": ["token"]})


def test_the_cpu_limit_may_be_left_out() -> None:
    values: Object = {
        "resources": {"cpuLimit": False},
        "broker": {"resources": {"cpuLimit": False}},
    }
    pod = render_demo(values).one("StatefulSet")["spec"]["template"]["spec"]
    for container in (*pod["initContainers"], *pod["containers"]):
        assert set(container["resources"]["limits"]) == {"memory"}
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}


def test_labels_of_ones_own_are_on_every_object() -> None:
    rendered = render_demo({"commonLabels": {"team": "kafka"}})
    assert {item["metadata"]["labels"]["team"] for item in rendered.objects} == {"kafka"}


def test_a_certificate_of_cert_manager_is_where_the_configuration_finds_it() -> None:
    given = {"enabled": True, "issuerRef": {"name": "a", "kind": "Issuer"}, "dnsNames": ["b"]}
    sidecar = render_sidecar({"certManager": given})
    assert sidecar.mounts["forebay-certificate"] == "/etc/forebay-certificate"
    secret = sidecar.volumes["forebay-certificate"]["secret"]["secretName"]
    certificate = render_demo({"certManager": given}).one("Certificate")["spec"]
    assert certificate["secretName"] == secret
