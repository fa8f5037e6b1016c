"""A worker stands still while it has the arena's lock (SIGSTOP, a debugger, swapped out): others serve all the same.

Responses from memory are read again from the broker and compared (`cache.verifyRatio` 1).
"""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from blockcache._pyfastcache import ffi

from tests.e2e.pauses import Steady
from tests.e2e.test_supervisor import mismatches
from tests.e2e.test_warm_restart import count, wait_until
from tests.e2e.test_workers import attached, check_nothing_stays, has_more_hits, hit_bytes, spread
from tests.kit.broker.topics import create_topic
from tests.kit.raw_fetch import explain, read_all
from tests.kit.sidecar import PATIENT_SUPERVISOR, Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.e2e

WORKERS = 2
TURNS = 20
STOP_WITHIN = """
import ctypes, os, signal, sys
def stop(*_):
    with open("/proc/self/maps") as maps:
        start = next(int(line.split("-")[0], 16) for line in maps if ".arena" in line)
    libc, mutex = ctypes.CDLL(None), ctypes.c_void_p(start + {lock_at})
    assert libc.pthread_mutex_lock(mutex) == 0
    os.kill(os.getpid(), signal.SIGSTOP)
    assert libc.pthread_mutex_unlock(mutex) == 0
if "worker" in sys.orig_argv:
    signal.signal(signal.SIGRTMIN, stop)
"""
"""A sitecustomize: SIGRTMIN stops a process while it has the lock; SIGCONT has it let go."""


class Stopped:
    """A Forebay of which one worker is stopped. `others`: clients of the other one."""

    def __init__(self, pair: Pair, stack: ExitStack) -> None:
        self.pair = pair
        found = {
            pid: [Steady(client, create_topic(pair.direct)) for client in clients[:2]]
            for pid, clients in spread(stack, pair).items()
        }
        self.victim = next(iter(found))
        self.own = found.pop(self.victim)
        (self.others,) = found.values()
        for one in (*self.own, *self.others):
            one.start()
        self.wait_for_turns([*self.own, *self.others])
        before = hit_bytes(pair)
        wait_until("memory serves", lambda: has_more_hits(pair, before))
        os.kill(self.victim, signal.SIGRTMIN)
        wait_until("it is stopped", self.is_stopped)

    def is_stopped(self) -> bool:
        stat = Path(f"/proc/{self.victim}/stat").read_text()
        return stat.rsplit(")", 1)[1].split()[0] == "T"

    def wait_for_turns(self, lives: list[Steady]) -> None:
        aims = {one: one.turns + TURNS for one in lives}
        wait_until("they go on", lambda: all(one.turns >= aim for one, aim in aims.items()))

    def check(self, lives: list[Steady]) -> None:
        """Memory serves them again, what they have read is right, and nothing is held."""
        before = hit_bytes(self.pair)
        wait_until("memory serves again", lambda: has_more_hits(self.pair, before))
        for one in lives:
            one.stop()
            assert one.ended is None
            direct, read = read_all(self.pair.direct, one.topic), bytes(one.reader.raw)
            assert direct.startswith(read), explain(read, direct[: len(read)])
        assert mismatches(self.pair.sidecar) == 0


@pytest.fixture(autouse=True)
def may_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock_at = ffi.offsetof("fc_arena", "lock")
    (tmp_path / "sitecustomize.py").write_text(STOP_WITHIN.format(lock_at=lock_at))
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)


def start(stack: ExitStack, proxied: ProxiedBroker, heartbeat_timeout: str) -> Pair:
    supervisor = PATIENT_SUPERVISOR | {"heartbeatTimeout": heartbeat_timeout}
    cache = {"size": "64MiB", "verifyRatio": 1.0}
    settings = {"cache": cache, "supervisor": supervisor, "workers": WORKERS}
    pair = stack.enter_context(Pair(shared=proxied, settings=settings))
    wait_until("all are attached", lambda: attached(pair) == WORKERS)
    return pair


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def test_others_serve_until_it_goes_on(proxied: ProxiedBroker, stack: ExitStack) -> None:
    pair = start(stack, proxied, "120s")
    with ExitStack() as clients:
        stopped = Stopped(pair, clients)
        stopped.wait_for_turns(stopped.others)
        assert stopped.is_stopped()
        os.kill(stopped.victim, signal.SIGCONT)
        stopped.wait_for_turns(stopped.own)
        stopped.check([*stopped.own, *stopped.others])
    assert pair.sidecar.fetch_counts("partitions").get(("miss", "locked"), 0) > 0
    assert count(pair, "forebay_cache_lock_refusals_total") > 0
    check_nothing_stays(pair)


def test_it_is_killed_for_its_silence_and_replaced(
    proxied: ProxiedBroker, stack: ExitStack
) -> None:
    pair = start(stack, proxied, "3s")
    with ExitStack() as clients:
        stopped = Stopped(pair, clients)
        stopped.wait_for_turns(stopped.others)
        wait_until(
            "it is killed",
            lambda: all(isinstance(one.ended, ConnectionError) for one in stopped.own),
        )
        wait_until("another one is there", lambda: attached(pair) == WORKERS)
        stopped.check(stopped.others)
    assert count(pair, "forebay_worker_restarts_total", "hung") == 1
    check_nothing_stays(pair)
