"""Brokers that tests start, as context managers: `KafkaBroker()`, or `KafkaCluster(3)` for several.

Owns a temporary folder, the start (again on other ports where one was taken), the wait until the broker
answers, and the end. A broker listens on DIRECT (plain text, see settings.py) and on the listeners given; in
sidecar mode a listener advertises Forebay's address, which must be leased (ports.lease_port) before the
start.
"""

import contextlib
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.kit.broker.certificates import TlsFiles, write_certificates
from tests.kit.broker.jars import KAFKA_4
from tests.kit.broker.ports import PortLease, lease_port
from tests.kit.broker.probe import peek_broker_count
from tests.kit.broker.process import (
    JVM_FLAGS,
    STOP_TIMEOUT_S,
    TOOL_TIMEOUT_S,
    JavaProcess,
    java_command,
    kafka_tool,
)
from tests.kit.broker.settings import (
    CONTROLLER,
    DIRECT,
    HOST,
    Listener,
    Node,
    build_properties,
    build_scram_arguments,
)
from tests.kit.broker.storage import build_id, build_kind, keep_formatted, write_formatted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

USERS = {"admin": "admin-secret", "alice": "alice-secret"}
START_TIMEOUT_S = 300.0
START_ATTEMPTS = 3
POLL_S = 0.1


class BrokerFailed(RuntimeError):
    """A broker did not start; the message holds the end of its log."""


class KafkaCluster:
    """`size` combined brokers and controllers with node ids 1..size; all state in one temporary folder."""

    def __init__(
        self,
        size: int = 1,
        *,
        version: str = KAFKA_4,
        listeners: "Sequence[Listener]" = (),
        users: "Mapping[str, str]" = USERS,
        authorizer: bool = False,
        overrides: "Mapping[str, object] | None" = None,
        heap_mb: int = 320,
        jvm_flags: "Sequence[str]" = JVM_FLAGS,
        directory: Path | None = None,
    ) -> None:
        """`users`: name -> password, for PLAIN and SCRAM. State and logs stay in `directory`, if given."""
        self.version = version
        self.size = size
        self.listeners = tuple(listeners)
        self.users = dict(users)
        self.authorizer = authorizer
        self.overrides = dict(overrides or {})
        self.heap_mb = heap_mb
        self.jvm_flags = tuple(jvm_flags)
        self.tls: TlsFiles | None = None
        self._given = directory
        self.directory = directory or Path()
        self._leases: list[PortLease] = []
        self.nodes: tuple[Node, ...] = ()
        self._processes: dict[int, JavaProcess] = {}

    def __enter__(self) -> Self:
        self.directory = self._given or Path(tempfile.mkdtemp(prefix="forebay-kafka-"))
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            if any(listener.uses_tls for listener in self.listeners):
                self.tls = write_certificates(self.directory)
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: "TracebackType | None",
    ) -> None:
        if isinstance(error, Exception) and self._given is None:
            error.add_note(f"The brokers' logs end:\n{self.log_tail()}")
        for process in self._processes.values():
            process.stop()
        for lease in self._leases:
            lease.release()
        if self._given is None:
            shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def direct(self) -> str:
        """Bootstrap servers that bypass Forebay: "host:port,...", plain text."""
        return ",".join(f"{HOST}:{node.ports[DIRECT]}" for node in self.nodes)

    def address(self, listener: str = DIRECT, node_id: int = 1) -> tuple[str, int]:
        """Where a listener of a node really listens (host, port), whatever it advertises."""
        return HOST, self.nodes[node_id - 1].ports[listener]

    def pid(self, node_id: int = 1) -> int:
        """The broker's process, e.g. to read its /proc files."""
        return self._processes[node_id].pid

    def log_path(self, node_id: int = 1) -> Path:
        """What the broker logged."""
        return self.directory / f"broker-{node_id}.log"

    def log_tail(self, size_bytes: int = 4000) -> str:
        """The end of each broker's log, for error messages."""
        tails = (process.log_tail(size_bytes) for process in self._processes.values())
        return "\n".join(f"... {tail}" for tail in tails)

    def log_dir(self, node_id: int = 1) -> Path:
        """The broker's log.dirs: partitions' segments lie below it."""
        return self.directory / f"data-{node_id}"

    def tool(
        self, main: str, *args: str, timeout_s: float = TOOL_TIMEOUT_S, stdin: str = ""
    ) -> str:
        """kafka_tool (see there) of this cluster's version."""
        return kafka_tool(main, *args, version=self.version, timeout_s=timeout_s, stdin=stdin)

    def stall(self, node_id: int = 1) -> None:
        """Freezes a broker (SIGSTOP): its sockets stay open and silent."""
        self._processes[node_id].stall()

    def wake(self, node_id: int = 1) -> None:
        self._processes[node_id].signal(signal.SIGCONT)

    def stop(
        self, node_id: int = 1, *, gracefully: bool = False, timeout_s: float = STOP_TIMEOUT_S
    ) -> bool:
        """Ends one broker; its data stays. False: it was killed, as it is after `timeout_s` of a graceful end."""
        return self._processes[node_id].stop(gracefully=gracefully, timeout_s=timeout_s)

    def start(self, node_id: int = 1) -> None:
        """Starts a stopped broker again on its ports and data, and waits for it. Raises BrokerFailed."""
        self._launch(self.nodes[node_id - 1])
        self._wait_ready([self.nodes[node_id - 1]])

    def _start(self) -> None:
        for attempt in range(START_ATTEMPTS):
            self._lay_out()
            for node in self.nodes:
                self._launch(node)
            try:
                return self._wait_ready(self.nodes)
            except BrokerFailed as failed:
                for process in self._processes.values():
                    process.stop()
                if attempt + 1 == START_ATTEMPTS or "Address already in use" not in str(failed):
                    raise
        return None

    def _lay_out(self) -> None:
        """Leases ports anew, writes the settings and formats the data folders."""
        for lease in self._leases:
            lease.release()
        names = (CONTROLLER, DIRECT, *(listener.name for listener in self.listeners))
        self._leases = [lease_port() for _ in range(self.size * len(names))]
        ports = iter(lease.port for lease in self._leases)
        self.nodes = tuple(
            Node(number + 1, {name: next(ports) for name in names}) for number in range(self.size)
        )
        cluster_id = build_id()
        for node in self.nodes:
            shutil.rmtree(self.log_dir(node.node_id), ignore_errors=True)
            properties = build_properties(
                node,
                self.nodes,
                self.log_dir(node.node_id),
                listeners=self.listeners,
                users=self.users,
                tls=self.tls,
                authorizer=self.authorizer,
                overrides=self.overrides,
            )
            path = self.directory / f"server-{node.node_id}.properties"
            path.write_text(properties)
            self._format(node, path, cluster_id)

    def _format(self, node: Node, properties: Path, cluster_id: str) -> None:
        """The node's log directories."""
        scram = build_scram_arguments(self.listeners, self.users)
        kind = build_kind(self.version, self.overrides, scram)
        log_dir = self.log_dir(node.node_id)
        if not write_formatted(kind, log_dir, cluster_id, node.node_id):
            named = (f"--cluster-id={cluster_id}", "-c", str(properties))
            self.tool("kafka.tools.StorageTool", "format", *named, *scram)
            keep_formatted(kind, log_dir)

    def _launch(self, node: Node) -> None:
        settings = str(self.directory / f"server-{node.node_id}.properties")
        command = java_command(
            "kafka.Kafka",
            settings,
            version=self.version,
            heap_mb=self.heap_mb,
            log_level="info",
            flags=self.jvm_flags,
        )
        self._processes[node.node_id] = JavaProcess(command, self.log_path(node.node_id))

    def _wait_ready(self, nodes: "Sequence[Node]") -> None:
        """Until each of the nodes sees the whole running cluster. Raises BrokerFailed."""
        deadline = time.monotonic() + START_TIMEOUT_S
        for node in nodes:
            process = self._processes[node.node_id]
            while not self._is_ready(node):
                if not process.is_running or time.monotonic() > deadline:
                    state = "not ready in time" if process.is_running else "ended"
                    raise BrokerFailed(f"broker {node.node_id} {state}:\n{process.log_tail()}")
                time.sleep(POLL_S)

    def _is_ready(self, node: Node) -> bool:
        running = sum(process.is_running for process in self._processes.values())
        with contextlib.suppress(OSError):
            return peek_broker_count((HOST, node.ports[DIRECT])) >= running
        return False


KafkaBroker = KafkaCluster  # a cluster of one is the usual case
