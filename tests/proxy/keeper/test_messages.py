"""Messages between keeper and worker: order, bounds, and an end that nobody waits for."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from proxy.keeper import messages
from proxy.keeper.messages import LARGEST_BYTES, LENGTH, UNSENT_BYTES, Messages
from tests.proxy.event_loop import until


async def connect() -> tuple[Messages, Messages, list[tuple[Any, ...]], list[str]]:
    """Both ends; what the second one got, and who has ended."""
    one, other = socket.socketpair()
    got: list[tuple[Any, ...]] = []
    ends: list[str] = []
    first = Messages(lambda _message: None, lambda: ends.append("first"))
    second = Messages(got.append, lambda: ends.append("second"))
    loop = asyncio.get_running_loop()
    await loop.create_unix_connection(lambda: first, sock=one)
    await loop.create_unix_connection(lambda: second, sock=other)
    return first, second, got, ends


def transport_of(end: Messages) -> asyncio.Transport:
    assert isinstance(end._transport, asyncio.Transport)
    return end._transport


async def test_messages_arrive_whole_and_in_order() -> None:
    first, second, got, _ = await connect()
    for number in range(1000):
        assert first.send(messages.USED, number, bytes(number % 700), memoryview(b"view"))
    await until(lambda: len(got) == 1000)
    assert [one[1] for one in got] == list(range(1000))
    assert got[999][2:] == (bytes(999 % 700), b"view")
    first.close()
    await until(lambda: second.is_over)


async def test_what_is_unsent_is_bounded_and_goes_on_once_it_is_taken() -> None:
    first, second, got, _ = await connect()
    transport_of(second).pause_reading()
    piece, sent = bytes(4 << 20), 0
    while first.send(messages.USED, piece):
        sent += 1
        first.flush()
    assert UNSENT_BYTES < first.unsent_bytes <= UNSENT_BYTES + 2 * len(piece)
    transport_of(second).resume_reading()
    await until(lambda: len(got) == sent)
    assert first.send(messages.USED, piece)
    first.close()


async def test_an_end_is_told_once_and_takes_no_more() -> None:
    first, second, _, ends = await connect()
    second.close()
    await until(lambda: first.is_over)
    assert not first.send(messages.USED, [1])
    first.close()
    assert sorted(ends) == ["first", "second"]


async def test_a_length_beyond_the_bound_ends_the_connection() -> None:
    one, other = socket.socketpair()
    ends: list[str] = []
    reader = Messages(lambda _message: None, lambda: ends.append("reader"))
    await asyncio.get_running_loop().create_unix_connection(lambda: reader, sock=one)
    other.sendall(LENGTH.pack(LARGEST_BYTES + 1))
    await until(lambda: ends == ["reader"])
    other.close()
