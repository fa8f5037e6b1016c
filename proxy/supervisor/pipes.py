"""Pipes: clients' bytes to the broker and back, unread, while no worker runs or is to see them. [socket]

Owns accepting in that state, and the pipes (proxy/pipe.py) made then. Must not know Kafka, nor why no worker
runs. In sidecar mode a worker rewrites nothing, so that a client sees no other broker. Invariants:
* at most `limits.maxConnections` pipes.
* clients of a bypassed listener are piped whether a worker runs or not.
* once a listener is not piped any more, all its pipes end within `supervisor.pipeMaxAge`.
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
from proxy.switches.bypass import find_obstacle, list_unpiped

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from proxy.config.model import Config, ListenerConfig
    from proxy.config.units import Address
    from proxy.supervisor.figures import Figures

log = logging.getLogger("forebay.pipes")


class Pipes:
    """All pipes of the process. Call `open` and `close` in turns, `bypass` at any time, `abort` last."""

    def __init__(
        self, config: Config, sockets: Sequence[Sequence[socket.socket]], figures: Figures
    ) -> None:
        """`sockets`: the listening ones of each listener, in their order."""
        self._listeners = [
            (entry, one)
            for entry, each in zip(config.listeners, sockets, strict=True)
            for one in each
        ]
        self._unpiped = list_unpiped(config)
        self._limits = config.limits
        self._lists = {
            entry.name: HostLists(entry.allow or (), entry.deny or ()) for entry in config.listeners
        }
        self._max_age_s = config.supervisor.pipe_max_age_s
        self._grace_s = config.shutdown.grace_period_s
        self._is_open = False
        self._bypassed: frozenset[str] = frozenset()
        self._accepting: dict[str, list[asyncio.Task[None]]] = {}
        self._pipes: dict[asyncio.Task[None], tuple[str, Pipe]] = {}
        """Each with the name of its listener."""
        self._refusals: dict[Address, str] = {}
        self._figures = figures
        self._carried = Carried()

    def __len__(self) -> int:
        return len(self._pipes)

    @property
    def is_open(self) -> bool:
        """Whether clients of all listeners are accepted, since no worker runs."""
        return self._is_open

    @property
    def bypassed(self) -> frozenset[str]:
        """The listeners whose clients are accepted also while a worker runs."""
        return self._bypassed

    def list_problems(self) -> list[str]:
        """Why clients of some listener are not served, a sentence each."""
        return [*self._unpiped, *self._refusals.values()]

    def open(self) -> None:
        """Accept clients of all listeners."""
        self._is_open = True
        self._settle()

    def close(self) -> None:
        """Accept nobody but clients of bypassed listeners. Pipes end at random times within `supervisor.pipeMaxAge`,
        so that not all clients come back at once, unless `open` is called before.
        """
        self._is_open = False
        self._settle()

    def bypass(self, names: frozenset[str]) -> None:
        """Accept clients of these listeners whether a worker runs or not, and of no others for that reason. As `close`
        for those that are bypassed no more.
        """
        self._bypassed = names
        self._settle()

    def _settle(self) -> None:
        """Accept on the listeners that are piped now, and on no others."""
        loop = asyncio.get_running_loop()
        names = {entry.name for entry, _ in self._listeners}
        wanted = names if self._is_open else names & self._bypassed
        for name in [one for one in self._accepting if one not in wanted]:
            self._stop_accepting(name)
            for task in [task for task, (of, _) in self._pipes.items() if of == name]:
                loop.call_later(random.uniform(0, self._max_age_s), self._end_aged, task, name)
        for name in wanted - self._accepting.keys():
            self._accepting[name] = [
                loop.create_task(accept_clients(one, partial(self._take, entry)))
                for entry, one in self._listeners
                if entry.name == name
            ]

    def stop(self) -> None:
        """Accept nobody any more, and drain all pipes."""
        self._is_open, self._bypassed = False, frozenset()
        for name in list(self._accepting):
            self._stop_accepting(name)
        for _, pipe in self._pipes.values():
            pipe.drain()

    async def finish(self) -> None:
        """Return once all pipes have ended: those that do not drain within `shutdown.gracePeriod` are cut."""
        if self._pipes:
            await asyncio.wait([*self._pipes], timeout=self._grace_s)
        await self.abort()

    async def abort(self) -> None:
        """Accept nobody, and end all pipes at once."""
        tasks = [*(task for each in self._accepting.values() for task in each), *self._pipes]
        self.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _stop_accepting(self, name: str) -> None:
        for task in self._accepting.pop(name):
            task.cancel()

    def _end_aged(self, task: asyncio.Task[None], name: str) -> None:
        """Drain a pipe, and cut it after `shutdown.gracePeriod`, unless its listener is piped again."""
        if name not in self._accepting and task in self._pipes:
            self._pipes[task][1].drain()
            asyncio.get_running_loop().call_later(self._grace_s, task.cancel)

    def _take(self, entry: ListenerConfig, client: socket.socket) -> None:
        self._figures[PIPES_TOTAL,] += 1
        is_refused = find_obstacle(entry) or not self._is_admitted(entry, client)
        if is_refused or len(self._pipes) >= self._limits.max_connections:
            self._figures[PIPES_REFUSED,] += 1
            client.close()
            return
        pipe = Pipe(client, self._carried)
        task = asyncio.get_running_loop().create_task(self._pipe(client, pipe, entry.upstream))
        self._pipes[task] = entry.name, pipe
        task.add_done_callback(self._forget)
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

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._pipes.pop(task, None)
        self._figures[PIPES,] = len(self._pipes)

    async def _pipe(self, client: socket.socket, pipe: Pipe, upstream: Address) -> None:
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
            await pipe.run(broker, limits.idle_timeout_s)
