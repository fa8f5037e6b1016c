"""What one small request costs in Forebay's own code, without sockets: `python -m bench.micro.requests`.

Owns a client link and its upstream on played transports, inside one process. Must not know the broker: the
played one answers each Produce as the real one would. Invariants: process time only, the smallest of several
runs, since what a busy machine adds is not the code's; the same frames as the ladder's. Beside it the time of a
request after a pause, with cold caches: what a real process pays (docs/performance.md); and of one in a crowd, where
most wait for a slot (docs/decisions/0025).
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import dataclasses
import json
import pstats
import statistics
import struct
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.ladder.frames import build_batch, build_produce
from proxy import app
from proxy.config.load import load
from proxy.net.client_connection import ClientConnection
from proxy.partitions.topics import Leader

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxy.net.framed_transport import FramedTransport

COLD_TIMES, SPOILED_BYTES, PAUSE_S = 800, 1 << 20, 0.0002
CROWD, DEEP = 8, 5
"""Connections, and requests in flight on each: as in the ladder's small requests per second."""
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

    def __init__(self, peer: Callable[[bytes], None]) -> None:
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

    async def connect(self, wire: FramedTransport) -> None:
        """At once."""
        wire.connection_made(self.transport)


def feed(wire: FramedTransport, frame: bytes) -> None:
    """As the event loop does when a frame has arrived."""
    wire.data_received(frame)


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
        path.write_text(json.dumps({"listeners": [listener], "admin": {"listen": "127.0.0.1:0"}, **settings}))
        self.forebay = app.Forebay(load(path, {}).config)
        self.sent: list[bytes] = []
        self.answered: list[bytes] = []
        self.offset = 0
        self.frame = build_produce(TOPIC, build_batch(1000))
        self.link = self.open_link(self.sent, self.answered)
        self._believe()

    def open_link(self, sent: list[bytes], answered: list[bytes]) -> ClientConnection:
        """A client's connection: what the broker gets of it, and what the client."""
        listener = self.forebay.listeners[0]
        listener.dial = PlayedDial(transport=PlayedTransport(sent.append))
        link = ClientConnection(listener, 1)
        link.wire.connection_made(PlayedTransport(answered.append))
        return link

    def _believe(self) -> None:
        """The topic is known, its epoch proven by an answer that showed an empty log, its codec seen both ways."""
        broker = self.forebay.broker
        broker.topics.learn(TOPIC, TOPIC_ID, {0: Leader(1, 0)})
        topic = broker.topics.find(TOPIC)
        assert topic is not None
        topic.fidelity.log_append_time = False
        topic.fidelity.equal_codecs.add(0)
        partition = broker.partitions.follow(topic, 0)
        assert partition is not None
        far = broker.now() + 3600.0
        partition.leader_state.learn(0, 0, 0, 0, far)
        partition.tail = 0
        partition.transactions.shown(0, 0, 0, broker.now())

    async def connect(self) -> None:
        """The first request opens the link to the broker."""
        await self.open_upstream(self.link)
        self.sent.clear()
        self.answered.clear()

    async def open_upstream(self, link: ClientConnection) -> None:
        """The same, of any link."""
        feed(link.wire, self.frame)
        for _ in range(5):
            await asyncio.sleep(0)
        self.acknowledge(link)

    def acknowledge(self, link: ClientConnection) -> None:
        """The broker answers the oldest request of a link."""
        feed(link.upstream.wire, build_acknowledgement(self.offset))
        self.offset += 1

    def produce(self) -> None:
        """One request."""
        feed(self.link.wire, self.frame)
        assert len(self.sent) == 1
        self.sent.clear()
        self.acknowledge(self.link)
        assert len(self.answered) == 1
        self.answered.clear()


async def time_crowd(played: Played, times: int) -> float:
    """Microseconds of process time for a request among CROWD x DEEP: who is answered asks again at once."""
    clients: list[tuple[ClientConnection, list[bytes], list[bytes]]] = []
    for _ in range(CROWD):
        sent: list[bytes] = []
        answered: list[bytes] = []
        clients.append((played.open_link(sent, answered), sent, answered))
        await played.open_upstream(clients[-1][0])
        sent.clear()
        answered[:] = [b""] * DEEP
    begun, first = time.process_time_ns(), played.offset
    while played.offset - first < times:
        for link, _, answered in clients:
            asks, answered[:] = len(answered), []
            for _ in range(asks):
                feed(link.wire, played.frame)
        for link, sent, _ in clients:
            while sent:  # what an answer lets go is answered, too
                owed, sent[:] = len(sent), []
                for _ in range(owed):
                    played.acknowledge(link)
    return (time.process_time_ns() - begun) / (played.offset - first) / 1e3


def time_cold(played: Played, times: int) -> float:
    """Median microseconds of a request that comes when the processor has done other things, as in a real process: its
    caches were filled with what is not ours, and it has slept.
    """
    theirs, other = memoryview(bytearray(SPOILED_BYTES)), bytearray(SPOILED_BYTES)
    taken = []
    for _ in range(times):
        other[:] = theirs
        time.sleep(PAUSE_S)
        begun = time.perf_counter_ns()
        played.produce()
        taken.append((time.perf_counter_ns() - begun) / 1e3)
    return statistics.median(taken)


async def measure(name: str, settings: dict[str, Any], times: int, runs: int, profile: bool) -> None:
    """Microseconds a request; with `profile`, where they go."""
    with tempfile.TemporaryDirectory() as scratch:
        played = Played(settings, Path(scratch))
        await played.connect()
        taken = []
        for _ in range(runs):
            begun = time.process_time_ns()
            for _ in range(times):
                played.produce()
            taken.append((time.process_time_ns() - begun) / times / 1e3)
            await asyncio.sleep(0)
        cold_us = time_cold(played, COLD_TIMES)
        crowd_us = min([await time_crowd(played, times) for _ in range(3)])
        print(
            f"{name}: {min(taken):.1f} us a request, {cold_us:.0f} us after a pause, {crowd_us:.1f} us in a crowd"
        )
        if profile:
            profiler = cProfile.Profile()
            profiler.enable()
            for _ in range(times):
                played.produce()
            profiler.disable()
            pstats.Stats(profiler).sort_stats("tottime").print_stats(28)
        stored = played.forebay.broker.counters.produce_batches
        print(f"  {dict(stored)}")


def main() -> None:
    """The three forms."""
    parser = argparse.ArgumentParser(prog="python -m bench.micro.requests")
    parser.add_argument("--times", type=int, default=3000, help="requests a run")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--profile", action="store_true", help="where it goes, by function")
    options = parser.parse_args()
    for name, settings in (("pass", OFF), ("isolation", ISOLATED), ("isolation and admission", ON)):
        asyncio.run(measure(name, settings, options.times, options.runs, options.profile))


if __name__ == "__main__":
    main()
