"""Upgrades in place of several workers and their keeper, with stubs: who has clients when, and who goes on."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.proxy.forebay_process import wait_until
from tests.proxy.supervisor.stub_group import KEEPER, StubGroup
from tests.proxy.supervisor.test_run_group import KEEPER_RESTARTS, LASTING, RESTARTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UPGRADES = "forebay_upgrades_total"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[StubGroup]:
    with StubGroup(tmp_path, 2, supervisor=LASTING) as running:
        running.wait_for_all(2)
        yield running


def upgrade(group: StubGroup, outcome: str, times: int = 1) -> None:
    group.send(signal.SIGUSR2)
    wait_until(lambda: group.figure(UPGRADES, outcome) == times)


def count_restarts(group: StubGroup) -> int:
    reasons = "exit", "signal", "hung", "oom"
    return sum(group.figure(name, one) for name in (RESTARTS, KEEPER_RESTARTS) for one in reasons)


def test_workers_are_replaced_beside_the_former_and_the_keeper_last(group: StubGroup) -> None:
    former = group.list_ready()
    clients = group.connect_to_each({1, 2})
    clients[1].hold()
    upgrade(group, "done")
    ready = group.list_ready()
    assert set(ready) - set(former) == {("worker", 3), ("worker", 4)}
    assert ready[KEEPER] != former[KEEPER]
    assert clients[2].ask() is None
    assert group.connect_to_each({3, 4})
    group.send(signal.SIGUSR2)
    wait_until(lambda: group.says("ignoring SIGUSR2: an upgrade is under way"))
    assert clients[1].ask() == [1, former["worker", 1]], "it drains for as long as need be"
    wait_until(lambda: group.log.read_text().count("the former worker ended: exit code 0") == 2)
    assert [one["arena"] for one in group.read_events("started", KEEPER)] == [
        "",
        f".{former[KEEPER]}",
    ]
    assert count_restarts(group) == 0
    wait_until(
        lambda: [one["to"] for one in group.read_events("attached")][-2:] == [ready[KEEPER]] * 2
    )


def test_all_successors_accept_before_anybody_ends(group: StubGroup) -> None:
    former = group.list_ready()
    upgrade(group, "done")
    order = [
        (one["event"], one["role"], one["number"])
        for event in ("ready", "signal")
        for one in group.read_events(event)
    ]
    assert ("ready", "worker", 3) in order and ("ready", "worker", 4) in order
    lines = (group.directory / "events").read_text().splitlines()
    last_ready = max(
        at for at, line in enumerate(lines) if '"ready"' in line and '"worker"' in line
    )
    first_signal = min(at for at, line in enumerate(lines) if '"signal"' in line)
    assert last_ready < first_signal
    names = {(one["pid"], one["name"]) for one in group.read_events("signal")}
    assert names == {
        (former["worker", 1], "SIGUSR2"),
        (former["worker", 2], "SIGUSR2"),
        (former[KEEPER], "SIGTERM"),
    }


def test_numbers_come_back(group: StubGroup) -> None:
    """What the former workers had is free once they have ended."""
    for times, numbers in enumerate(({3, 4}, {1, 2}), 1):
        upgrade(group, "done", times)
        group.connect_to_each(numbers)
        wait_until(lambda: len(group.list_ready()) == 3)


@pytest.mark.parametrize(
    ("order", "why"),
    [
        ("exit 3", "the new worker ended: exit code 3"),
        ("late", "does not accept clients after 2 s"),
    ],
)
def test_a_successor_that_does_not_come_up_changes_nothing(
    tmp_path: Path, order: str, why: str
) -> None:
    with StubGroup(
        tmp_path, 2, {"worker-4": order}, supervisor=LASTING | {"startTimeout": "2s"}
    ) as group:
        former = group.wait_for_all(2)
        clients = group.connect_to_each({1, 2})
        upgrade(group, "failed")
        assert group.says(why)
        wait_until(lambda: group.list_ready() == former)
        for number, client in clients.items():
            assert client.ask() == [number, former["worker", number]]
        assert count_restarts(group) == 0
        assert not group.read_events("signal"), "nobody was told to end"


def test_a_keeper_that_does_not_come_up_leaves_clients_to_the_new_workers(group: StubGroup) -> None:
    group.order("keeper", "exit 1")
    upgrade(group, "failed")
    assert group.says("the keeper of the new build is not ready")
    wait_until(lambda: set(group.list_ready()) == {("worker", 3), ("worker", 4)})
    group.connect_to_each({3, 4})
    group.order("keeper", "")
    group.wait_for_all(2)


@pytest.mark.parametrize(("most", "numbers"), [(3, {2, 3}), (2, {1, 2})])
def test_without_a_free_number_a_worker_ends_first(
    tmp_path: Path, most: int, numbers: set[int]
) -> None:
    """Others accept meanwhile: with three numbers the first worker has a successor beside it, with two none."""
    with StubGroup(tmp_path, 2, most=most, supervisor=LASTING) as group:
        former = group.wait_for_all(2)
        upgrade(group, "done")
        wait_until(lambda: not set(group.list_ready().values()) & set(former.values()))
        wait_until(lambda: len(group.list_ready()) == 3)
        found = {number for role, number in group.list_ready() if role == "worker"}
        assert found == numbers
        assert count_restarts(group) == 0
        group.connect_to_each(found)


def test_a_signal_ends_former_workers_and_successors(tmp_path: Path) -> None:
    with StubGroup(tmp_path, 2, {"worker-4": "late"}, supervisor=LASTING) as group:
        group.wait_for_all(2)
        group.send(signal.SIGUSR2)
        wait_until(lambda: len(group.list_ready()) == 4)
        group.send(signal.SIGTERM)
        wait_until(lambda: len(group.read_events("ended")) >= 3)  # a killed successor may be one
        group.order("worker-4", "")
        assert group.wait() == 0
        assert group.says("the upgrade failed, the former worker goes on: Forebay is stopping")
        assert group.read_events("ended")[-1]["role"] == "keeper"


def test_a_worker_that_dies_meanwhile_is_replaced_as_ever(tmp_path: Path) -> None:
    with StubGroup(tmp_path, 2, {"worker-4": "late"}, supervisor=LASTING) as group:
        former = group.wait_for_all(2)
        group.send(signal.SIGUSR2)
        wait_until(lambda: len(group.list_ready()) == 4)
        os.kill(former["worker", 1], signal.SIGKILL)
        wait_until(lambda: group.says("the former worker goes on: the worker ended meanwhile"))
        group.wait_for_next(("worker", 1), former["worker", 1])
        wait_until(lambda: set(group.list_ready()) == {KEEPER, ("worker", 1), ("worker", 2)})
        assert group.list_ready()[KEEPER] == former[KEEPER]
