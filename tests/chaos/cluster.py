"""Three brokers, a Forebay beside each, and wires on both sides of every Forebay.

Owns their start, their end and how they are reached: each broker's CLIENT listener advertises the front wire
of its own Forebay, whose upstream is the back wire of that broker. Must not know what clients do. Invariants:
addresses stay the same through every restart; a process belongs to the thread that started it last, which
must live as long as the run.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import time
from typing import TYPE_CHECKING, NamedTuple, Self

from tests.chaos.wire import Wire
from tests.kit.broker.kafka import KafkaCluster
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST, Listener
from tests.kit.processes import find_keeper, list_children, list_targets, list_workers
from tests.kit.sidecar import Sidecar, SidecarFailed

if TYPE_CHECKING:
    import random
    from pathlib import Path
    from types import TracebackType

NODES = 3
HEAP_MB = 256
RESTART_TIMEOUT_S = 20.0
IDLE_TIMEOUT_S, IDLE_LOOKS, LOOK_PAUSE_S = 60.0, 5, 0.2
LISTENER = "CLIENT"
OVERRIDES = {
    "default.replication.factor": NODES,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": NODES,
    "transaction.state.log.replication.factor": NODES,
    "transaction.state.log.min.isr": 2,
    "auto.create.topics.enable": "false",
    "broker.session.timeout.ms": 6000,
    "broker.heartbeat.interval.ms": 1000,
    "replica.lag.time.max.ms": 10_000,
    "auto.leader.rebalance.enable": "false",
    "log.cleaner.backoff.ms": 1000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 2000,
    "group.min.session.timeout.ms": 6000,
    "group.consumer.session.timeout.ms": 15_000,
    "group.consumer.min.session.timeout.ms": 10_000,
}


MAPPED = re.compile(r"memfd:forebay-partitions|\.arena\b")


class Idle(NamedTuple):
    """What a Forebay holds that nobody uses: file descriptors without those of its own links to the broker, with the
    file of its access log, which it opens a moment after it is ready.
    """

    descriptors: int


class Sidecars:
    """The whole: `through` for clients, `direct` for who judges."""

    def __init__(
        self, directory: Path, cache_size: str, workers: int, *, bypass: bool = False
    ) -> None:
        """Logs of all processes stay in `directory`. `cache_size` and `workers`: of each Forebay. `bypass`: front wires
        lead to the brokers, for comparison.
        """
        self.directory = directory
        self.workers = workers
        self._settings = {
            "cache": {"size": cache_size, "verifyRatio": 1.0},
            "log": {"level": "info", "format": "text"},
            "workers": workers,
        }
        self.bypass = bypass
        self._stack = contextlib.ExitStack()
        self.cluster: KafkaCluster
        self.sidecars: dict[int, Sidecar] = {}
        self.front: dict[int, Wire] = {}
        self.back: dict[int, Wire] = {}
        self.idle: dict[int, Idle] = {}

    @property
    def nodes(self) -> range:
        return range(1, NODES + 1)

    @property
    def direct(self) -> str:
        """Bootstrap servers past everything."""
        return self.cluster.direct

    @property
    def through(self) -> str:
        """Bootstrap servers through Forebay."""
        return ",".join(wire.address for wire in self.front.values())

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _start(self) -> None:
        leases = {node: self._stack.enter_context(lease_port()) for node in self.nodes}
        ports = {node: self._stack.enter_context(lease_port()).port for node in self.nodes}
        for node, lease in leases.items():
            self.front[node] = self._stack.enter_context(Wire(lease.port, (HOST, ports[node])))
        advertised = {node: (HOST, lease.port) for node, lease in leases.items()}
        cluster = KafkaCluster(
            NODES,
            listeners=[Listener(LISTENER, advertised=advertised)],
            overrides=OVERRIDES,
            heap_mb=HEAP_MB,
            directory=self.directory,
        )
        self.cluster = self._stack.enter_context(cluster)
        for node, port in ports.items():
            wire = self._stack.enter_context(Wire(0, cluster.address(LISTENER, node)))
            self.back[node] = wire
            if self.bypass:
                self.front[node].target = cluster.address(LISTENER, node)
            entry = {"listen": f"{HOST}:{port}", "upstream": wire.address}
            sidecar = Sidecar(
                [entry], self._settings, supervisor=None
            )  # one that hangs is replaced
            self.sidecars[node] = self._stack.enter_context(sidecar)
            self.idle[node] = measure_idle(sidecar, self.workers)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.keep_logs()
        self._stack.__exit__(kind, error, trace)

    def keep_logs(self) -> None:
        """Forebay's logs, and what it served to whom, beside the brokers'."""
        for node, sidecar in self.sidecars.items():
            with contextlib.suppress(OSError):
                (self.directory / f"forebay-{node}.log").write_bytes(sidecar.log_path.read_bytes())
                shutil.copytree(
                    sidecar.log_directory, self.directory / f"access-{node}", dirs_exist_ok=True
                )

    def restart_forebay(self, node: int) -> None:
        """As `kill -9` of supervisor and worker. Not ready in time is no failure: its broker may be away."""
        self.sidecars[node].stop(signal.SIGKILL)
        try:
            self.sidecars[node].start(RESTART_TIMEOUT_S)
        except SidecarFailed as failed:
            if failed.exit_code is not None:
                raise

    def descriptors(self, node: int) -> int:
        """How many file descriptors a Forebay has open, its supervisor's not counted."""
        return count_descriptors(self.sidecars[node])

    def signal_worker(self, node: int, rng: random.Random, number: signal.Signals) -> str:
        """To one of the workers; which. Nothing where that is being replaced just now."""
        sidecar = self.sidecars[node]
        if self.workers == 1:
            sidecar.signal_worker(number)
            return f"the worker of Forebay {node}"
        return signal_one(rng.choice(list_workers(sidecar) or [None]), number, f"Forebay {node}")

    def signal_keeper(self, node: int, number: signal.Signals) -> str:
        """As `signal_worker`, of several workers' keeper."""
        return signal_one(find_keeper(self.sidecars[node]), number, f"the keeper of Forebay {node}")


def signal_one(pid: int | None, number: signal.Signals, what: str) -> str:
    if pid is None:
        return f"{what}: is being replaced"
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    return f"{what}, process {pid}"


def count_descriptors(sidecar: Sidecar) -> int:
    """Of all its processes but the supervisor; but for mapped memory that a keeper shows: a former one's goes with what
    closed connections knew of it, which is garbage in cycles.
    """
    found = [one for pid in list_children(sidecar.pid) for one in list_targets(pid)]
    return sum(MAPPED.search(one) is None for one in found)


def is_whole(sidecar: Sidecar, workers: int) -> bool:
    """Whether each process has opened its access log, and the keeper has all workers."""
    processes = 1 if workers == 1 else workers + 1
    if len({path.name.split("-")[2] for path in sidecar.log_directory.iterdir()}) < processes:
        return False
    return workers == 1 or sidecar.metrics().get(("forebay_workers_attached",), 0) == workers


def is_back(sidecar: Sidecar, workers: int) -> bool:
    """Whether all its processes are at work again after faults."""
    try:
        has_cache = ("forebay_cache_evictions_total", "room") in sidecar.metrics()
        return sidecar.is_ready() and has_cache and is_whole(sidecar, workers)
    except OSError:
        return False


def measure_idle(sidecar: Sidecar, workers: int) -> Idle:
    """The least of some looks: the question after the links is a connection of its own for a moment."""
    deadline = time.monotonic() + IDLE_TIMEOUT_S
    while not is_whole(sidecar, workers):
        if time.monotonic() > deadline:
            raise SidecarFailed(f"has opened no access log:\n{sidecar.log_tail()}", None)
        time.sleep(LOOK_PAUSE_S)
    looks = []
    for _ in range(IDLE_LOOKS):
        links = int(sidecar.metrics()["forebay_upstream_connections",])
        time.sleep(LOOK_PAUSE_S)
        looks.append(count_descriptors(sidecar) - links)
    return Idle(min(looks))
