"""Forebay as a process among others: who holds the arena, and who outlives whom.

Owns processes and what they leave behind; must not know what passes through them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.raw_frames import Raw, build_fetch, build_metadata, fetched, read_batch, warm_up
from tests.e2e.raw_frames import build_produce as produce
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST
from tests.kit.broker.topics import create_topic
from tests.kit.sidecar import Pair, ProxiedBroker, Sidecar, SidecarFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0
OTHER_HOST = "127.0.0.2"
"""Also the loopback: the same port there is free, and the arena's file is named by the port alone."""
RUNNER = """
import sys, time
from tests.kit.sidecar import Sidecar
sidecar = Sidecar([{"listen": sys.argv[1], "upstream": sys.argv[2]}], {"cache": {"size": "16MiB"}})
sidecar.start()
print(sidecar.directory, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def pair(proxied: ProxiedBroker) -> Iterator[Pair]:
    with Pair(shared=proxied) as running:
        yield running


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        (HOST, r"stopped: .*listener default cannot listen at .*: Address already in use"),
        (
            OTHER_HOST,
            "cannot start: .* by a Forebay whose first listener has the same port at another",
        ),
    ],
    ids=["same address", "same port elsewhere"],
)
def test_a_second_forebay_takes_neither_port_nor_arena_of_the_first(
    pair: Pair, host: str, reason: str
) -> None:
    """It says so and ends with 1; the first goes on serving from the same memory."""
    topic = create_topic(pair.direct)
    batch = read_batch(pair)
    port = pair.through.rpartition(":")[2]
    upstream = "{}:{}".format(*pair.broker.address("CLIENT"))
    with Raw(pair.through) as connection, Raw(pair.through) as writer:
        warm_up(pair.sidecar, connection, topic)
        connection.send(build_fetch(topic, 0, 20_000))
        with pytest.raises(SidecarFailed, match=reason) as refused:
            Sidecar([{"listen": f"{host}:{port}", "upstream": upstream}]).__enter__()
        assert refused.value.exit_code == 1
        assert "Traceback" not in str(refused.value)
        assert Path(f"/dev/shm/forebay-{port}.arena").exists(), (
            "the first one's file is still there"
        )
        writer.call(produce(topic, batch, -1))
        answer = connection.take()
        found = fetched(answer)
        assert answer[found.start : found.end][12:] == batch[12:], (
            "the fetch that was parked meanwhile"
        )
        assert pair.sidecar.is_ready()


def test_an_arena_left_by_a_killed_process_is_taken_over(pair: Pair) -> None:
    upstream = "{}:{}".format(*pair.broker.address("CLIENT"))
    with lease_port() as lease:
        entry = {"listen": f"{HOST}:{lease.port}", "upstream": upstream}
        with Sidecar([entry]) as killed:
            assert killed.stop(signal.SIGKILL) == -signal.SIGKILL
            arena = Path(f"/dev/shm/forebay-{lease.port}.arena")
            assert arena.exists()
            with Sidecar([entry]) as again, Raw(again.bootstrap) as client:
                assert client.call(build_metadata())
            assert not arena.exists(), "who stops in order leaves nothing behind"


def test_a_worker_without_its_supervisor_ends_in_order(pair: Pair) -> None:
    """Another supervisor finds port and arena free."""
    upstream = "{}:{}".format(*pair.broker.address("CLIENT"))
    with lease_port() as lease:
        arena = Path(f"/dev/shm/forebay-{lease.port}.arena")
        with Sidecar([{"listen": f"{HOST}:{lease.port}", "upstream": upstream}]) as orphaning:
            os.kill(orphaning.pid, signal.SIGKILL)
            orphaning.wait_for_log("the supervisor is gone: stopping")
            wait_until(lambda: not arena.exists(), "its arena is gone")


def test_forebay_ends_with_the_test_that_started_it(pair: Pair) -> None:
    """A runner that is killed leaves no process and no arena."""
    upstream = "{}:{}".format(*pair.broker.address("CLIENT"))
    with lease_port() as lease:
        command = [sys.executable, "-c", RUNNER, f"{HOST}:{lease.port}", upstream]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as runner:
            assert runner.stdout is not None
            said = runner.stdout.readline().split()
            log_path = Path(said[0], "forebay.log")
            runner.kill()
        arena = Path(f"/dev/shm/forebay-{lease.port}.arena")
        wait_until(lambda: not arena.exists(), "its arena is gone")
        wait_until(lambda: "stopped" in log_path.read_text(), "it ended in order")
        shutil.rmtree(log_path.parent)
