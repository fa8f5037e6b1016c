"""A Java process that cannot outlive whoever started it.

Owns the command line common to all of Kafka's programs, and the killing: the child leads a process group,
which is killed on `stop`; the kernel kills it when the *thread* that started it ends (PR_SET_PDEATHSIG), so
start it from one that lives on. Must not know what the program does.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.kit.broker.class_archive import share_classes
from tests.kit.broker.jars import KAFKA_4, kafka_jars
from tests.kit.broker.java import find_java

if TYPE_CHECKING:
    from collections.abc import Sequence

# Short-lived programs: compile little, collect simply, share classes between runs.
JVM_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
LOG_FLAGS = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)
TOOL_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 120.0
STALL_TIMEOUT_S = 20.0
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class ToolFailed(RuntimeError):
    """A command-line tool exited with an error; the message is what it printed."""


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Runs in the child before exec: signal `number` reaches it when its parent's thread ends."""
    _libc.prctl(PR_SET_PDEATHSIG, number)


def _is_stopped(thread: Path) -> bool:
    """A thread of /proc that does nothing, or is gone."""
    with contextlib.suppress(OSError):
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] in "TZX"
    return True


def java_command(
    main: str, *args: str, version: str, heap_mb: int, log_level: str, flags: "Sequence[str]"
) -> list[str]:
    """The command line of one of Kafka's main classes. Raises JavaMissing, FetchFailed."""
    log_flag = f"-Dorg.slf4j.simpleLogger.defaultLogLevel={log_level}"
    classes = [*share_classes(version), "-cp", f"{kafka_jars(version)}/*"]
    return [find_java(), f"-Xmx{heap_mb}m", *LOG_FLAGS, log_flag, *flags, *classes, main, *args]


class JavaProcess:
    """A running program; output and log go to one file. Not restartable."""

    def __init__(self, command: "Sequence[str]", log_path: "Path") -> None:
        self.log_path = log_path
        with log_path.open("ab") as log:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=log_path.parent,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self.pid = self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child.poll() is None

    def signal(self, number: int) -> None:
        """Sends a signal to the whole group, if it still runs (SIGSTOP and SIGCONT stall and wake it)."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def stall(self) -> None:
        """SIGSTOP, and until every thread has stopped: one that runs may still answer after the signal was sent."""
        self.signal(signal.SIGSTOP)
        deadline = time.monotonic() + STALL_TIMEOUT_S
        while self.is_running and not all(
            map(_is_stopped, Path(f"/proc/{self.pid}/task").iterdir())
        ):
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {self.pid} does not stop on SIGSTOP")
            time.sleep(0.001)

    def stop(self, *, gracefully: bool = False, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Ends the group: SIGKILL, after SIGTERM and `timeout_s` if `gracefully`. Idempotent. False: it was killed."""
        if gracefully:
            self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(timeout_s)
        self.signal(signal.SIGKILL)
        return self._child.wait() != -signal.SIGKILL

    def log_tail(self, size_bytes: int = 4000) -> str:
        """The end of the log, for error messages."""
        return self.log_path.read_bytes()[-size_bytes:].decode(errors="replace")


def kafka_tool(
    main: str,
    *args: str,
    version: str = KAFKA_4,
    timeout_s: float = TOOL_TIMEOUT_S,
    heap_mb: int = 128,
    stdin: str | None = None,
    flags: "Sequence[str]" = JVM_FLAGS,
) -> str:
    """Runs a main class of Kafka's jars, e.g. "org.apache.kafka.tools.TopicCommand"; returns what it printed.

    Raises ToolFailed (exit status, both outputs), subprocess.TimeoutExpired, JavaMissing, FetchFailed.
    """
    command = java_command(
        main, *args, version=version, heap_mb=heap_mb, log_level="warn", flags=flags
    )
    done = subprocess.run(
        command,
        input=stdin or "",
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    if done.returncode != 0:
        raise ToolFailed(f"{main} exited with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout
