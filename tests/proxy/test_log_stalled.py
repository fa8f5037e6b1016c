"""A real `forebay serve` whose standard error is a pipe that nobody reads, and that is full.

Owns that process and the pipe. Must not know how lines are kept. Needs no broker: clients that send what is no frame
are closed before one is asked.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.broker.ports import lease_port
from tests.broker.process import die_with_parent
from tests.broker.settings import HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE_S = 60.0
NO_FRAME = b"\xff\xff\xff\xff"
BAD_FRAMES = 1000


class Stalled:
    """The process."""

    def __init__(self, port: int, admin_port: int, writer: int) -> None:
        flags = {"listen": port, "upstream": 1, "admin": admin_port}
        command = [sys.executable, "-m", "proxy", "serve", "--cache-size", "16MiB"]
        for name, number in flags.items():
            command += [f"--{name}", f"{HOST}:{number}"]
        self.port, self.admin_port = port, admin_port
        self.process = subprocess.Popen(command, stderr=writer, preexec_fn=partial(die_with_parent))

    def ask(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{HOST}:{self.admin_port}{path}", timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())

    def is_alive(self) -> bool:
        with contextlib.suppress(OSError):
            return self.ask("/livez") == "alive\n"
        return False

    def send_no_frame(self) -> None:
        """A client that is closed for what it sends."""
        with socket.create_connection((HOST, self.port), PATIENCE_S) as client:
            client.sendall(NO_FRAME)
            with contextlib.suppress(ConnectionError):
                assert client.recv(1) == b""

    def metric(self, name: str) -> float:
        families = text_string_to_metric_families(self.ask("/metrics"))
        (found,) = [one.value for family in families for one in family.samples if one.name == name]
        return found


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def fill(pipe: int) -> None:
    os.set_blocking(pipe, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, b"x" * 4096)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(pipe, b"x")
    os.set_blocking(pipe, True)  # the process shares this end


@pytest.fixture
def stalled() -> Iterator[Stalled]:
    reader, writer = os.pipe()
    with lease_port() as one, lease_port() as other:
        fill(writer)
        running = Stalled(one.port, other.port, writer)
        os.close(writer)
        try:
            yield running
        finally:
            running.process.kill()
            running.process.wait()
            os.close(reader)
            Path(f"/dev/shm/forebay-{one.port}.arena").unlink(missing_ok=True)


def test_a_log_that_nobody_reads_holds_nobody(stalled: Stalled) -> None:
    """Its lines are counted, and the end of the process does not wait for it."""
    wait_until(stalled.is_alive)
    for _ in range(BAD_FRAMES):
        stalled.send_no_frame()
    assert stalled.is_alive()
    assert stalled.metric("forebay_bad_frames_total") == BAD_FRAMES
    assert stalled.metric("forebay_log_suppressed_lines_total") > 0
    stalled.process.terminate()
    assert stalled.process.wait(PATIENCE_S) == 0, "with the pipe still full"
