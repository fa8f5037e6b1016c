"""One broker connection, against a loopback server: order of responses, and the effect of a close.

Owns a server that reads frames and answers or closes as a test tells it. It must not know Kafka beyond the
length and the correlation id. Invariants: nothing sleeps; what is waited for is looked at at every turn of
the loop.
"""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from proxy.accounting.counters import Counters
from proxy.net.broker_connection import BrokerConnection, Dial
from proxy.net.byte_budget import ByteBudget
from tests.proxy.event_loop import PATIENCE_S, until


def frame(correlation_id, body=b""):
    return (4 + len(body)).to_bytes(4, "big") + correlation_id.to_bytes(4, "big") + body


class PlayedBroker:
    """A listening socket; connections and the frames that came on each."""

    def __init__(self):
        self.writers = []
        self.seen = []

    async def accept(self, reader, writer):
        self.writers.append(writer)
        try:
            while True:
                size = await reader.readexactly(4)
                self.seen.append(size + await reader.readexactly(int.from_bytes(size, "big")))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def answer(self, *frames):
        self.writers[-1].write(b"".join(frames))

    def close(self):
        self.writers[-1].close()


class Asking:
    """A link, and what became of it."""

    def __init__(self, port):
        self.lost: list[str] = []
        self.answers = []
        self.counters = Counters()
        self.bound = ByteBudget(1 << 20)
        dial = Dial("127.0.0.1", port, None, None, PATIENCE_S, 1000)
        self.link = BrokerConnection(dial, self.bound, self.counters, self.lost.append)

    def ask(self, correlation_id, body=b""):
        def note(answer):
            self.answers.append((correlation_id, answer))

        self.link.send(frame(correlation_id, body), correlation_id, note)


@asynccontextmanager
async def connected():
    broker = PlayedBroker()
    server = await asyncio.start_server(broker.accept, "127.0.0.1", 0)
    asking = Asking(server.sockets[0].getsockname()[1])
    try:
        yield broker, asking
    finally:
        asking.link.close()
        for writer in broker.writers:
            writer.close()
        server.close()


async def ask_and_answer(broker, asking, correlation_id):
    before = len(asking.answers)
    asking.ask(correlation_id)
    await until(lambda: broker.seen and broker.seen[-1] == frame(correlation_id))
    broker.answer(frame(correlation_id))
    await until(lambda: len(asking.answers) > before)


async def test_first_request_opens_and_gets_its_response():
    async with connected() as (broker, asking):
        assert not asking.link.is_connected
        asking.ask(7, b"first")
        asking.ask(8, b"second")
        assert asking.link.is_connected
        assert asking.link.unanswered == 2
        await until(lambda: len(broker.seen) == 2)
        assert broker.seen == [frame(7, b"first"), frame(8, b"second")]
        broker.answer(frame(7, b"one"), frame(8, b"two"))
        await until(lambda: len(asking.answers) == 2)
        assert asking.answers == [(7, frame(7, b"one")), (8, frame(8, b"two"))]
        assert asking.link.unanswered == 0
        assert len(broker.writers) == 1


async def test_call_waits_for_its_answer():
    async with connected() as (broker, asking):
        call = asyncio.create_task(asking.link.call(frame(3), 3))
        await until(lambda: broker.seen)
        broker.answer(frame(3, b"here"))
        assert await call == frame(3, b"here")


async def test_call_raises_when_the_link_is_lost():
    async with connected() as (broker, asking):
        call = asyncio.create_task(asking.link.call(frame(3), 3))
        await until(lambda: broker.seen)
        broker.close()
        with pytest.raises(ConnectionError):
            await call


@pytest.mark.parametrize(
    ("answered", "reason"),
    [
        (frame(9), "answered 9 where 7 was due"),
        (b"\0\0\0\2ab", "unreadable"),
        ((1001).to_bytes(4, "big"), "unreadable"),
        (b"\xff\xff\xff\xff", "unreadable"),
    ],
)
async def test_response_out_of_turn_ends_the_connection(answered, reason):
    async with connected() as (broker, asking):
        asking.ask(7)
        asking.ask(8)
        await until(lambda: len(broker.seen) == 2)
        broker.answer(answered, frame(8))
        await until(lambda: asking.lost)
        assert reason in asking.lost[0]
        assert asking.answers == [(7, None), (8, None)]
        assert asking.link.closed
        asking.ask(9)
        assert asking.answers[2:] == [(9, None)]


async def test_unrequested_response_ends_the_connection():
    async with connected() as (broker, asking):
        await ask_and_answer(broker, asking, 1)
        broker.answer(frame(1))
        await until(lambda: asking.lost)
        assert "nobody asked" in asking.lost[0]


async def test_an_idle_link_is_reopened_silently():
    async with connected() as (broker, asking):
        await ask_and_answer(broker, asking, 1)
        broker.close()
        await until(lambda: asking.link.reopened == 1)
        assert asking.lost == []
        assert asking.counters.upstream.reopened == 1
        assert not asking.link.is_connected
        await ask_and_answer(broker, asking, 2)
        assert len(broker.writers) == 2
        assert asking.lost == []


async def test_a_close_with_something_unanswered_ends_the_link():
    async with connected() as (broker, asking):
        await ask_and_answer(broker, asking, 1)
        asking.ask(2)
        await until(lambda: len(broker.seen) == 2)
        broker.close()
        await until(lambda: asking.lost)
        assert asking.lost == ["the broker closed the connection"]
        assert asking.answers[1:] == [(2, None)]
        assert asking.link.reopened == 0


async def test_close_after_unanswered_request_ends_the_connection():
    async with connected() as (broker, asking):
        await ask_and_answer(broker, asking, 1)
        asking.link.send(frame(2, b"acks=0"), 2, None)
        await until(lambda: len(broker.seen) == 2)
        broker.close()
        await until(lambda: asking.lost)
        assert asking.link.closed


async def test_later_response_clears_the_unanswered_request():
    async with connected() as (broker, asking):
        asking.link.send(frame(1, b"acks=0"), 1, None)
        await ask_and_answer(broker, asking, 2)
        broker.close()
        await until(lambda: asking.link.reopened == 1)
        assert asking.lost == []


async def test_an_answer_to_an_earlier_request_does_not():
    async with connected() as (broker, asking):
        asking.ask(1)
        asking.link.send(frame(2, b"acks=0"), 2, None)
        await until(lambda: len(broker.seen) == 2)
        broker.answer(frame(1))
        await until(lambda: asking.answers)
        broker.close()
        await until(lambda: asking.lost)
        assert asking.link.reopened == 0


@pytest.mark.parametrize("attribute", ["share_session", "authenticated"])
async def test_close_of_a_used_connection_ends_it(attribute):
    async with connected() as (broker, asking):
        await ask_and_answer(broker, asking, 1)
        setattr(asking.link, attribute, True)
        broker.close()
        await until(lambda: asking.lost)
        assert asking.link.reopened == 0


async def test_a_broker_that_cannot_be_reached():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and does not listen
        asking = Asking(silent.getsockname()[1])
        asking.ask(1)
        await until(lambda: asking.lost)
    assert "cannot reach the broker at 127.0.0.1:" in asking.lost[0]
    assert asking.answers == [(1, None)]
    assert asking.counters.upstream.connect_errors == 1


async def test_own_close_tells_waiters_and_sends_requests():
    async with connected() as (broker, asking):
        asking.ask(1, b"still leaves")
        asking.link.close()
        assert asking.answers == [(1, None)]
        assert asking.lost == []
        await until(lambda: broker.seen)
        assert broker.seen == [frame(1, b"still leaves")]
        sent: list[bool] = []
        asking.link.send(frame(2), 2, None, sent.append)
        assert sent == [False]


async def test_held_connection_stays_held_after_it_opens():
    async with connected() as (broker, asking):
        asking.link.hold_reading(asking)
        asking.ask(1)
        assert asking.link.framed.reading_held
        await until(lambda: broker.seen)
        broker.answer(frame(1))
        asking.link.release_reading(asking)
        await until(lambda: asking.answers)
        assert asking.answers == [(1, frame(1))]
