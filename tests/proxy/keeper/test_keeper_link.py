"""A worker finds its keeper again, whatever state the arena is in meanwhile."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from pathlib import Path
from typing import Any

from blockcache.errors import ArenaTorn
from proxy.keeper.keeper_link import KeeperLink
from proxy.keeper.messages import HELLO
from proxy.keeper.segment import open_segment
from proxy.keeper.told import RingReader
from tests.proxy.event_loop import until

GREETING_BYTES = 64
TORN = 3
"""Attempts that find an arena left half changed."""


class Broker:
    """Of a worker."""

    def __init__(self) -> None:
        self.tries = 0
        self.keeper = ""
        self.asked_throttle: Any = None

    def now(self) -> float:
        return 0.0

    def attach_cache(self, arena_fd: int, _number: int, boot: str) -> None:
        os.close(arena_fd)
        self.tries += 1
        self.keeper = boot
        if self.tries <= TORN:
            raise ArenaTorn

    def lose_keeper(self) -> None:
        pass


async def keep(listening: socket.socket, attached: list[socket.socket]) -> None:
    """What a keeper does with each worker."""
    broker: Any = None
    loop, segment, ring = asyncio.get_running_loop(), open_segment(4), RingReader(broker, print)
    while True:
        sock, _ = await loop.sock_accept(listening)
        await loop.sock_recv(sock, GREETING_BYTES)
        socket.send_fds(sock, [HELLO + b"5f0c"], [segment.fd, segment.fd, *ring.fds])
        attached.append(sock)


def count_segments() -> int:
    """Open descriptors of shown partitions in this process."""
    links = [one.readlink() for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    return sum("forebay-partitions" in str(link) for link in links)


async def test_a_torn_arena_is_not_the_last_that_it_attaches_to() -> None:
    gc.collect()
    before = count_segments()  # of tests before
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("")  # an abstract address of the kernel's choice
        listening.listen()
        listening.setblocking(False)
        keeper = asyncio.create_task(keep(listening, []))
        broker: Any = Broker()
        link = KeeperLink(broker, listening.getsockname(), 1, str.encode)
        link.start()
        await until(lambda: link.attached)
        assert (broker.tries, broker.keeper) == (TORN + 1, "5f0c")
        assert count_segments() == before + 4, (
            "the keeper has one and its mapping, and so has the link"
        )
        await link.stop()
        keeper.cancel()


async def test_memory_of_former_keepers_does_not_pile_up() -> None:
    """Though what knew of it lies in a cycle that nobody has collected yet."""
    gc.collect()
    before = count_segments()
    attached: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("")
        listening.listen()
        listening.setblocking(False)
        keeper = asyncio.create_task(keep(listening, attached))
        broker: Any = Broker()
        broker.tries = TORN
        link = KeeperLink(broker, listening.getsockname(), 1, str.encode)
        link.start()
        await until(lambda: link.attached)
        known: list[Any] = [link._segment]
        known.append(known)
        del known
        attached[-1].close()
        await until(lambda: link.attached == 2)
        assert count_segments() == before + 4
        await link.stop()
        keeper.cancel()
