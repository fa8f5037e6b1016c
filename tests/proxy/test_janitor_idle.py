"""Only idle and vanished clients are closed: after `limits.idleTimeout`, or once the broker has closed theirs.

Owns a Forebay in this process before a played broker. It must not know how idleness is found. Invariants: time is an
argument.
"""

import asyncio
import socket

import pytest
import uvloop

from proxy.janitor import Janitor
from proxy.sockets import PROBES
from tests.proxy.event_loop import PATIENCE_S, until
from tests.proxy.net.test_client_connection import LIST_GROUPS
from tests.proxy.produce.test_splice_request import greet, produce
from tests.proxy.produce_link import build_answer
from tests.proxy.uncached_forebay import OFF, front

IDLE_S = 100.0
SETTINGS = {**OFF, "limits": {"idleTimeout": f"{IDLE_S:g}s"}}
both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


class Idle:
    """`tick` is the janitor's look, at a time counted from the client's connecting."""

    def __init__(self, played):
        self.played = played
        self.listener = played.forebay.listeners[0]
        self.janitor = Janitor(played.forebay.broker, [self.listener])
        self.began_at = played.link.seen_at

    def tick(self, after_s):
        self.janitor.end_idle(self.began_at + after_s)

    @property
    def is_there(self):
        return bool(self.listener.links)

    @property
    def counted(self):
        return self.played.forebay.broker.counters.clients.disconnects["idle"]


async def ends(one):
    async with asyncio.timeout(PATIENCE_S):
        return await asyncio.get_running_loop().sock_recv(one, 1) == b""


@both_loops
def test_silent_client_is_closed(run):
    async def scenario():
        async with front(SETTINGS) as played:
            await until(lambda: played.forebay.listeners[0].links)
            idle = Idle(played)
            idle.tick(IDLE_S - 1)
            assert idle.is_there
            await greet(played)
            idle.tick(IDLE_S + 10)
            idle.tick(2 * IDLE_S + 9)
            assert idle.is_there, "it has asked since"
            idle.tick(2 * IDLE_S + 20)
            assert not idle.is_there
            assert idle.counted == 1
            assert await ends(played.client)
            assert played.forebay.broker.counters.clients.connection_errors == 0

    run(scenario())


@pytest.mark.parametrize("kind", ["unanswered", "flying", "begun", "waiting"])
def test_waiting_client_is_not_idle(kind):
    async def scenario():
        async with front(SETTINGS) as played:
            await greet(played)
            idle = Idle(played)
            if kind == "unanswered":
                await played.send(LIST_GROUPS)
            elif kind == "flying":
                await played.ask(produce(50), build_answer(0))
                await played.send(produce(50))
            elif kind == "begun":
                await asyncio.get_running_loop().sock_sendall(played.client, LIST_GROUPS[:9])
                await until(lambda: played.link.framed.pending_frame_bytes)
            else:
                played.link.replies.reserve()
            for times in range(1, 4):
                idle.tick(times * 2 * IDLE_S)
            assert idle.is_there

    asyncio.run(scenario())


@both_loops
@pytest.mark.parametrize("kind", ["idle", "asked lately", "waiting"])
def test_idle_upstream_close_closes_an_idle_client(run, kind):
    async def scenario():
        async with front(SETTINGS) as played:
            await greet(played)
            idle, link = Idle(played), played.link
            if kind != "asked lately":
                idle.tick(1)
                idle.tick(10)
            if kind == "waiting":
                link.replies.reserve()  # a Fetch parked in Forebay: the broker owes nothing
            played.broker.writers[-1].close()
            if kind == "idle":
                assert await ends(played.client)
                assert (idle.is_there, idle.counted) == (False, 1)
                assert played.forebay.broker.counters.upstream.reopened == 0
                assert played.forebay.broker.counters.clients.connection_errors == 0
            else:
                await until(lambda: link.upstream.reopened)
                assert idle.is_there

    run(scenario())


@both_loops
def test_accepted_sockets_end_when_the_peer_vanishes(run):
    async def scenario():
        async with front(SETTINGS) as played:
            await until(lambda: played.forebay.listeners[0].links)
            one = socket.socket(fileno=played.link.framed.plain_fd)
            try:
                assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == IDLE_S * 1000
                probe_s = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
                assert (
                    probe_s
                    == one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
                    == IDLE_S / PROBES
                )
            finally:
                one.detach()

    run(scenario())
