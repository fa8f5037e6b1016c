"""The floor of whoever stands between in this language: a relay on Forebay's event loop that looks at nothing.

Owns the relay, `python -m bench.ladder.bare_relay PORT UPSTREAM`, and its process. Must not know Kafka, Forebay, or
what is measured. Invariants: each chunk is written to the other side as it came, at once; what the kernel does not take
waits in the transport; whoever closes ends both.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING, cast

import uvloop

from tests.kit.broker.process import die_with_parent
from tests.kit.broker.settings import HOST

if TYPE_CHECKING:
    from collections.abc import Callable


class Side(asyncio.Protocol):
    """One of two sockets; `other` takes what it gets."""

    def __init__(self, on_made: Callable[[Side], None] | None = None) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: Side | None = None
        self._on_made = on_made
        self._early = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=0, low=0)
        if self._on_made is not None:
            self._on_made(self)

    def data_received(self, data: bytes) -> None:
        """To the other side; until that is there, it is kept."""
        other = self.other
        if other is None or other.transport is None:
            self._early += data
        else:
            other.transport.write(data)

    def join(self, other: Side) -> None:
        """From now on what one gets is the other's."""
        self.other, other.other = other, self
        if self._early and other.transport is not None:
            other.transport.write(bytes(self._early))
            self._early.clear()

    def connection_lost(self, _error: Exception | None) -> None:
        """Both end."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


async def relay(port: int, upstream: str) -> None:
    """Listen, until the process is ended."""
    host, upstream_port = upstream.rsplit(":", 1)
    loop = asyncio.get_running_loop()
    opening: set[asyncio.Task[None]] = set()

    async def dial(client: Side) -> None:
        _, broker = await loop.create_connection(Side, host, int(upstream_port))
        client.join(broker)

    def begin(client: Side) -> None:
        task = loop.create_task(dial(client))
        opening.add(task)
        task.add_done_callback(opening.discard)

    server = await loop.create_server(lambda: Side(begin), HOST, port)
    await server.serve_forever()


def start_bare_relay(port: int, upstream: str) -> subprocess.Popen[bytes]:
    """Its process, which listens a moment later."""
    words = [sys.executable, "-m", "bench.ladder.bare_relay", str(port), upstream]
    return subprocess.Popen(words, preexec_fn=die_with_parent)


if __name__ == "__main__":
    uvloop.run(relay(int(sys.argv[1]), sys.argv[2]))
