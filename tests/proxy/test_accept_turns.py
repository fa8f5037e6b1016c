"""Of several workers the one with the fewest connections takes the next client."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING

import pytest

from proxy.accept_turns import GIVE_WAY_S, AcceptTurns
from proxy.sockets import accept_clients
from proxy.supervisor.figures import ABSENT, CONNECTIONS, FIGURES, Figures
from tests.proxy.event_loop import until

if TYPE_CHECKING:
    from collections.abc import Iterator


class Worker:
    """A process with a number of connections, and the page."""

    def __init__(self, fd: int, number: int, has: int = 0) -> None:
        self.figures = Figures(os.dup(fd))
        self.has = has
        self.turns = AcceptTurns(self.figures, number, lambda: self.has)


@pytest.fixture
def page() -> Iterator[Figures]:
    one = Figures()
    yield one
    one.close()


def test_who_has_more_connections_waits(page: Figures) -> None:
    first, second = Worker(page.fd, 1, has=2), Worker(page.fd, 2, has=2)
    for one in (first, second):
        one.turns.show()
    assert (first.turns.find_wait_s(), second.turns.find_wait_s()) == (0, 0)
    first.has = 3
    assert (first.turns.find_wait_s(), second.turns.find_wait_s()) == (GIVE_WAY_S, 0)
    second.has = 4
    assert (second.turns.find_wait_s(), first.turns.find_wait_s()) == (GIVE_WAY_S, 0)


def test_nobody_waits_for_a_worker_that_accepts_nobody(page: Figures) -> None:
    first, second = Worker(page.fd, 1, has=5), Worker(page.fd, 2)
    assert first.turns.find_wait_s() == 0, "it has not begun"
    second.turns.show()
    assert first.turns.find_wait_s() == GIVE_WAY_S
    second.turns.leave()
    second.turns.show()
    assert first.turns.find_wait_s() == 0
    assert dict(page.read())[CONNECTIONS, "1"] == 5
    assert (CONNECTIONS, "2") not in dict(page.read())
    assert page[CONNECTIONS, "2"] == ABSENT


def test_a_page_of_another_build_and_a_process_without_a_number_change_nothing() -> None:
    names = [one for one in FIGURES if one[0] != CONNECTIONS]
    page = Figures(names=names)
    turns = AcceptTurns(Figures(os.dup(page.fd), names), 1, lambda: 7)
    assert turns.find_wait_s() == 0
    turns.leave()
    page = Figures()
    alone = AcceptTurns(page, 0, lambda: 7)
    assert alone.find_wait_s() == 0
    alone.leave()
    assert not [name for name, _ in page.read() if name[0] == CONNECTIONS]


async def test_a_client_that_another_process_takes_meanwhile_is_missed_by_nobody() -> None:
    """And the next one is taken."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        taken: list[socket.socket] = []
        others: list[socket.socket] = []

        def give_way() -> float:
            if not others:
                others.append(listening.accept()[0])
                return 0.001
            return 0.0

        accepting = asyncio.create_task(accept_clients(listening, taken.append, give_way))
        first = socket.create_connection(listening.getsockname())
        await until(lambda: others)
        second = socket.create_connection(listening.getsockname())
        await until(lambda: taken)
        assert taken[0].getpeername() == second.getsockname()
        assert not taken[0].getblocking()
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)
        for one in (first, second, *taken, *others):
            one.close()
