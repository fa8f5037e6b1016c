"""The run of observed offsets that C extends, and what is ahead of it: not while Python knows of something there, and
again once it does not.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proxy.partitions._rows import ffi, lib

from protocol.produce_rows import Row
from proxy.partitions.partition_row import open_row
from proxy.partitions.table import HOLE_PATIENCE_S
from proxy.partitions.transactions import GIVEN_PIECES, Transactions

LAST_DELTA = Row._fields.index("last_delta")


def list_pieces(one: Transactions) -> list[list[tuple[int, int]]]:
    """Those of C, and those of Python."""
    noted = [(piece.first, piece.end) for piece in one.row.ahead[0 : one.row.ahead_count]]
    return [noted, [(piece.start, piece.end) for piece in one._pieces]]


class Observed:
    """A partition's transactions, told by C where it can, and `alone` by `observed` always."""

    def __init__(self, rng: Random) -> None:
        self.rng, self.now_s, self.end, self.fast, self.ahead = rng, 0, 0, 0, 0
        self.row = open_row()
        self.row.tail = 1 << 40
        self.told = Transactions(100, HOLE_PATIENCE_S, self.row)
        self.alone = Transactions(100, HOLE_PATIENCE_S)

    def both(self, method: str, *values: Any) -> None:
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
        """A plain batch: the next one, or one whose acknowledgement has crossed others'."""
        alone = self.alone
        start = self.rng.choice(
            (self.end, self.end, alone.end, self.rng.randint(0, self.end), self.end + 2)
        )
        start = max(0, start)
        following = start + self.rng.randint(1, 3)
        self.end = max(self.end, following)
        is_python_s = self.row.has_gap
        has_room = self.row.ahead_count < lib.PT_AHEAD
        left = self.note_stored(start, following - start)
        assert not (is_python_s and left == 0), "C notes nothing that Python has to know"
        assert left == 0 or is_python_s or start < alone.end or not has_room, "C notes the rest"
        self.fast += left == 0
        self.ahead += left == 0 and start > alone.end
        if left:
            self.told.observed(b"", (), start, following)
        alone.observed(b"", (), start, following)
        is_few = self.told.statistics().pieces <= GIVEN_PIECES
        assert not (left and is_few and self.row.has_gap), "C goes on once little is ahead"

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
        (noted, kept), (noted_alone, kept_alone) = map(list_pieces, (told, alone))
        assert not (noted and (kept or self.row.has_gap)), "pieces are C's or Python's"
        assert self.row.has_gap == bool(kept)
        assert noted + kept == noted_alone + kept_alone
        assert told.statistics() == alone.statistics()
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
    lives = [observe(seed) for seed in range(20)]
    assert sum(life.fast for life in lives) > 300
    assert sum(life.ahead for life in lives) > 100


@pytest.mark.parametrize("excess", [0, 1])
def test_what_is_ahead_is_python_s_beyond_the_bound(excess: int) -> None:
    life, count = Observed(Random(1)), lib.PT_AHEAD + excess
    life.both("shown", 1, 1, 0, 0)
    for number in range(count):
        base = 2 * (count - number)
        if life.note_stored(base, 1):
            life.told.observed(b"", (), base, base + 1)
        life.alone.observed(b"", (), base, base + 1)
        life.check()
    assert (life.row.ahead_count, life.row.has_gap) == ((0, True) if excess else (count, False))
    assert life.told.statistics().pieces == count
    for base in range(1, 2 * count, 2):
        if life.note_stored(base, 1):
            life.told.observed(b"", (), base, base + 1)
    assert (life.told.end, life.told.statistics().pieces) == (2 * count + 1, 0)
