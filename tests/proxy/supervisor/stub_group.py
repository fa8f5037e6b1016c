"""A supervisor in a process of its own, with stubs as its children (stub_process.py), and clients of theirs.

Owns the supervisor's process, the stubs' orders and their events. Must not know what is tested.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from proxy.config.model import MOST_WORKERS
from tests.kit.broker.ports import lease_port
from tests.kit.broker.process import die_with_parent
from tests.kit.broker.settings import HOST
from tests.kit.sidecar import kill_group
from tests.proxy.forebay_process import PATIENCE_S, wait_until

if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping

PROGRAM = Path(__file__).with_name("stub_process.py")
RUNNER = """
import asyncio, json, logging, sys
from proxy.supervisor import run, spawner
from proxy.supervisor.run import serve
from tests.proxy.supervisor.configured import build_config
logging.basicConfig(level="INFO", format="%(message)s")
settings = {tuple(path): value for path, value in json.loads(sys.argv[1])}
config = build_config(settings, sys.argv[2])
spawner.MOST_WORKERS = int(sys.argv[3])
run.SPARE_AFTER_S = 0.1
command = [sys.executable, "-I", "-S", *sys.argv[4:]]
raise SystemExit(asyncio.run(serve(config, command, "0", ())))
"""
KEEPER = "keeper", 0
Who = tuple[str, int]
"""Role and number."""


class Client:
    """A connection to a worker, or to the broker by a pipe."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((HOST, port), PATIENCE_S)

    def ask(self) -> Any:
        """Number and process of the worker that answers, "broker", or None once the connection has ended."""
        try:
            self.socket.sendall(b"who\n")
            said = self.socket.recv(100)
        except ConnectionError:
            return None
        return json.loads(said) if said else None

    def hold(self) -> None:
        """Keep the worker from ending in order before the next `ask`."""
        self.socket.sendall(b"hold\n")
        assert self.socket.recv(100) == b"null\n"

    def close(self) -> None:
        self.socket.close()


class StubGroup:
    """The supervisor and its stubs."""

    def __init__(
        self,
        directory: Path,
        workers: int = 2,
        orders: Mapping[str, str] | None = None,
        most: int = MOST_WORKERS,
        supervisor: Mapping[str, str] | None = None,
    ) -> None:
        """`most`: numbers that workers may have."""
        self.directory = directory
        (directory / "orders").mkdir()
        (directory / "events").touch()
        for name, words in (orders or {}).items():
            self.order(name, words)
        self._leases = [lease_port(), lease_port()]
        self.port, self.admin_port = (lease.port for lease in self._leases)
        self._broker = socket.create_server((HOST, 0))
        threading.Thread(target=self._answer_as_broker, daemon=True).start()
        self.log = directory / "log"
        settings: list[tuple[tuple[str | int, ...], str]] = [
            (("workers",), str(workers)),
            (("listeners", 0, "listen"), f"{HOST}:{self.port}"),
            (("admin", "listen"), f"{HOST}:{self.admin_port}"),
            (("cache", "directory"), ""),
            *((("supervisor", key), value) for key, value in (supervisor or {}).items()),
        ]
        upstream = "{}:{}".format(*self._broker.getsockname())
        command = [sys.executable, "-c", RUNNER, json.dumps(settings), upstream]
        with self.log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*command, str(most), str(PROGRAM), str(directory)],
                stderr=stderr,
                preexec_fn=die_with_parent,
                process_group=0,
            )
        self._clients: list[Client] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        if failure is not None:
            print(self.log.read_text(), (self.directory / "events").read_text(), sep="\n")
        for client in self._clients:
            client.close()
        kill_group(self.process)
        self._broker.close()
        for lease in self._leases:
            lease.release()

    def _answer_as_broker(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._broker.accept()
                threading.Thread(target=self._answer_piped, args=(client,), daemon=True).start()

    def _answer_piped(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while client.recv(100):
                client.sendall(b'"broker"\n')

    def order(self, name: str, words: str) -> None:
        """What stubs of that name do from their next start on; "": as usual."""
        path = self.directory / "orders" / name
        if words:
            path.with_suffix(".new").write_text(words)
            path.with_suffix(".new").rename(path)
        else:
            path.unlink()

    def read_events(self, event: str, who: Who | None = None) -> list[dict[str, Any]]:
        """All so far, in their order."""
        lines = (self.directory / "events").read_text().splitlines()
        return [
            one
            for one in map(json.loads, lines)
            if one["event"] == event and who in (None, (one["role"], one["number"]))
        ]

    def list_ready(self) -> dict[Who, int]:
        """Processes that are ready and run, by role and number."""
        return {
            (one["role"], one["number"]): one["pid"]
            for one in self.read_events("ready")
            if self.is_running(one["pid"])
        }

    def is_running(self, pid: int) -> bool:
        """Whether a child of the supervisor has not been reaped."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return pid in map(int, children.split())

    def wait_for_all(self, workers: int) -> dict[Who, int]:
        """Until the keeper and that many workers are ready."""
        wait_until(lambda: len(self.list_ready()) == workers + 1)
        return self.list_ready()

    def wait_for_next(self, who: Who, former: int) -> int:
        """Until another process than `former` is ready in its place; its id."""
        wait_until(lambda: self.list_ready().get(who, former) != former)
        return self.list_ready()[who]

    def wait_for_spare(self) -> int:
        """Until a spare process waits; its id."""
        wait_until(lambda: self.find_spare() is not None)
        found = self.find_spare()
        assert found is not None
        return found

    def find_spare(self) -> int | None:
        """The process that waits for a handover; None: there is none."""
        started = {one["pid"] for one in self.read_events("started")}
        for one in self.read_events("spare"):
            if one["pid"] not in started and self.is_running(one["pid"]):
                return int(one["pid"])
        return None

    def connect(self) -> Client:
        client = Client(self.port)
        self._clients.append(client)
        return client

    def connect_to_each(self, numbers: set[int]) -> dict[int, Client]:
        """A client of each worker with these numbers."""
        found: dict[int, Client] = {}

        def has_all() -> bool:
            client = self.connect()
            found.setdefault(client.ask()[0], client)
            return set(found) == numbers

        wait_until(has_all)
        return found

    def says(self, text: str) -> bool:
        return text in self.log.read_text()

    def ask(self, path: str) -> tuple[int, str]:
        """Status and text of an answer at the admin port; (0, "") if nobody answers."""
        try:
            with urllib.request.urlopen(
                f"http://{HOST}:{self.admin_port}{path}", timeout=PATIENCE_S
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read().decode()
        except OSError:
            return 0, ""

    def figure(self, *name: str) -> int:
        """A figure of the supervisor, as the keeper or the supervisor shows it; -1 if nobody answers."""
        metric, *label = name
        for line in self.ask("/metrics")[1].splitlines():
            shown, _, number = line.rpartition(" ")
            if shown == " ".join(name) or (
                shown.startswith(f"{metric}{{") and f'"{label[0]}"' in shown if label else False
            ):
                return int(float(number))
        return -1

    def send(self, number: signal.Signals) -> None:
        """A signal to the supervisor."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """The supervisor's exit code."""
        return self.process.wait(PATIENCE_S)
