"""The cluster as commands and tests use it: up, down, kubectl, helm. [process]

Owns the processes that hold a cluster, and the ways into it. Must not know how a node comes up (node.py) nor what is
tested. Invariants: a cluster that was started here ends with `down`, its state directory with it.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tests.cluster.control_plane import Place, start_control_plane
from tests.cluster.layout import ROOT, ClusterError, State, find_helm
from tests.cluster.node import remove_cgroups, remove_state
from tests.cluster.programs import COMMAND_S, build_kubectl, run, wait_until

Object = dict[str, Any]
UP_S = 300.0
LOOPBACK_PORT = 26443
NAMESPACES = ["--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--mount-proc"]


def find_obstacle() -> str:
    """Why this machine cannot run a node, or "": root, namespaces and overlays are needed."""
    if os.getuid() != 0:
        return "a node needs root"
    # Two directories apart, as the packages will lie over /usr: newer kernels refuse one that is named twice.
    overlay = "mount -t overlay overlay -o lowerdir=/etc:/usr /mnt"
    probe = ["unshare", *NAMESPACES, "--propagation", "private", "sh", "-c", overlay]
    done = subprocess.run(probe, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        return f"unshare or overlay is denied here: {done.stderr.strip()[-200:]}"
    return ""


class Cluster:
    """A cluster by its state directory. `has_node`: False for the API server alone, on the loopback."""

    def __init__(self, state: State, has_node: bool = True) -> None:
        self.state = state
        self.has_node = has_node

    def up(self) -> None:
        """Start the cluster. Raises ClusterError if it is up, or does not come up."""
        if self.state.directory.exists():
            raise ClusterError(f"{self.state.directory} exists: `down` first")
        self.state.path("log", "-")
        self.state.path("pid", "-")
        self.state.directory.chmod(0o700)
        if self.has_node:
            self._start_node()
        else:
            os.umask(0o022)
            start_control_plane(self.state, Place("127.0.0.1", "127.0.0.1", LOOPBACK_PORT))
            self.state.ready.touch()

    def _start_node(self) -> None:
        command = ["unshare", *NAMESPACES, "--propagation", "private", sys.executable]
        command += ["-m", "tests.cluster.node", str(self.state.directory)]
        with self.state.path("log", "node.log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        end = time.monotonic() + UP_S
        while not self.state.ready.exists():
            if process.poll() is not None or time.monotonic() > end:
                process.kill()
                said = self.state.path("log", "node.log").read_text()[-3000:]
                raise ClusterError(f"the node did not come up: {said}")
            time.sleep(0.1)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        self.state.path("pid", "first").write_text(children[0])

    @property
    def is_up(self) -> bool:
        """True if its first process runs."""
        return self.state.ready.exists() and (not self.has_node or self._is_ours(self._first))

    @property
    def _first(self) -> int:
        return int(self.state.path("pid", "first").read_text())

    def _is_ours(self, pid: int) -> bool:
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            return any(bytes(self.state.directory) in word for word in words)
        return False

    def down(self) -> None:
        """End the cluster and remove its state. Nothing happens where there is none."""
        pids = self.state.directory / "pid"
        first = pids / "first"
        for path in [first] if first.exists() else pids.glob("*"):
            pid = int(path.read_text())
            if self._is_ours(pid):
                os.kill(pid, signal.SIGKILL)
                wait_until("the end", partial(self._has_ended, pid), 60)
        remove_cgroups(self.state)
        remove_state(self.state)

    def _has_ended(self, pid: int) -> bool:
        return not self._is_ours(pid)

    def enter(self, command: Sequence[str | Path]) -> list[str]:
        """The command as run in the node's namespaces, where pods, Services and their names are reached."""
        words = [str(word) for word in command]
        if not self.has_node:
            return words
        within = ["--mount", "--uts", "--ipc", "--net", "--pid", f"--wd={ROOT}"]
        return ["nsenter", f"--target={self._first}", *within, "--", *words]

    def run(
        self, *command: str | Path, stdin: str | None = None, timeout_s: float = COMMAND_S
    ) -> str:
        """Run a command there; its output. Raises ClusterError."""
        return run(self.enter(command), stdin=stdin, timeout_s=timeout_s)

    def kubectl(self, *words: str, stdin: str | None = None, timeout_s: float = COMMAND_S) -> str:
        """Run kubectl; its output. Raises ClusterError."""
        return self.run(*build_kubectl(self.state), *words, stdin=stdin, timeout_s=timeout_s)

    def helm(self, *words: str, timeout_s: float = COMMAND_S) -> str:
        """Run helm; its output. Raises ClusterError."""
        home = self.state.path("helm")
        known = [f"HELM_{name}_HOME={home}" for name in ("CACHE", "CONFIG", "DATA")]
        command: list[str | Path] = ["env", *known, find_helm()]
        command += ["--kubeconfig", self.state.kubeconfig, *words]
        return self.run(*command, timeout_s=timeout_s)

    def get(self, *words: str) -> Object:
        """An object, or a list of them, as `kubectl get` gives it in JSON."""
        found: Object = json.loads(self.kubectl("get", "-o", "json", *words))
        return found

    def apply(self, *objects: Object, namespace: str = "default") -> None:
        """Apply objects. The server validates them strictly."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        flags = ["--server-side", "--force-conflicts", "--validate=strict"]
        self.kubectl("apply", "-n", namespace, *flags, "-f", "-", stdin=text)

    def load(self, archive: Path) -> None:
        """Give an image's archive to the node."""
        self.run("ctr", "-n", "k8s.io", "images", "import", archive)
