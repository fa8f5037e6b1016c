"""TLS handshakes of clients: accepted, counted and ended before any other object is made for a
client. [socket]

Owns accepting on listeners with TLS, and the handshakes of all of them, oldest first. Must not know
what happens to a client after its handshake. Invariants:
* a handshake counts as a connection, and is closed at once above `limits.maxConnections`.
* above `limit` handshakes the oldest is closed, since an honest handshake takes milliseconds.
* no handshake takes longer than TIMEOUT_S.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from proxy.sockets import accept_clients

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Awaitable, Callable, Sequence

    from proxy.accounting.counters import ClientCounts
    from proxy.sockets import Turns

    Made = Callable[[asyncio.Transport], None]
    First = Callable[[socket.socket], Awaitable[Made]]

log = logging.getLogger("forebay.listener")

TIMEOUT_S = 10.0
SHARE = 8
"""At most one in SHARE connections may be in its handshake."""


class RefusedClient(OSError):
    """A client is refused before its handshake. `cause` labels the counter."""

    def __init__(self, cause: str, reason: str = "") -> None:
        super().__init__(reason or cause)
        self.cause = cause


class Handshake(asyncio.Protocol):
    """The protocol of a socket during its handshake. `made` gets the transport when the handshake
    has succeeded.
    """

    def __init__(self, made: Made) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio when the handshake has succeeded."""
        self._made(cast("asyncio.Transport", transport))


class Handshakes:
    """The handshakes under way, of all listeners of the process; `len` is their number."""

    def __init__(self, counts: ClientCounts, max_connections: int) -> None:
        self._counts = counts
        self._under_way: dict[asyncio.Task[None], None] = {}
        self.turns: Turns | None = None
        """Those of several processes that accept; None: there is no other."""
        self.set_limit(max_connections)

    def set_limit(self, max_connections: int) -> None:
        """Take another `limits.maxConnections`. Handshakes under way beyond it continue."""
        self._max_connections = max_connections
        self.limit = max(1, max_connections // SHARE)

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def open_connections(self) -> int:
        """Of the process, handshakes included."""
        return self._counts.active_connections + len(self)

    @property
    def is_full(self) -> bool:
        """Whether `max_connections` are open."""
        return self.open_connections >= self._max_connections

    def begin(
        self,
        client: socket.socket,
        context: ssl.SSLContext | None,
        made: Made,
        first: First | None = None,
    ) -> None:
        """Start a handshake with `client`, or close it if all connections are in use. `made` gets
        its transport after success. `context` None: there is no TLS. `first`: what comes before TLS;
        it returns the function that is called instead of `made`.
        """
        if self.is_full:
            self._end("too_many_connections")
            log.warning("closing a client at limits.maxConnections")
            client.close()
            return
        has_handshake = context is not None or first is not None
        if has_handshake and len(self) >= self.limit:
            oldest = next(iter(self._under_way))
            del self._under_way[oldest]
            self._end("too_many_handshakes")
            oldest.cancel()
        task = asyncio.get_running_loop().create_task(
            self._run_handshake(client, context, made, first)
        )
        self._under_way[task] = None
        task.add_done_callback(self._over)

    async def _run_handshake(
        self,
        client: socket.socket,
        context: ssl.SSLContext | None,
        made: Made,
        first: First | None,
    ) -> None:
        """Run one handshake, after `first`. From then on the transport owns the socket and closes it in
        any case.
        """
        task = asyncio.current_task()
        assert task is not None
        if first is not None:
            try:
                made = await first(client)
            except BaseException:
                client.close()
                raise

        def succeeded(transport: asyncio.Transport) -> None:
            if self._under_way.pop(task, False) is None:
                made(transport)
            else:  # closed meanwhile, as the oldest of too many
                transport.abort()

        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: Handshake(succeeded),
            client,
            ssl=context,
            ssl_handshake_timeout=None if context is None else TIMEOUT_S,
        )

    def _over(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if self._under_way.pop(task, False) is None:
            self._end(error.cause if isinstance(error, RefusedClient) else "handshake")
        if error is not None and not isinstance(error, OSError):
            log.error("a handshake failed", exc_info=error)

    def _end(self, cause: str) -> None:
        self._counts.reject(cause)

    def close(self) -> None:
        """End all handshakes under way."""
        for task in list(self._under_way):
            task.cancel()


class TlsServer:
    """Accepts clients on one address: of TLS, or whose connections begin with something else than a frame, or where
    several processes accept. `made` gets the transport of each finished handshake.
    """

    def __init__(
        self,
        handshakes: Handshakes,
        context: ssl.SSLContext | None,
        made: Made,
        find_first: Callable[[], First | None] = lambda: None,
    ) -> None:
        """`find_first`: asked at each connection for what comes before its TLS, see `Handshakes.begin`."""
        self._handshakes = handshakes
        self._context = context
        self._made = made
        self._find_first = find_first
        self._sockets: Sequence[socket.socket] = ()
        self._accepting: list[asyncio.Task[None]] = []

    def start(self, sockets: Sequence[socket.socket]) -> None:
        """Accept from `sockets`, which listen and do not block."""
        loop = asyncio.get_running_loop()
        self._sockets = sockets
        turns = self._handshakes.turns
        self._accepting = [
            loop.create_task(accept_clients(one, self._take, turns)) for one in sockets
        ]

    def is_serving(self) -> bool:
        """Whether clients can connect."""
        return bool(self._accepting)

    def set_context(self, context: ssl.SSLContext) -> None:
        """Use other TLS settings for the handshakes that begin from now on."""
        self._context = context

    def _take(self, client: socket.socket) -> None:
        self._handshakes.begin(client, self._context, self._made, self._find_first())

    def close(self) -> None:
        """Stop accepting, and close the listening sockets. Handshakes under way continue."""
        for task in self._accepting:
            task.cancel()
        self._accepting = []
        for one in self._sockets:
            one.close()
