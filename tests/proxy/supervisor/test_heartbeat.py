"""Beats of a worker: they say its state, hold nobody, and find out that the supervisor is gone."""

import asyncio
import contextlib
import os

import pytest

from proxy.supervisor.heartbeat import READY, RELOADED, STARTING, HeartbeatSender


async def test_beats_tell_whether_clients_are_accepted() -> None:
    reader, writer = os.pipe()
    beats = HeartbeatSender(writer, 0.001, lambda: None)
    beats.start()
    assert os.read(reader, 1) == STARTING
    beats.become_ready()
    os.set_blocking(reader, False)
    seen = b""
    async with asyncio.timeout(60):
        while seen.count(READY) < 3:
            await asyncio.sleep(0)
            with contextlib.suppress(BlockingIOError):
                seen += os.read(reader, 100)
    assert STARTING not in seen.lstrip(STARTING), "each beat says it again"
    os.close(reader)
    os.close(writer)


async def test_a_full_pipe_holds_nobody() -> None:
    reader, writer = os.pipe()
    beats = HeartbeatSender(writer, 60.0, lambda: pytest.fail("the supervisor is there"))
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    beats.start()
    beats.become_ready()
    os.close(reader)
    os.close(writer)


async def test_without_a_reader_the_worker_is_told(caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = os.pipe()
    orphaned = asyncio.Event()
    beats = HeartbeatSender(writer, 0.001, orphaned.set)
    beats.start()
    os.close(reader)
    async with asyncio.timeout(60):
        await orphaned.wait()
    assert "the supervisor is gone" in caplog.text
    os.close(writer)


async def test_another_configuration_is_told_once_and_not_lost_in_a_full_pipe() -> None:
    reader, writer = os.pipe()
    beats = HeartbeatSender(writer, 60.0, lambda: None)
    beats.start()
    beats.tell_reloaded()
    assert os.read(reader, 100) == STARTING + STARTING + RELOADED
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x")
    beats.tell_reloaded()
    os.read(reader, 4096)
    os.set_blocking(reader, False)
    beats.become_ready()
    seen = b""
    with contextlib.suppress(BlockingIOError):
        while True:
            seen += os.read(reader, 4096)
    assert seen.lstrip(b"x") == READY + RELOADED
    os.close(reader)
    os.close(writer)
