"""What a service manager hears at its socket, from the class and from a whole supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from proxy.supervisor.notifier import Notifier
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_S = 120.0


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as one:
        one.bind(str(tmp_path / "notify"))
        one.settimeout(PATIENCE_S)
        yield one


def hear(manager: socket.socket) -> str:
    return manager.recv(4096).decode()


def test_it_takes_the_variables_so_that_no_worker_has_them(manager: socket.socket) -> None:
    environment = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "3000000", "A": "b"}
    told = Notifier(environment)
    assert environment == {"A": "b"} and told.watchdog_s == 3.0
    told.tell_ready("one")
    told.tell_ready("two")
    told.tell("three")
    told.tell_stopping()
    heard = [hear(manager) for _ in range(4)]
    assert heard[0] == "READY=1\nSTATUS=one"
    assert heard[1:3] == ["STATUS=two", "STATUS=three"]
    assert heard[3].startswith("STOPPING=1\n")
    told.close()


def test_an_abstract_socket_is_understood() -> None:
    name = f"\0forebay-test-{os.getpid()}"
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as one:
        one.bind(name)
        one.settimeout(PATIENCE_S)
        told = Notifier({"NOTIFY_SOCKET": "@" + name[1:]})
        told.tell("here")
        assert hear(one) == "STATUS=here"
        told.close()


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": "relative"},
        {"NOTIFY_SOCKET": "/nowhere/at/all"},
        {"NOTIFY_SOCKET": "vsock:2:1234"},
        {"WATCHDOG_USEC": "soon"},
    ],
)
def test_without_a_manager_nothing_is_an_error(environment: dict[str, str]) -> None:
    told = Notifier(environment)
    told.tell_ready("nobody hears")
    told.tell_stopping()
    told.close()
    assert told.watchdog_s == 0.0


def test_the_watchdog_of_another_process_is_not_ours() -> None:
    told = Notifier({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"})
    assert told.watchdog_s == 0.0


async def test_signs_of_life_go_on_while_the_loop_runs(manager: socket.socket) -> None:
    told = Notifier({"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "30000"})
    told.start()
    for _ in range(4):
        assert await asyncio.to_thread(hear, manager) == "WATCHDOG=1"
    told.close()


def test_a_manager_that_does_not_read_holds_nobody(manager: socket.socket) -> None:
    told = Notifier({"NOTIFY_SOCKET": manager.getsockname()})
    for _ in range(10_000):
        told.tell("again")
    told.close()


def test_a_supervisor_says_when_it_is_ready_and_when_it_stops(
    manager: socket.socket, tmp_path: Path
) -> None:
    """Ready once its worker accepts clients, whether or not the broker is there."""
    with lease_port() as listen, lease_port() as admin:
        command = [sys.executable, "-m", "proxy", "serve", "--upstream", f"{HOST}:1"]
        command += ["--listen", f"{HOST}:{listen.port}", "--admin", f"{HOST}:{admin.port}"]
        command += ["--cache-size", "16MiB"]
        environment = {
            **os.environ,
            "NOTIFY_SOCKET": manager.getsockname(),
            "WATCHDOG_USEC": "600000",
            "FOREBAY_CACHE_DIRECTORY": str(tmp_path),
        }
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        try:
            deadline, heard = time.monotonic() + PATIENCE_S, [hear(manager)]
            while not heard[-1].startswith("READY=1"):
                assert heard[-1] == "WATCHDOG=1" and time.monotonic() < deadline, heard[-1]
                heard.append(hear(manager))
            assert heard[-1] == "READY=1\nSTATUS=a worker serves clients"
            with socket.create_connection((HOST, listen.port)):
                pass
            assert hear(manager) == "WATCHDOG=1"
            process.send_signal(signal.SIGTERM)
            while not hear(manager).startswith("STOPPING=1"):
                assert time.monotonic() < deadline
        finally:
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
