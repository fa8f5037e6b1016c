"""A framed transport on real sockets, under both event loops: unsent bytes are known exactly."""

import asyncio
import os
import socket

import pytest
import uvloop

from protocol import framing
from proxy.net.framed_transport import FramedTransport, Hooks
from tests.proxy.event_loop import until

REQUEST = b"\0\0\0\4ping"


class Talk:
    """A wire, and its peer, who reads when the test says so."""

    async def open(self, on_frame):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.peer = socket.create_connection(listening.getsockname())
            ours, _ = listening.accept()
        for one in (ours, self.peer):
            one.setblocking(False)
        self.ended: list[Exception | None] = []
        self.framed = FramedTransport(
            1 << 20, Hooks(on_frame, self.ended.append, lambda _error: None)
        )
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: self.framed, ours)
        return self

    def fill(self):
        """Past the transport, until the kernel takes no more."""
        filled_bytes = 0
        try:
            while True:
                filled_bytes += os.write(self.framed.plain_fd, b"." * 65536)
        except BlockingIOError:
            return filled_bytes

    async def read(self, least_bytes):
        got = bytearray()
        async with asyncio.timeout(20):
            while len(got) < least_bytes:
                try:
                    got += self.peer.recv(1 << 20)
                except BlockingIOError:
                    await asyncio.sleep(0.001)
        return bytes(got)

    def close(self):
        self.framed.abort()
        self.peer.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("left_bytes", [1, 2, 100])
def test_transport_is_idle_after_its_last_byte(run, left_bytes):
    """Who sends past the transport would overtake it."""

    async def play():
        idle: list[bool] = []
        sent: list[bool] = []
        talk = Talk()

        def on_frame(_frame):
            idle.append(talk.framed.is_idle)

        await talk.open(on_frame)
        assert talk.framed.is_idle and talk.framed.free_fd == talk.framed.plain_fd >= 0
        filled_bytes = talk.fill()
        talk.framed.send((b"#" * left_bytes,), sent.append)
        assert talk.framed.free_fd == -1
        assert not talk.framed.is_idle and not sent and talk.framed.unsent_bytes == left_bytes
        talk.peer.send(REQUEST)  # it asks before it has read
        await until(lambda: idle)
        assert idle == [False]
        got = await talk.read(filled_bytes + left_bytes)
        assert got == b"." * filled_bytes + b"#" * left_bytes
        await until(lambda: talk.framed.is_idle)
        assert talk.framed.free_fd == talk.framed.plain_fd
        assert sent == [True] and talk.framed.unsent_bytes == 0
        talk.close()

    run(play())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_missing_memory_ends_one_connection_only(run, monkeypatch):
    """Whatever the machine's reason is."""
    size_bytes = 1 << 19

    def refuse(_size_bytes):
        raise MemoryError

    async def play():
        frames: list[bytes] = []
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # it would be logged
        starved, other = await Talk().open(frames.append), await Talk().open(frames.append)
        with monkeypatch.context() as patched:
            patched.setattr(framing, "build_buffer", refuse)
            starved.peer.send(size_bytes.to_bytes(4, "big") + b"begun")
            await until(lambda: starved.framed.pending_frame_bytes)
            starved.peer.send(b" and gone on")
            await until(lambda: starved.ended)
        assert isinstance(starved.ended[0], (MemoryError, RuntimeError))
        other.peer.send(REQUEST)
        await until(lambda: frames)
        assert frames == [REQUEST]
        other.peer.send(size_bytes.to_bytes(4, "big") + b"begun")
        await until(lambda: other.framed.pending_frame_bytes == 9)
        other.peer.send(b" and gone on")
        await until(lambda: other.framed.pending_frame_bytes == 21)
        starved.close()
        other.close()

    run(play())
