"""A spare process waits for a handover, and is what a process started with it is."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from proxy.sockets import Sockets, bind_all
from proxy.supervisor import launch as launch_module
from proxy.supervisor.figures import RESTARTS, Figures
from proxy.supervisor.handover import ConfigInForce, Handover, NoHandover
from proxy.supervisor.launch import MOST_DESCRIPTORS, SPARE, Spare, launch, wait_for_handover
from tests.proxy.forebay_process import wait_until
from tests.proxy.supervisor.configured import build_config, count_descriptors
from tests.proxy.supervisor.stub_group import KEEPER, StubGroup

if TYPE_CHECKING:
    from collections.abc import Iterator

LASTING = {"crashLimit": "1000"}
READ = f"""
import os, sys
from proxy.supervisor.handover import read_handover
from proxy.supervisor.launch import wait_for_handover
take = wait_for_handover if sys.argv[1] == {SPARE!r} else read_handover
given = take(int(sys.argv[-1]))
if given is None:
    sys.exit(7)
said = given.sockets.listeners[0][0].getsockname(), given.figures[{RESTARTS!r}, "exit"], given.number
os.write(given.heartbeat, repr((said, open("/proc/self/comm").read())).encode())
"""
COMMAND = [sys.executable, "-c", READ]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[StubGroup]:
    with StubGroup(tmp_path, 2, supervisor=LASTING) as running:
        running.wait_for_all(2)
        yield running


def end_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Given:
    """A handover with a heartbeat that is read here."""

    def __init__(self) -> None:
        config = build_config()
        self.sockets = bind_all(config)
        figures = Figures()
        figures[RESTARTS, "exit"] = 7
        self.heartbeat, theirs = os.pipe()
        self.in_force = ConfigInForce()
        self.handover = Handover(
            config, self.in_force, (), self.sockets, theirs, None, figures, number=3
        )

    def close(self) -> None:
        self.sockets.close()
        self.in_force.close()
        self.handover.figures.close()
        os.close(self.heartbeat)
        os.close(self.handover.heartbeat)

    def read(self) -> str:
        return os.read(self.heartbeat, 1000).decode()


@pytest.fixture
def given() -> Iterator[Given]:
    one = Given()
    yield one
    one.close()


def test_a_spare_process_takes_what_a_new_one_does(given: Given) -> None:
    pid, pidfd = launch(COMMAND, given.handover)
    at_once = given.read()
    assert end_of(pid) == 0
    spare = Spare(COMMAND)
    taken = spare.give(given.handover)
    assert taken is not None
    assert given.read() == at_once
    assert "7, 3" in at_once
    assert taken[0] == spare.pid
    assert end_of(spare.pid) == 0
    for fd in (pidfd, taken[1]):
        os.close(fd)


def test_a_spare_process_that_has_ended_is_refused_and_leaves_nothing(given: Given) -> None:
    open_before = count_descriptors()
    spare = Spare(COMMAND)
    os.kill(spare.pid, signal.SIGKILL)
    os.waitid(os.P_PID, spare.pid, os.WEXITED | os.WNOWAIT)
    assert spare.give(given.handover) is None
    assert count_descriptors() == open_before
    with pytest.raises(ChildProcessError):
        os.waitpid(spare.pid, 0)


def test_one_that_cannot_be_given_its_handover_is_gone(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptor is left for it."""

    def fail(_handover: Handover) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    before = count_descriptors()
    spare = Spare(COMMAND)
    monkeypatch.setattr(launch_module, "write_handover", fail)
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        spare.give(given.handover)
    assert count_descriptors() == before
    assert not Path(f"/proc/{spare.pid}").exists()


def test_one_that_was_reaped_meanwhile_is_refused(given: Given) -> None:
    spare = Spare(COMMAND)
    os.kill(spare.pid, signal.SIGKILL)
    os.waitpid(spare.pid, 0)
    assert spare.give(given.handover) is None


def test_more_descriptors_than_a_message_has_are_refused(given: Given) -> None:
    spare = Spare(COMMAND)
    (listener,), *_ = given.sockets.listeners
    many = Sockets(((listener,) * MOST_DESCRIPTORS,), ())
    handover = given.handover
    more = Handover(
        handover.config,
        handover.in_force,
        (),
        many,
        handover.heartbeat,
        None,
        handover.figures,
    )
    assert spare.give(more) is None
    with pytest.raises(ChildProcessError):
        os.waitpid(spare.pid, 0)


def test_one_whose_supervisor_is_gone_ends() -> None:
    """As the supervisor's end does: its socket closes."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.set_inheritable(True)
    pid = os.posix_spawn(COMMAND[0], [*COMMAND, SPARE, str(theirs.fileno())], os.environ)
    theirs.close()
    ours.close()
    assert end_of(pid) == 7


def test_a_descriptor_that_is_no_socket_is_refused() -> None:
    fd = os.memfd_create("none")
    with pytest.raises(NoHandover, match="no socket of a supervisor"):
        wait_for_handover(fd)


def test_it_says_that_it_is_spare_and_an_interrupt_ends_it_silently(
    capfd: pytest.CaptureFixture[str],
) -> None:
    spare = Spare(COMMAND)

    def find_name() -> str:
        return Path(f"/proc/{spare.pid}/comm").read_text()

    wait_until(lambda: find_name() == "forebay-spare\n")
    os.kill(spare.pid, signal.SIGINT)
    os.waitid(os.P_PID, spare.pid, os.WEXITED | os.WNOWAIT)
    spare.drop()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("who", [KEEPER, ("worker", 1)])
def test_the_next_process_is_the_spare_one(group: StubGroup, who: tuple[str, int]) -> None:
    """It has what its forerunner had, and another one waits in its place."""
    spare = group.wait_for_spare()
    former = group.list_ready()[who]
    os.kill(former, signal.SIGKILL)
    assert group.wait_for_next(who, former) == spare
    first, second = (
        sorted(name.split(":")[0] for name in one["inherited"])
        for one in group.read_events("started", who)
    )
    assert first == second
    inherited = group.read_events("spare")[0]["inherited"]
    assert [name.split(":")[0] for name in inherited if "memfd" in name or ":[" in name] == [
        "socket"
    ], inherited
    assert group.wait_for_spare() != spare
    group.connect_to_each({1, 2})


def test_a_killed_spare_process_is_missed_by_nobody(group: StubGroup) -> None:
    os.kill(group.wait_for_spare(), signal.SIGKILL)
    wait_until(lambda: group.find_spare() is None)
    former = group.list_ready()["worker", 2]
    os.kill(former, signal.SIGKILL)
    group.wait_for_next(("worker", 2), former)
    group.wait_for_spare()
    assert group.figure("forebay_worker_restarts_total", "signal") == 1


def test_an_upgrade_takes_no_process_of_the_former_build(group: StubGroup) -> None:
    spare = group.wait_for_spare()
    former = group.list_ready()
    group.send(signal.SIGUSR2)
    wait_until(lambda: group.says("upgraded"))
    wait_until(
        lambda: (
            len(group.list_ready()) == 3 and not {*former.values()} & {*group.list_ready().values()}
        )
    )
    assert spare not in {one["pid"] for one in group.read_events("started")}
    assert not group.is_running(spare)
    group.wait_for_spare()


def test_the_spare_process_ends_with_the_supervisor(group: StubGroup) -> None:
    spare = group.wait_for_spare()
    group.send(signal.SIGTERM)
    assert group.wait() == 0
    with pytest.raises(ProcessLookupError):
        os.kill(spare, 0)


def test_one_worker_has_no_spare_process(tmp_path: Path) -> None:
    """What it would save is a moment of one process, and it would cost as much memory as that one."""
    with StubGroup(tmp_path, 1, supervisor=LASTING) as group:
        wait_until(lambda: len(group.list_ready()) == 1)
        (former,) = group.list_ready().values()
        os.kill(former, signal.SIGKILL)
        wait_until(
            lambda: former not in group.list_ready().values() and len(group.list_ready()) == 1
        )
        assert group.read_events("spare") == []
