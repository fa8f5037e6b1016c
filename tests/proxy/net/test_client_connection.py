"""Limits of one client connection: reading resumes when its requests have left."""

import asyncio

import pytest
import uvloop

from protocol.primitives import INT32
from tests.proxy.event_loop import until
from tests.proxy.produce.test_splice_request import greet, produce
from tests.proxy.produce_link import build_answer
from tests.proxy.uncached_forebay import OFF, front

BOUND_BYTES = 64 << 10
FRAME_BYTES = 40_000
SETTINGS = {**OFF, "limits": {"connectionRequestMemory": BOUND_BYTES}}
CHUNK_BYTES = 256 << 10
"""What a loop reads at once, all of whose frames are taken."""
MANY = 400
LIST_GROUPS = b"\0\0\0\x0a" + b"\0\x10\0\0" + b"\0\0\0\x2a" + b"\xff\xff"


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("enabled", [True, False], ids=["isolation", "passing"])
def test_client_without_acks_is_read_again(run, enabled):
    async def scenario():
        async with front({**SETTINGS, "isolation": {"enabled": enabled}}) as played:
            played.forebay.broker.topic_lookup.ask = lambda *_of: None
            await greet(played)
            link, frame = played.link, produce(FRAME_BYTES, acks=0)
            played.broker.writers[-1].transport.pause_reading()
            sending = asyncio.create_task(
                asyncio.get_running_loop().sock_sendall(played.client, frame * MANY)
            )
            await until(lambda: link.framed.reading_held)
            assert link.upstream.unsent_bytes <= BOUND_BYTES + CHUNK_BYTES + len(frame)
            assert not sending.done()

            played.broker.writers[-1].transport.resume_reading()
            await until(lambda: len(played.broker.seen) == 1 + MANY)
            await sending
            assert not link.framed.reading_held
            assert played.forebay.broker.requests.in_flight_bytes == 0
            acknowledged = produce(100)
            assert await played.ask(acknowledged, build_answer(7)) == build_answer(7)
            assert INT32.unpack_from(played.broker.seen[-1])[0] == len(acknowledged) - 4

    run(scenario())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_broker_is_read_while_requests_wait(run):
    """However much that is: nothing leaves before the broker has been heard."""

    async def scenario():
        async with front({**OFF, "limits": {"connectionResponseMemory": BOUND_BYTES}}) as played:
            await greet(played)
            link = played.link
            await played.send(LIST_GROUPS, LIST_GROUPS)
            complete = link.replies.reserve()
            link.hold(complete, BOUND_BYTES)
            complete.complete((b"behind",), lambda _delivered: None)
            played.broker.answer(build_answer(7))
            assert await played.take(len(build_answer(7))) == build_answer(7)
            assert not link.upstream.framed.reading_held
            played.broker.answer(build_answer(8))
            wanted = build_answer(8) + b"behind"
            assert await played.take(len(wanted)) == wanted

    run(scenario())
