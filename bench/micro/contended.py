"""What an arena costs that several processes share: `python -m bench.micro.contended`.

Owns the cases and the table; alone.c, contended.c and deaths.c do the work. Must not know the arena's layout.
Invariants: the library as it is and a former one (`--former`, a commit) run in turns in one process, so that a busy
machine slows both; the processes that contend have two processors together. The goal is issue 17's: at most 2 % of the
lock's calls wait.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from blockcache import _build

HERE = Path(__file__).parent
NATIVE = Path(_build.__file__).parent / "native"
CALLS = 2000


class Contended(NamedTuple):
    """Of all processes together."""

    lock_calls: int
    lock_waits: int
    waited_ns: int
    took_ns: int
    fetches: int
    inserts: int


def compile_with(native: Path, source: Path, made: Path, *more: str) -> None:
    """What is made of `source` and the library in `native`, with the flags of the product."""
    flags = [*_build.STRICT, "-pthread", *more, "-I", str(native), "-o", str(made)]
    sources = [str(source), *map(str, sorted(native.glob("*.c")))]
    _build.run_compiler([*_build.find_compiler(), *flags, *sources])


def run(command: list[str], processors: set[int]) -> list[int]:
    """The numbers that a program prints, on these processors."""

    def pin() -> None:
        os.sched_setaffinity(0, processors)

    done = subprocess.run(command, check=True, capture_output=True, text=True, preexec_fn=pin)
    return [int(word) for word in done.stdout.split()]


def measure_contended(program: Path, rounds: int, readers: int, work_us: int) -> str:
    """A row of the table: readers and a keeper on two processors."""
    processors = set(sorted(os.sched_getaffinity(0))[:2])
    command = [str(program), str(readers), "3", str(work_us)]
    taken = [Contended(*run(command, processors)) for _ in range(rounds)]
    waits = [100 * one.lock_waits / one.lock_calls for one in taken]
    times = [100 * one.waited_ns / one.took_ns / (readers + 1) for one in taken]
    longest = [one.waited_ns / max(1, one.lock_waits) / 1000 for one in taken]
    rate = statistics.median(one.fetches / one.took_ns * 1e9 for one in taken)
    cells = [spread(waits, "%"), spread(times, "%"), spread(longest, "us"), f"{rate:,.0f}/s"]
    return f"| {readers} + 1 | {work_us} us | {' | '.join(cells)} |"


def load(native: Path, made: Path) -> tuple[ctypes.CDLL, int]:
    """alone.c with this native library, and what it works on."""
    compile_with(native, HERE / "alone.c", made, "-shared")
    library = ctypes.CDLL(str(made))
    library.prepare.restype, library.measure.restype = ctypes.c_void_p, ctypes.c_double
    library.measure.argtypes = ctypes.c_void_p, ctypes.c_int, ctypes.c_int
    return library, library.prepare()


def measure_former(directory: Path, former: str, rounds: int) -> list[str]:
    """Rows: calls of a process alone, beside those of a former commit."""
    archive = ["git", "archive", former, "blockcache/native"]
    packed = subprocess.run(archive, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(directory)], input=packed, check=True)
    both = (
        load(NATIVE, directory / "now.so"),
        load(directory / "blockcache/native", directory / "former.so"),
    )
    rows = []
    kinds = "lookup and release", "insertion of 1,000 bytes", "response of 8 partitions"
    for kind, name in enumerate(kinds):
        taken = [[library.measure(of, kind, CALLS) for library, of in both] for _ in range(rounds)]
        shortest = [min(one[which] for one in taken) for which in (0, 1)]
        ratios = [now / before for now, before in taken]
        cells = f"{shortest[0]:.1f} ns | {shortest[1]:.1f} ns | {shortest[0] / shortest[1]:.3f}"
        rows.append(f"| {name} | {cells} | {spread(ratios, '')} |")
    return rows


def measure_deaths(program: Path, rounds: int) -> str:
    """A row: what a death costs, for each 1,000 blocks of the arena."""
    taken = [run([str(program)], os.sched_getaffinity(0)) for _ in range(rounds)]
    cells = [
        spread([one[i] / one[0] * 1000 for one in taken], "us") for i in range(1, len(taken[0]))
    ]
    return f"| {taken[0][0]:,} | {' | '.join(cells)} |"


def spread(values: list[float], unit: str) -> str:
    """Median and range."""
    return f"{statistics.median(values):.3g} {unit} ({min(values):.2g} to {max(values):.2g})"


def main() -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--readers", type=int, default=7)
    parser.add_argument("--former", help="a commit whose library runs beside this one, alone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if options.former:
            print("| a process alone | now, shortest | former | ratio | ratios of pairs |")
            print("| --- | --- | --- | --- | --- |")
            print(
                "\n".join(measure_former(Path(scratch), options.former, 8 * options.rounds)), "\n"
            )
        program = Path(scratch) / "contended"
        compile_with(NATIVE, HERE / "contended.c", program)
        print(
            "| readers + keeper | other work | calls that waited | time waited | a wait | Fetches |"
        )
        print("| --- | --- | --- | --- | --- | --- |")
        for work_us in (30, 100):
            print(measure_contended(program, options.rounds, options.readers, work_us), flush=True)
        compile_with(NATIVE, HERE / "deaths.c", Path(scratch) / "deaths")
        print("\n| blocks | for 1,000: count of pins, locked | pins of a dead reader | takeover |")
        print("| --- | --- | --- | --- |")
        print(measure_deaths(Path(scratch) / "deaths", options.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
