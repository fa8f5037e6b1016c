"""A Fetch waits for bytes in transit: not for long, and not less than until what has arrived is read.

The event loop is uvloop, whose order of timers and sockets matters here; the rest of the scene is played.
"""

from __future__ import annotations

import asyncio
import socket
import time

import pytest
import uvloop

from proxy.fetch.delayed_fetch import DelayedFetch
from tests.proxy.cached_partition import END, World, build_fetch
from tests.proxy.event_loop import until

HOLE_WAIT_S = 0.005
MAX_WAIT_MS = 3_600_000


class Stall:
    """An event loop that works on one socket until HOLE_WAIT_S is over, while the other gets `arrive`'s byte."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.pairs = [socket.socketpair() for _ in range(2)]
        for reads, _ in self.pairs:
            reads.setblocking(False)

    def begin(self, arrive) -> None:
        (first, to_first), (second, to_second) = self.pairs

        def work() -> None:
            first.recv(1)
            time.sleep(2 * HOLE_WAIT_S)
            to_second.send(b"2")

        def read() -> None:
            second.recv(1)
            arrive()

        self.loop.add_reader(first.fileno(), work)
        self.loop.add_reader(second.fileno(), read)
        to_first.send(b"1")

    def end(self) -> None:
        for reads, writes in self.pairs:
            self.loop.remove_reader(reads.fileno())
            reads.close()
            writes.close()


def wait_for_hole() -> tuple[World, DelayedFetch]:
    """A Fetch at a record that the broker has shown and whose bytes have not arrived."""
    world = World(verify_ratio=0.0)
    cache = world.broker.config.cache.model_copy(update={"hole_wait_s": HOLE_WAIT_S})
    world.broker.configure(world.broker.config.model_copy(update={"cache": cache}))
    world.change("high_watermark", END + 1)
    world.receive(build_fetch(END, max_wait_ms=MAX_WAIT_MS))
    (delayed,) = world.partition.parked
    assert isinstance(delayed, DelayedFetch)
    return world, delayed


async def serve_after_a_stall() -> None:
    """The timer of the hole is due before the socket is read that brings the bytes."""
    stall = Stall()
    world, delayed = wait_for_hole()
    stall.begin(lambda: world.arrive(1_000))
    await until(lambda: delayed.done)
    stall.end()
    assert [(line.result, line.reason) for line in world.lines] == [("hit", "")]


async def give_up() -> None:
    """Nothing arrives: the Fetch is a miss long before max_wait."""
    world, delayed = wait_for_hole()
    await until(lambda: delayed.done)
    assert len(world.link.replies), "the broker is to answer it"
    assert not world.sent


@pytest.mark.parametrize("scene", [serve_after_a_stall, give_up])
def test_bytes_in_transit(scene) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scene())
