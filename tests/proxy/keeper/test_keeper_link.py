"""A worker finds its keeper again, whatever state the arena is in meanwhile."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blockcache.errors import ArenaTorn
from proxy.keeper import keeper_link
from proxy.keeper.keeper_link import KeeperLink
from proxy.keeper.messages import HELLO
from proxy.keeper.segment import open_segment
from proxy.keeper.told import RingReader
from tests.proxy.event_loop import until

if TYPE_CHECKING:
    import pytest

    from blockcache.arena_file import ArenaMemory

GREETING_BYTES = 64
TORN = 3
"""Attempts that find an arena left half changed."""


class Broker:
    """Of a worker."""

    def __init__(self) -> None:
        self.tries = 0
        self.keeper = ""
        self.asked_throttle: Any = None
        self.cache: Any = self
        self.declined = 0

    def decline(self, memory: ArenaMemory, _number: int) -> None:
        memory.close()
        self.declined += 1

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


async def keep(
    listening: socket.socket, attached: list[socket.socket], layout: bytes | None = None
) -> None:
    """What a keeper does with each worker. `layout`: of its rows, if it is another build."""
    broker: Any = None
    loop, segment, ring = asyncio.get_running_loop(), open_segment(4), RingReader(broker, print)
    if layout is not None:
        os.pwrite(segment.fd, layout, 0)
    while True:
        sock, _ = await loop.sock_accept(listening)
        await loop.sock_recv(sock, GREETING_BYTES)
        socket.send_fds(sock, [HELLO + b"5f0c"], [segment.fd, segment.fd, *ring.fds])
        attached.append(sock)


def list_descriptors() -> list[str]:
    """What the open descriptors of this process are."""
    found = (one.readlink() for one in Path("/proc/self/fd").iterdir() if one.is_symlink())
    return [str(link) for link in found]


def count_segments() -> int:
    """Open descriptors of shown partitions in this process."""
    return sum("forebay-partitions" in link for link in list_descriptors())


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


async def test_a_keeper_of_another_layout_costs_no_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As at an upgrade, until the former workers have drained. The arena that is read meanwhile is held as before."""
    monkeypatch.setattr(keeper_link, "RETRY_S", 0.0)
    attached: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("")
        listening.listen()
        listening.setblocking(False)
        keeper = asyncio.create_task(keep(listening, attached, b"another layout"))
        broker: Any = Broker()
        link = KeeperLink(broker, listening.getsockname(), 1, str.encode)
        link.start()
        counts: list[int] = []
        for tries in (5, 25):
            await until(lambda: len(attached) >= tries)  # noqa: B023
            while attached:
                attached.pop().close()
            gc.collect()
            counts.append(len(list_descriptors()))
        assert counts[1] <= counts[0] + 6, "those of one attempt"
        assert (link.attached, broker.tries) == (0, 0) and broker.declined >= 20
        await link.stop()
        keeper.cancel()
