"""A real `forebay serve` in front of a real broker, for tests, demo and bench.

Owns supervisor and worker (one process group), their configuration file, ports and what an operator would read from
them: metrics, readiness, access log. It must not know Kafka beyond addresses. Invariant: the supervisor is told to end
(SIGTERM, so that the arena goes too) when the thread that started it ends, however that happens.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.kit.broker.kafka import KafkaCluster
from tests.kit.broker.ports import PortLease, lease_port
from tests.kit.broker.process import die_with_parent
from tests.kit.broker.settings import HOST, Listener
from tests.kit.processes import list_children
from tests.kit.scrape import read_samples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 120.0
POLL_S = 0.05
ABSENT = Path(__file__).with_name("absent")
"""Modules that a Forebay does not find, as where only Forebay is installed."""
CLIENT = "CLIENT"
"""The name of a ProxiedBroker's listener for clients."""
PATIENT_CACHE = {"size": "64MiB", "holeWait": "100ms", "confirmEvery": "3s"}
"""For tests that ask how much was served from memory: a busy machine takes longer over what is at once elsewhere."""

PATIENT_SUPERVISOR = {"heartbeatTimeout": "30s", "startTimeout": "300s"}
"""Of a Sidecar that is told nothing else: a busy machine lets a worker wait for seconds, though it does not hang."""


_REFUSING = """
import os, sys
if "worker" in sys.orig_argv and os.path.exists({!r}):
    os._exit(3)
"""


class SidecarFailed(RuntimeError):
    """Forebay did not start; the message holds its log, `exit_code` is None if it did not end either."""

    def __init__(self, message: str, exit_code: int | None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Sidecar:
    """One Forebay. `listeners` are entries of its configuration; `settings` everything else. `supervisor`: that section
    where `settings` has none; None: Forebay's own defaults.
    """

    def __init__(
        self,
        listeners: Sequence[Mapping[str, Any]],
        settings: Mapping[str, Any] | None = None,
        leases: Sequence[PortLease] = (),
        interpreter: Path | str = sys.executable,
        supervisor: Mapping[str, Any] | None = PATIENT_SUPERVISOR,
    ) -> None:
        self._interpreter = str(interpreter)
        self.directory = Path(tempfile.mkdtemp(prefix="forebay-"))
        self.log_directory = self.directory / "access"
        self.log_directory.mkdir()
        self._leases = [*leases, lease_port()]
        self.admin_port = self._leases[-1].port
        self._settings = {
            "listeners": [dict(entry) for entry in listeners],
            "cache": {"size": "64MiB"},
            "admin": {"listen": f"{HOST}:{self.admin_port}"},
            "accessLog": {"directory": str(self.log_directory)},
            "log": {"level": "info", "format": "text"},
            **({} if supervisor is None else {"supervisor": dict(supervisor)}),
            **(settings or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """Where clients connect: the first listener."""
        return str(self._settings["listeners"][0]["listen"])

    @property
    def log_path(self) -> Path:
        """Forebay's own log."""
        return self.directory / "forebay.log"

    @property
    def pid(self) -> int:
        """Of the running supervisor, which leads the process group and takes signals."""
        assert self._process is not None
        return self._process.pid

    @property
    def worker_pid(self) -> int:
        """Of the worker, which carries clients' bytes; the supervisor's own where it has no child: a build without one.
        LookupError where the worker is being replaced.
        """
        found = find_worker(self.pid)
        return self.pid if found is None else found

    @property
    def resident_bytes(self) -> int:
        """Private memory of the worker: the arena is shared, and counted as its own."""
        fields = Path(f"/proc/{self.worker_pid}/statm").read_text().split()
        return (int(fields[1]) - int(fields[2])) * 4096

    @property
    def descriptors(self) -> int:
        """How many file descriptors the worker has open."""
        return sum(1 for _ in Path(f"/proc/{self.worker_pid}/fd").iterdir())

    def signal_worker(self, number: int) -> None:
        """To the worker alone; nothing where it is being replaced just now."""
        worker = find_worker(self.pid)
        if worker is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, number)

    def log_tail(self, size_bytes: int = 6000) -> str:
        """The end of Forebay's own log."""
        return (
            self.log_path.read_text(errors="replace")[-size_bytes:]
            if self.log_path.exists()
            else ""
        )

    def wait_for_log(self, text: str) -> None:
        """Until Forebay's own log has `text`: its thread writes it when it can. AssertionError where it never does."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while text not in self.log_path.read_text(errors="replace"):
            assert time.monotonic() < deadline, f"{text!r} is not in the log:\n{self.log_tail()}"
            time.sleep(POLL_S)

    def write_config(self, settings: Mapping[str, Any]) -> Path:
        """Write the configuration's file, with these sections in place of the former ones."""
        self._settings |= settings
        config = self.directory / "forebay.yaml"
        config.write_text(json.dumps(self._settings, indent=1))  # JSON is YAML
        return config

    def reload(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Write these sections and reload by the admin port; its answer, also to a refused configuration."""
        self.write_config(settings)
        return self.post("/reload")

    def switch(self, name: str, value: str, **parameters: str) -> dict[str, Any]:
        """Throw a switch by the admin port; its answer, also to one that is refused."""
        query = urllib.parse.urlencode({"switch": name, "value": value, **parameters})
        return self.post(f"/switches?{query}")

    def post(self, path: str) -> dict[str, Any]:
        """POST to the admin port; its answer in JSON, also to what is refused."""
        asked = urllib.request.Request(f"http://{HOST}:{self.admin_port}{path}", method="POST")
        try:
            with urllib.request.urlopen(asked, timeout=START_TIMEOUT_S) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as refusal:
            with refusal:
                return dict(json.load(refusal))

    def start(self, timeout_s: float = START_TIMEOUT_S) -> Self:
        """Start, and wait until it is ready. Raises SidecarFailed where it ends, or is not ready in time."""
        config = self.write_config({})
        command = [self._interpreter, "-m", "proxy", "serve", "--config", str(config)]
        with self.log_path.open("ab") as log:
            end_with_parent = partial(die_with_parent, signal.SIGTERM)
            path = os.pathsep.join((str(ABSENT), *filter(None, [os.environ.get("PYTHONPATH")])))
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path},
                preexec_fn=end_with_parent,
                process_group=0,
            )
        deadline = time.monotonic() + timeout_s
        while not self.is_ready():
            exit_code = self._process.poll()
            if exit_code is not None or time.monotonic() > deadline:
                raise SidecarFailed(f"forebay is not ready:\n{self.log_tail()}", exit_code)
            time.sleep(POLL_S)
        return self

    def is_ready(self) -> bool:
        """What /readyz says."""
        try:
            return bool(self.admin("/readyz"))
        except OSError:
            return False

    def admin(self, path: str) -> str:
        """GET from the admin server. urllib.error.URLError (an OSError) for anything but 200."""
        with urllib.request.urlopen(f"http://{HOST}:{self.admin_port}{path}", timeout=5) as answer:
            return str(answer.read().decode())

    def metrics(self) -> dict[tuple[str, ...], float]:
        """The scrape: (sample name, label values in the order of their names...) -> value."""
        return read_samples(self.admin("/metrics"))

    def fetch_counts(self, kind: str = "bytes") -> dict[tuple[str, str], float]:
        """(result, reason) -> record bytes or partitions of fetches, those above zero."""
        name = f"forebay_fetch_{kind}_total"
        counts = {}
        for key, value in self.metrics().items():
            if key[0] == name and value:
                reason, result = key[1], key[2]
                counts[result, reason] = value
        return counts

    def fetch_requests(self) -> float:
        """Fetches received so far; the answer to one within a session may name no partition at all."""
        return self.metrics().get(("forebay_client_to_proxy_request_total", "Fetch"), 0)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop it; the exit code. SIGKILL ends both processes, whatever they do. A second call does nothing."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        if number == signal.SIGKILL:
            return kill_group(process)
        process.send_signal(number)
        try:
            return process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            kill_group(process)
            raise

    def access_lines(self) -> list[dict[str, Any]]:
        """Every line of the access log, in order; call it after `stop`."""
        lines: list[dict[str, Any]] = []
        for path in sorted(self.log_directory.iterdir()):
            data = path.read_bytes()
            text = gzip.decompress(data) if path.suffix == ".gz" else data
            lines += map(json.loads, text.splitlines())
        return lines

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            error.add_note(f"Forebay's log ends:\n{self.log_tail()}")
        self.stop()
        for lease in self._leases:
            lease.release()
        shutil.rmtree(self.directory, ignore_errors=True)


def find_worker(supervisor: int) -> int | None:
    """The process id of a supervisor's worker; None where there is none at this moment. A child before its exec is none
    yet: its parent waits for it (vfork), and whoever stops it stops both.
    """
    for child in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split():
        with contextlib.suppress(OSError):
            if b"worker" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                return int(child)
    return None


def refuse_workers(directory: Path) -> Path:
    """Fill `directory`, for PYTHONPATH: while the file that is returned exists, workers end at their start."""
    refusal = directory / "refused"
    (directory / "sitecustomize.py").write_text(_REFUSING.format(str(refusal)))
    return refusal


def kill_group(process: subprocess.Popen[bytes]) -> int:
    """SIGKILL to a supervisor that leads its group, and to its children; the supervisor's exit code, once all are gone:
    an orphaned worker would hold the arena a little longer.
    """
    with contextlib.ExitStack() as stack:
        for child in list_children(process.pid) if process.poll() is None else ():
            with contextlib.suppress(OSError):
                fd = os.pidfd_open(child)
                stack.callback(os.close, fd)
                ending = select.poll()  # `select` refuses descriptors above 1023
                ending.register(fd, select.POLLIN)
                stack.callback(ending.poll, STOP_TIMEOUT_S * 1e3)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


class ProxiedBroker:
    """A broker that advertises to clients an address in front of it, where one Forebay after another may listen."""

    def __init__(self, cluster: Mapping[str, Any] | None = None) -> None:
        """`cluster`: arguments of KafkaCluster."""
        self._lease = lease_port()
        client = Listener(CLIENT, advertised=(HOST, self._lease.port))
        self.cluster = KafkaCluster(listeners=[client], **(cluster or {}))

    @property
    def advertised(self) -> str:
        """Where a Forebay is to listen."""
        return f"{HOST}:{self._lease.port}"

    @property
    def upstream(self) -> str:
        """Where the broker listens for clients."""
        host, port = self.cluster.address(CLIENT)
        return f"{host}:{port}"

    def __enter__(self) -> Self:
        self.cluster.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cluster.__exit__(kind, error, trace)
        self._lease.release()


class Pair:
    """A broker with a Forebay beside it, in sidecar mode: what the broker advertises to clients is Forebay.

    `shared`: the broker, which runs and stays; without it, Pair starts one of its own with `cluster`, arguments of
    KafkaCluster.
    """

    def __init__(
        self,
        cluster: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        interpreter: Path | str = sys.executable,
        shared: ProxiedBroker | None = None,
    ) -> None:
        assert cluster is None or shared is None
        self._proxied = shared or ProxiedBroker(cluster)
        self._is_shared = shared is not None
        self._given = settings
        self._interpreter = interpreter
        self._stack = ExitStack()
        self.sidecar: Sidecar

    @property
    def broker(self) -> KafkaCluster:
        """The broker behind Forebay."""
        return self._proxied.cluster

    @property
    def direct(self) -> str:
        """Bootstrap servers past Forebay."""
        return self.broker.direct

    @property
    def through(self) -> str:
        """Bootstrap servers through Forebay."""
        return self._proxied.advertised

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if not self._is_shared:
                stack.enter_context(self._proxied)
            entry = {"listen": self.through, "upstream": self._proxied.upstream}
            sidecar = Sidecar([entry], self._given, interpreter=self._interpreter)
            self.sidecar = stack.enter_context(sidecar)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)
