"""The machine at work: the broker on its slow disk, a Forebay where the arm has one, the load processes.

Owns what runs, and that one broker with one backlog serves all arms: between arms its memory is set anew, its
pages dropped and its disk left to calm down. Must not know what is measured. Invariants: the broker is in its
group from its first page; clients reach it by MAIN (advertised as itself), Forebay by BEHIND (advertised as
Forebay) and CATCHUP is its second listener; no arm starts while the disk is still busy with the last.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from confluent_kafka import Consumer, TopicPartition

from bench.pollution.arms import Arm, Sizes, broker_memory, build_listener, build_settings
from bench.pollution.groups import Group
from bench.pollution.host import LIMITED, Disk, drop_pages, open_disk
from bench.pollution.sampling import scan_diskstats
from tests.kit.broker.kafka import KafkaCluster
from tests.kit.broker.ports import lease_port
from tests.kit.broker.process import die_with_parent
from tests.kit.broker.settings import HOST, Listener
from tests.kit.broker.topics import create_topic
from tests.kit.sidecar import Sidecar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[2]
TOPIC = "orders"
MAIN, BEHIND, CATCHUP = "MAIN", "BEHIND", "CATCHUP"
OVERRIDES = {
    "num.network.threads": 3,
    "num.io.threads": 8,
    "log.retention.ms": -1,
    "log.retention.check.interval.ms": 3_600_000,
    "offsets.topic.num.partitions": 1,
}
CALM_UTIL, CALM_S, CALM_TIMEOUT_S = 0.1, 1.0, 90.0
LATE_S = 25.0  # a load process may take this much longer than planned
FILL_WITHIN_S = 1800.0
SWEEP_S, DISK_SLACK, DISK_SPARE_BYTES = 120, 1.1, 1 << 30


class LoadFailed(RuntimeError):
    """A load process ended with an error; the message is what it printed."""


class Way(NamedTuple):
    """Where an arm's clients connect, and its Forebay."""

    bootstrap: str
    laggards: str
    sidecar: Sidecar | None


class Lab:
    """Broker, disk and backlog of one run. Use `open_lab`."""

    def __init__(
        self, sizes: Sizes, disk: Disk, group: Group, broker: KafkaCluster, port: int
    ) -> None:
        self.sizes = sizes
        self.disk = disk
        self.group = group
        self.broker = broker
        self.forebay_port = port
        self.ends: list[int] = []
        self._arms = 0

    def fill(self) -> None:
        """Write the backlog, with all the memory and speed there is."""
        sizes = self.sizes
        self.group.limit_memory(2 * sizes.memory_bytes)
        create_topic(self.broker.direct, TOPIC, partitions=sizes.partitions)
        command = [
            "producing",
            "--bootstrap",
            self.broker.direct,
            "--topic",
            TOPIC,
            "--client",
            "fill",
        ]
        command += ["--partitions", str(sizes.partitions), "--size", str(sizes.record_bytes)]
        command += ["--fill-bytes", str(sizes.backlog_bytes)]
        with Crew(self.disk.mount / "fill.log") as crew:
            crew.start(command)
            crew.finish(FILL_WITHIN_S)
        reader = Consumer({"bootstrap.servers": self.broker.direct, "group.id": "ends"})
        self.ends = [
            reader.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=30)[1]
            for partition in range(sizes.partitions)
        ]
        reader.close()
        if self.disk.backing:
            self.group.limit_reads(self.disk.backing, sizes.read_limit)

    @contextlib.contextmanager
    def arm(self, arm: Arm) -> Iterator[Way]:
        """Cold pages, the arm's memory, and its Forebay."""
        drop_pages(self.disk.mount)
        self.group.limit_memory(broker_memory(arm, self.sizes))
        self.wait_calm()
        self._arms += 1
        if not arm.forebay:
            yield Way(self._address(MAIN), self._address(CATCHUP if arm.lane else MAIN), None)
            return
        settings = build_settings(arm, self.sizes, self.disk.name)
        listen = f"{HOST}:{self.forebay_port}"
        entry = build_listener(arm, listen, self._address(BEHIND), self._address(CATCHUP))
        with Sidecar([entry], settings, supervisor=None) as sidecar:
            yield Way(sidecar.bootstrap, sidecar.bootstrap, sidecar)

    @property
    def skip(self) -> float:
        """Where in their stretch laggards begin: another place in each arm, should a page be left."""
        return self._arms % 3 / 3

    def wait_calm(self) -> None:
        """Until the disk has been idle for a second; whatever an arm left undone is then done."""
        deadline = time.monotonic() + CALM_TIMEOUT_S
        before = self._busy_ms()
        while time.monotonic() < deadline:
            time.sleep(CALM_S)
            after = self._busy_ms()
            if after - before < CALM_UTIL * CALM_S * 1000:
                return
            before = after

    def _busy_ms(self) -> int:
        sample = scan_diskstats(Path("/proc/diskstats").read_text(), self.disk.name, 0)
        return sample.busy_ms if sample else 0

    def _address(self, listener: str) -> str:
        host, port = self.broker.address(listener)
        return f"{host}:{port}"


@contextlib.contextmanager
def open_lab(sizes: Sizes, produced_s: float, kind: str, directory: Path) -> Iterator[Lab]:
    """Disk (`kind`: PACED or LIMITED) with room for the producer's records of so long, group and broker, without the
    backlog.

    All of it is gone at the end.
    """
    with contextlib.ExitStack() as stack:
        disk = open_disk(stack, kind, directory, disk_bytes(sizes, produced_s), sizes.read_limit)
        group = Group(wanted_controllers(kind))
        stack.callback(group.close)
        group.limit_memory(sizes.memory_bytes)
        lease = lease_port()
        stack.callback(lease.release)
        broker = KafkaCluster(
            listeners=[
                Listener(MAIN),
                Listener(BEHIND, advertised=(HOST, lease.port)),
                Listener(CATCHUP),
            ],
            overrides=OVERRIDES,
            heap_mb=sizes.heap_mb,
            directory=disk.mount / "broker",
        )
        stack.push(broker.__exit__)
        with group.inside():
            broker.__enter__()
        yield Lab(sizes, disk, group, broker, lease.port)


def wanted_controllers(kind: str) -> tuple[str, ...]:
    """What the broker's group has to limit, by cgroup v2's names."""
    return ("memory", "io") if kind == LIMITED else ("memory",)


def disk_bytes(sizes: Sizes, produced_s: float) -> int:
    """The image's size, which is sparse: the backlog, and what the producer adds in all arms and the sweep."""
    produced = int((produced_s + SWEEP_S) * sizes.rate * sizes.record_bytes)
    return int((sizes.backlog_bytes + produced) * DISK_SLACK) + DISK_SPARE_BYTES


class Crew:
    """The load processes of one arm. Leaving ends those that still run, whatever happened."""

    def __init__(self, log: Path) -> None:
        """`log`: where they write what they have to say."""
        self._log = log
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()

    def start(self, command: Sequence[str]) -> None:
        """`python -m bench.pollution.<command>`."""
        words = [sys.executable, "-m", f"bench.pollution.{command[0]}", *command[1:]]
        with self._log.open("ab") as out:
            process = subprocess.Popen(
                words, cwd=ROOT, stdout=out, stderr=out, preexec_fn=die_with_parent
            )
        self._processes.append(process)

    def finish(self, within_s: float) -> None:
        """Wait until all have written what they measured. LoadFailed: an error, or too late."""
        deadline = time.monotonic() + within_s
        for process in self._processes:
            try:
                code = process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                code = -1
            if code != 0:
                said = self._log.read_text(errors="replace")[-3000:]
                raise LoadFailed(f"{process.args!r} ended with {code} (-1: too late)\n{said}")
