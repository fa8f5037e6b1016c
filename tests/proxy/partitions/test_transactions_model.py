"""The follower of transactions against the whole log: no wrong answer, and a full one in the end.

Long random lives of a partition, since it takes many steps until an aborted transaction is asked for in parts.
"""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.control_batch import ControlType
from proxy.partitions.transactions import Transactions
from tests.proxy.transactional_log import Log

AMPLE, PATIENCE_S, STEPS = 1000, 5, 120


class Life:
    """One partition and its follower. Each method of `WEIGHTS` is something that happens to them."""

    def __init__(self, rng, limit):
        self.rng, self.limit = rng, limit
        self.log = Log()
        self.followed = self.begin()
        self.now_s = 0
        self.answers = [(0, 0, 0)]  # what the broker showed since the last truncation
        self.handed_on = 0  # entries that have been observed in order
        self.lists = []  # lengths of the aborted lists given, None where unknown
        self.stable = -1  # LSO of the last answer since the last truncation
        self.recalls = 0
        self.races = rng.random() < 0.5  # whether the broker shows a HW older than its LSO

    def begin(self):
        """A follower that knows nothing."""
        return Transactions(self.limit, PATIENCE_S)

    def transactional(self):
        self.log.data(self.rng.randint(1, 3), self.rng.randint(1, 3))

    def marker(self):
        """Of an open transaction, or of an empty one."""
        producer_id = self.rng.randint(1, 3)
        self.rng.choice((self.log.abort, self.log.commit))(producer_id)

    def plain(self):
        self.log.append(self.rng.choice((-1, 9)), count=self.rng.randint(1, 2))

    def compacted_away(self):
        self.log.end += 1

    def replicated(self):
        least = self.log.high_watermark
        self.log.high_watermark = self.rng.choice(
            (self.log.end, self.rng.randint(least, self.log.end))
        )

    def broker_answers(self):
        """Now, or an older answer after a newer one; in some lives the HW is older than the LSO."""
        self.answers.append(
            (self.log.high_watermark, self.log.last_stable_offset(), self.log.start)
        )
        at = self.rng.choice((len(self.answers) - 1, self.rng.randrange(len(self.answers))))
        high_watermark = self.answers[max(0, at - self.rng.randint(0, self.races))][0]
        _, stable, log_start = self.answers[at]
        self.followed.shown(high_watermark, stable, log_start, self.now_s)
        self.stable = min(stable, high_watermark)

    def another_process_takes_over(self):
        """It knows nothing, and observes what is written from then on."""
        self.followed = self.begin()
        self.handed_on = len(self.log.entries)
        self.answers = self.answers[-1:]
        self.stable = -1

    def stored_batches_are_looked_at(self):
        """Up to the HW of an answer to a request of now, without an abort marker (`update._recall`)."""
        high_watermark, known_from = self.log.high_watermark, self.followed.known_from
        aborts = [
            one.base + 1
            for one in self.log.entries
            if one.marker is ControlType.ABORT and one.base < high_watermark
        ]
        start = max([self.log.start, *aborts])
        if 0 <= known_from <= self.stable and start < high_watermark:
            self.followed.recall(self.rng.randint(start, high_watermark - 1), high_watermark)
            self.recalls += self.followed.known_from < known_from

    def time_passes(self):
        self.now_s += self.rng.randint(1, PATIENCE_S)

    def batches_in_order(self):
        count = len(self.log.entries)
        start, end = min(self.handed_on, count), min(self.handed_on + self.rng.randint(1, 6), count)
        self.followed.observed(*self.log.read(start, end))
        self.handed_on = end

    def batches_out_of_order(self):
        start = self.rng.randint(0, len(self.log.entries))
        self.followed.observed(
            *self.log.read(start, min(start + self.rng.randint(1, 4), len(self.log.entries)))
        )

    def everything_is_seen(self):
        self.followed.observed(*self.log.read(0, len(self.log.entries)))

    def truncated(self):
        """To what is replicated, or after an unclean election, to anything."""
        unclean = self.rng.random() < 0.2
        least = self.log.start if unclean else self.log.high_watermark
        offset = self.rng.choice(
            [entry.base for entry in self.log.entries if entry.base >= least] or [-1]
        )
        if offset >= 0:
            self.log.truncate(offset)
            self.answers = [(0, 0, 0)]
            self.followed.truncate(offset)
            self.stable = -1

    def log_start_moves(self):
        self.log.start = self.rng.randint(self.log.start, self.log.high_watermark)
        if self.rng.random() < 0.5:
            self.followed.advance_start(self.log.start)

    def old_blocks_are_evicted(self):
        self.followed.forget_before(self.rng.randint(self.log.start, self.log.end))

    def stable_offset_is_wanted(self):
        known = self.followed.last_stable_offset(self.log.high_watermark)
        stable = self.log.last_stable_offset()
        assert known is None or known <= stable
        if self.sees_all() and self.limit == AMPLE:
            assert known is not None and max(known, self.log.start) == stable

    def consume(self):
        """A fetch within the LSO, from any offset, to the end of a batch."""
        log, stable = self.log, self.log.last_stable_offset()
        fetch_offset = self.rng.randint(log.start, stable)
        ends = [entry.last + 1 for entry in log.entries if fetch_offset <= entry.last < stable]
        if not ends:
            return
        end_offset = self.rng.choice(ends)
        aborted = self.followed.aborted(fetch_offset, end_offset)
        self.lists.append(None if aborted is None else len(aborted))
        if aborted is None:
            assert not self.sees_all() or fetch_offset < self.followed.known_from
            return
        assert log.consume(fetch_offset, end_offset, aborted) == log.committed(
            fetch_offset, end_offset
        )
        self.check_list(aborted, log.aborted(fetch_offset, end_offset))

    def check_list(self, aborted, expected):
        """None that the broker would not list; from a run that saw all, or where each answer's HW is as old as its LSO,
        exactly the broker's.
        """
        for producer_id, offset in aborted:
            assert any(
                one.producer_id == producer_id and one.first <= offset < one.marker
                for one in expected
            )
        if self.followed.known_from == 0 or not self.races:
            assert sorted(aborted) == sorted((one.producer_id, one.first) for one in expected)

    def sees_all(self):
        return self.followed.known_from >= 0 and self.followed.end >= self.log.high_watermark

    def check_bounds(self):
        statistics = self.followed.statistics()
        assert max(statistics[:3]) <= self.limit
        assert statistics.pieces <= 32
        assert statistics.piece_events <= self.limit


WEIGHTS = {
    Life.transactional: 10,
    Life.marker: 10,
    Life.plain: 3,
    Life.compacted_away: 1,
    Life.replicated: 6,
    Life.broker_answers: 4,
    Life.stored_batches_are_looked_at: 10,
    Life.another_process_takes_over: 0.2,
    Life.time_passes: 1,
    Life.batches_in_order: 8,
    Life.batches_out_of_order: 6,
    Life.everything_is_seen: 3,
    Life.truncated: 0.3,
    Life.log_start_moves: 0.3,
    Life.old_blocks_are_evicted: 0.3,
    Life.stable_offset_is_wanted: 6,
    Life.consume: 12,
}


def live(seed, limit):
    rng = Random(seed)
    life = Life(rng, limit)
    for step in rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=STEPS):
        step(life)
        life.check_bounds()
    return life


@pytest.mark.parametrize("limit", [1, 2, 4, AMPLE])
@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_a_partitions_life(limit, seed):
    live(seed, limit)


def test_lives_are_not_dull():
    """The lives above ask for aborted lists of all kinds, and get them."""
    lives = [live(seed, AMPLE) for seed in range(60)]
    lists = [length for one in lives for length in one.lists]

    assert lists.count(None) < len(lists) // 2
    assert sum(length is not None and length > 1 for length in lists) > 50
    assert sum(one.recalls for one in lives) > 3
