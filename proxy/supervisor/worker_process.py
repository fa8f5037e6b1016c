"""Worker process: one child that carries clients' bytes, from exec to its end.

Owns its pidfd and the reading end of its heartbeat. Must not know why it was started, nor what
happens after its end. Invariants:
* silence is counted in the supervisor's own ticks, so that a machine which stood still as a whole
  kills no worker; of a tick counts what the worker could use (starvation.py).
* the process is reaped here, and none of its descriptors stays open.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from proxy.supervisor.heartbeat import BEATS, READY, RELOADED
from proxy.supervisor.oom_kills import count_oom_kills
from proxy.supervisor.starvation import count_own_s, read_usage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from proxy.config.model import Config
    from proxy.supervisor.figures import Reason
    from proxy.supervisor.starvation import Usage

STARVED_TIMEOUTS = 20
"""A worker that gets no processor is killed after so many times the silence of one that gets it."""
_READ_BYTES = 4096
_FAULTS = frozenset(
    {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGSYS}
)


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """How a worker ended. `code`: its exit code, or -N for signal N."""

    reason: Reason
    code: int
    was_ready: bool
    lived_s: float

    @property
    def is_fault(self) -> bool:
        """Whether its program went wrong, so that it may have written anything to memory before."""
        return -self.code in _FAULTS

    @property
    def is_from_outside(self) -> bool:
        """Whether others have ended it while it served: by a signal, also one at which it drained.
        Neither its program nor what it holds is the cause.
        """
        is_killed = self.reason == "signal" and not self.is_fault
        return self.was_ready and (is_killed or (self.reason == "exit" and self.code == 0))

    def __str__(self) -> str:
        if self.reason == "exit":
            return f"exit code {self.code}"
        if self.reason == "oom":
            return "SIGKILL, for want of memory (OOM killer)"
        name = signal.Signals(-self.code).name if self.code < 0 else f"exit code {self.code}"
        return f"no heartbeat, {name}" if self.reason == "hung" else name


class WorkerProcess:
    """A running worker. `ended` gives its WorkerEnd, `silent` is done once it is killed for its
    silence, `retired` once another worker has its place. `on_ready` is called once, when it accepts
    clients; `on_starved` when it has been silent for too long, for want of a processor; `on_reloaded` when it has put
    another configuration in force.
    """

    def __init__(
        self,
        start: Callable[[int], tuple[int, int]],
        config: Config,
        on_ready: Callable[[], object],
        on_starved: Callable[[], object] = lambda: None,
        count_oom_kills: Callable[[], int] = count_oom_kills,
        on_reloaded: Callable[[], object] = lambda: None,
    ) -> None:
        """`start` is given the descriptor of the heartbeat's other end, starts the process and returns its id and its
        pidfd. Raises OSError.
        """
        self._loop = asyncio.get_running_loop()
        self._on_ready, self._on_starved, self._on_reloaded = on_ready, on_starved, on_reloaded
        self._count_oom_kills, self._oom_kills = count_oom_kills, count_oom_kills()
        self._heartbeat, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self.pid, self._pidfd = start(theirs)
        except OSError:
            os.close(self._heartbeat)
            raise
        finally:
            os.close(theirs)
        self._started_at = self._loop.time()
        self._tick_s = config.supervisor.heartbeat_timeout_s / BEATS
        self._heartbeat_timeout_s = config.supervisor.heartbeat_timeout_s
        self._timeout_s = config.supervisor.start_timeout_s
        self._silent_s = self._own_silent_s = 0.0
        self._usage: Usage | None = None
        self.is_ready = False
        self.ended: asyncio.Future[WorkerEnd] = self._loop.create_future()
        self.silent: asyncio.Future[None] = self._loop.create_future()
        self.retired: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._heartbeat, self._read_beats)
        self._loop.add_reader(self._pidfd, self._reap)
        self._timer = self._loop.call_later(self._tick_s, self._tick)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing once the process has ended."""
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _read_beats(self) -> None:
        with contextlib.suppress(BlockingIOError):
            beats = os.read(self._heartbeat, _READ_BYTES)
            if not beats:  # the pidfd tells of the end
                self._loop.remove_reader(self._heartbeat)
                return
            self._silent_s = self._own_silent_s = 0.0
            self._timeout_s = self._heartbeat_timeout_s
            if READY in beats and not self.is_ready:
                self.is_ready = True
                self._on_ready()
            if RELOADED in beats:
                self._on_reloaded()

    def _tick(self) -> None:
        former, self._usage = self._usage, read_usage(self.pid)
        was_late = self._silent_s > self._timeout_s
        self._silent_s += self._tick_s
        self._own_silent_s += count_own_s(former, self._usage, self._tick_s)
        if (
            self._own_silent_s > self._timeout_s
            or self._silent_s > STARVED_TIMEOUTS * self._timeout_s
        ):
            self.silent.set_result(None)
            self.send_signal(signal.SIGKILL)
            return
        if self._silent_s > self._timeout_s and not was_late:
            self._on_starved()
        self._timer = self._loop.call_later(self._tick_s, self._tick)

    def end(self, number: signal.Signals, patience_s: float) -> None:
        """Have it drain and end by a signal, and kill it after `patience_s` seconds. Its silence counts no
        more: it frees memory, which may take long.
        """
        self._timer.cancel()
        self.send_signal(number)
        self._loop.call_later(patience_s, self.send_signal, signal.SIGKILL)

    def retire(self, patience_s: float) -> None:
        """Have it end since another worker accepts clients in its place."""
        self.retired.set_result(None)
        self.end(signal.SIGUSR2, patience_s)

    def _find_reason(self, code: int) -> Reason:
        if self.silent.done():
            return "hung"
        if code == -signal.SIGKILL and self._count_oom_kills() > self._oom_kills:
            return "oom"
        return "signal" if code < 0 else "exit"

    def _reap(self) -> None:
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        reason = self._find_reason(code)
        self._timer.cancel()
        for fd in (self._heartbeat, self._pidfd):
            self._loop.remove_reader(fd)
            os.close(fd)
        lived_s = self._loop.time() - self._started_at
        self.ended.set_result(WorkerEnd(reason, code, self.is_ready, lived_s))


def reap_orphans(workers: Collection[int]) -> None:
    """Reap ended children other than `workers`, which are process ids: as process 1 of a container, the supervisor
    inherits those of others.
    """
    with contextlib.suppress(ChildProcessError):
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None or found.si_pid in workers:
                return
            os.waitpid(found.si_pid, 0)
