"""Pass-through listener: a client-facing socket whose bytes go to the broker and back unread. [socket]

Owns accepting and the pipes of one listener with `passThrough`. Must not know Kafka or TLS: both end at client and
broker. Invariants:
* a connection above `limits.maxConnections`, which all listeners share, or against the rules for its address, is
  closed and counted.
* after `stop` nothing is accepted; `drained` is set when the last pipe has ended.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from proxy.net.host_rules import ADMITTED, HostRules, find_peer
from proxy.pipe import Carried, Pipe, connect
from proxy.sockets import accept_clients, end_vanished, find_address

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from proxy.accounting.counters import Counters
    from proxy.config.model import Config, Limits, ListenerConfig
    from proxy.config.units import Address
    from proxy.net.host_limits import HostLimits
    from proxy.net.tls_handshakes import Handshakes

log = logging.getLogger("forebay.listener")


class PassThroughServices(Protocol):
    """The objects of other rooms that a pass-through listener uses."""

    @property
    def config(self) -> Config: ...
    @property
    def counters(self) -> Counters: ...
    @property
    def handshakes(self) -> Handshakes: ...
    @property
    def host_limits(self) -> HostLimits: ...
    @property
    def now(self) -> Callable[[], float]: ...


class PassThroughListener:
    """The running part of an entry of `listeners` with `passThrough`. `len` is the number of its pipes."""

    def __init__(self, broker: PassThroughServices, config: ListenerConfig) -> None:
        self._broker = broker
        self.config = config
        self.name = config.name
        self.upstream: Address = config.upstream
        self.carried = Carried()
        self.hosts = HostRules(config, broker.host_limits, broker.now)
        self.accepted = 0
        """Number of clients accepted, without those above `limits.maxConnections`."""
        self.bound: Address | None = None
        """The address that clients connect to; None before `start`."""
        self.drained = asyncio.Event()
        """Set once `stop` was called and the last pipe has ended."""
        self._pipes: dict[Pipe, asyncio.Task[bool]] = {}
        self._accepting: list[asyncio.Task[None]] = []
        self._sockets: Sequence[socket.socket] = ()
        self._is_stopping = False

    def __len__(self) -> int:
        return len(self._pipes)

    @property
    def is_bound(self) -> bool:
        """Whether clients can connect."""
        return bool(self._accepting)

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Accept clients from `sockets`, which listen and do not block, and own them."""
        loop = asyncio.get_running_loop()
        self._sockets, self.bound = sockets, find_address(sockets)
        turns = self._broker.handshakes.turns
        self._accepting = [
            loop.create_task(accept_clients(one, self._take, turns)) for one in sockets
        ]
        log.info(
            "listener %s: clients at %s, broker at %s; bytes pass unread, without cache",
            self.name,
            self.bound,
            self.upstream,
            extra={"listener": self.name},
        )

    def adopt(self, config: ListenerConfig, limits: Limits) -> None:
        """Use other limits and lists of networks for the connections that are made from now on."""
        self.config = config
        self.hosts.set_lists(config)
        for one in self._sockets:
            end_vanished(one, limits.idle_timeout_s)

    def _take(self, client: socket.socket) -> None:
        clients = self._broker.counters.clients
        if self._broker.handshakes.is_full:
            clients.reject("too_many_connections")
            log.warning("closing a client at limits.maxConnections")
            client.close()
            return
        address = find_peer(client)
        verdict = self.hosts.judge(address) if self.hosts.is_active else ADMITTED
        if verdict.cause:
            clients.reject(verdict.cause)
            fields = {"listener": self.name, "cause": verdict.cause, "reason": f"{address}"}
            log.warning("closing a client by the rules for its address", extra=fields)
            self.hosts.hold(verdict.delay_s, client.close)
            return
        self.accepted += 1
        clients.open()
        pipe = Pipe(client, self.carried)
        self.hosts.enter(pipe, address)
        task = asyncio.get_running_loop().create_task(self._run(client, pipe))
        self._pipes[pipe] = task
        task.add_done_callback(lambda done: self._forget(pipe, done))

    async def _run(self, client: socket.socket, pipe: Pipe) -> bool:
        """Returns whether the broker could be reached."""
        limits = self._broker.config.limits
        with client:
            try:
                broker = await connect(self.upstream, limits.connect_timeout_s)
            except OSError as error:
                self._broker.counters.upstream.fail()
                fields = {"listener": self.name, "reason": str(error) or "no answer in time"}
                log.warning("cannot connect to the broker", extra=fields)
                return False
            await pipe.run(broker, limits.idle_timeout_s)
        return True

    def _forget(self, pipe: Pipe, task: asyncio.Task[bool]) -> None:
        del self._pipes[pipe]
        self.hosts.leave(pipe)
        counters = self._broker.counters
        if task.cancelled():
            counters.clients.close("drain_timeout", is_error=False)
        elif error := task.exception():
            counters.faults.count_error()
            counters.clients.close("", is_error=True)
            log.error("a pipe failed", exc_info=error)
        else:
            cause = "drained" if self._is_stopping else "client_closed"
            counters.clients.close(cause, is_error=not task.result())
        self._note_drained()

    def _note_drained(self) -> None:
        if self._is_stopping and not self._pipes:
            self.drained.set()

    def stop(self) -> None:
        """Stop accepting, and drain all pipes."""
        self._is_stopping = True
        for task in self._accepting:
            task.cancel()
        self._accepting = []
        for one in self._sockets:
            one.close()
        for pipe in list(self._pipes):
            pipe.drain()
        self._note_drained()

    def abort(self) -> None:
        """End all pipes at once: the grace period is over."""
        for task in list(self._pipes.values()):
            task.cancel()
