"""What is measured apart, once a run: idle connections, idle partitions, small requests on one core.

Owns these three. Must not know the report. Invariants: each runs on rungs that are already up, and says what
it found in words with units; a rung that is not there is passed over.
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from bench.ladder import arms
from bench.ladder.cpu import read_rss_bytes
from bench.ladder.frames import FETCH_VERSION
from bench.ladder.loads import SMALL_BYTES, Meter
from bench.ladder.raw import Line
from protocol import control, fetch
from tests.kit.broker.topics import create_topic
from tests.kit.frames import build_batch, build_produce
from tests.kit.raw_fetch import RawClient
from tests.kit.session_client import SessionClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.ladder.steps import Bench

IDLE_CONNECTIONS, USED_CONNECTIONS = 5000, 1000
SETTLE_S, IDLE_S = 1.5, 3.0
PARTITIONS = 2000
WATCH_S = 6.0
SATURATING_LINES, SATURATING_CALLS, SATURATING_DEPTH = 8, 2000, 5
Said = list[tuple[str, str]]


def measure_idle(bench: Bench) -> Said:
    """Connections that say nothing, and what some of them cost in addition once they have asked something."""
    said: Said = []
    for name in (arms.HAPROXY, arms.CACHE, arms.AGAINST):
        arm = bench.ladder.arms.get(name)
        if arm is None:
            continue
        before, alone = read_rss_bytes(arm.pid), idle_share(arm, bench)
        with ExitStack() as stack:
            clients = [stack.enter_context(RawClient(arm.address)) for _ in range(IDLE_CONNECTIONS)]
            time.sleep(SETTLE_S)
            silent = read_rss_bytes(arm.pid)
            many = idle_share(arm, bench)
            for client in clients[:USED_CONNECTIONS]:
                client.call(control.build_metadata_request(12, 1, "idle", topics=["ring"]))
            time.sleep(SETTLE_S)
            used = read_rss_bytes(arm.pid)
        cpu = f"{many:.2%} of a core, {alone:.2%} without them"
        each = f"{(silent - before) / IDLE_CONNECTIONS:,.0f} bytes each"
        more = f"{(used - silent) / USED_CONNECTIONS:,.0f} bytes more each"
        said.append((f"{name}: {IDLE_CONNECTIONS} silent connections", f"{each}; {cpu}"))
        said.append((f"{name}: {USED_CONNECTIONS} of them, after one request", more))
        time.sleep(SETTLE_S)
    return said


def idle_share(arm: arms.Arm, bench: Bench) -> float:
    """Of one core, over a while in which nothing is asked."""
    meter = Meter(arm.pid, bench.ladder.broker_pid)
    time.sleep(IDLE_S)
    elapsed_s, cpu_s, _ = meter.stop()
    return cpu_s / elapsed_s


class TailIdle(NamedTuple):
    """Beside one consumer at the tail of idle partitions: shares of a core, the proxy's and the broker's, and how often
    the proxy asks of its own accord.
    """

    own: float
    broker: float
    requests_per_s: float


def tail_idle(bench: Bench, arm: arms.Arm, topic: str, partitions: int) -> TailIdle:
    """One consumer with a fetch session at the tail of the topic's first `partitions`, none of which has news."""
    with RawClient(arm.address) as client:
        consumer = SessionClient(client, FETCH_VERSION)
        if partitions:
            words = client.topic(topic, partitions)
            for index in range(partitions):
                consumer.want[words.id, index] = fetch.FetchPartition(
                    words.id, index, 0, 0, -1, -1, 1 << 20
                )
        for _ in range(8 if partitions else 0):
            consumer.poll(500)
        polls = _count_polls(arm)
        meter = Meter(arm.pid, bench.ladder.broker_pid)
        begun = time.monotonic()
        while time.monotonic() - begun < WATCH_S:
            if partitions:
                consumer.poll(500)
            else:
                time.sleep(0.5)
        elapsed_s, cpu_s, broker_s = meter.stop()
        asked = (_count_polls(arm) - polls) / elapsed_s
    return TailIdle(cpu_s / elapsed_s, broker_s / elapsed_s, asked)


def measure_partitions(bench: Bench) -> Said:
    """One session consumer at the tail of many idle partitions: what the watch asks, and what that costs."""
    said: Said = []
    topic = create_topic(bench.direct, "wide", partitions=PARTITIONS)
    for name in (arms.DIRECT, arms.CACHE, arms.AGAINST):
        arm = bench.ladder.arms.get(name)
        if arm is None:
            continue
        one = tail_idle(bench, arm, topic, PARTITIONS)
        each_us = one.broker / PARTITIONS * 1e6
        found = f"broker {one.broker:.2%} of a core, {each_us:.2f} us per partition and second"
        own = (
            f"; proxy {one.own:.2%}; {one.requests_per_s:.1f} requests/s of its own"
            if arm.pid
            else ""
        )
        said.append(
            (
                f"{name}: {PARTITIONS} idle partitions at the tail of one session consumer",
                found + own,
            )
        )
    return said


def _count_polls(arm: arms.Arm) -> float:
    if arm.sidecar is None:
        return 0.0
    return sum(
        value
        for key, value in arm.sidecar.metrics().items()
        if key[0] == "forebay_watch_polls_total"
    )


def _saturate(line: Line, frame: bytes) -> int:
    return line.pipeline(frame, SATURATING_CALLS, SATURATING_DEPTH)


def measure_saturated(bench: Bench) -> Said:
    """1 KB produces from several connections, five deep each: requests a second, and a second of proxy CPU."""
    said: Said = []
    frame_of = {
        name: build_produce(f"p-{name}", build_batch(SMALL_BYTES, SMALL_BYTES))
        for name in bench.ladder.arms
    }
    for name in (arms.HAPROXY, arms.KROXYLICIOUS, arms.PASS, arms.CACHE, arms.AGAINST):
        arm = bench.ladder.arms.get(name)
        if arm is None:
            continue
        rates, per_core = [], []
        for _ in range(3):
            with ExitStack() as stack:
                lines = [stack.enter_context(Line(arm.address)) for _ in range(SATURATING_LINES)]
                pool = stack.enter_context(ThreadPoolExecutor(SATURATING_LINES))
                meter = Meter(arm.pid, bench.ladder.broker_pid)
                list(pool.map(_saturate, lines, [frame_of[name]] * SATURATING_LINES))
                elapsed_s, cpu_s, _ = meter.stop()
            total = SATURATING_LINES * SATURATING_CALLS
            rates.append(total / elapsed_s)
            per_core.append(total / cpu_s)
        said.append(
            (
                f"{name}: 1 KB produce, {SATURATING_LINES} connections {SATURATING_DEPTH} deep",
                f"{statistics.median(rates):,.0f} requests/s with broker and client on the same cores, "
                f"{statistics.median(per_core):,.0f} per second of its CPU",
            )
        )
    return said


EXTRAS: dict[str, Callable[[Bench], Said]] = {
    "idle": measure_idle,
    "partitions": measure_partitions,
    "saturated": measure_saturated,
}


def run_extra(name: str, bench: Bench) -> Said:
    """One of EXTRAS; what went wrong is its result."""
    try:
        return EXTRAS[name](bench)
    except (OSError, TimeoutError) as error:
        return [(name, f"failed: {error}")]
