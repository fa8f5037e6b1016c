"""A real `forebay serve` without a broker, for tests of the process alone.

Owns the process, its ports and the responses of its admin server. Must not know a broker.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Self

from prometheus_client.parser import text_string_to_metric_families

from tests.kit.broker.ports import lease_port
from tests.kit.broker.process import die_with_parent
from tests.kit.broker.settings import HOST
from tests.kit.sidecar import find_worker, kill_group

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

PATIENCE_S = 60.0
NO_FRAME = b"\xff\xff\xff\xff"


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Alone:
    """The process. `stderr` is a descriptor for its log. `tls`: how its admin server is verified; None: plain text."""

    def __init__(self, stderr: int, *flags: str, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._leases = [lease_port(), lease_port()]
        self.port, self.admin_port = (lease.port for lease in self._leases)
        places = {"listen": self.port, "upstream": 1, "admin": self.admin_port}
        command = [sys.executable, "-m", "proxy", "serve", "--cache-size", "16MiB", *flags]
        for name, number in places.items():
            command += [f"--{name}", f"{HOST}:{number}"]
        self.process = subprocess.Popen(
            command, stderr=stderr, preexec_fn=die_with_parent, process_group=0
        )

    def __enter__(self) -> Self:
        wait_until(self.is_started)
        return self

    def __exit__(self, *_: object) -> None:
        kill_group(self.process)
        self.arena.unlink(missing_ok=True)
        for lease in self._leases:
            lease.release()

    @property
    def arena(self) -> Path:
        """Its cache's file."""
        return Path(f"/dev/shm/forebay-{self.port}.arena")

    def ask(self, path: str, token: str = "") -> str:
        """GET from the admin server; OSError for anything but 200."""
        scheme = "http" if self._tls is None else "https"
        asked = urllib.request.Request(f"{scheme}://{HOST}:{self.admin_port}{path}")
        if token:
            asked.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(asked, timeout=PATIENCE_S, context=self._tls) as answer:
            return str(answer.read().decode())

    def is_alive(self) -> bool:
        with contextlib.suppress(OSError):
            return self.ask("/livez") == "alive\n"
        return False

    def is_started(self) -> bool:
        """Whether a worker answers: its broker is not reachable."""
        try:
            self.ask("/readyz")
        except urllib.error.HTTPError as refusal:
            return b"the broker at" in refusal.read()
        except OSError:
            return False
        return True

    @property
    def worker_pid(self) -> int | None:
        """None while the supervisor has no child."""
        return find_worker(self.process.pid)

    def metric(self, name: str) -> float:
        families = text_string_to_metric_families(self.ask("/metrics"))
        (found,) = [one.value for family in families for one in family.samples if one.name == name]
        return found

    def send_no_frame(self) -> None:
        """Connect a client whose bytes make Forebay close it."""
        with socket.create_connection((HOST, self.port), PATIENCE_S) as client:
            client.sendall(NO_FRAME)
            with contextlib.suppress(ConnectionError):
                assert client.recv(1) == b""
