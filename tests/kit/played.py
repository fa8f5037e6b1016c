"""One client, one Forebay and one broker that acknowledges, inside one process and without sockets.

Owns a client's connection and its upstream connection on played transports, and three configurations. Must not know a
real broker: the played one answers each Produce as the real one would. Invariants: nothing sleeps; the topic is known,
its leader epoch confirmed, and its codec seen both ways, so that a Produce may be stored.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import struct
from typing import TYPE_CHECKING, Any

from proxy import app
from proxy.config.load import load
from proxy.net.client_connection import ClientConnection
from proxy.partitions.topics import Leader
from tests.kit.frames import build_batch, build_produce

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from proxy.net.client_connection import AnyLink
    from proxy.net.framed_transport import FramedTransport

TOPIC, TOPIC_ID = "orders", bytes(range(16))
OFF: dict[str, Any] = {
    "cache": {"mode": "off", "directory": ""},
    "isolation": {"enabled": False},
    "throttle": {"enabled": False},
}
ON: dict[str, Any] = {"cache": {"size": "16MiB", "directory": ""}}
ISOLATED: dict[str, Any] = {"cache": {"mode": "off", "directory": ""}}


class PlayedTransport:
    """Takes everything at once, and hands it to `peer`."""

    def __init__(self, peer: Callable[[bytes], object]) -> None:
        self._peer = peer

    def write(self, data: bytes) -> None:
        """A whole frame, since all are small."""
        self._peer(data)

    def writelines(self, buffers: list[bytes]) -> None:
        """The same."""
        self._peer(b"".join(buffers))

    def set_write_buffer_limits(self, **_limits: int) -> None:
        """Nothing is ever held."""

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        """An address."""
        return ("played", 1)

    def pause_reading(self) -> None:
        """Nothing comes by itself."""

    resume_reading = abort = close = pause_reading


@dataclasses.dataclass(frozen=True)
class PlayedDial:
    """Connects a link to the played broker."""

    host: str = "played"
    port: int = 1
    max_frame_bytes: int = 1 << 26
    transport: Any = None

    async def connect(self, framed: FramedTransport) -> None:
        """At once."""
        framed.connection_made(self.transport)


def feed(framed: FramedTransport, frame: bytes) -> None:
    """As the event loop does when a frame has arrived."""
    framed.data_received(frame)


def build_acknowledgement(offset: int) -> bytes:
    """The answer to a Produce of version 9 (ProduceResponse.json)."""
    name = TOPIC.encode()
    partition = struct.pack(">ihqqq", 0, 0, offset, -1, 0) + b"\1\0\0"
    topics = b"\2" + bytes([len(name) + 1]) + name + b"\2" + partition + b"\0"
    body = struct.pack(">i", 1) + b"\0" + topics + struct.pack(">i", 0) + b"\0"
    return struct.pack(">i", len(body)) + body


class Played:
    """One client, one Forebay, one broker that acknowledges; `produce` is one request there and back."""

    def __init__(self, settings: dict[str, Any], directory: Path) -> None:
        path = directory / "forebay.json"
        listener = {"listen": "127.0.0.1:0", "upstream": "127.0.0.1:1"}
        path.write_text(
            json.dumps({"listeners": [listener], "admin": {"listen": "127.0.0.1:0"}, **settings})
        )
        self.forebay = app.Forebay(load(path, {}).config)
        self.sent: list[bytes] = []
        self.answered: list[bytes] = []
        self.offset = 0
        self.frame = build_produce(TOPIC, build_batch(1000))
        self.link = self.open_link(self.sent, self.answered)
        self._believe()

    def open_link(self, sent: list[bytes], answered: list[bytes]) -> AnyLink:
        """A client's connection: what the broker gets of it, and what the client."""
        listener = self.forebay.listeners[0]
        dial: Any = PlayedDial(transport=PlayedTransport(sent.append))
        client: Any = PlayedTransport(answered.append)
        listener.dial = dial
        link = ClientConnection(listener, 1)
        link.framed.connection_made(client)
        return link

    def _believe(self) -> None:
        """The topic is known, its epoch proven by an answer that showed an empty log, its codec seen both ways."""
        broker = self.forebay.broker
        broker.topics.learn(TOPIC, TOPIC_ID, {0: Leader(1, 0)})
        topic = broker.topics.find(TOPIC)
        assert topic is not None
        topic.fidelity.learn(False)
        topic.fidelity.trust(0)
        partition = broker.partitions.follow(topic, 0)
        assert partition is not None
        far = broker.now() + 3600.0
        partition.leader_state.learn(0, 0, 0, 0, far)
        partition.leader_state.await_check(False)  # nothing is stored whose end could be wrong
        partition.tail = 0
        partition.transactions.shown(0, 0, 0, broker.now())

    async def connect(self) -> None:
        """The first request opens the link to the broker."""
        await self.open_upstream(self.link)
        self.sent.clear()
        self.answered.clear()

    async def open_upstream(self, link: AnyLink) -> None:
        """The same, of any link."""
        feed(link.framed, self.frame)
        for _ in range(5):
            await asyncio.sleep(0)
        self.acknowledge(link)

    def acknowledge(self, link: AnyLink) -> None:
        """The broker answers the oldest request of a link."""
        feed(link.upstream.framed, build_acknowledgement(self.offset))
        self.offset += 1

    def produce(self) -> None:
        """One request."""
        feed(self.link.framed, self.frame)
        assert len(self.sent) == 1
        self.sent.clear()
        self.acknowledge(self.link)
        assert len(self.answered) == 1
        self.answered.clear()
