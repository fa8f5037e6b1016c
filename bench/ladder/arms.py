"""The rungs: one broker, and every proxy before it, all running during the whole run.

Owns starting and ending them, and which process of each is measured. Must not know what is measured. Each
proxy has a listener of the broker's own behind it, which advertises the proxy: real clients stay on their
rung. Invariants: what is not installed is left out and said; idle rungs cost nothing but memory.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.ladder.bare import build_answers, start_bare_send, start_bare_store
from bench.ladder.bare_relay import start_bare_relay
from bench.ladder.kroxylicious import find_jars, start_kroxylicious
from tests.kit.broker.certificates import TlsFiles, write_certificates
from tests.kit.broker.jars import FetchFailed
from tests.kit.broker.java import JavaMissing
from tests.kit.broker.kafka import BrokerFailed, KafkaCluster
from tests.kit.broker.ports import PortLease, lease_port
from tests.kit.broker.probe import peek_broker_count
from tests.kit.broker.process import die_with_parent
from tests.kit.broker.settings import HOST, Listener
from tests.kit.sidecar import Sidecar, SidecarFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import ExitStack

DIRECT, HAPROXY, TUNED, KROXYLICIOUS = "direct", "haproxy", "haproxy-256k", "kroxylicious"
BARE = "bare-send"
"""Not a proxy: what the kernel charges for the bytes of a cached answer (bare_send.c)."""
STORE = "bare-store"
"""What anybody pays who relays Produces and keeps a copy of each (bare_store.c)."""
RELAY = "bare-relay"
"""What this language and event loop charge for standing between and looking at nothing (bare_relay.py)."""
PASS, CACHE, NO_LOG, TLS, WORKERS, AGAINST = (
    "forebay-pass",
    "forebay",
    "forebay-no-log",
    "forebay-tls",
    "forebay-workers",
    "forebay-other",
)
ALL = (
    DIRECT,
    HAPROXY,
    TUNED,
    KROXYLICIOUS,
    BARE,
    STORE,
    RELAY,
    PASS,
    CACHE,
    NO_LOG,
    TLS,
    WORKERS,
    AGAINST,
)
START_TIMEOUT_S = 30.0
CACHE_MIB = 256
LIMITS = {"maxConnections": 10_000}
"""More than idle connections are measured: the default closes those beyond 4,096."""
CACHE_SETTINGS: Mapping[str, Any] = {
    "cache": {"size": f"{CACHE_MIB}MiB"},
    "limits": LIMITS,
    "log": {"level": "warning", "format": "text"},
}
PASS_SETTINGS: Mapping[str, Any] = {
    "cache": {"mode": "off"},
    "limits": LIMITS,
    "isolation": {"enabled": False},
    "throttle": {"enabled": False},
    "accessLog": {},
    "log": {"level": "warning", "format": "text"},
}
WORKERS_SETTINGS: Mapping[str, Any] = {**CACHE_SETTINGS, "workers": 2}
NO_LOG_SETTINGS: Mapping[str, Any] = {**CACHE_SETTINGS, "accessLog": {}}
OVERRIDES: Mapping[str, object] = {
    "log.segment.bytes": 64 << 20,
    "log.retention.bytes": 256 << 20,
    "log.retention.check.interval.ms": 5_000,
    "log.segment.delete.delay.ms": 1_000,
    "message.max.bytes": 4 << 20,
}


CANNOT_RUN = (FetchFailed, JavaMissing, BrokerFailed, SidecarFailed, TimeoutError)
"""What ends a run before it has measured anything; the message says what to do."""


class Unfit(RuntimeError):
    """A rung cannot be had here; the message says why."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One rung. `pid` is the proxy's, 0 for none; `trust` the PEM file of its authority where it speaks TLS."""

    name: str
    address: str
    pid: int = 0
    sidecar: Sidecar | None = None
    trust: str | None = None

    @property
    def serves(self) -> bool:
        """Whether memory may answer."""
        return self.name in (CACHE, NO_LOG, TLS, WORKERS, AGAINST)


@dataclass(slots=True)
class Ladder:
    """All rungs that could be had, the broker, and what was left out and why."""

    broker: KafkaCluster
    arms: dict[str, Arm] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def broker_pid(self) -> int:
        """The one broker."""
        return self.broker.pid()


def open_ladder(stack: ExitStack, wanted: list[str], against: Path | None) -> Ladder:
    """Start the broker and the wanted rungs; the stack ends them. BrokerFailed, SidecarFailed."""
    directory = Path(tempfile.mkdtemp(prefix="forebay-ladder-"))
    stack.callback(shutil.rmtree, directory, ignore_errors=True)
    ports = {name: stack.enter_context(lease_port()) for name in wanted if name != DIRECT}
    listeners = [
        Listener(_listener_of(name), advertised=(HOST, lease.port))
        for name, lease in ports.items()
        if name != BARE
    ]
    broker = stack.enter_context(
        KafkaCluster(listeners=listeners, overrides=OVERRIDES, heap_mb=512)
    )
    ladder = Ladder(broker)
    if DIRECT in wanted:
        ladder.arms[DIRECT] = Arm(DIRECT, broker.direct)
    for name, lease in ports.items():
        upstream = "" if name == BARE else "{}:{}".format(*broker.address(_listener_of(name)))
        start = STARTERS[name]
        try:
            ladder.arms[name] = start(Place(stack, name, lease, upstream, directory, against))
        except (Unfit, FetchFailed) as missing:
            ladder.left_out[name] = str(missing).splitlines()[0]
    return ladder


def _listener_of(name: str) -> str:
    return name.replace("-", "").upper()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rung is to stand."""

    stack: ExitStack
    name: str
    lease: PortLease
    upstream: str
    directory: Path
    against: Path | None


def _start_haproxy(place: Place) -> Arm:
    program = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise Unfit("haproxy is not installed (Debian: apt-get install haproxy)")
    tuned = "    tune.bufsize 262144\n" if place.name == TUNED else ""
    splice = "    option splice-auto\n" if place.name == TUNED else ""
    config = place.directory / f"{place.name}.cfg"
    config.write_text(
        f"global\n    maxconn 4000\n    nbthread 1\n{tuned}"
        f"defaults\n    mode tcp\n    timeout connect 5s\n    timeout client 10m\n    timeout server 10m\n{splice}"
        f"listen kafka\n    bind {HOST}:{place.lease.port}\n    server broker {place.upstream}\n"
    )
    child = subprocess.Popen([program, "-db", "-q", "-f", str(config)], preexec_fn=die_with_parent)
    return _keep(place, child)


def _keep(
    place: Place, child: subprocess.Popen[bytes], answers: Callable[[], object] | None = None
) -> Arm:
    """The rung of a process that the stack ends, once it is up."""
    place.stack.callback(child.wait, 10)
    place.stack.callback(child.kill)
    arm = Arm(place.name, f"{HOST}:{place.lease.port}", child.pid)
    return _wait_up(arm, lambda: child.poll() is None, answers)


def _start_kroxylicious(place: Place) -> Arm:
    jars = find_jars()
    process = start_kroxylicious(jars, place.lease.port, place.upstream, place.directory)
    place.stack.callback(process.stop)
    arm = Arm(place.name, f"{HOST}:{place.lease.port}", process.pid)
    return _wait_up(arm, lambda: process.is_running)


def _start_bare_send(place: Place) -> Arm:
    with _compiling():
        child = start_bare_send(place.directory, place.lease.port, CACHE_MIB << 20, build_answers())
    return _keep(place, child, lambda: _takes_connections((HOST, place.lease.port)))


def _start_bare_store(place: Place) -> Arm:
    with _compiling():
        child = start_bare_store(place.directory, place.lease.port, place.upstream, CACHE_MIB << 20)
    return _keep(place, child)


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise Unfit(f"the floors in C need a C compiler: {error}") from error


def _start_bare_relay(place: Place) -> Arm:
    return _keep(place, start_bare_relay(place.lease.port, place.upstream))


def _takes_connections(address: tuple[str, int]) -> bool:
    with socket.create_connection(address, START_TIMEOUT_S):
        return True


def _start_forebay(place: Place) -> Arm:
    entry: dict[str, Any] = {"listen": f"{HOST}:{place.lease.port}", "upstream": place.upstream}
    others = {PASS: PASS_SETTINGS, NO_LOG: NO_LOG_SETTINGS, WORKERS: WORKERS_SETTINGS}
    settings = others.get(place.name, CACHE_SETTINGS)
    files: TlsFiles | None = None
    if place.name == TLS:
        files = write_certificates(place.directory)
        entry["tls"] = _tls_entry(place.directory, files)
    if place.name == AGAINST and place.against is None:
        raise Unfit("no other tree was given (--against)")
    tree = place.against if place.name == AGAINST and place.against else Path()
    own = (tree / ".venv/bin/python").absolute()  # another tree may bring another interpreter
    interpreter = own if own.exists() else sys.executable
    sidecar = Sidecar([entry], settings, interpreter=interpreter, supervisor=None)
    with contextlib.chdir(tree):
        place.stack.enter_context(sidecar)
    trust = str(files.authority) if files is not None else None
    return Arm(place.name, f"{HOST}:{place.lease.port}", sidecar.pid, sidecar, trust)


def _tls_entry(directory: Path, files: TlsFiles) -> dict[str, str]:
    return {"certificateFile": str(files.server.certificate), "keyFile": str(files.server.key)}


def _wait_up(
    arm: Arm, is_running: Callable[[], bool], answers: Callable[[], object] | None = None
) -> Arm:
    """Until the broker answers through it, or what else `answers` asks. Unfit."""
    host, port = arm.address.split(":")
    answers = answers or (lambda: peek_broker_count((host, int(port))))
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and is_running():
        with contextlib.suppress(OSError):
            if answers():
                return arm
        time.sleep(0.1)
    raise Unfit(f"{arm.name} did not come up in {START_TIMEOUT_S:.0f} s")


STARTERS: Mapping[str, Callable[[Place], Arm]] = {
    HAPROXY: _start_haproxy,
    TUNED: _start_haproxy,
    KROXYLICIOUS: _start_kroxylicious,
    BARE: _start_bare_send,
    STORE: _start_bare_store,
    RELAY: _start_bare_relay,
    **dict.fromkeys((PASS, CACHE, NO_LOG, TLS, WORKERS, AGAINST), _start_forebay),
}
