"""Of several workers the one with the fewest connections takes the next client."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

from proxy.accept_turns import IN_VAIN_S, AcceptTurns
from proxy.sockets import accept_clients
from proxy.supervisor.figures import ABSENT, CONNECTIONS, FIGURES, Figures
from tests.kit.broker.settings import HOST
from tests.proxy.event_loop import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST = 200


class Worker:
    """A process that accepts, with a number of connections, and the page."""

    def __init__(self, fd: int, number: int, has: int = 0) -> None:
        self.figures = Figures(os.dup(fd))
        self.has, self.clock = has, 0.0
        self.taken: list[socket.socket] = []
        self.turns = AcceptTurns(
            self.figures, number, lambda: self.has + len(self.taken), lambda: self.clock
        )
        self.turns.enter()

    @property
    def gives_way(self) -> bool:
        return self.turns.gives_way()


@pytest.fixture
def page() -> Iterator[Figures]:
    one = Figures()
    yield one
    one.close()


def test_who_has_more_connections_waits(page: Figures) -> None:
    first, second = Worker(page.fd, 1, has=2), Worker(page.fd, 2, has=2)
    assert (first.gives_way, second.gives_way) == (False, False)
    first.has = 3
    assert (first.gives_way, second.gives_way) == (True, False)
    second.has = 4
    assert (second.gives_way, first.gives_way) == (True, False)


def test_nobody_waits_for_a_worker_that_accepts_nobody(page: Figures) -> None:
    first, second = Worker(page.fd, 1, has=5), Worker(page.fd, 2)
    assert first.gives_way
    second.turns.leave()
    second.turns.show()
    assert not first.gives_way
    assert dict(page.read())[CONNECTIONS, "1"] == 5
    assert (CONNECTIONS, "2") not in dict(page.read())
    assert page[CONNECTIONS, "2"] == ABSENT


def test_a_worker_that_has_not_begun_is_ahead_of_none(page: Figures) -> None:
    """A successor of an upgrade, which waits for the broker: its timers run already."""
    first = Worker(page.fd, 1, has=5)
    begins = AcceptTurns(page, 2, lambda: 0)
    begins.show()
    assert page[CONNECTIONS, "2"] == ABSENT and not first.gives_way
    begins.enter()
    assert first.gives_way


def test_whoever_waited_in_vain_waits_for_nobody_for_a_while(page: Figures) -> None:
    first, _second = Worker(page.fd, 1, has=5), Worker(page.fd, 2)
    assert first.gives_way
    first.turns.note_in_vain()
    assert not first.gives_way
    first.clock = IN_VAIN_S
    assert first.gives_way


def test_a_page_of_another_build_and_a_process_without_a_number_change_nothing() -> None:
    names = [one for one in FIGURES if one[0] != CONNECTIONS]
    page = Figures(names=names)
    turns = AcceptTurns(Figures(os.dup(page.fd), names), 1, lambda: 7)
    turns.enter()
    assert not turns.gives_way()
    turns.leave()
    page = Figures()
    alone = AcceptTurns(page, 0, lambda: 7)
    alone.enter()
    assert not alone.gives_way()
    alone.leave()
    assert not [name for name, _ in page.read() if name[0] == CONNECTIONS]


async def accept_burst(listening: socket.socket, workers: list[Worker], most: int) -> None:
    """Connect `most` clients at once, and return when all are taken."""
    each_its_own = [listening.dup() for _ in workers]
    accepting = [
        asyncio.create_task(accept_clients(place, one.taken.append, one.turns))
        for place, one in zip(each_its_own, workers, strict=True)
    ]
    await asyncio.sleep(0)
    clients = [socket.create_connection(listening.getsockname()) for _ in range(most)]
    await until(lambda: sum(len(one.taken) for one in workers) == most)
    for task in accepting:
        task.cancel()
    await asyncio.gather(*accepting, return_exceptions=True)
    for client in (*each_its_own, *clients, *(client for one in workers for client in one.taken)):
        client.close()


async def test_a_burst_is_shared_and_waits_for_nobody(page: Figures) -> None:
    """None sleeps while another one that has fewer has its share already."""
    with socket.create_server((HOST, 0), backlog=MOST) as listening:
        listening.setblocking(False)
        workers = [Worker(page.fd, number, has=number % 2) for number in (1, 2)]
        for one in workers:
            one.turns.most_s = 1e6
        await accept_burst(listening, workers, MOST)
    shares = [len(one.taken) for one in workers]
    assert min(shares) > MOST // 4


async def test_a_burst_waits_once_for_a_worker_that_hangs(
    page: Figures, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[AcceptTurns] = []
    monkeypatch.setattr(AcceptTurns, "note_in_vain", waited(waits, AcceptTurns.note_in_vain))
    with socket.create_server((HOST, 0), backlog=MOST) as listening:
        listening.setblocking(False)
        one, _hangs = Worker(page.fd, 1, has=7), Worker(page.fd, 2)
        await accept_burst(listening, [one], MOST)
    assert waits == [one.turns]


def waited(waits: list[AcceptTurns], note: Callable[[AcceptTurns], None]) -> Any:
    """`note`, which says whose turn it was."""

    def note_one(turns: AcceptTurns) -> None:
        waits.append(turns)
        note(turns)

    return note_one


async def test_a_client_that_another_process_takes_meanwhile_is_missed_by_nobody() -> None:
    """And the next one is taken."""
    with socket.create_server((HOST, 0)) as listening:
        listening.setblocking(False)
        taken: list[socket.socket] = []
        others: list[socket.socket] = []

        class Others:
            most_s = 60.0

            def gives_way(self) -> bool:
                if not others:
                    others.append(listening.accept()[0])
                    return True
                return False

            def note_in_vain(self) -> None:
                raise AssertionError("another one has taken it")

        accepting = asyncio.create_task(accept_clients(listening, taken.append, Others()))
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
