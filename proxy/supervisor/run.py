"""Supervisor: the process of `forebay serve`, which outlives its worker. Start reading here.

Owns the listening sockets, the arena's memory, the order of workers and the choice between worker and
pipes. Must not know Kafka, what is in the cache or clients' requests; it imports none of them, so that
their faults are not its own. States:
* a worker is ready: it accepts on all sockets, and the supervisor on none.
* no worker is ready: clients wait in the backlog, and the supervisor answers at the admin port.
* crash loop: the supervisor also accepts clients and pipes them to the broker.
* upgrade (SIGUSR2): a successor starts beside the worker that is ready. Once it accepts clients, the
  former drains and ends; if it never does, it is killed, and the former goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
from typing import TYPE_CHECKING, Any

from blockcache.arena_file import ArenaError
from proxy.admin.access import METRICS, AdminAccess
from proxy.admin.http import PROMETHEUS_TEXT, AdminServer, HttpResponse, build_probes
from proxy.build_info import find_commit
from proxy.sockets import bind_all
from proxy.supervisor.arena import close_arena, open_arena
from proxy.supervisor.crash_policy import CrashPolicy
from proxy.supervisor.figures import (
    LABELS,
    PIPES_REFUSED,
    PIPES_TOTAL,
    REASONS,
    RESTARTS,
    STARVATIONS,
    UPGRADES,
    Figures,
)
from proxy.supervisor.handover import ConfigInForce, Handover
from proxy.supervisor.notifier import Notifier
from proxy.supervisor.pipes import Pipes, find_obstacle
from proxy.supervisor.signals import handle_signals
from proxy.supervisor.worker_process import WorkerEnd, WorkerProcess, reap_orphans

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from blockcache.arena_file import ArenaMemory
    from proxy.config.model import Config
    from proxy.sockets import Sockets

log = logging.getLogger("forebay.supervisor")

OK, FAILED = 0, 1
STOP_MARGIN_S = 10.0
"""Time beyond `shutdown.gracePeriod` for a worker to write its log and free its memory."""


async def serve(
    config: Config, command: Sequence[str], version: str, arguments: Sequence[str]
) -> int:
    """Run until a signal of ENDING. `command` starts a worker. `arguments`: those of `forebay
    serve`, by which a worker reads the configuration again. Returns the exit code: that of a
    first worker that cannot start, else that of the last worker. Raises OSError if an address
    cannot be bound.
    """
    notifier = Notifier()
    raise_file_limit()
    sockets = bind_all(config)
    try:
        arena = open_arena(config)
    except ArenaError as error:
        sockets.close()
        log.error("cannot start: %s", error)
        return FAILED
    return await Supervisor(config, sockets, command, version, arguments, arena, notifier).run()


class Supervisor:
    """The supervisor and its one worker. `sockets` and `arena` are closed by `run`."""

    def __init__(
        self,
        config: Config,
        sockets: Sockets,
        command: Sequence[str],
        version: str,
        arguments: Sequence[str] = (),
        arena: ArenaMemory | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        self._config = config
        self._notifier = notifier or Notifier({})
        self._arena = arena
        self._in_force = ConfigInForce()
        self._arguments = arguments
        self._sockets = sockets
        self._command = command
        self._version = version
        self._policy = CrashPolicy(config.supervisor.crash_limit, config.supervisor.crash_window_s)
        self._figures = Figures()
        self._pipes = Pipes(config, sockets.listeners, self._figures)
        self._worker: WorkerProcess | None = None
        self._running: set[WorkerProcess] = set()
        self._upgrade: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        routes = {
            **build_probes(self.check_readiness),
            METRICS: lambda: HttpResponse(self.render_metrics(), PROMETHEUS_TEXT),
        }
        self._admin = AdminServer(
            routes,
            max_connections=config.admin.max_connections,
            request_timeout_s=config.admin.request_timeout_s,
            access=AdminAccess(config.admin).check,
            keeps_alive=False,
        )

    async def run(self) -> int:
        """Start workers, one after another, until a signal of ENDING. Returns the exit code."""
        handle_signals(self._stop)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, self._begin_upgrade)
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap_orphans)
        tell_unpiped(self._config)
        self._notifier.start()
        try:
            while not self._stopping.is_set():
                await self._answer_admin()
                end = await self._run_worker()
                is_first = not any(self._figures[RESTARTS, reason] for reason in REASONS)
                if self._stopping.is_set() or (
                    is_first and end.reason == "exit" and not end.was_ready
                ):
                    return find_exit_code(end)
                await self._wait_to_restart(end)
            return OK
        finally:
            await asyncio.gather(*(worker.ended for worker in self._running))
            await self._pipes.abort()
            await self._admin.close()
            self._sockets.close()
            self._notifier.close()
            self._in_force.close()
            self._figures.close()
            if self._arena is not None:
                close_arena(self._arena, self._config)

    def check_readiness(self) -> tuple[bool, list[str]]:
        """Whether clients should connect although no worker is ready, and the reasons if not: they
        should while all listeners are piped.
        """
        if self._stopping.is_set():
            return False, ["stopping"]
        if not self._pipes.is_open:
            return False, ["no worker is ready yet"]
        problems = self._pipes.list_problems()
        return not problems, problems

    def render_metrics(self) -> bytes:
        """What `/metrics` answers while no worker is ready, in Prometheus' text format."""
        pipes = self._pipes
        values = {
            "forebay_ready": int(self.check_readiness()[0]),
            "forebay_fallback": int(pipes.is_open),
            "forebay_active_connections": len(pipes),
            "forebay_connections_total": self._figures[PIPES_TOTAL,],
            "forebay_connection_errors_total": self._figures[PIPES_REFUSED,],
        }
        lines = [f"{name} {value}" for name, value in values.items()]
        build = f'version="{self._version}",commit_id="{find_commit()}"'
        lines.append(f"forebay_build_info{{{build}}} 1")
        for (name, *labeled), number in self._figures.read():
            labels = f'{{{LABELS[name]}="{labeled[0]}"}}' if labeled else ""
            lines.append(f"{name}{labels} {number}")
        return "".join(f"{line}\n" for line in lines).encode()

    async def _answer_admin(self) -> None:
        if not self._admin.is_serving and not self._stopping.is_set():
            await self._admin.start([one.dup() for one in self._sockets.admin])

    async def _run_worker(self) -> WorkerEnd:
        """Start a worker and wait for its end, or that of its last successor. While a killed one does not
        end, clients are piped.
        """
        try:
            self._worker = worker = self._start_worker(self._hand_over)
        except OSError as error:
            log.error("cannot start a worker: %s", error)
            return WorkerEnd("exit", FAILED, was_ready=False, lived_s=0.0)
        while True:
            events = worker.ended, worker.silent, worker.retired
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            if not worker.retired.done():
                break
            worker = self._worker
        if not worker.ended.done():
            log.error("killing a worker that does not answer", extra={"pid": worker.pid})
            await asyncio.wait((worker.ended,), timeout=self._config.supervisor.heartbeat_timeout_s)
        if not worker.ended.done() and not self._stopping.is_set():
            await self._answer_admin()
            self._open_pipes("a killed worker does not end")
        return await worker.ended

    def _start_worker(
        self, on_ready: Callable[[], object], is_successor: bool = False
    ) -> WorkerProcess:
        """Start a worker with the configuration in force. Raises OSError."""
        self._config = self._in_force.read() or self._config

        def build_handover(heartbeat: int) -> Handover:
            return Handover(
                self._config,
                self._in_force,
                self._arguments,
                self._sockets,
                heartbeat,
                self._arena,
                self._figures,
                is_successor,
            )

        worker = WorkerProcess(
            self._command, build_handover, self._config, on_ready, self._note_starved
        )
        self._running.add(worker)
        worker.ended.add_done_callback(lambda _end: self._forget(worker))
        return worker

    def _note_starved(self) -> None:
        self._figures[STARVATIONS,] += 1
        log.warning("a worker is silent for want of a processor: it is not killed yet")

    def _forget(self, worker: WorkerProcess) -> None:
        self._running.discard(worker)
        self._reap_orphans()

    @property
    def _patience_s(self) -> float:
        """How long a worker may take to drain and end."""
        return self._config.shutdown.grace_period_s + STOP_MARGIN_S

    def _begin_upgrade(self) -> None:
        """SIGUSR2: replace the worker by one of the build that is on disk now."""
        worker = self._worker
        if worker is None or not worker.is_ready or worker.ended.done() or self._stopping.is_set():
            log.warning(
                "ignoring SIGUSR2: no worker is ready, of which another could take the place"
            )
        elif self._upgrade is not None:
            log.warning("ignoring SIGUSR2: an upgrade is under way")
        else:
            self._upgrade = asyncio.create_task(self._replace(worker), name="upgrade")
            self._upgrade.add_done_callback(self._end_upgrade)

    def _end_upgrade(self, _task: asyncio.Task[None]) -> None:
        self._upgrade = None

    async def _replace(self, former: WorkerProcess) -> None:
        """Start a successor of `former`, and end the one that is not to serve."""
        log.info("upgrading: another worker starts", extra={"pid": former.pid})
        is_ready = asyncio.Event()
        try:
            successor = self._start_worker(is_ready.set, is_successor=True)
        except OSError as error:
            self._fail_upgrade(f"it cannot be started: {error}")
            return
        waits = [asyncio.ensure_future(one.wait()) for one in (is_ready, self._stopping)]
        events: list[asyncio.Future[Any]] = [
            *waits,
            successor.ended,
            successor.silent,
            former.ended,
        ]
        await asyncio.wait(
            events,
            timeout=self._config.supervisor.start_timeout_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        for one in waits:
            one.cancel()
        if not successor.is_ready or former.ended.done() or self._stopping.is_set():
            reason = self._explain(successor, former)
            successor.end(signal.SIGKILL, 0.0)
            await successor.ended
            self._fail_upgrade(reason)
            return
        self._worker = successor
        former.retire(self._patience_s)
        self._figures[UPGRADES, "done"] += 1
        log.info("upgraded: another worker serves clients, the former drains")
        log.info("the former worker ended: %s", await former.ended)

    def _explain(self, successor: WorkerProcess, former: WorkerProcess) -> str:
        """Why an upgrade has failed."""
        if self._stopping.is_set():
            return "Forebay is stopping"
        if former.ended.done():
            return "the worker ended meanwhile"
        if successor.ended.done():
            return f"the new worker ended: {successor.ended.result()}"
        timeout_s = self._config.supervisor.start_timeout_s
        return f"the new worker does not accept clients after {timeout_s:g} s"

    def _fail_upgrade(self, reason: str) -> None:
        self._figures[UPGRADES, "failed"] += 1
        log.error("the upgrade failed, the former worker goes on: %s", reason)

    def _reload(self) -> None:
        """SIGHUP: the worker reads the configuration again. Without a worker that is ready, it
        cannot be checked, and stays as it is.
        """
        if self._worker is not None and self._worker.is_ready:
            self._worker.send_signal(signal.SIGHUP)
        else:
            log.warning("ignoring SIGHUP: no worker is ready to reload the configuration")

    def _hand_over(self) -> None:
        """Leave all sockets to the worker, which accepts now."""
        self._admin.stop_accepting()
        self._notifier.tell_ready("a worker serves clients")
        if self._pipes.is_open:
            log.warning("a worker runs again: clients are served by it")
            self._pipes.close()

    async def _wait_to_restart(self, end: WorkerEnd) -> None:
        self._figures[RESTARTS, end.reason] += 1
        is_own = not end.is_from_outside
        pause_s = self._policy.note_end(end.lived_s, is_own)
        is_looping = is_own and self._policy.is_looping
        log.error("the worker ended: %s; the next one starts in %g s", end, pause_s)
        self._notifier.tell(f"the worker ended: {end}; the next one starts")
        if end.is_fault or (is_looping and end.reason != "oom"):
            await self._empty_arena()
        await self._answer_admin()
        if is_looping:
            self._open_pipes("worker after worker ends soon")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._stopping.wait()

    async def _empty_arena(self) -> None:
        """Drop what is in the cache: it may be wrong, or be why worker after worker ends. Not while a
        retired worker has it mapped: its successor has not changed anything then.
        """
        successors = [worker.ended for worker in self._running if not worker.retired.done()]
        await asyncio.gather(*successors)  # a failed upgrade ends them
        if self._arena is not None and not self._running:
            log.error("dropped the cache: its content may be wrong, or the reason of the end")
            self._arena.empty()

    def _open_pipes(self, reason: str) -> None:
        if not self._pipes.is_open:
            log.error("clients are piped to the broker, without cache", extra={"reason": reason})
            self._pipes.open()
            self._notifier.tell_ready(f"clients are piped to the broker, without cache: {reason}")

    def _stop(self) -> None:
        """Stop at a signal: close the sockets here, and have the worker drain and end."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._notifier.tell_stopping()
        self._closing = asyncio.create_task(self._close_clients())
        for worker in self._running:
            worker.end(signal.SIGTERM, self._patience_s)

    async def _close_clients(self) -> None:
        await self._pipes.abort()
        self._sockets.close()

    def _reap_orphans(self) -> None:
        reap_orphans([worker.pid for worker in self._running])


def find_exit_code(end: WorkerEnd) -> int:
    """The supervisor's exit code after its last worker. A worker that SIGTERM ends before it has
    begun to drain had no clients.
    """
    if end.code == -signal.SIGTERM:
        return OK
    return end.code if end.code >= 0 else FAILED


def tell_unpiped(config: Config) -> None:
    """Log which listeners' clients cannot be piped, and what happens to them instead."""
    for listener in config.listeners:
        if obstacle := find_obstacle(listener):
            log.warning(
                "while no worker can run, clients of listener %s are closed and try again: %s",
                listener.name,
                obstacle,
                extra={"listener": listener.name},
            )


def raise_file_limit() -> None:
    """Raise the soft limit on open files to the hard one, since each client takes two sockets.
    Workers inherit it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
