"""A connection to the broker that is given up while it opens, under both event loops: it closes nobody else's."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import stat

import pytest
import uvloop

from proxy.net.broker_connection import Dial
from tests.proxy.followed_partition import stand_in

PATIENCE_S = 60.0
TURNS = 4


class GivenUp(asyncio.Protocol):
    """Its client has gone meanwhile. In the turn that closes it somebody else opens `others`, which get its number."""

    def __init__(self) -> None:
        self.others: list[int] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stand_in(transport).abort()
        asyncio.get_running_loop().call_soon(self._open_others)

    def _open_others(self) -> None:
        self.others += [fd for _ in range(8) for fd in os.pipe()]

    def are_open(self) -> bool:
        """Whether the others are what they were."""
        try:
            return all(stat.S_ISFIFO(os.fstat(fd).st_mode) for fd in self.others)
        except OSError:
            return False


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_connection_that_is_given_up_at_once_closes_no_other(run):
    async def check() -> None:
        with socket.create_server(("127.0.0.1", 0)) as broker:
            dial = Dial("127.0.0.1", broker.getsockname()[1], None, None, PATIENCE_S, 1000)
            given_up = GivenUp()
            await dial.open(lambda: given_up)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        gc.collect()
        assert given_up.others and given_up.are_open()
        for fd in given_up.others:
            os.close(fd)

    run(check())
