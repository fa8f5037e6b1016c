"""docs/install-kubernetes.md, and Strimzi's page for gateways, followed word by word with an owner's chart, and timed.

Not as the pages have it: registry.example is no registry, the node holds that image already; gateways and the demo ask
for less CPU, so that they fit on two cores; the image of the demo broker has this cluster's own name.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.cluster.clients import build_namespace
from tests.cluster.images import FOREBAY, REGISTRY, find_tag
from tests.cluster.layout import HERE, ROOT, find_helm
from tests.cluster.programs import build_kubectl
from tests.kit.page import Watch, find_section, read_blocks, read_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cluster.cluster import Cluster

PAGE = (ROOT / "docs/install-kubernetes.md").read_text()
STRIMZI = (ROOT / "docs/kubernetes/strimzi.md").read_text()
GATEWAYS = (ROOT / "docs/kubernetes/README.md").read_text()
CHART_README = (ROOT / "helm/forebay/README.md").read_text()
NAMESPACE, POD = "kafka", "kafka-0"
BROKER_S = 60
"""What the owner's brokers need to stop."""
pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1200)]


class Owner:
    """Somebody with a shell, brokers in a chart, and a clone of the repository."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self.directory = directory
        shutil.rmtree(directory, ignore_errors=True)
        self.chart = directory / "owner"
        shutil.copytree(HERE / "owner", self.chart)
        (directory / "helm").symlink_to(ROOT / "helm")
        self._commands = directory / "bin"
        self._commands.mkdir()
        self._write_command("kubectl", build_kubectl(cluster.state))
        home = cluster.state.path("helm")
        known = [f"HELM_{name}_HOME={home}" for name in ("CACHE", "CONFIG", "DATA")]
        self._write_command(
            "helm", ["env", *known, find_helm(), "--kubeconfig", cluster.state.kubeconfig]
        )

    def _write_command(self, name: str, words: list[str | Path]) -> None:
        path = self._commands / name
        path.write_text(f'#!/bin/sh\nexec {" ".join(map(str, words))} "$@"\n')
        path.chmod(0o755)

    def type(self, command: str, directory: Path | None = None) -> str:
        """Type a command into the shell; what it prints. Raises ClusterError."""
        script = f'cd {directory or self.directory} && PATH="{self._commands}:$PATH"\n{command}'
        return self._cluster.run("bash", "-ec", script)

    def wait_rolled(self, name: str, namespace: str = NAMESPACE) -> None:
        """Wait until all pods of a StatefulSet are the newest and ready."""
        self.type(f"kubectl -n {namespace} rollout status statefulset/{name} --timeout=280s")

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace a text of the chart that is there once."""
        path = self.chart / name
        text = path.read_text()
        assert text.count(old) == 1, old
        path.write_text(text.replace(old, new))

    def append(self, name: str, text: str) -> None:
        """Write a text below a file of the chart."""
        with (self.chart / name).open("a") as file:
            file.write(text)

    def set_properties(self, block: str) -> None:
        """Give the brokers the lines of the page in place of their own with the same keys."""
        values = self.chart / "values.yaml"
        text = values.read_text()
        for line in block.splitlines():
            key = re.escape(line.partition("=")[0])
            text, count = re.subn(rf"^  {key}=.*$", f"  {line}", text, flags=re.MULTILINE)
            assert count == 1, key
        values.write_text(text)


@pytest.fixture
def owner(cluster: Cluster) -> Iterator[Owner]:
    """An owner in a cluster without a namespace `kafka`, whose node has pulled the page's image."""
    image = read_image()
    cluster.run("ctr", "-n", "k8s.io", "images", "tag", "--force", f"{FOREBAY}:{find_tag()}", image)
    cluster.apply(build_namespace(NAMESPACE))
    owner = Owner(cluster, cluster.state.path("page", "owner").parent)
    yield owner
    for namespace in (NAMESPACE, "forebay"):
        for name in owner.type(f"helm list -q -n {namespace}").split():
            owner.type(f"helm uninstall {name} -n {namespace}")
        owner.type(f"kubectl -n {namespace} delete pod --all --grace-period=0 --force")
        owner.type(f"kubectl delete namespace {namespace} --ignore-not-found")


def read_image() -> str:
    """The name of the image that the page builds and pushes."""
    (block,) = read_blocks(PAGE, "1.")
    *_, build, push = block.splitlines()
    image = push.rpartition(" ")[2]
    assert f"-t {image} ." in build
    return image


def read_command(block: str) -> str:
    """The command in the first line of a block of values."""
    return block.splitlines()[0].removeprefix("# ")


def include_sidecar(owner: Owner) -> None:
    """What the chart's README tells to write where."""
    section = find_section(CHART_README, "Beside your own brokers")
    first = re.search(r"with `(\{\{ \$forebay := [^`]*)`", section)
    assert first is not None
    rows = re.findall(r"^ *\| `([^`]*)`[^|]*\| `([^`]*)`", section, re.MULTILINE)
    lines = {where: line.replace(r"\|", "|") for where, line in rows}
    template = "templates/kafka.yaml"
    grace = lines.pop("spec.terminationGracePeriodSeconds").replace("120", f"{BROKER_S}")
    owner.edit(template, f"Seconds: {BROKER_S}\n", f"Seconds: {grace}\n")
    for key in ("labels", "annotations"):
        line = lines.pop(f"metadata.{key}")
        owner.edit(template, f"      {key}:\n", f"      {key}:\n        {line}\n")
    claims = lines.pop("spec.volumeClaimTemplates")
    owner.edit(template, "  volumeClaimTemplates:\n", f"  volumeClaimTemplates:\n    {claims}\n")
    volumes = lines.pop("spec.volumes")
    owner.edit(template, "      volumes:\n", f"      volumes:\n        {volumes}\n")
    sidecar, links = lines.pop("spec.initContainers"), lines.pop("spec.enableServiceLinks")
    before = f"      enableServiceLinks: {links}\n      initContainers:\n        {sidecar}\n"
    owner.edit(template, "      containers:\n", f"{before}      containers:\n")
    owner.edit(template, "kind: ConfigMap\n", f"kind: ConfigMap\n{first[1]}\n")
    assert not lines, lines


def look(owner: Owner, watch: Watch, release: str) -> None:
    """Step 5."""
    (block,) = read_blocks(PAGE, "5.")
    pods, version, canary, ready = block.replace("POD", POD).splitlines()
    assert POD in owner.type(pods)
    assert owner.type(version).startswith("forebay ")
    print(owner.type(canary))
    watch.note("5. the canary's records")
    assert "200 OK" in owner.type(f"{ready}; kill %1")
    test = re.search(r"`(helm test RELEASE [^`]*)`", PAGE)
    assert test is not None
    assert "Succeeded" in owner.type(test[1].replace("RELEASE", release))
    watch.note("5. ready, helm test")
    print(watch.format_table())


def test_by_named_templates(owner: Owner) -> None:
    owner.type(f"helm install events . -n {NAMESPACE}", owner.chart)
    owner.wait_rolled("kafka")
    watch = Watch()
    chart, values = read_yaml(PAGE, "By named templates")
    owner.append("Chart.yaml", chart.replace("/path/to/forebay", str(ROOT)))
    owner.append("values.yaml", values)
    include_sidecar(owner)
    (listeners,) = read_blocks(PAGE, "3.")
    owner.set_properties(listeners)
    roll = re.search(r"`(helm dependency build [^`]*)`", find_section(PAGE, "4."))
    assert roll is not None
    owner.type(roll[1], owner.chart)
    owner.wait_rolled("kafka")
    watch.note("2. to 4. dependency, upgrade, roll")
    look(owner, watch, "events")


def test_by_the_webhook(owner: Owner) -> None:
    manifests = "helm template owner | kubectl -n kafka apply -f -"
    owner.type(manifests)
    owner.wait_rolled("kafka")
    watch = Watch()
    (values,) = read_yaml(PAGE, "By the webhook")
    (owner.directory / "values.yaml").write_text(values)
    owner.type(read_command(values))
    watch.note("2. the webhook")
    label = re.search(r"`(forebay/inject: \w+)`", PAGE)
    assert label is not None
    owner.edit("templates/kafka.yaml", "      labels:\n", f"      labels:\n        {label[1]}\n")
    (listeners,) = read_blocks(PAGE, "3.")
    owner.set_properties(listeners)
    owner.type(manifests)
    owner.wait_rolled("kafka")
    watch.note("3. and 4. label, listeners, roll")
    look(owner, watch, "forebay")


def build_operated(listener: dict[str, str] | None = None) -> str:
    """Values of brokers as an operator names and labels them. `listener`: the one of the page, or none yet."""
    service = "my-cluster-kafka-brokers"
    inner = f"INTERNAL://POD.{service}.{NAMESPACE}.svc:9091"
    listeners = {"PLAIN": ("9092", f"POD.{service}.{NAMESPACE}.svc:9092")}
    if listener is not None:
        listeners["FOREBAY"] = (listener["port"], listener["advertised"])
    bound = ",".join(f"{name}://:{port}" for name, (port, _) in listeners.items())
    told = ",".join(f"{name}://{address}" for name, (_, address) in listeners.items())
    names = [*listeners, "INTERNAL", "CONTROLLER"]
    properties = [
        f"listeners={bound},INTERNAL://:9091,CONTROLLER://:9093",
        f"advertised.listeners={told},{inner}",
        f"listener.security.protocol.map={','.join(f'{name}:PLAINTEXT' for name in names)}",
        "inter.broker.listener.name=INTERNAL",
        "controller.listener.names=CONTROLLER",
    ]
    values = {"name": "my-cluster-broker", "service": service, "replicas": 3}
    labels = {"strimzi.io/cluster": "my-cluster", "strimzi.io/kind": "Kafka"}
    return yaml.safe_dump({**values, "labels": labels, "properties": "\n".join(properties)})


def test_beside_an_operator(owner: Owner) -> None:
    """The operator is a stand-in that does what its fields say: one more listener, advertised by a template."""
    operated = owner.directory / "operated.yaml"
    operate = f"helm upgrade --install operator owner -n {NAMESPACE} -f operated.yaml"
    operated.write_text(build_operated())
    owner.type(operate)
    owner.wait_rolled("my-cluster-broker")
    watch = Watch()
    values, kafka = read_yaml(STRIMZI, "A gateway per broker")
    (owner.directory / "values.yaml").write_text(values)
    owner.type(f"{read_command(values)} --set resources.cpu=200m")
    watch.note("gateways")
    (listener,) = yaml.safe_load(kafka)["spec"]["kafka"]["listeners"]
    told = listener["configuration"]
    (port,) = {one["advertisedPort"] for one in told["brokers"]}
    host = told["advertisedHostTemplate"].replace("{nodeId}", "NODE")
    advertised = {"port": f"{listener['port']}", "advertised": f"{host}:{port}"}
    operated.write_text(build_operated(advertised))
    owner.type(operate)
    owner.wait_rolled("my-cluster-broker")
    owner.wait_rolled("my-cluster-broker", "forebay")
    watch.note("listener, roll of three brokers")
    canary = re.search(r"`kubectl (exec NAME-N [^`]*)`", GATEWAYS)
    assert canary is not None
    first = canary[1].replace("NAME-N", "my-cluster-broker-0").replace("-N.", "-0.")
    print(owner.type(f"kubectl -n forebay {first}"))
    watch.note("the canary's records")
    test = re.search(r"`(helm test my-cluster-broker [^`]*)`", STRIMZI)
    assert test is not None
    assert "Succeeded" in owner.type(test[1])
    watch.note("helm test")
    print(watch.format_table())


def test_the_demo_broker(owner: Owner) -> None:
    """The broker's image seems to come from another registry here."""
    (block,) = read_blocks(PAGE, "The demo broker")
    install, test = block.splitlines()
    watch = Watch()
    owner.type(f"{install} --set broker.image.registry={REGISTRY} --set resources.cpu=200m")
    watch.note("install")
    assert "Succeeded" in owner.type(test)
    watch.note("helm test")
    print(watch.format_table())
