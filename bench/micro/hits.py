"""What a cached Fetch of 1 MiB costs in Forebay's own code: `python -m bench.micro.hits`.

Owns one client link on a played transport, and a partition that memory holds all of. Must not know the broker: nobody
asks it. Invariants: the hits are consecutive, round and round over the partition, as a consumer's that catches up; each
answer is looked at, outside of what is counted. Function calls (Python's and C's), distinct functions and the bytes of
their code are exact on any machine; microseconds are process time, the smallest of several runs, with one copy of the
answer in place of the kernel's. The benchmark's own handful of calls is in all figures.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import itertools
import os
import pstats
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.ladder.frames import FETCH_VERSION
from protocol import batch, fetch
from protocol.fetch_build import build_request
from proxy.net.client_connection import ClientConnection
from tests.kit.frames import build_batch
from tests.kit.played import TOPIC, TOPIC_ID, Played, PlayedTransport, feed

if TYPE_CHECKING:
    from types import CodeType

HIT_BYTES = 1 << 20
PARTITION_BYTES = 12 << 20
BATCHES = {"large": 65_000, "small": 1_000}
CACHED: dict[str, Any] = {"cache": {"size": "64MiB", "directory": ""}}


class Sink(PlayedTransport):
    """A socket that takes everything at once: a file in memory, which what is written through the transport joins."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("hits")
        super().__init__(partial(os.write, self._fd))

    def get_extra_info(self, name: str) -> Any:
        """In the clear."""
        return {"ssl_object": None, "socket": self, "peername": ("played", 1)}[name]

    def fileno(self) -> int:
        """The socket's."""
        return self._fd

    def take(self) -> bytes:
        """What has been sent since the last time; the file's pages stay."""
        size_bytes = os.lseek(self._fd, 0, os.SEEK_CUR)
        os.lseek(self._fd, 0, os.SEEK_SET)
        return os.pread(self._fd, size_bytes, 0)


class Counted(NamedTuple):
    """What one hit walks through."""

    calls: float
    functions: int
    code_bytes: int


class Hits:
    """The consumer and its partition."""

    def __init__(self, directory: Path, batch_bytes: int, in_session: bool, log: bool) -> None:
        logged = {"accessLog": {"directory": str(directory) if log else None}}
        self._forebay = Played({**CACHED, **logged}, directory).forebay
        self._socket = Sink()
        self.link = ClientConnection(self._forebay.listeners[0], 2)
        transport: Any = self._socket
        self.link.framed.connection_made(transport)
        self.link.handlers.authorization.learn(TOPIC_ID, 0, time.monotonic() + 3600)
        self._session = (0, 0) if in_session else (0, -1)
        self._correlation_id = self._offset = 0
        self._end = self._store(build_batch(batch_bytes))
        self.frame = b""

    def _store(self, records: bytes) -> int:
        """Fill the partition with copies of one batch; returns its HW."""
        broker = self._forebay.broker
        topic = broker.topics.find(TOPIC)
        assert topic is not None
        topic.learn_policy(False)
        partition = broker.partitions.find(topic, 0)
        assert partition is not None
        end, step = 0, batch.scan_batches(records, 0, len(records))[0].last_offset + 1
        for _ in range(PARTITION_BYTES // len(records)):
            one = bytearray(records)
            batch.stamp_base_offset(memoryview(one), 0, end)
            batch.stamp_leader_epoch(memoryview(one), 0, 0)
            broker.cache.insert(partition.slot, one, 0, len(one), end)
            end += step
        partition.leader_state.learn(0, end, end, 0, broker.now() + 3600.0)
        partition.leader_state.frozen = False
        partition.tail = end
        return end

    def prepare(self) -> None:
        """Build the next Fetch, which nobody counts."""
        self._correlation_id += 1
        asked = fetch.FetchPartition(TOPIC_ID, 0, -1, self._offset, -1, -1, HIT_BYTES)
        session_id, session_epoch = self._session
        self.frame = build_request(
            FETCH_VERSION,
            self._correlation_id,
            "hits",
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=HIT_BYTES,
            isolation_level=0,
            session_id=session_id,
            session_epoch=session_epoch,
            partitions=[asked],
        )

    def hit(self) -> None:
        """One Fetch there and back."""
        feed(self.link.framed, self.frame)

    def take(self) -> None:
        """The answer must be there, and full; the next is asked for behind it."""
        answer = self._socket.take()
        response = fetch.scan_response(answer, FETCH_VERSION)
        assert response.error_code == 0 and len(response.partitions) == 1, response
        said = response.partitions[0]
        self._offset = batch.scan_batches(answer, said.start, said.end)[-1].last_offset + 1
        assert said.end - said.start > HIT_BYTES * 0.9 or self._offset == self._end, said
        if self._offset == self._end:
            self._offset = 0
        if self._session != (0, -1):
            self._session = response.session_id, self._session[1] + 1

    def count(self, hits: int) -> Counted:
        """Of so many hits in a row."""
        codes: set[CodeType] = set()
        calls = 0

        def note(frame: Any, event: str, _arg: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")
            if event == "call":
                codes.add(frame.f_code)

        for _ in range(hits):
            self.prepare()
            sys.setprofile(note)
            self.hit()
            sys.setprofile(None)
            self.take()
        return Counted((calls - hits) / hits, len(codes), sum(len(code.co_code) for code in codes))

    def time_us(self, hits: int) -> float:
        """Process time of a hit."""
        taken = 0
        for _ in range(hits):
            self.prepare()
            begun = time.process_time_ns()
            self.hit()
            taken += time.process_time_ns() - begun
            self.take()
        return taken / hits / 1e3

    def show(self, hits: int) -> None:
        """Where it goes, by function."""
        profiler = cProfile.Profile()
        for _ in range(hits):
            self.prepare()
            profiler.enable()
            self.hit()
            profiler.disable()
            self.take()
        pstats.Stats(profiler).sort_stats("ncalls").print_stats(80)


async def measure(options: argparse.Namespace) -> None:
    """One line for each form."""
    for name, in_session, log in itertools.product(BATCHES, (False, True), (False, True)):
        with tempfile.TemporaryDirectory() as scratch:
            hits = Hits(Path(scratch), BATCHES[name], in_session, log)
            hits.time_us(20)
            counted = hits.count(options.times)
            form = f"{name} batches, {'session' if in_session else 'no session'}, log {'on' if log else 'off'}"
            print(
                f"{form:36} {counted.calls:6.1f} calls {counted.functions:4} functions"
                f" {counted.code_bytes:6} bytes of code"
                f" {min(hits.time_us(options.times) for _ in range(options.runs)):7.1f} us"
            )
            if options.profile:
                hits.show(options.times)


def main() -> None:
    """By the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.micro.hits")
    parser.add_argument("--times", type=int, default=100, help="hits a run")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="where it goes, by function")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
