"""What a Fetch without a session costs of which few partitions have news: `python -m bench.micro.repeated`.

Owns one client on a loopback socket, as in `bench.micro.wide`, at the ends of its partitions. Must not know the broker:
nobody asks it. Invariants: each Fetch begins one partition later than the one before, as librdkafka's do; figures are
medians of the CPU time of the process that answers, from the request to the response, with the storing of the batches
between them. Beside it stands the same client with nothing remembered of its Fetches.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from bench.micro.wide import Wide, wait_until_taken
from protocol import batch
from protocol.fetch import FetchPartition
from protocol.fetch_build import build_request
from proxy.fetch.sessions.repeated import WIDE_PARTITIONS, RepeatedFetches
from tests.kit.played import TOPIC_ID, feed

PARTITIONS = (40, 48, 100, 300, 1000, 4000)
NEWS = (1, 4, 16)
"""Partitions that get a batch between two Fetches."""
BATCH_BYTES = 1000
SETTINGS: dict[str, Any] = {"cache": {"size": "256MiB", "directory": "", "verifyRatio": 0.0}}


class Tail:
    """A client at the ends of all partitions, which remembers its Fetches from `least` partitions on."""

    def __init__(self, directory: Path, partitions: int, least: int) -> None:
        self._wide = wide = Wide(directory, partitions, BATCH_BYTES, log=True, settings=SETTINGS)
        broker = wide.forebay.broker
        usable: Any = SimpleNamespace(usable=True, link=lambda _purpose: None)
        broker.own_connections = usable
        wide.link.handlers.repeated = RepeatedFetches(broker.sessions, least)
        topic = broker.topics.find(TOPIC_ID)
        assert topic is not None
        self._partitions = []
        for index in range(partitions):
            partition = broker.partitions.find(topic, index)
            assert partition is not None
            partition.open_polls = 1
            self._partitions.append(partition)
        self._random = Random(1)
        self._number = 0

    def _build_fetch(self) -> bytes:
        self._number += 1
        first = self._number % len(self._partitions)
        order = self._partitions[first:] + self._partitions[:first]
        return build_request(
            13,
            self._number,
            "bench",
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=50 << 20,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            partitions=[
                FetchPartition(TOPIC_ID, one.index, -1, one.tail, -1, -1, 1 << 20) for one in order
            ],
        )

    def _append(self, index: int) -> None:
        """One batch comes to a partition; its waiters are woken."""
        partition, broker = self._partitions[index], self._wide.forebay.broker
        one, offset = bytearray(self._wide.batch), partition.tail
        batch.stamp_base_offset(memoryview(one), 0, offset)
        batch.stamp_leader_epoch(memoryview(one), 0, 0)
        end = batch.scan_batches(one, 0, len(one))[0].last_offset + 1
        broker.cache.insert(partition.slot, one, 0, len(one), offset)
        partition.leader_state.learn(0, end, end, 0, broker.now() + 3600.0)
        partition.tail = end
        for waiting in list(partition.parked):
            waiting.wake(partition)

    async def time_us(self, news: int, times: int) -> float:
        """CPU time of a Fetch and its response, in us."""
        taken_ns = []
        for _ in range(times):
            frame, indices = self._build_fetch(), self._random.sample(self._places, news)
            begun_ns = time.process_time_ns()
            feed(self._wide.link.framed, frame)
            for index in indices:
                self._append(index)
            for _ in range(3):
                await asyncio.sleep(0)
            taken_ns.append(time.process_time_ns() - begun_ns)
            wait_until_taken(self._wide.socket.socket)
        return statistics.median(taken_ns) / 1e3

    @property
    def _places(self) -> range:
        return range(len(self._partitions))


async def measure(options: argparse.Namespace) -> None:
    """One line for each shape."""
    for partitions in PARTITIONS:
        for news in NEWS:
            figures = []
            for least in (WIDE_PARTITIONS, partitions + 1):
                with tempfile.TemporaryDirectory() as scratch:
                    tail = Tail(Path(scratch), partitions, least)
                    await tail.time_us(news, 10)
                    figures.append(await tail.time_us(news, options.times))
            print(
                f"{partitions:5} partitions, {news:2} with news: {figures[0]:8.0f} us,"
                f" nothing remembered {figures[1]:8.0f} us",
                flush=True,
            )


def main() -> None:
    """By the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.micro.repeated")
    parser.add_argument("--times", type=int, default=100, help="Fetches of each shape")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
