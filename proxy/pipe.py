"""Pipe: a client's bytes to the broker and back, unread, with the end of each direction. [socket]

Owns both copies, and connecting. Must not know Kafka or TLS, nor why the bytes are not read.
Invariants:
* each direction holds at most CHUNK_BYTES; a side that does not read stops the other.
* the end of one direction is passed on, and the other direction goes on; a reset of either side ends both.
* a pipe that drains takes no request after a response, and ends once no response has come for QUIET_S.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from proxy.sockets import end_vanished

if TYPE_CHECKING:
    from proxy.config.units import Address

CHUNK_BYTES = 32 * 1024
QUIET_S = 0.25
"""Silence of the broker after which a pipe that drains takes all requests for answered; also how long a client may
take to close its side then.
"""

ATTEMPT_S = 2.0
"""Wait for one address of the broker's name: longer than the kernel's first repetition (1 s). A new pod has another
address, and a packet to the address of the former one gets no answer.
"""


@dataclass(slots=True)
class Carried:
    """Bytes that pipes have passed on, by direction, since the start of the process."""

    request_bytes: int = 0
    response_bytes: int = 0


class Pipe:
    """One client and its connection to the broker. Call `run` once; `drain` at any time."""

    __slots__ = (
        "_answering",
        "_asking",
        "_carried",
        "_client",
        "_is_asked",
        "_is_draining",
        "_timer",
    )

    def __init__(self, client: socket.socket, carried: Carried) -> None:
        """`client` does not block; the caller closes it after `run`."""
        self._client = client
        self._carried = carried
        self._is_asked = False
        self._is_draining = False
        self._asking: asyncio.Task[None] | None = None
        self._answering: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, broker: socket.socket, idle_timeout_s: float) -> None:
        """Pass on all bytes until both directions have ended, or one side was reset; closes `broker`, which is
        connected and does not block. `idle_timeout_s`: see `end_vanished`.
        """
        with broker:
            end_vanished(broker, idle_timeout_s)
            for one in (self._client, broker):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not self._is_draining:
                await self._copy_both(broker)
        if self._is_draining:
            await self._let_client_end()

    def drain(self) -> None:
        """End once the requests that the broker has are answered, by all signs: bytes that are not read do not tell
        whether a response is the last one. The caller bounds the time.
        """
        self._is_draining = True
        if not self._is_asked:
            self._await_silence()

    async def _copy_both(self, broker: socket.socket) -> None:
        try:
            async with asyncio.TaskGroup() as both:
                self._asking = both.create_task(self._copy_requests(broker))
                self._answering = both.create_task(self._copy_responses(broker))
        except* OSError:
            pass  # one side was reset
        finally:
            self._stop_timer()

    async def _copy_requests(self, broker: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(self._client, CHUNK_BYTES):
            self._is_asked = True
            await loop.sock_sendall(broker, data)
            self._carried.request_bytes += len(data)
        broker.shutdown(socket.SHUT_WR)

    async def _copy_responses(self, broker: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(broker, CHUNK_BYTES):
            self._is_asked = False
            self._stop_timer()
            await loop.sock_sendall(self._client, data)
            self._carried.response_bytes += len(data)
            if self._is_draining:
                self._await_silence()
        self._client.shutdown(socket.SHUT_WR)

    def _await_silence(self) -> None:
        """Take no more requests, and end if no response comes for QUIET_S."""
        self._stop_timer()
        if self._asking is None or self._answering is None:
            return  # not connected yet: `run` ends by itself
        self._asking.cancel()
        self._timer = asyncio.get_running_loop().call_later(QUIET_S, self._answering.cancel)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _let_client_end(self) -> None:
        """Say that nothing follows, and drop what the client still sends: a socket that is closed with unread bytes
        resets the connection, which may cost the client the last response.
        """
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            self._client.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(QUIET_S):
                while await loop.sock_recv(self._client, CHUNK_BYTES):
                    pass


async def connect(address: Address, timeout_s: float) -> socket.socket:
    """A socket connected to the broker at `address`, which does not block. An address that is silent for ATTEMPT_S is
    given up and the name resolved again. Raises OSError, TimeoutError included.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout_s):
        while True:
            failure = OSError(f"{address.host} has no address")
            for family, _, _, _, place in await loop.getaddrinfo(*address, type=socket.SOCK_STREAM):
                try:
                    return await _connect_at(family, place)
                except OSError as error:
                    failure = error
            if not isinstance(failure, TimeoutError):
                raise failure


async def _connect_at(family: int, place: Any) -> socket.socket:
    """A socket connected to one of a name's addresses. Raises OSError; TimeoutError: nobody answers there."""
    one = socket.socket(family, socket.SOCK_STREAM)
    one.setblocking(False)
    try:
        async with asyncio.timeout(ATTEMPT_S):
            await asyncio.get_running_loop().sock_connect(one, place)
    except BaseException:
        one.close()
        raise
    return one
