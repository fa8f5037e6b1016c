"""Post: a role for which one process runs after another.

Owns the order of these processes, and when the next one starts. Must not know what its processes' ends mean for
others (run.py). Invariants:
* at most one process has the post at a time; a successor has none until `adopt`.
* `is_failing` says that waiting for the post is in vain: its processes end soon, or a killed one does not end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from typing import TYPE_CHECKING, Protocol

from proxy.supervisor.role import Role
from proxy.supervisor.worker_process import WorkerEnd, WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.supervisor.crash_policy import CrashPolicy

log = logging.getLogger("forebay.supervisor")

FAILED = 1
"""The exit code of a process that could not be started."""


class Starter(Protocol):
    """Who starts processes (`proxy.supervisor.spawner.Spawner`)."""

    @property
    def patience_s(self) -> float:
        """How long a process may take to drain and end."""

    @property
    def heartbeat_timeout_s(self) -> float: ...

    def start(
        self, role: Role, number: int, on_ready: Callable[[], object], is_successor: bool = False
    ) -> WorkerProcess:
        """Start a process. Raises OSError."""


class Watcher(Protocol):
    """Who is told of a post's processes (`proxy.supervisor.run.Supervisor`)."""

    def note_ready(self, post: Post) -> None:
        """Its process is ready."""

    def note_change(self) -> None:
        """A process is not ready any more, or another one has its post."""

    async def note_renewal(self, post: Post) -> None:
        """Its process has ended as `renew` had it; the next one starts at once."""

    async def note_stuck(self, post: Post) -> None:
        """Its process was killed, and does not end."""

    async def note_end(self, post: Post, end: WorkerEnd, pause_s: float) -> None:
        """Its process has ended; the next one starts after `pause_s` seconds."""


class Post:
    """A role, for a worker with a number. Call `run` once."""

    def __init__(
        self,
        role: Role,
        number: int,
        starter: Starter,
        policy: CrashPolicy,
        watcher: Watcher,
        stopping: asyncio.Event,
    ) -> None:
        """`stopping`: once it is set, no process starts, and `run` ends with the present one."""
        self.role = role
        self.number = number
        self._starter = starter
        self._policy = policy
        self._watcher = watcher
        self._stopping = stopping
        self._is_first = True
        self._is_renewed = False
        self._next_ready: asyncio.Future[bool] | None = None
        self.worker: WorkerProcess | None = None
        self.is_failing = False

    def __str__(self) -> str:
        if self.role is Role.WORKER:
            return f"worker {self.number}"
        return "the keeper" if self.role is Role.KEEPER else "the worker"

    @property
    def is_ready(self) -> bool:
        """Whether its process has said that it is ready, and has not ended or been killed since."""
        worker = self.worker
        return (
            worker is not None
            and worker.is_ready
            and not worker.silent.done()
            and not worker.ended.done()
        )

    async def run(self) -> WorkerEnd | None:
        """Keep a process running until `stopping`. Returns how the last one ended: None if none ran then, and a first
        one that exits before it was ready is the last.
        """
        try:
            while not self._stopping.is_set():
                end = await self._run_process()
                if self._stopping.is_set():
                    return end
                was_first, self._is_first = self._is_first, False
                if self._was_ordered(end):
                    await self._watcher.note_renewal(self)
                elif was_first and end.reason == "exit" and not end.was_ready:
                    return end
                else:
                    await self._wait_to_restart(end)
            return None
        finally:
            self._is_renewed = False
            self._tell_renewed(False)

    async def _run_process(self) -> WorkerEnd:
        """Start a process and wait for its end, or that of its last successor."""
        try:
            self.worker = worker = self._starter.start(self.role, self.number, self._note_ready)
        except OSError as error:
            log.error("cannot start %s: %s", self, error)
            self.worker = None
            return WorkerEnd("exit", FAILED, was_ready=False, lived_s=0.0)
        while True:
            events = worker.ended, worker.silent, worker.retired
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            if not worker.retired.done():
                break
            worker = self.worker
        if not worker.ended.done():
            await self._wait_for_killed(worker)
        return await worker.ended

    async def _wait_for_killed(self, worker: WorkerProcess) -> None:
        fields = {"pid": worker.pid, "post": str(self)}
        log.error("killing a worker that does not answer", extra=fields)
        self._watcher.note_change()
        await asyncio.wait((worker.ended,), timeout=self._starter.heartbeat_timeout_s)
        if not worker.ended.done() and not self._stopping.is_set():
            self.is_failing = True
            await self._watcher.note_stuck(self)

    def _note_ready(self) -> None:
        self.is_failing = False
        self._watcher.note_ready(self)
        self._tell_renewed(True)

    async def _wait_to_restart(self, end: WorkerEnd) -> None:
        is_own = not end.is_from_outside
        pause_s = self._policy.note_end(end.lived_s, is_own)
        self.is_failing = is_own and self._policy.is_looping
        self._tell_renewed(False)
        self._watcher.note_change()
        await self._watcher.note_end(self, end, pause_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._stopping.wait()

    def adopt(self, successor: WorkerProcess, number: int) -> None:
        """Give the post to a process that is ready, with its number. The former one drains and ends."""
        former, self.worker = self.worker, successor
        assert former is not None
        self.number = number
        self.is_failing = False
        former.retire(self._starter.patience_s)
        self._watcher.note_ready(self)

    def renew(self) -> asyncio.Future[bool]:
        """Have the process drain and end; the next one starts at once, and the end is no restart. The result: whether
        that one has become ready before it ended. If no process runs, the next one is meant.
        """
        if self._next_ready is None:
            self._next_ready = asyncio.get_running_loop().create_future()
        if self.worker is not None and not self.worker.ended.done():
            self._is_renewed = True
            self.worker.end(signal.SIGTERM, self._starter.patience_s)
        return self._next_ready

    def _was_ordered(self, end: WorkerEnd) -> bool:
        """Whether `renew` has ended the process, and nothing else."""
        was_renewed, self._is_renewed = self._is_renewed, False
        return was_renewed and end.code in (0, -signal.SIGTERM)

    def _tell_renewed(self, is_ready: bool) -> None:
        if self._next_ready is not None and not self._is_renewed:
            if not self._next_ready.done():
                self._next_ready.set_result(is_ready)
            self._next_ready = None
