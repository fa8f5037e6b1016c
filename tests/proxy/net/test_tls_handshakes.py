"""TLS handshakes count as connections, are limited in number and in time: real listeners and sockets."""

import asyncio
import contextlib
import socket
import ssl
from contextlib import asynccontextmanager

import pytest
import uvloop

from proxy.net import tls_handshakes as handshakes_module
from tests.kit.broker.certificates import write_certificates
from tests.proxy.event_loop import PATIENCE_S, until
from tests.proxy.net.test_client_connection import LIST_GROUPS
from tests.proxy.uncached_forebay import OFF, front

both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


class Doors:
    """A Forebay whose only listener speaks TLS, or two of which one does not."""

    def __init__(self, played, files):
        self.played = played
        self.broker = played.forebay.broker
        self.counters = self.broker.counters
        self.listener = played.forebay.listeners[0]
        self.context = ssl.create_default_context(cafile=str(files.authority))
        self.opened = []

    async def connect_silent(self, address=None):
        one = socket.socket()
        one.setblocking(False)
        self.opened.append(one)
        await asyncio.get_running_loop().sock_connect(one, tuple(address or self.listener.bound))
        return one

    async def connect(self):
        """Shakes hands; reader and writer."""
        host, port = self.listener.bound
        return await asyncio.open_connection(
            host, port, ssl=self.context, server_hostname="localhost"
        )


@asynccontextmanager
async def doors(directory, most):
    files = write_certificates(directory)
    tls = {"certificateFile": str(files.server.certificate), "keyFile": str(files.server.key)}
    settings = {**OFF, "limits": {"maxConnections": most}}
    async with front(settings, tls=tls) as played:
        here = Doors(played, files)
        await until(lambda: len(here.broker.handshakes) == 1)
        played.client.close()
        await until(lambda: not len(here.broker.handshakes))
        here.counters.clients.connections = 0
        here.counters.clients.disconnects.clear()
        try:
            yield here
        finally:
            for one in here.opened:
                one.close()


async def ends(one):
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionResetError):
            return await asyncio.get_running_loop().sock_recv(one, 1) == b""
        return True


async def ask(played, reader, writer):
    seen = len(played.broker.seen)
    writer.write(LIST_GROUPS)
    await until(lambda: len(played.broker.seen) == seen + 1)
    played.broker.answer(LIST_GROUPS[:4] + LIST_GROUPS[8:12] + bytes(6))
    async with asyncio.timeout(PATIENCE_S):
        return await reader.readexactly(14)


@both_loops
def test_silent_connection_yields_to_a_handshake(run, tmp_path):
    async def scenario():
        async with doors(tmp_path, 32) as here:
            limit = here.broker.handshakes.limit
            silent = [await here.connect_silent() for _ in range(limit)]
            await until(lambda: len(here.broker.handshakes) == limit)
            assert not here.counters.clients.disconnects
            reader, writer = await here.connect()
            assert await ask(here.played, reader, writer)
            assert here.counters.clients.disconnects == {"too_many_handshakes": 1}
            assert await ends(silent[0]), "the oldest"
            assert len(here.broker.handshakes) == limit - 1
            assert here.counters.clients.active_connections == 1
            for one in silent:
                one.close()
            await until(lambda: not len(here.broker.handshakes))
            assert here.counters.clients.disconnects["handshake"] == limit - 1
            writer.close()
            await until(lambda: not here.counters.clients.active_connections)
            assert here.counters.clients.connections == sum(
                here.counters.clients.disconnects.values()
            )

    run(scenario())


@both_loops
def test_all_listeners_share_one_connection_limit(run, tmp_path):
    async def scenario():
        async with doors(tmp_path, 2) as here:
            clients = [await here.connect(), await here.connect()]
            await until(lambda: here.counters.clients.active_connections == 2)
            assert await ends(await here.connect_silent())
            assert here.counters.clients.disconnects == {"too_many_connections": 1}
            clients[0][1].close()
            await until(lambda: here.counters.clients.active_connections == 1)
            silent = await here.connect_silent()
            await until(lambda: len(here.broker.handshakes) == 1)
            assert await ends(await here.connect_silent())
            silent.close()
            await until(lambda: not len(here.broker.handshakes))
            assert await ask(here.played, *await here.connect())

    run(scenario())


@both_loops
def test_none_lasts(run, tmp_path, monkeypatch):
    monkeypatch.setattr(handshakes_module, "TIMEOUT_S", 0.2)

    async def scenario():
        async with doors(tmp_path, 32) as here:
            silent = await here.connect_silent()
            assert await ends(silent)
            await until(lambda: not len(here.broker.handshakes))
            assert here.counters.clients.disconnects == {"handshake": 1}

    run(scenario())


def test_the_time_is_ten_seconds():
    assert handshakes_module.TIMEOUT_S == 10.0


def test_listeners_share_one_bound():
    """Plain ones, too: one is full with what the other has."""

    async def scenario():
        async with front({**OFF, "limits": {"maxConnections": 2}}, listeners=2) as played:
            first, second = played.forebay.listeners
            await until(lambda: len(first.links) == 1)
            others = [socket.socket() for _ in range(2)]
            for one in others:
                one.setblocking(False)
                await asyncio.get_running_loop().sock_connect(one, tuple(second.bound))
            await until(lambda: played.counters["clients.disconnects"])
            assert (len(first.links), len(second.links)) == (1, 1)
            assert await ends(others[1])
            assert played.counters["clients.disconnects"] == {"too_many_connections": 1}
            for one in others:
                one.close()

    asyncio.run(scenario())


@both_loops
def test_a_smaller_limit_ends_no_handshake(run, tmp_path):
    async def scenario():
        async with doors(tmp_path, 32) as here:
            silent = [await here.connect_silent() for _ in range(4)]
            await until(lambda: len(here.broker.handshakes) == 4)
            here.broker.handshakes.set_limit(16)
            assert (here.broker.handshakes.limit, len(here.broker.handshakes)) == (2, 4)
            assert not here.counters.clients.disconnects
            for one in silent:
                one.close()
            await until(lambda: not len(here.broker.handshakes))
            assert await ask(here.played, *await here.connect())

    run(scenario())
