"""A Forebay in this process without a cache, before a played broker, with one client's socket.

Owns them, the log lines and the counters, without times. It must not know the requests of a test.
Invariants: nothing sleeps; both sides get whole frames.
"""

import asyncio
import json
import socket
from contextlib import asynccontextmanager
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory

from metrics.access_log import ResponseLine
from proxy import app
from proxy.config.load import load
from proxy.fetch.access_lines import AccessLines
from proxy.sockets import bind_all
from tests.proxy.counter_values import read_counters
from tests.proxy.event_loop import PATIENCE_S, until
from tests.proxy.followed_partition import stand_in
from tests.proxy.memory_log import MemoryLog
from tests.proxy.net.test_broker_connection import PlayedBroker

OFF = {"cache": {"mode": "off", "directory": ""}, "throttle": {"enabled": False}}


class Lines(MemoryLog):
    """An access log in memory: lines as they are, but for times."""

    def put(self, line, named=1):
        super().put(ResponseLine(*line)._replace(ts=0, total_ms=0.0), named)


class Front:
    """`link`: the client's connection, once a frame was sent."""

    def __init__(self, forebay, broker, client):
        self.forebay = forebay
        self.broker = broker
        self.client = client
        self.lines = forebay.broker.access_log

    @property
    def counters(self):
        """All counts by record and name; histograms by their number of samples."""
        self.forebay.broker.pipeline_counts.settle(self.forebay.broker.counters)
        return read_counters(self.forebay.broker, attrgetter("count"))

    @property
    def link(self):
        (link,) = self.forebay.listeners[0].links
        return link

    async def send(self, *frames):
        """Send frames to Forebay, and wait until the broker has them."""
        seen = len(self.broker.seen)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.get_running_loop().sock_sendall(self.client, b"".join(frames))
        await until(lambda: len(self.broker.seen) == seen + len(frames))

    async def take(self, size_bytes):
        """Read `size_bytes` from Forebay; fewer bytes if the connection ends."""
        got = bytearray()
        async with asyncio.timeout(PATIENCE_S):
            while len(got) < size_bytes:
                room = min(1 << 16, size_bytes - len(got))
                try:
                    chunk = await asyncio.get_running_loop().sock_recv(self.client, room)
                except ConnectionResetError:  # closed before it had read all that was sent
                    break
                if not chunk:
                    break
                got += chunk
        return bytes(got)

    async def ask(self, request, answer):
        """Send one Fetch; return its response."""
        await self.send(request)
        self.broker.answer(answer)
        return await self.take(len(answer))


@asynccontextmanager
async def front(settings=OFF, has_log=True, tls=None, listeners=1, more=None):
    """`more`: further keys of each listener."""
    broker = PlayedBroker()
    server = await asyncio.start_server(broker.accept, "127.0.0.1", 0)
    upstream = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with TemporaryDirectory() as directory:
        path = Path(directory) / "forebay.json"
        entry = {"name": "l", "listen": "127.0.0.1:0", "upstream": upstream} | (
            {"tls": tls} if tls else {}
        )
        entry |= more or {}
        entries = [entry | {"name": f"l{number}"} for number in range(listeners)]
        path.write_text(
            json.dumps({"listeners": entries, "admin": {"listen": "127.0.0.1:0"}, **settings})
        )
        forebay = app.Forebay(load(path, {}).config)
    known, lines = forebay.broker, Lines()
    known.access_log = stand_in(lines) if has_log else None
    if has_log:
        known.accounts.lines = AccessLines(
            stand_in(lines), known.cache, known.topics, known.partitions, lines.empty
        )
    sockets = bind_all(forebay.config)
    for listener, each in zip(forebay.listeners, sockets.listeners, strict=True):
        await listener.start(each)
    client = socket.socket()
    client.setblocking(False)
    bound = forebay.listeners[0].bound
    assert bound is not None
    await asyncio.get_running_loop().sock_connect(client, tuple(bound))
    try:
        yield Front(forebay, broker, client)
    finally:
        client.close()
        for listener in forebay.listeners:
            listener.stop()
            listener.abort()
        for one in sockets.admin:
            one.close()
        forebay.broker.handshakes.close()
        forebay.broker.scheduler.stop()
        for writer in broker.writers:
            writer.close()
        server.close()
        forebay.broker.cache.close()
