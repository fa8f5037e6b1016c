"""Paths that several processes answer as one: what a process of them says, and whether clients should come."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from metrics.merge import unpack_samples
from proxy.admin.access import METRICS, TOP
from proxy.app import Forebay
from proxy.group import READY, GroupAnswers, find_gaps
from proxy.net.own_connections import OwnConnections
from proxy.sockets import bind_all, listen_for_workers
from proxy.supervisor.figures import FALLBACK, WORKERS, Figures
from proxy.supervisor.role import Role
from proxy.supervisor.spawner import share_sockets
from tests.proxy.supervisor.configured import build_config
from tests.proxy.uncached_forebay import OFF, front

if TYPE_CHECKING:
    from pathlib import Path

PROXIED = {
    ("listeners", 0, "proxyProtocol"): "v2",
    ("listeners", 0, "trustedProxies"): "127.0.0.1",
}


def read_ready(answers: GroupAnswers) -> list[float]:
    samples = unpack_samples(answers.answer_keeper(METRICS)).samples
    return [float(one.value) for one in samples if one.name == READY and isinstance(one.value, int)]


async def test_a_worker_that_drains_makes_nobody_unready() -> None:
    """Its successor has its place; its own end may take as long as `shutdown.gracePeriod`."""
    async with front(OFF, has_log=False) as played:
        forebay: Forebay = played.forebay
        answers = GroupAnswers(forebay, "worker-1")
        assert len(read_ready(answers)) == 1
        forebay.readiness.drain()
        assert read_ready(answers) == []
        said = json.loads(answers.answer_keeper(TOP))
        assert (said["isReady"], said["reasons"]) == (True, [])


@pytest.mark.parametrize(
    ("workers", "fallback", "settings", "gaps"),
    [
        (1, 0, {}, []),
        (0, 0, {}, ["no worker is ready yet"]),
        (0, 1, {}, []),
        (1, 0, PROXIED, []),
        (
            0,
            1,
            PROXIED,
            [
                "listener clients closes its clients:"
                " its clients begin with a header that the broker does not read"
            ],
        ),
    ],
)
def test_without_a_worker_clients_come_only_where_the_supervisor_pipes_them(
    workers: int, fallback: int, settings: dict, gaps: list[str]
) -> None:
    figures = Figures()
    figures[WORKERS,], figures[FALLBACK,] = workers, fallback
    assert find_gaps(build_config(settings), figures) == gaps


async def test_a_keeper_is_ready_with_its_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A real one, before a broker that answers; the workers are numbers of the supervisor."""
    answers = property(lambda _: True, lambda _, __: None)
    monkeypatch.setattr(OwnConnections, "reachable", answers, raising=False)
    config = build_config({("cache", "directory"): str(tmp_path), ("workers",): "2"})
    figures, sockets = Figures(), bind_all(config)
    keeper = Forebay(config, figures=figures, role=Role.KEEPER, keeper=listen_for_workers())
    await keeper.start(share_sockets(sockets, Role.KEEPER))

    async def ask() -> str:
        reader, writer = await asyncio.open_connection(*sockets.admin[0].getsockname()[:2])
        writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
        said = await reader.read()
        writer.close()
        return said.decode()

    try:
        assert " 503 " in await ask() and "not ready: no worker is ready yet" in await ask()
        figures[WORKERS,] = 1
        assert " 200 " in await ask()
    finally:
        await keeper.stop()
