"""Forebay's own connections: the state of the broker, and the log lines without one.

Owns a broker that answers ApiVersions and Metadata, or nothing, and a clock that the test moves. It must not know what
else is asked. Invariants: sockets are real; nothing sleeps.
"""

import asyncio
import logging
import struct
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from protocol.api import API_VERSIONS, METADATA
from proxy.accounting.counters import Counters
from proxy.config.model import Limits
from proxy.net.broker_connection import Dial
from proxy.net.byte_budget import ByteBudget
from proxy.net.own_connections import (
    AWAITED_S,
    FIRST_PAUSE_S,
    LASTING_S,
    UNREACHABLE_PAUSE_S,
    OwnConnections,
)
from tests.kit.broker.ports import lease_port
from tests.proxy.event_loop import PATIENCE_S, until
from tests.proxy.followed_partition import stand_in

ANSWERS = {
    API_VERSIONS: bytes(4) + bytes(2) + b"\1" + bytes(4) + b"\0",
    METADATA: bytes(4) + b"\0" + bytes(4) + b"\1" + b"\0" + bytes(4) + b"\1" + b"\0",
}
TIMEOUT_S = Limits().upstream_timeout_s


class Answering:
    """A broker that answers while `answers`; what it was asked before is answered when it does so again."""

    def __init__(self):
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked = 0
        self.writers = []

    async def accept(self, reader, writer):
        self.writers.append(writer)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                (key,) = struct.unpack_from(">h", await reader.readexactly(size))
                self.asked += 1
                await self.answers.wait()
                answer = ANSWERS.get(key, bytes(4))
                writer.write(struct.pack(">i", len(answer)) + answer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()


class Stand:
    def __init__(self, host, port, limits):
        self.clock_s = 0.0
        self.limits = limits
        dial = Dial(host, port, None, None, PATIENCE_S, 1 << 20)
        config = SimpleNamespace(upstream_credentials=None)
        self.counters = Counters()
        broker = SimpleNamespace(
            config=SimpleNamespace(limits=limits),
            responses=ByteBudget(1 << 20),
            counters=self.counters,
            version="0",
            now=lambda: self.clock_s,
            replica_fetcher=SimpleNamespace(pump=lambda: None),
        )
        listener = SimpleNamespace(dial=dial, config=config, upstream=f"{host}:{port}")
        self.links = OwnConnections(broker, stand_in(listener))

    def pass_s(self, duration_s):
        self.clock_s += duration_s
        self.links.tick(self.clock_s)


@asynccontextmanager
async def stand_before(host, port, **limits):
    stand = Stand(host, port, Limits(**limits))
    stand.links.start()
    try:
        yield stand
    finally:
        await stand.links.close()


@asynccontextmanager
async def played(**limits):
    broker = Answering()
    server = await asyncio.start_server(broker.accept, "127.0.0.1", 0)
    async with stand_before("127.0.0.1", server.sockets[0].getsockname()[1], **limits) as stand:
        yield stand, broker
    for writer in broker.writers:
        writer.close()
    server.close()


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, "forebay.own_connections")
    return caplog


async def test_a_refused_connection_is_called_so(said):
    with lease_port() as lease:
        async with stand_before("127.0.0.1", lease.port) as stand:
            await until(lambda: stand.counters.upstream.connect_errors > 2)
    (line,) = said.messages
    assert "does not answer: cannot reach the broker" in line
    assert "Connect call failed" in line
    assert "redentials" not in line


async def test_a_broker_that_is_not_there_yet_is_no_warning(said):
    """A sidecar starts before its broker. Who waits for a minute is warned, and so is who loses a broker."""
    with lease_port() as lease:
        async with stand_before("127.0.0.1", lease.port) as stand:
            await until(lambda: stand.counters.upstream.connect_errors > 2)
            assert [record.levelname for record in said.records] == ["INFO"]
            stand.clock_s = AWAITED_S
            await until(lambda: len(said.records) > 1)
            tried = stand.counters.upstream.connect_errors
            await until(lambda: stand.counters.upstream.connect_errors > tried + 1)
            broker = Answering()
            server = await asyncio.start_server(broker.accept, "127.0.0.1", lease.port)
            await until(lambda: stand.links.usable)
            broker.answers.clear()
            server.close()
            stand.pass_s(1.0)
            stand.pass_s(TIMEOUT_S)
            await until(lambda: any("does not answer" in one for one in said.messages[2:]))
            for writer in broker.writers:
                writer.close()
    levels = [one.levelname for one in said.records if "does not answer" in one.getMessage()]
    assert levels == ["INFO", "WARNING", "WARNING"]


async def test_unknown_host_name_is_named_in_the_log(said):
    async with stand_before("nowhere.invalid", 9092) as stand:
        await until(lambda: said.messages)
        assert not stand.links.reachable
    assert "cannot reach the broker at nowhere.invalid:9092: [Errno" in said.messages[0]
    assert "redentials" not in said.messages[0]


async def test_a_broker_that_never_answers_is_not_reachable(said):
    async with played(connect_timeout_s="100ms") as (stand, broker):
        broker.answers.clear()
        stand.clock_s = 7.0
        await until(lambda: said.messages)
        assert not stand.links.reachable
        assert stand.links.silent_s(9.0) > 0
    assert said.messages[0].endswith("does not answer: it has not answered for 0.1 s")


async def test_answering_broker_is_asked_periodically():
    async with played() as (stand, broker):
        await until(lambda: stand.links.usable)
        greeted = broker.asked
        for beat in range(1, 4):
            stand.pass_s(TIMEOUT_S / 5)
            await until(
                lambda beat=beat: (
                    broker.asked == greeted + beat and not stand.links.silent_s(stand.clock_s)
                )
            )
            stand.pass_s(0)
        assert broker.asked == greeted + 3
        assert stand.links.reachable


@pytest.mark.parametrize("name", ["proof", "watch"])
async def test_connections_that_do_not_last_are_opened_with_pauses(monkeypatch, name):
    """However often it is asked for. A long life ends that."""
    pauses = []

    async def note_pause(pause_s):
        pauses.append(pause_s)

    async with played() as (stand, broker):
        monkeypatch.setattr("proxy.net.own_connections.asyncio.sleep", note_pause)
        for lived_s in (0.0, 0.0, LASTING_S - 1, 0.0, LASTING_S, 0.0):
            await until(lambda: stand.links.link(name) is not None)
            lost = stand.links.link(name)
            stand.clock_s += lived_s
            broker.answers.clear()
            lost.send(b"\0\0\0\4\0\1\0\0", 0, lambda _answer: None)
            for writer in broker.writers:
                writer.close()
            broker.writers.clear()
            await until(lambda lost=lost: lost.closed)
            broker.answers.set()
        await until(lambda: stand.links.link(name) is not None)
    assert pauses[:4] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, *[UNREACHABLE_PAUSE_S] * 2]
    assert pauses[4:] == [FIRST_PAUSE_S]


async def test_silent_broker_is_lost_and_found_again(said):
    async with played() as (stand, broker):
        await until(lambda: stand.links.usable)
        watch: list[bytes | None] = []
        await until(lambda: stand.links.link("watch") is not None)
        broker.answers.clear()
        stand.links.link("watch").send(b"\0\0\0\4\0\1\0\0", 0, watch.append)
        stand.pass_s(1.0)
        stand.pass_s(TIMEOUT_S - 1.0)
        assert stand.links.reachable
        assert stand.links.silent_s(stand.clock_s) == TIMEOUT_S - 1.0
        stand.pass_s(1.0)
        assert not stand.links.reachable
        assert watch == [None], "a half-open connection holds nothing up"
        assert stand.links.silent_s(stand.clock_s) == TIMEOUT_S
        broker.answers.set()
        await until(lambda: stand.links.reachable and stand.links.link("proof") is not None)
        assert stand.links.silent_s(stand.clock_s) == 0
    lines = [line for line in said.messages if "its own connection" not in line]
    assert "is given up: it has not answered for 10 s" in lines[0]
    assert "answers again after 10.0 s" in lines[1]
