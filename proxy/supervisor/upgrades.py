"""Upgrades in place (SIGUSR2): processes of the build that is on disk now take the posts of those that run.

Owns the steps of an upgrade, one at a time. Must not know what a process does. Steps:
* a successor starts beside each worker that is ready. Once all accept clients, the former ones drain and end. If one
  does not, all successors are killed, and the former ones go on.
* a worker for whose successor no number is free drains and ends first; others accept its clients meanwhile.
* the keeper ends last, by SIGTERM, so that it leaves the arena whole; workers pass everything through until the next
  one answers. Two keepers at a time could not both have the arena.
Posts without a process that is ready get the new build at their next start.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import TYPE_CHECKING, Any, NamedTuple

from proxy.supervisor.figures import UPGRADES, Figures
from proxy.supervisor.role import Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from proxy.supervisor.post import Post
    from proxy.supervisor.spawner import Spawner
    from proxy.supervisor.worker_process import WorkerProcess

log = logging.getLogger("forebay.supervisor")


class Succession(NamedTuple):
    """A process that is to take a post, with its number, from `former`."""

    post: Post
    former: WorkerProcess
    successor: WorkerProcess
    number: int
    is_ready: asyncio.Event


class Upgrades:
    """All upgrades of a supervisor."""

    def __init__(
        self,
        workers: Sequence[Post],
        keeper: Post | None,
        spawner: Spawner,
        figures: Figures,
        stopping: asyncio.Event,
    ) -> None:
        """`workers`: the posts that have clients."""
        self._workers = workers
        self._keeper = keeper
        self._spawner = spawner
        self._figures = figures
        self._stopping = stopping
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Upgrade now, unless an upgrade is under way or nobody is ready."""
        ready = [post for post in self._workers if post.is_ready]
        if not ready or self._stopping.is_set():
            log.warning(
                "ignoring SIGUSR2: no worker is ready, of which another could take the place"
            )
        elif self._task is not None:
            log.warning("ignoring SIGUSR2: an upgrade is under way")
        else:
            self._task = asyncio.create_task(self._upgrade(ready), name="upgrade")
            self._task.add_done_callback(self._forget)

    def _forget(self, _task: asyncio.Task[None]) -> None:
        self._task = None

    async def _upgrade(self, ready: Sequence[Post]) -> None:
        self._spawner.drop_spare()
        numbers = self._find_numbers(ready)
        beside, others = ready[: len(numbers)], ready[len(numbers) :]
        successions = await self._replace_beside(beside, numbers)
        if successions is None:
            return
        keepers = [] if self._keeper is None else [self._keeper]
        for post in (*others, *keepers):
            if reason := await self._replace_in_turn(post):
                self._fail(reason)
                return
        self._figures[UPGRADES, "done"] += 1
        if beside:
            log.info("upgraded: another worker serves clients, the former drains")
        for one in successions:
            log.info("the former worker ended: %s", await one.former.ended)

    def _find_numbers(self, ready: Sequence[Post]) -> list[int]:
        """Numbers of successors, for as many posts as there are numbers."""
        if ready[0].role is Role.ALONE:
            return [0]
        return self._spawner.list_free_numbers(post.number for post in self._workers)[: len(ready)]

    async def _replace_beside(
        self, posts: Sequence[Post], numbers: Sequence[int]
    ) -> list[Succession] | None:
        """Start a successor for each post, and end those that are not to serve. None: the upgrade has failed."""
        successions: list[Succession] = []
        reason = ""
        try:
            for post, number in zip(posts, numbers, strict=True):
                successions.append(self._start_successor(post, number))
        except OSError as error:
            reason = f"it cannot be started: {error}"
        reason = reason or await self._wait_for_all(successions)
        if reason:
            for one in successions:
                one.successor.end(signal.SIGKILL, 0.0)
            for one in successions:
                await one.successor.ended
            self._fail(reason)
            return None
        for one in successions:
            one.post.adopt(one.successor, one.number)
        return successions

    def _start_successor(self, post: Post, number: int) -> Succession:
        """Raises OSError."""
        former = post.worker
        assert former is not None
        log.info("upgrading: another worker starts", extra={"pid": former.pid})
        is_ready = asyncio.Event()
        successor = self._spawner.start(post.role, number, is_ready.set, is_successor=True)
        return Succession(post, former, successor, number, is_ready)

    async def _wait_for_all(self, successions: Sequence[Succession]) -> str:
        """Until all successors accept clients: "" then, else why they will not."""
        ready = asyncio.create_task(wait_for_each(one.is_ready for one in successions))
        stopping = asyncio.create_task(self._stopping.wait())
        events: list[asyncio.Future[Any]] = [ready, stopping]
        for one in successions:
            events += [one.successor.ended, one.successor.silent, one.former.ended]
        timeout_s = self._spawner.config.supervisor.start_timeout_s
        await asyncio.wait(events, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for waited in (ready, stopping):
            waited.cancel()
        return self._explain(successions)

    def _explain(self, successions: Sequence[Succession]) -> str:
        """Why successors cannot take their posts; "" if they can."""
        if self._stopping.is_set():
            return "Forebay is stopping"
        if any(one.former.ended.done() for one in successions):
            return "the worker ended meanwhile"
        for one in successions:
            if one.successor.ended.done():
                return f"the new worker ended: {one.successor.ended.result()}"
        if all(one.successor.is_ready and not one.successor.silent.done() for one in successions):
            return ""
        timeout_s = self._spawner.config.supervisor.start_timeout_s
        return f"the new worker does not accept clients after {timeout_s:g} s"

    async def _replace_in_turn(self, post: Post) -> str:
        """End the process of a post and wait for the next one: "" once that one is ready, else why it is not."""
        log.info("upgrading: %s ends, and the next one starts", post)
        timeout_s = self._spawner.patience_s + self._spawner.config.supervisor.start_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                is_ready = await post.renew()
        except TimeoutError:
            is_ready = False
        if is_ready:
            return ""
        if self._stopping.is_set():
            return "Forebay is stopping"
        return f"{post} of the new build is not ready"

    def _fail(self, reason: str) -> None:
        self._figures[UPGRADES, "failed"] += 1
        log.error("the upgrade failed, the former worker goes on: %s", reason)


async def wait_for_each(events: Iterable[asyncio.Event]) -> None:
    """Until all are set."""
    for event in events:
        await event.wait()
