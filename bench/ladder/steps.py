"""The steps: which load runs on which rung, and how a round goes.

Owns the table of steps, the topics and the shuffling. Must not know how a figure is measured. Invariants:
within a round each step runs once, all in an order drawn anew; what a step needs is made before it and not
measured; a step that failed is said, and the others go on.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from bench.ladder import arms, java_tools, loads, tailing
from bench.ladder.cells import measure_cell
from tests.kit.broker.process import ToolFailed
from tests.kit.broker.topics import create_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.ladder.arms import Arm, Ladder
    from bench.ladder.cells import Row
    from bench.ladder.loads import Figures, Scale

RATE_PER_S, TAIL_S = 200.0, 2.0
REAL_RATE_PER_S = 100.0


@dataclass(slots=True)
class Bench:
    """The rungs with what the loads need of them: topics, and where the shared ring begins."""

    ladder: Ladder
    scale: Scale
    ring: tuple[str, int] = ("", 0)
    failures: list[str] = field(default_factory=list)

    @property
    def direct(self) -> str:
        """The broker's own address."""
        return self.ladder.broker.direct

    def prepare(self) -> None:
        """Topics of every rung, what is produced to them provably stored where it can be, and the shared ring."""
        create_topic(self.direct, "ring")
        self.ring = ("ring", loads.fill_ring(self.direct, "ring"))
        for arm in self.ladder.arms.values():
            for use in ("p", "r", "t") if arm.name != arms.BARE else ():
                create_topic(self.direct, f"{use}-{arm.name}")
                loads.prove_codec(arm, self.direct, f"{use}-{arm.name}")
        for arm in self.ladder.arms.values():
            loads.wait_unwatched(arm)


def _small(bench: Bench, arm: Arm) -> Figures:
    return loads.small_produce(arm, bench.ladder.broker_pid, f"p-{arm.name}", bench.scale)


def _large(bench: Bench, arm: Arm) -> Figures:
    return loads.large_produce(arm, bench.ladder.broker_pid, f"p-{arm.name}", bench.scale)


def _fetch(groups: int) -> Callable[[Bench, Arm], Figures]:
    def run(bench: Bench, arm: Arm) -> Figures:
        place = bench.ring
        if arm.serves:
            place = f"r-{arm.name}", loads.fill_ring(arm.address, f"r-{arm.name}", arm.trust)
        return loads.read_ring(
            arm, bench.ladder.broker_pid, bench.direct, place, bench.scale, groups
        )

    return run


def _tail(groups: int) -> Callable[[Bench, Arm], Figures]:
    def run(bench: Bench, arm: Arm) -> Figures:
        pid, topic = bench.ladder.broker_pid, f"t-{arm.name}"
        return tailing.tail_raw(arm, pid, bench.direct, topic, groups, RATE_PER_S, TAIL_S)

    return run


def _real(bench: Bench, arm: Arm) -> Figures:
    topic = f"t-{arm.name}"
    return tailing.tail_librdkafka(arm, bench.ladder.broker_pid, topic, REAL_RATE_PER_S, TAIL_S)


def _java(bench: Bench, arm: Arm) -> Figures:
    topic = create_topic(bench.direct)
    loads.prove_codec(arm, bench.direct, topic)
    loads.wait_unwatched(arm)
    return java_tools.run_tools(arm, bench.ladder.broker_pid, topic)


PEERS = (
    arms.DIRECT,
    arms.HAPROXY,
    arms.TUNED,
    arms.KROXYLICIOUS,
    arms.PASS,
    arms.CACHE,
    arms.AGAINST,
)
TAILING = (arms.DIRECT, arms.TUNED, arms.KROXYLICIOUS, arms.CACHE)
OWN = (arms.NO_LOG, arms.TLS, arms.WORKERS)
STEPS: tuple[tuple[str, Callable[[Bench, Arm], Figures], Sequence[str]], ...] = (
    ("produce 1 KB", _small, (*PEERS, *OWN, arms.STORE, arms.RELAY)),
    ("produce 900 KB", _large, (*PEERS, *OWN, arms.STORE)),
    ("fetch 1 MB", _fetch(1), (*PEERS, *OWN, arms.BARE)),
    ("fetch 1 MB, 4 groups", _fetch(4), (arms.DIRECT, arms.CACHE)),
    ("fetch 1 MB, 16 groups", _fetch(16), (arms.DIRECT, arms.CACHE)),
    (
        "tail, 4 groups",
        _tail(4),
        (*TAILING, arms.NO_LOG, arms.WORKERS, arms.AGAINST),
    ),
    ("tail, 16 groups", _tail(16), (arms.DIRECT, arms.CACHE, arms.WORKERS)),
    ("librdkafka", _real, PEERS[:-1]),
    ("Java perf tools", _java, (arms.DIRECT, arms.TUNED, arms.KROXYLICIOUS, arms.CACHE)),
)


def run_round(
    bench: Bench, number: int, chosen: Sequence[str], only: Sequence[str] | None = None
) -> list[Row]:
    """Every step once, in an order drawn from the round's number; `only`: on these rungs."""
    wanted = [
        (load, run, bench.ladder.arms[name])
        for load, run, names in STEPS
        for name in names
        if name in bench.ladder.arms and load in chosen and (only is None or name in only)
    ]
    random.Random(number).shuffle(wanted)
    rows = []
    for load, run, arm in wanted:
        try:
            rows.append(measure_cell(number, load, arm.name, partial(run, bench, arm)))
        except (loads.Wrong, OSError, TimeoutError, KafkaException, ToolFailed) as error:
            bench.failures.append(f"round {number}, {load}, {arm.name}: {error}")
            print(bench.failures[-1], file=sys.stderr, flush=True)
    return rows
