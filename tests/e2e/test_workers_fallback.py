"""No worker of several can run: the supervisor pipes clients to the broker; while one runs, it does not."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.e2e.raw_frames import Raw, build_metadata
from tests.e2e.test_supervisor import VERIFIED, at_work, fallback
from tests.e2e.test_warm_restart import count, wait_until
from tests.e2e.test_workers import attached
from tests.e2e.test_workers_signals import count_or_none
from tests.kit.processes import find_keeper, list_workers
from tests.kit.sidecar import PATIENT_SUPERVISOR, Pair, ProxiedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.e2e

WORKERS = 2
TIMEOUT = "3s"
SETTINGS = {
    **VERIFIED,
    "workers": WORKERS,
    "supervisor": PATIENT_SUPERVISOR
    | {"heartbeatTimeout": TIMEOUT, "crashLimit": 2, "pipeMaxAge": "0s"},
}


REFUSING = """
import os, pickle, socket, sys

def refuse(fd):
    handover = pickle.loads(os.pread(fd, 1 << 24, 0))
    with open({refusal!r}) as roles:
        if handover["role"] in roles.read().split():
            os._exit(3)

def take(*of, take=socket.recv_fds):
    taken = take(*of)
    if taken[1] and os.path.exists({refusal!r}):
        refuse(taken[1][0])
    return taken

if "--spare" in sys.orig_argv:
    socket.recv_fds = take
elif "worker" in sys.orig_argv and os.path.exists({refusal!r}):
    refuse(int(sys.orig_argv[-1]))
"""


@pytest.fixture
def refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Processes of the roles that this file names end at their start."""
    made = tmp_path / "refused"
    (tmp_path / "sitecustomize.py").write_text(REFUSING.format(refusal=str(made)))
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    return made


@pytest.fixture
def pair(proxied: ProxiedBroker, refusal: Path) -> Iterator[Pair]:
    assert not refusal.exists()
    with Pair(shared=proxied, settings=SETTINGS) as running:
        wait_until("all are attached", lambda: attached(running) == WORKERS)
        yield running


def count_hung(pair: Pair) -> float:
    return count_or_none(pair, "forebay_worker_restarts_total", "hung")


def tells_fallback(pair: Pair) -> bool:
    """Whether the keeper says so, which alone knows of attached workers."""
    try:
        metrics = pair.sidecar.metrics()
    except OSError:
        return False
    return ("forebay_workers_attached",) in metrics and metrics["forebay_fallback",] == 1


def check_piped(pair: Pair, refusal: Path) -> None:
    """Clients are piped until workers run again; a pipe that is too old then ends."""
    with at_work(pair) as (writer, reader), Raw(pair.through) as piped:
        assert piped.call(build_metadata())
        assert pair.sidecar.is_ready(), "clients are served"
        assert count(pair, "forebay_pipes") >= 1
        refusal.unlink()
        wait_until("workers run again", lambda: fallback(pair.sidecar) == 0)
        assert piped.ends(), "its pipe is closed"
        wait_until("all are attached", lambda: attached(pair) == WORKERS)
        writer.wait_for_more()
        reader.wait_for_more()
    wait_until("no pipe is left", lambda: count(pair, "forebay_pipes") == 0)


def test_a_crash_loop_of_all_pipes_clients(pair: Pair, refusal: Path) -> None:
    """The keeper's, too."""
    refusal.write_text("keeper worker")
    keeper = find_keeper(pair.sidecar)
    assert keeper is not None
    for pid in (keeper, *list_workers(pair.sidecar)):
        os.kill(pid, signal.SIGKILL)
    wait_until("clients are piped", lambda: fallback(pair.sidecar) == 1)
    check_piped(pair, refusal)


def test_a_crash_loop_of_the_workers_is_told_by_the_keeper(pair: Pair, refusal: Path) -> None:
    """It answers at the admin port: the alert looks there. It is another one, since the cache was dropped."""
    refusal.write_text("worker")
    for pid in list_workers(pair.sidecar):
        os.kill(pid, signal.SIGKILL)
    wait_until("clients are piped", lambda: fallback(pair.sidecar) == 1)
    wait_until("a keeper answers", lambda: count_or_none(pair, "forebay_keeper_ready") == 1)
    wait_until("it tells so", lambda: tells_fallback(pair))
    check_piped(pair, refusal)


def test_workers_without_a_heartbeat_are_killed_and_clients_piped(
    pair: Pair, refusal: Path
) -> None:
    refusal.write_text("worker")
    for pid in list_workers(pair.sidecar):
        os.kill(pid, signal.SIGSTOP)
    wait_until("clients are piped", lambda: fallback(pair.sidecar) == 1)
    wait_until("a keeper tells why", lambda: count_hung(pair) == WORKERS)
    check_piped(pair, refusal)


def test_nobody_is_piped_while_one_worker_runs(pair: Pair, refusal: Path) -> None:
    with at_work(pair) as (writer, reader):
        refusal.write_text("worker")
        os.kill(list_workers(pair.sidecar)[0], signal.SIGSTOP)
        wait_until("it is killed", lambda: count_hung(pair) == 1)
        wait_until("others fail", lambda: count(pair, "forebay_worker_restarts_total", "exit") > 3)
        writer.wait_for_more()
        reader.wait_for_more()
        assert fallback(pair.sidecar) == 0
        refusal.unlink()
        wait_until("there are two", lambda: attached(pair) == WORKERS)
    assert count(pair, "forebay_pipes_total") == 0
