"""What two workers carry beside one: `python -m bench.ladder.cores`.

Owns the loads, where processes run, and the table. Must not know what a worker is made of. Clients are one C program
(cores.c) that throws answers away. A Fetch from memory asks no broker, so that the broker, which is a real one, has
nothing to do. Invariants: one worker and two are measured in turns; the one has a processor of its own and the
clients the other; each of the two has one, which it shares with the clients; all bytes come from memory, or the run
says that it proves nothing. The goals are issue 17's: 1.6 times the answers, and 0.92 of the answers a CPU second.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.demo.progress import Progress
from bench.ladder import arms, loads
from bench.ladder.bare import build_program
from bench.ladder.cpu import list_tree, read_cpu_ns, spent_ns
from bench.ladder.frames import build_fetch
from bench.ladder.placing import TooFew
from bench.ladder.raw import Line
from tests.kit.broker.topics import create_topic
from tests.kit.frames import build_batch, build_produce
from tests.kit.raw_fetch import RawClient

if TYPE_CHECKING:
    from bench.ladder.arms import Arm, Ladder

SMALL, LARGE = "fetch 1 KB", "fetch 1 MB"
SMALL_RECORDS = 2000
CONNECTIONS = 16
LEAST_HITS = 0.89
"""Bytes of records in those of the answers, at least: of 1 KB a tenth is the answer's head."""
LISTEN = "0A"
"""A socket's state in /proc/net/tcp (include/net/tcp_states.h)."""


class Carried(NamedTuple):
    """Of one turn: answers a second, and answers a second of Forebay's CPU."""

    rate: float
    per_cpu_s: float


def fill_small(arm: Arm, topic: str) -> list[bytes]:
    """Produce records of 1 KB through the arm; a Fetch for each of them."""
    frame = build_produce(topic, build_batch(loads.SMALL_BYTES, loads.SMALL_BYTES))
    with Line(arm.address) as line:
        (first,) = loads.check_produced(line, line.call(frame))
        line.pipeline(frame, SMALL_RECORDS, 5)
    with RawClient(arm.address) as asking:
        words = asking.topic(topic)
    offsets = range(first, first + SMALL_RECORDS)
    return [build_fetch(words, [offset], loads.SMALL_BYTES) for offset in offsets]


def fill_large(arm: Arm, topic: str) -> list[bytes]:
    """The ladder's ring of 50 MB; a Fetch for each MB of it."""
    first = loads.fill_ring(arm.address, topic)
    return loads.build_ring_frames(arm.address, topic, first)


FILLS = {SMALL: fill_small, LARGE: fill_large}


def list_accepting(pid: int, port: int) -> list[int]:
    """The processes below `pid` that accept connections on the port: its workers, without supervisor and keeper."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {row[9] for row in rows if row[3] == LISTEN and int(row[1].split(":")[1], 16) == port}
    names = {f"socket:[{inode}]" for inode in inodes}
    found = []
    for one in list_tree(pid)[1:]:
        held = {str(fd.readlink()) for fd in Path("/proc", str(one), "fd").iterdir()}
        if names & held:
            found.append(one)
    return found


def pin(pid: int, processors: set[int]) -> None:
    """All threads of one process."""
    for thread in Path("/proc", str(pid), "task").iterdir():
        os.sched_setaffinity(int(thread.name), processors)


def place(ladder: Ladder) -> dict[str, list[str]]:
    """Put each worker on a processor of its own. Returns the words that place the clients of each arm. TooFew."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise TooFew("two workers are pinned to two processors, and there is one")
    clients = {}
    for arm in ladder.arms.values():
        workers = list_accepting(arm.pid, int(arm.address.split(":")[1]))
        for number, worker in enumerate(workers):
            pin(worker, {usable[number % 2]})
        clients[arm.name] = [str(usable[1])] if len(workers) == 1 else []
    return clients


def measure(
    arm: Arm, program: Path, frames: Path, seconds: float, clients: list[str]
) -> Carried | None:
    """One turn; None: not all came from memory."""
    port = arm.address.split(":")[1]
    command = [str(program), port, str(frames), str(CONNECTIONS), str(seconds), *clients]
    before, hits = read_cpu_ns(arm.pid), loads.count_hit_bytes(arm)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    cpu_ns = spent_ns(before, read_cpu_ns(arm.pid))
    answers, size_bytes, taken_ns, _ = map(int, done.stdout.split())
    if loads.count_hit_bytes(arm) - hits < LEAST_HITS * size_bytes:
        return None
    return Carried(answers / taken_ns * 1e9, answers / cpu_ns * 1e9)


def spread(values: list[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def build_row(load: str, pairs: list[tuple[Carried, Carried]]) -> str:
    """A line of the table."""
    one, two = zip(*pairs, strict=True)
    cells = [
        spread([each.rate for each in one]),
        spread([each.rate for each in two]),
        spread([b.rate / a.rate for a, b in pairs]),
        spread([b.per_cpu_s / a.per_cpu_s for a, b in pairs]),
    ]
    return f"| {load} | {' | '.join(cells)} |"


def run(options: argparse.Namespace, progress: Progress) -> str:
    """All of it; the page."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        progress.step("starting the broker, and Forebay with one worker and with two")
        ladder = arms.open_ladder(stack, [arms.CACHE, arms.WORKERS], None)
        program = build_program(scratch, Path(__file__).with_name("cores.c"))
        rows = []
        for load in options.loads.split(";"):
            frames = {}
            for arm in ladder.arms.values():
                topic = create_topic(ladder.broker.direct)
                loads.prove_codec(arm, ladder.broker.direct, topic)
                frames[arm.name] = scratch / f"{arm.name}.frames"
                frames[arm.name].write_bytes(b"".join(FILLS[load](arm, topic)))
            clients = place(ladder)
            pairs: list[tuple[Carried, Carried]] = []
            for number in range(options.rounds + 1):
                progress.step(f"{load}: round {number} of {options.rounds}")
                turn = [
                    measure(arm, program, frames[arm.name], options.seconds, clients[arm.name])
                    for arm in ladder.arms.values()
                ]
                if number and None in turn:
                    raise loads.Wrong(f"{load}: not all came from memory")
                if number:  # the first one warms up
                    pairs.append((turn[0], turn[1]))  # type: ignore[arg-type]
            rows.append(build_row(load, pairs))
    head = "| load | answers a second, one worker | two | ratio (goal 1.6) | of answers a CPU second (goal 0.92) |"
    return "\n".join([head, "| --- | --- | --- | --- | --- |", *rows])


def main() -> int:
    """Run; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.ladder.cores", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each turn (default: 2)")
    parser.add_argument("--loads", default=";".join(FILLS), help="by semicolons (default: all)")
    options = parser.parse_args()
    try:
        print(run(options, Progress()))
    except (*arms.CANNOT_RUN, TooFew, loads.Wrong, subprocess.CalledProcessError) as error:
        print(f"the bench could not run: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
