"""Runs clients directly and through Forebay, on one broker after another, and collects what they saw.

Owns the processes of the clients, the pair of broker and Forebay, and the reading of sessions and access log. Must
not know what a programme does. Invariants: every client is run, or left out with a reason; runs have names of their
own, so that none finds another's topics.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.kit.broker.process import die_with_parent
from tests.kit.log_lines import unfold
from tests.kit.sidecar import PATIENT_CACHE, Pair
from tests.matrix.builds import ROOT, Program, Unavailable
from tests.matrix.compare import FAILED, Cell, compare, scan_lines
from tests.matrix.hits import Share, sum_by_topic
from tests.matrix.programme import EXACTLY_ONCE, TAIL, TAIL_COMMITTED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.matrix.clients import Client

RUN_TIMEOUT_S = 300.0
LEAST_SHARE = 0.5
"""Of the tail reads' bytes from memory: a producer's first batches and the first read come from the broker."""
OVERRIDES = {
    "group.coordinator.rebalance.protocols": "classic,consumer",
    "group.consumer.heartbeat.interval.ms": 500,
    "group.consumer.min.heartbeat.interval.ms": 500,
}
SAMPLE_S = 0.1
NOTHING = Share(0, 0)


class Outcome(NamedTuple):
    """One client on one broker. `cells`: step -> verdict; `sessions`: fetch sessions it held with Forebay at once."""

    client: str
    version: str
    broker: str
    left_out: str = ""
    cells: dict[str, Cell] = {}  # noqa: RUF012
    tail: Share = NOTHING
    committed: Share = NOTHING
    sessions: int = 0
    took_s: float = 0.0

    def failures(self) -> list[str]:
        """What is not as it should be, in words; a client that was left out has none."""
        found = [
            f"{step}: {cell.verdict}: {cell.note}"
            for step, cell in self.cells.items()
            if cell.verdict in FAILED
        ]
        for step, share in (
            (TAIL, self.tail),
            (TAIL_COMMITTED, self.committed),
            (EXACTLY_ONCE, self.committed),
        ):
            verdict = self.cells.get(step)
            if (
                verdict is not None
                and verdict.verdict == "equal"
                and (share.share or 0.0) < LEAST_SHARE
            ):
                found.append(f"{step}: {share.hit_bytes} of {share.all_bytes} bytes from memory")
        return [f"{self.client} on {self.broker}: {one}" for one in found]


class Ran(NamedTuple):
    """A client's two runs: its verdicts, the name of the run through Forebay, and what was sampled meanwhile."""

    client: Client
    run: str
    cells: dict[str, Cell]
    sessions: int
    took_s: float


def run_program(
    program: Program, bootstrap: str, run: str, steps: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Step -> line of one run. What it says on stderr is shown where it fails."""
    child = subprocess.Popen(
        [*program.command, bootstrap, run, *steps],
        cwd=ROOT,
        env={**os.environ, **program.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        preexec_fn=die_with_parent,
    )
    ending = ""
    try:
        printed, complaints = child.communicate(timeout=RUN_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        printed, complaints = child.communicate()
        ending = f"killed after {RUN_TIMEOUT_S:.0f} s"
    lines = scan_lines(printed, run)
    if ending or child.returncode != 0 or any("error" in line for line in lines.values()):
        print(complaints[-3000:], ending)
    return lines


def watch_sessions(pair: Pair, ended: threading.Event, depths: list[int]) -> None:
    """Samples how many fetch sessions clients hold."""
    while not ended.wait(SAMPLE_S):
        depths.append(int(pair.sidecar.metrics()["forebay_queue_depth", "fetch_sessions"]))


def run_client(client: Client, program: Program, pair: Pair, steps: Sequence[str]) -> Ran:
    """Both runs of one client, side by side."""
    begun = time.monotonic()
    run = uuid.uuid4().hex[:10]
    depths = [int(pair.sidecar.metrics()["forebay_queue_depth", "fetch_sessions"])]
    ended = threading.Event()
    with ThreadPoolExecutor(3) as pool:
        pool.submit(watch_sessions, pair, ended, depths)
        ways = ((pair.direct, f"d{run}"), (pair.through, f"t{run}"))
        both = [pool.submit(run_program, program, *way, steps) for way in ways]
        try:
            direct, through = (one.result() for one in both)
        finally:
            ended.set()
    cells = compare(steps, direct, through, client.limits_on(pair.broker.version))
    return Ran(client, f"t{run}", cells, max(depths) - depths[0], time.monotonic() - begun)


def run_broker(
    version: str, clients: Sequence[Client], only: Sequence[str], say: Callable[[str], None]
) -> list[Outcome]:
    """All clients on one broker. `only`: steps, or none for all that a client has."""
    cluster = {"version": version, "overrides": OVERRIDES}
    ran: list[Ran] = []
    outcomes: list[Outcome] = []
    with (
        tempfile.TemporaryDirectory(prefix="forebay-matrix-") as folder,
        Pair(cluster, {"cache": PATIENT_CACHE}) as pair,
    ):
        for client in clients:
            try:
                program = client.build(Path(folder))
            except Unavailable as missing:
                outcomes.append(
                    Outcome(client.name, client.version, version, left_out=str(missing))
                )
                say(f"{client.name} on {version}: left out: {missing}")
                continue
            steps = [step for step in client.steps if not only or step in only]
            ran.append(run_client(client, program, pair, steps))
            wrong = [
                f"{step}: {cell.verdict}: {cell.note}"
                for step, cell in ran[-1].cells.items()
                if cell.note
            ]
            say("\n  ".join([f"{client.name} on {version}: {ran[-1].took_s:.0f} s", *wrong]))
        assert pair.sidecar.stop() == 0
        shares = sum_by_topic(unfold(pair.sidecar.access_lines()))
    for one in ran:
        tail = shares.get((f"{one.run}-{TAIL}", 0), NOTHING)
        committed = shares.get((f"{one.run}-{TAIL_COMMITTED}", 1), NOTHING)
        who = one.client.name, one.client.version, version
        outcomes.append(Outcome(*who, "", one.cells, tail, committed, one.sessions, one.took_s))
    order = [client.name for client in clients]
    return sorted(outcomes, key=lambda outcome: order.index(outcome.client))
