"""`python -m bench.shape`: the shapes that real clients have, on a broker, tuned haproxy and Forebay in turns.

Owns the arguments, the table of loads and the order of a run. Exit codes: 0 it ran (bars may be broken: the page says
so), 1 it could not.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shlex
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from bench.demo.progress import Progress
from bench.ladder import arms, loads, report
from bench.ladder.cells import measure_cell
from bench.shape import bars, requests, tails
from bench.shape.clients import LibrdkafkaClients
from bench.shape.java_clients import JavaClients
from tests.kit.broker.topics import create_topic, delete_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.ladder.arms import Arm, Ladder
    from bench.ladder.cells import Row
    from bench.ladder.loads import Figures

    Load = Callable[[Ladder, Arm, float], Figures]

RESULTS = Path(__file__).parents[1] / "results" / "shape"
ARMS = (arms.DIRECT, arms.TUNED, arms.PASS, arms.CACHE, arms.AGAINST)
PRODUCE_CALLS, FETCH_CALLS, SESSION_ROUNDS = 1600, 800, 200
CROWD_S, TAIL_S = 3.0, 6.0
CLIENTS: dict[str, Callable[[str, str, int, int, int], tails.Clients]] = {
    bars.LIBRDKAFKA: LibrdkafkaClients,
    bars.JAVA: JavaClients,
}


@contextlib.contextmanager
def _fresh(ladder: Ladder, arm: Arm, partitions: int) -> Iterator[str]:
    """Yield a topic of its own, whose batches are provably stored where they may be; delete it afterwards.

    A broker maps two files for each partition that it keeps; the kernel allows a process 65,530 (`vm.max_map_count`).
    """
    topic = create_topic(ladder.broker.direct, partitions=partitions)
    try:
        loads.prove_codec(arm, ladder.broker.direct, topic)
        loads.wait_unwatched(arm)
        yield topic
    finally:
        delete_topic(ladder.broker.direct, topic)


def _produce(partitions: int, size_kb: int, ladder: Ladder, arm: Arm, scale: float) -> Figures:
    calls = max(int(PRODUCE_CALLS * scale / size_kb), 50)
    with _fresh(ladder, arm, partitions) as topic:
        return requests.wide_produce(
            arm, ladder.broker_pid, topic, partitions, size_kb * 1000, calls
        )


def _fetch(partitions: int, size_kb: int, ladder: Ladder, arm: Arm, scale: float) -> Figures:
    calls = max(int(FETCH_CALLS * scale), 50)
    if arm.name == arms.BARE:
        return requests.bare_fetch(ladder.broker_pid, partitions, size_kb * 1000, calls)
    with _fresh(ladder, arm, partitions) as topic:
        return requests.wide_fetch(
            arm, ladder.broker_pid, ladder.broker.direct, topic, partitions, size_kb * 1000, calls
        )


def _session(partitions: int, news: int, ladder: Ladder, arm: Arm, scale: float) -> Figures:
    rounds = max(int(SESSION_ROUNDS * scale), 20)
    with _fresh(ladder, arm, partitions) as topic:
        return requests.session_news(
            arm, ladder.broker_pid, ladder.broker.direct, topic, partitions, news, rounds
        )


def _crowd(connections: int, ladder: Ladder, arm: Arm, scale: float) -> Figures:
    with _fresh(ladder, arm, 1) as topic:
        return requests.crowd(arm, ladder.broker_pid, topic, connections, CROWD_S * scale)


def _tail(
    kind: str,
    shape: tuple[int, int, int],
    is_busy: bool,
    ladder: Ladder,
    arm: Arm,
    scale: float,
) -> Figures:
    partitions, rate, groups = shape
    with (
        _fresh(ladder, arm, partitions) as topic,
        contextlib.closing(
            CLIENTS[kind](arm.address, topic, partitions, groups, tails.RECORD_BYTES)
        ) as clients,
        tails.busy_processors() if is_busy else contextlib.nullcontext(),
    ):
        return tails.tail_many(arm, ladder.broker_pid, clients, groups, rate, TAIL_S * scale)


def build_loads() -> dict[str, tuple[Load, tuple[str, ...]]]:
    """Each load by its name, with the rungs that it runs on."""
    found: dict[str, tuple[Load, tuple[str, ...]]] = {}
    for shape in bars.PRODUCES:
        found[bars.name_produce(*shape)] = partial(_produce, *shape), ARMS[1:]
    for shape in bars.FETCHES:
        found[bars.name_fetch(*shape)] = partial(_fetch, *shape), (*ARMS[1:], arms.BARE)
    for shape in (bars.SESSION, bars.NEWS):
        found[bars.name_session(*shape)] = partial(_session, *shape), (arms.CACHE, arms.AGAINST)
    found[bars.name_crowd(bars.CROWD)] = partial(_crowd, bars.CROWD), ARMS
    for kind, tail in bars.list_tails():
        for is_busy in (False, True):
            name = bars.name_tail(*tail, is_busy=is_busy, clients=kind)
            found[name] = partial(_tail, kind, tail, is_busy), ARMS
    return found


LOADS = build_loads()


def build_parser() -> argparse.ArgumentParser:
    """The options; the defaults are the full form."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.shape", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--rounds", type=int, default=4, help="how often each load runs (default: 4)"
    )
    parser.add_argument(
        "--arms", default=",".join((*ARMS, arms.BARE)), help="which rungs, by commas (default: all)"
    )
    parser.add_argument(
        "--loads", default=";".join(LOADS), help="which loads, by semicolons (default: all)"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="how much of each load (default: 1)"
    )
    parser.add_argument("--against", type=Path, help="another tree of Forebay: a rung of its own")
    parser.add_argument("--directory", type=Path, default=RESULTS, help="where the page goes")
    parser.add_argument(
        "--more", action="store_true", help="keep the rounds of the page there, and add to them"
    )
    return parser


def run(options: argparse.Namespace, progress: Progress) -> str:
    """All of it; the page."""
    wanted = [name for name in options.arms.split(",") if name != arms.AGAINST or options.against]
    rows = report.read_rows(options.directory) if options.more else []
    first = max((row.round + 1 for row in rows), default=0)
    notes: list[str] = []
    page = ""
    with ExitStack() as stack:
        progress.step("starting the broker and the rungs")
        ladder = arms.open_ladder(
            stack, [name for name in wanted if name != arms.BARE], options.against
        )
        if arms.BARE in wanted:
            ladder.arms[arms.BARE] = arms.Arm(arms.BARE, "")  # each of its loads starts its own
        notes += [f"left out: {name}: {why}" for name, why in ladder.left_out.items()]
        for number in range(first, first + options.rounds):
            cells = [
                (load, name)
                for load in options.loads.split(";")
                for name in LOADS[load][1]
                if name in ladder.arms
            ]
            random.Random(number).shuffle(cells)
            try:
                for load, name in cells:
                    progress.step(f"round {number + 1} of {first + options.rounds}: {load}, {name}")
                    ask = partial(LOADS[load][0], ladder, ladder.arms[name], options.scale)
                    try:
                        rows.append(measure_cell(number, load, name, ask))
                        report.write_rows(options.directory, rows)
                    except (loads.Wrong, OSError, TimeoutError, KafkaException) as error:
                        notes.append(f"failed: round {number + 1}, {load}, {name}: {error}")
                        progress.step(notes[-1])
            finally:
                page = write_page(options, rows, notes)
    return page


def write_page(options: argparse.Namespace, rows: list[Row], notes: list[str]) -> str:
    """Write what was measured so far: a run that is interrupted keeps that. Return the page."""
    command = f"python -m bench.shape {shlex.join(sys.argv[1:])}".strip()
    page = report.build_page(
        rows, [], notes, command, "Shapes of real clients", bars.build_bars(), bars.FLOOR
    )
    report.write_report(options.directory, page, rows, "shape.png", SHOWN)
    return page


SHOWN = {
    bars.name_produce(8, 1): ("cpu_us_per_request", "CPU, us per request"),
    bars.name_fetch(8, 64): ("cpu_us_per_request", "CPU, us per request"),
    bars.name_crowd(bars.CROWD): ("requests_per_s", "requests/s"),
    bars.name_tail(48, 1000, 4, is_busy=False): ("cpu_ms_per_s", "CPU, ms per s"),
}


def main() -> int:
    """Run; the exit code."""
    options = build_parser().parse_args()
    unknown = set(options.loads.split(";")) - set(LOADS)
    if unknown:
        print(
            f"no such load: {', '.join(sorted(unknown))}; there are: {'; '.join(LOADS)}",
            file=sys.stderr,
        )
        return 1
    try:
        print(run(options, Progress()))
    except arms.CANNOT_RUN as error:
        print(f"the shapes could not be measured: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
