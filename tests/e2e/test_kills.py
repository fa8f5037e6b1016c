"""A worker is killed again and again, at any moment under load (`make kills KILLS=1000`; a few times without).

Responses from memory are read again from the broker and compared (`cache.verifyRatio` 1). The broker is shared. What a
kill leaves within a change of the arena is looked at after each store in tests/blockcache/native/stepping.c.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from contextlib import ExitStack
from statistics import quantiles
from typing import TYPE_CHECKING

import pytest

from tests.chaos.leaks import ZERO
from tests.e2e.raw_frames import Raw, build_metadata
from tests.e2e.test_arena_handed_on import OUTCOMES
from tests.e2e.test_supervisor import VERIFIED, at_work, mismatches, restarts
from tests.e2e.test_warm_restart import count, wait_until
from tests.kit.sidecar import PATIENT_SUPERVISOR, Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

KILLS = int(os.environ.get("KILLS", "4"))
SEED = int(os.environ.get("SEED", random.randrange(1 << 31)))
A_ROUND = 25
"""Kills under the same clients, which read their topic from its beginning then."""
CLIENTS = 2
"""Producers, and as many consumers."""
LONGEST_S = 0.5
"""Between the moment when all clients work and the next kill."""
GOES_ON = 20
"""Records that each client moves after a kill."""


@pytest.fixture
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    """Kills from outside are no crash loop, however soon one follows another."""
    with Pair(shared=proxied, settings={**VERIFIED, "supervisor": PATIENT_SUPERVISOR}) as running:
        yield running


class Killing:
    """The kills of one Forebay, and what came of each."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._random = random.Random(SEED)
        self.kills = 0
        self.outcomes: Counter[str] = Counter()
        self.pauses_s: list[float] = []
        self.verified = 0.0

    def kill(self) -> None:
        """Kill the worker at some moment. Its connections break, once; nobody is refused meanwhile."""
        sidecar = self._pair.sidecar
        with Raw(self._pair.through) as before:
            assert before.call(build_metadata())
            time.sleep(self._random.uniform(0, LONGEST_S))
            assert mismatches(sidecar) == 0
            self.verified += count(self._pair, "forebay_verify_samples_total", "equal")
            os.kill(sidecar.worker_pid, signal.SIGKILL)
            killed_at = time.monotonic()
            self.kills += 1
            assert before.ends()
        with Raw(self._pair.through) as after:
            assert after.call(build_metadata())
            self.pauses_s.append(time.monotonic() - killed_at)
            wait_until("it is replaced", lambda: restarts(sidecar, "signal") == self.kills)
            wait_until("the next worker", sidecar.is_ready)
            wait_until("it has decided", lambda: bool(self._list_decisions()))
            self.outcomes.update(self._list_decisions())
            assert after.call(build_metadata()), "connections break once"

    def _list_decisions(self) -> list[str]:
        return [
            one for one in OUTCOMES if count(self._pair, "forebay_cache_takeovers_total", one) == 1
        ]

    def run_round(self, kills: int) -> None:
        """So many kills under the same clients. Nothing is booked for them afterwards."""
        with ExitStack() as stack:
            clients = [stack.enter_context(at_work(self._pair)) for _ in range(CLIENTS)]
            for _ in range(kills):
                self.kill()
                for writer, reader in clients:
                    writer.wait_for_more(GOES_ON)
                    reader.wait_for_more(GOES_ON)
        wait_until("nothing is booked", lambda: not self._list_booked())
        metrics = self._pair.sidecar.metrics()
        ends = {
            reason: metrics["forebay_worker_restarts_total", reason]
            for reason in ("exit", "hung", "oom")
        }
        assert not any(ends.values()), ends
        assert not metrics["forebay_pipes_total",]

    def _list_booked(self) -> list[tuple[str, ...]]:
        metrics = self._pair.sidecar.metrics()
        return [key for key, value in metrics.items() if key[0] in ZERO and value > 0]


def test_a_worker_is_killed_at_any_moment(pair: Pair) -> None:
    killing = Killing(pair)
    while killing.kills < KILLS:
        killing.run_round(min(A_ROUND, KILLS - killing.kills))
        pauses = quantiles(killing.pauses_s, n=100) if killing.kills > 1 else killing.pauses_s
        print(
            f"seed {SEED}: {killing.kills} kills, {dict(killing.outcomes)}, {killing.verified:.0f} responses equal,"
            f" clients wait {1000 * pauses[len(pauses) // 2]:.0f} ms at the median, {1000 * pauses[-1]:.0f} at p99",
            flush=True,
        )
    assert killing.verified > 0
    assert killing.outcomes["taken-over"] > 0, killing.outcomes
    assert pair.sidecar.stop() == 0
    assert "Traceback" not in pair.sidecar.log_path.read_text()
