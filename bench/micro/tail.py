"""What one record costs on its way to consumers at the tail, in Forebay's own code: `python -m bench.micro.tail`.

Owns a producer, some groups that long-poll, and the watch's link, all on played transports inside one process.
Must not know the broker: the played one acknowledges, and answers the poll with the record. Invariants: process
time only, the smallest of several runs, or instructions and calls, which no other work on the machine changes;
the four parts of a record's way are told apart: the Produce there and back, the poll's answer, and what the
groups ask next.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.ladder.frames import FETCH_VERSION
from protocol import batch, fetch, header
from protocol.fetch_build import FetchAnswer, build_request, build_response
from proxy.net.broker_connection import BrokerConnection
from proxy.net.client_connection import ClientConnection
from tests.kit import produce_messages
from tests.kit.played import ON, TOPIC, TOPIC_ID, Played, PlayedDial, PlayedTransport, feed

if TYPE_CHECKING:
    from collections.abc import Callable

PARTS = ("produce", "acknowledgement", "news", "next fetches")
MAX_BYTES = 1 << 20
POLL_TRIES, POLL_STEP_S = 10_000, 0.0005
"""How often the poll that follows news is looked for, and the pause between, in seconds."""


class PlayedOwnLinks:
    """The watch's links: each to the played broker, open from the start."""

    usable = reachable = True

    def __init__(self, forebay: Any) -> None:
        self._forebay = forebay
        self._links: dict[str, BrokerConnection] = {}
        self.sent: dict[str, list[bytes]] = {}

    def link(self, name: str) -> BrokerConnection:
        """That link."""
        if name not in self._links:
            sent = self.sent.setdefault(name, [])
            broker = self._forebay.broker
            dial: Any = PlayedDial(transport=PlayedTransport(sent.append))
            self._links[name] = BrokerConnection(
                dial, broker.responses, broker.counters, lambda _why: None
            )
        return self._links[name]


class Group:
    """One consumer: session-less, as the ladder's, or with a fetch session, as a real one."""

    def __init__(self, played: Played, number: int, in_session: bool) -> None:
        self.answered: list[bytes] = []
        self.link = ClientConnection(played.forebay.listeners[0], number)
        transport: Any = PlayedTransport(self.answered.append)
        self.link.framed.connection_made(transport)
        self.link.handlers.authorization.learn(TOPIC_ID, 0, time.monotonic() + 3600)
        self._session = (0, 0) if in_session else (0, -1)
        self._correlation_id = 0
        self.frame = b""

    def prepare(self, offset: int) -> None:
        """Build the next Fetch, which no clock sees."""
        self._correlation_id += 1
        asked = fetch.FetchPartition(TOPIC_ID, 0, 0, offset, -1, -1, MAX_BYTES)
        session_id, session_epoch = self._session
        self.frame = build_request(
            FETCH_VERSION,
            self._correlation_id,
            f"group-{self.link.number}",
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=MAX_BYTES,
            isolation_level=0,
            session_id=session_id,
            session_epoch=session_epoch,
            partitions=[asked],
        )

    def take(self) -> None:
        """One answer with one record must be there."""
        answer = b"".join(self.answered)
        self.answered.clear()
        response = fetch.scan_response(answer, FETCH_VERSION)
        assert response.error_code == 0 and len(response.partitions) == 1, response
        assert response.partitions[0].end > response.partitions[0].start, response
        if self._session != (0, -1):
            epoch = self._session[1] + 1
            self._session = response.session_id, epoch


class Tail:
    """The whole of it."""

    def __init__(self, directory: Path, groups: int, in_session: bool, log: bool) -> None:
        settings: dict[str, Any] = {
            **ON,
            "accessLog": {"directory": str(directory) if log else None},
        }
        self.played = Played(settings, directory)
        self.broker = self.played.forebay.broker
        self.own = PlayedOwnLinks(self.played.forebay)
        links: Any = self.own
        self.broker.own_connections = self.played.forebay.own_connections = links
        self.groups = [Group(self.played, 2 + i, in_session) for i in range(groups)]
        request = produce_messages.scan_request(
            self.played.frame, 9, header.peek_request(self.played.frame).body_start
        )
        part = request.partitions[0]
        self.batch = bytearray(self.played.frame[part.start : part.end])

    async def start(self) -> None:
        """Until all stand at the tail."""
        topic = self.broker.topics.find(TOPIC)
        assert topic is not None
        topic.learn_policy(False)
        partition = self.broker.partitions.find(topic, 0)
        assert partition is not None
        partition.leader_state.suggest(0, True)
        await self.played.connect()
        self.end = self.played.offset
        self.ask_next()
        for _ in range(10):
            await asyncio.sleep(0)
            proofs = self.own.sent.get("proof")
            if proofs:
                proofs.clear()
                feed(self.own.link("proof").framed, self.build_news(b"", self.end))
            if self.own.sent.get("watch"):
                break
        assert self.own.sent["watch"], "the watch does not poll"

    def ask_next(self) -> None:
        """Every group asks at the end."""
        for group in self.groups:
            group.prepare(self.end)
        for group in self.groups:
            feed(group.link.framed, group.frame)

    def build_news(self, records: bytes, end: int) -> bytes:
        """The answer to a poll."""
        said = FetchAnswer(
            TOPIC_ID, 0, 0, end, end, 0, None, (records,) if records else (), len(records)
        )
        return b"".join(
            build_response(13, 0, throttle_time_ms=0, error_code=0, session_id=7, partitions=[said])
        )

    def parts(self) -> list[Callable[[], None]]:
        """The four parts of the way of one record."""
        played = self.played

        def news() -> None:
            feed(self.own.link("watch").framed, self.frame)

        def following() -> None:
            for group in self.groups:
                feed(group.link.framed, group.frame)

        def acknowledge() -> None:
            played.sent.clear()
            played.acknowledge(played.link)

        return [lambda: feed(played.link.framed, played.frame), acknowledge, news, following]

    def prepare(self) -> None:
        """What the broker and the groups will say."""
        view = memoryview(self.batch)
        batch.stamp_base_offset(view, 0, self.end)
        batch.stamp_leader_epoch(view, 0, 0)
        self.end += 1
        self.frame = self.build_news(bytes(self.batch), self.end)
        self.own.sent["watch"].clear()

    async def record(self, run: Callable[[int, Callable[[], None]], None]) -> None:
        """One record all the way."""
        self.prepare()
        parts = self.parts()
        for number in (0, 1, 2):
            run(number, parts[number])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.played.answered.clear()
        for group in self.groups:
            group.take()
            group.prepare(self.end)
        run(3, parts[3])
        for _ in range(POLL_TRIES):
            if self.own.sent["watch"]:
                break
            await asyncio.sleep(POLL_STEP_S)  # the poll rests after news
        assert len(self.own.sent["watch"]) == 1, self.own.sent


async def measure(options: argparse.Namespace) -> None:
    """Prints what was asked for."""
    with tempfile.TemporaryDirectory() as scratch:
        tail = Tail(Path(scratch), options.groups, options.sessions, options.log)
        await tail.start()
        taken = [0.0] * 4

        def timed(number: int, part: Callable[[], None]) -> None:
            begun = time.process_time_ns()
            part()
            taken[number] += (time.process_time_ns() - begun) / 1e3

        for _ in range(100):
            await tail.record(timed)
        best = [float("inf")] * 4
        for _ in range(options.runs):
            taken[:] = [0.0] * 4
            for _ in range(options.times):
                await tail.record(timed)
            best = [min(b, t / options.times) for b, t in zip(best, taken, strict=True)]
        calls = await count_calls(tail)
        for name, us, count in zip(PARTS, best, calls, strict=True):
            print(f"{name:16} {us:7.1f} us {count:6} calls")
        print(f"{'together':16} {sum(best):7.1f} us {sum(calls):6} calls")
        if options.profile:
            await show(tail, options.times)
        tail.played.forebay.broker.cache.check()


async def count_calls(tail: Tail) -> list[int]:
    """Python and C calls of each part of one record."""
    counts = [0] * 4

    def counted(number: int, part: Callable[[], None]) -> None:
        def note(_frame: object, event: str, _arg: object) -> None:
            counts[number] += event in ("call", "c_call")

        sys.setprofile(note)
        part()
        sys.setprofile(None)

    for _ in range(100):
        await tail.record(counted)
    return [count // 100 for count in counts]


async def show(tail: Tail, times: int) -> None:
    """Where it goes, by function, for each part."""
    profilers = [cProfile.Profile() for _ in PARTS]

    def profiled(number: int, part: Callable[[], None]) -> None:
        profilers[number].enable()
        part()
        profilers[number].disable()

    for _ in range(times):
        await tail.record(profiled)
    for name, profiler in zip(PARTS, profilers, strict=True):
        print(f"--- {name}")
        pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


def main() -> None:
    """By the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.micro.tail")
    parser.add_argument("--times", type=int, default=500, help="records a run")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--sessions", action="store_true", help="the groups keep fetch sessions")
    parser.add_argument("--log", action="store_true", help="with the access log")
    parser.add_argument("--profile", action="store_true", help="where it goes, by function")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
