"""Clients share the proxies' processor, or do not; by default nobody is told where to run."""

import os
import subprocess
import sys

import pytest

from bench.ladder.placing import ANYWHERE, APART, BESIDE, TooFew, plan_places, put

WAITS = [sys.executable, "-c", "import sys; sys.stdin.read()"]


def test_beside_is_one_processor_and_apart_are_two():
    assert plan_places(BESIDE, {3, 1, 2}) == (2, 2)
    assert plan_places(APART, {3, 1, 2}) == (1, 2)
    assert plan_places(ANYWHERE, {0}) is None


@pytest.mark.parametrize("place", [BESIDE, APART])
def test_one_processor_is_too_few(place):
    with pytest.raises(TooFew, match="two processors"):
        plan_places(place, {0})


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor")
def test_processes_are_put_there_and_pid_0_is_nobody():
    mine = os.sched_getaffinity(0)
    child = subprocess.Popen(WAITS, stdin=subprocess.PIPE)
    try:
        put(APART, [0, child.pid])
        first, second = sorted(mine)[:2]
        assert os.sched_getaffinity(0) == {first}
        assert os.sched_getaffinity(child.pid) == {second}
    finally:
        os.sched_setaffinity(0, mine)
        child.communicate()


def test_anywhere_touches_nothing():
    mine = os.sched_getaffinity(0)
    put(ANYWHERE, [os.getpid()])

    assert os.sched_getaffinity(0) == mine
