"""What a cached Fetch of several partitions costs, beside the kernel's share: `python -m bench.micro.wide`.

Owns one client on a loopback socket, a process that reads what it is sent, and partitions that memory holds. Must not
know the broker: nobody asks it. Invariants: one batch of each partition is asked, round a ring of offsets; figures are
CPU time of the process that answers, the smallest of several runs. The floor is one `sendmsg` of as many bytes from as
many places, to the same socket: beyond it is Forebay.
"""

from __future__ import annotations

import argparse
import array
import asyncio
import cProfile
import fcntl
import os
import pstats
import select
import socket
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.ladder.frames import build_fetch
from protocol import batch
from proxy.net.client_connection import ClientConnection
from proxy.partitions.topics import Leader
from tests.kit.frames import build_batch
from tests.kit.played import TOPIC, TOPIC_ID, Played, PlayedTransport, feed
from tests.kit.raw_fetch import TopicWords

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SHAPES = ((1, 64), (8, 64), (32, 16), (200, 1))
"""Partitions of a Fetch, and KB of each."""
RING = 16
CACHED: dict[str, Any] = {"cache": {"size": "64MiB", "directory": ""}}


def read_until_closed(theirs: socket.socket) -> None:
    """The client, in a process of its own: takes what comes and looks at nothing."""
    room = bytearray(1 << 20)
    while theirs.recv_into(room):
        pass
    os._exit(0)


def wait_until_taken(ours: socket.socket) -> None:
    """Return once the peer has all that was sent."""
    left = array.array("i", [1])
    while left[0]:
        fcntl.ioctl(ours, termios.TIOCOUTQ, left)


def send_all(ours: socket.socket, buffers: Sequence[Any]) -> int:
    """Send all; returns how many system calls that took."""
    left, calls = [memoryview(one) for one in buffers], 0
    while left:
        try:
            sent = ours.sendmsg(left[:256])
        except BlockingIOError:
            select.select((), (ours,), ())
            continue
        calls += 1
        while left and sent >= len(left[0]):
            sent -= len(left.pop(0))
        if left:
            left[0] = left[0][sent:]
    return calls


class Loopback(PlayedTransport):
    """A socket on loopback; what is written through the transport waits for room."""

    def __init__(self) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        self.socket = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
        listening.close()
        self.socket.setblocking(False)
        if not os.fork():
            self.socket.close()
            read_until_closed(theirs)
        theirs.close()
        self.rests = 0
        super().__init__(lambda data: self.writelines([data]))

    def get_extra_info(self, name: str) -> Any:
        """In the clear."""
        return {"ssl_object": None, "socket": self.socket, "peername": ("played", 1)}[name]

    def writelines(self, buffers: Sequence[Any]) -> None:
        """What the kernel did not take at once."""
        self.rests += 1
        send_all(self.socket, buffers)


class Wide:
    """The consumer and its partitions."""

    def __init__(
        self,
        directory: Path,
        partitions: int,
        size_bytes: int,
        log: bool,
        settings: dict[str, Any] = CACHED,
    ) -> None:
        logged = {"accessLog": {"directory": str(directory) if log else None}}
        self.forebay = Played({**settings, **logged}, directory).forebay
        self.socket = Loopback()
        self.link = ClientConnection(self.forebay.listeners[0], 2)
        transport: Any = self.socket
        self.link.framed.connection_made(transport)
        self.link.handlers.authorization.learn(TOPIC_ID, 0, time.monotonic() + 3600)
        self.batch = build_batch(size_bytes)
        step = batch.scan_batches(self.batch, 0, len(self.batch))[0].last_offset + 1
        self._store(partitions, step)
        words: Any = TopicWords(TOPIC, TOPIC_ID, {})
        self.frames = [
            build_fetch(words, [number * step] * partitions, size_bytes + 2000)
            for number in range(RING)
        ]
        head, body = bytes(60), self.batch
        self._pieces = [
            [part for _ in range(partitions) for part in (head, bytearray(body))]
            for _ in range(RING)
        ]

    def _store(self, partitions: int, step: int) -> None:
        """Fill each partition with a ring of copies of one batch."""
        broker = self.forebay.broker
        broker.topics.learn(TOPIC, TOPIC_ID, {index: Leader(1, 0) for index in range(partitions)})
        topic = broker.topics.find(TOPIC)
        assert topic is not None
        topic.learn_policy(False)
        for index in range(partitions):
            partition = broker.partitions.follow(topic, index)
            assert partition is not None
            for number in range(RING):
                one = bytearray(self.batch)
                batch.stamp_base_offset(memoryview(one), 0, number * step)
                batch.stamp_leader_epoch(memoryview(one), 0, 0)
                broker.cache.insert(partition.slot, one, 0, len(one), number * step)
            end = RING * step
            partition.leader_state.learn(0, end, end, 0, broker.now() + 3600.0)
            partition.leader_state.frozen = False
            partition.tail = end

    def answer(self, number: int) -> None:
        """One Fetch there and back."""
        feed(self.link.framed, self.frames[number % RING])

    def send(self, number: int) -> None:
        """The floor."""
        send_all(self.socket.socket, self._pieces[number % RING])

    def time_us(self, act: Callable[[int], None], times: int) -> float:
        """CPU time of one; each begins when all that was sent before has been read."""
        taken_ns = 0
        for number in range(times):
            begun_ns = time.process_time_ns()
            act(number)
            taken_ns += time.process_time_ns() - begun_ns
            wait_until_taken(self.socket.socket)
        return taken_ns / times / 1e3

    def count(self, times: int) -> float:
        """Calls of Python's and C's functions by one."""
        calls = 0

        def note(_frame: Any, event: str, _arg: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        for number in range(times):
            sys.setprofile(note)
            self.answer(number)
            sys.setprofile(None)
        return (calls - times) / times

    def show(self, times: int) -> None:
        """Where it goes, by function."""
        profiler = cProfile.Profile()
        for number in range(times):
            profiler.enable()
            self.answer(number)
            profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


async def measure(options: argparse.Namespace) -> None:
    """One line for each shape."""
    for partitions, size_kb in SHAPES:
        with tempfile.TemporaryDirectory() as scratch:
            wide = Wide(Path(scratch), partitions, size_kb * 1000, not options.no_log)
            wide.time_us(wide.answer, 20)
            calls = wide.count(RING)
            wide.socket.rests = 0
            answer_us, floor_us = float("inf"), float("inf")
            for _ in range(options.runs):
                answer_us = min(answer_us, wide.time_us(wide.answer, options.times))
                floor_us = min(floor_us, wide.time_us(wide.send, options.times))
            print(
                f"{partitions:4} x {size_kb:2} KB {calls:7.1f} calls {answer_us:7.1f} us, floor"
                f" {floor_us:6.1f} us, ours {(answer_us - floor_us) / partitions:5.2f} us a partition,"
                f" {wide.socket.rests / options.runs / options.times:4.2f} not taken whole"
            )
            if options.profile:
                wide.show(options.times)


def main() -> None:
    """By the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.micro.wide")
    parser.add_argument("--times", type=int, default=200, help="Fetches a run")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--no-log", action="store_true", help="without the access log")
    parser.add_argument("--profile", action="store_true", help="where it goes, by function")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
