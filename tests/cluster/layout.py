"""Where everything of the cluster lies, and its addresses. [none]

Owns paths and numbers that several modules need. Must not start or build anything.
Invariants: what is built lies in the user's cache and is shared by all clones; a running cluster lies in its state
directory, and nothing of it outside, but for its control groups.
"""

import hashlib
import os
import re
import tempfile
import zlib
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HELM_VERSION = "v3.19.5"
"""Has the same Kubernetes client as the cluster: a later minor version would be compiled anew."""
NODE, NODE_IP = "node1", "10.88.0.1"
PODS, FIRST_POD, SERVICES = "10.88.0.0/16", "10.88.1.1", "10.96.0.0/16"
DOMAIN = "cluster.local"
API_PORT = 6443
VOLUMES = 60
"""Volumes of the node. Each serves one claim in a cluster's life."""


class ClusterError(RuntimeError):
    """A part of the cluster cannot be built, or does not come up."""


def find_cache() -> Path:
    """The user's cache directory for the cluster. It exists after the call."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    cache = Path(base) / "forebay" / "cluster"
    for name in ("bin", "images"):
        (cache / name).mkdir(parents=True, exist_ok=True)
    return cache


def find_kube_version() -> str:
    """Kubernetes' version, as kube/go.mod pins it."""
    found = re.search(r"^\tk8s\.io/kubernetes (v\S+)$", (HERE / "kube/go.mod").read_text(), re.M)
    assert found is not None
    return found[1]


def find_kube() -> Path:
    """The path of the binary with all of Kubernetes: named by its sources, whether it is built or not."""
    digest = hashlib.sha256()
    for path in sorted((HERE / "kube").iterdir()):
        digest.update(path.read_bytes())
    return find_cache() / "bin" / f"kube-{find_kube_version()}-{digest.hexdigest()[:12]}"


def find_helm() -> Path:
    """The path of the helm command, whether it is built or not."""
    return find_cache() / "bin" / f"helm-{HELM_VERSION}"


def find_packages() -> Path:
    """The directory of unpacked Debian packages, whether it is there or not."""
    return find_cache() / "packages"


def find_image(name: str) -> Path:
    """The archive of an image, whether it is built or not."""
    return find_cache() / "images" / f"{name}.tar"


class State(NamedTuple):
    """The directory of one running cluster."""

    directory: Path

    @classmethod
    def default(cls) -> "State":
        """FOREBAY_CLUSTER, or a directory of this user beside other temporary files."""
        named = os.environ.get("FOREBAY_CLUSTER")
        return cls(
            Path(named or Path(tempfile.gettempdir()) / f"forebay-cluster-{os.getuid()}").resolve()
        )

    def path(self, *names: str) -> Path:
        """A path in it, whose parent exists after the call."""
        path = self.directory.joinpath(*names)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, name: str, text: str, mode: int = 0o644) -> Path:
        """Write a file in it and return its path."""
        path = self.path(name)
        path.write_text(text)
        path.chmod(mode)
        return path

    @property
    def ready(self) -> Path:
        """Exists once the cluster can be used."""
        return self.directory / "ready"

    @property
    def kubeconfig(self) -> Path:
        """What the administrator's commands are given."""
        return self.directory / "admin.kubeconfig"

    @property
    def cgroup(self) -> str:
        """The control group of all pods: one for each state directory."""
        return f"forebay-cluster-{zlib.crc32(bytes(self.directory)):08x}"
