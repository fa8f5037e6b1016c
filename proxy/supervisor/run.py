"""Supervisor: the process of `forebay serve`, which outlives all others. Start reading here.

Owns the listening sockets, the arena's memory, the posts and the choice between workers and pipes. Must not know
Kafka, what is in the cache or clients' requests; it imports none of them, so that their faults are not its own.
Posts: one of role ALONE, or the keeper's and one for each worker. States:
* a worker is ready: it accepts on all sockets, and the supervisor on none.
* no worker is ready: clients wait in the backlog.
* crash loop of all workers: the supervisor also accepts clients and pipes them to the broker.
* the process of the admin port (ALONE, or the keeper) is not ready: the supervisor answers there.
* upgrade (SIGUSR2): see upgrades.py.
Of several processes a spare one waits for the end of any: all clients miss the keeper until the next one serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
from functools import partial
from typing import TYPE_CHECKING

from blockcache.arena_file import ArenaError
from proxy.sockets import bind_all, listen_for_workers
from proxy.supervisor.arena import close_arena, open_arena, replace_arena
from proxy.supervisor.crash_policy import CrashPolicy
from proxy.supervisor.fallback import Fallback, tell_unpiped
from proxy.supervisor.figures import (
    KEEPER_READY,
    KEEPER_RESTARTS,
    RESTARTS,
    WORKERS,
    WORKERS_EXPECTED,
    Figures,
)
from proxy.supervisor.notifier import Notifier
from proxy.supervisor.post import FAILED, Post
from proxy.supervisor.role import Role
from proxy.supervisor.signals import handle_signals
from proxy.supervisor.spawner import STOP_MARGIN_S, Spawner
from proxy.supervisor.upgrades import Upgrades

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from blockcache.arena_file import ArenaMemory
    from proxy.config.model import Config
    from proxy.sockets import Sockets
    from proxy.supervisor.worker_process import WorkerEnd, WorkerProcess

log = logging.getLogger("forebay.supervisor")

OK = 0
SPARE_AFTER_S = 2.0
"""Time from when all processes are ready to the start of a spare one: they have more urgent things to do at first."""


async def serve(
    config: Config, command: Sequence[str], version: str, arguments: Sequence[str]
) -> int:
    """Run until a signal of ENDING. `command` starts a worker. `arguments`: those of `forebay
    serve`, by which a worker reads the configuration again. Returns the exit code: that of a
    first process that cannot start, else that of the last ones. Raises OSError if an address
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
    """The supervisor and its posts. `sockets` and `arena` are closed by `run`."""

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
        """Raises OSError: no address for the keeper."""
        self._config = config
        self._notifier = notifier or Notifier({})
        self._arena = arena
        self._sockets = sockets
        self._figures = Figures()
        self._figures[WORKERS_EXPECTED,] = config.workers
        self._fallback = Fallback(config, sockets, self._figures, version, self._find_config)
        self._keeper_socket = listen_for_workers() if config.workers > 1 else None
        self._spawner = Spawner(
            config,
            command,
            arguments,
            sockets,
            arena,
            self._figures,
            self._keeper_socket,
            self._fallback.switches.store,
            self._reload_workers,
        )
        self._stopping = asyncio.Event()
        self._keeper: Post | None = None
        if config.workers > 1:
            self._keeper = self._build_post(Role.KEEPER)
            numbers = range(1, config.workers + 1)
            self._workers = [self._build_post(Role.WORKER, number) for number in numbers]
        else:
            self._workers = [self._build_post(Role.ALONE)]
        self._main = self._keeper or self._workers[0]
        self._upgrades = Upgrades(
            self._workers, self._keeper, self._spawner, self._figures, self._stopping
        )
        self._to_reload: set[WorkerProcess] = set()
        self._spare_timer: asyncio.TimerHandle | None = None
        self._closing: list[asyncio.Task[None]] = []

    def _find_config(self) -> Config:
        """The configuration of the next process: as it was read last."""
        return self._spawner.find_config()

    def _build_post(self, role: Role, number: int = 0) -> Post:
        limits = self._config.supervisor
        policy = CrashPolicy(limits.crash_limit, limits.crash_window_s)
        return Post(role, number, self._spawner, policy, self, self._stopping)

    @property
    def _posts(self) -> list[Post]:
        return [*([self._keeper] if self._keeper else []), *self._workers]

    async def run(self) -> int:
        """Keep a process at each post until a signal of ENDING. Returns the exit code."""
        handle_signals(self._stop)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        loop.add_signal_handler(signal.SIGUSR2, self._upgrades.begin)
        loop.add_signal_handler(signal.SIGCHLD, self._spawner.reap_orphans)
        tell_unpiped(self._config)
        self._fallback.switches.start()
        self._notifier.start()
        try:
            await self._fallback.answer_admin()
            ends = await self._run_posts()
            return next((code for code in map(find_exit_code, ends) if code != OK), OK)
        finally:
            await asyncio.gather(*(process.ended for process in self._spawner.running))
            await asyncio.gather(*self._closing)
            await self._fallback.close()
            self._sockets.close()
            if self._keeper_socket is not None:
                self._keeper_socket.close()
            self._notifier.close()
            self._spawner.in_force.close()
            self._figures.close()
            if self._arena is not None:
                close_arena(self._arena, self._config)

    async def _run_posts(self) -> list[WorkerEnd]:
        """How the last processes ended. A post that ends by itself ends all."""
        tasks = [asyncio.create_task(post.run()) for post in self._posts]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self._stop()
        await asyncio.wait(tasks)
        return [end for task in tasks if (end := task.result()) is not None]

    def note_ready(self, post: Post) -> None:
        """See `Watcher`."""
        self.note_change()
        if post.worker in self._to_reload:
            self._to_reload.discard(post.worker)
            post.worker.send_signal(signal.SIGHUP)
        if post is self._main:
            self._fallback.leave_admin()
        if post.role.has_clients:
            self._notifier.tell_ready("a worker serves clients")
            self._fallback.close_pipes()
        if self._keeper is not None:
            self._prepare_spare()

    def _prepare_spare(self) -> None:
        """Start a spare process once all have been ready for a moment."""
        if self._spare_timer is not None:
            self._spare_timer.cancel()
        if all(post.is_ready for post in self._posts) and not self._stopping.is_set():
            loop = asyncio.get_running_loop()
            self._spare_timer = loop.call_later(SPARE_AFTER_S, self._spawner.prepare_spare)

    def note_change(self) -> None:
        """See `Watcher`."""
        self._figures[WORKERS,] = sum(post.is_ready for post in self._workers)
        self._figures[KEEPER_READY,] = int(self._main.is_ready)

    async def _answer_for(self, post: Post) -> None:
        """Answer at the admin port, if it was this one's."""
        if post is self._main:
            await self._fallback.answer_admin()

    async def note_renewal(self, post: Post) -> None:
        """See `Watcher`."""
        self.note_change()
        await self._answer_for(post)

    async def note_stuck(self, post: Post) -> None:
        """See `Watcher`."""
        await self._answer_for(post)
        self._judge_pipes("a killed worker does not end")

    async def note_end(self, post: Post, end: WorkerEnd, pause_s: float) -> None:
        """See `Watcher`."""
        restarts = KEEPER_RESTARTS if post.role is Role.KEEPER else RESTARTS
        self._figures[restarts, end.reason] += 1
        if not end.is_from_outside:
            self._fallback.switches.note_end(f"{post} ended: {end}")
        log.error("%s ended: %s; the next one starts in %g s", post, end, pause_s)
        self._notifier.tell(f"{post} ended: {end}; the next one starts")
        is_looping = post.is_failing if post.role.has_arena else self._is_new_loop
        if end.is_fault or (is_looping and end.reason != "oom"):
            await self._empty_arena(post)
        await self._answer_for(post)
        self._judge_pipes("worker after worker ends soon")

    @property
    def _are_all_failing(self) -> bool:
        return all(post.is_failing for post in self._workers)

    @property
    def _is_new_loop(self) -> bool:
        """Whether now all workers end soon, and clients are not piped yet."""
        return self._are_all_failing and not self._fallback.is_open

    def _judge_pipes(self, reason: str) -> None:
        if self._are_all_failing and not self._stopping.is_set():
            self._fallback.open_pipes(reason)
            self._notifier.tell_ready(f"clients are piped to the broker, without cache: {reason}")

    async def _empty_arena(self, post: Post) -> None:
        """Drop what is in the cache: it may be wrong, or be why process after process ends. With one worker not while
        a retired one has it mapped: its successor has not changed anything then. Of several workers each may have it
        mapped: the next keeper gets other memory, and one that runs with the former ends.
        """
        if self._arena is None:
            return
        if self._keeper is not None:
            self._drop(partial(replace_arena, self._arena))
            if post is not self._keeper:
                self._keeper.renew()
            return
        running = self._spawner.list_running(Role.ALONE)
        await asyncio.gather(*(one.ended for one in running if not one.retired.done()))
        if not self._spawner.running:
            self._drop(self._arena.empty)

    def _drop(self, drop: Callable[[], object]) -> None:
        try:
            drop()
        except OSError as error:
            log.error("cannot drop the cache: %s", error)
        else:
            log.error("dropped the cache: its content may be wrong, or the reason of the end")

    def _reload(self) -> None:
        """SIGHUP: the one worker, or the keeper, reads the configuration again. Without one that is ready, it cannot be
        checked, and stays as it is.
        """
        if self._main.worker is not None and self._main.is_ready:
            self._main.worker.send_signal(signal.SIGHUP)
        else:
            log.warning("ignoring SIGHUP: no worker is ready to reload the configuration")

    def _reload_workers(self) -> None:
        """The keeper has put another configuration in force: workers take it, one that is starting once it is ready."""
        workers = self._spawner.list_running(Role.WORKER)
        for one in workers:
            if one.is_ready:
                one.send_signal(signal.SIGHUP)
        self._to_reload = {one for one in workers if not one.is_ready}

    def _stop(self) -> None:
        """Stop at a signal: close the sockets here, and have all drain and end, the keeper last."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        if self._spare_timer is not None:
            self._spare_timer.cancel()
        self._spawner.drop_spare()
        self._notifier.tell_stopping()
        self._fallback.is_stopping = True
        self._closing = [
            asyncio.create_task(each) for each in (self._close_clients(), self._drain())
        ]
        for role in (Role.ALONE, Role.WORKER):
            for process in self._spawner.list_running(role):
                process.end(signal.SIGTERM, self._spawner.patience_s)

    async def _drain(self) -> None:
        """End the keeper after the last worker: until then they are served from memory."""
        await asyncio.gather(*(one.ended for one in self._spawner.list_running(Role.WORKER)))
        for process in self._spawner.list_running(Role.KEEPER):
            process.end(signal.SIGTERM, STOP_MARGIN_S)

    async def _close_clients(self) -> None:
        self._fallback.stop_pipes()
        self._sockets.close()
        await self._fallback.finish_pipes()


def find_exit_code(end: WorkerEnd) -> int:
    """The supervisor's exit code after its last worker. A worker that SIGTERM ends before it has
    begun to drain had no clients.
    """
    if end.code == -signal.SIGTERM:
        return OK
    return end.code if end.code >= 0 else FAILED


def raise_file_limit() -> None:
    """Raise the soft limit on open files to the hard one, since each client takes two sockets.
    Workers inherit it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
