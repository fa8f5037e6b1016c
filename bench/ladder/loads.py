"""What is asked of a rung in one turn: each function is one load and returns its figures.

Owns the loads of the raw client. Must not know rungs by name. Invariants: connections and frames are made, and
answers checked, outside the measured time; CPU is the proxy's and the broker's over exactly that time; figures
of one turn are a flat mapping of numbers, units last.
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from bench.ladder.cpu import read_cpu_ns, spent_ns
from bench.ladder.frames import FETCH_VERSION, build_fetch
from bench.ladder.raw import Line
from protocol import fetch
from tests.kit import produce_messages
from tests.kit.frames import PRODUCE_VERSION, build_batch, build_produce
from tests.kit.raw_fetch import RawClient

if TYPE_CHECKING:
    from bench.ladder.arms import Arm

Figures = dict[str, float]
GB = 1e9
SMALL_BYTES, LARGE_BYTES = 1000, 900_000
RING_BATCHES, RING_BATCH_BYTES = 768, 65_000
FETCH_BYTES = 1 << 20
FETCH_BATCHES = FETCH_BYTES // (RING_BATCH_BYTES + 1000)
WARM_CALLS = 50
SETTLE_S = 10.0
STORED = ("forebay_produce_batches_total", "store")
WATCHED = ("forebay_watch_partitions",)
UNWATCHED_S = 30.0
"""The watch lets go of what nobody has read for ten seconds (proxy.replica_fetcher.fetcher.WANTED_S)."""


class Wrong(RuntimeError):
    """A load did not get what it asked for: the run proves nothing."""


class Scale(NamedTuple):
    """How much of each load: calls of small produce, of large produce, rounds of the ring. `lines`: connections that
    share a load, one after the other, since the scheduler's choice of a processor is often a connection's for life.
    """

    small: int = 1500
    pipelined: int = 3000
    large: int = 40
    passes: int = 20
    lines: int = 5


class Spent(NamedTuple):
    """Seconds: elapsed, of the proxy's CPU, of the broker's."""

    elapsed_s: float = 0.0
    cpu_s: float = 0.0
    broker_s: float = 0.0

    def plus(self, other: Spent) -> Spent:
        """Both together."""
        return Spent(*map(sum, zip(self, other, strict=True)))


class Meter:
    """CPU of a proxy and of the broker, and the clock, from `__init__` to `stop`."""

    def __init__(self, pid: int, broker_pid: int) -> None:
        self._pids = (pid, broker_pid)
        self._before = [read_cpu_ns(pid), read_cpu_ns(broker_pid)]
        self._begun = time.perf_counter_ns()

    def stop(self) -> Spent:
        """What it took."""
        elapsed = time.perf_counter_ns() - self._begun
        now = map(read_cpu_ns, self._pids)
        spent = [spent_ns(was, is_) for was, is_ in zip(self._before, now, strict=True)]
        return Spent(elapsed / 1e9, spent[0] / 1e9, spent[1] / 1e9)


def check_produced(line: Line, size: int) -> list[int]:
    """Base offsets, by partition, of the Produce response in the first `size` bytes of the line's buffer; Wrong where a
    partition was refused.
    """
    answer = produce_messages.scan_response(bytes(line.buffer[:size]), PRODUCE_VERSION)
    if any(one.error_code for one in answer.partitions):
        raise Wrong(f"a Produce was refused: {answer}")
    return [one.base_offset for one in sorted(answer.partitions, key=lambda one: one.partition)]


def count_stored(arm: Arm) -> float:
    """Batches stored from Produce since the start; 0 where the arm is no Forebay."""
    return arm.sidecar.metrics().get(STORED, 0.0) if arm.sidecar is not None else 0.0


def count_hit_bytes(arm: Arm) -> float:
    """Bytes served from memory since the start; 0 where the arm is no Forebay."""
    if arm.sidecar is None:
        return 0.0
    return sum(size for key, size in arm.sidecar.fetch_counts().items() if key[0] == "hit")


def small_produce(arm: Arm, broker_pid: int, topic: str, scale: Scale) -> Figures:
    """1 KB, acks=all, one in flight, then five deep."""
    frame = build_produce(topic, build_batch(SMALL_BYTES, SMALL_BYTES))
    calls, deep_calls = scale.small // scale.lines, scale.pipelined // scale.lines
    taken: list[int] = []
    deep_ns, spent, deep_spent = 0, Spent(), Spent()
    for _ in range(scale.lines):
        with Line(arm.address, arm.trust) as line:
            line.time_calls(frame, WARM_CALLS)
            meter = Meter(arm.pid, broker_pid)
            taken += line.time_calls(frame, calls)
            spent = spent.plus(meter.stop())
            check_produced(line, line.call(frame))
            meter = Meter(arm.pid, broker_pid)
            deep_ns += line.pipeline(frame, deep_calls, 5)
            deep_spent = deep_spent.plus(meter.stop())
    pipelined = deep_calls * scale.lines
    return {
        "p50_us": statistics.median(taken) / 1e3,
        "p99_us": statistics.quantiles(taken, n=100)[98] / 1e3,
        "cpu_us_per_request": spent.cpu_s / len(taken) * 1e6,
        "broker_us_per_request": spent.broker_s / len(taken) * 1e6,
        "deep_requests_per_s": pipelined / deep_ns * 1e9,
        "deep_cpu_us_per_request": deep_spent.cpu_s / pipelined * 1e6,
    }


def large_produce(arm: Arm, broker_pid: int, topic: str, scale: Scale) -> Figures:
    """900 KB, acks=all, one in flight."""
    frame = build_produce(topic, build_batch(LARGE_BYTES))
    with Line(arm.address, arm.trust) as line:
        line.time_calls(frame, 2)
        meter = Meter(arm.pid, broker_pid)
        line.time_calls(frame, scale.large)
        elapsed_s, cpu_s, broker_s = meter.stop()
        check_produced(line, line.call(frame))
    sent_gb = scale.large * len(frame) / GB
    return {
        "mb_per_s": sent_gb * 1e3 / elapsed_s,
        "cpu_s_per_gb": cpu_s / sent_gb,
        "broker_s_per_gb": broker_s / sent_gb,
    }


def prove_codec(arm: Arm, direct: str, topic: str) -> None:
    """Tail a topic until Forebay stores what is produced to it: a batch of each size must have been seen both ways."""
    if arm.sidecar is None or not arm.serves:
        return
    frame = build_produce(topic, build_batch(SMALL_BYTES, SMALL_BYTES))
    with RawClient(direct) as asking:
        words = asking.topic(topic)
    deadline = time.monotonic() + SETTLE_S
    with Line(arm.address, arm.trust) as line:
        while time.monotonic() < deadline:
            stored = count_stored(arm)
            (offset,) = check_produced(line, line.call(frame))
            line.call(build_fetch(words, [offset + 1], FETCH_BYTES, max_wait_ms=20))
            if count_stored(arm) > stored:
                return
    raise Wrong(f"{arm.name} does not store what is produced")


def wait_unwatched(arm: Arm) -> None:
    """Until Forebay no longer watches what was tailed before: else each Produce is answered twice, by a poll too."""
    if arm.sidecar is None or not arm.serves:
        return
    deadline = time.monotonic() + UNWATCHED_S
    while arm.sidecar.metrics()[WATCHED]:
        if time.monotonic() > deadline:
            raise Wrong(f"{arm.name} still watches what nobody reads")
        time.sleep(0.2)


def fill_ring(address: str, topic: str, trust: str | None = None) -> int:
    """Produce what `read_ring` reads; the first offset."""
    batch = build_batch(RING_BATCH_BYTES)
    frame = build_produce(topic, batch)
    with Line(address, trust) as line:
        (first,) = check_produced(line, line.call(frame))
        for _ in range(RING_BATCHES - 1):
            size = line.call(frame)
        check_produced(line, size)
    return first


def ring_starts(first: int) -> range:
    """The offsets that are fetched from, of a ring that begins at `first`."""
    records = RING_BATCH_BYTES // 1000
    return range(
        first, first + RING_BATCHES * records - FETCH_BATCHES * records + 1, FETCH_BATCHES * records
    )


def build_ring_frames(address: str, topic: str, first: int) -> list[bytes]:
    """A Fetch of FETCH_BYTES from each of `ring_starts`."""
    with RawClient(address) as asking:
        words = asking.topic(topic)
    return [build_fetch(words, [start], FETCH_BYTES) for start in ring_starts(first)]


def _read(line: Line, frames: list[bytes], passes: int, may_be_short: bool = False) -> int:
    """Bytes read; Wrong where an answer is short: memory ends an answer at a gap, as it may."""
    total = smallest = line.call(frames[0])
    for frame in [*frames[1:], *frames * (passes - 1)]:
        size = line.call(frame)
        total += size
        smallest = min(smallest, size)
    if smallest < FETCH_BATCHES * RING_BATCH_BYTES and not may_be_short:
        raise Wrong(f"a Fetch of {FETCH_BYTES} bytes was answered with {smallest}")
    answer = fetch.scan_response(bytes(line.buffer[:size]), FETCH_VERSION)
    if answer.error_code or any(one.error_code for one in answer.partitions):
        raise Wrong(f"a Fetch failed: {answer}")
    return total


def read_ring(
    arm: Arm, broker_pid: int, direct: str, place: tuple[str, int], scale: Scale, groups: int = 1
) -> Figures:
    """1 MB fetches round a ring of 50 MB, by `groups` connections side by side, one in flight each."""
    frames = build_ring_frames(direct, *place)
    passes = max(scale.passes // scale.lines // groups, 1)
    read = hits = 0.0
    spent = Spent()
    for _ in range(scale.lines):
        with ExitStack() as stack:
            lines = [stack.enter_context(Line(arm.address, arm.trust)) for _ in range(groups)]
            pool = stack.enter_context(ThreadPoolExecutor(groups))
            list(pool.map(lambda line: _settle(arm, line, frames), lines))
            before = count_hit_bytes(arm)
            meter = Meter(arm.pid, broker_pid)
            read += sum(pool.map(lambda line: _read(line, frames, passes), lines))
            spent = spent.plus(meter.stop())
            hits += count_hit_bytes(arm) - before
    figures = {
        "mb_per_s": read / 1e6 / spent.elapsed_s,
        "cpu_s_per_gb": spent.cpu_s / (read / GB),
        "broker_s_per_gb": spent.broker_s / (read / GB),
    }
    return figures | {"hit_share": hits / read} if arm.serves else figures


def _settle(arm: Arm, line: Line, frames: list[bytes]) -> None:
    """Once round the ring; where memory serves, until it does."""
    _read(line, frames, 1, may_be_short=True)
    if arm.sidecar is None or not arm.serves:
        return
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        before = count_hit_bytes(arm)
        _read(line, frames, 1, may_be_short=True)
        served = count_hit_bytes(arm) - before
        if served >= 0.99 * len(frames) * FETCH_BATCHES * RING_BATCH_BYTES:
            return
    raise Wrong(f"{arm.name} does not serve from memory: {arm.sidecar.fetch_counts()}")
