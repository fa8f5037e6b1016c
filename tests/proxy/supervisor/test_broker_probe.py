"""Whether a broker answers, as the supervisor finds out while it pipes: a connection alone is no answer."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from proxy.supervisor.broker_probe import QUESTION, BrokerProbe
from tests.kit.broker.settings import HOST
from tests.proxy.supervisor.configured import build_config

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.config.keys import KeyPath

TIMEOUT: dict[KeyPath, str] = {("limits", "upstreamTimeout"): "1s"}


async def wait_until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_broker_that_accepts_and_says_nothing_is_a_problem_until_it_answers() -> None:
    silent = asyncio.Event()
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(len(QUESTION)))
        if silent.is_set():
            writer.write(b"\0")
        else:
            await silent.wait()
        writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    probe = BrokerProbe(build_config(TIMEOUT, f"{HOST}:{port}"))
    assert probe.problem == ""
    probe.start()
    await wait_until(lambda: "it has not answered for 1 s" in probe.problem)
    silent.set()
    await wait_until(lambda: probe.problem == "")
    assert set(asked) == {QUESTION}
    assert QUESTION[:4] == (len(QUESTION) - 4).to_bytes(4, "big")
    probe.stop()
    server.close()


async def test_a_broker_that_is_away_is_a_problem_and_stop_forgets_it() -> None:
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    probe = BrokerProbe(build_config(TIMEOUT, f"{HOST}:{port}"))
    probe.start()
    await wait_until(lambda: f"the broker at {HOST}:{port} is not reachable" in probe.problem)
    probe.stop()
    assert probe.problem == ""
