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
from blockcache.left import TORN
from proxy.keeper.messages import HELLO, WORKER_ENDED
from proxy.keeper.worker_link import WorkerLink
from proxy.sockets import handing_over, is_of_this_user

if TYPE_CHECKING:
    from proxy.keeper.broker import KeeperBroker

log = logging.getLogger("forebay.keeper")

GREETING_BYTES: Final = 64
GREETING_S: Final = 5.0
LOOK_EVERY_S: Final = 0.05
ANSWER_S: Final = 2.0
"""How long a view waits for a worker that lives."""


def end_torn(reason: str, detail: str) -> NoReturn:
    """End this process: what an earlier keeper left has to go, for this reason, and workers still send of it. The
    supervisor gives the next keeper other memory after such a signal.
    """
    log.critical(
        "ending, since workers still send what an earlier keeper left: the next keeper begins empty",
        extra={"reason": reason, "detail": detail},
    )
    for handler in logging.getLogger().handlers:
        handler.close()  # its lines leave by a thread
    signal.signal(signal.SIGABRT, signal.SIG_DFL)
    os.abort()


class KeeperServer:
    """The keeper's socket. `boot`: the process's boot id, which its workers' access logs name."""

    def __init__(self, broker: KeeperBroker, listening: socket.socket, boot: str) -> None:
        self._broker = broker
        self._hello = HELLO + boot.encode()
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
            end_torn(*TORN)
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
            link = WorkerLink(self._broker, number, self._ended)
            try:
                fds = self._broker.shown.segment.fd, self._broker.cache.memory_fd, *link.told.fds
                socket.send_fds(sock, [self._hello], fds)
            except OSError:
                link.told.close()
                raise
        except (OSError, TimeoutError, EOFError, ValueError, TypeError) as error:
            log.warning("a worker does not say who it is: %s", error)
            sock.close()
            return
        link.told.start()
        self._broker.links[number] = link
        self._broker.shown.segment.listen(number, True)
        with handing_over(sock):
            await loop.create_unix_connection(lambda: link.messages, sock=sock)
        log.info("a worker is attached", extra={"worker": number, "pid": pid})

    @property
    def attached(self) -> int:
        """How many workers are attached."""
        return len(self._broker.links)

    async def ask_workers(self, path: str) -> list[bytes]:
        """What each worker adds to a path of the admin port; of those that do not answer within ANSWER_S, nothing."""
        loop = asyncio.get_running_loop()
        answers: list[asyncio.Future[bytes]] = []
        for link in list(self._broker.links.values()):
            answer = loop.create_future()
            answers.append(answer)
            link.view(path, partial(_settle, answer))
        if answers:
            await asyncio.wait(answers, timeout=ANSWER_S)
        return [one.result() for one in answers if one.done() and one.result()]

    def _ended(self, link: WorkerLink) -> None:
        """Release what a worker held that is gone, unless another has its number by now."""
        if self._broker.links.get(link.number) is link:
            del self._broker.links[link.number]
            self._broker.shown.segment.listen(link.number, False)
            self._broker.note_left(link.number)
            log.info("a worker has left", extra={"worker": link.number})
            for other in list(self._broker.links.values()):
                other.tell(WORKER_ENDED, link.number)


def _settle(answer: asyncio.Future[bytes], samples: bytes) -> None:
    if not answer.done():
        answer.set_result(samples)
