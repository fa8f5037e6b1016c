"""Pipes: clients' bytes to the broker and back, unread, while no worker runs. [socket]

Owns accepting in that state, and the connections made then. Must not know Kafka, nor why no worker
runs. In sidecar mode a worker rewrites nothing, so that a client sees no other broker. Invariants:
* at most `limits.maxConnections` pipes, each with at most CHUNK_BYTES in either direction.
* an end of one direction is passed on; the other direction goes on.
* once closed, all pipes end within `supervisor.pipeMaxAge`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
from functools import partial
from typing import TYPE_CHECKING

from proxy.sockets import accept_clients, end_vanished
from proxy.supervisor.figures import PIPES, PIPES_REFUSED, PIPES_TOTAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxy.config.model import Config, ListenerConfig
    from proxy.config.units import Address
    from proxy.supervisor.figures import Figures

log = logging.getLogger("forebay.pipes")

CHUNK_BYTES = 32 * 1024


def find_obstacle(listener: ListenerConfig) -> str:
    """Why a listener's clients cannot be piped to the broker; "" if they can."""
    if listener.tls is not None:
        return "TLS of its clients ends at Forebay"
    return "TLS to the broker begins at Forebay" if listener.upstream_tls.enabled else ""


class Pipes:
    """All pipes of the process. Call `open` and `close` in turns, `abort` last."""

    def __init__(
        self, config: Config, sockets: Sequence[Sequence[socket.socket]], figures: Figures
    ) -> None:
        """`sockets`: the listening ones of each listener, in their order."""
        self._listeners = [
            (entry, one)
            for entry, each in zip(config.listeners, sockets, strict=True)
            for one in each
        ]
        self._limits = config.limits
        self._max_age_s = config.supervisor.pipe_max_age_s
        self._accepting: list[asyncio.Task[None]] = []
        self._pipes: set[asyncio.Task[None]] = set()
        self._refusals: dict[Address, str] = {}
        self._figures = figures

    def __len__(self) -> int:
        return len(self._pipes)

    @property
    def is_open(self) -> bool:
        """Whether clients are accepted."""
        return bool(self._accepting)

    def list_problems(self) -> list[str]:
        """Why clients of some listener are not served, a sentence each."""
        found = {
            entry.name: f"listener {entry.name} closes its clients: {obstacle}"
            for entry, _ in self._listeners
            if (obstacle := find_obstacle(entry))
        }
        return [*found.values(), *self._refusals.values()]

    def open(self) -> None:
        """Accept clients."""
        loop = asyncio.get_running_loop()
        if not self._accepting:
            self._accepting = [
                loop.create_task(accept_clients(one, partial(self._take, entry)))
                for entry, one in self._listeners
            ]

    def close(self) -> None:
        """Accept nobody. Pipes end at random times within `supervisor.pipeMaxAge`, so that not all
        clients come back at once, unless `open` is called before.
        """
        self._stop_accepting()
        loop = asyncio.get_running_loop()
        for pipe in self._pipes:
            loop.call_later(random.uniform(0, self._max_age_s), self._end_aged, pipe)

    async def abort(self) -> None:
        """Accept nobody, and end all pipes at once."""
        tasks = [*self._accepting, *self._pipes]
        self._stop_accepting()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _stop_accepting(self) -> None:
        for task in self._accepting:
            task.cancel()
        self._accepting = []

    def _end_aged(self, pipe: asyncio.Task[None]) -> None:
        if not self.is_open:
            pipe.cancel()

    def _take(self, entry: ListenerConfig, client: socket.socket) -> None:
        self._figures[PIPES_TOTAL,] += 1
        if find_obstacle(entry) or len(self._pipes) >= self._limits.max_connections:
            self._figures[PIPES_REFUSED,] += 1
            client.close()
            return
        pipe = asyncio.get_running_loop().create_task(self._pipe(client, entry.upstream))
        self._pipes.add(pipe)
        pipe.add_done_callback(self._forget)
        self._figures[PIPES,] = len(self._pipes)

    def _forget(self, pipe: asyncio.Task[None]) -> None:
        self._pipes.discard(pipe)
        self._figures[PIPES,] = len(self._pipes)

    async def _pipe(self, client: socket.socket, upstream: Address) -> None:
        with client:
            try:
                broker = await _connect(upstream, self._limits.connect_timeout_s)
            except OSError as error:
                reason = str(error) or "no answer in time"
                self._refusals[upstream] = f"the broker at {upstream} is not reachable: {reason}"
                log.warning("cannot connect to the broker", extra={"reason": reason})
                return
            self._refusals.pop(upstream, None)
            with broker:
                end_vanished(broker, self._limits.idle_timeout_s)
                for one in (client, broker):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with contextlib.suppress(ExceptionGroup):  # one side was reset
                    async with asyncio.TaskGroup() as both:
                        both.create_task(_copy(client, broker))
                        both.create_task(_copy(broker, client))


async def _copy(source: socket.socket, target: socket.socket) -> None:
    """Pass on all bytes, then the end. Raises OSError if either side is gone."""
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(source, CHUNK_BYTES):
        await loop.sock_sendall(target, data)
    target.shutdown(socket.SHUT_WR)


async def _connect(address: Address, timeout_s: float) -> socket.socket:
    """A connected socket that does not block. Raises OSError, TimeoutError included."""
    loop = asyncio.get_running_loop()
    failure = OSError(f"{address.host} has no address")
    async with asyncio.timeout(timeout_s):
        found = await loop.getaddrinfo(*address, type=socket.SOCK_STREAM)
        for family, _, _, _, place in found:
            one = socket.socket(family, socket.SOCK_STREAM)
            one.setblocking(False)
            try:
                await loop.sock_connect(one, place)
            except BaseException as error:
                one.close()
                if not isinstance(error, OSError):
                    raise
                failure = error
            else:
                return one
    raise failure
