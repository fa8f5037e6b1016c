"""Workers and the keeper are killed again and again, at any moment under load (`WORKERS=2 make kills KILLS=1000`).

A keeper is killed where a spare process waits, a worker with and without one. Only clients of a killed worker see it.
The others are watched: the longest pause of each in the moment after a kill. Two moments before some kills are the
floor, on a machine that does other things, too: one as it comes, and one in which some interpreter starts, as the next
process does after a kill. Responses from memory are read again from the broker and compared (`cache.verifyRatio` 1).
The broker is shared.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.chaos.leaks import ZERO
from tests.e2e.pauses import Steady, describe
from tests.e2e.raw_frames import build_metadata
from tests.e2e.test_arena_handed_on import OUTCOMES
from tests.e2e.test_supervisor import mismatches
from tests.e2e.test_warm_restart import wait_until
from tests.e2e.test_workers import owner_of
from tests.kit.broker.topics import create_topic
from tests.kit.processes import find_keeper, find_spare, list_children, list_workers
from tests.kit.raw_fetch import RawClient, end_of, explain, read_all
from tests.kit.sidecar import PATIENT_SUPERVISOR, Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

KILLS = int(os.environ.get("KILLS", "4"))
WORKERS = int(os.environ.get("WORKERS", "2"))
SEED = int(os.environ.get("SEED", random.randrange(1 << 31)))
KILLS_A_FLOOR = 4
"""Kills until the floor is looked at again."""
A_ROUND = 25
"""Kills under clients that begin together."""
CLIENTS = 2
"""Of each worker."""
LOOK_S = 0.5
"""Before and after a kill."""
LONGEST_S = 0.5
"""Between the end of a look without a kill and the kill."""
LIMIT_S = 0.2
"""A pause that a client of another process may have."""
GO_ON = 5
"""Turns of each client before the next kill."""
KEEPER_SHARE = 1 / 3
STARTING = sys.executable, "-c", "import proxy.app"
"""What a kill is followed by in any case: a process that takes a processor for as long as it starts."""
TORN = "ending, since workers still send what an earlier keeper left"
"""A keeper whose predecessor was killed within a change ends once more, by SIGABRT, and the next one begins empty."""
UNEQUAL = re.compile("memory (served other bytes|told a read_committed client)")
SETTINGS = {
    "cache": {"size": "64MiB", "verifyRatio": 1.0},
    "supervisor": PATIENT_SUPERVISOR,
    "isolation": {"clientQuotas": [{"pattern": "*", "inFlight": "64KiB", "fetchRate": "1GiB"}]},
}


@pytest.fixture
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(shared=proxied, settings={**SETTINGS, "workers": WORKERS}) as running:
        yield running


class Killing:
    """The kills of one Forebay, and what came of each."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._random = random.Random(SEED)
        self._clients: dict[int, list[Steady]] = {}
        self._broken: list[Steady] = []
        self.kills: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.before_s: list[float] = []
        self.starting_s: list[float] = []
        self.after_s: dict[str, list[float]] = {"worker": [], "keeper": []}
        self.accepted_s: list[float] = []
        self.hits_after_s: list[float] = []
        self.hits_after_attached_s: list[float] = []
        self.verified = 0.0

    # -- the clients -------------------------------------------------------------------------------

    def _fill(self, stack: ExitStack) -> None:
        """Have CLIENTS clients at work on each worker."""
        sidecar = self._pair.sidecar
        wait_until("all are there", lambda: self._metric("forebay_workers_attached") == WORKERS)
        pids = list_workers(sidecar)
        self._clients = {pid: self._clients.get(pid, []) for pid in pids}
        added = []
        while min(map(len, self._clients.values())) < CLIENTS:
            client = RawClient(self._pair.through)
            client.call(build_metadata())
            owner = owner_of(client, pids)
            if len(self._clients[owner]) >= CLIENTS:
                client.close()
                continue
            stack.enter_context(client)
            added.append(self._begin(client))
            self._clients[owner].append(added[-1])
        for one in added:
            one.start()
        self._wait_for_turns(GO_ON)

    def _begin(self, client: RawClient) -> Steady:
        """A client in place of one whose connection was broken, or a new one."""
        if self._broken:
            former = self._broken.pop()
            return Steady(client, former.topic, former)
        return Steady(client, create_topic(self._pair.direct))

    @property
    def _all(self) -> list[Steady]:
        return [one for each in self._clients.values() for one in each]

    def _wait_for_turns(self, turns: int) -> None:
        aims = [(one, one.turns + turns) for one in self._all]
        wait_until(
            "all go on", lambda: all(one.turns >= aim or one.ended is not None for one, aim in aims)
        )
        assert not any(one.ended for one in self._all), [one.ended for one in self._all]

    def _metric(self, name: str, *labels: str) -> float:
        """-1 while nobody answers."""
        try:
            return self._pair.sidecar.metrics().get((name, *labels), 0)
        except OSError:
            return -1

    # -- a kill ------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill a worker or the keeper at some moment."""
        sidecar = self._pair.sidecar
        if self.kills.total() % KILLS_A_FLOOR == 0:
            self.before_s += self._look()
            with subprocess.Popen(STARTING):
                self.starting_s += self._look()
        assert mismatches(sidecar) == 0
        self.verified += self._metric("forebay_verify_samples_total", "equal")
        keeper = find_keeper(sidecar)
        assert keeper is not None
        is_keeper = self._random.random() < KEEPER_SHARE
        if is_keeper:
            wait_until("a spare process waits", lambda: find_spare(sidecar) is not None)
        time.sleep(self._random.uniform(0, LONGEST_S))
        victim = keeper if is_keeper else self._random.choice(list(self._clients))
        os.kill(victim, signal.SIGKILL)
        killed_at = time.monotonic()
        killed = "keeper" if is_keeper else "worker"
        self.kills[killed] += 1
        broken = self._clients.pop(victim, [])
        self._connect(killed_at)
        wait_until("its clients see it", lambda: all(one.ended for one in broken))
        assert all(isinstance(one.ended, ConnectionError) for one in broken), broken
        self._broken += broken
        self._watch(killed_at, killed)
        if is_keeper:
            self._wait_for_hits(killed_at)
        wait_until("it is counted", partial(self._is_counted, killed))
        wait_until("it is replaced", partial(self._is_replaced, victim))

    def _look(self) -> list[float]:
        """The longest pauses within the next LOOK_S, without a kill."""
        looked_at = time.monotonic()
        time.sleep(LOOK_S)
        self._wait_for_turns(1)
        return [one.find_longest(looked_at, looked_at + LOOK_S)[0] for one in self._all]

    def _connect(self, killed_at: float) -> None:
        """A client that comes just now is served by others, or by whoever comes next."""
        with RawClient(self._pair.through) as client:
            client.call(build_metadata())
            self.accepted_s.append(time.monotonic() - killed_at)

    def _watch(self, killed_at: float, killed: str) -> None:
        """Look at the clients of others."""
        time.sleep(max(0.0, killed_at + LOOK_S - time.monotonic()))
        self._wait_for_turns(1)
        for one in self._all:
            longest_s, produce_s = one.find_longest(killed_at, killed_at + LOOK_S)
            self.after_s[killed].append(longest_s)
            if longest_s > LIMIT_S:
                where = f"{1000 * produce_s:.0f} of them until the acknowledgement"
                print(f"{killed}: a pause of {1000 * longest_s:.0f} ms, {where}", flush=True)

    def _is_counted(self, killed: str) -> bool:
        wanted = self.kills[killed] + (self._count_torn() if killed == "keeper" else 0)
        return self._metric(f"forebay_{killed}_restarts_total", "signal") == wanted

    def _count_torn(self) -> int:
        """Keepers that found half a change."""
        return self._pair.sidecar.log_path.read_text().count(TORN)

    def _is_replaced(self, victim: int) -> bool:
        children = list_children(self._pair.sidecar.pid)
        return victim not in children and len(children) == WORKERS + 1

    def _wait_for_hits(self, killed_at: float) -> None:
        """Memory serves again."""
        wait_until("all are back", lambda: self._metric("forebay_workers_attached") == WORKERS)
        attached_at, before = time.monotonic(), self._count_hits()
        wait_until("memory serves again", lambda: self._count_hits() > before)
        self.hits_after_s.append(time.monotonic() - killed_at)
        self.hits_after_attached_s.append(time.monotonic() - attached_at)
        decided = [
            one for one in OUTCOMES if self._metric("forebay_cache_takeovers_total", one) == 1
        ]
        self.outcomes.update(decided or ["begun anew"])

    def _count_hits(self) -> float:
        return self._pair.sidecar.fetch_counts().get(("hit", ""), 0)

    # -- a round -----------------------------------------------------------------------------------

    def run_round(self, kills: int) -> None:
        """So many kills. Nothing is booked for anybody afterwards, and what was read is what the broker has."""
        with ExitStack() as stack:
            for _ in range(kills):
                self._fill(stack)
                self.kill()
            self._fill(stack)
            lives = self._all
            for one in lives:
                one.stop()
            self._clients = {}
        assert not any(one.ended for one in lives)
        self._check_bytes(lives)
        wait_until("nothing is booked", lambda: not self._list_booked())
        metrics = self._pair.sidecar.metrics()
        for name in ("worker", "keeper"):
            ends = [
                metrics[f"forebay_{name}_restarts_total", one] for one in ("exit", "hung", "oom")
            ]
            assert not any(ends), (name, ends, self._pair.sidecar.log_tail())
        assert not metrics["forebay_pipes_total",]

    def _list_booked(self) -> list[tuple[str, ...]]:
        metrics = self._pair.sidecar.metrics()
        return [key for key, value in metrics.items() if key[0] in ZERO and value > 0]

    def _check_bytes(self, lives: list[Steady]) -> None:
        for one in lives:
            direct = read_all(self._pair.direct, one.topic)
            read = bytes(one.reader.raw)
            assert direct.startswith(read), explain(read, direct[: len(read)])
            assert read_all(self._pair.through, one.topic, end=end_of(direct)) == direct

    def describe(self) -> str:
        """What was seen so far."""
        return (
            f"seed {SEED}: {dict(self.kills)} killed, {dict(self.outcomes)}, of which {self._count_torn()} within a "
            f"change; {self.verified:.0f} responses equal\n"
            f"  longest pause of others in {LOOK_S} s before a kill: {describe(self.before_s, LIMIT_S)}\n"
            f"  ... while an interpreter starts: {describe(self.starting_s, LIMIT_S)}\n"
            f"  ... after a worker's kill: {describe(self.after_s['worker'], LIMIT_S)}\n"
            f"  ... after the keeper's: {describe(self.after_s['keeper'], LIMIT_S)}\n"
            f"  a new client is answered after: {describe(self.accepted_s, LIMIT_S)}\n"
            f"  hits are back after a keeper's kill: {describe(self.hits_after_s, 2)}\n"
            f"  ... after its successor has all workers: {describe(self.hits_after_attached_s, 2)}"
        )


def test_workers_and_the_keeper_are_killed_at_any_moment(pair: Pair) -> None:
    killing = Killing(pair)
    while (done := killing.kills.total()) < KILLS:
        killing.run_round(min(A_ROUND, KILLS - done))
        print(killing.describe(), flush=True)
    assert killing.verified > 0
    assert not killing.outcomes["damaged"]
    assert pair.sidecar.stop() == 0
    log = pair.sidecar.log_path.read_text()
    assert "Traceback" not in log
    assert not UNEQUAL.search(log)
