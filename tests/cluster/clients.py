"""The pod with the clients of load.py, as a test holds it. [process]

Owns the pod, the directory by which it is told and asked, and the rows of what clients saw. Must not know what is
done to the brokers meanwhile.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.cluster.cluster import Cluster
from tests.cluster.images import FOREBAY, find_tag
from tests.cluster.layout import HERE, ClusterError
from tests.cluster.programs import wait_until

NAMESPACE = "clients"
RATE = 50
SETTLE_S = 240.0
RESULTS: list["Seen"] = []
"""What clients saw, of all scenarios of this run, in their order."""


class Seen(NamedTuple):
    """What clients saw in one scenario. Times in seconds."""

    scenario: str
    sent: int
    failed: int
    duplicates: int
    slowest: float
    produce_pause: float
    read_pause: float
    warnings: int

    def format_row(self) -> str:
        """A row of the table in the documents."""
        return (
            f"| {self.scenario} | {self.sent:,} | {self.failed} | {self.duplicates} | "
            f"{self.slowest:.1f} | {self.produce_pause:.1f} | {self.read_pause:.1f} | {self.warnings} |"
        )


class Load:
    """A running pod of clients."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def status(self) -> dict[str, Any]:
        """What the clients say now. Raises ClusterError while they have said nothing."""
        try:
            said: dict[str, Any] = json.loads((self._directory / "status.json").read_text())
        except OSError as error:
            raise ClusterError("the clients have not begun") from error
        return said

    def settle(self, records: int = 3 * RATE) -> dict[str, Any]:
        """Wait until that many more records were acknowledged, and all that were acknowledged until then were read.
        Return the status then. Raises ClusterError with the status if it does not come to that.
        """
        wait_until("the clients' begin", self.status, SETTLE_S)
        first = self.status()["acknowledged"] + records
        try:
            wait_until("enough records", lambda: self.status()["acknowledged"] >= first, SETTLE_S)
            held = self.status()["acknowledged"]
            wait_until(
                "reading them",
                lambda: self._is_calm(held),
                SETTLE_S,
            )
        except ClusterError as error:
            raise ClusterError(f"{error}; the clients say {self.status()}") from error
        return self.status()

    def _is_calm(self, held: int) -> bool:
        """Whether `held` records were read, and no more are on their way than those of the last two seconds."""
        now = self.status()
        waiting = now["sent"] - now["acknowledged"] - sum(now["failures"].values())
        return now["read"] >= held and now["unread"] <= 2 * RATE and waiting <= 2 * RATE

    def begin_window(self) -> None:
        """Measure from now on."""
        mark = self.status()["mark"] + 1
        (self._directory / f"mark-{mark}").touch()
        wait_until("a new window", lambda: self.status()["mark"] == mark, SETTLE_S)

    @contextmanager
    def watching(self, scenario: str) -> Iterator[None]:
        """Measure what clients see from the block's begin until they have settled after it. Nothing may fail."""
        before = self.settle()
        self.begin_window()
        yield
        after = self.settle()
        seen = Seen(
            scenario,
            after["acknowledged"] - before["acknowledged"],
            sum(after["failures"].values()) - sum(before["failures"].values()),
            after["duplicates"] - before["duplicates"],
            after["slowest"],
            after["silence"],
            after["read_silence"],
            sum(after["warnings"].values()),
        )
        RESULTS.append(seen)
        print(seen.format_row(), after["warnings"], flush=True)
        assert seen.failed == 0, after

    def finish(self) -> dict[str, Any]:
        """End the producer and wait until every acknowledged record was read: none may be missing."""
        (self._directory / "stop").touch()
        wait_until("the last acknowledgements", self._is_answered, SETTLE_S)
        wait_until("the last records", lambda: self.status()["unread"] == 0, SETTLE_S)
        return self.status()

    def _is_answered(self) -> bool:
        now = self.status()
        return bool(now["acknowledged"] + sum(now["failures"].values()) == now["sent"])


@contextmanager
def running_load(
    cluster: Cluster, name: str, bootstrap: str, topic: str, ca_file: Path | None = None
) -> Iterator[Load]:
    """A pod with a producer and a group of one consumer. At the end nothing that was acknowledged may be missing."""
    directory = cluster.state.path("load", name)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    directory.chmod(0o777)
    (directory / "load.py").write_text((HERE / "load.py").read_text())
    if ca_file is not None:
        shutil.copy(ca_file, directory / "ca.crt")
    cluster.apply(build_namespace(NAMESPACE))
    cluster.apply(
        _build_pod(name, bootstrap, topic, directory, ca_file is not None), namespace=NAMESPACE
    )
    load = Load(directory)
    try:
        yield load
        last = load.finish()
        assert last["unread"] == 0 and last["read"] == last["acknowledged"] == last["sent"], last
    finally:
        said = cluster.kubectl("logs", "-n", NAMESPACE, name, "--tail=30")
        print(said[-3000:])
        cluster.kubectl("delete", "pod", "-n", NAMESPACE, name, "--grace-period=0", "--force")


def build_namespace(name: str, level: str = "privileged") -> dict[str, Any]:
    """A namespace that enforces a level of Pod Security."""
    labels = {"pod-security.kubernetes.io/enforce": level}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def _build_pod(
    name: str, bootstrap: str, topic: str, directory: Path, has_tls: bool
) -> dict[str, Any]:
    told = {"BOOTSTRAP": bootstrap, "TOPIC": topic, "RATE": str(RATE), "DIRECTORY": "/load"}
    if has_tls:
        told["CA_FILE"] = "/load/ca.crt"
    container = {
        "name": "load",
        "image": f"{FOREBAY}:{find_tag()}",
        "command": ["python", "/load/load.py"],
        "env": [{"name": key, "value": value} for key, value in told.items()],
        "volumeMounts": [{"name": "load", "mountPath": "/load"}],
        "resources": {"requests": {"cpu": "20m", "memory": "128Mi"}},
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": "load", "hostPath": {"path": str(directory)}}],
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "restartPolicy": "Never",
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec,
    }
