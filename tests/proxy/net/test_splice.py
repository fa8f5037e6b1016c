"""Large responses spliced between real sockets: every byte in its place, with slow and lost peers.

Owns a played broker, a link to it whose answers may pass, and a client's socket. It must not know Kafka beyond the
length and the correlation id. Invariants: both event loops are tried; nothing sleeps.
"""

import asyncio
import fcntl
import random
import socket
import struct
import termios
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import uvloop

from proxy.accounting.counters import Counters
from proxy.net.broker_connection import BrokerConnection, Dial
from proxy.net.byte_budget import ByteBudget
from proxy.net.framed_transport import FramedTransport, Hooks
from proxy.net.splice import (
    LEAST_BYTES,
    PIPE_BYTES,
    PROBE_BYTES,
    SpliceTransfer,
    may_pass,
    open_pipe,
)
from tests.proxy.event_loop import PATIENCE_S, until
from tests.proxy.net.test_broker_connection import PlayedBroker

LARGE_BYTES = 900_000
MOST_BYTES = 64 << 20
RUNNERS = [asyncio.run, uvloop.run]
both_loops = pytest.mark.parametrize("run", RUNNERS, ids=["asyncio", "uvloop"])


def answer_of(correlation_id, size_bytes):
    body = random.Random(correlation_id).randbytes(size_bytes - 8)
    return (size_bytes - 4).to_bytes(4, "big") + correlation_id.to_bytes(4, "big") + body


class Passing:
    """Asks over a link; each answer goes to the client's wire, large ones past memory where that may be."""

    def __init__(self, port, tail_bytes=3):
        self.tail_bytes = tail_bytes
        self.bound = ByteBudget(1 << 30)
        self.counters = Counters()
        self.lost, self.sent, self.ended, self.unanswered = [], [], [], []
        dial = Dial("127.0.0.1", port, None, None, PATIENCE_S, MOST_BYTES)
        self.link = BrokerConnection(dial, self.bound, self.counters, self.on_lost)
        self.sink = FramedTransport(
            1000, Hooks(lambda _f: None, lambda _e: self.link.close(), lambda _e: None)
        )

    def on_lost(self, reason):
        self.lost.append(reason)
        self.sink.close_when_sent()

    def ask(self, correlation_id):
        def on_answer(answer):
            if answer is None:
                self.unanswered.append(correlation_id)
            else:
                self.sink.send((answer,), lambda _sent: self.sent.append(correlation_id))

        frame = (4).to_bytes(4, "big") + correlation_id.to_bytes(4, "big")
        traffic = self.counters.traffic.responses_in[1]

        def begin(head, frame_bytes, source):
            lacking_bytes = frame_bytes - self.tail_bytes - len(head)
            if not may_pass(source, self.sink, lacking_bytes, self.tail_bytes):
                return None
            return SpliceTransfer(
                source, self.sink, self.bound, head, frame_bytes, self.tail_bytes, end
            )

        def end(last):
            self.ended.append((correlation_id, len(last)))
            self.sink.send((last,), lambda _sent: self.sent.append(correlation_id))

        self.link.send(frame, correlation_id, on_answer, arrived=traffic, on_begun=begin)


@asynccontextmanager
async def connected(tail_bytes=3, receive_bytes=None):
    broker = PlayedBroker()
    server = await asyncio.start_server(broker.accept, "127.0.0.1", 0)
    passing = Passing(server.sockets[0].getsockname()[1], tail_bytes)
    loop = asyncio.get_running_loop()
    front = await loop.create_server(lambda: passing.sink, "127.0.0.1", 0)
    client = socket.socket()
    if receive_bytes:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.setblocking(False)
    await loop.sock_connect(client, front.sockets[0].getsockname())
    await until(lambda: passing.sink.is_open)
    try:
        yield broker, passing, client
    finally:
        client.close()
        passing.link.close()
        passing.sink.abort()
        for writer in broker.writers:
            writer.close()
        for one in (server, front):
            one.close()


async def ask(broker, passing, *correlation_ids):
    before = len(broker.seen)
    for correlation_id in correlation_ids:
        passing.ask(correlation_id)
    await until(lambda: len(broker.seen) == before + len(correlation_ids))


async def take(client, size_bytes):
    got = bytearray()
    while len(got) < size_bytes:
        chunk = await asyncio.get_running_loop().sock_recv(
            client, min(1 << 16, size_bytes - len(got))
        )
        if not chunk:
            break
        got += chunk
    return bytes(got)


def piped_bytes():
    found = bytearray(4)
    fcntl.ioctl(open_pipe().out_fd, termios.FIONREAD, found)
    return struct.unpack("i", found)[0]


@both_loops
@pytest.mark.parametrize("tail_bytes", [0, 1, 3, PROBE_BYTES, 5000])
def test_a_large_answer_arrives_as_it_was_sent(run, tail_bytes):
    async def scenario():
        async with connected(tail_bytes) as (broker, passing, client):
            for correlation_id in (
                1,
                2,
            ):  # the second begins where a large frame's stand-in receives
                await ask(broker, passing, correlation_id)
                whole = answer_of(correlation_id, LARGE_BYTES)
                broker.answer(whole)
                assert await take(client, len(whole)) == whole
            await until(lambda: passing.sent == [1, 2])
            assert [number for number, _ in passing.ended] == [1, 2]
            assert passing.link.unanswered == passing.bound.in_flight_bytes == piped_bytes() == 0
            assert passing.counters.traffic.responses_in[1].size_bytes == 2 * LARGE_BYTES
            assert passing.counters.traffic.responses_in[1].frames == 2

    run(scenario())


@both_loops
@pytest.mark.parametrize("seed", range(4))
def test_answers_of_all_sizes_arrive_in_their_order(run, seed):
    async def scenario():
        rng = random.Random(seed)
        sizes = [rng.choice([8, 100, 5000, 70_000, 200_000, LARGE_BYTES]) for _ in range(12)]
        async with connected(rng.choice([0, 3, 200])) as (broker, passing, client):
            await ask(broker, passing, *range(len(sizes)))
            stream = b"".join(answer_of(number, size) for number, size in enumerate(sizes))
            taking = asyncio.ensure_future(take(client, len(stream)))
            at = 0
            while at < len(stream):
                cut = rng.choice([1, 7, 4096, 4097, 100_000])
                broker.answer(stream[at : at + cut])
                at += cut
                await asyncio.sleep(0)
            assert await taking == stream
            await until(lambda: passing.sent == list(range(len(sizes))))
            assert not passing.lost
            assert passing.bound.in_flight_bytes == piped_bytes() == 0

    run(scenario())


@both_loops
def test_stalled_client_holds_the_broker_back(run):
    async def scenario():
        async with connected(receive_bytes=1 << 14) as (broker, passing, client):
            await ask(broker, passing, 1)
            whole = answer_of(1, 14 << 20)
            broker.answer(whole)
            await until(lambda: passing.link.framed.reading_held)
            assert 0 < passing.bound.in_flight_bytes <= PIPE_BYTES + (1 << 18)
            assert passing.sink.unsent_bytes == passing.bound.in_flight_bytes
            assert passing.link.framed.pending_frame_bytes < len(whole)
            assert passing.sent == []
            assert piped_bytes() == 0
            assert await take(client, len(whole)) == whole
            await until(lambda: passing.sent == [1])
            assert passing.bound.in_flight_bytes == 0
            assert not passing.link.framed.reading_held

    run(scenario())


@both_loops
def test_lost_broker_connection_ends_the_clients(run):
    async def scenario():
        async with connected() as (broker, passing, client):
            await ask(broker, passing, 1, 2)
            whole = answer_of(1, LARGE_BYTES)
            broker.answer(whole[:500_000])
            assert await take(client, 400_000) == whole[:400_000]
            broker.close()
            rest = await take(client, len(whole))
            assert whole[400_000:].startswith(rest)
            assert len(rest) < len(whole) - 400_000
            await until(lambda: passing.lost)
            assert passing.unanswered == [1, 2]
            assert passing.sent == passing.ended == []
            assert piped_bytes() == 0

    run(scenario())


@both_loops
def test_lost_client_leaves_nothing_to_the_next(run):
    async def scenario():
        async with connected() as (broker, passing, client):
            await ask(broker, passing, 1)
            broker.answer(answer_of(1, LARGE_BYTES)[:500_000])
            await take(client, 1000)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            broker.answer(answer_of(1, LARGE_BYTES)[500_000:])
            await until(lambda: passing.unanswered == [1] or passing.ended)
            assert passing.bound.in_flight_bytes == piped_bytes() == 0
        async with connected() as (broker, passing, client):
            await ask(broker, passing, 5)
            broker.answer(answer_of(5, LARGE_BYTES))
            assert await take(client, LARGE_BYTES) == answer_of(5, LARGE_BYTES)

    run(scenario())


@both_loops
def test_response_behind_a_stalled_one_is_received(run):
    async def scenario():
        async with connected(receive_bytes=1 << 14) as (broker, passing, client):
            await ask(broker, passing, 1, 2)
            before = b"x" * (32 << 20)
            passing.sink.send((before,))
            assert not passing.sink.is_idle
            both = answer_of(1, LARGE_BYTES) + answer_of(2, LARGE_BYTES)
            broker.answer(both)
            await until(lambda: passing.link.unanswered == 0)
            assert passing.ended == []
            assert await take(client, len(before) + len(both)) == before + both

    run(scenario())


def wire_like(fd=5, is_idle=True):
    return SimpleNamespace(plain_fd=fd, is_idle=is_idle)


@pytest.mark.parametrize(
    ("source", "sink", "lacking_bytes", "may"),
    [
        (wire_like(), wire_like(), LEAST_BYTES, True),
        (wire_like(), wire_like(), LEAST_BYTES - 1, False),
        (wire_like(-1), wire_like(), LEAST_BYTES, False),  # encrypted
        (wire_like(), wire_like(-1), LEAST_BYTES, False),
        (wire_like(), wire_like(is_idle=False), LEAST_BYTES, False),
    ],
)
def test_spliceable_responses(source, sink, lacking_bytes, may):
    assert may_pass(source, sink, lacking_bytes, 3) is may


@pytest.mark.parametrize(("tail_bytes", "may"), [(LEAST_BYTES, True), (LEAST_BYTES + 1, False)])
def test_long_rest_is_received_in_large_pieces(tail_bytes, may):
    assert may_pass(wire_like(), wire_like(), 1 << 20, tail_bytes) is may
