"""What turns of event loops cost where a record passes several processes: `python -m bench.micro.wakeups`.

Owns a toy without Forebay's code: a byte comes RATE times a second and goes to READERS sockets, by one process, or by a
keeper that wakes two workers, which have half of the readers each. Must not know Kafka. Invariants: the two forms run
in turns; the driver waits for all readers before the next byte, and its own time does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import uvloop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RATE, READERS = 200, 4
FORMS = "one process", "a keeper and two workers"
FIRST = 20
"""Bytes before the count begins."""


class Passing(asyncio.Protocol):
    """Writes what comes to all of `ends`, and notes the process's time from the FIRST byte on."""

    def __init__(self, ends: Sequence[asyncio.WriteTransport], end: Callable[[], None]) -> None:
        self._ends, self._end = ends, end
        self._came = 0
        self.begun_ns = 0

    def data_received(self, data: bytes) -> None:
        self._came += 1
        if self._came == FIRST:
            self.begun_ns = time.process_time_ns()
        for end in self._ends:
            end.write(data)

    def connection_lost(self, _error: Exception | None) -> None:
        self._end()


async def serve(source: int, ends: Sequence[int]) -> None:
    """Pass on what comes until the source ends, and print how much time that took of the process, in ns."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    opened = [
        (await loop.create_connection(asyncio.Protocol, sock=socket.socket(fileno=end)))[0]
        for end in ends
    ]
    passing = Passing(opened, over.set)
    await loop.create_connection(lambda: passing, sock=socket.socket(fileno=source))
    await over.wait()
    print(time.process_time_ns() - passing.begun_ns, flush=True)


def start(source: socket.socket, ends: Sequence[socket.socket]) -> subprocess.Popen[bytes]:
    """A process that serves; the sockets are its own from now on."""
    fds = [one.fileno() for one in (source, *ends)]
    command = [sys.executable, "-m", "bench.micro.wakeups", "--serve", *map(str, fds)]
    process = subprocess.Popen(command, pass_fds=fds, stdout=subprocess.PIPE)
    for one in (source, *ends):
        one.close()
    return process


def measure(form: str, seconds: float) -> float:
    """Microseconds of all processes for one byte to all readers."""
    driver, source = socket.socketpair()
    pairs = [socket.socketpair() for _ in range(READERS)]
    readers, ends = [one for one, _ in pairs], [one for _, one in pairs]
    if form == FORMS[0]:
        processes = [start(source, ends)]
    else:
        told = [socket.socketpair() for _ in range(2)]
        halves = ends[: READERS // 2], ends[READERS // 2 :]
        processes = [start(at, half) for (_, at), half in zip(told, halves, strict=True)]
        processes.append(start(source, [to for to, _ in told]))
    count = FIRST + int(RATE * seconds)
    begun = time.monotonic()
    for number in range(count):
        driver.send(b"x")
        for reader in readers:
            reader.recv(1)
        time.sleep(max(0.0, begun + (number + 1) / RATE - time.monotonic()))
    for one in (driver, *readers):
        one.close()
    taken_ns = [int(process.communicate(timeout=30)[0]) for process in processes]
    return sum(taken_ns) / 1e3 / (count - FIRST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each form in a round")
    parser.add_argument("--serve", type=int, nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        uvloop.run(serve(given.serve[0], given.serve[1:]))
        return
    taken: dict[str, list[float]] = {form: [] for form in FORMS}
    for _ in range(given.rounds):
        for form in FORMS:
            taken[form].append(measure(form, given.seconds))
    for form, found in taken.items():
        low, middle, high = min(found), statistics.median(found), max(found)
        print(
            f"{form}: {middle:.0f} us of CPU for a record to {READERS} readers ({low:.0f} to {high:.0f})"
        )


if __name__ == "__main__":
    main()
