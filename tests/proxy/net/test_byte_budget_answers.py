"""Responses to stalled clients are held up to the limit, and no other client waits for them.

Owns a Forebay in this process, clients that ask and do not read, and one that does. It must not know how an answer is
kept. Invariants: time is an argument; both event loops are tried, and connections that C may move bytes between as well
as those that it may not (as if encrypted).
"""

import asyncio
import random
import socket

import pytest
import uvloop

from proxy.janitor import STUCK_S
from tests.proxy.event_loop import PATIENCE_S, until
from tests.proxy.net.test_byte_budget_unfinished import MIB, crowd
from tests.proxy.net.test_client_connection import LIST_GROUPS

BOUND_BYTES = 16 * MIB
ANSWER_BYTES = 6 * MIB
CLIENTS = 10
SETTINGS = {
    "cache": {"mode": "off", "directory": ""},
    "throttle": {"enabled": False},
    "limits": {"responseMemory": BOUND_BYTES, "connectionResponseMemory": 8 * MIB},
}
both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


def answer(size_bytes=ANSWER_BYTES):
    """To LIST_GROUPS, of no meaning."""
    body = (42).to_bytes(4, "big") + random.Random(size_bytes).randbytes(size_bytes)
    return len(body).to_bytes(4, "big") + body


async def ask_and_not_read(here, is_plain, times=1):
    """One more client; the broker has answered it. What it sends is sent in the background: nobody may read it."""
    broker = here.played.broker
    one, link = await here.connect()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    if not is_plain:
        link.framed.plain_fd = link.framed.free_fd = -1
    before = len(broker.seen)
    here.begin(one, LIST_GROUPS * times)
    await until(lambda: len(broker.seen) == before + times)
    if not is_plain:
        link.upstream.framed.plain_fd = link.upstream.framed.free_fd = -1
    for _ in range(times):
        broker.writers[-1].write(answer())
    return one, link


async def take(one, size_bytes):
    got = bytearray()
    async with asyncio.timeout(PATIENCE_S):
        while len(got) < size_bytes:
            got += await asyncio.get_running_loop().sock_recv(
                one, min(1 << 16, size_bytes - len(got))
            )
    return bytes(got)


async def settle(here):
    """As long as anything moves between the sockets."""
    loop = asyncio.get_running_loop()
    seen = -1
    while seen != (
        now := sum(
            writer.transport.get_write_buffer_size() for writer in here.played.broker.writers
        )
    ):
        seen = now
        for _ in range(200):
            turned = asyncio.Event()
            loop.call_soon(turned.set)
            await turned.wait()


@both_loops
@pytest.mark.parametrize("is_plain", [True, False], ids=["plain", "encrypted"])
def test_slow_reader_holds_the_limit_at_most(run, is_plain):
    async def scenario():
        async with crowd(SETTINGS) as here:
            responses, most = here.played.forebay.broker.responses, 0
            clients = []
            for _ in range(CLIENTS):
                clients.append(await ask_and_not_read(here, is_plain))
                await settle(here)
                most = max(most, responses.in_flight_bytes)
            assert most >= BOUND_BYTES / 2, "they were held up to it"
            assert most <= BOUND_BYTES + ANSWER_BYTES
            assert sum(link.framed.unsent_bytes for _, link in clients) <= most

            good = here.played
            if not is_plain:
                next(iter(here.listener.links)).framed.plain_fd = -1
            for _ in range(3):
                await good.send(LIST_GROUPS)
                good.broker.writers[-1].write(answer())
                assert await good.take(len(answer())) == answer()

            for one, _ in clients:
                reading = asyncio.create_task(take(one, len(answer())))
                while not reading.done():
                    responses.offer()
                    await settle(here)
                assert await reading == answer()
            await until(lambda: responses.in_flight_bytes == 0)
            assert not responses.waiting

    run(scenario())


@both_loops
def test_later_responses_are_received_when_there_is_room(run):
    """The second answer of a client that does not read waits unread, whoever reads them later."""

    async def scenario():
        async with crowd(SETTINGS) as here:
            responses = here.played.forebay.broker.responses
            clients = [await ask_and_not_read(here, is_plain=True, times=4) for _ in range(CLIENTS)]
            await settle(here)
            assert responses.in_flight_bytes <= BOUND_BYTES + ANSWER_BYTES
            for one, _ in clients:
                reading = asyncio.create_task(take(one, 4 * len(answer())))
                while not reading.done():
                    responses.offer()
                    await settle(here)
                assert await reading == answer() * 4
            await until(lambda: responses.in_flight_bytes == 0)

    run(scenario())


def test_stalled_reader_is_closed_while_others_wait():
    async def scenario():
        async with crowd(SETTINGS) as here:
            broker = here.played.forebay.broker
            for _ in range(4):
                await ask_and_not_read(here, is_plain=True)
                await settle(here)
            waiting, _ = await ask_and_not_read(here, is_plain=True, times=2)
            await settle(here)
            here.janitor.make_room(0.0)
            here.janitor.make_room(STUCK_S)
            assert not broker.counters.clients.disconnects["response_memory"], "nobody waits"
            broker.responses.begin(next(iter(here.listener.links)).framed, 4 * BOUND_BYTES)
            assert broker.responses.waiting
            here.janitor.make_room(100.0)
            here.janitor.make_room(100.0 + STUCK_S - 1)
            assert not broker.counters.clients.disconnects["response_memory"]
            here.janitor.make_room(100.0 + STUCK_S)
            assert broker.counters.clients.disconnects["response_memory"] == 1
            here.janitor.make_room(101.0 + STUCK_S)
            assert broker.counters.clients.disconnects["response_memory"] <= 2, (
                "one after the other"
            )
            waiting.close()

    asyncio.run(scenario())
