"""Fills the cache: the binaries, the unpacked packages. [process, network]

Owns what is fetched and compiled, each skipped where it is there. Must not know a running cluster, nor images.
Invariants: a file or directory of the cache appears by one rename, complete; one process fills the cache at a time.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.layout import (
    HELM_VERSION,
    HERE,
    ClusterError,
    find_cache,
    find_helm,
    find_kube,
    find_kube_version,
    find_packages,
)
from tests.cluster.programs import run

PACKAGES = (
    "containerd",
    "runc",
    "containernetworking-plugins",
    "nftables",
    "buildah",
    "mmdebstrap",
)
COMPILE_S = 7200.0
NICE = ["nice", "-n", "10"]


@contextmanager
def filling_cache() -> Iterator[Path]:
    """Hold the cache's lock; gives the cache."""
    cache = find_cache()
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield cache


def list_missing() -> list[str]:
    """What must be on the machine and is not: one line for each."""
    commands = {
        "go": "Go 1.24 or newer compiles Kubernetes: go.dev/dl",
        "openssl": "openssl makes keys: apt-get install openssl",
        "gcc": "gcc compiles the pause program: apt-get install gcc",
    }
    return [line for name, line in commands.items() if not _find_command(name)]


def _find_command(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/local/go/bin")


def build_kube() -> None:
    """Compile Kubernetes and etcd into one binary: ten minutes on two cores."""
    version = find_kube_version()
    parts = {"gitVersion": version, "gitMajor": "1", "gitMinor": version.split(".")[1]}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    flags = [
        f"-X {package}.{name}={value}"
        for package in packages
        for name, value in {**parts, "gitTreeState": "clean"}.items()
    ]
    linker = " ".join(("-s -w", *flags))
    arguments = ["build", "-p", "2", "-trimpath", "-mod=readonly", "-ldflags", linker]
    _compile(find_kube(), [*arguments, "-o", "{target}", "."])


def build_helm() -> None:
    """Compile the helm command."""
    package = f"helm.sh/helm/v3/cmd/helm@{HELM_VERSION}"
    _compile(find_helm(), ["install", "-p", "2", "-trimpath", "-ldflags", "-s -w", package])


def _compile(target: Path, arguments: list[str]) -> None:
    if target.exists():
        return
    cache, go = find_cache(), _find_command("go")
    if go is None:
        raise ClusterError("there is no go command")
    with tempfile.TemporaryDirectory(dir=cache) as output:
        built = Path(output) / "helm"  # the name that `go install` gives it, too
        environment = {
            **os.environ,
            "GOBIN": output,
            "GOCACHE": str(cache / "go" / "build"),
            "GOMODCACHE": str(cache / "go" / "mod"),
            "GOFLAGS": "-modcacherw -buildvcs=false",
            "CGO_ENABLED": "0",
        }
        words = [word.format(target=built) for word in arguments]
        done = subprocess.run(
            [*NICE, go, *words],
            cwd=HERE / "kube",
            env=environment,
            capture_output=True,
            text=True,
            timeout=COMPILE_S,
            check=False,
        )
        if done.returncode:
            raise ClusterError(f"go {words[0]}: {done.stderr[-4000:]}")
        built.replace(target)


def drop_compiled() -> None:
    """Remove what Go compiled and fetched: 3 GB that only a change of version needs again."""
    shutil.rmtree(find_cache() / "go", ignore_errors=True)


def unpack_packages() -> None:
    """Fetch Debian's packages, and of their dependencies what is not installed here; unpack, install nothing."""
    target = find_packages()
    if target.exists():
        return
    planned = run(["apt-get", "install", "--simulate", "--no-install-recommends", *PACKAGES])
    names = [line.split()[1] for line in planned.splitlines() if line.startswith("Inst ")]
    with tempfile.TemporaryDirectory(dir=find_cache()) as directory:
        root = Path(directory) / "root"
        root.mkdir()
        fetch = ["apt-get", "download", "-o", "APT::Sandbox::User=root", *names]
        done = subprocess.run(
            fetch, cwd=directory, capture_output=True, text=True, timeout=900, check=False
        )
        if done.returncode:
            raise ClusterError(f"apt-get download: {done.stderr[-2000:]}")
        for package in sorted(Path(directory).glob("*.deb")):
            run(["dpkg", "-x", package, root])
        root.chmod(0o755)
        root.rename(target)
