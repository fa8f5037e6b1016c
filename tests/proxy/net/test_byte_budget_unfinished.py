"""Unfinished requests are charged whole in advance, and do not hold others up for long.

Owns a Forebay in this process and clients' sockets of which each sends a part of a request. It must not know how a
frame is received. Invariants: time is an argument; both event loops are tried.
"""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest
import uvloop

from protocol import control
from proxy.janitor import Janitor
from proxy.net.client_connection import UNSIGNED_FRAME_BYTES
from tests.proxy.event_loop import PATIENCE_S, until
from tests.proxy.net.test_client_connection import LIST_GROUPS
from tests.proxy.produce.test_splice_request import produce
from tests.proxy.produce_link import build_answer
from tests.proxy.uncached_forebay import front

MIB = 1 << 20
BOUND_BYTES = 16 * MIB
LARGE_BYTES, SENT_BYTES = 6 * MIB, 5 * MIB
CHUNK_BYTES = 256 << 10
"""What one receive may bring."""
SETTINGS = {
    "cache": {"mode": "off", "directory": ""},
    "throttle": {"enabled": False},
    "limits": {"requestMemory": BOUND_BYTES, "connectionRequestMemory": BOUND_BYTES},
}
both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


class Crowd:
    """Sockets beside the front's own; `links` in the order of their connecting."""

    def __init__(self, played):
        self.played = played
        self.listener = played.forebay.listeners[0]
        self.requests = played.forebay.broker.requests
        self.janitor = Janitor(played.forebay.broker, [self.listener])
        self.sockets, self.tasks = [], []

    async def connect(self):
        one = socket.socket()
        one.setblocking(False)
        before = len(self.listener.links)
        await asyncio.get_running_loop().sock_connect(one, tuple(self.listener.bound))
        await until(lambda: len(self.listener.links) == before + 1)
        self.sockets.append(one)
        return one, list(self.listener.links)[-1]

    def begin(self, one, data):
        """Send in the background: who is not read does not hold the test."""
        self.tasks.append(asyncio.create_task(asyncio.get_running_loop().sock_sendall(one, data)))
        return self.tasks[-1]

    @property
    def held_bytes(self):
        return sum(link.framed.framer.held_bytes for link in self.listener.links)

    async def close(self):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for one in self.sockets:
            one.close()


@asynccontextmanager
async def crowd(settings=SETTINGS):
    async with front(settings) as played:
        await until(lambda: played.forebay.listeners[0].links)
        gathered = Crowd(played)
        try:
            yield gathered
        finally:
            await gathered.close()


@both_loops
@pytest.mark.parametrize("sent_bytes", [40_000, 300_000, 900_000])
def test_frame_is_charged_until_it_is_answered(run, sent_bytes):
    async def scenario():
        async with crowd() as here:
            frame = produce(1_000_000)
            one, link = await here.connect()
            here.begin(one, frame[:sent_bytes])
            await until(lambda: link.framed.pending_frame_bytes == sent_bytes)
            assert here.requests.in_flight_bytes == here.requests.unfinished_bytes == len(frame)
            here.begin(one, frame[sent_bytes:])
            await until(lambda: here.played.broker.seen == [frame])
            assert here.requests.unfinished_bytes == 0
            assert here.requests.in_flight_bytes == len(frame)
            here.played.broker.answer(build_answer(7))
            await until(lambda: here.requests.in_flight_bytes == 0)

    run(scenario())


@both_loops
def test_unfinished_large_frames_leave_room_for_others(run):
    async def scenario():
        async with crowd() as here:
            frame, clients = produce(LARGE_BYTES), 12
            for _ in range(clients):
                here.begin((await here.connect())[0], frame[:SENT_BYTES])
            await until(lambda: len(here.requests.waiting) == clients - 1)
            await until(
                lambda: max(x.framed.pending_frame_bytes for x in here.listener.links) == SENT_BYTES
            )
            assert here.held_bytes <= len(frame) + clients * CHUNK_BYTES
            assert here.requests.in_flight_bytes == len(frame)

            good = produce(900_000)
            await here.played.send(LIST_GROUPS, good)
            here.played.broker.answer(build_answer(42), build_answer(7))
            answers = build_answer(42) + build_answer(7)
            assert await here.played.take(len(answers)) == answers

            counters, now = here.played.forebay.broker.counters, 0.0
            for sent_count in range(clients - 1):
                await until(lambda: here.requests.unfinished_bytes == len(frame))
                charged = next(x for x in here.listener.links if x.framed.charged_bytes)
                await until(lambda it=charged: it.framed.pending_frame_bytes == SENT_BYTES)
                assert counters.clients.disconnects["request_memory"] == sent_count
                for _ in range(2):
                    here.janitor.tend_links(now)
                    now += 1.0
                assert counters.clients.disconnects["request_memory"] == sent_count + 1
            here.janitor.tend_links(now)
            assert len(here.listener.links) == 2, (
                "nobody waits for the last one, which has until limits.frameTimeout"
            )
            assert counters.clients.connection_errors == 0

    run(scenario())


@both_loops
def test_finished_large_frames_exceed_the_limit_in_turn(run):
    async def scenario():
        async with crowd() as here:
            frame, clients = produce(LARGE_BYTES), 6
            for _ in range(clients):
                here.begin((await here.connect())[0], frame)
            for number in range(clients):
                await until(lambda n=number: len(here.played.broker.seen) > n)
                assert here.held_bytes + here.requests.in_flight_bytes <= 2 * BOUND_BYTES
                here.played.broker.writers[number].write(build_answer(7))
            await until(lambda: here.requests.in_flight_bytes == 0)
            assert here.played.broker.seen == [frame] * clients
            assert not here.requests.waiting
            assert here.requests.paused_transports == 0

    run(scenario())


@both_loops
def test_unfinished_small_frames_do_not_hold_the_limit(run):
    async def scenario():
        limits = {"requestMemory": MIB, "connectionRequestMemory": MIB}
        async with crowd({**SETTINGS, "limits": limits}) as here:
            frame, clients = produce(50_000), 40
            for _ in range(clients):
                here.begin((await here.connect())[0], frame[:49_000])
            await until(
                lambda: (
                    here.requests.unfinished_bytes + len(here.requests.waiting) * len(frame)
                    >= 40 * 50_000
                )
            )
            assert here.requests.in_flight_bytes < MIB + len(frame)
            for now in range(4):
                here.janitor.tend_links(float(now))
            assert here.requests.in_flight_bytes < MIB
            assert here.requests.paused_transports == 0
            assert here.played.forebay.broker.counters.clients.disconnects["request_memory"] > 0
            await here.played.send(LIST_GROUPS)
            here.played.broker.answer(build_answer(42))
            assert await here.played.take(len(build_answer(42))) == build_answer(42)

    run(scenario())


def test_lost_client_gives_back_its_charge():
    async def scenario():
        async with crowd() as here:
            frame = produce(LARGE_BYTES)
            first, _ = await here.connect()
            second, _ = await here.connect()
            for one in (first, second):
                here.begin(one, frame[:300_000])
            await until(lambda: here.requests.waiting)
            first.close()
            await until(lambda: not here.requests.waiting)
            assert here.requests.unfinished_bytes == len(frame)
            second.close()
            await until(lambda: here.requests.in_flight_bytes == 0)

    asyncio.run(scenario())


# -- before a client has signed in ------------------------------------------------------------------------------


def handshake(mechanism):
    return control.build_sasl_handshake_request(1, 1, "c", mechanism=mechanism)


def authenticate(correlation_id=2):
    return control.build_sasl_authenticate_request(2, correlation_id, "c", auth_bytes=b"token")


HANDSHAKEN = bytes.fromhex("0000000a00000001000000000000")
"""No error, no mechanisms (SaslHandshakeResponse 1)."""


def authenticated(error=0, correlation_id=2):
    """SaslAuthenticateResponse 2: tags, error, null message, no bytes, lifetime, tags."""
    body = (
        correlation_id.to_bytes(4, "big")
        + b"\0"
        + error.to_bytes(2, "big")
        + b"\0\1"
        + bytes(8)
        + b"\0"
    )
    return len(body).to_bytes(4, "big") + body


async def ends(one):
    async with asyncio.timeout(PATIENCE_S):
        try:
            return await asyncio.get_running_loop().sock_recv(one, 1) == b""
        except ConnectionResetError:
            return True


@pytest.mark.parametrize(
    ("mechanism", "steps"), [("PLAIN", 1), ("OAUTHBEARER", 1), ("SCRAM-SHA-512", 2)]
)
def test_unauthenticated_client_sends_no_large_frame(mechanism, steps):
    """Where nobody has, nobody knows; from the first whom the broker has accepted on, all must."""

    async def scenario():
        async with crowd() as here:
            large = produce(UNSIGNED_FRAME_BYTES)
            here.begin(here.played.client, large[:9])
            await until(lambda: here.played.link.framed.pending_frame_bytes == 9)
            assert not here.listener.wants_sasl
            one, link = await here.connect()
            here.begin(one, handshake(mechanism))
            await until(lambda: here.played.broker.seen)
            assert link.framed.framer.max_frame_bytes == UNSIGNED_FRAME_BYTES, (
                "it has said so itself"
            )
            here.played.broker.answer(HANDSHAKEN)
            for step in range(steps):
                assert not here.listener.wants_sasl
                here.begin(one, authenticate())
                await until(lambda n=step: len(here.played.broker.seen) == 2 + n)
                here.played.broker.answer(authenticated())
                await until(lambda: not link.replies.places)
            assert here.listener.wants_sasl
            here.begin(one, large)
            await until(lambda: here.played.broker.seen[-1] == large)

            other, _ = await here.connect()
            here.begin(other, large)
            assert await ends(other)
            assert here.played.forebay.broker.counters.faults.bad_frames == 1
            again, other_link = await here.connect()
            here.begin(again, handshake(mechanism) + authenticate())
            await until(lambda: other_link.upstream.unanswered)
            await until(lambda: len(here.played.broker.seen) == 2 + steps + 2)
            here.played.broker.writers[-1].write(HANDSHAKEN + authenticated(58))
            await until(lambda: not other_link.replies.places)
            here.begin(again, large)
            assert await ends(again) is not None
            await until(lambda: other_link not in here.listener.links)

    asyncio.run(scenario())
