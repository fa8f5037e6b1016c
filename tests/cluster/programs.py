"""Runs the cluster's programs. [process]

Owns how a program of the cluster is started, its log and its process id on file, and how its start is awaited. Must not
know which programs there are.
"""

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.cluster.layout import ClusterError, State, find_kube

POLL_S = 0.1
COMMAND_S = 300.0
"""Time that a command may take which is awaited."""


def run(
    command: Sequence[str | Path], *, timeout_s: float = COMMAND_S, stdin: str | None = None
) -> str:
    """Run a command and return its output. Raises ClusterError with what it said if it fails."""
    try:
        done = subprocess.run(
            [str(word) for word in command],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{command[0]} has not ended after {timeout_s:g} s") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-4000:]
        raise ClusterError(f"{' '.join(map(str, command))[:400]}: {said}")
    return done.stdout


def start(state: State, name: str, command: Sequence[str | Path]) -> None:
    """Start a program that runs until the cluster ends."""
    with state.path("log", f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    state.path("pid", name).write_text(str(process.pid))


def wait_until(what: str, is_done: Callable[[], object], timeout_s: float) -> None:
    """Ask until `is_done` returns something true and raises no ClusterError. Raises ClusterError at the timeout."""
    end = time.monotonic() + timeout_s
    problem = ""
    while True:
        try:
            if is_done():
                return
            problem = "not yet"
        except ClusterError as error:
            problem = str(error)
        if time.monotonic() > end:
            raise ClusterError(f"{what}: not after {timeout_s:g} s: {problem}")
        time.sleep(POLL_S)


def build_kubectl(state: State) -> list[str | Path]:
    """The beginning of a kubectl command for the administrator."""
    return [
        find_kube(),
        "kubectl",
        "--kubeconfig",
        state.kubeconfig,
        "--cache-dir",
        state.path("kubectl-cache"),
    ]
