"""Listeners with `passThrough` in a whole Forebay: bytes, ends, bounds, counts, and how they drain."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from proxy import pipe as pipe_module
from proxy.admin.samples import collect
from proxy.app import Forebay
from proxy.config.load import load
from proxy.sockets import bind_all
from tests.kit.broker.settings import HOST
from tests.proxy.event_loop import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from proxy.net.pass_through import PassThroughListener

both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
LARGE = bytes(range(256)) * 8 * 1024
RESET = b"\1\0\0\0\0\0\0\0"
"""SO_LINGER with a time of 0: close(2) resets."""


class Upstream:
    """A broker's listener of which a test plays each connection."""

    def __init__(self) -> None:
        self.accepted: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted.append((reader, writer))


class Stand:
    """A Forebay with a listener that is read and one that is not."""

    def __init__(self, forebay: Forebay, upstream: Upstream) -> None:
        self.forebay, self.upstream = forebay, upstream
        self.listener: PassThroughListener = forebay.pass_through[0]

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        assert self.listener.bound is not None
        return await asyncio.open_connection(*self.listener.bound)

    async def connect_through(self) -> tuple[Any, Any, Any, Any]:
        """Reader and writer of a client, and of the broker's side of its pipe."""
        seen = len(self.upstream.accepted)
        reader, writer = await self.connect()
        await until(lambda: len(self.upstream.accepted) > seen)
        return reader, writer, *self.upstream.accepted[-1]

    def disconnects(self) -> dict[str, int]:
        return dict(self.forebay.broker.counters.clients.disconnects)

    def samples(self, name: str) -> dict[tuple[str, ...], Any]:
        return {one.labels: one.value for one in collect(self.forebay) if one.name == name}


@asynccontextmanager
async def standing(
    directory: Path, unread: dict[str, Any] | None = None, **limits: Any
) -> AsyncIterator[Stand]:
    """`unread`: more keys of the listener that is not read."""
    upstream = Upstream()
    server = await asyncio.start_server(upstream.accept, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    path = directory / "forebay.json"
    entry = {"listen": f"{HOST}:0"}
    listeners = [
        entry
        | {"name": "unread", "upstream": f"{HOST}:{port}", "passThrough": True}
        | (unread or {}),
        entry | {"name": "read", "upstream": f"{HOST}:1"},
    ]
    cache, admin = {"mode": "off", "directory": ""}, {"listen": f"{HOST}:0"}
    settings = {"listeners": listeners, "cache": cache, "admin": admin, "limits": limits}
    path.write_text(json.dumps(settings | {"shutdown": {"gracePeriod": "0s"}}))
    forebay = Forebay(load(path, {}).config, read=lambda: load(path, {}))
    await forebay.start(bind_all(forebay.config))
    try:
        async with asyncio.timeout(PATIENCE_S * 6):
            yield Stand(forebay, upstream)
    finally:
        await forebay.stop()
        for _, writer in upstream.accepted:
            writer.close()
        server.close()


async def read_end(reader: asyncio.StreamReader) -> bytes:
    with contextlib.suppress(ConnectionResetError):
        return await reader.read(-1)
    return b""


@both_loops
def test_all_bytes_pass_and_are_counted(run: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standing(tmp_path) as stand:
            reader, writer, asked, answers = await stand.connect_through()
            assert stand.samples("forebay_listener_connections") == {("unread",): 1, ("read",): 0}
            writer.write(LARGE)
            writer.write_eof()
            assert await asked.read(-1) == LARGE
            answers.write(LARGE + b"more")
            answers.write_eof()
            assert await reader.read(-1) == LARGE + b"more"
            await until(lambda: not len(stand.listener))
            sizes = {
                ("unread", "request"): len(LARGE),
                ("unread", "response"): len(LARGE) + 4,
            }
            assert stand.samples("forebay_pass_through_bytes_total") == sizes
            assert stand.disconnects() == {"client_closed": 1}
            assert stand.forebay.broker.counters.clients.active_connections == 0
            writer.close()

    run(scenario())


@both_loops
def test_the_brokers_end_leaves_the_other_way_open(run: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standing(tmp_path) as stand:
            reader, writer, asked, answers = await stand.connect_through()
            answers.write_eof()
            assert await reader.read(-1) == b""
            writer.write(b"later")
            assert await asked.readexactly(5) == b"later"
            writer.write_eof()
            assert await asked.read(-1) == b""
            await until(lambda: not len(stand.listener))
            writer.close()

    run(scenario())


@both_loops
def test_a_reset_of_either_side_ends_both(run: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standing(tmp_path) as stand:
            for is_client in (True, False):
                reader, writer, asked, answers = await stand.connect_through()
                resets, other = (writer, asked) if is_client else (answers, reader)
                resets.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, RESET
                )
                resets.close()
                assert await read_end(other) == b""
                await until(lambda: not len(stand.listener))
                for one in (writer, answers):
                    one.close()

    run(scenario())


@both_loops
def test_all_listeners_share_the_bound_of_connections(run: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standing(tmp_path, maxConnections=2) as stand:
            _, first, _, answers = await stand.connect_through()
            bound = stand.forebay.listeners[0].bound
            assert bound is not None
            _, second = await asyncio.open_connection(*bound)
            await until(lambda: stand.forebay.broker.counters.clients.active_connections == 2)
            refused, third = await stand.connect()
            assert await read_end(refused) == b""
            assert stand.disconnects() == {"too_many_connections": 1}
            first.close()
            answers.close()
            await until(lambda: not len(stand.listener))
            _, fourth, *_ = await stand.connect_through()
            for one in (second, third, fourth):
                one.close()

    run(scenario())


@both_loops
def test_a_broker_that_is_away_costs_the_client_its_connection(run: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standing(tmp_path) as stand:
            with socket.create_server((HOST, 0)) as gone:
                port = gone.getsockname()[1]
            stand.listener.upstream = stand.listener.upstream._replace(port=port)
            reader, writer = await stand.connect()
            assert await read_end(reader) == b""
            await until(lambda: not len(stand.listener))
            counters = stand.forebay.broker.counters
            assert counters.upstream.connect_errors >= 1
            assert counters.clients.connection_errors == 1
            writer.close()

    run(scenario())


@both_loops
def test_an_idle_pipe_drains_at_once(run: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standing(tmp_path) as stand:
            reader, writer, asked, _ = await stand.connect_through()
            stand.listener.stop()
            assert await reader.read(-1) == b""
            writer.close()
            assert await asked.read(-1) == b""
            async with asyncio.timeout(PATIENCE_S):
                await stand.listener.drained.wait()
            assert stand.disconnects() == {"drained": 1}
            with pytest.raises(ConnectionRefusedError):
                await stand.connect()

    run(scenario())


@both_loops
def test_a_drain_waits_for_the_response_and_takes_no_further_request(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with standing(tmp_path) as stand:
            reader, writer, asked, answers = await stand.connect_through()
            writer.write(b"request")
            assert await asked.readexactly(7) == b"request"
            monkeypatch.setattr(pipe_module, "QUIET_S", 3600.0)
            stand.listener.stop()
            answers.write(b"first piece, ")
            assert await reader.readexactly(13) == b"first piece, "
            writer.write(b"next request")
            await writer.drain()
            answers.write(b"second piece, ")
            assert await reader.readexactly(14) == b"second piece, "
            assert not stand.listener.drained.is_set()
            monkeypatch.setattr(pipe_module, "QUIET_S", 0.05)
            answers.write(b"last piece")
            assert await reader.read(-1) == b"last piece"
            writer.close()
            assert await asked.read(-1) == b"", "the next request has not reached the broker"
            async with asyncio.timeout(PATIENCE_S):
                await stand.listener.drained.wait()

    run(scenario())


@both_loops
def test_what_does_not_drain_ends_with_the_grace_period(run: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standing(tmp_path) as stand:
            reader, writer, asked, _ = await stand.connect_through()
            writer.write(b"request")
            assert await asked.readexactly(7) == b"request"
            stand.listener.stop()
            assert len(stand.listener) == 1
            stand.listener.abort()
            assert await read_end(reader) == b""
            await until(lambda: not len(stand.listener))
            assert stand.disconnects() == {"drain_timeout": 1}
            writer.close()

    run(scenario())


@both_loops
def test_a_reload_changes_bounds_and_keeps_the_listener(run: Any, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standing(tmp_path) as stand:
            path = tmp_path / "forebay.json"
            tree = json.loads(path.read_text())
            tree["limits"] = {"maxConnections": 1}
            tree["listeners"][0]["passThrough"] = False
            path.write_text(json.dumps(tree))
            report = await stand.forebay.reloader.reload()
            assert [one.key for one in report.applied] == ["limits.maxConnections"]
            assert [one.key for one in report.needs_restart] == ["listeners[0].passThrough"]
            _, first, _, _ = await stand.connect_through()
            refused, second = await stand.connect()
            assert await read_end(refused) == b""
            for one in (first, second):
                one.close()

    run(scenario())


def test_rules_for_addresses_hold(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standing(tmp_path, {"deny": f"{HOST}/32"}) as stand:
            reader, writer = await stand.connect()
            assert await read_end(reader) == b""
            writer.close()
            assert stand.disconnects() == {"denied_address": 1}
            assert stand.upstream.accepted == [] and not len(stand.listener)
            text = (tmp_path / "forebay.json").read_text()
            (tmp_path / "forebay.json").write_text(text.replace(f"{HOST}/32", "10.0.0.0/8"))
            report = await stand.forebay.reloader.reload()
            assert not report.errors
            *_, answers = await stand.connect_through()
            answers.close()

    asyncio.run(scenario())


def test_connections_of_an_address_are_counted_with_those_of_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with standing(tmp_path, connectionsPerAddress=1) as stand:
            _, first, _, answers = await stand.connect_through()
            reader, second = await stand.connect()
            assert await read_end(reader) == b""
            assert stand.disconnects() == {"connections_per_address": 1}
            first.close()
            answers.close()
            await until(lambda: not len(stand.listener))
            _, third, *_ = await stand.connect_through()
            second.close()
            third.close()

    asyncio.run(scenario())
