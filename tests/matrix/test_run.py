"""The runs of one client: both are started, judged against each other, and ended."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.matrix import run
from tests.matrix.builds import Program
from tests.matrix.clients import CLIENTS, Client
from tests.matrix.compare import Cell, Limit
from tests.matrix.programme import EXACTLY_ONCE, NAMES
from tests.matrix.run import run_client, run_program

if TYPE_CHECKING:
    import pytest

ECHO = "import json, sys; print(json.dumps({'step': 'seeks', 'seen': [sys.argv[2] + '-x', sys.argv[1], sys.argv[3:]]}))"


class Sampled:
    """A Forebay whose clients hold one more session each time it is asked, up to three."""

    def __init__(self) -> None:
        self.asked = 0

    def metrics(self) -> dict[tuple[str, ...], float]:
        self.asked += 1
        return {("forebay_queue_depth", "fetch_sessions"): 5 + min(self.asked - 1, 3)}


def build_pair(direct: str, through: str) -> Any:
    broker = SimpleNamespace(version="4.3.1")
    return SimpleNamespace(direct=direct, through=through, broker=broker, sidecar=Sampled())


def build_program(code: str) -> Program:
    return Program([sys.executable, "-c", code], {"GIVEN": "1"})


def test_a_run_is_given_its_arguments_and_read() -> None:
    lines = run_program(build_program(ECHO), "here:1", "d42", ["seeks", "times"])
    assert lines == {"seeks": {"step": "seeks", "seen": ["RUN-x", "here:1", ["seeks", "times"]]}}


def test_a_run_that_hangs_is_ended_and_what_it_said_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "RUN_TIMEOUT_S", 1.0)
    code = f"{ECHO}; sys.stdout.flush(); import time; time.sleep(60)"
    assert list(run_program(build_program(code), "here:1", "d42", ["seeks", "times"])) == ["seeks"]


def test_both_ways_are_compared_and_sessions_counted() -> None:
    client = Client("echo", "1", lambda _folder: build_program(ECHO))
    same = run_client(client, build_program(ECHO), build_pair("here:1", "here:1"), ["seeks"])
    assert same.cells == {"seeks": Cell("equal")}
    assert same.run.startswith("t")
    assert 0 <= same.sessions <= 3
    other = run_client(
        client, build_program(ECHO), build_pair("here:1", "there:2"), ["seeks", "times"]
    )
    assert other.cells["seeks"] == Cell("differs", '/seen/1: "here:1" directly, "there:2" through')
    assert other.cells["times"].verdict == "broken"


def test_limits_hold_for_their_broker_alone() -> None:
    limit, always = Limit("x", "y"), Limit("z", "z")
    client = Client(
        "c",
        "1",
        lambda _: build_program(ECHO),
        limits={("3.9.2", "seeks"): limit, ("", "times"): always},
    )
    assert client.limits_on("3.9.2") == {"seeks": limit, "times": always}
    assert client.limits_on("4.3.1") == {"times": always}


def test_the_matrix_has_all_its_clients() -> None:
    named = [client.name for client in CLIENTS]
    assert len(named) == len(set(named)) == 12
    assert all(client.version for client in CLIENTS)
    assert all(client.steps in (NAMES, (EXACTLY_ONCE,)) for client in CLIENTS)
