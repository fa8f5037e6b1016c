"""Pipes: clients' bytes to the broker and back, unread, while no worker runs. [socket]

Owns accepting in that state, and the pipes (proxy/pipe.py) made then. Must not know Kafka, nor why no worker
runs. In sidecar mode a worker rewrites nothing, so that a client sees no other broker. Invariants:
* at most `limits.maxConnections` pipes.
* once closed, all pipes end within `supervisor.pipeMaxAge`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from functools import partial
from typing import TYPE_CHECKING

from proxy.config.networks import HostLists, parse_address
from proxy.pipe import Carried, Pipe, connect
from proxy.sockets import accept_clients
from proxy.supervisor.figures import PIPES, PIPES_REFUSED, PIPES_TOTAL

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from proxy.config.model import Config, ListenerConfig
    from proxy.config.units import Address
    from proxy.supervisor.figures import Figures

log = logging.getLogger("forebay.pipes")


def find_obstacle(listener: ListenerConfig) -> str:
    """Why a listener's clients cannot be piped to the broker; "" if they can."""
    if listener.proxy_protocol != "none":
        return "its clients begin with a header that the broker does not read"
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
        self._lists = {
            entry.name: HostLists(entry.allow or (), entry.deny or ()) for entry in config.listeners
        }
        self._max_age_s = config.supervisor.pipe_max_age_s
        self._accepting: list[asyncio.Task[None]] = []
        self._pipes: set[asyncio.Task[None]] = set()
        self._refusals: dict[Address, str] = {}
        self._figures = figures
        self._carried = Carried()

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
        is_refused = find_obstacle(entry) or not self._is_admitted(entry, client)
        if is_refused or len(self._pipes) >= self._limits.max_connections:
            self._figures[PIPES_REFUSED,] += 1
            client.close()
            return
        pipe = asyncio.get_running_loop().create_task(self._pipe(client, entry.upstream))
        self._pipes.add(pipe)
        pipe.add_done_callback(self._forget)
        self._figures[PIPES,] = len(self._pipes)

    def _is_admitted(self, entry: ListenerConfig, client: socket.socket) -> bool:
        """Whether the listener's `allow` and `deny` let the client in; False also if it has gone."""
        lists = self._lists[entry.name]
        if not lists:
            return True
        try:
            return lists.admits(parse_address(client.getpeername()[0]))
        except OSError:
            return False

    def _forget(self, pipe: asyncio.Task[None]) -> None:
        self._pipes.discard(pipe)
        self._figures[PIPES,] = len(self._pipes)

    async def _pipe(self, client: socket.socket, upstream: Address) -> None:
        limits = self._limits
        with client:
            try:
                broker = await connect(upstream, limits.connect_timeout_s)
            except OSError as error:
                reason = str(error) or "no answer in time"
                self._refusals[upstream] = f"the broker at {upstream} is not reachable: {reason}"
                log.warning("cannot connect to the broker", extra={"reason": reason})
                return
            self._refusals.pop(upstream, None)
            await Pipe(client, self._carried).run(broker, limits.idle_timeout_s)
