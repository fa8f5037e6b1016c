"""Pipes: all bytes both ways, ends of either side, bounds, and who is not piped."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from proxy.pipe import CHUNK_BYTES
from proxy.sockets import Sockets, bind_all, find_address
from proxy.supervisor.figures import PIPES, PIPES_REFUSED, PIPES_TOTAL, Figures
from proxy.supervisor.pipes import Pipes
from proxy.switches.bypass import find_obstacle
from tests.kit.broker.certificates import write_certificates
from tests.kit.broker.settings import HOST
from tests.proxy.event_loop import until
from tests.proxy.supervisor.configured import build_config

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from proxy.config.keys import KeyPath

LARGE = bytes(range(256)) * 16 * 1024
PATIENCE_S = 60.0


class PlayedUpstream:
    """A broker that keeps what it reads, and echoes once its client has ended, or as it comes."""

    def __init__(self, echoes_at_once: bool) -> None:
        self.echoes_at_once = echoes_at_once
        self.writers: list[asyncio.StreamWriter] = []
        self.ended = 0

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        held = b""
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                held += data
                if self.echoes_at_once:
                    writer.write(data)
                    await writer.drain()
            if not self.echoes_at_once:
                writer.write(held)
            writer.write_eof()
        self.ended += 1


class Stand:
    """Pipes in front of a played upstream."""

    def __init__(
        self, pipes: Pipes, upstream: PlayedUpstream, sockets: Sockets, figures: Figures
    ) -> None:
        self.pipes, self.upstream, self._sockets, self.figures = pipes, upstream, sockets, figures

    def figure(self, name: str) -> int:
        return self.figures[name,]

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*find_address(self._sockets.listeners[0]))


@asynccontextmanager
async def standing(
    settings: dict[KeyPath, str] | None = None, *, echoes_at_once: bool = True
) -> AsyncIterator[Stand]:
    upstream = PlayedUpstream(echoes_at_once)
    server = await asyncio.start_server(upstream.accept, HOST, 0)
    config = build_config(settings, "{}:{}".format(*server.sockets[0].getsockname()))
    sockets = bind_all(config)
    figures = Figures()
    pipes = Pipes(config, sockets.listeners, figures)
    pipes.open()
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield Stand(pipes, upstream, sockets, figures)
    finally:
        await pipes.abort()
        assert len(pipes) == figures[PIPES,] == 0
        figures.close()
        sockets.close()
        server.close()


async def test_all_bytes_pass_and_an_end_leaves_the_other_way_open() -> None:
    async with standing(echoes_at_once=False) as stand:
        reader, writer = await stand.connect()
        writer.write(LARGE)
        writer.write_eof()
        assert await reader.read(-1) == LARGE, "echoed after the client's end"
        await until(lambda: not len(stand.pipes))
        assert stand.figure(PIPES_TOTAL) == 1
        writer.close()


async def test_a_reset_of_either_side_ends_the_other() -> None:
    async with standing() as stand:
        reader, writer = await stand.connect()
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        stand.upstream.writers[0].transport.abort()
        assert await reader.read(-1) == b""
        writer.close()
        _, other = await stand.connect()
        await until(lambda: len(stand.upstream.writers) == 2)
        other.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
        )
        other.close()
        await until(lambda: stand.upstream.ended == 2 and not len(stand.pipes))


async def test_who_does_not_read_stops_the_other_side() -> None:
    """What is on its way is bounded by the kernel's buffers and a chunk: the upstream is not read further."""
    async with standing() as stand:
        reader, writer = await stand.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 1 << 30:
                writer.write(bytes(CHUNK_BYTES))
                async with asyncio.timeout(1.0):
                    await writer.drain()
                sent += CHUNK_BYTES
        assert sent < 1 << 28
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        writer.write_eof()
        assert len(await reader.read(-1)) >= sent


async def test_pipes_are_bounded() -> None:
    async with standing({("limits", "maxConnections"): "1"}) as stand:
        reader, writer = await stand.connect()
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        refused, closing = await stand.connect()
        assert await refused.read(-1) == b""
        assert [stand.figure(name) for name in (PIPES_TOTAL, PIPES_REFUSED, PIPES)] == [2, 1, 1]
        writer.close()
        await until(lambda: not len(stand.pipes))
        again, other = await stand.connect()
        other.write(b"y")
        assert await again.readexactly(1) == b"y"
        for one in (closing, other):
            one.close()


@pytest.mark.parametrize("reopened", [False, True])
async def test_pipes_end_at_their_age_unless_they_are_needed_again(reopened: bool) -> None:
    async with standing({("supervisor", "pipeMaxAge"): "0s"}) as stand:
        reader, writer = await stand.connect()
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        stand.pipes.close()
        assert not stand.pipes.is_open
        if reopened:
            stand.pipes.open()
            another, other = await stand.connect()
            other.write(b"z")
            assert await another.readexactly(1) == b"z"
            writer.write(b"y")
            assert await reader.readexactly(1) == b"y"
            other.close()
        else:
            assert await reader.read(-1) == b""
        writer.close()


async def test_a_broker_that_is_away_is_a_problem_until_it_is_back() -> None:
    async with standing() as stand:
        with socket.create_server((HOST, 0)) as other:
            port = other.getsockname()[1]
        config = build_config(upstream=f"{HOST}:{port}")
        sockets = bind_all(config)
        pipes = Pipes(config, sockets.listeners, Figures())
        pipes.open()
        reader, writer = await asyncio.open_connection(*find_address(sockets.listeners[0]))
        assert await reader.read(-1) == b""
        (problem,) = pipes.list_problems()
        assert problem.startswith(f"the broker at {HOST}:{port} is not reachable: ")
        back = await asyncio.start_server(stand.upstream.accept, HOST, port)
        again, other_writer = await asyncio.open_connection(*find_address(sockets.listeners[0]))
        other_writer.write(b"x")
        assert await again.readexactly(1) == b"x"
        assert pipes.list_problems() == []
        await pipes.abort()
        back.close()
        for one in (writer, other_writer):
            one.close()
        sockets.close()


async def test_clients_of_a_listener_with_tls_are_closed(tmp_path: Path) -> None:
    files = write_certificates(tmp_path).server
    tls: dict[KeyPath, str] = {
        ("listeners", 0, "tls", "certificateFile"): str(files.certificate),
        ("listeners", 0, "tls", "keyFile"): str(files.key),
    }
    async with standing(tls) as stand:
        reader, writer = await stand.connect()
        assert await reader.read(-1) == b""
        assert stand.upstream.writers == []
        assert [stand.figure(name) for name in (PIPES_TOTAL, PIPES_REFUSED)] == [1, 1]
        assert stand.pipes.list_problems() == [
            "listener clients closes its clients: TLS of its clients ends at Forebay"
        ]
        writer.close()
    toward = build_config({("listeners", 0, "upstreamTls", "enabled"): "true"}).listeners[0]
    assert find_obstacle(toward) == "TLS to the broker begins at Forebay"
    assert find_obstacle(build_config().listeners[0]) == ""


@pytest.mark.parametrize(
    ("lists", "is_piped"),
    [
        ({"deny": "127.0.0.0/8"}, False),
        ({"allow": "192.0.2.0/24"}, False),
        ({"allow": "127.0.0.0/8", "deny": "127.0.0.2"}, True),
    ],
)
async def test_lists_of_a_listener_hold_for_pipes(lists: dict[str, str], is_piped: bool) -> None:
    settings: dict[KeyPath, str] = {("listeners", 0, key): value for key, value in lists.items()}
    async with standing(settings) as stand:
        reader, writer = await stand.connect()
        if is_piped:
            writer.write(b"bytes")
            assert await reader.readexactly(5) == b"bytes"
        else:
            assert await reader.read(-1) == b""
        assert [stand.figure(name) for name in (PIPES_TOTAL, PIPES_REFUSED)] == [1, not is_piped]
        writer.close()


def test_clients_behind_a_header_cannot_be_piped() -> None:
    keys = {"proxyProtocol": "v2", "trustedProxies": "127.0.0.1"}
    settings: dict[KeyPath, str] = {("listeners", 0, key): value for key, value in keys.items()}
    obstacle = find_obstacle(build_config(settings).listeners[0])
    assert obstacle == "its clients begin with a header that the broker does not read"
