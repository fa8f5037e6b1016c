"""Loads of the raw client: requests of several partitions, sessions of many, many connections.

Owns what one turn of each asks and checks. Must not know rungs by name. Invariants: frames are built and answers are
checked outside the measured time; where memory may serve, the turn proves that it stored, or that bytes came from it.
"""

from __future__ import annotations

import contextlib
import selectors
import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from bench.ladder.bare import start_bare_send
from bench.ladder.frames import FETCH_VERSION, build_answers, build_fetch
from bench.ladder.loads import (
    Figures,
    Meter,
    Wrong,
    check_produced,
    count_hit_bytes,
    count_stored,
)
from bench.ladder.raw import Line
from protocol import fetch
from tests.kit.broker.ports import lease_port
from tests.kit.broker.settings import HOST
from tests.kit.frames import build_batch, build_produce
from tests.kit.raw_fetch import RawClient, TopicWords
from tests.kit.session_client import SessionClient

if TYPE_CHECKING:
    from bench.ladder.arms import Arm

LEAST_STORED = 0.95
"""Share of the batches that must be stored, or of the bytes that must come from memory, where an arm serves."""
RING = 8
"""Batches of each partition that are read round and round."""
DEPTH = 5
FLOOR_BYTES = 64 << 20
"""Of the floor's mapping: more than any ring of answers."""
SETTLE_S = 20.0


def wide_produce(
    arm: Arm, broker_pid: int, topic: str, partitions: int, size_bytes: int, calls: int
) -> Figures:
    """`calls` Produces of one batch of `size_bytes` for each partition, acks=all, five deep."""
    frame = build_produce(topic, build_batch(size_bytes), partitions=partitions)
    with Line(arm.address, arm.trust) as line:
        _wait_until_stored(arm, line, frame, partitions)
        stored = count_stored(arm)
        meter = Meter(arm.pid, broker_pid)
        line.pipeline(frame, calls, DEPTH)
        spent = meter.stop()
        check_produced(line, line.call(frame))
    if arm.serves and count_stored(arm) - stored < LEAST_STORED * calls * partitions:
        raise Wrong(f"{arm.name} stored {count_stored(arm) - stored} of {calls * partitions}")
    return {
        "cpu_us_per_request": spent.cpu_s / calls * 1e6,
        "broker_us_per_request": spent.broker_s / calls * 1e6,
        "requests_per_s": calls / spent.elapsed_s,
    }


def wide_fetch(
    arm: Arm, broker_pid: int, direct: str, topic: str, partitions: int, size_bytes: int, calls: int
) -> Figures:
    """`calls` Fetches of a batch of `size_bytes` of each partition, one in flight, round a ring of RING batches."""
    records = max(size_bytes // 1000, 1)
    with RawClient(direct) as asking:
        words = asking.topic(topic, partitions)
    filling = build_produce(topic, build_batch(size_bytes), partitions=partitions)
    with Line(arm.address, arm.trust) as line:
        _wait_until_stored(arm, line, filling, partitions)
        starts = check_produced(line, line.call(filling))
        for _ in range(RING - 1):
            check_produced(line, line.call(filling))
        most = size_bytes + 2000
        frames = [
            build_fetch(words, [start + step * records for start in starts], most)
            for step in range(RING)
        ]
        least = partitions * size_bytes
        _settle(arm, line, frames, least)
        before = count_hit_bytes(arm)
        meter = Meter(arm.pid, broker_pid)
        read = sum(line.call(frames[number % RING]) for number in range(calls))
        spent = meter.stop()
        answer = fetch.scan_response(bytes(line.buffer[: line.call(frames[0])]), FETCH_VERSION)
    if read < LEAST_STORED * calls * least or any(one.error_code for one in answer.partitions):
        raise Wrong(f"{arm.name} answered {read} bytes of {calls * least}")
    if arm.serves and count_hit_bytes(arm) - before < LEAST_STORED * read:
        raise Wrong(
            f"{arm.name} served {count_hit_bytes(arm) - before} bytes of {read} from memory"
        )
    return {
        "cpu_us_per_request": spent.cpu_s / calls * 1e6,
        "broker_us_per_request": spent.broker_s / calls * 1e6,
        "mb_per_s": read / 1e6 / spent.elapsed_s,
    }


def bare_fetch(broker_pid: int, partitions: int, size_bytes: int, calls: int) -> Figures:
    """`wide_fetch` answered by a C program that does nothing else. Wrong where there is no C compiler."""
    answers = list(build_answers(build_batch(size_bytes), partitions, RING))
    request = build_fetch(TopicWords("floor", bytes(16), {}), [0] * partitions, size_bytes)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-floor-")))
        lease = stack.enter_context(lease_port())
        try:
            child = start_bare_send(directory, lease.port, FLOOR_BYTES, answers)
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            raise Wrong(f"bare_send.c needs a C compiler: {error}") from error
        stack.callback(child.wait, SETTLE_S)
        stack.callback(child.kill)
        line = stack.enter_context(_connect(f"{HOST}:{lease.port}"))
        for _ in range(RING):
            line.call(request)
        meter = Meter(child.pid, broker_pid)
        read = sum(line.call(request) for _ in range(calls))
        spent = meter.stop()
    return {
        "cpu_us_per_request": spent.cpu_s / calls * 1e6,
        "mb_per_s": read / 1e6 / spent.elapsed_s,
    }


def _connect(address: str) -> Line:
    """A connection, once something listens there. Wrong."""
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(ConnectionRefusedError):
            return Line(address)
        time.sleep(0.02)
    raise Wrong("bare_send does not listen")


def _wait_until_stored(arm: Arm, line: Line, frame: bytes, batches: int) -> None:
    """Send the Produce `frame` until all of its batches are stored, where an arm stores: partitions become known."""
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        before = count_stored(arm)
        check_produced(line, line.call(frame))
        if not arm.serves or count_stored(arm) - before >= batches:
            return
    raise Wrong(f"{arm.name} does not store what is produced")


def _settle(arm: Arm, line: Line, frames: list[bytes], least: int) -> None:
    """Round the ring until memory serves it, where it may."""
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        before = count_hit_bytes(arm)
        for frame in frames:
            line.call(frame)
        if not arm.serves or count_hit_bytes(arm) - before >= LEAST_STORED * least * len(frames):
            return
    assert arm.sidecar is not None
    raise Wrong(f"{arm.name} does not serve from memory: {arm.sidecar.fetch_counts()}")


def session_news(
    arm: Arm, broker_pid: int, direct: str, topic: str, partitions: int, news: int, rounds: int
) -> Figures:
    """A fetch session at the tail of `partitions` partitions; a Produce of `news` of them, then polls until all of its
    batches have come; `rounds` times.
    """
    frame = build_produce(topic, build_batch(1000), partitions=news)
    with (
        RawClient(direct) as asking,
        RawClient(arm.address) as client,
        Line(arm.address, arm.trust) as line,
    ):
        words = asking.topic(topic, partitions)
        line.call(build_produce(topic, build_batch(1000), partitions=partitions))
        consumer = SessionClient(client, FETCH_VERSION)
        ends = _read_ends(client, words.id, partitions)
        for index in range(partitions):
            asked = fetch.FetchPartition(words.id, index, -1, ends[index], -1, -1, 1 << 20)
            consumer.want[words.id, index] = asked
        for _ in range(DEPTH):
            check_produced(line, line.call(frame))
            _poll_news(consumer, words.id, news)
        meter = Meter(arm.pid, broker_pid)
        for _ in range(rounds):
            line.call(frame)
            _poll_news(consumer, words.id, news)
        spent = meter.stop()
    return {
        "cpu_us_per_round": spent.cpu_s / rounds * 1e6,
        "broker_us_per_round": spent.broker_s / rounds * 1e6,
    }


def _read_ends(client: RawClient, topic_id: bytes, partitions: int) -> list[int]:
    """The end offset of each partition, as an empty answer at 0 with no bytes says it."""
    asked = [fetch.FetchPartition(topic_id, index, -1, 0, -1, -1, 1) for index in range(partitions)]
    answer = client.call(client.build_fetch(FETCH_VERSION, asked, max_wait_ms=0))
    said = fetch.scan_response(answer, FETCH_VERSION).partitions
    return [one.high_watermark for one in sorted(said, key=lambda one: one.partition)]


def _poll_news(consumer: SessionClient, topic_id: bytes, news: int) -> None:
    """Poll until each of the first `news` partitions has moved by one record."""
    lacking = set(range(news))
    deadline = time.monotonic() + SETTLE_S
    while lacking:
        if time.monotonic() > deadline:
            raise Wrong(f"{len(lacking)} partitions have no news")
        response, _ = consumer.poll(500)
        for one in response.partitions:
            if one.error_code:
                raise Wrong(f"a Fetch failed: {one}")
            if one.end > one.start >= 0:
                key = topic_id, one.partition
                asked = consumer.want[key]
                consumer.want[key] = asked._replace(fetch_offset=asked.fetch_offset + 1)
                lacking.discard(one.partition)


def crowd(arm: Arm, broker_pid: int, topic: str, connections: int, seconds: float) -> Figures:
    """1 KB Produces to one partition from `connections` connections, one in flight each, for `seconds`."""
    frame = build_produce(topic, build_batch(1000))
    late_ns: list[int] = []
    with ExitStack() as stack:
        lines = [stack.enter_context(Line(arm.address, arm.trust)) for _ in range(connections)]
        for line in lines:
            check_produced(line, line.call(frame))
        ready = stack.enter_context(selectors.DefaultSelector())
        for line in lines:
            ready.register(line.socket, selectors.EVENT_READ, line)
        meter = Meter(arm.pid, broker_pid)
        sent_at = dict.fromkeys(lines, time.monotonic_ns())
        until_ns = time.monotonic_ns() + int(seconds * 1e9)
        for line in lines:
            line.socket.sendall(frame)
        while sent_at:
            for key, _ in ready.select(SETTLE_S):
                line = key.data
                size = line.receive()
                now = time.monotonic_ns()
                late_ns.append(now - sent_at[line])
                if now < until_ns:
                    sent_at[line] = now
                    line.socket.sendall(frame)
                else:
                    del sent_at[line]
        spent = meter.stop()
        check_produced(line, size)
    return {
        "cpu_us_per_request": spent.cpu_s / len(late_ns) * 1e6,
        "broker_us_per_request": spent.broker_s / len(late_ns) * 1e6,
        "requests_per_s": len(late_ns) / spent.elapsed_s,
        "p50_us": statistics.median(late_ns) / 1e3,
        "p99_us": statistics.quantiles(late_ns, n=100)[98] / 1e3,
    }
