"""Eight good clients, alone and then beside a crowd of hostile ones: `python -m tests.chaos.hostile --minutes 10`.

Owns the broker with a Forebay, the good clients and the judgement: not one of them meets an error, what they wrote is
read, Forebay's memory and descriptors stay within their bounds, and nothing of the crowd is left behind. The first good
client's requests stand in the queue of the topic that the crowd reads. A long run also judges the good clients' p99: at
most MOST_TIMES the quiet one. Four more clients work at the broker itself all the while. Where broker or machine
make those slower too, their p99 beside the crowd stands for the quiet one. A short run only says the figures.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from isolation.classify import queue_of_topic
from tests.chaos.leaks import ZERO
from tests.kit.broker.certificates import write_certificates
from tests.kit.broker.kafka import KafkaCluster
from tests.kit.broker.ports import lease_port
from tests.kit.broker.process import die_with_parent
from tests.kit.broker.settings import HOST, Listener
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import FetchFailed, RawClient, RawReader
from tests.kit.sidecar import Sidecar
from tests.protocol.batches import batch_v2

if TYPE_CHECKING:
    from collections.abc import Callable

GOOD = 8
PAUSE_S = 0.05
"""Of a good client between two batches."""
AT_THE_BROKER = 4
"""Clients that do the same at the broker itself, at the same time."""
ROUND_S = 10.0, 30.0
"""Of each round: without the crowd, and beside it."""
WARM_UP_S = 3.0
DATA_QUEUES = 16
"""`isolation.dataQueues` by default."""
OWN = 8
"""Descriptors that Forebay may open for itself meanwhile: the pipe to splice by, own connections. A crowd that
is not let go of leaves hundreds.
"""
LARGE_RECORDS, LARGE_BYTES = 110, 500_000
PATIENCE_S = 60.0
MOST_TIMES = 2.0
"""By how much the good clients' p99 may grow."""
LIMITS_BYTES = (128 + 256) << 20
"""`limits.requestMemory` and `limits.responseMemory` as they are by default."""
MOST_BEYOND_BYTES = 64 << 20


def find_name_beside(topic: str) -> str:
    """A new topic's name whose requests stand in the same queue."""
    queue = queue_of_topic(topic, DATA_QUEUES)
    names = (f"beside-{uuid.uuid4().hex}" for _ in itertools.count())
    return next(name for name in names if queue_of_topic(name, DATA_QUEUES) == queue)


class Good(threading.Thread):
    """Writes a batch and reads it at the tail, again and again; `taken` are the seconds of each time."""

    def __init__(self, address: str, topic: str, pause_s: float) -> None:
        super().__init__(daemon=True)
        self._address, self._topic, self._pause_s = address, topic, pause_s
        self._over = threading.Event()
        self.taken: list[float] = []
        self.error = ""

    def finish(self) -> None:
        self._over.set()
        self.join(PATIENCE_S)

    def run(self) -> None:
        try:
            with RawClient(self._address) as writer, RawClient(self._address) as client:
                self._work(writer, RawReader(client, self._topic).settle())
        except (OSError, FetchFailed, AssertionError) as failed:
            self.error = f"{type(failed).__name__}: {failed}"

    def _work(self, writer: RawClient, reader: RawReader) -> None:
        while not self._over.is_set():
            before = time.monotonic()
            end = writer.produce(self._topic, batch_v2(1)) + 1
            while reader.offset < end:
                reader.poll(1000)
            self.taken.append(time.monotonic() - before)
            self._over.wait(self._pause_s)


class Phase:
    """Measurements of one kind of rounds: the seconds that the good clients' deeds took, through Forebay and at the
    broker itself (`direct`), and `errors`.
    """

    def __init__(self) -> None:
        self.taken: list[float] = []
        self.direct: list[float] = []
        self.errors: list[str] = []

    def add(self, clients: list[Good], direct: list[Good]) -> None:
        """They have finished."""
        self.taken += [took for one in clients for took in one.taken]
        self.direct += [took for one in direct for took in one.taken]
        self.errors += [one.error for one in clients if one.error]
        self.errors += [f"at the broker itself: {one.error}" for one in direct if one.error]
        self.errors += ["a good client came to no end" for one in clients if one.is_alive()]
        if sum(len(one.taken) for one in clients) < GOOD:
            self.errors.append("the good clients did next to nothing")

    @property
    def p99_s(self) -> float:
        return find_cut_s(self.taken, 99)

    @property
    def direct_p99_s(self) -> float:
        return find_cut_s(self.direct, 99)

    def tell(self) -> str:
        """Percentiles, in words."""
        p50_s = find_cut_s(self.taken, 50)
        return (
            f"p50 {p50_s * 1000:.1f} ms, p99 {self.p99_s * 1000:.1f} ms "
            f"(at the broker itself p99 {self.direct_p99_s * 1000:.1f} ms)"
        )


def find_cut_s(taken: list[float], percent: int) -> float:
    """The percentile; 0.0 of fewer than two."""
    return statistics.quantiles(taken, n=100)[percent - 1] if len(taken) > 1 else 0.0


class HostileRun:
    """One run, in rounds, so that a machine's bad moments meet both phases alike. After `run`: `problems`; its phases
    `quiet` and `beside`; how often each kind was at work, `crowd`.
    """

    def __init__(
        self,
        seed: int,
        minutes: float,
        say: Callable[[str], None] = print,
        pause_s: float = PAUSE_S,
    ) -> None:
        """`pause_s`: of each good client between two batches."""
        self._seed, self._say, self._pause_s = seed, say, pause_s
        self._rounds = max(1, round(minutes * 60 / sum(ROUND_S)))
        self.quiet, self.beside = Phase(), Phase()
        self.crowd: Counter[str] = Counter()
        self.growth_bytes = self._most_bytes = 0
        self.problems: list[str] = []

    def run(self) -> list[str]:
        lease, tls_lease = lease_port(), lease_port()
        listener = Listener("CLIENT", advertised=(HOST, lease.port))
        with tempfile.TemporaryDirectory() as held, KafkaCluster(listeners=[listener]) as broker:
            server = write_certificates(Path(held)).server
            host, port = broker.address("CLIENT")
            plain = {"listen": f"{HOST}:{lease.port}", "upstream": f"{host}:{port}"}
            tls = {"certificateFile": str(server.certificate), "keyFile": str(server.key)}
            encrypted = plain | {"name": "tls", "listen": f"{HOST}:{tls_lease.port}", "tls": tls}
            with Sidecar(
                [plain, encrypted], {"log": {"level": "warning"}}, [lease, tls_lease]
            ) as sidecar:
                self._work(broker.direct, sidecar, f"{HOST}:{tls_lease.port}")
        return self.problems

    def _work(self, direct: str, sidecar: Sidecar, tls_address: str) -> None:
        large = create_topic(direct)
        with RawClient(direct) as writer:
            for _ in range(LARGE_RECORDS):
                writer.produce(large, batch_v2(1, value=b"x" * LARGE_BYTES))
        beside = find_name_beside(large)
        names = [beside, *(None for _ in range(GOOD - 1))]
        goods = [(sidecar.bootstrap, create_topic(direct, name)) for name in names]
        at_the_broker = [(direct, create_topic(direct)) for _ in range(AT_THE_BROKER)]
        addresses = (sidecar.bootstrap, tls_address, f"{HOST}:{sidecar.admin_port}", large)
        quiet_s, beside_s = ROUND_S
        self._watch(self.quiet, sidecar, goods, at_the_broker, WARM_UP_S)
        self.quiet = Phase()
        before, opened = sidecar.resident_bytes, sidecar.descriptors
        for number in range(self._rounds):
            self._watch(self.quiet, sidecar, goods, at_the_broker, quiet_s)
            crowd = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.chaos.hostile_crowd",
                    *addresses,
                    f"{self._seed}/{number}",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                preexec_fn=die_with_parent,
            )
            assert crowd.stdout is not None
            crowd.stdout.readline()
            self._watch(self.beside, sidecar, goods, at_the_broker, beside_s)
            said, _ = crowd.communicate(timeout=2 * PATIENCE_S)
            self.crowd.update(json.loads(said))
            self._say(f"round {number + 1} of {self._rounds}: {self._tell()}")
        self.growth_bytes = self._most_bytes - before
        self._judge(sidecar, opened)

    def _watch(
        self,
        phase: Phase,
        sidecar: Sidecar,
        goods: list[tuple[str, str]],
        at_the_broker: list[tuple[str, str]],
        seconds: float,
    ) -> None:
        """The clients (addresses and topics) at work for so long; the most that Forebay held of memory meanwhile is
        noted.
        """
        clients = [Good(*one, self._pause_s) for one in goods]
        direct = [Good(*one, self._pause_s) for one in at_the_broker]
        for one in clients + direct:
            one.start()
        until = time.monotonic() + seconds
        while time.monotonic() < until and not all(one.error for one in clients):
            self._most_bytes = max(self._most_bytes, sidecar.resident_bytes)
            time.sleep(0.2)
        for one in clients + direct:
            one.finish()
        phase.add(clients, direct)

    def _judge(self, sidecar: Sidecar, opened: int) -> None:
        self.problems += [f"alone: {error}" for error in self.quiet.errors]
        self.problems += [f"beside the crowd: {error}" for error in self.beside.errors]
        self.problems += [
            f"{kind} was never at work" for kind, times in self.crowd.items() if not times
        ]
        if self.growth_bytes > LIMITS_BYTES + MOST_BEYOND_BYTES:
            self.problems.append(f"memory grew by {self.growth_bytes >> 20} MiB")
        deadline, left = time.monotonic() + PATIENCE_S, {"": 1.0}
        while left and time.monotonic() < deadline:
            left = {k[0]: v for k, v in sidecar.metrics().items() if k[0] in ZERO and v}
            if not left and sidecar.descriptors > opened + OWN:
                left = {"descriptors": sidecar.descriptors - opened - OWN}
            time.sleep(0.2)
        self.problems += [f"left behind: {name} {value:g}" for name, value in left.items()]
        self._say(f"{self._tell()}; memory grew by {self.growth_bytes >> 20} MiB")
        self._say("at work: " + ", ".join(f"{kind} {times}" for kind, times in self.crowd.items()))

    def _tell(self) -> str:
        return f"alone {self.quiet.tell()}; beside the crowd {self.beside.tell()}, {self.ratio:.2f} times"

    @property
    def ratio(self) -> float:
        """The good clients' p99 beside the crowd, in their quiet one, or in that of the clients at the broker itself
        beside the crowd where that is more.
        """
        base_s = max(self.quiet.p99_s, self.beside.direct_p99_s)
        return self.beside.p99_s / base_s if base_s else float("inf")


def main() -> int:
    """The exit code: 1 where a good client was harmed."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.hostile")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=10)
    given = parser.parse_args()
    run = HostileRun(given.seed, given.minutes)
    problems = run.run()
    if run.ratio > MOST_TIMES:
        problems.append(f"the good clients' p99 is {run.ratio:.2f} times the quiet one")
    print("\n".join(problems) or "no good client was harmed", flush=True)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
