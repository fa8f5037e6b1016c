"""Two topics, one on a log directory whose fsync is slow: what the healthy one's producers and heartbeats feel.

Owns a broker of its own with two log directories and slow_fsync.c preloaded, the two topics, the crowd of the
sick one, the healthy one's producers and the heartbeats. Must not know the slow disk of the other arms.
Invariants: both directories lie in memory, so that only the preloaded delay is slow, and are healthy in the
quiet phase; the sick phase begins by a file and ends with it, so that the broker can be stopped; a heartbeat
is late when it is answered after LATE_MS or never.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bench.pollution.arms import FOREBAY, PLAIN
from bench.pollution.figures import latency_between, percentiles
from bench.pollution.lab import BEHIND, LATE_S, MAIN, Crew
from bench.pollution.phases import sleep_until
from bench.pollution.series import NS, read_rows
from bench.stolen import Ticks, read_cpu, share
from tests.kit.broker.kafka import KafkaCluster
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST, Listener
from tests.kit.broker.topics import create_topic
from tests.kit.sidecar import Sidecar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.demo.progress import Progress
    from bench.pollution.again import Again

SOURCE = Path(__file__).with_name("slow_fsync.c")
SICK_MS = 1000
CROWD, CROWD_RATE = 16, 5
HEALTHY, HEALTHY_RATE = 4, 50
QUIET_S, SICK_S, JOIN_S = 15.0, 25.0, 5.0
HEARTBEAT_EVERY_S, LATE_MS = 0.5, 1000.0
HEARTBEAT = 12
IO_THREADS = 8
MEMORY = "/dev/shm"  # a file system whose own fsync costs nothing


class Ward(NamedTuple):
    """The broker with its two topics; `marker`: the file whose presence makes the one sick."""

    broker: KafkaCluster
    sick: str
    healthy: str
    marker: Path
    forebay_port: int


@contextlib.contextmanager
def open_ward(directory: Path) -> Iterator[Ward]:
    """The broker, both directories healthy. Raises BrokerFailed, subprocess.CalledProcessError."""
    library, marker = directory / "slow_fsync.so", directory / "sick"
    subprocess.run(
        [
            "cc",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
            "-o",
            library,
            SOURCE,
            "-ldl",
        ],
        check=True,
    )
    folders = [directory / "good", directory / "bad"]
    with contextlib.ExitStack() as stack:
        lease = lease_port()
        stack.callback(lease.release)
        broker = KafkaCluster(
            listeners=[Listener(MAIN), Listener(BEHIND, advertised=(HOST, lease.port))],
            overrides={"log.dirs": ",".join(map(str, folders)), "num.io.threads": IO_THREADS},
            directory=directory / "broker",
        )
        preloaded = {
            "LD_PRELOAD": str(library),
            "SICK_DIRECTORY": f"{folders[1]}/",
            "SICK_WHILE": str(marker),
        }
        stack.callback(broker.__exit__, None, None, None)
        with _environment(preloaded | {"SICK_MS": str(SICK_MS)}):
            broker.__enter__()
        stack.callback(marker.unlink, missing_ok=True)
        yield Ward(broker, *_place_topics(broker, folders), marker, lease.port)


def run_isolation(ward: Ward, directory: Path, *, forebay: bool) -> dict[str, Any]:
    """One arm: quiet, then sick. LoadFailed."""
    if not forebay:
        host, port = ward.broker.address(MAIN)
        return _measure(ward, f"{host}:{port}", directory)
    host, port = ward.broker.address(BEHIND)
    entry = {"listen": f"{HOST}:{ward.forebay_port}", "upstream": f"{host}:{port}"}
    settings = {"accessLog": {"directory": None}, "isolation": {"enabled": True}}
    with Sidecar([entry], settings, supervisor=None) as sidecar:
        return _measure(ward, sidecar.bootstrap, directory)


def run_rounds(rounds: int, again: Again, progress: Progress) -> list[dict[str, Any]]:
    """The broker alone and with Forebay, by turns; each round's figures."""
    found = []
    with tempfile.TemporaryDirectory(dir=MEMORY) as scratch, open_ward(Path(scratch)) as ward:
        for number in range(1, rounds + 1):
            for forebay in (number % 2 == 0, number % 2 == 1):
                arm = FOREBAY if forebay else PLAIN
                progress.step(f"round {number} of {rounds}: one sick topic, one healthy: {arm}")
                figures = again.run(partial(_run_round, ward, scratch, number, arm))
                found.append(figures)
                quiet, sick = (
                    figures[f"healthy_{phase}_ms"].get("p99") for phase in ("quiet", "sick")
                )
                late = f"{figures['heartbeats_late']} heartbeats late"
                progress.step(f"healthy produce p99 {quiet} -> {sick} ms, {late}")
    return found


def _run_round(ward: Ward, scratch: str, number: int, arm: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=scratch) as rows:
        return {
            "round": number,
            "arm": arm,
            **run_isolation(ward, Path(rows), forebay=arm == FOREBAY),
        }


def _measure(ward: Ward, bootstrap: str, directory: Path) -> dict[str, Any]:
    start_ns = time.monotonic_ns() + int(JOIN_S * NS)
    sick_ns = start_ns + int(QUIET_S * NS)
    end_ns = sick_ns + int(SICK_S * NS)
    times = ["--bootstrap", bootstrap, "--start-ns", str(start_ns), "--end-ns", str(end_ns)]
    crowd = [
        "crowding",
        *times,
        "--topic",
        ward.sick,
        "--producers",
        str(CROWD),
        "--rate",
        str(CROWD_RATE),
    ]
    beats: list[tuple[int, float]] = []
    heart = threading.Thread(target=beat, args=(bootstrap, start_ns, end_ns, beats), daemon=True)
    with Crew(directory / "load.log") as crew:
        crew.start([*crowd, "--out", str(directory / "crowd")])
        for number in range(HEALTHY):
            words = ["producing", *times, "--topic", ward.healthy, "--client", f"healthy-{number}"]
            words += ["--size", "1024", "--partitions", "1", "--rate", str(HEALTHY_RATE)]
            crew.start([*words, "--out", str(directory / f"healthy-{number}")])
        heart.start()
        try:
            ticks = [read_cpu_at(start_ns), read_cpu_at(sick_ns)]
            ward.marker.touch()
            ticks.append(read_cpu_at(end_ns))
            crew.finish(LATE_S)
        finally:
            ward.marker.unlink(missing_ok=True)
    heart.join(LATE_MS / 1000 + 1)
    stolen = {"quiet": share(*ticks[:2]), "sick": share(*ticks[1:])}
    return build_isolation(directory, beats, start_ns, sick_ns, end_ns) | {"stolen": stolen}


def read_cpu_at(at_ns: int) -> Ticks:
    """The processors' time when the monotonic clock has come to `at_ns`."""
    sleep_until(at_ns)
    return read_cpu()


def build_isolation(
    directory: Path, beats: list[tuple[int, float]], start_ns: int, sick_ns: int, end_ns: int
) -> dict[str, Any]:
    """Latencies in ms of both topics in both phases; heartbeats sent in the sick phase and those late."""
    healthy = np.concatenate([read_rows(directory / f"healthy-{n}", 3) for n in range(HEALTHY)])
    crowd = read_rows(directory / "crowd", 3)
    waits = [wait_ms for sent_ns, wait_ms in beats if sent_ns >= sick_ns]
    expected = int((end_ns - sick_ns) / NS / HEARTBEAT_EVERY_S) - 1
    return {
        "healthy_quiet_ms": percentiles(latency_between(healthy, start_ns, sick_ns)),
        "healthy_sick_ms": percentiles(latency_between(healthy, sick_ns, end_ns)),
        "crowd_quiet_ms": percentiles(latency_between(crowd, start_ns, sick_ns)),
        "crowd_sick_ms": percentiles(latency_between(crowd, sick_ns, end_ns)),
        "heartbeats": len(waits),
        "heartbeats_late": sum(wait_ms > LATE_MS for wait_ms in waits)
        + max(expected - len(waits), 0),
        "heartbeat_max_ms": round(max(waits, default=0.0), 1),
    }


def beat(bootstrap: str, start_ns: int, end_ns: int, beats: list[tuple[int, float]]) -> None:
    """Heartbeat v0 of a group that does not exist, on a connection of its own: the way to the broker counts.

    Appends (due in ns, answered after ms of being due); those that never were are missing.
    """
    host, port = bootstrap.split(":")
    head = struct.pack(">hhih4s", HEARTBEAT, 0, 1, 4, b"beat")
    frame = head + struct.pack(">h4sih4s", 4, b"beat", 0, 4, b"none")
    with (
        contextlib.suppress(OSError, struct.error),
        socket.create_connection((host, int(port)), 5) as sock,
        sock.makefile("rb") as file,
    ):
        sock.settimeout((end_ns - time.monotonic_ns()) / NS + 5)
        for due_ns in range(start_ns, end_ns, int(HEARTBEAT_EVERY_S * NS)):
            time.sleep(max(0.0, (due_ns - time.monotonic_ns()) / NS))
            sock.sendall(struct.pack(">i", len(frame)) + frame)
            file.read(struct.unpack(">i", file.read(4))[0])
            beats.append((due_ns, (time.monotonic_ns() - due_ns) / 1e6))


def _place_topics(broker: KafkaCluster, folders: list[Path]) -> tuple[str, str]:
    """Create topics until each directory has one (LogManager takes the one with fewest); the sick, the healthy."""
    found: dict[Path, str] = {}
    number = 0
    while len(found) < len(folders):
        name = f"orders-{number}"
        create_topic(broker.direct, name, config={"flush.messages": "1"})
        found |= {folder: name for folder in folders if (folder / f"{name}-0").is_dir()}
        number += 1
    return found[folders[1]], found[folders[0]]


@contextlib.contextmanager
def _environment(words: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in words}
    os.environ.update(words)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
