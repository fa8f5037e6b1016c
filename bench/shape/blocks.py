"""Blocks of loads: which loads share a topic, on which rungs each runs, and how a round of them goes.

Owns the table, the topics and the order. Must not know how a figure is measured. Invariants: a block's topic is new in
each round, and nothing of an earlier topic is left to do when a turn begins; a block's rungs follow each other, in an
order drawn anew, and so do the loads of one rung; what failed is said, and the others go on.
"""

from __future__ import annotations

import contextlib
import random
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import KafkaException, Producer

from bench.ladder import arms, cells, loads
from bench.shape import bars, requests, tails
from bench.shape.clients import LibrdkafkaClients
from bench.shape.java_clients import JavaClients
from tests.kit.broker.topics import create_topic, delete_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from bench.ladder.arms import Arm, Ladder
    from bench.ladder.cells import Row
    from bench.ladder.loads import Figures

    Turn = Callable[[float], Figures]
    Opening = Callable[["Place"], AbstractContextManager[Mapping[str, Turn]]]

PROXIES = (arms.TUNED, arms.PASS, arms.CACHE, arms.WORKERS, arms.AGAINST)
ARMS = (arms.DIRECT, *PROXIES)
FLOORS = (arms.STORE, arms.RELAY)
"""Of Produces; that of cached Fetches needs no broker (arms.BARE)."""
PRODUCE_CALLS, FETCH_CALLS, SESSION_ROUNDS = 1600, 800, 200
CROWD_S, TAIL_S, WARM_UP_SCALE = 3.0, 6.0, 0.3
DELETED_S, POLL_S, WRITTEN_S = 120.0, 0.1, 120.0
INDEXED_BYTES = 5000
"""Beyond `log.index.interval.bytes` (4,096): the next batch gets the segment's first index entry."""
FAILED = (loads.Wrong, OSError, TimeoutError, KafkaException)
CLIENTS: dict[str, Callable[[str, str, int, int, int], tails.Clients]] = {
    bars.LIBRDKAFKA: LibrdkafkaClients,
    bars.JAVA: JavaClients,
}


class Place(NamedTuple):
    """Where a load runs: rung, the broker's process and address, topic."""

    arm: Arm
    broker_pid: int
    direct: str
    topic: str


class Block(NamedTuple):
    """Loads, each with its rungs, that share a topic of `partitions`. `is_read`: whether they read it. `open` yields
    each load's turn on one rung; a turn takes the scale and may be called again.
    """

    loads: Mapping[str, tuple[str, ...]]
    partitions: int
    is_read: bool
    open: Opening

    def list_cells(
        self, chosen: Sequence[str], there: Mapping[str, Arm], draw: random.Random
    ) -> list[tuple[str, list[str]]]:
        """The chosen loads of each rung that is there, in the order of a round."""
        found: dict[str, list[str]] = {}
        for load in (load for load in self.loads if load in chosen):
            for name in (name for name in self.loads[load] if name in there):
                found.setdefault(name, []).append(load)
        return [
            (name, draw.sample(found[name], len(found[name])))
            for name in draw.sample(list(found), len(found))
        ]


def _produce(shape: tuple[int, int], place: Place, scale: float) -> Figures:
    partitions, size_kb = shape
    calls = max(int(PRODUCE_CALLS * scale / size_kb), 50)
    arm, pid, _, topic = place
    return requests.wide_produce(arm, pid, topic, partitions, size_kb * 1000, calls)


def _crowd(connections: int, place: Place, scale: float) -> Figures:
    arm, pid, _, topic = place
    return requests.crowd(arm, pid, topic, connections, CROWD_S * scale)


def _fetch(shape: tuple[int, int], place: Place, scale: float) -> Figures:
    partitions, size_kb = shape
    calls, size_bytes = max(int(FETCH_CALLS * scale), 50), size_kb * 1000
    arm, pid, direct, topic = place
    if arm.name == arms.BARE:
        return requests.bare_fetch(pid, partitions, size_bytes, calls)
    return requests.wide_fetch(arm, pid, direct, topic, partitions, size_bytes, calls)


def _session(shape: tuple[int, int], place: Place, scale: float) -> Figures:
    partitions, news = shape
    arm, pid, direct, topic = place
    rounds = max(int(SESSION_ROUNDS * scale), 20)
    return requests.session_news(arm, pid, direct, topic, partitions, news, rounds)


@contextlib.contextmanager
def _open_requests(
    asked: Mapping[str, Callable[[Place, float], Figures]], place: Place
) -> Iterator[Mapping[str, Turn]]:
    yield {load: partial(run, place) for load, run in asked.items()}


@contextlib.contextmanager
def _open_tail(
    kind: str, shape: tuple[int, int, int], place: Place
) -> Iterator[Mapping[str, Turn]]:
    """Clients that stand at every tail, quiet and busy forms."""
    partitions, rate, groups = shape
    arm, pid, _, topic = place

    def run(is_busy: bool, scale: float) -> Figures:
        with tails.busy_processors() if is_busy else contextlib.nullcontext():
            return tails.tail_many(arm, pid, clients, groups, rate, TAIL_S * scale)

    with contextlib.closing(
        CLIENTS[kind](arm.address, topic, partitions, groups, tails.RECORD_BYTES)
    ) as clients:
        clients.settle(tails.SETTLE_S)
        yield {
            bars.name_tail(*shape, is_busy=is_busy, clients=kind): partial(run, is_busy)
            for is_busy in (False, True)
        }


def build_blocks() -> list[Block]:
    """All of them."""
    produces: dict[str, Callable[[Place, float], Figures]] = {
        bars.name_produce(*shape): partial(_produce, shape) for shape in bars.PRODUCES
    }
    fetches: dict[str, Callable[[Place, float], Figures]] = {
        bars.name_fetch(*shape): partial(_fetch, shape) for shape in bars.FETCHES
    }
    crowd = bars.name_crowd(bars.CROWD)
    found = [
        Block(
            {**dict.fromkeys(produces, (*PROXIES, *FLOORS)), crowd: (*ARMS, *FLOORS)},
            max(partitions for partitions, _ in bars.PRODUCES),
            False,
            partial(_open_requests, {**produces, crowd: partial(_crowd, bars.CROWD)}),
        ),
        Block(
            dict.fromkeys(fetches, (*PROXIES, arms.BARE)),
            max(partitions for partitions, _ in bars.FETCHES),
            True,
            partial(_open_requests, fetches),
        ),
    ]
    for shape in (bars.SESSION, bars.NEWS):
        load = bars.name_session(*shape)
        asked = {load: partial(_session, shape)}
        names = {load: (arms.CACHE, arms.WORKERS, arms.AGAINST)}
        found.append(Block(names, shape[0], True, partial(_open_requests, asked)))
    for kind, tail in bars.list_tails():
        forms = [bars.name_tail(*tail, is_busy=is_busy, clients=kind) for is_busy in (False, True)]
        opening = partial(_open_tail, kind, tail)
        found.append(Block(dict.fromkeys(forms, ARMS), tail[0], True, opening))
    return found


BLOCKS = build_blocks()
LOADS = {load: names for block in BLOCKS for load, names in block.loads.items()}
"""The rungs of each load."""


class Round:
    """One round. `say` is told what begins; `failures` are sentences; at most `repeats` turns are repeated in all."""

    def __init__(
        self, ladder: Ladder, number: int, scale: float, repeats: int, say: Callable[[str], None]
    ) -> None:
        self._ladder = ladder
        self._number = number
        self._scale = scale
        self._repeats = repeats
        self._say = say
        self.failures: list[str] = []

    def run(self, chosen: Sequence[str]) -> Iterator[Row]:
        """Each chosen load once on each of its rungs; a row as soon as it is measured."""
        draw = random.Random(self._number)
        for block in draw.sample(BLOCKS, len(BLOCKS)):
            wanted = block.list_cells(chosen, self._ladder.arms, draw)
            if not wanted:
                continue
            with (
                self._noting(", ".join(load for load in block.loads if load in chosen)),
                self._make_topic(block.partitions) as topic,
            ):
                for name, names in wanted:
                    yield from self._run_arm(block, topic, name, names)

    def _run_arm(self, block: Block, topic: str, name: str, names: list[str]) -> Iterator[Row]:
        arm = self._ladder.arms[name]
        place = Place(arm, self._ladder.broker_pid, self._ladder.broker.direct, topic)
        self._say(f"{names[0]}, {name}: getting ready")
        with self._noting(f"{', '.join(names)}, {name}"):
            self._get_ready(block, place)
            with block.open(place) as turns:
                self._wait_unwatched(but=name)
                for load in names:
                    self._say(f"{load}, {name}")
                    with self._noting(f"{load}, {name}"):
                        yield self._measure(load, name, turns[load])

    def _measure(self, load: str, name: str, turn: Turn) -> Row:
        attempts = min(cells.ATTEMPTS, 1 + self._repeats)
        row = cells.measure_cell(
            self._number, load, name, partial(turn, self._scale), attempts=attempts
        )
        self._repeats -= row.attempts - 1
        return row

    def _get_ready(self, block: Block, place: Place) -> None:
        """Wait until the rung watches nothing that was read before, and stores the topic's batches where it may."""
        loads.wait_unwatched(place.arm)
        loads.prove_codec(place.arm, place.direct, place.topic)
        if not block.is_read:
            loads.wait_unwatched(place.arm)

    def _wait_unwatched(self, but: str) -> None:
        """Wait until no other rung watches the topic, which it may have read before."""
        for name, arm in self._ladder.arms.items():
            if name != but:
                loads.wait_unwatched(arm)

    @contextlib.contextmanager
    def _make_topic(self, partitions: int) -> Iterator[str]:
        """Yield a new topic, once those before it have left the disk; delete it afterwards.

        A broker maps two files for each partition that it keeps; the kernel allows a process 65,530
        (`vm.max_map_count`).
        """
        direct = self._ladder.broker.direct
        topic = create_topic(direct, partitions=partitions)
        try:
            wait_deleted(self._ladder.broker.log_dir())
            write_index(direct, topic, partitions)
            yield topic
        finally:
            delete_topic(direct, topic)

    @contextlib.contextmanager
    def _noting(self, what: str) -> Iterator[None]:
        try:
            yield
        except FAILED as error:
            self.failures.append(f"failed: round {self._number + 1}, {what}: {error}")
            self._say(self.failures[-1])


def warm_up(ladder: Ladder) -> None:
    """Ask the broker directly until its JVM has compiled what turns need; else the first rung pays for that. The topic
    stays: a broker removes none in its first 30 s (`log.initial.task.delay.ms`). Wrong, KafkaException, TimeoutError.
    """
    direct = ladder.broker.direct
    partitions = max(partitions for partitions, _ in bars.PRODUCES)
    topic = create_topic(direct, partitions=partitions)
    place = Place(arms.Arm(arms.DIRECT, direct), ladder.broker_pid, direct, topic)
    _crowd(bars.CROWD, place, WARM_UP_SCALE)
    for shape in bars.PRODUCES:
        _produce(shape, place, WARM_UP_SCALE)
    for shape in bars.FETCHES:
        _fetch(shape, place, WARM_UP_SCALE)


def write_index(direct: str, topic: str, partitions: int) -> None:
    """Bring each partition past its first entry in the index. TimeoutError.

    `LogSegment.append` writes one entry for each `indexIntervalBytes`; the first touches two mapped files that have no
    blocks yet. On a busy disk that took a broker 13 ms for each partition, in which no Produce of any was acknowledged.
    """
    producer = Producer({"bootstrap.servers": direct, "log_level": 3})
    for size_bytes in (INDEXED_BYTES, 1):
        for index in range(partitions):
            producer.produce(topic, bytes(size_bytes), partition=index)
        if producer.flush(WRITTEN_S):
            raise TimeoutError("the broker does not take two records for each partition")


def wait_deleted(log_dir: Path) -> None:
    """Until a broker has removed the partitions of deleted topics. TimeoutError.

    `LogManager.asyncDelete` renames a partition's folder, to end in -delete; a task removes it later.
    """
    deadline = time.monotonic() + DELETED_S
    while any(log_dir.glob("*-delete")):
        if time.monotonic() > deadline:
            raise TimeoutError("the broker does not remove deleted topics")
        time.sleep(POLL_S)
