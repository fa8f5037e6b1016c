"""The run of observed offsets that C extends: never with a gap, and again once the gap has closed."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from proxy.partitions._rows import ffi, lib

from protocol.produce_rows import Row
from proxy.partitions.partition_row import open_row
from proxy.partitions.table import HOLE_PATIENCE_S
from proxy.partitions.transactions import Transactions

LAST_DELTA = Row._fields.index("last_delta")


class Observed:
    """A partition's transactions, told by C where it can, and `alone` by `passed` always."""

    def __init__(self, rng: Random) -> None:
        self.rng, self.now_s, self.end, self.fast = rng, 0, 0, 0
        self.row = open_row()
        self.row.tail = 1 << 40
        self.told = Transactions(100, HOLE_PATIENCE_S, self.row)
        self.alone = Transactions(100, HOLE_PATIENCE_S)
        self.must_be_fast = False

    def both(self, method: str, *values: Any) -> None:
        self.must_be_fast = False
        for one in (self.told, self.alone):
            getattr(one, method)(*values)

    def shown(self) -> None:
        self.now_s += self.rng.choice((0, 0, 2))
        stable = self.rng.randint(0, self.end)
        self.both("shown", self.end, stable, 0, self.now_s)

    def truncated(self) -> None:
        self.end = self.rng.randint(0, self.end)
        self.both("truncate", self.end)

    def log_start_moves(self) -> None:
        self.both("advance_start", self.rng.randint(0, self.end))

    def observed(self) -> None:
        start = self.rng.randint(0, self.end)
        self.both("observed", b"", (), start, self.rng.randint(start, self.end))

    def closed(self) -> None:
        self.both("observed", b"", (), 0, self.end)

    def stored(self) -> None:
        """A plain batch, usually the next one."""
        start = self.rng.choice(
            (self.end, self.end, self.end, self.rng.randint(0, self.end), self.end + 2)
        )
        following = start + self.rng.randint(1, 3)
        self.end = max(self.end, following)
        said = self.alone.statistics().pieces, self.alone.has_hole
        goes_on = start == self.alone.end
        left = self.note_stored(start, following - start)
        assert not (any(said) and left == 0), "C extends no run with a gap"
        assert left == 0 or not (goes_on and self.must_be_fast), "C extends the run again"
        self.fast += left == 0
        if left:
            self.told.passed(start, following)
        self.alone.passed(start, following)
        self.must_be_fast = (goes_on and not said[0]) or (
            self.must_be_fast and start < self.alone.end < following
        )

    def note_stored(self, base_offset: int, count: int) -> int:
        one = ffi.new("pt_forwarded[1]")
        order, places = (
            ffi.new("int64_t[1]"),
            ffi.new("int64_t[]", (0, 0, 100, base_offset, 1, 1 << 40)),
        )
        work = ffi.new("pt_work *", {"placed": 1, "order": order, "places": places})
        one[0].row, one[0].batch[LAST_DELTA] = self.row, count - 1
        lib.pt_note_stored(one, work, False, float("-inf"))
        return int(one[0].left & lib.PT_LEFT_TRANSACTIONS)

    def check(self) -> None:
        told, alone = self.told, self.alone
        assert (told.end, told.known_from, told.has_hole) == (
            alone.end,
            alone.known_from,
            alone.has_hole,
        )
        pieces = [[(one.start, one.end) for one in each._pieces] for each in (told, alone)]
        assert pieces[0] == pieces[1]
        assert told.last_stable_offset(self.end) == alone.last_stable_offset(self.end)


OBSERVED_WEIGHTS = {
    Observed.stored: 30,
    Observed.shown: 4,
    Observed.observed: 2,
    Observed.closed: 2,
    Observed.truncated: 0.5,
    Observed.log_start_moves: 0.5,
}


def observe(seed: int) -> Observed:
    rng = Random(seed)
    life = Observed(rng)
    for step in rng.choices(list(OBSERVED_WEIGHTS), list(OBSERVED_WEIGHTS.values()), k=120):
        step(life)
        life.check()
    return life


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_transactions_are_told_the_same_by_c(seed: int) -> None:
    observe(seed)


def test_c_extends_many_runs() -> None:
    assert sum(observe(seed).fast for seed in range(20)) > 100
