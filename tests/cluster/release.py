"""A release of the chart on the cluster, as a test holds it. [process]

Owns how a chart is installed with values, and how its pods are awaited, ended and asked. Must not know the scenarios.
"""

import json
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.cluster.cluster import Cluster, Object
from tests.cluster.images import KAFKA, REGISTRY, find_tag
from tests.cluster.layout import ROOT
from tests.cluster.programs import wait_until

CHART = ROOT / "helm/forebay"
READY_S = 300.0
SMALL: Object = {
    "image": {"registry": REGISTRY, "tag": find_tag()},
    "config": {
        "cache": {"size": "64MiB"},
        "limits": {"requestMemory": "32MiB", "responseMemory": "64MiB"},
        "accessLog": {"keepSize": "64MiB", "rotateSize": "16MiB"},
    },
    "resources": {"cpu": "50m", "memory": "448Mi", "cpuLimit": False},
    "startupProbe": {"failureThreshold": 300},
}
"""Values of a sidecar that finds room on a small node thrice."""


def merge(*values: Mapping[str, Any]) -> Object:
    """Maps over maps, as Helm merges."""
    merged: Object = {}
    for one in values:
        for key, value in one.items():
            old = merged.get(key)
            if isinstance(old, Mapping) and isinstance(value, Mapping):
                merged[key] = merge(old, value)
            else:
                merged[key] = value
    return merged


class Release:
    """A release by its name and namespace."""

    def __init__(self, cluster: Cluster, name: str, namespace: str, chart: Path = CHART) -> None:
        self.cluster = cluster
        self.name = name
        self.namespace = namespace
        self.chart = chart

    def install(self, *values: Mapping[str, Any], waits: bool = True) -> None:
        """Install, or upgrade to these values."""
        words = self._build_upgrade(*values)
        words += ["--timeout", f"{READY_S:g}s", *(["--wait"] if waits else [])]
        self.cluster.helm(*words, timeout_s=READY_S + 30)

    def _build_upgrade(self, *values: Mapping[str, Any]) -> list[str]:
        file = self.cluster.state.path("values", f"{self.namespace}-{self.name}.json")
        file.write_text(json.dumps(merge(*values)))
        upgrade = ["upgrade", "--install", self.name, str(self.chart), "-n", self.namespace]
        return [*upgrade, "-f", str(file)]

    def render(self, *values: Mapping[str, Any]) -> str:
        """What an upgrade to these values would apply."""
        return self.cluster.helm(*self._build_upgrade(*values), "--dry-run=server")

    def helm(self, command: str, *words: str) -> str:
        """Run another of helm's commands on this release."""
        return self.cluster.helm(
            command, self.name, *words, "-n", self.namespace, timeout_s=READY_S + 30
        )

    def remove(self) -> None:
        """Uninstall, and remove the namespace with all that is in it. Nothing waits for a shutdown."""
        self.helm("uninstall")
        self.kubectl("delete", "pod", "--all", "--grace-period=0", "--force")
        self.cluster.kubectl("delete", "namespace", self.namespace)

    def kubectl(self, *words: str, timeout_s: float = READY_S) -> str:
        """Run kubectl in this namespace."""
        return self.cluster.kubectl("-n", self.namespace, *words, timeout_s=timeout_s)

    def create(self, item: Object) -> None:
        """Create an object in this namespace."""
        self.cluster.kubectl("-n", self.namespace, "create", "-f", "-", stdin=json.dumps(item))

    def pod(self, name: str) -> Object:
        """A pod as the API server has it. Raises ClusterError where there is none."""
        return self.cluster.get("pod", name, "-n", self.namespace)

    def wait_rolled(self, stateful: str) -> None:
        """Wait until every pod of a StatefulSet is the newest and ready."""
        waiting = ["rollout", "status", f"statefulset/{stateful}", f"--timeout={READY_S:g}s"]
        self.kubectl(*waiting, timeout_s=READY_S + 10)

    def is_ready(self, pod: str) -> bool:
        """Whether all containers of a pod are ready."""
        conditions = self.pod(pod)["status"].get("conditions", [])
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def wait_ready(self, *pods: str) -> None:
        """Wait until all of these pods are ready."""
        for pod in pods:
            wait_until(f"{pod} to be ready", partial(self.is_ready, pod), READY_S)

    def count_restarts(self, pod: str, container: str) -> int:
        """How often a container, a sidecar included, was started again."""
        status = self.pod(pod)["status"]
        both = status.get("initContainerStatuses", []) + status.get("containerStatuses", [])
        return int(next(one["restartCount"] for one in both if one["name"] == container))

    def kill(self, pod: str, container: str) -> None:
        """Send SIGKILL to the first process of a container, as the kernel does that runs out of memory. Return when it
        was started again and the pod is ready.
        """
        status = self.pod(pod)["status"]
        both = status.get("initContainerStatuses", []) + status.get("containerStatuses", [])
        found = next(one["containerID"] for one in both if one["name"] == container)
        before = self.count_restarts(pod, container)
        task = found.partition("://")[2]
        self.cluster.run("ctr", "-n", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", task)
        wait_until("a restart", lambda: self.count_restarts(pod, container) > before, READY_S)
        self.wait_ready(pod)

    def evict(self, pod: str) -> None:
        """Evict a pod as a drain does. Raises ClusterError where a budget refuses."""
        metadata = {"name": pod, "namespace": self.namespace}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/eviction"
        self.cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(body))

    def ask(self, pod: str, path: str) -> str:
        """What a Forebay answers at its admin port. Raises ClusterError."""
        address = self.pod(pod)["status"]["podIP"]
        program = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=10).read().decode())"
        return self.cluster.run("python3", "-c", program, f"http://{address}:9190{path}")

    def metric(self, pod: str, beginning: str) -> float:
        """The sum of the samples whose line begins so: 0 where there is none."""
        lines = self.ask(pod, "/metrics").splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(beginning))

    def count_hits(self, *pods: str) -> float:
        """Record bytes that the memory of these pods has served."""
        hits = 'forebay_fetch_bytes_total{reason="",result="hit"}'
        return sum(self.metric(pod, hits) for pod in pods)

    def forebay_log(self, pod: str) -> list[Object]:
        """Forebay's log lines of a pod, as far as they are JSON."""
        text = self.kubectl("logs", pod, "-c", "forebay")
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def copy_example(directory: Path) -> Path:
    """helm/example with its dependency in place, as `helm dependency build` leaves it, and the cluster's own name of
    the broker's image.
    """
    chart = directory / "example"
    shutil.rmtree(chart, ignore_errors=True)
    shutil.copytree(ROOT / "helm/example", chart, ignore=shutil.ignore_patterns("charts"))
    shutil.copytree(CHART, chart / "charts/forebay")
    template = chart / "templates/statefulset.yaml"
    text = template.read_text()
    assert f"image: apache/{KAFKA.rpartition('/')[2]}" in text
    template.write_text(text.replace("image: apache/", f"image: {REGISTRY}/apache/"))
    return chart
