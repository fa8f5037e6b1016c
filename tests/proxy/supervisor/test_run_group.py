"""Several workers and a keeper under a supervisor, with stubs in their place: who is replaced, and who goes on."""

from __future__ import annotations

import os
import random
import signal
from typing import TYPE_CHECKING

import pytest

from tests.proxy.forebay_process import wait_until
from tests.proxy.supervisor.stub_group import KEEPER, StubGroup

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RESTARTS, KEEPER_RESTARTS = "forebay_worker_restarts_total", "forebay_keeper_restarts_total"
LASTING = {"crashLimit": "1000"}
LOOPING = {"crashLimit": "1", "crashWindow": "60s"}
HASTY = {"heartbeatTimeout": "500ms"}


@pytest.fixture
def group(tmp_path: Path) -> Iterator[StubGroup]:
    with StubGroup(tmp_path, 3, supervisor=LASTING) as running:
        running.wait_for_all(3)
        yield running


def test_each_process_gets_what_its_role_needs(group: StubGroup) -> None:
    """And inherits nothing else."""
    started = {(one["role"], one["number"]): one for one in group.read_events("started")}
    assert set(started) == {KEEPER, ("worker", 1), ("worker", 2), ("worker", 3)}
    keeper = started.pop(KEEPER)
    assert keeper["sockets"] == [0, 1]
    assert keeper["arena"] == ""
    workers = list(started.values())
    assert [one["sockets"] for one in workers] == [[1, 0]] * 3
    assert [one["arena"] for one in workers] == [None] * 3
    assert len({one["keeper"] for one in workers}) == 1
    assert not any("arena" in name for one in workers for name in one["inherited"])
    assert any("arena" in name for name in keeper["inherited"])
    sockets = [sum("socket:" in name for name in one["inherited"]) for one in (keeper, *workers)]
    assert sockets == [2, 1, 1, 1], "admin and the keeper's own; the listener's"


def test_workers_attach_to_the_keeper_and_all_accept(group: StubGroup) -> None:
    (keeper,) = (pid for who, pid in group.list_ready().items() if who == KEEPER)
    wait_until(lambda: [one["to"] for one in group.read_events("attached")] == [keeper] * 3)
    group.connect_to_each({1, 2, 3})
    wait_until(lambda: group.figure("forebay_workers") == 3)
    assert group.figure("forebay_workers_expected") == 3
    wait_until(lambda: group.figure("forebay_keeper_ready") == 1)


@pytest.mark.parametrize("late", ["keeper", "worker"])
def test_either_role_may_start_first(tmp_path: Path, late: str) -> None:
    """A group is ready while one worker accepts, with the keeper or without it."""
    with StubGroup(tmp_path, 2, {late: "late"}, supervisor=LASTING) as group:
        early = 2 if late == "keeper" else 1
        wait_until(lambda: len(group.list_ready()) == early)
        if late == "keeper":
            group.connect_to_each({1, 2})
            wait_until(lambda: group.ask("/readyz")[0] == 200)
            assert group.figure("forebay_workers") == 2
            assert group.figure("forebay_keeper_ready") == 0
        group.order(late, "")
        group.wait_for_all(2)
        wait_until(lambda: len(group.read_events("attached")) == 2)
        group.connect_to_each({1, 2})


def test_a_group_is_not_ready_before_a_worker_is(tmp_path: Path) -> None:
    with StubGroup(tmp_path, 2, {"worker": "late", "keeper": "late"}, supervisor=LASTING) as group:
        wait_until(lambda: group.ask("/readyz") == (503, "not ready: no worker is ready yet\n"))
        group.order("worker", "")
        wait_until(lambda: group.ask("/readyz")[0] == 200)


@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGKILL, "signal"), (signal.SIGTERM, "exit")]
)
def test_a_worker_that_ends_is_replaced_and_others_keep_their_clients(
    group: StubGroup, number: signal.Signals, reason: str
) -> None:
    clients = group.connect_to_each({1, 2, 3})
    killed = group.list_ready()["worker", 2]
    clients[2].hold()
    os.kill(killed, number)
    if number == signal.SIGTERM:
        assert clients[2].ask() == [2, killed], "it drains"
    again = group.wait_for_next(("worker", 2), killed)
    assert clients[2].ask() is None
    for one in (1, 3):
        assert clients[one].ask() == [one, group.list_ready()["worker", one]]
    assert group.connect_to_each({1, 2, 3})[2].ask() == [2, again]
    wait_until(lambda: group.figure(RESTARTS, reason) == 1)
    assert len(group.read_events("started", KEEPER)) == 1
    assert group.figure("forebay_pipes_total") == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_keeper_that_ends_is_replaced_and_workers_go_on(
    group: StubGroup, number: signal.Signals
) -> None:
    """The next one finds the arena; workers attach to it."""
    clients = group.connect_to_each({1, 2, 3})
    former = group.list_ready()[KEEPER]
    os.kill(former, number)
    keeper = group.wait_for_next(KEEPER, former)
    attached = [former] * 3 + [keeper] * 3
    wait_until(lambda: [one["to"] for one in group.read_events("attached")] == attached)
    assert [one["arena"] for one in group.read_events("started", KEEPER)] == ["", f".{former}"]
    for one, client in clients.items():
        assert client.ask() == [one, group.list_ready()["worker", one]]
    reason = "signal" if number == signal.SIGKILL else "exit"
    wait_until(lambda: group.figure(KEEPER_RESTARTS, reason) == 1)
    assert sum(group.figure(RESTARTS, each) for each in ("exit", "signal", "hung", "oom")) == 0


@pytest.mark.parametrize("who", [KEEPER, ("worker", 1)])
def test_a_process_that_hangs_is_replaced(tmp_path: Path, who: tuple[str, int]) -> None:
    with StubGroup(tmp_path, 2, supervisor=LASTING | HASTY) as group:
        former = group.wait_for_all(2)[who]
        os.kill(former, signal.SIGSTOP)
        group.wait_for_next(who, former)
        wait_until(lambda: len(group.list_ready()) == 3)
        restarts = KEEPER_RESTARTS if who == KEEPER else RESTARTS
        wait_until(lambda: group.figure(restarts, "hung") >= 1)


@pytest.mark.parametrize(("who", "code"), [("keeper", 3), ("worker-2", 4)])
def test_a_first_process_that_cannot_start_ends_all(tmp_path: Path, who: str, code: int) -> None:
    with StubGroup(tmp_path, 2, {who: f"exit {code}"}, supervisor=LASTING) as group:
        assert group.wait() == code
        starts = [(one["role"], one["number"]) for one in group.read_events("started")]
        assert len(starts) == len(set(starts)), "nobody was tried again"


def test_all_workers_in_a_crash_loop_are_replaced_by_pipes(tmp_path: Path) -> None:
    """While one is ready, clients wait for it; the arena is dropped, by another keeper."""
    with StubGroup(tmp_path, 2, supervisor=LOOPING) as group:
        ready = group.wait_for_all(2)
        for number in (1, 2):
            group.order(f"worker-{number}", "exit 1")
            os.kill(ready["worker", number], signal.SIGKILL)
            wait_until(lambda: group.says(f"worker {number} ended: exit code 1"))  # noqa: B023
            assert number == 2 or not group.says("clients are piped")
        wait_until(lambda: group.says("clients are piped"))
        client = group.connect()
        assert client.ask() == "broker"
        wait_until(lambda: group.figure("forebay_pipes") == 1)
        assert group.figure("forebay_workers") == 0
        keeper = group.wait_for_next(KEEPER, ready[KEEPER])
        assert [one["arena"] for one in group.read_events("started", KEEPER)] == ["", ""]
        assert len(group.read_events("started", KEEPER)) == 2, "once in a loop"
        group.order("worker-1", "")
        wait_until(lambda: ("worker", 1) in group.list_ready())
        wait_until(lambda: group.says("a worker runs again"))
        assert group.connect_to_each({1})
        assert client.ask() == "broker", "until supervisor.pipeMaxAge"
        assert group.list_ready()[KEEPER] == keeper


def test_a_keeper_in_a_crash_loop_leaves_clients_to_workers(tmp_path: Path) -> None:
    """The arena is dropped each time; nobody is piped."""
    with StubGroup(tmp_path, 2, supervisor=LOOPING) as group:
        ready = group.wait_for_all(2)
        clients = group.connect_to_each({1, 2})
        group.order("keeper", "exit 1")
        os.kill(ready[KEEPER], signal.SIGKILL)
        wait_until(lambda: group.log.read_text().count("the keeper ended: exit code 1") == 2)
        assert group.says("dropped the cache")
        wait_until(lambda: group.ask("/readyz")[0] == 200)
        wait_until(lambda: group.figure(KEEPER_RESTARTS, "exit") == 2)
        for number, client in clients.items():
            assert client.ask() == [number, ready["worker", number]]
        group.connect_to_each({1, 2})
        assert group.figure("forebay_pipes_total") == 0
        group.order("keeper", "")
        wait_until(lambda: KEEPER in group.list_ready())
        assert group.read_events("started", KEEPER)[-1]["arena"] == ""


@pytest.mark.parametrize("who", [KEEPER, ("worker", 2)])
def test_a_fault_drops_the_arena(group: StubGroup, who: tuple[str, int]) -> None:
    """Whoever had it mapped may have written anything to it: the next keeper finds another one, and one that ran with
    the former ends in order, which is no restart.
    """
    ready = group.list_ready()
    os.kill(ready[who], signal.SIGSEGV)
    group.wait_for_next(KEEPER, ready[KEEPER])
    group.wait_for_next(who, ready[who])
    assert [one["arena"] for one in group.read_events("started", KEEPER)] == ["", ""]
    wait_until(lambda: group.figure("forebay_keeper_ready") == 1)
    counted = group.figure(KEEPER_RESTARTS, "signal"), group.figure(RESTARTS, "signal")
    assert counted == ((1, 0) if who == KEEPER else (0, 1))
    assert group.figure(KEEPER_RESTARTS, "exit") == 0


def test_the_supervisor_answers_operators_while_the_keeper_is_renewed(group: StubGroup) -> None:
    """As after any other end of it: probes wait for nobody."""
    ready = group.list_ready()
    group.order("keeper", "late")
    os.kill(ready["worker", 2], signal.SIGSEGV)
    wait_until(lambda: KEEPER not in group.list_ready())
    assert group.ask("/livez")[0] == group.ask("/readyz")[0] == 200
    group.order("keeper", "")
    group.wait_for_next(KEEPER, ready[KEEPER])


def test_a_signal_drains_workers_first_and_the_keeper_last(group: StubGroup) -> None:
    clients = group.connect_to_each({1, 2, 3})
    for client in clients.values():
        client.hold()
    ready = group.list_ready()
    group.send(signal.SIGTERM)
    wait_until(lambda: len(group.read_events("signal")) == 3)
    assert [one["role"] for one in group.read_events("signal")] == ["worker"] * 3
    for number, client in clients.items():
        assert client.ask() == [number, ready["worker", number]], "what is under way is answered"
    assert group.wait() == 0
    ended = [one["role"] for one in group.read_events("ended")]
    assert ended == ["worker", "worker", "worker", "keeper"]
    assert len(group.read_events("started")) == 4


def test_a_signal_ends_a_group_without_a_keeper(tmp_path: Path) -> None:
    """It is between two processes, for a long pause."""
    with StubGroup(tmp_path, 2, supervisor=LOOPING) as group:
        keeper = group.wait_for_all(2)[KEEPER]
        group.order("keeper", "exit 1")
        os.kill(keeper, signal.SIGKILL)
        wait_until(lambda: group.says("the next one starts in 1 s"))
        group.send(signal.SIGTERM)
        assert group.wait() in (0, 1), "1: it was in a process that could not start"
        assert len(group.read_events("ended")) == 2


def test_a_reload_reaches_all_and_one_that_starts_meanwhile(tmp_path: Path) -> None:
    with StubGroup(tmp_path, 2, {"worker-2": "late"}, supervisor=LASTING) as group:
        wait_until(lambda: len(group.list_ready()) == 2)
        wait_until(lambda: group.figure("forebay_keeper_ready") == 1)
        wait_until(lambda: group.figure("forebay_workers") == 1)
        group.send(signal.SIGHUP)
        wait_until(lambda: len(group.read_events("signal")) == 2)
        group.order("worker-2", "")
        wait_until(lambda: len(group.read_events("signal")) == 3)
        told = {(one["role"], one["number"], one["name"]) for one in group.read_events("signal")}
        assert told == {("keeper", 0, "SIGHUP"), ("worker", 1, "SIGHUP"), ("worker", 2, "SIGHUP")}


def test_workers_reload_only_what_the_keeper_has_put_in_force(group: StubGroup) -> None:
    """They would differ from it otherwise, as where a file has been written again meanwhile."""
    group.order("keeper", "refuse")
    group.send(signal.SIGHUP)
    wait_until(lambda: len(group.read_events("signal", KEEPER)) == 1)
    group.order("keeper", "")
    group.send(signal.SIGHUP)
    wait_until(lambda: len(group.read_events("signal")) == 5)
    told = [(one["role"], one["number"]) for one in group.read_events("signal")]
    assert told[:2] == [KEEPER, KEEPER] and set(told[2:]) == {("worker", n) for n in (1, 2, 3)}


def test_without_a_keeper_nobody_reloads(tmp_path: Path) -> None:
    """Its report is the answer, and what it has read is in force."""
    with StubGroup(tmp_path, 2, {"keeper": "late"}, supervisor=LASTING) as group:
        wait_until(lambda: group.figure("forebay_workers") == 2)
        group.send(signal.SIGHUP)
        wait_until(lambda: group.says("ignoring SIGHUP"))
        assert not group.read_events("signal")


KILLS = 12


def test_kills_at_random_moments(tmp_path: Path) -> None:
    """Of each role, also while they start: all places are filled again, and nobody is piped or counted twice."""
    moments = random.Random(17)
    with StubGroup(tmp_path, 3, supervisor=LASTING) as group:
        group.wait_for_all(3)
        for _ in range(KILLS):
            who = moments.choice([KEEPER, ("worker", 1), ("worker", 2), ("worker", 3)])
            wait_until(lambda: group.is_running(group.read_events("started", who)[-1]["pid"]))  # noqa: B023
            last = group.read_events("started", who)[-1]["pid"]
            if moments.random() < 0.3:
                os.kill(last, signal.SIGSTOP)
            os.kill(last, signal.SIGKILL)
            wait_until(lambda: group.read_events("started", who)[-1]["pid"] != last)  # noqa: B023
        ready = group.wait_for_all(3)
        group.connect_to_each({1, 2, 3})
        wait_until(
            lambda: {one["to"] for one in group.read_events("attached")[-3:]} == {ready[KEEPER]}
        )
        restarts = [group.figure(name, "signal") for name in (RESTARTS, KEEPER_RESTARTS)]
        assert sum(restarts) == KILLS
        assert group.figure("forebay_pipes_total") == 0
        group.send(signal.SIGTERM)
        assert group.wait() == 0
