"""Accepts workers at the keeper, and hands each the memory that it reads. [socket]

Owns the listening socket that the supervisor made, and the attached workers. Must not know what they ask
for. Invariants:
* a worker is attached once the arena is in use: before, it would read another one.
* of two with a number the later one is alive: the pins of the earlier one are released.
"""

from __future__ import annotations

import asyncio
import logging
import marshal
import os
import signal
import socket
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from blockcache.errors import ArenaTorn
from proxy.keeper.messages import WORKER_ENDED
from proxy.keeper.worker_link import WorkerLink
from proxy.sockets import is_of_this_user

if TYPE_CHECKING:
    from proxy.keeper.broker import KeeperBroker

log = logging.getLogger("forebay.keeper")

GREETING_BYTES: Final = 64
GREETING_S: Final = 5.0
HELLO: Final = b"forebay"
LOOK_EVERY_S: Final = 0.05
SCRAPE_S: Final = 2.0


def end_torn() -> NoReturn:
    """End this process: a process has died in the middle of a change of the arena, of which workers still send. The
    supervisor gives the next keeper other memory after such a signal.
    """
    log.critical("the arena was left half changed: the next keeper begins with an empty one")
    signal.signal(signal.SIGABRT, signal.SIG_DFL)
    os.abort()


class KeeperServer:
    """The keeper's socket."""

    def __init__(self, broker: KeeperBroker, listening: socket.socket) -> None:
        self._broker = broker
        self._listening = listening
        self._task: asyncio.Task[None] | None = None
        self._greetings: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Accept workers as soon as the arena is in use."""
        self._listening.setblocking(False)
        self._task = asyncio.create_task(self._run(), name="workers")

    async def stop(self) -> None:
        """Accept nobody, and leave those that are attached."""
        tasks = [one for one in (self._task, *self._greetings) if one is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in list(self._broker.links.values()):
            link.messages.close()

    async def _run(self) -> None:
        loop, cache = asyncio.get_running_loop(), self._broker.cache
        try:
            cache.share()
        except ArenaTorn:
            end_torn()
        while cache.is_pending:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY_S)
        while True:
            try:
                sock, _ = await loop.sock_accept(self._listening)
            except OSError as error:
                log.warning("cannot accept a worker: %s", error)
                await asyncio.sleep(LOOK_EVERY_S)
                continue
            task = asyncio.create_task(self._greet(sock))
            self._greetings.add(task)
            task.add_done_callback(self._greetings.discard)

    async def _greet(self, sock: socket.socket) -> None:
        """Learn which worker it is, and give it the memory."""
        if not is_of_this_user(sock):
            log.warning("a process of another user has connected to the keeper: it gets nothing")
            sock.close()
            return
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(GREETING_S):
                number, pid = marshal.loads(await loop.sock_recv(sock, GREETING_BYTES))
            former = self._broker.links.get(number)
            if former is not None:
                former.messages.close()
            fds = self._broker.shown.segment.fd, self._broker.cache.memory_fd
            socket.send_fds(sock, [HELLO], fds)
        except (OSError, TimeoutError, EOFError, ValueError, TypeError) as error:
            log.warning("a worker does not say who it is: %s", error)
            sock.close()
            return
        link = WorkerLink(self._broker, number, self._ended)
        self._broker.links[number] = link
        await loop.create_unix_connection(lambda: link.messages, sock=sock)
        log.info("a worker is attached", extra={"worker": number, "pid": pid})

    @property
    def attached(self) -> int:
        """How many workers are attached."""
        return len(self._broker.links)

    async def scrape(self) -> list[bytes]:
        """What each worker counts, packed; of those that do not answer in time, nothing."""
        loop = asyncio.get_running_loop()
        answers: list[asyncio.Future[bytes]] = []
        for link in list(self._broker.links.values()):
            answer = loop.create_future()
            answers.append(answer)
            link.scrape(partial(_settle, answer))
        if answers:
            await asyncio.wait(answers, timeout=SCRAPE_S)
        return [one.result() for one in answers if one.done() and one.result()]

    def _ended(self, link: WorkerLink) -> None:
        """Release what a worker held that is gone, unless another has its number by now."""
        if self._broker.links.get(link.number) is link:
            del self._broker.links[link.number]
            self._broker.note_left(link.number)
            log.info("a worker has left", extra={"worker": link.number})
            for other in list(self._broker.links.values()):
                other.tell(WORKER_ENDED, link.number)


def _settle(answer: asyncio.Future[bytes], samples: bytes) -> None:
    if not answer.done():
        answer.set_result(samples)
