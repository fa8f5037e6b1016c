"""One load on one rung in one round, measured again where the machine was not ours meanwhile.

Owns the rule of repeating: more than BEARABLE of the processors' time stolen by a hypervisor makes an attempt void, up
to ATTEMPTS of them; the one with the least stolen is kept. Must not know what is measured. Invariants: figures are of
one attempt, never mixed; an attempt that fails ends the cell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bench.stolen import read_cpu, share

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.ladder.loads import Figures
    from bench.stolen import Ticks

BEARABLE = 0.01
ATTEMPTS = 3


class Row(NamedTuple):
    """What one load said of one rung in one round; `stolen`: the share of that time, and how often it was tried."""

    round: int
    load: str
    arm: str
    figures: Figures
    stolen: float = 0.0
    attempts: int = 1


def measure_cell(
    number: int,
    load: str,
    arm: str,
    run: Callable[[], Figures],
    read: Callable[[], Ticks] = read_cpu,
    attempts: int = ATTEMPTS,
) -> Row:
    """The attempt of `run` that lost least, of at most `attempts`. Raises what `run` does."""
    tried: list[Row] = []
    while not tried or (tried[-1].stolen > BEARABLE and len(tried) < attempts):
        before = read()
        figures = run()
        tried.append(Row(number, load, arm, figures, share(before, read()), len(tried) + 1))
    return min(tried, key=lambda row: row.stolen)._replace(attempts=len(tried))


def describe_stolen(rows: Sequence[Row]) -> str:
    """For the page: how many cells were repeated, and what is left in the worst."""
    repeated = sum(row.attempts > 1 for row in rows)
    worst = max((row.stolen for row in rows), default=0.0)
    return (
        f"stolen by the hypervisor: {repeated} of {len(rows)} cells lost more than {BEARABLE:.0%} and were measured "
        f"again, at most {ATTEMPTS - 1} times; {worst:.1%} at most is left"
    )
