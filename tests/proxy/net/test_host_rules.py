"""Host rules on real sockets: lists, limits by address and the PROXY header, in the clear and with TLS."""

import asyncio
import contextlib
import socket
import ssl
from contextlib import asynccontextmanager

import pytest
import uvloop

from proxy.net import host_limits, host_rules
from tests.kit.broker.certificates import write_certificates
from tests.proxy.event_loop import PATIENCE_S, until
from tests.proxy.net.test_client_connection import LIST_GROUPS
from tests.proxy.net.test_proxy_protocol import V6, build
from tests.proxy.uncached_forebay import OFF, front

ANSWER = LIST_GROUPS[:4] + LIST_GROUPS[8:12] + bytes(6)
PROXIED = {"proxyProtocol": "v2", "trustedProxies": "127.0.0.1, 127.0.0.9"}
FAR = "192.0.2.7"  # the source in `build()`

both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
both_sides = pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "tls"])


class Scene:
    """A Forebay, and clients of any loopback address."""

    def __init__(self, played, context):
        self.played = played
        self.broker = played.forebay.broker
        self.listener = played.forebay.listeners[0]
        self.counts = self.broker.counters.clients
        self.context = context
        self.opened = []
        self.writers = []

    async def connect(self, host="127.0.0.1"):
        one = socket.socket()
        one.setblocking(False)
        one.bind((host, 0))
        self.opened.append(one)
        await asyncio.get_running_loop().sock_connect(one, tuple(self.listener.bound))
        return one

    async def ask(self, host="127.0.0.1", header=b""):
        """A connection that is answered; its writer."""
        one = await self.connect(host)
        await asyncio.get_running_loop().sock_sendall(one, header)
        name = "localhost" if self.context else None
        reader, writer = await asyncio.open_connection(
            sock=one, ssl=self.context, server_hostname=name
        )
        seen = len(self.played.broker.seen)
        writer.write(LIST_GROUPS)
        await until(lambda: len(self.played.broker.seen) == seen + 1)
        self.played.broker.answer(ANSWER)
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.readexactly(len(ANSWER)) == ANSWER
        self.writers.append(writer)  # without a reference it would be closed
        return writer

    async def is_refused(self, cause, host="127.0.0.1", header=b""):
        """The connection ends unanswered, for that cause."""
        before = self.counts.disconnects[cause]
        one = await self.connect(host)
        with contextlib.suppress(ConnectionError):
            await asyncio.get_running_loop().sock_sendall(one, header)
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.get_running_loop().sock_recv(one, 1) == b""
        await until(lambda: self.counts.disconnects[cause] == before + 1)
        return True


@asynccontextmanager
async def scene(directory, with_tls=False, limits=None, **more):
    context, tls = None, None
    if with_tls:
        files = write_certificates(directory)
        tls = {"certificateFile": str(files.server.certificate), "keyFile": str(files.server.key)}
        context = ssl.create_default_context(cafile=str(files.authority))
    settings = {**OFF, "limits": limits or {}}
    async with front(settings, tls=tls, more=more) as played:
        here = Scene(played, context)
        played.client.close()
        await until(lambda: here.counts.connections == sum(here.counts.disconnects.values()) == 1)
        here.counts.disconnects.clear()
        here.counts.connections = 0
        try:
            yield here
        finally:
            for one in here.opened:
                one.close()


@both_loops
@both_sides
def test_denied_and_not_allowed_addresses_are_closed(run, with_tls, tmp_path):
    async def scenario():
        lists = {"allow": "127.0.0.0/30", "deny": "127.0.0.2"}
        async with scene(tmp_path, with_tls, **lists) as here:
            await here.ask("127.0.0.1")
            assert await here.is_refused(host_rules.DENIED, "127.0.0.2")
            assert await here.is_refused(host_rules.DENIED, "127.0.0.9")
            await here.ask("127.0.0.3")
            assert here.counts.connection_errors == 0

    run(scenario())


@both_sides
def test_lists_are_live(with_tls, tmp_path):
    async def scenario():
        async with scene(tmp_path, with_tls) as here:
            await here.ask("127.0.0.2")
            config = here.listener.config.model_copy(update={"deny": ("127.0.0.2/32",)})
            here.listener.hosts.set_lists(config)
            assert await here.is_refused(host_rules.DENIED, "127.0.0.2")
            here.listener.hosts.set_lists(here.listener.config)
            await here.ask("127.0.0.2")

    asyncio.run(scenario())


@both_loops
@both_sides
def test_connections_of_an_address_are_limited(run, with_tls, tmp_path):
    async def scenario():
        async with scene(tmp_path, with_tls, {"connectionsPerAddress": 2}) as here:
            first, _ = await here.ask("127.0.0.2"), await here.ask("127.0.0.2")
            assert await here.is_refused(host_rules.TOO_MANY, "127.0.0.2")
            await here.ask("127.0.0.3")
            first.close()
            await until(lambda: len(here.listener.links) == 2)
            await here.ask("127.0.0.2")
            assert await here.is_refused(host_rules.TOO_MANY, "127.0.0.2")

    run(scenario())


@both_sides
def test_limit_counts_connections_from_before(with_tls, tmp_path):
    async def scenario():
        async with scene(tmp_path, with_tls) as here:
            await here.ask("127.0.0.2")
            await here.ask("127.0.0.2")
            limits = here.broker.config.limits
            here.broker.host_limits.set_limits(2, 0)
            for link in here.listener.links:
                here.listener.hosts.count(link, link.host)
            assert await here.is_refused(host_rules.TOO_MANY, "127.0.0.2")
            assert limits.connections_per_address == 0

    asyncio.run(scenario())


@both_loops
@both_sides
def test_connections_above_the_rate_are_held_and_closed(run, with_tls, tmp_path, monkeypatch):
    monkeypatch.setattr(host_limits, "BURST_S", 2.0)
    monkeypatch.setattr(host_limits, "LONGEST_DELAY_S", 0.3)
    clock_s = [100.0]

    async def scenario():
        async with scene(tmp_path, with_tls, {"connectionRatePerAddress": 1}) as here:
            monkeypatch.setattr(here.listener.hosts, "_now", lambda: clock_s[0])
            for _ in range(2):
                await here.ask("127.0.0.2")
            held = [await here.connect("127.0.0.2") for _ in range(3)]
            await until(lambda: here.broker.host_limits.delayed == 3)
            await here.ask("127.0.0.3")
            for one in held:
                async with asyncio.timeout(PATIENCE_S):
                    with contextlib.suppress(ConnectionResetError):
                        assert await asyncio.get_running_loop().sock_recv(one, 1) == b""
            await until(lambda: here.counts.disconnects[host_rules.TOO_FAST] == 3)
            assert here.broker.host_limits.delayed == 0
            clock_s[0] += 1.0
            await here.ask("127.0.0.2")
            assert await here.is_refused(host_rules.TOO_FAST, "127.0.0.2")

    run(scenario())


@both_sides
def test_at_the_limit_of_held_connections_they_are_closed_at_once(with_tls, tmp_path, monkeypatch):
    monkeypatch.setattr(host_limits, "BURST_S", 0.0)
    monkeypatch.setattr(host_limits, "LONGEST_DELAY_S", 3600.0)
    monkeypatch.setattr(host_limits, "HELD_CONNECTIONS", 2)

    async def scenario():
        async with scene(tmp_path, with_tls, {"connectionRatePerAddress": 1}) as here:
            monkeypatch.setattr(here.listener.hosts, "_now", lambda: 100.0)
            await here.ask("127.0.0.2")
            for _ in range(2):
                await here.connect("127.0.0.2")
            await until(lambda: here.broker.host_limits.delayed == 2)
            assert await here.is_refused(host_rules.TOO_FAST, "127.0.0.2")

    asyncio.run(scenario())


@both_loops
@both_sides
def test_address_is_that_of_the_header(run, with_tls, tmp_path):
    async def scenario():
        async with scene(tmp_path, with_tls, **PROXIED) as here:
            await here.ask(header=build())
            (link,) = here.listener.links
            assert (link.host, link.peer) == (FAR, f"{FAR}:4711")
            await here.ask("127.0.0.9", header=build(transport=0x21, rest=V6))
            assert {one.host for one in here.listener.links} == {FAR, "2001:db8::7"}
            await here.ask(header=build(command=0x20, transport=0, rest=b""))
            assert "127.0.0.1" in {one.host for one in here.listener.links}

    run(scenario())


@both_loops
@both_sides
def test_connection_without_a_good_header_is_closed(run, with_tls, tmp_path, monkeypatch):
    monkeypatch.setattr(host_rules, "TIMEOUT_S", 0.3)

    async def scenario():
        async with scene(tmp_path, with_tls, **PROXIED) as here:
            assert await here.is_refused(host_rules.NO_HEADER, header=LIST_GROUPS * 2)
            assert await here.is_refused(host_rules.NO_HEADER, header=build()[:20])  # in time
            assert await here.is_refused(host_rules.NO_HEADER)
            assert await here.is_refused(host_rules.UNTRUSTED, "127.0.0.2", build())
            await here.ask(header=build())
            assert len(here.broker.handshakes) == 0

    run(scenario())


@both_sides
def test_rules_hold_for_the_address_of_the_header(with_tls, tmp_path):
    async def scenario():
        rules = PROXIED | {"allow": "192.0.2.0/24, 2001:db8::/32"}
        async with scene(tmp_path, with_tls, {"connectionsPerAddress": 1}, **rules) as here:
            writer = await here.ask(header=build())
            assert await here.is_refused(host_rules.TOO_MANY, header=build())
            await here.ask(header=build(transport=0x21, rest=V6))
            other = build(rest=socket.inet_aton("203.0.113.1") + build()[20:])
            assert await here.is_refused(host_rules.DENIED, header=other)
            for _ in range(3):  # checks of health
                await here.ask(header=build(command=0x20, transport=0, rest=b""))
            writer.close()
            await until(lambda: FAR not in {one.host for one in here.listener.links})
            await here.ask(header=build())

    asyncio.run(scenario())


def test_listener_without_a_header_takes_none(tmp_path):
    """The header would be a frame that is too large: nobody can claim another's address."""

    async def scenario():
        async with scene(tmp_path) as here:
            one = await here.connect()
            await asyncio.get_running_loop().sock_sendall(one, build())
            async with asyncio.timeout(PATIENCE_S):
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.get_running_loop().sock_recv(one, 1) == b""
            assert here.broker.counters.faults.bad_frames == 1

    asyncio.run(scenario())
