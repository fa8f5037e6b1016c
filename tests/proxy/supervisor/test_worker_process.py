"""A child's life: it becomes ready, ends by itself, by a signal, or for its silence."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from proxy.sockets import bind_all
from proxy.supervisor.figures import RESTARTS, Figures
from proxy.supervisor.handover import ConfigInForce, Handover
from proxy.supervisor.launch import launch
from proxy.supervisor.worker_process import WorkerEnd, WorkerProcess
from tests.proxy.supervisor.configured import build_config, count_descriptors

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.config.keys import KeyPath
    from proxy.config.model import Config
    from proxy.sockets import Sockets

PATIENCE_S = 60.0
READ = "import os, sys, time; from proxy.supervisor.handover import read_handover; "
READ += "given = read_handover(int(sys.argv[1])); "


COUNTED = Figures()
COUNTED[RESTARTS, "exit"] = 7


def launching(
    command: list[str], config: Config, sockets: Sockets
) -> Callable[[int], tuple[int, int]]:
    """How a supervisor starts a worker. Its file of the configuration in force is another's."""

    def launch_with(heartbeat: int) -> tuple[int, int]:
        in_force = ConfigInForce(2)
        return launch(command, Handover(config, in_force, (), sockets, heartbeat, None, COUNTED))

    return launch_with


def start(
    program: str,
    on_ready: Callable[[], object] = lambda: None,
    on_starved: Callable[[], object] = lambda: None,
    count_oom_kills: Callable[[], int] = lambda: 0,
    **supervisor: str,
) -> WorkerProcess:
    settings: dict[KeyPath, str] = {("supervisor", key): value for key, value in supervisor.items()}
    config = build_config(settings)
    sockets = bind_all(config)
    try:
        return WorkerProcess(
            launching([sys.executable, "-c", program], config, sockets),
            config,
            on_ready,
            on_starved,
            count_oom_kills,
        )
    finally:
        sockets.close()


async def end_of(worker: WorkerProcess) -> WorkerEnd:
    async with asyncio.timeout(PATIENCE_S):
        return await worker.ended


async def test_it_is_given_the_handover_and_ends_with_its_code() -> None:
    open_before = count_descriptors()
    program = (
        READ
        + "sys.exit(given.figures['forebay_worker_restarts_total', 'exit'] * 10 + len(given.sockets.admin))"
    )
    end = await end_of(start(program))
    assert (end.reason, end.code, end.was_ready, str(end)) == ("exit", 71, False, "exit code 71")
    assert count_descriptors() == open_before


async def test_its_beat_makes_it_ready_once() -> None:
    seen: list[int] = []
    program = READ + "[os.write(given.heartbeat, b'r') for _ in range(3)]; time.sleep(600)"
    ready = asyncio.Event()

    def note_ready() -> None:
        seen.append(1)
        ready.set()

    worker = start(program, note_ready)
    async with asyncio.timeout(PATIENCE_S):
        await ready.wait()
    worker.send_signal(signal.SIGTERM)
    end = await end_of(worker)
    worker.send_signal(signal.SIGTERM)
    assert seen == [1]
    assert (end.reason, end.code, end.was_ready) == ("signal", -signal.SIGTERM, True)
    assert str(end) == "SIGTERM"


@pytest.mark.parametrize(
    ("counts", "number", "reason"),
    [
        ((4, 5), signal.SIGKILL, "oom"),
        ((4, 4), signal.SIGKILL, "signal"),
        ((4, 5), signal.SIGTERM, "signal"),
    ],
)
async def test_a_kill_for_want_of_memory_is_told_from_another(
    counts: tuple[int, int], number: signal.Signals, reason: str
) -> None:
    found = iter(counts)
    worker = start("import time; time.sleep(600)", count_oom_kills=lambda: next(found))
    worker.send_signal(number)
    end = await end_of(worker)
    assert end.reason == reason
    assert str(end) == (
        "SIGKILL, for want of memory (OOM killer)" if reason == "oom" else number.name
    )


@pytest.mark.parametrize(
    ("end", "is_from_outside"),
    [
        (WorkerEnd("signal", -signal.SIGKILL, True, 1.0), True),
        (WorkerEnd("signal", -signal.SIGTERM, True, 1.0), True),
        (WorkerEnd("exit", 0, True, 1.0), True),
        (WorkerEnd("signal", -signal.SIGKILL, False, 1.0), False),
        (WorkerEnd("exit", 0, False, 1.0), False),
        (WorkerEnd("exit", 1, True, 1.0), False),
        (WorkerEnd("signal", -signal.SIGSEGV, True, 1.0), False),
        (WorkerEnd("hung", -signal.SIGKILL, True, 1.0), False),
        (WorkerEnd("oom", -signal.SIGKILL, True, 1.0), False),
    ],
)
def test_who_ended_it(end: WorkerEnd, is_from_outside: bool) -> None:
    assert end.is_from_outside is is_from_outside


@pytest.mark.parametrize("beats", ["", "os.write(given.heartbeat, b's'); "])
@pytest.mark.parametrize(
    "hangs",
    [
        "time.sleep(600)",
        "os.kill(os.getpid(), 19)",  # SIGSTOP
        pytest.param("exec('while True: pass')", id="busy"),
    ],
)
async def test_silence_kills_it_before_and_after_its_first_beat(beats: str, hangs: str) -> None:
    worker = start(
        READ + beats + hangs,
        heartbeatTimeout="500ms",
        startTimeout="3600s" if beats else "1s",
    )
    async with asyncio.timeout(PATIENCE_S):
        await worker.silent
    end = await end_of(worker)
    assert (end.reason, end.code, str(end)) == ("hung", -signal.SIGKILL, "no heartbeat, SIGKILL")


STARVED = """
os.sched_setaffinity(0, [{core}])
os.write(given.heartbeat, b"r")
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while True:
    until = time.process_time() + 0.03
    while time.process_time() < until:
        pass
    os.write(given.heartbeat, b"r")
"""
"""A worker that works 30 ms between two beats, and gets no processor while anybody else wants it."""
HOG = "import os; os.sched_setaffinity(0, [{core}]); print(flush=True)\nwhile True: pass"


async def test_a_worker_without_a_processor_is_starved_and_not_killed() -> None:
    core = min(os.sched_getaffinity(0))
    starved = asyncio.Event()
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            command = [sys.executable, "-c", HOG.format(core=core)]
            hog = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
            stack.callback(hog.kill)
            assert hog.stdout is not None
            await hog.stdout.readline()
        program = f"{READ}\n{STARVED.format(core=core)}"
        worker = start(program, on_starved=starved.set, heartbeatTimeout="500ms")
        async with asyncio.timeout(PATIENCE_S):
            await starved.wait()
        assert not worker.silent.done() and not worker.ended.done()
        worker.end(signal.SIGTERM, PATIENCE_S)
    assert (await end_of(worker)).reason == "signal"


@pytest.mark.parametrize(
    ("code", "is_fault"),
    [(-signal.SIGSEGV, True), (-signal.SIGKILL, False), (0, False), (1, False)],
)
def test_a_fault_is_known_by_its_signal(code: int, is_fault: bool) -> None:
    assert WorkerEnd("signal", code, was_ready=True, lived_s=1.0).is_fault == is_fault


async def test_a_worker_that_stops_may_be_silent() -> None:
    program = READ + "os.write(given.heartbeat, b'r'); time.sleep(1.5)"
    ready = asyncio.Event()
    worker = start(program, ready.set, heartbeatTimeout="500ms")
    async with asyncio.timeout(PATIENCE_S):
        await ready.wait()
    worker.end(signal.SIGCONT, PATIENCE_S)
    assert (await end_of(worker)).code == 0


async def test_a_command_that_is_not_there_leaves_nothing_open() -> None:
    config = build_config()
    sockets = bind_all(config)
    open_before = count_descriptors()
    with pytest.raises(FileNotFoundError):
        WorkerProcess(launching(["/nowhere/python"], config, sockets), config, lambda: None)
    assert count_descriptors() == open_before
    sockets.close()


async def test_without_a_pidfd_no_process_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    spawned: list[int] = []

    def refuse(pid: int) -> int:
        spawned.append(pid)
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(OSError, match="not implemented"):
        start("import time; time.sleep(600)")
    (pid,) = spawned
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


ORPHANS = """
import os
from proxy.supervisor.worker_process import reap_orphans
def fork(code, hold):
    pid = os.fork()
    if not pid:
        os.read(hold, 1)
        os._exit(code)
    return pid
def wait_for_end(pid):
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
(orphans_held, let_orphans), (worker_held, let_worker) = os.pipe(), os.pipe()
worker, orphans = fork(3, worker_held), [fork(1, orphans_held), fork(2, orphans_held)]
os.write(let_orphans, b"12")
for one in orphans:
    wait_for_end(one)
reap_orphans([worker])
for one in orphans:
    try:
        raise SystemExit(f"{os.waitid(os.P_PID, one, os.WEXITED | os.WNOHANG)} is left")
    except ChildProcessError:
        pass
assert os.waitpid(worker, os.WNOHANG) == (0, 0)
os.write(let_worker, b"3")
wait_for_end(worker)
reap_orphans([worker])
print(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))
reap_orphans([worker])
"""


def test_orphans_are_reaped_and_the_worker_is_left() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", ORPHANS], check=True, capture_output=True, timeout=PATIENCE_S
    )
    assert ran.stdout == b"3\n"
