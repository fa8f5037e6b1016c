"""Connecting to the broker by its name."""

import asyncio
import socket
from typing import Any

import pytest

from proxy import pipe
from proxy.config.units import Address
from tests.kit.broker.settings import HOST

PATIENCE_S = 60.0
GONE = "192.0.2.1"
"""RFC 5737: nobody's."""


@pytest.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Host names, with the address that each next question is answered by; the last one stays. GONE is silent."""
    loop = asyncio.get_running_loop()
    found: dict[str, list[str]] = {}
    connect = loop.sock_connect

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        listed = found[host]
        address = listed.pop(0) if len(listed) > 1 else listed[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    async def sock_connect(one: socket.socket, place: tuple[str, int]) -> None:
        if place[0] == GONE:
            await asyncio.Event().wait()
        await connect(one, place)

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(loop, "sock_connect", sock_connect)
    return found


async def test_a_pod_that_is_gone_is_looked_up_again(
    names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name has the address of the next pod by then."""
    monkeypatch.setattr(pipe, "ATTEMPT_S", 0.05)
    names["broker"] = [GONE, GONE, HOST]
    with socket.create_server((HOST, 0)) as broker:
        port = broker.getsockname()[1]
        connected = await pipe.connect(Address("broker", port), PATIENCE_S)
        with connected:
            assert connected.getpeername() == (HOST, port)
    assert names["broker"] == [HOST]


async def test_nobody_at_any_address_ends_in_time(
    names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe, "ATTEMPT_S", 0.01)
    names["broker"] = [GONE]
    with pytest.raises(TimeoutError):
        await pipe.connect(Address("broker", 1), 0.1)


async def test_a_refusal_is_told_at_once(names: dict[str, list[str]]) -> None:
    names["broker"] = [HOST]
    with socket.create_server((HOST, 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        await pipe.connect(Address("broker", port), PATIENCE_S)
